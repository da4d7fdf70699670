//! Sets the limits of this crate, each with its reason.

use ragent_rendezvous::{limits::VOTERS_MAX, message::ENDED_SHOWN_MAX};

/// The maximum number of non-voting members that grant leases: enough to replace all voters at
/// once.
pub(crate) const LEARNERS_MAX: usize = VOTERS_MAX;

/// The maximum number of other jobs of the same name that are remembered. One is rare, and two mean
/// that several hosts have lost their state at different times.
pub(crate) const OTHER_JOBS_MAX: usize = 4;

/// The maximum number of addresses that are remembered to have shown this process's job. It has
/// room for two lists, the listed hosts, and as many learners.
pub(crate) const SHOWN_BY_MAX: usize = 8 * VOTERS_MAX;

/// The maximum number of ended jobs that are remembered. A host that was away returns within the
/// next few runs, or not at all. A message has room for one more: the sender's own job.
pub(crate) const ENDED_MAX: usize = ENDED_SHOWN_MAX - 1;

/// The maximum number of renewals whose answers count: 12 within one lease, and more that changes
/// of the state cause in between.
pub(crate) const RENEWALS_UNDER_WAY_MAX: usize = 32;

/// The maximum number of changes of the record in an external store whose results count: the 10
/// renewals of one lease, and changes of the state in between.
pub(crate) const CHANGES_UNDER_WAY_MAX: usize = 32;

/// The maximum number of times that the pause after a failed candidacy doubles.
pub(crate) const PAUSE_DOUBLINGS_MAX: u32 = 3;

/// The longest time for answers to a candidate, as a multiple of the first one. With four, it is
/// half of a lease.
pub(crate) const POLL_FACTOR_MAX: u32 = 4;
