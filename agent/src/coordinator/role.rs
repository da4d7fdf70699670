//! The coordinator of a job, from the point of view of one agent's port.

use ragent_election::election::OtherJob;
use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    heir::Member,
    ids::{JobUid, Round, RunId, Term, VoterAddress},
    known_job::KnownJob,
    message::{Attend, PROTOCOL_VERSION},
};
use tokio::sync::{mpsc, watch};

use super::{driver::Inputs, state_file::Obituary};
use crate::voter::{Command, StateLoss, Stored, Superseded};

/// The coordinator, from the point of view of one port.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// This process coordinates as long as `known` names `endpoint`: it may give way to another
    /// one.
    Coordinator {
        /// The queue of its inputs.
        inputs: Inputs,
        /// The endpoint at which other agents reach it.
        endpoint: String,
        /// The newest known endpoint of the job's coordinator.
        known: watch::Receiver<NotHere>,
    },
    /// Another process coordinates; its newest known endpoint.
    Elsewhere(watch::Receiver<NotHere>),
    /// This process is a voter, and coordinates while it leads.
    Voter {
        /// Its endpoint in the list of voters.
        endpoint: String,
        /// The coordinator that was elected.
        elected: watch::Receiver<ElectedCoordinator>,
        /// The queue of obituaries, which the election also needs.
        obituaries: mpsc::Sender<Obituary>,
        /// Its voter; `None` if the leader is chosen through an external store.
        voter: Option<OwnVoter>,
        /// The coordinator with which the agent of this process is registered.
        registered: watch::Receiver<NotHere>,
        /// The job.
        run_id: RunId,
    },
}

/// The voter of this process, from the point of view of the agent and its port.
#[derive(Clone, Debug)]
pub struct OwnVoter {
    /// Its identity and address, as they are sent with registrations.
    pub(crate) member: Member,
    /// The queue of its commands, which does not keep the voter from ending.
    pub(crate) commands: mpsc::WeakSender<Command>,
    /// Its state.
    pub(crate) stored: watch::Receiver<Stored>,
    /// The loss of the job's state, if a majority of the voters has lost it.
    pub(crate) state_loss: watch::Receiver<Option<StateLoss>>,
    /// The jobs that other processes have shown.
    pub(crate) others: watch::Receiver<Vec<OtherJob>>,
    /// Set when the job does not go on in this process.
    pub(crate) superseded: watch::Receiver<Option<Superseded>>,
    /// The jobs of this name that have ended.
    pub(crate) ended: watch::Receiver<Vec<JobUid>>,
}

impl OwnVoter {
    /// Returns true if this process is a voter of the job, or is listed as one for a job that has no round.
    fn has_seat(&self) -> bool {
        self.stored.borrow().replica.has_seat_of(self.member.voter, &self.member.address)
    }

    /// Sends a command, unless the voter has ended or its queue is full. Returns true if it is sent.
    pub(crate) fn try_send(&self, command: Command) -> bool {
        self.commands.upgrade().is_some_and(|commands| commands.try_send(command).is_ok())
    }

    /// Waits until the job does not go on in this process, and returns the reason; never returns if the voter has ended.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(crate) async fn superseded(&mut self) -> Superseded {
        while self.superseded.changed().await.is_ok() {
            if let Some(superseded) = self.superseded.borrow_and_update().clone() {
                return superseded;
            }
        }
        std::future::pending().await
    }

    /// Waits until its state has changed; never returns if the voter has ended.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(crate) async fn changed(&mut self) {
        if self.stored.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns the newest list of voters, and the run to which it belongs, if the job has a round.
    pub(crate) fn newest_list(&self) -> Option<(JobUid, Vec<VoterAddress>)> {
        let stored = self.stored.borrow();
        let memory = stored.replica.memory.as_ref().filter(|_| stored.replica.has_round())?;
        Some((memory.job_uid.clone(), stored.voters()))
    }

    /// Returns the job that this process knows to have a round.
    pub(crate) fn known_job(&self) -> Option<KnownJob> {
        let stored = self.stored.borrow();
        let memory = stored.replica.memory.as_ref().filter(|_| stored.replica.has_round())?;
        Some(KnownJob { uid: memory.job_uid.clone(), voters: stored.voters_of_job() })
    }

    /// Returns the leader of another job, if this process knows none with a round and another process leads one.
    fn leader_elsewhere(&self) -> Option<NotHere> {
        if self.known_job().is_some() {
            return None;
        }
        let others = self.others.borrow();
        let (leader, term) = others.iter().find_map(|job| job.leader.clone())?;
        Some(NotHere { term, endpoint: leader.to_string() })
    }
}

