//! Decides for one agent's port where a registration goes: to the coordinator in this process, or to another process.
//!
//! A process that may lead first waits for an election. Two jobs can have the same name, for example if their agents
//! did not reach each other at first. A registration that shows another job makes the voter of this process ask that
//! job.

use ragent_leadership::{Leadership, LeadershipCommand, state_file::DeathNotice};
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::{
    ids::{Round, RunId, Term, VoterAddress},
    known_job::KnownJob,
    message::{PROTOCOL_VERSION, Registration},
};
use tokio::sync::{mpsc, watch};

use super::driver::Inputs;
#[cfg(any(test, feature = "testing"))]
use ragent_leadership::{Leader, Means, Stored};

/// The coordinator, as one port knows it.
#[derive(Clone, Debug)]
pub enum Role {
    /// This process coordinates while it leads.
    Host {
        /// The endpoint at which others reach this process.
        endpoint: String,
        /// The coordinator that leads.
        elected: watch::Receiver<ElectedCoordinator>,
        /// The queue of death notices. The leadership needs them, too.
        death_notices: mpsc::Sender<DeathNotice>,
        /// The handle of the leadership.
        leadership: Box<Leadership>,
        /// The coordinator with which the agent of this process is registered.
        registered: watch::Receiver<CoordinatorAddress>,
        /// The job.
        run_id: RunId,
    },
    /// This process never coordinates. It knows the newest endpoint of the coordinator.
    Elsewhere(watch::Receiver<CoordinatorAddress>),
}

/// The process that a registration is redirected to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Elsewhere {
    /// The voters of the job; none if they are not known.
    Voters(Vec<VoterAddress>),
    /// The leader of another job; its endpoint is empty if it is not known.
    Leader(CoordinatorAddress),
}

/// The leader of the job, as a process that may lead knows it.
#[derive(Clone, Debug)]
pub enum ElectedCoordinator {
    /// No coordinator is known.
    Unknown,
    /// The coordinator is in this process and has these inputs.
    Here(Inputs),
    /// Another process coordinates the job, at this endpoint.
    There(CoordinatorAddress),
}

#[cfg(any(test, feature = "testing"))]
impl Role {
    /// Returns the role of a process that coordinates with these inputs, and its queue of death notices.
    pub fn of(inputs: Inputs, endpoint: &str) -> (Self, mpsc::Receiver<DeathNotice>) {
        let (leader, stored) =
            (watch::channel(Leader::Unknown).1, watch::channel(Stored::default()).1);
        let (death_notices, received) = mpsc::channel(16);
        let commands = mpsc::channel(1).0;
        let role = Self::Host {
            endpoint: endpoint.to_owned(),
            elected: watch::channel(ElectedCoordinator::Here(inputs)).1,
            death_notices,
            leadership: Leadership::without_voters(Means::Fixed, &commands, leader, stored).into(),
            registered: watch::channel(CoordinatorAddress::unknown()).1,
            run_id: RunId::new("run"),
        };
        (role, received)
    }
}

impl Role {
    /// Returns the endpoint by which requests to this port may address it.
    pub(super) fn endpoint(&self) -> String {
        match self {
            Self::Host { endpoint, .. } => endpoint.clone(),
            Self::Elsewhere(known) => known.borrow().endpoint.clone(),
        }
    }

    /// Returns the inputs of the coordinator in this process, or the endpoint of the coordinator elsewhere. The endpoint is empty if no
    /// coordinator is elected at present.
    pub(super) fn coordinator(&self) -> Result<Inputs, CoordinatorAddress> {
        match self {
            Self::Host { elected, leadership, registered, .. } => match &*elected.borrow() {
                ElectedCoordinator::Here(inputs) => Ok(inputs.clone()),
                // The coordinator for which this one stepped down may have stepped down, too.
                ElectedCoordinator::There(_) if leadership.is_fixed() => {
                    Err(registered.borrow().clone())
                }
                ElectedCoordinator::There(elsewhere) => Err(elsewhere.clone()),
                ElectedCoordinator::Unknown => Err(CoordinatorAddress::unknown()),
            },
            Self::Elsewhere(known) => Err(known.borrow().clone()),
        }
    }

    fn leadership(&self) -> Option<&Leadership> {
        match self {
            Self::Host { leadership, .. } => Some(&**leadership),
            Self::Elsewhere(_) => None,
        }
    }

    /// Returns the same as [`Self::coordinator`], for requests that only read.
    pub(super) fn coordinator_to_read(&self) -> Result<Inputs, CoordinatorAddress> {
        self.coordinator().map_err(|elsewhere| self.registered_elsewhere().unwrap_or(elsewhere))
    }

