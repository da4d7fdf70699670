//! Limits `ragent launch`. Each limit has its reason. Sizes are in bytes. Times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

pub(crate) use ragent_base::limits::{
    CLEANUP_TIMEOUT, CONSOLE_CHUNK, COORDINATOR_END_MARGIN, FAILURE_OUTPUT_TIMEOUT, FLUSH_TIMEOUT,
    MAX_LOCAL_WORLD_SIZE,
};

/// The size of a variable's value. Linux allows no longer arguments.
pub(crate) const MAX_VARIABLE: usize = 128 * 1024 - 1024;
/// The number of hosts of a hostfile. `--include` and `--exclude` choose among them.
pub(crate) const MAX_LISTED_HOSTS: usize = 16_384;
/// The number of hosts of one `ragent launch`. Each has an ssh process here. It takes about 2 MiB of memory, and four open files: with all
/// hosts 4,000, less than 4,096, which is a common limit that an administrator sets.
pub(crate) const MAX_HOSTS: usize = 1000;
/// The size of a hostfile or a file of variables that is read.
pub(crate) const MAX_LIST_FILE: u64 = 4 * 1024 * 1024;
/// The number of ssh connections that are opened at once without `--fanout`. Each costs CPU time here until it is open, and an sshd of a
/// jump host refuses some of too many (`MaxStartups`). These are tried again.
pub(crate) const DEFAULT_FANOUT: u32 = 64;
/// The maximum of `--fanout`: all hosts at once.
pub(crate) const MAX_FANOUT: u32 = MAX_HOSTS as u32;
/// The time for ssh to reach a host without `--connect-timeout`.
pub(crate) const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for a host to start ragent once it is reached. A login shell with its home on a slow disk takes seconds.
pub(crate) const GREETING_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of bytes that the shell of a host may print before ragent starts.
pub(crate) const MAX_BANNER: usize = 64 * 1024;
/// The size of a message between `ragent launch` and its relays. It has the environment and the arguments of a job, and each byte may
/// take four bytes.
pub(crate) const MAX_RELAY_FRAME: usize = 16 * 1024 * 1024;
/// The length of a forwarded line of an agent: the longest piece of a worker's line, with its prefix.
pub(crate) const MAX_RELAYED_LINE: usize = ragent_base::output::limits::MAX_CONSOLE_LINE + 4096;
/// The size of the prefixes within a line that returns to the left of the console. A progress bar does so thousands of times.
pub(crate) const MAX_INNER_PREFIXES: usize = 64 * 1024;
/// Messages that wait for a relay, a connection or the console. Senders wait while the queue is full.
pub(crate) const RELAY_QUEUE: usize = 64;
/// Orders that wait for one connection. There are only a handful in all. Further ones are dropped.
pub(crate) const ORDER_QUEUE: usize = 64;
/// The size of the end of ssh's output in the report of its failure.
pub(crate) const SSH_ERROR_LEN: usize = 1024;
/// Interval of keep-alives to a relay from the process that sends its orders.
pub(crate) const ORDER_KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Silence after which a relay considers the launching host lost. It is long enough for a user who stops `ragent launch` with Ctrl-Z and
/// continues it.
pub(crate) const ORDER_SILENCE: Duration = Duration::from_secs(300);
/// The number of attempts for a connection that was refused for a reason that may pass. For example, the sshd of a jump host is busy with
/// other connections (`MaxStartups`).
pub(crate) const SSH_ATTEMPTS: u32 = 4;
/// The unit of the pauses between these attempts, which increase.
pub(crate) const SSH_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The time for connections to end after the last order.
pub(crate) const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that agents may run after one of them has reported the success of the job. They learn it at once, or are evicted within a lease
/// (3 s), and have nothing left to do.
pub(crate) const SUCCESS_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that started hosts wait for each other if some were not reached. All of them start at the same moment.
pub(crate) const LAUNCH_LAST_CALL: Duration = Duration::from_secs(5);