/// Where a registration is sent instead of to the coordinator in this process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Elsewhere {
    /// To the voters of the job; none if they are not known.
    Voters(Vec<VoterAddress>),
    /// To the leader of another job, if it is known.
    Leader(NotHere),
}

/// The coordinator that the voters have elected, as one of them knows it.
#[derive(Clone, Debug)]
pub(crate) enum ElectedCoordinator {
    /// No coordinator is known.
    Unknown,
    /// The coordinator is in this process, and has these inputs.
    Here(Inputs),
    /// Another voter coordinates the job, at this endpoint.
    There(NotHere),
}

impl Role {
    /// Returns the endpoint by which requests to this port may address it.
    pub(super) fn endpoint(&self) -> String {
        match self {
            Self::Coordinator { known, .. } | Self::Elsewhere(known) => {
                known.borrow().endpoint.clone()
            }
            Self::Voter { endpoint, .. } => endpoint.clone(),
        }
    }

    /// Returns the inputs of the coordinator, or its endpoint if it is not in this process; the endpoint is
    /// empty if no coordinator is elected at present.
    pub(super) fn coordinator(&self) -> Result<Inputs, NotHere> {
        match self {
            Self::Coordinator { inputs, endpoint, known }
                if known.borrow().endpoint == *endpoint =>
            {
                Ok(inputs.clone())
            }
            Self::Coordinator { known, .. } | Self::Elsewhere(known) => Err(known.borrow().clone()),
            Self::Voter { elected, .. } => match &*elected.borrow() {
                ElectedCoordinator::Here(inputs) => Ok(inputs.clone()),
                ElectedCoordinator::There(not_here) => Err(not_here.clone()),
                ElectedCoordinator::Unknown => Err(NotHere::unknown()),
            },
        }
    }

    /// Returns the same as [`Self::coordinator`], for requests that only read.
    pub(super) fn coordinator_to_read(&self) -> Result<Inputs, NotHere> {
        self.coordinator().map_err(|not_here| self.registered_elsewhere().unwrap_or(not_here))
    }

    /// Returns the coordinator with which the agent of this process is registered, if this process is not a voter: it follows
    /// no leader.
    pub(super) fn registered_elsewhere(&self) -> Option<NotHere> {
        match self {
            Self::Voter { voter: Some(voter), registered, .. } if !voter.has_seat() => {
                Some(registered.borrow().clone())
            }
            Self::Voter { .. } | Self::Coordinator { .. } | Self::Elsewhere(_) => None,
        }
    }

    /// Returns the coordinator's endpoint if every registration is to be redirected there without being read.
    /// `None` for a voter, which may have to wait for an election first.
    pub(super) fn redirect(&self) -> Option<NotHere> {
        match self {
            Self::Coordinator { .. } | Self::Elsewhere(_) => self.coordinator().err(),
            Self::Voter { .. } => None,
        }
    }

