//! Defines the record in the store, and the settings, results and effects of a claim.

use std::time::{Duration, Instant};

use ragent_rendezvous::{
    heir::Successor,
    ids::{NodeId, Term},
    message,
    settings::{JobState, Leases, NodeRange},
};

use crate::election::NewLeadership;

/// A revision of the store. Each change of any key has a higher one; zero is before the first.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Revision(pub u64);

/// Identifies one content of the key. A revision alone does not: it repeats if the store comes back
/// empty or as an older copy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stamp {
    /// The revision of the change that has written the content; zero if the key does not exist.
    pub revision: Revision,
    /// The lease of the store with which it was written; zero without one. A process obtains a new
    /// one after each failed request, so none is used both before and after a restore of the store.
    pub lease: i64,
}

/// The leader's record, which is the value of the job's only key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// The leader's process.
    pub process: NodeId,
    /// The address at which agents reach it.
    pub endpoint: String,
    /// Its term.
    pub term: Term,
    /// The number of the change that has written this record. It grows with each change of the process.
    pub number: u64,
    /// The leader's [`ClaimTimers::silence`]. Another process waits for the longer of this time and
    /// its own, because it may have been started with another number of nodes.
    pub silence: Duration,
    /// The role of its writer.
    pub kind: RecordKind,
    /// The processes that become candidates first if this leader is lost, in this order.
    pub successors: Vec<Successor>,
    /// The state of the job; `None` until the first leader has written one.
    pub job_state: Option<JobState>,
}

/// The role of the process that has written a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RecordKind {
    /// It leads.
    Leads,
    /// It has led, and has resigned.
    Resigned,
    /// It does not lead: the key had lost the record. The placeholder restores the state of the
    /// job, and its revision shows for how long no leader has changed the key. The rest is from the
    /// newest record that its writer has seen. If there is none, the term is zero.
    Placeholder,
    /// It has led, and has resigned because the job is over: all its nodes have the outcome, or are
    /// lost. The record stays until etcd removes it, or another job of this name begins.
    JobOver,
}

/// The content of the job's key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyContent {
    /// The revision of the store at which the key had this content.
    pub revision: Revision,
    /// The record, if the key has one.
    pub entry: Option<Entry>,
    /// The identity of a value of the key that is not a record.
    pub garbage: Option<Stamp>,
}

impl KeyContent {
    /// Returns the revision of the last change of the key, or of the store if the key does not
    /// exist.
    pub(super) fn of_key(&self) -> Revision {
        self.stamp().map_or(self.revision, |stamp| stamp.revision)
    }

    /// Returns the identity of the content; `None` if the key does not exist.
    pub fn stamp(&self) -> Option<Stamp> {
        self.entry.as_ref().map(|entry| entry.stamp).or(self.garbage)
    }
}

/// A record that is in the store.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// Its identity.
    pub stamp: Stamp,
    /// The record.
    pub record: Record,
}

/// The result of a change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ChangeOutcome {
    /// The store has made the change. Identifies the new content.
    Made(Stamp),
    /// The store has not made the change, because the key does not have the expected content.
    /// Contains the actual content.
    Refused(Box<KeyContent>),
    /// No answer was received: the store may have made the change, or may still make it.
    Unknown,
}

/// The settings of one process.
#[derive(Clone, Debug)]
pub struct ClaimSettings {
    /// This process.
    pub process: NodeId,
    /// The endpoint at which agents reach it.
    pub endpoint: String,
    /// The intervals, the same for all processes.
    pub timers: ClaimTimers,
    /// The seed of terms and delays; different in each process.
    pub seed: u64,
}

/// The intervals of a claim; the same for all processes of a job.
///
/// No worker of a lost leader runs when the next one leads, provided that `(leader_lease + K)·(1 +
/// ρ) <= silence·(1 - ρ)`. Here ρ is the largest drift of a clock, and K the longest time that a
/// keeper needs to kill the workers after a lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ClaimTimers {
    /// The interval at which the leader writes its record.
    pub renewal: Duration,
    /// The leader's lease, from the sending of the newest change that the store has made.
    pub leader_lease: Duration,
    /// The time that a process waits for a new revision before it replaces the record, from the
    /// receipt of the newest one.
    pub silence: Duration,
    /// The pause after a change without an answer. It doubles with each further one, except for a leader, whose lease runs out.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// The delay between the candidacies of two successors, and the maximum of the random delay
    /// added to it.
    pub stagger: Duration,
    /// The maximum of the random delay of all other candidacies.
    pub spread: Duration,
}

impl ClaimTimers {
    /// Returns the intervals for a job of this size, scaled like the leases of its agents.
    pub fn for_nodes(nodes: NodeRange) -> Self {
        let factor = Leases::default().for_nodes(nodes).factor();
        let default = Self::default();
        Self {
            renewal: default.renewal.mul_f64(factor),
            leader_lease: default.leader_lease.mul_f64(factor),
            silence: default.silence.mul_f64(factor),
            ..default
        }
    }
}

impl Default for ClaimTimers {
    /// The leases are twice those of voters, because the store elects leaders of its own, which
    /// takes a second or more.
    fn default() -> Self {
        let leases = Leases::default();
        Self {
            renewal: Duration::from_millis(500),
            leader_lease: leases.agent * 2,
            silence: leases.coordinator * 2,
            pause: Duration::from_millis(100),
            pause_max: Duration::from_secs(2),
            stagger: Duration::from_millis(100),
            spread: Duration::from_millis(200),
        }
    }
}

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Change the job's key if it has the expected content. Exactly one result must follow. No
    /// other change is requested before it.
    Change {
        /// The number of the change.
        number: u64,
        /// The expected content of the key; zero if it must not exist.
        expected: Stamp,
        /// The new record.
        record: Box<Record>,
    },
    /// Start coordinating the job.
    Lead(Box<NewLeadership>),
    /// Coordinate until this time, unless it is extended again.
    Extend(Instant),
    /// The store has this change of the state, and all earlier ones.
    Stored(u64),
    /// Stop coordinating, if this process does, and redirect agents to the leader.
    Follow {
        /// The leader's endpoint and term; `None` if none is known.
        leader: Option<(String, Term)>,
    },
    /// The record of this process has replaced a value that was not a record.
    GarbageReplaced,
    /// The job in which this process took part has ended, with this outcome. This process must
    /// report it, because the job's leader has ended.
    Outlived(Box<message::Outcome>),
    /// The record of this process is released, or its lease is over, so the process may end.
    Released,
}
