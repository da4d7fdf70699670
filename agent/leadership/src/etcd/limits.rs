//! The limits of `etcd`, each with its reason.
//!
//! Sizes are in bytes. Times, sizes and numbers are maxima unless stated otherwise.

use std::time::Duration;

/// Commands that wait for the thread: an agent sends a few in each round.
pub(super) const COMMANDS: usize = 64;
/// Events of the connections that wait for the machine.
pub(super) const EVENTS: usize = 64;
/// Changes that wait for their connection: the machine requests one at a time.
pub(super) const CHANGES: usize = 1;
/// Time for connecting to a member, with certificates and login.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time for the answer to a request. Three members can be tried within the leader's lease.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_millis(1200);
/// The first pause between attempts to read the key; it doubles, with jitter.
pub(super) const RETRY_FIRST: Duration = Duration::from_millis(100);
/// The longest pause: an agent sends one attempt every two seconds to a cluster that does not answer.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(2);
/// Silence of a watch after which the key is read from another member: four renewals of a leader. The member may be separated from the
/// others.
pub(super) const WATCH_SILENCE: Duration = Duration::from_secs(2);
/// The longest such silence. It doubles while the key does not change: no process leads, or a large job renews slowly.
pub(super) const WATCH_SILENCE_MAX: Duration = Duration::from_secs(16);
/// Time for which etcd keeps a key, in seconds. The key of a job that was killed, or is over, is removed 40 to 60 minutes after its last
/// change: leases are up to 20 minutes old.
pub(super) const KEY_LEASE_S: i64 = 3600;
/// Age at which the lease of a key is replaced: a third of its time.
pub(super) const KEY_LEASE_AGE: Duration = Duration::from_secs(1200);
/// Size of a record: twice the largest state of a job, with the failures that ended it, and far
/// below etcd's own limit of 1.5 MB.
pub(super) const MAX_RECORD: usize = 256 * 1024;
/// Size of an answer: a record with its header.
pub(super) const MAX_ANSWER: usize = 2 * MAX_RECORD;
/// Size of a file with certificates: a bundle of all public authorities has 250 KB.
pub(super) const MAX_TLS_FILE: u64 = 4 * 1024 * 1024;
/// Time without a leader after which the reason is reported: hosts of a job rarely start in the same second.
pub(super) const WAIT_WARNING: Duration = Duration::from_secs(10);
