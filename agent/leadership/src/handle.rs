//! The interface between the choice of the coordinator and the rest of the agent. It is the same for all three ways to choose.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ragent_base::{net::port::VoterConnection, spec::Endpoint};
use ragent_election::election::{self, OtherJob, message::Replica};
use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    grant::Grant,
    heir::{Member, MembersReport, Successor},
    ids::{JobUid, NodeId, Term, VoterAddress, VoterId},
    known_job::{KnownJob, Seniority},
    message::Outcome,
    settings::JobState,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::StateLoss;

/// The choice of the coordinator, as it runs in this process. It ends when the last sender of commands is dropped.
#[derive(Debug)]
pub struct RunningLeadership {
    /// The interface for the rest of the agent.
    pub leadership: Leadership,
    /// The queue of commands.
    pub commands: Commands,
    /// The queue of connections of other voters, for the agent's port, if there are any.
    pub connections: Option<mpsc::Sender<VoterConnection>>,
}

/// The coordinator of the job, as this process knows it, and the commands by which this process takes part in the choice. A clone is
/// cheap, and does not keep the choice from ending.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// The way in which the coordinator is chosen.
    pub means: Means,
    /// The queue of commands.
    pub commands: mpsc::WeakSender<LeadershipCommand>,
    /// The leader.
    pub leader: watch::Receiver<Leader>,
    /// The state of the job, as far as this process has it.
    pub stored: watch::Receiver<Stored>,
    /// The time of the last answer of each voter.
    pub answered: watch::Receiver<Answered>,
    /// The loss of the job's state, if a majority of the voters has lost it.
    pub state_loss: watch::Receiver<Option<StateLoss>>,
    /// The jobs that other processes have shown.
    pub others: watch::Receiver<Vec<OtherJob>>,
    /// Set when the job does not go on in this process.
    pub superseded: watch::Receiver<Option<Superseded>>,
    /// The jobs of this name that have ended.
    pub ended: watch::Receiver<Vec<JobUid>>,
}

/// The way in which the coordinator of a job is chosen.
#[derive(Clone, Debug)]
pub enum Means {
    /// The job has one endpoint, and this process has it.
    Fixed,
    /// Voters elect it. Contains the voter of this process, as it is sent with registrations.
    Voters(Member),
    /// Through etcd. Contains the endpoints of the agents that succeed the leader.
    Etcd(watch::Receiver<Vec<Endpoint>>),
}

impl Leadership {
    /// Returns the interface of a process whose coordinator is not elected by voters: it knows no others.
    pub fn without_voters(
        means: Means,
        commands: &Commands,
        leader: watch::Receiver<Leader>,
        stored: watch::Receiver<Stored>,
    ) -> Self {
        Self {
            means,
            commands: commands.downgrade(),
            leader,
            stored,
            answered: watch::channel(Answered::new()).1,
            state_loss: watch::channel(None).1,
            others: watch::channel(Vec::new()).1,
            superseded: watch::channel(None).1,
            ended: watch::channel(Vec::new()).1,
        }
    }

    /// Returns the voter of this process; `None` if the coordinator is chosen in another way.
    pub fn member(&self) -> Option<&Member> {
        match &self.means {
            Means::Voters(member) => Some(member),
            Means::Fixed | Means::Etcd(_) => None,
        }
    }

    /// Returns the endpoints of the agents that succeed a leader that is found in etcd; `None` if it is chosen in another way.
    pub fn successors(&self) -> Option<watch::Receiver<Vec<Endpoint>>> {
        match &self.means {
            Means::Etcd(successors) => Some(successors.clone()),
            Means::Fixed | Means::Voters(_) => None,
        }
    }

    /// Returns true if no other process can coordinate the job.
    pub fn is_fixed(&self) -> bool {
        matches!(self.means, Means::Fixed)
    }

    /// Returns true if voters elect the coordinator, and this process is not one of them. A process that is listed for a job without a
    /// round counts as one.
    pub fn is_outside(&self) -> bool {
        let has_slot =
            |own: &Member| self.stored.borrow().replica.has_slot_of(own.voter, &own.address);
        self.member().is_some_and(|own| !has_slot(own))
    }

    /// Sends a command, unless the choice has ended or its queue is full. Returns true if it is sent.
    pub fn try_send(&self, command: LeadershipCommand) -> bool {
        self.commands.upgrade().is_some_and(|commands| commands.try_send(command).is_ok())
    }

    /// Sends a command, unless the choice has ended.
    pub async fn send(&self, command: LeadershipCommand) {
        if let Some(commands) = self.commands.upgrade() {
            // It ends at this moment.
            let _ = commands.send(command).await;
        }
    }

    /// Resigns if this process leads, and never becomes a candidate again; waits until the release of the leases
    /// has been sent to the other voters, and if `is_replaced` until a member has replaced this voter, for a limited time.
    /// Returns the need for the state of this voter.
    pub async fn leave(&self, is_replaced: bool) -> StateNeed {
        let (left, has_left) = oneshot::channel();
        let leaving = async {
            self.send(LeadershipCommand::Leave { is_replaced, left }).await;
            // It may end at this moment.
            has_left.await.unwrap_or(StateNeed::Needed)
        };
        timeout(LEAVE_PATIENCE, leaving).await.unwrap_or(StateNeed::Needed)
    }

