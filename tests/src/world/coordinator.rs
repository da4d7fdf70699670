//! Runs the coordinator of a process while the process leads.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use ragent_election::election::NewLeadership;
use ragent_rendezvous::{
    Rendezvous,
    grant::Grant,
    ids::{JobUid, NodeId, Round, Term},
    member_reports::MemberReports,
    settings::{JobState, Leases, Settings},
    voter_count::VoterCount,
};

use super::{
    Bug, Input, World,
    driver::{Coordinator, End, Waiting},
    election::Command,
    host::ProcessEnd,
    port::{Elected, Leader},
};

/// The coordination of a process.
#[derive(Debug)]
pub(super) enum Coordination {
    /// This process does not lead.
    Idle,
    /// The coordinator of a leadership.
    Runs(Box<Coordinator>),
    /// The coordinator has ended before its leadership in this term.
    Ended(Term),
    /// The job has ended.
    Over,
}

/// The time that a leaving process waits for another voter to replace its own.
const REPLACED_WITHIN: Duration = Duration::from_secs(5);

/// The age at which a death notice is forgotten.
const DEATH_NOTICE_AGE: Duration = Duration::from_secs(60);

impl Bug {
    /// Returns the time by which a coordinator outlasts its grant. `None` if it ends when its voter no longer leads.
    pub(super) fn overtime(self) -> Option<Duration> {
        match self {
            Self::Overtime => Some(Duration::from_secs(4)),
            Self::LeaseFromReceipt => Some(Duration::ZERO),
            _ => None,
        }
    }
}

impl Coordination {
    pub(super) fn coordinator(&mut self) -> Option<&mut Coordinator> {
        match self {
            Self::Runs(coordinator) => Some(coordinator),
            Self::Idle | Self::Ended(_) | Self::Over => None,
        }
    }

    /// Returns the coordinator that runs.
    pub(super) fn running(&self) -> Option<&Coordinator> {
        match self {
            Self::Runs(coordinator) => Some(coordinator),
            Self::Idle | Self::Ended(_) | Self::Over => None,
        }
    }

    /// Returns the term of the coordinator that runs.
    pub(super) fn term(&self) -> Option<Term> {
        self.running().map(|coordinator| coordinator.term)
    }
}

impl World {
    /// Starts or ends the coordinator of a process, and informs its port, according to the leader that its voter reports.
    pub(super) fn follow_leader(&mut self, id: &NodeId) {
        self.dial_own_leader(id);
        let overtime = self.bug.overtime();
        let Some(local) = self.local(id) else { return };
        let Some(port) = self.port(id) else { return };
        let led = match &port.leader {
            Leader::Here(leadership) => Some(leadership.term),
            Leader::Other(..) | Leader::Unknown => None,
        };
        match &port.coordination {
            Coordination::Over => return,
            Coordination::Ended(term) if led == Some(*term) => return,
            Coordination::Runs(coordinator) if led == Some(coordinator.term) => return,
            Coordination::Runs(coordinator) => {
                let until = port.until.get(&coordinator.term).copied().unwrap_or(local);
                if overtime.is_some_and(|overtime| local < until + overtime) {
                    return;
                }
            }
            Coordination::Ended(_) | Coordination::Idle => {}
        }
        self.drop_coordinator(id, Coordination::Idle);
        let Some(port) = self.port(id) else { return };
        match port.leader.clone() {
            Leader::Here(leadership) => self.start_coordinator(id, *leadership),
            Leader::Other(address, term) => self.publish(id, Elected::There(address, term)),
            Leader::Unknown => self.publish(id, Elected::Unknown),
        }
        self.check_process_end(id);
    }

    fn start_coordinator(&mut self, id: &NodeId, leadership: NewLeadership) {
        let Some(local) = self.local(id) else { return };
        let ignores = self.bug == Bug::IgnoredReplica;
        let job_state = leadership.job_state.filter(|_| !ignores);
        let number = self.events_scheduled;
        let born_ms = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
        let job_state = job_state.unwrap_or_else(|| JobState {
            born_ms,
            ..JobState::new(JobUid::new(format!("job-{number}")))
        });
        let mut job_state = job_state;
        self.begin_budget(leadership.term, &job_state);
        self.forge_charges(&mut job_state);
        self.forge_strikes(&mut job_state);
        self.forge_suspicions(&mut job_state);
        self.begin_stalls_of_coordinator(id, &mut job_state);
        self.begin_memory_of_coordinator(id, &job_state);
        let overtime = self.bug.overtime().unwrap_or_default();
        let workers_until = match self.bug {
            Bug::NoWaitForOthers => local,
            _ => leadership.workers_until,
        };
        let grant = match &self.fixed {
            Some(_) => None,
            None => Some(Grant {
                term: leadership.term,
                until: leadership.until + overtime,
                workers_until,
                former: leadership.former,
            }),
        };
        let nodes = self.shared.nodes;
        let voter_count = match &self.fixed {
            Some(_) => VoterCount::One,
            None if self.etcd.is_some() => VoterCount::One,
            None => VoterCount::for_job(nodes.min(), nodes.max() as usize),
        };
        let settings = Settings {
            run_id: Self::run_id(),
            coordinator: id.to_string(),
            host: self.agent(id).is_some().then(|| id.clone()),
            shared: Some(self.shared),
            voter_count,
            keeps_charges: self.keeps_charges(),
            leases: Leases::default(),
            voters: leadership.voters.into_iter().map(|slot| slot.address).collect(),
            begins_at: None,
        };
        let rendezvous = Rendezvous::new(local, settings, job_state, grant);
        let coordinator = Coordinator {
            term: leadership.term,
            rendezvous,
            effects: VecDeque::new(),
            copying: None,
            is_over: false,
            noticed: BTreeMap::new(),
            reports: MemberReports::default(),
            open: BTreeSet::new(),
            paused_until: None,
        };
        let Some(port) = self.port(id) else { return };
        port.coordination = Coordination::Runs(Box::new(coordinator));
        port.recent.retain(|(at, ..)| local.saturating_duration_since(*at) <= DEATH_NOTICE_AGE);
        let recent = port.recent.clone();
        self.drive(id);
        let voter = self.voter(id);
        let others = voter.map(|voter| voter.election.other_jobs().map(|job| job.uid.to_string()));
        let others = others.into_iter().flatten().collect();
        self.call_coordinator(id, Waiting::OtherJobs(others));
        for (_, node, round) in recent {
            self.report_death(id, &node, round);
        }
        self.publish(id, Elected::Here(leadership.term));
    }