    /// Returns the coordinator with which the agent of this process is registered, if this process is not a voter. Such a process does not
    /// follow the election itself.
    pub(super) fn registered_elsewhere(&self) -> Option<CoordinatorAddress> {
        match self {
            Self::Host { leadership, registered, .. } if leadership.is_outside() => {
                Some(registered.borrow().clone())
            }
            Self::Host { .. } | Self::Elsewhere(_) => None,
        }
    }

    /// Returns the coordinator's endpoint if every registration is redirected there without being read. Returns `None` if this process may
    /// lead, because a registration may then have to wait for an election.
    pub(super) fn redirect(&self) -> Option<CoordinatorAddress> {
        match self {
            Self::Host { .. } => None,
            Self::Elsewhere(known) => Some(known.borrow().clone()),
        }
    }

    /// Returns the process to which a registration is redirected, or `None` if it waits for a coordinator here. It is redirected if
    ///
    /// - this process is not a voter, or
    /// - this process knows no job with a round, but the node or another process does.
    pub(super) fn elsewhere(&self, registration: &Registration) -> Option<Elsewhere> {
        let Self::Host { leadership, run_id, .. } = self else { return None };
        if registration.run_id != *run_id || leadership.member().is_none() {
            // The coordinator refuses another run itself. Jobs without voters are not compared.
            return None;
        }
        if registration.protocol_version != PROTOCOL_VERSION {
            if let Some(job) = shown_by_other_version(registration) {
                leadership.try_send(LeadershipCommand::KnownJob(job));
            }
            return None;
        }
        if !registration.ended.is_empty() {
            leadership.try_send(LeadershipCommand::Ended(registration.ended.clone()));
        }
        let own = leadership.known_job();
        if let Some(job) = registration
            .job
            .as_ref()
            .filter(|job| own.as_ref().is_none_or(|own| own.uid != job.uid))
        {
            // The node repeats it with its next registration.
            leadership.try_send(LeadershipCommand::KnownJob(job.clone()));
            if own.is_none() {
                return Some(Elsewhere::Leader(CoordinatorAddress::unknown()));
            }
        }
        self.known_elsewhere()
    }

    /// Returns the term after which a coordinator must be elected, for a node that has lost the leader of term `lost`. Zero if the node
    /// belongs to another job: terms of two jobs cannot be compared.
    pub(super) fn comparable(&self, registration: &Registration, lost: Term) -> Term {
        let own = self.leadership().and_then(Leadership::known_job);
        let is_other =
            own.zip(registration.job_uid.as_ref()).is_some_and(|(own, uid)| own.uid != *uid);
        if is_other { Term(0) } else { lost }
    }

    /// Returns the process to which waiting registrations are redirected, if there is one.
    fn known_elsewhere(&self) -> Option<Elsewhere> {
        let Self::Host { leadership, elected, .. } = self else { return None };
        if let Some((leader, term)) = leadership.leader_elsewhere() {
            return Some(Elsewhere::Leader(CoordinatorAddress {
                term,
                endpoint: leader.to_string(),
            }));
        }
        let is_unknown = matches!(*elected.borrow(), ElectedCoordinator::Unknown);
        let voters = || leadership.known_job().map(|job| job.voters).unwrap_or_default();
        (is_unknown && leadership.is_outside()).then(|| Elsewhere::Voters(voters()))
    }

