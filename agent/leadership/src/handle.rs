//! Connects the rest of the agent to the leadership. The interface is the same for all three ways to choose the leader.
//!
//! - The agent sends a [`LeadershipCommand`], for example the new state of the job, or a death notice.
//! - It watches [`Leader`]. While this process leads, [`Mandate`] has the end of its right.
//! - It watches [`Stored`], the state that the next leader continues from.
//!
//! The watched values are levels, not events: a slow reader misses values, but always sees the newest one.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ragent_base::net::{Endpoint, port::PassedConnection};
use ragent_election::election::{self, OtherJob, message::Replica};
use ragent_proto::convert::CoordinatorAddress;
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

/// The leadership of a job, as it runs in this process. It ends when the last sender of commands is dropped.
#[derive(Debug)]
pub struct RunningLeadership {
    /// The handle for the rest of the agent.
    pub leadership: Leadership,
    /// The queue of commands.
    pub commands: Commands,
    /// The queue of connections of other voters, for the agent's port; `None` without voters.
    pub connections: Option<mpsc::Sender<PassedConnection>>,
}

/// The handle of the leadership. A clone is cheap, and does not keep the leadership running.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// The way in which the leader is chosen.
    pub means: Means,
    /// The queue of commands.
    pub commands: mpsc::WeakSender<LeadershipCommand>,
    /// The leader.
    pub leader: watch::Receiver<Leader>,
    /// The state of the job, as this process knows it.
    pub stored: watch::Receiver<Stored>,
    /// The time of the last answer of each voter.
    pub answered: watch::Receiver<Answered>,
    /// Set if a majority of the voters has lost the job's state.
    pub state_loss: watch::Receiver<Option<StateLoss>>,
    /// Other jobs of this name that other processes have shown.
    pub others: watch::Receiver<Vec<OtherJob>>,
    /// Set when the job does not continue in this process.
    pub superseded: watch::Receiver<Option<Superseded>>,
    /// The jobs of this name that have ended.
    pub ended: watch::Receiver<Vec<JobUid>>,
}

/// The way in which the leader of a job is chosen.
#[derive(Clone, Debug)]
pub enum Means {
    /// The job has one endpoint, and this process has it.
    Fixed,
    /// Voters elect the leader. Contains the voter of this process, as sent with registrations.
    Voters(Member),
    /// A record in etcd names the leader. Contains the endpoints of its successors.
    Etcd(watch::Receiver<Vec<Endpoint>>),
}

impl Leadership {
    /// Returns the handle of a process without a voter, so without other jobs and voters.
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

    /// Returns the voter of this process; `None` if voters do not elect the leader.
    pub fn member(&self) -> Option<&Member> {
        match &self.means {
            Means::Voters(member) => Some(member),
            Means::Fixed | Means::Etcd(_) => None,
        }
    }

    /// Returns the endpoints of the leader's successors; `None` if etcd does not name the leader.
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

    /// Returns true if voters elect the leader, and this process is not one of them. Before the job has a round, a process in the list of
    /// the user counts as a voter.
    pub fn is_outside(&self) -> bool {
        let has_slot =
            |own: &Member| self.stored.borrow().replica.has_slot_of(own.voter, &own.address);
        self.member().is_some_and(|own| !has_slot(own))
    }

    /// Sends a command, unless the leadership has ended or its queue is full. Returns true if it was sent.
    pub fn try_send(&self, command: LeadershipCommand) -> bool {
        self.commands.upgrade().is_some_and(|commands| commands.try_send(command).is_ok())
    }

    /// Sends a command, unless the leadership has ended.
    pub async fn send(&self, command: LeadershipCommand) {
        if let Some(commands) = self.commands.upgrade() {
            // The leadership may end at this moment.
            let _ = commands.send(command).await;
        }
    }

    /// Makes this process step down, and never lead again, because it is about to end. Waits for a limited time until
    ///
    /// - the other voters were sent the release of the leases, and
    /// - with `is_replaced`, a member has replaced this voter.
    ///
    /// Returns the need for the state of this voter.
    pub async fn leave(&self, is_replaced: bool) -> StateNeed {
        let (left, has_left) = oneshot::channel();
        let leaving = async {
            self.send(LeadershipCommand::Leave { is_replaced, left }).await;
            // The leadership may end at this moment.
            has_left.await.unwrap_or(StateNeed::Needed)
        };
        timeout(LEAVE_PATIENCE, leaving).await.unwrap_or(StateNeed::Needed)
    }

    /// Waits until the job does not continue in this process, and returns the reason. Never returns if the leadership has ended.
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

    /// Waits until the state has changed. Never returns if the leadership has ended.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub async fn changed(&mut self) {
        if self.stored.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns the newest list of voters and its run, if the job has a round.
    pub fn newest_list(&self) -> Option<(JobUid, Vec<VoterAddress>)> {
        let stored = self.stored.borrow();
        let job_state = stored.replica.job_state.as_ref().filter(|_| stored.replica.has_round())?;
        Some((job_state.job_uid.clone(), stored.voters()))
    }

