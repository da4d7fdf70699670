//! Copies the output of a worker to its destinations, and keeps its last lines.

use std::{io, os::fd::OwnedFd, sync::Arc};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    unistd,
};
use tokio::{io::unix::AsyncFd, sync::oneshot};

use super::{
    console::Console,
    flow::{Flow, FlowOrder, StreamDestination},
    pipes::CopyProgress,
    sources::Outputs,
    tail::SharedTail,
};
use crate::sys::unix;

/// A request to a capture to read all output so far of its worker, and then to reply.
pub type Drain = oneshot::Sender<oneshot::Sender<()>>;

/// A stream that is being copied.
#[derive(Debug)]
pub struct Capture {
    /// The worker's end of the pipe.
    pub fd: OwnedFd,
    /// Requests a drain of the output so far.
    pub drain: Drain,
    /// The state with which the keeper continues the copying if this process dies.
    pub handed_over: (FlowOrder, Vec<OwnedFd>),
}

/// Creates a pipe for a worker's stream, and copies its content until all writers are gone. Readers of `outputs` learn of new content.
///
/// # Errors
///
/// Returns the system's refusal of a pipe.
pub fn start(
    console: Console,
    destination: StreamDestination,
    tail: Option<SharedTail>,
    outputs: Arc<Outputs>,
) -> io::Result<Capture> {
    let (receiver, fd) = unistd::pipe2(OFlag::O_CLOEXEC)?;
    // Workers expect their end to block.
    fcntl(&receiver, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let readable = unix::watch_pipe(receiver.try_clone()?)?;
    let flow = Flow::new(receiver, destination, tail)?;
    let handed_over = flow.hand_over()?;
    let (drain, drains) = oneshot::channel();
    tokio::spawn(copy(readable, (console, outputs), Box::new(flow), drains));
    Ok(Capture { fd, drain, handed_over })
}

async fn copy(
    readable: AsyncFd<OwnedFd>,
    (console, outputs): (Console, Arc<Outputs>),
    flow: Box<Flow>,
    mut drains: oneshot::Receiver<oneshot::Sender<()>>,
) {
    let mut may_drain = true;
    let mut flow = Some(flow);
    while let Some(held) = flow.take() {
        if held.progress == CopyProgress::End {
            return;
        }
        tokio::select! {
            // Output first, so that a drain has little left to do.
            biased;
            guard = readable.readable() => {
                flow = copy_all(&console, &outputs, held).await;
                if let Ok(mut guard) = guard {
                    guard.clear_ready();
                }
            }
            drain = &mut drains, if may_drain => {
                may_drain = false;
                // The runtime may not have noticed yet that the pipe has content, so try to read
                // it.
                flow = copy_all(&console, &outputs, held).await;
                if let Ok(drained) = drain {
                    // The requester may have stopped waiting.
                    let _ = drained.send(());
                }
            }
        }
    }
}

/// Copies until the pipe is empty.
async fn copy_all(console: &Console, outputs: &Outputs, mut flow: Box<Flow>) -> Option<Box<Flow>> {
    loop {
        flow = console.copy(flow).await?;
        outputs.handle_output();
        if flow.progress != CopyProgress::More {
            return Some(flow);
        }
    }
}