    /// Waits until waiting registrations are redirected. Never returns if this process never leads.
    pub(super) async fn wait_for_elsewhere(&self) -> Elsewhere {
        if let Some(leadership) = self.leadership() {
            let (mut stored, mut others) = (leadership.stored.clone(), leadership.others.clone());
            loop {
                let is_there = tokio::select! {
                    changed = stored.changed() => changed.is_ok(),
                    Ok(()) = others.changed() => true,
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

    /// Returns the same as [`Self::coordinator`], once a coordinator is elected in a term after `lost`. If this job has one endpoint, a
    /// coordinator that has stepped down is answered at once: no later term will come.
    pub(super) async fn wait_for_coordinator(
        &self,
        lost: Term,
    ) -> Result<Inputs, CoordinatorAddress> {
        if let Self::Host { elected, leadership, .. } = self {
            let is_known = |elected: &ElectedCoordinator| match elected {
                ElectedCoordinator::Unknown => false,
                ElectedCoordinator::Here(_) => true,
                ElectedCoordinator::There(elsewhere) => {
                    leadership.is_fixed() || elsewhere.term > lost
                }
            };
            // This fails if the leadership has ended, and then no coordinator is known here.
            let _ = elected.clone().wait_for(is_known).await;
        }
        self.coordinator()
    }
}

/// Returns the job, with a round, of an agent that has another protocol version. Such an agent does not name its job in
/// [`Registration::job`].
fn shown_by_other_version(registration: &Registration) -> Option<KnownJob> {
    let uid =
        registration.job_uid.clone().filter(|_| registration.known_round.round.round > Round(0))?;
    let voters = registration.node.voter.iter().map(|member| member.address.clone()).collect();
    Some(KnownJob { uid, voters, leads: None })
}

#[cfg(test)]
mod tests {
    use ragent_election::election::message::{Lists, Replica, VoterSlot};
    use ragent_rendezvous::{
        heir::Member,
        ids::{JobUid, Round, VoterId},
        settings::JobState,
    };

    use super::*;

    /// The role of voter 1 in a job with a round and these voters. The agent is registered at `b:1`.
    fn role(voters: &[u64]) -> Role {
        let slot = |voter: &u64| VoterSlot {
            address: VoterAddress::new(format!("n{voter}:1")),
            voter: Some(VoterId(*voter)),
        };
        let lists = Lists { before: None, last: voters.iter().map(slot).collect() };
        let job_state = JobState { round: Round(1), ..JobState::new(JobUid::new("u")) };
        let replica = Replica { lists, job_state: Some(job_state), ..Replica::default() };
        let stored = Stored { replica, ..Stored::default() };
        let registered = CoordinatorAddress { term: Term(2), endpoint: "b:1".to_owned() };
        let member = Member { voter: VoterId(1), address: VoterAddress::new("n1:1") };
        let (leader, stored) = (watch::channel(Leader::Unknown).1, watch::channel(stored).1);
        let means = Means::Voters(member);
        Role::Host {
            endpoint: "n1:1".to_owned(),
            elected: watch::channel(ElectedCoordinator::Unknown).1,
            death_notices: mpsc::channel(1).0,
            leadership: Leadership::without_voters(means, &mpsc::channel(1).0, leader, stored)
                .into(),
            registered: watch::channel(registered).1,
            run_id: RunId::new("job"),
        }
    }

    /// The coordinator refuses a registration for another run, and one of another protocol version. The first shows no job. The second
    /// shows only the job of its agent.
    #[tokio::test]
    async fn registrations_that_are_refused_show_little() {
        let (commands, mut queue) = mpsc::channel(8);
        let mut own = role(&[2]);
        if let Role::Host { leadership, .. } = &mut own {
            leadership.commands = commands.downgrade();
        }
        let known = KnownJob {
            uid: JobUid::new("v"),
            voters: vec![VoterAddress::new("n3:1")],
            leads: None,
        };
        let showing = |change: &dyn Fn(&mut Registration)| {
            let mut registration = ragent_base::testing::registration("a");
            (registration.run_id, registration.job) = (RunId::new("job"), Some(known.clone()));
            (registration.ended, registration.job_uid) =
                (vec![JobUid::new("e")], Some(JobUid::new("w")));
            registration.known_round.round.round = Round(1);
            change(&mut registration);
            registration
        };
        let other_run = showing(&|registration| registration.run_id = RunId::new("other"));
        assert_eq!(own.elsewhere(&other_run), None);
        assert!(queue.try_recv().is_err());
        let other_version = showing(&|registration| registration.protocol_version = 4);
        assert_eq!(own.elsewhere(&other_version), None);
        let Ok(LeadershipCommand::KnownJob(job)) = queue.try_recv() else {
            panic!("it shows a job")
        };
        assert_eq!(job.uid, JobUid::new("w"));
        assert!(queue.try_recv().is_err());
        own.elsewhere(&showing(&|_| {}));
        assert!(matches!(queue.try_recv(), Ok(LeadershipCommand::Ended(_))));
        assert!(matches!(queue.try_recv(), Ok(LeadershipCommand::KnownJob(job)) if job == known));
    }

    /// A process that is not a voter redirects others to the coordinator of its own agent. A voter without a leader does not: that
    /// coordinator may be lost.
    #[test]
    fn others_are_sent_to_the_registered_coordinator() {
        let endpoint =
            |role: &Role| role.registered_elsewhere().map(|elsewhere| elsewhere.endpoint);
        assert_eq!(endpoint(&role(&[2])).as_deref(), Some("b:1"));
        assert_eq!(endpoint(&role(&[1, 2])), None);
        let read =
            |role: &Role| role.coordinator_to_read().err().map(|elsewhere| elsewhere.endpoint);
        assert_eq!(read(&role(&[2])).as_deref(), Some("b:1"));
        assert_eq!(read(&role(&[1, 2])).as_deref(), Some(""));
    }
}
