//! The sending side of a connection, which other connections may use to release a waiter.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::AsyncWrite as _;
use tokio::net::tcp::OwnedWriteHalf;

use crate::output::Output;
use crate::wire::STOP_WAITING;

/// What is to be sent to one client, and the socket for it.
#[derive(Debug)]
pub(super) struct Peer {
    writer: RefCell<OwnedWriteHalf>,
    pub(super) output: RefCell<Output>,
    /// Wakes the connection's task.
    waker: RefCell<Waker>,
}

impl Peer {
    pub(super) fn new(writer: OwnedWriteHalf) -> Self {
        Self {
            writer: RefCell::new(writer),
            output: RefCell::default(),
            waker: RefCell::new(Waker::noop().clone()),
        }
    }

    /// Lets [`stop_waiting`](Self::stop_waiting) wake the task that `cx` belongs to.
    pub(super) fn register(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.will_wake(cx.waker()) {
            waker.clone_from(cx.waker());
        }
    }

    /// Answers the client's pending `WAIT` or `BARRIER`.
    ///
    /// Right here, if the socket takes it: a `SET` may release a thousand clients, and to schedule
    /// their tasks would cost as much again. Otherwise the client's own task sends it; it also
    /// meets the error, if there is one.
    pub(super) fn stop_waiting(&self) {
        let mut output = self.output.borrow_mut();
        if output.is_empty() && matches!(self.writer.borrow().try_write(&[STOP_WAITING]), Ok(1)) {
            return;
        }
        output.put_u8(STOP_WAITING);
        self.waker.borrow().wake_by_ref();
    }

    /// Sends what there is to send, as much at once as the socket takes.
    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut output = self.output.borrow_mut();
        let mut writer = self.writer.borrow_mut();
        while !output.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let used = output.next(&mut slices);
            let writer = Pin::new(&mut *writer);
            let sent = if used == 1 {
                ready!(writer.poll_write(cx, &slices[0]))?
            } else {
                ready!(writer.poll_write_vectored(cx, &slices[..used]))?
            };
            output.advance(sent);
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what the socket takes now, for a connection that is about to be closed.
    pub(super) fn flush_last(&self) {
        // Whoever broke a rule or hung up has no claim to more than a try.
        let _ = self.poll_flush(&mut Context::from_waker(Waker::noop()));
    }
}

/// Pieces handed to the kernel at once.
const SLICES: usize = 16;
