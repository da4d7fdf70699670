//! Bugs that can be planted between the machines of a world.
//!
//! Each of them breaks the rules that its comment names; `tests/simulation/takeover.rs` verifies that they are found.

/// A bug to plant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bug {
    /// No bug: the machines as they are.
    None,
    /// Workers run under a lease that the coordinator's does not bound. Breaks rule b.
    UnchainedWorkers,
    /// A new coordinator does not wait for members that have not registered. Breaks rule b.
    NoWaitForOthers,
    /// The effects of a change are carried out before a majority has the memory. Breaks rule d.
    EarlyEffects,
    /// An obituary counts for the process that now runs on that host. Breaks rules a and b.
    ObituaryOfPlace,
    /// A coordinator continues after the end of its tenure. Breaks rules b and d.
    Overtime,
    /// A winner does not take over the memory of the voters. Breaks rule d, or g: it takes members for those of another
    /// job.
    IgnoredReplica,
    /// No keeper kills workers at the end of a lease. Breaks rule b.
    NoKeeper,
    /// No deadline of a coordinator is ever applied. Breaks rule g.
    NoTimeouts,
    /// An agent dials again at once whenever it was redirected. Breaks rule g.
    EagerDials,
}