    /// Returns the job of this process, if it has a round. Jobs without voters are not compared with others.
    pub fn known_job(&self) -> Option<KnownJob> {
        self.member()?;
        let stored = self.stored.borrow();
        let job_state = stored.replica.job_state.as_ref().filter(|_| stored.replica.has_round())?;
        let voters = stored.voters_of_job();
        Some(KnownJob { uid: job_state.job_uid.clone(), voters, leads: None })
    }

    /// Returns the leader of another job of this name, and its term, if this process knows no job with a round itself.
    pub fn leader_elsewhere(&self) -> Option<(VoterAddress, Term)> {
        if self.known_job().is_some() {
            return None;
        }
        self.others.borrow().iter().find_map(|job| job.leader.clone())
    }
}

/// The maximum wait for the last messages of a process that leaves, and for its state file. Both have shorter limits of their own.
const LEAVE_PATIENCE: Duration = Duration::from_secs(11);

/// The time of each voter's last answer, by address.
pub type Answered = BTreeMap<VoterAddress, Instant>;

/// A queue of commands.
pub type Commands = mpsc::Sender<LeadershipCommand>;

/// A command to the leadership.
#[derive(Debug)]
pub enum LeadershipCommand {
    /// The coordinator's state has changed. It is stored in the state file, at a majority of the voters, or in etcd.
    Remember {
        /// The term of the coordinator. The command has no effect unless this process leads in this term.
        term: Term,
        /// The job's state.
        job_state: Box<JobState>,
        /// The successors of this process, for etcd. Voters have an order of their own.
        successors: Vec<Successor>,
        /// Notified when the state is stored. Dropped if this process no longer leads.
        copied: oneshot::Sender<()>,
    },
    /// An agent has reported this term.
    Highest(Term),
    /// The coordinator of this term has ended, and another process should lead.
    Resign(Term),
    /// The job has ended in this term, and all nodes have its outcome, so another job of its name may begin.
    JobOver(Term),
    /// A death notice: no process of this agent is left.
    DeathNotice(NodeId),
    /// The members of the job.
    Members(MembersReport),
    /// The job had ended before, and no node of it is left, so this voter should forget it.
    Forget,
    /// A registration shows this job.
    KnownJob(KnownJob),
    /// A search has found another process of a job of this name at this address.
    Found(VoterAddress),
    /// A registration shows that these jobs have ended.
    Ended(Vec<JobUid>),
    /// The process at this endpoint leads the job, which has no round here. This process should step down and join that job.
    StepDown(CoordinatorAddress),
    /// The agent of this process is registered for this job, with the coordinator at this address, which may make this process a voter.
    /// `None`: it is no longer registered.
    Registered(Option<(JobUid, IpAddr)>),
    /// This process is about to end: step down, and never lead again.
    Leave {
        /// True if the node leaves a job that continues, so a member should replace this voter first.
        is_replaced: bool,
        /// Notified when the release of the leases was sent, with the need for the state of this voter.
        left: oneshot::Sender<StateNeed>,
    },
}

/// The need for a voter's state after its process has ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StateNeed {
    /// The job needs it.
    Needed,
    /// Another voter has replaced this one.
    Replaced,
    /// The voter's job has ended. Contains its uid.
    Ended(JobUid),
}

/// The reason why the job does not continue in this process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Superseded {
    /// Another job of this name is older, or only that job has a leader.
    ByJob {
        /// The other job.
        job: Seniority,
        /// The endpoint of its leader.
        at: VoterAddress,
    },
    /// The job ended while this process had no leader. Contains the outcome if this process knows it.
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

/// The right of this process to coordinate, and the state that it starts from.
#[derive(Clone, Debug)]
pub struct Mandate {
    /// The right as it began; `None` if no other process can lead the job.
    pub grant: Option<Grant>,
    /// The end of the right. Each renewal moves it.
    pub until: watch::Receiver<Instant>,
    /// The state of the job under the previous coordinator; `None` if this is the first one.
    pub job_state: Option<JobState>,
    /// The voters, if there are any.
    pub voters: Vec<VoterAddress>,
}

impl Mandate {
    /// Returns the right that voters, or the record in etcd, have granted.
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

    /// Returns the term, which identifies this leadership in commands. Without a grant it is always zero: the coordinator counts its terms
    /// itself.
    pub fn term(&self) -> Term {
        self.grant.as_ref().map(|grant| grant.term).unwrap_or_default()
    }
}

/// The state of a voter that its state file keeps.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Stored {
    /// The identity of the voter; `None` if it is not known yet.
    pub voter: Option<VoterId>,
    /// The newest copy of the job's state.
    pub replica: Replica,
    /// The highest term that is known.
    pub highest: Term,
    /// True while a leader is known. Without a leader the file keeps its old time, so that it expires.
    pub is_led: bool,
}

impl Stored {
    /// Returns the endpoints of the voters in the newest list.
    pub fn voters(&self) -> Vec<VoterAddress> {
        self.replica.lists.last.iter().map(|slot| slot.address.clone()).collect()
    }

    /// Returns the endpoints of the voters in all lists of the job; none if it has no round.
    pub fn voters_of_job(&self) -> Vec<VoterAddress> {
        let slots = self.replica.lists.slots().filter(|_| self.replica.has_round());
        slots.map(|slot| slot.address.clone()).collect()
    }
}
