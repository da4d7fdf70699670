//! Lists the bugs that can be planted between the machines of a world.
//!
//! Each bug breaks the rules in its comment, and `tests/simulation` verifies that they are found.
//!
//! - From [`Bug::OnlyNewList`] on, they concern the changes of the voters.
//! - From [`Bug::SilenceBelowLease`] on, they concern etcd.
//! - From [`Bug::DoubleRank`] on, they concern a job with one endpoint.
//! - From [`Bug::LowestStep`] on, they concern notices and checkpoints.
//! - From [`Bug::LowestIsWhole`] on, they concern checkpoints in memory.
//! - From [`Bug::HiddenSteps`] on, they concern stalls.
//!
//! No bug orders lists by a counter instead of the term. Lists are a part of the replica, and have no order of their own. A unit test of
//! the election verifies that the later term counts.

use std::time::Duration;

use ragent_election::election::timers::Timers;

/// A bug to plant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bug {
    /// No bug: the machines as they are.
    None,
    /// Workers run under a lease that may outlast the coordinator's. Breaks rules b and f.
    UnchainedWorkers,
    /// A new coordinator does not wait for members that have not registered. Breaks rule b.
    NoWaitForOthers,
    /// Effects of a change are carried out before a majority has the state. Breaks rule d.
    EarlyEffects,
    /// A death notice counts for the process that now runs on that host, not for its own. Breaks rules a and b.
    DeathNoticeOfPlace,
    /// A coordinator continues after the end of its grant. Breaks rules b, d and f.
    Overtime,
    /// A winner does not take over the state of the voters. Breaks rule d or, because it takes members for members of
    /// another job, rule g.
    IgnoredReplica,
    /// No keeper kills workers at the end of a lease. Breaks rules b and 5.
    NoKeeper,
    /// No deadline of a coordinator is ever applied. Breaks rules g and 8.
    NoTimeouts,
    /// No deadline of a voter is ever applied. Breaks rule g.
    NoTimeoutsOfVoters,
    /// The leader's lease runs from the receipt of an answer. Breaks rule e.
    LeaseFromReceipt,
    /// The lease of voters is shorter than the leader's. Breaks rules a and f.
    ShortVoterLease,
    /// The lease of voters leaves no time for keepers. Breaks rule f.
    NoTimeForKeepers,
    /// A voter votes although another leader's lease is in force. Breaks rule a.
    VoteUnderLease,
    /// An agent counts the rest of the leadership from the receipt of the echo. Breaks rule f.
    LeftFromReceipt,
    /// Voters do not report how long earlier workers may run. Breaks rule f.
    UnreportedWorkers,
    /// An agent reports that it is ready before it has stopped its earlier workers. Breaks rule b.
    EarlyReady,
    /// Votes and leases of voters that have just started count. Breaks rules a and f.
    EarlyVotesCount,
    /// All processes propose the same terms. Breaks rule c.
    SharedTerms,
    /// The clock of a machine stops while it is suspended. Breaks rules a and e.
    ClockStopsInSuspend,
    /// An agent dials again at once whenever it was redirected. Breaks rule g.
    EagerDials,
    /// While the voters change, only the new list counts. Breaks rules a and d.
    OnlyNewList,
    /// While the voters change, one majority of all voters in both lists counts. Breaks rules a and d.
    UnitedLists,
    /// The new list replaces the list before at once. Breaks rules a, d and g.
    NewListAtOnce,
    /// A slot belongs to any voter at its address. Breaks rules a and d.
    SlotsByAddress,
    /// The leases of members count before these members are voters. Breaks rules a and d.
    CountedNewcomer,
    /// A candidate that knows less than a voter is elected. Breaks rule d.
    IgnorantCandidate,
    /// A voter's state file keeps the first list, which the next process believes. Breaks rules a, d and f.
    OldList,
    /// No voter shows its job to others, or asks for theirs, and jobs that agents report are ignored. Breaks rules a, b, d,
    /// i, j and l.
    UninformedHosts,
    /// No registration shows which jobs have ended. Breaks rule m.
    UnshownEnds,
    /// Voters that do not lead show their job to no other process. Breaks rules b and j.
    OnlyLeadersShow,
    /// Both of two jobs that meet go on. Breaks rule k.
    NoYield,
    /// Of two jobs that meet, the elder one goes on although it lacks nodes. Breaks rule ar.
    PatientElder,
    /// A process that gives up its job for another one records that its job has ended. Breaks rule n.
    YieldIsAnEnd,
    /// A process votes at once after its start. Breaks rules a, d and f.
    NoMute,
    /// Requests of processes that are not known as voters are dropped. Breaks rules b, j and l.
    StrangersDropped,
    /// A voter that is silent is not replaced. Breaks rules d and i.
    SilentVoter,
    /// The silence of a record is shorter than the leader's lease. Breaks rules a and f.
    SilenceBelowLease,
    /// The silence of a record leaves no time for keepers. Breaks rule f.
    SilenceBelowKill,
    /// A process forgets the job when the key is deleted. Breaks rules c and d.
    StateDropped,
    /// A process that has seen no record leads at once. Breaks rules a and f.
    CreatorAtOnce,
    /// A leader whose record is gone does not write it again. Breaks rule o.
    RecordNotWritten,
    /// A process does not end with the outcome that it finds in the key, and begins another job. Breaks rule b.
    OutcomeIgnored,
    /// Garbage in the key is not replaced. Breaks rules g and o.
    GarbageKept,
    /// The member with group rank 1 is admitted with rank 0. Breaks rule 1.
    DoubleRank,
    /// A member is assigned to wait right after its admission. Breaks rule 2.
    WaitingMember,
    /// A restarted coordinator has no state, and agents report none. Breaks rule 3.
    Amnesia,
    /// The machine has a smaller `min` than the job. Breaks rule 4.
    FewerThanMin,
    /// A keeper reports that a host's processes are dead while they are alive. Breaks rule 5.
    FalseDeathNotice,
    /// The state file and the agents lose the charges. Breaks rule 7.
    ForgottenCharges,
    /// Charges of another run are charged to this one. Breaks rule 11.
    OthersCharges,
    /// The losses of nodes are missing in the journal. Breaks rule 12.
    LostEvents,
    /// A node serves all of its rounds with one store. Breaks rule 13.
    OneStore,
    /// The lowest of the steps that nodes have saved counts as saved by all. Breaks rule q.
    LowestStep,
    /// A checkpoint for an earlier notice, or none, answers the newest notice. Breaks rule q.
    OldAnswer,
    /// No deadline of a coordinator is applied during a phase. Breaks rule p.
    EndlessPhase,
    /// A node that has received a notice stops its workers before others have saved. Breaks rule u.
    EarlyLeaver,
    /// A notice that joins a phase has a number of its own. Breaks rules t and v.
    NewNumber,
    /// A coordinator ignores notices that its predecessor has known. Breaks rule r.
    ForgottenNotice,
    /// Workers that have saved and exited with 0 count as succeeded. Breaks rule t.
    ExitIsSuccess,
    /// A round that was not charged counts as a failure without progress. Breaks rule s.
    FreeRoundsCount,
    /// Once all ranks have saved, the job counts as saved although it has worked since. Breaks rule q.
    UnnoticedWork,
    /// The echo names the lowest of the members' newest steps as whole. Breaks rule y.
    LowestIsWhole,
    /// The echo names a checkpoint as whole that is held once. Breaks rule y.
    OnceIsWhole,
    /// The echo names the checkpoint of the plan as whole, although its copies are not made yet. Breaks rules y and ad.
    PlanIsWhole,
    /// A checkpoint is named by its step only: its round is the newest one. Breaks rules w, x, y and ab.
    StepIsId,
    /// Parts that are still being filled are reported. Breaks rules w, x, y, ab and ad.
    PartialReported,
    /// The report before the newest one counts. Breaks rules x and y.
    OlderReport,
    /// The buddy of a node is the node itself. Breaks rule aa.
    OwnBuddy,
    /// What was restored is not copied again. Breaks rules y and aa.
    RestoredNotCopied,
    /// A node that waits for a copy for long never reports that it is alone. Breaks rule aa.
    NeverAlone,
    /// The next coordinator does not know which checkpoint was tried. Breaks rule ab.
    StrikesLost,
    /// A checkpoint is struck off if a source does not answer. Breaks rules ab and ad.
    GoneIsStruck,
    /// A process of an earlier round saves in the next one. Breaks rule w.
    OldSocket,
    /// Only the node that has turned memory off learns that it is off. Breaks rule aa.
    OffAtOneNode,
    /// A block that arrives torn counts as done. Breaks rule w.
    TornIsDone,
    /// A plan with other ranks lacks the last part. Breaks rule x.
    PartLeftOut,
    /// A plan with other ranks names the holders of one part for another one. Breaks rule x.
    SourcesSwapped,
    /// A checkpoint that was saved with other ranks is restored as if the ranks were the same. Breaks rule x.
    RanksIgnored,
    /// Ranges of a block are sent, but its checksum was not computed. Breaks rule w.
    BlockUnchecked,
    /// The coordinator does not learn the steps of one node. Breaks rules ae and ag.
    HiddenSteps,
    /// The next coordinator does not know the pauses of the job. Breaks rule ae.
    ForgottenPauses,
    /// A node reports that a `save` waits for memory, although none does. Breaks rule af.
    EternalWait,
    /// Stalls never end in the journal. Breaks rule 12.
    LostStallEnds,
    /// No node receives a look. Breaks rule ah.
    LostLook,
    /// A node answers each look with what it has seen in its first one. Breaks rule ai.
    OldDigest,
    /// A registration does not repeat what the node has reported about its machine. Breaks rules aj and am.
    ForgottenNeeds,
    /// Each node has kinds of reasons of its own. Breaks rule ak.
    NewKinds,
    /// A node without its GPU claims that it only needs a reset. Breaks rule aj.
    MilderNeeds,
    /// A node that only needs a reset claims that workers cannot run. Breaks rule al.
    WorseNeeds,
    /// The next coordinator does not know which nodes have failed. Breaks rule an.
    SuspicionsLost,
    /// The next coordinator believes that the most suspected nodes are the least suspected ones. Breaks rule an.
    MostSuspectedFirst,
    /// Nodes claim checkpoints that no worker has saved. Breaks rule ao.
    FalseProgress,
    /// A failed node claims that it leaves, so that the node in its place is a new one. Breaks rule ap.
    FailedLeaves,
    /// A node claims that it has more room for checkpoints. Breaks rule aq.
    FalseRoom,
    /// A node claims that its failed worker had received the checkpoint of the round. Breaks rule ab.
    UnreadCounts,
}

impl Bug {
    /// Returns the leases.
    pub(super) fn timers(self) -> Timers {
        let default = Timers::default();
        let voter_lease = match self {
            Self::ShortVoterLease => Duration::from_millis(2_200),
            Self::NoTimeForKeepers => Duration::from_millis(2_800),
            _ => default.voter_lease,
        };
        Timers { voter_lease, ..default }
    }
}
