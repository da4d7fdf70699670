//! Limits `ragent doctor`. Each limit has its reason. Sizes are in bytes. Times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

pub(crate) use ragent_base::limits::{
    IDENTIFY_TIMEOUT, MAX_ANSWER, MAX_IDENTITY_LEN, MAX_REACHED, MIN_OPEN_FILES,
    OPEN_FILES_PER_WORKER, REACH_AT_ONCE,
};

/// The time for one check. An interpreter on a cold network file system takes seconds, and so does a GPU driver at its first use after a
/// boot.
pub(crate) const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a process is asked that does not answer in time. Its machine may be busy.
pub(crate) const ATTEMPTS: u32 = 3;
/// The time for a killed process to be reaped, if nothing depends on it.
pub(crate) const REAP_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before a node that is measuring for another client is asked again.
pub(crate) const REACH_PAUSE: Duration = Duration::from_millis(500);
/// The time for a node to try all others, some of which may drop packets.
pub(crate) const REACH_TIMEOUT: Duration = Duration::from_secs(60);
/// The size of a node's report about the others: some hundred bytes for each.
pub(crate) const MAX_REACH_LEN: usize = 256 * 1024;
/// The number of findings about peers. Further ones usually have the same cause.
pub(crate) const MAX_PEER_LINES: usize = 32;
