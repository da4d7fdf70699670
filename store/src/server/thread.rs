//! The thread of the stores, and the handles that the rest of the program holds.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use tokio::net;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, LocalSet};
use tracing::error;

use super::Admission;
use super::store::{self, Opened, Policy};
use crate::limits::{HANDED_OVER_MAX, OPENING_MAX};

/// A thread that serves any number of independent stores.
///
/// Dropping it closes them all and waits until it has.
#[derive(Debug)]
pub struct StoreThread {
    /// `None` only while it is dropped.
    opening: Option<mpsc::Sender<Opened>>,
    thread: Option<JoinHandle<()>>,
    runtime: Handle,
}

/// A store that is being served. Dropping it closes the store: its listener, its connections and
/// all it holds.
#[derive(Debug)]
pub struct StoreHandle {
    policy: watch::Sender<Policy>,
    handed_over: mpsc::Sender<TcpStream>,
}

/// A store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The thread does not keep up with opening stores; it must be stuck.
    #[error("the store's thread does not respond")]
    Busy,
    /// The thread has ended.
    #[error("the store's thread has ended")]
    Ended,
    /// The listener cannot be used.
    #[error("failed to prepare the listener")]
    Listener(#[source] io::Error),
}

/// A connection cannot be handed over; it was closed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// More connections were handed over than the thread has taken. Clients connect again.
    #[error("too many connections wait to be served")]
    Busy,
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
    /// The connection cannot be used.
    #[error("failed to prepare the connection")]
    Stream(#[source] io::Error),
}

impl StoreThread {
    /// Starts a thread called `name`.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error if it gives no thread or no event queue.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let (opening, opened) = mpsc::channel(OPENING_MAX);
        let handle = runtime.handle().clone();
        let thread =
            thread::Builder::new().name(name.to_owned()).spawn(|| serve_stores(runtime, opened))?;
        Ok(Self { opening: Some(opening), thread: Some(thread), runtime: handle })
    }

    /// Opens a fresh, empty store on `listener`, for the peers that `admission` admits.
    ///
    /// Returns at once; connections made meanwhile wait in the listener's backlog.
    ///
    /// # Errors
    ///
    /// Returns [`OpenError`] if the listener cannot be used or the thread takes nothing more.
    pub fn open(
        &self,
        listener: TcpListener,
        admission: Admission,
    ) -> Result<StoreHandle, OpenError> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err(OpenError::Ended);
        }
        listener.set_nonblocking(true).map_err(OpenError::Listener)?;
        // Here, not on the thread, where nobody would hear that it failed.
        let registered = {
            let _context = self.runtime.enter();
            net::TcpListener::from_std(listener)
        };
        self.open_with(Some(registered.map_err(OpenError::Listener)?), admission)
    }

    /// Opens a fresh, empty store that only serves connections handed to it by
    /// [`StoreHandle::serve`].
    ///
    /// # Errors
    ///
    /// Returns [`OpenError`] if the thread takes nothing more.
    pub fn open_without_listener(&self, admission: Admission) -> Result<StoreHandle, OpenError> {
        self.open_with(None, admission)
    }

    fn open_with(
        &self,
        listener: Option<net::TcpListener>,
        admission: Admission,
    ) -> Result<StoreHandle, OpenError> {
        let (policy, policy_seen) = watch::channel(Policy::Open(admission.canonical()));
        let (handed_over, taken_over) = mpsc::channel(HANDED_OVER_MAX);
        let opened = Opened { listener, policy: policy_seen, taken_over };
        let opening = self.opening.as_ref().ok_or(OpenError::Ended)?;
        opening.try_send(opened).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => OpenError::Busy,
            mpsc::error::TrySendError::Closed(_) => OpenError::Ended,
        })?;
        Ok(StoreHandle { policy, handed_over })
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        self.opening = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            error!("the store's thread had panicked");
        }
    }
}

impl StoreHandle {
    /// Serves a connection that was accepted elsewhere and from which nothing was taken.
    ///
    /// The peer must be admitted, as on the store's own listener; it is refused while nobody is.
    ///
    /// # Errors
    ///
    /// Returns [`ServeError`], with the connection closed, if the store does not take it.
    pub fn serve(&self, stream: TcpStream) -> Result<(), ServeError> {
        stream.set_nonblocking(true).map_err(ServeError::Stream)?;
        self.handed_over.try_send(stream).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => ServeError::Busy,
            mpsc::error::TrySendError::Closed(_) => ServeError::Closed,
        })
    }

    /// Says who may connect from now on. Connections that exist stay; those that wait in the backlog
    /// are decided on by what is said here.
    pub fn admit(&self, admission: Admission) {
        let admission = admission.canonical();
        self.policy.send_modify(|policy| {
            if matches!(policy, Policy::Open(_)) {
                *policy = Policy::Open(admission);
            }
        });
    }

    /// Closes the store and returns once its sockets are closed and its memory is freed.
    ///
    /// # Cancel safety
    ///
    /// The store is closed even if the future is dropped.
    pub async fn close(self) {
        self.policy.send_replace(Policy::Closed);
        self.policy.closed().await;
    }
}

fn serve_stores(runtime: Runtime, mut opened: mpsc::Receiver<Opened>) {
    LocalSet::new().block_on(&runtime, async {
        let mut stores = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Some(ended) = stores.join_next(), if !stores.is_empty() => {
                    if let Err(cause) = ended {
                        error!(%cause, "a store failed; its handle says that it is closed");
                    }
                }
                opened = opened.recv() => match opened {
                    Some(opened) => drop(stores.spawn_local(store::serve(opened))),
                    None => break,
                },
            }
        }
    });
}
