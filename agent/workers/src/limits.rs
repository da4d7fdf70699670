//! The limits of `workers`, each with its reason.
//!
//! Sizes are in bytes. Times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

pub(crate) use ragent_base::limits::{
    FAILURE_OUTPUT_TIMEOUT, MAX_ANSWER, MAX_ERROR_FILE, MAX_KEEPER_FRAME, TASK_QUEUE,
};

/// Size of a worker's datagram to its service manager. systemd allows 4 KiB, too.
pub(crate) const MAX_WORKER_REPORT: usize = 4096;
/// Datagrams that may wait in one socket. `net.unix.max_dgram_qlen` is 512 at most by default.
pub(crate) const MAX_QUEUED_NOTICES: usize = 4096;
/// Time for taking the stacks of hung workers. They are killed afterwards in any case.
pub(crate) const STACKS_TIMEOUT: Duration = Duration::from_secs(15);
/// Time that a worker has to print its stack after a signal.
pub(crate) const STACK_SIGNAL_TIME: Duration = Duration::from_secs(1);
/// Processes of a worker, and threads of a process, whose stacks are taken.
pub(crate) const STACK_PROCESSES: usize = 256;
/// Interval at which the driver is asked whether a GPU is free. A call takes tens of microseconds.
pub(crate) const HELD_GPU_INTERVAL: Duration = Duration::from_millis(20);
/// Time for opening the files of a round. After that, workers start without them: a disk that takes
/// a minute is considered lost.
pub(crate) const FILES_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that a driver has, beyond `--held-gpu-timeout`, to report which processes hold the GPUs.
pub(crate) const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);
/// The ranks that are named when workers did not end in time: those of a machine with 8 GPUs.
pub(crate) const KILLED_NAMED: usize = 8;
/// The open files of a process among which those of GPUs are looked for: some milliseconds.
pub(crate) const FILES_LOOKED_AT: usize = 4096;
/// The size of a worker's error message in a report.
pub(crate) const ERROR_MESSAGE: usize = 2 * 1024;
/// Size of events that wait for a blocked console: those of thousands of workers.
pub(crate) const MAX_PENDING_EVENTS: usize = 4 * 1024 * 1024;
/// Timers that workers have set at once: 64 for each of 16 workers.
pub(crate) const MAX_TIMERS: usize = 1024;
/// Size of one request for a timer: as much as a pipe takes in one piece.
pub(crate) const MAX_TIMER_REQUEST: usize = 4096;
/// Time for an interpreter to start. Without an answer there are no standbys. It is more than the
/// first access to a shared file system takes.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(30);
/// Output of a program that prints stacks: thousands of threads.
pub(crate) const MAX_STACKS: u64 = 4 * 1024 * 1024;
/// Frames of a stack that are read. Python allows 1,000 by default.
pub(crate) const FRAMES_READ: usize = 4096;
/// Time for reading the kernel's view of a worker. It takes milliseconds, unless the kernel holds a lock of the worker. On a
/// machine whose processors are all busy it has taken more than a second.
pub(crate) const KERNEL_VIEW_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for py-spy in a look. The second part of a look follows after ten seconds.
pub(crate) const LOOK_SPY_TIMEOUT: Duration = Duration::from_secs(4);
/// Size of an answer of torch's worker server. Its 2,000 records have about 600 bytes each.
pub(crate) const MAX_RECORDS: u64 = 8 * 1024 * 1024;
/// Time for one answer of torch's worker server. A process that holds the lock of the interpreter returns no stacks.
pub(crate) const WORKER_SERVER_ANSWER: Duration = Duration::from_secs(2);
/// Time for all answers of torch's worker server.
pub(crate) const WORKER_SERVER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for a wait for errors of GPUs, in milliseconds. After that the thread looks whether there are still workers. A wake-up takes
/// microseconds.
pub(crate) const GPU_EVENT_WAIT_MS: u32 = 1_000;
/// Times that the wait for errors of GPUs is begun again in a round, after the driver has ended it: once for each of a few lost GPUs.
pub(crate) const GPU_WATCH_TRIES: u32 = 4;
/// Time that the end of a failed round waits for a reading of its hardware, which takes milliseconds. Later ones count in the round after.
pub(crate) const HARDWARE_TIMEOUT: Duration = Duration::from_millis(200);
/// Time that a reading of the hardware waits for folders. A disk answers in microseconds, unless it is remote and busy.
pub(crate) const FOLDER_TIME: Duration = Duration::from_millis(100);
/// Time after which a disk that has not answered is named.
pub(crate) const FOLDER_SILENCE: Duration = Duration::from_secs(5);
/// Free bytes below which a folder counts as full: less than a worker writes at once.
pub(crate) const FOLDER_ROOM: u64 = 1024 * 1024;