    /// Returns where a registration is to be sent instead: this process is not a voter, or knows of no round, and the node or
    /// another process knows a job that has one. Returns `None` if the registration is to wait for a coordinator.
    pub(super) fn elsewhere(&self, attend: &Attend) -> Option<Elsewhere> {
        let Self::Voter { voter: Some(voter), run_id, .. } = self else { return None };
        if attend.run_id != *run_id {
            // The coordinator refuses it.
            return None;
        }
        if attend.protocol_version != PROTOCOL_VERSION {
            if let Some(job) = shown_by_other_version(attend) {
                let _ = voter.try_send(Command::KnownJob(job));
            }
            return None;
        }
        if !attend.ended.is_empty() {
            let _ = voter.try_send(Command::Ended(attend.ended.clone()));
        }
        let own = voter.known_job();
        if let Some(job) =
            attend.job.as_ref().filter(|job| own.as_ref().is_none_or(|own| own.uid != job.uid))
        {
            // The node repeats it with its next registration.
            let _ = voter.try_send(Command::KnownJob(job.clone()));
            if own.is_none() {
                return Some(Elsewhere::Leader(NotHere::unknown()));
            }
        }
        self.known_elsewhere()
    }

    /// Returns the term that the coordinator must have at least to be the next one for a node that has lost the leader of the term
    /// `lost`. The terms of two jobs cannot be compared.
    pub(super) fn comparable(&self, attend: &Attend, lost: Term) -> Term {
        let own = match self {
            Self::Voter { voter: Some(voter), .. } => voter.known_job(),
            Self::Voter { .. } | Self::Coordinator { .. } | Self::Elsewhere(_) => None,
        };
        let is_other = own.zip(attend.job_uid.as_ref()).is_some_and(|(own, uid)| own.uid != *uid);
        if is_other { Term(0) } else { lost }
    }

    /// Returns where registrations are to be sent that wait for a coordinator, if they are to be sent elsewhere.
    fn known_elsewhere(&self) -> Option<Elsewhere> {
        let Self::Voter { voter: Some(voter), elected, .. } = self else { return None };
        if let Some(leader) = voter.leader_elsewhere() {
            return Some(Elsewhere::Leader(leader));
        }
        let is_unknown = matches!(*elected.borrow(), ElectedCoordinator::Unknown);
        let voters = || voter.known_job().map(|job| job.voters).unwrap_or_default();
        (is_unknown && !voter.has_seat()).then(|| Elsewhere::Voters(voters()))
    }

    /// Waits until registrations that wait for a coordinator are to be sent elsewhere; never returns if this process is not a
    /// voter.
    pub(super) async fn wait_for_elsewhere(&self) -> Elsewhere {
        if let Self::Voter { voter: Some(voter), .. } = self {
            let (mut stored, mut others) = (voter.stored.clone(), voter.others.clone());
            loop {
                let is_there = tokio::select! {
                    changed = stored.changed() => changed.is_ok(),
                    changed = others.changed() => changed.is_ok(),
                };
                match self.known_elsewhere() {
                    Some(elsewhere) => return elsewhere,
                    None if is_there => {}
                    None => break,
                }
            }
        }
        std::future::pending().await
    }

    /// Returns the same as [`Self::coordinator`], once a coordinator is elected in a term after `lost`.
    pub(super) async fn wait_for_coordinator(&self, lost: Term) -> Result<Inputs, NotHere> {
        if let Self::Voter { elected, .. } = self {
            let is_known = |elected: &ElectedCoordinator| match elected {
                ElectedCoordinator::Unknown => false,
                ElectedCoordinator::Here(_) => true,
                ElectedCoordinator::There(not_here) => not_here.term > lost,
            };
            // This fails if the voter has ended: then no coordinator is known here any more.
            let _ = elected.clone().wait_for(is_known).await;
        }
        self.coordinator()
    }
}

/// Returns the job with a round to which an agent of another protocol version belongs. Such an agent does not name its job in
/// [`Attend::job`].
fn shown_by_other_version(attend: &Attend) -> Option<KnownJob> {
    let uid = attend.job_uid.clone().filter(|_| attend.known_round.round.round > Round(0))?;
    let voters = attend.node.voter.iter().map(|member| member.address.clone()).collect();
    Some(KnownJob { uid, voters })
}

#[cfg(test)]
mod tests {
    use ragent_election::election::message::{Lists, Replica, Seat};
    use ragent_rendezvous::{
        ids::{Round, VoterId},
        settings::Memory,
    };

