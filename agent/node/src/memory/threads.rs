//! The threads for work that must not delay the agent: checksums, the pages of buffers, and transfers.
//!
//! They have a low priority. The first work starts them, so an agent that holds no checkpoint has none. One thread waits
//! for connections, and each transfer has a thread while its bytes move, because encryption takes most of the time.

use std::{io, sync::Arc, thread};

use nix::{
    sched::{sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
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

/// Does `work` on the processors of a process. The kernel takes new pages from the memory next to the processor. If it
/// does not allow that, the work is done on any processor.
pub(super) fn near<T>(process: Option<Pid>, work: impl FnOnce() -> T) -> T {
    let this_thread = Pid::from_raw(0);
    let processors = process.and_then(|process| sched_getaffinity(process).ok());
    let before = processors.and_then(|processors| {
        let before = sched_getaffinity(this_thread).ok()?;
        sched_setaffinity(this_thread, &processors).ok()?;
        Some(before)
    });
    let result = work();
    if let Some(before) = before {
        // Other work of this thread may be for another process.
        let _ = sched_setaffinity(this_thread, &before);
    }
    result
}

/// Returns when the sender of `stop` is dropped.
pub(super) async fn stopped(mut stop: Stop) {
    while stop.changed().await.is_ok() {}
}

/// Returns true if the sender of `stop` is dropped.
pub(super) fn is_stopped(stop: &Stop) -> bool {
    stop.has_changed().is_err()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sched::CpuSet;

    use super::*;

    /// The work is done on the processors of the other process, and what follows on those of before. A process that is
    /// gone changes nothing.
    #[test]
    fn work_is_done_near_a_process() {
        let own = || sched_getaffinity(Pid::from_raw(0)).unwrap();
        let before = own();
        let last = (0..CpuSet::count()).rfind(|cpu| before.is_set(*cpu).unwrap()).unwrap();
        let mut one = CpuSet::new();
        one.set(last).unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        sched_setaffinity(pid, &one).unwrap();
        assert_eq!(near(Some(pid), own), one);
        assert_eq!(own(), before);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(near(Some(pid), own), before);
        assert_eq!(near(None, own), before);
    }
}