    /// Waits until the job does not go on in this process, and returns the reason; never returns if the choice has ended.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub async fn superseded(&mut self) -> Superseded {
        while self.superseded.changed().await.is_ok() {
            if let Some(superseded) = self.superseded.borrow_and_update().clone() {
                return superseded;
            }
        }
        std::future::pending().await
    }

    /// Waits until its state has changed; never returns if the choice has ended.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub async fn changed(&mut self) {
        if self.stored.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns the newest list of voters, and the run to which it belongs, if the job has a round.
    pub fn newest_list(&self) -> Option<(JobUid, Vec<VoterAddress>)> {
        let stored = self.stored.borrow();
        let job_state = stored.replica.job_state.as_ref().filter(|_| stored.replica.has_round())?;
        Some((job_state.job_uid.clone(), stored.voters()))
    }

    /// Returns the job that this process knows to have a round. A job without voters is not compared with others.
    pub fn known_job(&self) -> Option<KnownJob> {
        self.member()?;
        let stored = self.stored.borrow();
        let job_state = stored.replica.job_state.as_ref().filter(|_| stored.replica.has_round())?;
        let voters = stored.voters_of_job();
        Some(KnownJob { uid: job_state.job_uid.clone(), voters, leads: None })
    }

    /// Returns the leader of another job, and its term, if this process knows none with a round and another process leads one.
    pub fn leader_elsewhere(&self) -> Option<(VoterAddress, Term)> {
        if self.known_job().is_some() {
            return None;
        }
        self.others.borrow().iter().find_map(|job| job.leader.clone())
    }
}

/// The maximum wait for the last messages of a process that leaves, and for its state file. Both have shorter limits of their own.
const LEAVE_PATIENCE: Duration = Duration::from_secs(11);

/// The time of the last answer of each voter that has answered, by address.
pub type Answered = BTreeMap<VoterAddress, Instant>;

/// A queue of such commands.
pub type Commands = mpsc::Sender<LeadershipCommand>;

/// A command for the choice of the coordinator.
#[derive(Debug)]
pub enum LeadershipCommand {
    /// The state of the job in this process has changed. It is to be stored: in the state file, at a majority of the voters, or
    /// in etcd.
    Remember {
        /// The term of that coordinator; the command has no effect unless this process leads in this term.
        term: Term,
        /// The job's state.
        job_state: Box<JobState>,
        /// The processes that succeed this one if the leader is chosen through an external store; voters have an order
        /// of their own.
        successors: Vec<Successor>,
        /// The time for which agents may wait for the next coordinator.
        kept: Duration,
        /// Notified when it is stored; dropped if this process no longer leads.
        copied: oneshot::Sender<()>,
    },
    /// An agent has reported this term.
    Highest(Term),
    /// The coordinator of this term has ended; another process is to be elected.
    Resign(Term),
    /// The job has ended in this term, and all nodes have its outcome. Its record in an external store is of no more use.
    JobOver(Term),
    /// A death notice: no process of this agent is left.
    DeathNotice(NodeId),
    /// The members of the job.
    Members(MembersReport),
    /// The job had ended before, and no node of it is left: this voter is to forget it.
    Forget,
    /// A registration shows this job.
    KnownJob(KnownJob),
    /// A registration shows that these jobs have ended.
    Ended(Vec<JobUid>),
    /// The process there leads the job, which has no round here: this process is to end its leadership, and to
    /// join that job.
    StepDown(NotHere),
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
pub enum StateNeed {
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

/// The process that leads.
#[derive(Clone, Debug)]
pub enum Leader {
    /// No leader is known.
    Unknown,
    /// The process at this endpoint leads in this term.
    At(String, Term),
    /// This process leads.
    Here(Arc<Mandate>),
}

/// The right of this process to coordinate the job, and what it starts with.
#[derive(Clone, Debug)]
pub struct Mandate {
    /// The right as it began; `None` if no other process can coordinate the job.
    pub grant: Option<Grant>,
    /// Its end, which each renewal extends, if it has one.
    pub until: watch::Receiver<Instant>,
    /// The state of the job under the coordinator before; `None` if this is the first one.
    pub job_state: Option<JobState>,
    /// The voters, if there are any.
    pub voters: Vec<VoterAddress>,
}

impl Mandate {
    /// Returns the right that voters or the record in etcd have granted.
    pub(super) fn elected(
        granted: election::NewLeadership,
        until: watch::Receiver<Instant>,
    ) -> Self {
        let election::NewLeadership {
            term,
            until: first,
            workers_until,
            former,
            job_state,
            voters,
        } = granted;
        let grant = Some(Grant { term, until: first, workers_until, former });
        let voters = voters.into_iter().map(|slot| slot.address).collect();
        Self { grant, until, job_state, voters }
    }

    /// Returns the term, which names this leadership in commands. Without a grant it is only a name: the coordinator counts its terms
    /// itself.
    pub fn term(&self) -> Term {
        self.grant.as_ref().map(|grant| grant.term).unwrap_or_default()
    }
}

/// The state of a voter that outlives its process, in a state file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Stored {
    /// The voter; `None` if it is not known yet.
    pub voter: Option<VoterId>,
    /// The newest copy of the job's state.
    pub replica: Replica,
    /// The highest term that is known.
    pub highest: Term,
    /// True while a leader is known. Otherwise a new file keeps the time of the old one, so that it expires.
    pub is_led: bool,
}

impl Stored {
    /// Returns the endpoints of the voters in the newest list.
    pub fn voters(&self) -> Vec<VoterAddress> {
        self.replica.lists.last.iter().map(|slot| slot.address.clone()).collect()
    }

    /// Returns the endpoints of the voters in all lists of a job that has a round; none if it has none.
    pub fn voters_of_job(&self) -> Vec<VoterAddress> {
        let slots = self.replica.lists.slots().filter(|_| self.replica.has_round());
        slots.map(|slot| slot.address.clone()).collect()
    }
}
