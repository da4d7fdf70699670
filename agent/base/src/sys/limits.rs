//! The limits of `sys`, each with its reason. Sizes are in bytes; times, sizes and numbers
//! are maxima unless stated otherwise.

use std::time::Duration;

pub(crate) use crate::limits::{MAX_STATE_ENTRIES, MAX_STATE_FILE, UNUSED_AFTER};

/// The length of the longest path that a Unix socket can have, including the terminating NUL.
pub(crate) const MAX_SOCKET_PATH: usize = 108;
/// The time for a killed cgroup to become empty: less than a lease.
pub(crate) const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(2);
/// The size of a file that is read whole: those in `/sys` have a page, configurations a few. A
/// ConfigMap of Kubernetes has the same limit.
pub(crate) const MAX_SMALL_FILE: u64 = 1024 * 1024;
/// The size of a file of `/proc` that is read: the sockets of a hundred thousand connections, or the
/// children of a process that has as many as a system allows.
pub(crate) const MAX_PROC_FILE: u64 = 64 * 1024 * 1024;
/// The size of the first read of such a file: the kernel produces a page at once.
pub(crate) const PROC_READ: usize = 4096;
/// The number of InfiniBand and RoCE devices that are read, and of ports of each: machines have up to 18 devices of 1 or 2 ports.
pub(crate) const MAX_RDMA: usize = 64;
/// The number of interfaces on which agents look for each other.
pub(crate) const MAX_INTERFACES: usize = 64;
/// The time for all ranks of one start to appear; a launcher starts thousands in less.
pub(crate) const PMI_TIMEOUT: Duration = Duration::from_secs(120);
/// The length of one line from a launcher; PMI-1 allows 1 KiB.
pub(crate) const MAX_PMI_LINE: usize = 4096;
/// The number of scripts between a launcher and a rank.
pub(crate) const MAX_ANCESTORS: u32 = 32;
/// The output of a run of a user's command that is kept: a line for each of a thousand hosts.
pub(crate) const COMMAND_OUTPUT: usize = 64 * 1024;
/// The time for reading what a command has left in its pipes. The kernel has it already.
pub(crate) const COMMAND_PIPES: Duration = Duration::from_millis(100);
/// The number of commands that may hang at their start, because their program is on a file system that does not answer. Each keeps a thread.
pub(crate) const COMMAND_STARTS: usize = 8;
/// The pause between two looks for processes that were killed: they end at once, unless they hang in a driver.
pub(crate) const COMMAND_REAP: Duration = Duration::from_millis(5);