    use super::*;

    /// The role of a process with the voter 1, in a job with a round and these voters. Its agent is registered at `b:1`.
    fn role(voters: &[u64]) -> Role {
        let seat = |voter: &u64| Seat {
            address: VoterAddress::new(format!("n{voter}:1")),
            voter: Some(VoterId(*voter)),
        };
        let lists = Lists { before: None, last: voters.iter().map(seat).collect() };
        let memory = Memory { round: Round(1), ..Memory::fresh(JobUid::new("u")) };
        let replica = Replica { lists, memory: Some(memory), ..Replica::default() };
        let stored = Stored { replica, ..Stored::default() };
        let registered = NotHere { term: Term(2), endpoint: "b:1".to_owned() };
        Role::Voter {
            endpoint: "n1:1".to_owned(),
            elected: watch::channel(ElectedCoordinator::Unknown).1,
            obituaries: mpsc::channel(1).0,
            voter: Some(OwnVoter {
                member: Member { voter: VoterId(1), address: VoterAddress::new("n1:1") },
                commands: mpsc::channel(1).0.downgrade(),
                stored: watch::channel(stored).1,
                state_loss: watch::channel(None).1,
                others: watch::channel(Vec::new()).1,
                superseded: watch::channel(None).1,
                ended: watch::channel(Vec::new()).1,
            }),
            registered: watch::channel(registered).1,
            run_id: RunId::new("job"),
        }
    }

    /// The coordinator refuses a registration for another run, and one of another protocol version. The first shows nothing, the second
    /// only the job of its agent.
    #[tokio::test]
    async fn registrations_that_are_refused_show_little() {
        let (commands, mut queue) = mpsc::channel(8);
        let mut own = role(&[2]);
        if let Role::Voter { voter: Some(voter), .. } = &mut own {
            voter.commands = commands.downgrade();
        }
        let known = KnownJob { uid: JobUid::new("v"), voters: vec![VoterAddress::new("n3:1")] };
        let showing = |change: &dyn Fn(&mut Attend)| {
            let mut attend = crate::coordinator::driver::tests::attend("a");
            (attend.run_id, attend.job) = (RunId::new("job"), Some(known.clone()));
            (attend.ended, attend.job_uid) = (vec![JobUid::new("e")], Some(JobUid::new("w")));
            attend.known_round.round.round = Round(1);
            change(&mut attend);
            attend
        };
        let other_run = showing(&|attend| attend.run_id = RunId::new("other"));
        assert_eq!(own.elsewhere(&other_run), None);
        assert!(queue.try_recv().is_err());
        let other_version = showing(&|attend| attend.protocol_version = 4);
        assert_eq!(own.elsewhere(&other_version), None);
        let Ok(Command::KnownJob(job)) = queue.try_recv() else { panic!("it shows a job") };
        assert_eq!(job.uid, JobUid::new("w"));
        assert!(queue.try_recv().is_err());
        own.elsewhere(&showing(&|_| {}));
        assert!(matches!(queue.try_recv(), Ok(Command::Ended(_))));
        assert!(matches!(queue.try_recv(), Ok(Command::KnownJob(job)) if job == known));
    }

    /// A process that is not a voter sends others to the coordinator with which its agent is registered. A voter without a
    /// leader does not: that coordinator may be lost.
    #[test]
    fn others_are_sent_to_the_registered_coordinator() {
        let endpoint = |role: &Role| role.registered_elsewhere().map(|not_here| not_here.endpoint);
        assert_eq!(endpoint(&role(&[2])).as_deref(), Some("b:1"));
        assert_eq!(endpoint(&role(&[1, 2])), None);
        let read = |role: &Role| role.coordinator_to_read().err().map(|not_here| not_here.endpoint);
        assert_eq!(read(&role(&[2])).as_deref(), Some("b:1"));
        assert_eq!(read(&role(&[1, 2])).as_deref(), Some(""));
    }
}