    /// Ends the coordinator of a process, if it runs, and all of its streams.
    pub(super) fn drop_coordinator(&mut self, id: &NodeId, next: Coordination) {
        let Some(port) = self.port(id) else { return };
        let open = port.coordination.coordinator().map(|coordinator| coordinator.open.clone());
        port.coordination = next;
        for peer in open.into_iter().flatten() {
            self.hang_up(&peer);
        }
    }

    /// Ends a coordinator in order.
    pub(super) fn end_coordinator(&mut self, id: &NodeId, end: End) {
        let Some(port) = self.port(id) else { return };
        let Some(term) = port.coordination.term() else { return };
        let next = match end {
            End::JobOver => Coordination::Over,
            End::HandedOver | End::Forgotten | End::Ended => Coordination::Ended(term),
        };
        self.drop_coordinator(id, next);
        self.publish(id, Elected::Unknown);
        match end {
            End::JobOver if self.etcd.is_some() => {
                self.pass(id, Input::Command(Command::JobOver(term)));
            }
            End::JobOver | End::HandedOver => self.pass(id, Input::Command(Command::Leave)),
            End::Forgotten => self.pass(id, Input::Command(Command::Forget)),
            End::Ended => self.pass(id, Input::Command(Command::Resign(term))),
        }
        // The leader may have changed since.
        self.pass(id, Input::Leader);
        self.check_process_end(id);
    }

    /// Handles a death notice that a keeper has sent.
    pub(super) fn arrive_death_notice(&mut self, id: &NodeId, node: NodeId, round: Round) {
        let Some(local) = self.local(id) else { return };
        // A node id cannot be verified without a job's state.
        let has_job_state =
            self.processes.get(id).is_some_and(|process| process.job_state().is_some());
        let Some(port) = self.port(id) else { return };
        match &port.coordination {
            Coordination::Runs(_) => {
                port.recent.push_back((local, node.clone(), round));
                self.report_death(id, &node, round);
            }
            Coordination::Idle | Coordination::Ended(_) if has_job_state => {
                port.recent.push_back((local, node.clone(), round));
                self.pass(id, Input::Command(Command::DeathNotice(node)));
            }
            Coordination::Idle | Coordination::Ended(_) | Coordination::Over => {}
        }
    }

    fn report_death(&mut self, id: &NodeId, node: &NodeId, round: Round) {
        let waiting = Waiting::DeathNotice(node.clone(), round);
        self.call_coordinator(id, waiting);
    }

    /// Begins the end of a process whose agent has ended.
    pub(super) fn begin_to_end(&mut self, id: &NodeId, end: ProcessEnd) {
        let Some(process) = self.processes.get_mut(id) else { return };
        process.ending = Some(end);
        if self.fixed.is_some() {
            // The coordinator of a job with one endpoint goes on without the agent in its process.
            if process.port.coordination.running().is_none() {
                self.pass(id, Input::Exit);
            }
            return;
        }
        let is_here = matches!(process.port.elected, Elected::Here(_));
        match end {
            // The coordinator informs all nodes first.
            ProcessEnd::Closed if is_here => {}
            ProcessEnd::Closed => self.pass(id, Input::Command(Command::Leave)),
            ProcessEnd::Left | ProcessEnd::Other | ProcessEnd::Yielded => {
                if is_here {
                    self.pass(id, Input::Shutdown);
                }
                self.pass(id, Input::Command(Command::Leave));
                let flushes = self.random.millis(1, 20);
                let waits = if end == ProcessEnd::Left { REPLACED_WITHIN } else { flushes };
                self.wake(id, waits, Input::Exit);
            }
        }
        self.check_process_end(id);
    }

    /// Ends a process after the end of its job, once its voter is no longer needed.
    pub(super) fn check_process_end(&mut self, id: &NodeId) {
        let Some(process) = self.processes.get(id) else { return };
        if process.ending != Some(ProcessEnd::Closed) {
            return;
        }
        let is_over = match &process.port.coordination {
            Coordination::Over => true,
            Coordination::Runs(_) => false,
            Coordination::Idle | Coordination::Ended(_) => {
                !matches!(process.port.elected, Elected::There(..))
            }
        };
        if is_over {
            let flushes = self.random.millis(1, 20);
            self.wake(id, flushes, Input::Exit);
        }
    }
}
