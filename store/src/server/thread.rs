//! The thread that serves stores, and the handles that the rest of the program holds.

use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use mio::{Interest, Poll, Registry, Waker, net};
use socket2::SockRef;
use tokio::sync::{mpsc, watch};
use tracing::error;

use super::AdmissionRule;
use super::counters::Counters;
use super::driver::StoreDriver;
use super::source::{PollSource, StoreId};
use super::store::{self, NewStore, Policy};
use crate::limits::{BUFFERS_LEN_MAX, HANDED_OVER_MAX, OPENING_MAX, STORE_MEMORY_MAX};

/// A thread that serves any number of independent stores.
///
/// Dropping it closes them all and waits until the thread has ended.
#[derive(Debug)]
pub struct StoreThread {
    /// `None` only while it is dropped.
    opening: Option<mpsc::Sender<NewStore>>,
    thread: Option<JoinHandle<()>>,
    registry: Registry,
    waker: Arc<Waker>,
    next: AtomicUsize,
    counters: Arc<Counters>,
}

/// A store that is being served. Dropping it closes the store: its listener, its connections and
/// all its content.
#[derive(Debug)]
pub struct StoreHandle {
    policy: watch::Sender<Policy>,
    handed_over: mpsc::Sender<TcpStream>,
    waker: Arc<Waker>,
}

/// The options of a new store.
#[derive(Debug)]
pub struct Options {
    /// The rule by which connections are accepted.
    pub admission: AdmissionRule,
    /// Bound on the memory of the store in all: values, unfinished requests and unsent answers.
    pub memory_max: usize,
    /// Receives the address of refused connections, each address once; if `None`, they are logged.
    pub refusals: Option<mpsc::Sender<IpAddr>>,
}

impl Default for Options {
    fn default() -> Self {
        let memory_max = STORE_MEMORY_MAX + BUFFERS_LEN_MAX;
        Self { admission: AdmissionRule::Nobody, memory_max, refusals: None }
    }
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
    #[error("too many connections are waiting to be served")]
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
    /// Returns the operating system's error if it cannot create a thread or an event queue.
    pub fn start(name: &str) -> io::Result<Self> {
        let poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let waker = Arc::new(Waker::new(poll.registry(), PollSource::Handle.into())?);
        let (opening, opened) = mpsc::channel(OPENING_MAX);
        let counters = Arc::new(Counters::default());
        let driver = StoreDriver::new(poll, opened, Arc::clone(&counters));
        let thread = thread::Builder::new().name(name.to_owned()).spawn(|| driver.run())?;
        let (opening, thread) = (Some(opening), Some(thread));
        Ok(Self { opening, thread, registry, waker, next: AtomicUsize::new(0), counters })
    }

    /// Returns the numbers of all stores of this thread.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Opens an empty store on `listener`, for the peers that `admission` admits.
    ///
    /// Returns at once; connections made meanwhile wait in the listener's backlog.
    ///
    /// # Errors
    ///
    /// Returns [`OpenError`] if the listener cannot be used or the thread accepts no more stores.
    pub fn open(
        &self,
        listener: TcpListener,
        admission: AdmissionRule,
    ) -> Result<StoreHandle, OpenError> {
        self.open_with(Some(listener), Options { admission, ..Options::default() })
    }

    /// Opens an empty store; without a listener it only serves connections handed to it by
    /// [`StoreHandle::serve`].
    ///
    /// # Errors
    ///
    /// Returns [`OpenError`] if the listener cannot be used or the thread accepts no more stores.
    pub fn open_with(
        &self,
        listener: Option<TcpListener>,
        options: Options,
    ) -> Result<StoreHandle, OpenError> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err(OpenError::Ended);
        }
        let id = self.next_id();
        // Here, not on the thread, which could not report a failure.
        let listener = listener.map(|listener| self.register(listener, id)).transpose();
        self.begin(id, listener.map_err(OpenError::Listener)?, options)
    }

    fn next_id(&self) -> StoreId {
        StoreId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn register(&self, listener: TcpListener, id: StoreId) -> io::Result<net::TcpListener> {
        listener.set_nonblocking(true)?;
        store::prepare(&SockRef::from(&listener))?;
        let mut listener = net::TcpListener::from_std(listener);
        self.registry.register(
            &mut listener,
            PollSource::Listener(id).into(),
            Interest::READABLE,
        )?;
        Ok(listener)
    }

    fn begin(
        &self,
        id: StoreId,
        listener: Option<net::TcpListener>,
        options: Options,
    ) -> Result<StoreHandle, OpenError> {
        let Options { admission, memory_max, refusals } = options;
        let (policy, policy_seen) = watch::channel(Policy::Open(admission.canonical()));
        let (handed_over, taken_over) = mpsc::channel(HANDED_OVER_MAX);
        let opened =
            NewStore { id, listener, policy: policy_seen, taken_over, memory_max, refusals };
        let opening = self.opening.as_ref().ok_or(OpenError::Ended)?;
        opening.try_send(opened).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => OpenError::Busy,
            mpsc::error::TrySendError::Closed(_) => OpenError::Ended,
        })?;
        wake(&self.waker);
        Ok(StoreHandle { policy, handed_over, waker: Arc::clone(&self.waker) })
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        self.opening = None;
        wake(&self.waker);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            error!("the store's thread had panicked");
        }
    }
}

impl StoreHandle {
    /// Serves a connection that was accepted elsewhere and from which nothing was read.
    ///
    /// The peer must be admitted, as on the store's own listener; it is refused under
    /// [`AdmissionRule::Nobody`].
    ///
    /// # Errors
    ///
    /// Returns [`ServeError`], with the connection closed, if the store does not take it.
    pub fn serve(&self, stream: TcpStream) -> Result<(), ServeError> {
        stream.set_nonblocking(true).map_err(ServeError::Stream)?;
        self.handed_over.try_send(stream).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => ServeError::Busy,
            mpsc::error::TrySendError::Closed(_) => ServeError::Closed,
        })?;
        wake(&self.waker);
        Ok(())
    }

    /// Sets the rule for new connections, including connections in the backlog. Existing
    /// connections stay.
    pub fn admit(&self, admission: AdmissionRule) {
        let admission = admission.canonical();
        self.policy.send_modify(|policy| {
            if matches!(policy, Policy::Open(_)) {
                *policy = Policy::Open(admission);
            }
        });
        wake(&self.waker);
    }

    /// Closes the store and returns once its sockets are closed and its memory is freed.
    ///
    /// # Cancel safety
    ///
    /// The store is closed even if the future is dropped.
    pub async fn close(self) {
        self.begin_to_close();
        self.policy.closed().await;
    }

    fn begin_to_close(&self) {
        self.policy.send_replace(Policy::Closed);
        wake(&self.waker);
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.begin_to_close();
    }
}

/// Wakes the thread to handle changes that a handle made.
fn wake(waker: &Waker) {
    if let Err(cause) = waker.wake() {
        error!(%cause, "failed to wake the store's thread");
    }
}
