//! Bugs that a world can plant between the machine and its nodes, at least one for each rule.
//!
//! A harness that has never caught anything proves nothing. Each of these is caught by the rule
//! that it is named with; `tests/simulation/main.rs` holds them to that.

/// A bug to plant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sabotage {
    /// None: the machine as it is.
    None,
    /// The member with group rank 1 is told that it has rank 0. Breaks rule 1.
    DoubleRank,
    /// A member is told to wait right after it was admitted. Breaks rule 2.
    WaitingMember,
    /// A coordinator that is started anew knows nothing, and nobody tells it. Breaks rule 3.
    Amnesia,
    /// The machine is told a smaller `min` than the job has. Breaks rule 4.
    FewerThanMin,
    /// No keeper kills anything when a lease is over. Breaks rule 5.
    NoKeeper,
    /// A keeper leaves word that a host's processes are dead while they live. Breaks rule 5.
    FalseGrave,
    /// The state file and the agents forget what was charged. Breaks rule 7.
    ForgottenCharges,
    /// No deadline is ever applied. Breaks rule 8.
    NoTimeouts,
    /// Charges of another run are charged to this one. Breaks rule 11.
    OthersCharges,
}
