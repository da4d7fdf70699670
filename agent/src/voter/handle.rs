//! The interface between a voter's thread and the rest of the agent.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Instant};

use ragent_election::election::{Leadership, OtherJob, message::Replica};
use ragent_rendezvous::{
    heir::{MembersReport, Successor},
    ids::{JobUid, NodeId, Term, VoterAddress, VoterId},
    known_job::{KnownJob, Seniority},
    message::Outcome,
    settings::Memory,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::StateLoss;
use crate::net::port::VoterConnection;

/// A running voter.
#[derive(Debug)]
pub(crate) struct VoterHandle {
    /// The queue of its commands.
    pub commands: Commands,
    /// The leader, as this voter knows it.
    pub leader: watch::Receiver<Leader>,
    /// The time of the last answer of each voter.
    pub answered: watch::Receiver<Answered>,
    /// The state that the next process at this voter's place continues with.
    pub stored: watch::Receiver<Stored>,
    /// The loss of the job's state, if a majority of the voters has lost it.
    pub state_loss: watch::Receiver<Option<StateLoss>>,
    /// The jobs that other processes have shown.
    pub others: watch::Receiver<Vec<OtherJob>>,
    /// Set when the job does not go on in this process.
    pub superseded: watch::Receiver<Option<Superseded>>,
    /// The jobs of this name that have ended.
    pub ended: watch::Receiver<Vec<JobUid>>,
    /// The queue of connections of other voters, for the agent's port.
    pub connections: mpsc::Sender<VoterConnection>,
}

/// The time of the last answer of each voter that has answered, by address.
pub(crate) type Answered = BTreeMap<VoterAddress, Instant>;

/// A queue of commands for a voter.
pub(crate) type Commands = mpsc::Sender<Command>;

/// A command for a voter.
#[derive(Debug)]
pub(crate) enum Command {
    /// The memory of the coordinator in this process has changed; it is to be copied to a majority.
    Remember {
        /// The term of that coordinator; the command has no effect unless this process leads in this term.
        term: Term,
        /// The memory.
        memory: Box<Memory>,
        /// The processes that succeed this one if the leader is chosen through an external store; voters have an order
        /// of their own.
        successors: Vec<Successor>,
        /// Notified when a majority has it; dropped if this process no longer leads.
        copied: oneshot::Sender<()>,
    },
    /// An agent has reported this term.
    Highest(Term),
    /// The coordinator of this term has ended; another process is to be elected.
    Resign(Term),
    /// The job has ended in this term, and all nodes have its outcome. Its record in an external store is of no more use.
    JobOver(Term),
    /// An obituary: no process of this agent is left.
    Obituary(NodeId),
    /// The members of the job.
    Members(MembersReport),
    /// The job had ended before, and no node of it is left: this voter is to forget it.
    Forget,
    /// A registration shows this job.
    KnownJob(KnownJob),
    /// A registration shows that these jobs have ended.
    Ended(Vec<JobUid>),
    /// The process at this address leads the job, which has no round here: this process is to end its leadership, and to
    /// join that job.
    GiveWay(VoterAddress),
    /// The agent of this process is registered for this job with the coordinator at this address, which may make this process a
    /// voter. `None`: it is not registered any more.
    Registered(Option<(JobUid, IpAddr)>),
    /// Resign, and never become a candidate again, because this process will end. The sender is notified when
    /// the release of the leases has been sent to the other voters.
    Leave {
        /// True if the node leaves a job that continues: a member is to replace this voter first, if one can.
        is_replaced: bool,
        /// Notified with the need for the state of this voter.
        left: oneshot::Sender<StateNeed>,
    },
}

/// The need for the state of a voter whose process ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum StateNeed {
    /// The job needs it.
    Needed,
    /// Another voter has replaced this one.
    Replaced,
    /// The voter's job has ended. Contains that job.
    Ended(JobUid),
}

/// The reason for which the job does not go on in this process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Superseded {
    /// Another job of its name was born first, or only that job has a leader.
    ByJob {
        /// The other job.
        job: Seniority,
        /// The endpoint of its leader.
        at: VoterAddress,
    },
    /// It has ended while this process had no leader. Contains the outcome if this process knows it.
    ByEnd(Option<Box<Outcome>>),
}

/// The leader of the voters.
#[derive(Clone, Debug)]
pub(crate) enum Leader {
    /// No leader is known.
    Unknown,
    /// The process at this endpoint leads in this term.
    At(String, Term),
    /// This process leads.
    Here(Tenancy),
}

/// A leadership of this process.
#[derive(Clone, Debug)]
pub(crate) struct Tenancy {
    /// The leadership as it began.
    pub leadership: Arc<Leadership>,
    /// Its end, which each renewal extends.
    pub until: watch::Receiver<Instant>,
}

/// The state of a voter that outlives its process, in a state file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Stored {
    /// The voter; `None` if it is not known yet.
    pub voter: Option<VoterId>,
    /// The newest copy of the coordinator's memory.
    pub replica: Replica,
    /// The highest term that is known.
    pub highest: Term,
    /// True while a leader is known. Otherwise a new file keeps the time of the old one, so that it expires.
    pub is_led: bool,
}

impl Stored {
    /// Returns the endpoints of the voters in the newest list.
    pub(crate) fn voters(&self) -> Vec<VoterAddress> {
        self.replica.lists.last.iter().map(|seat| seat.address.clone()).collect()
    }

    /// Returns the endpoints of the voters in all lists of a job that has a round; none if it has none.
    pub(crate) fn voters_of_job(&self) -> Vec<VoterAddress> {
        let seats = self.replica.lists.seats().filter(|_| self.replica.has_round());
        seats.map(|seat| seat.address.clone()).collect()
    }
}
