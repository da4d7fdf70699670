//! The threads for work that must not delay the agent: checksums, the pages of buffers, and transfers.
//!
//! They have a low priority. The first work starts them, so an agent that holds no checkpoint has none. One thread waits
//! for connections, and each transfer has a thread while its bytes move, because encryption takes most of the time.

use std::{io, sync::Arc, thread};

use ragent_base::sys::unix;
use tokio::{
    runtime::{Builder, Handle},
    sync::watch,
};

use super::limits;

/// The running threads. Dropping this ends them.
#[derive(Debug)]
pub(super) struct Threads {
    pub(super) handle: Handle,
    _running: watch::Sender<()>,
    /// Ends with the threads.
    pub(super) stop: Stop,
    pub(super) busy: Busy,
}

/// Ends an activity when its sender is dropped.
pub(super) type Stop = watch::Receiver<()>;

/// Counts the activities that wait for the timers and sockets of the runtime. It ends after them.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy(Arc<watch::Sender<()>>);

impl Busy {
    /// Counts an activity until the returned value is dropped.
    pub(super) fn begin(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }
}

impl Threads {
    /// # Errors
    ///
    /// Returns the system's error, such as too many processes.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(limits::THREADS)
            .thread_keep_alive(limits::THREAD_IDLE)
            .thread_name("memory")
            .on_thread_start(unix::lower_thread_priority)
            .build()?;
        let (running, stop) = watch::channel(());
        let (handle, end) = (runtime.handle().clone(), stop.clone());
        let busy = Busy::default();
        let others = busy.clone();
        thread::Builder::new().name("memory".to_owned()).spawn(move || {
            unix::lower_thread_priority();
            runtime.block_on(async {
                stopped(end).await;
                // They end with their next piece.
                others.0.closed().await;
            });
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _running: running, stop, busy })
    }
}

/// Returns when the sender of `stop` is dropped.
pub(super) async fn stopped(mut stop: Stop) {
    while stop.changed().await.is_ok() {}
}

/// Returns true if the sender of `stop` is dropped.
pub(super) fn is_stopped(stop: &Stop) -> bool {
    stop.has_changed().is_err()
}
