//! The record in the store, and the configuration, results and effects of a claim.

use std::time::{Duration, Instant};

use ragent_rendezvous::{
    heir::Successor,
    ids::{NodeId, Term},
    message,
    settings::{JobState, Leases, NodeRange},
};

use crate::election::NewLeadership;

/// A revision of the store: each change of any key has a higher one. Zero is before the first.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Revision(pub u64);

/// The identity of a content of the key. Revisions alone repeat if the store comes back empty or as an older copy.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stamp {
    /// The revision of the change that has written it; zero if the key does not exist.
    pub revision: Revision,
    /// The lease of the store with which it was written; zero without one. A process obtains another one after each request
    /// that has failed, so none is used before and after the store was restored.
    pub lease: i64,
}

/// The record of the leader in the store, in the only key of the job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// The leader's process.
    pub process: NodeId,
    /// The endpoint at which agents reach it.
    pub endpoint: String,
    /// Its term.
    pub term: Term,
    /// The number of the change that has written this record, in the order of the process's changes.
    pub number: u64,
    /// The leader's [`ClaimTimers::silence`]. Another process waits for this time or its own, whichever is longer: it
    /// may have been started with another number of nodes.
    pub silence: Duration,
    /// Whether its writer leads.
    pub kind: RecordKind,
    /// The processes that become candidates first if this leader is lost, in this order.
    pub successors: Vec<Successor>,
    /// The state of the job; `None` until the first leader has written one.
    pub job_state: Option<JobState>,
}

/// What a record says about the process that has written it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RecordKind {
    /// It leads.
    Leads,
    /// It has led, and has resigned.
    Resigned,
    /// It does not lead: the key had lost the record. Now it has the state of the job again, and a revision that shows for how
    /// long no leader has changed it. The rest is from the newest record that this process has seen; without one, the term is zero.
    Placeholder,
    /// It has led, and has resigned because the job is over: all its nodes have the outcome, or are lost. The record stays until
    /// etcd removes it, or another job of this name begins.
    JobOver,
}

/// The content of the job's key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyContent {
    /// The revision of the store at which this was its content.
    pub revision: Revision,
    /// The record, if the key has one.
    pub entry: Option<Entry>,
    /// The identity of a value of the key that is not a record.
    pub garbage: Option<Stamp>,
}

impl KeyContent {
    /// Returns the revision of the last change of the key; without a record, that of the store.
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
    /// The store has made the change; the revision, and the lease of a new record.
    Made(Stamp),
    /// The store has not made the change, because the key does not have the expected content; its
    /// content.
    Refused(Box<KeyContent>),
    /// No answer was received: the store may have made the change, or may still make it.
    Unknown,
}

/// The configuration of one process.
#[derive(Clone, Debug)]
pub struct ClaimSettings {
    /// This process.
    pub process: NodeId,
    /// The endpoint at which agents reach it.
    pub endpoint: String,
    /// The leases; the same for all processes.
    pub timers: ClaimTimers,
    /// The seed of terms and delays; different in each process.
    pub seed: u64,
}

/// The intervals of a claim; the same for all processes of a job.
///
/// Let clocks drift by at most ρ, and let a keeper need at most K to kill the workers at the end of
/// a lease. Then no worker of a lost leader runs when the next one leads, provided that
/// `(leader_lease + K)·(1 + ρ) <= silence·(1 - ρ)`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ClaimTimers {
    /// The interval at which the leader writes its record.
    pub renewal: Duration,
    /// The leader's lease, from the sending of the newest change that the store has made.
    pub leader_lease: Duration,
    /// The time without a new revision after which the record may be replaced, from the receipt of
    /// the newest one.
    pub silence: Duration,
    /// The pause after a change without an answer; it doubles with each further one.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// The delay between the candidacies of two successors, and the maximum of the random delay that
    /// is added to it.
    pub stagger: Duration,
    /// The maximum of the random delay of all other candidacies.
    pub spread: Duration,
}

impl ClaimTimers {
    /// Returns the intervals for a job of this size; the leases are scaled like those of its
    /// agents.
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
    /// The store elects leaders of its own, which takes a second and more. So the leases are twice
    /// those of voters.
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
    /// Change the job's key if it has the expected content. Exactly one result must follow; no
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
    /// The job in which this process took part has ended, with this outcome. Nobody else reports it: its leader has ended.
    Outlived(Box<message::Outcome>),
    /// The record of this process is released, or its lease is over. It may end.
    Released,
}
