//! Bugs that a world can plant between the machine and its nodes, at least one for each rule.
//!
//! A test that has never found a bug proves nothing. Each of these is found by the rule that its
//! comment names; `tests/simulation/main.rs` checks that.

/// A bug to plant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sabotage {
    /// No bug: the machine as it is.
    None,
    /// The member with group rank 1 is admitted with rank 0. Breaks rule 1.
    DoubleRank,
    /// A member is assigned to wait right after its admission. Breaks rule 2.
    WaitingMember,
    /// A restarted coordinator has no state, and agents report none. Breaks rule 3.
    Amnesia,
    /// The machine gets a smaller `min` than the job has. Breaks rule 4.
    FewerThanMin,
    /// No keeper kills workers at the end of a lease. Breaks rule 5.
    NoKeeper,
    /// A keeper reports that a host's processes are dead while they are alive. Breaks rule 5.
    FalseObituary,
    /// The state file and the agents lose the charges. Breaks rule 7.
    ForgottenCharges,
    /// No deadline is ever applied. Breaks rule 8.
    NoTimeouts,
    /// Charges of another run are charged to this one. Breaks rule 11.
    OthersCharges,
    /// The losses of nodes are missing in the journal. Breaks rule 12.
    LostEvents,
}
