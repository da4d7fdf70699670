//! The coordinator of a voter's process: it runs while the voter leads.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use ragent_election::election::Leadership;
use ragent_rendezvous::{
    Rendezvous,
    ids::{JobUid, NodeId, Round, Term},
    member_reports::MemberReports,
    settings::{Leases, Memory, Settings},
    tenure::{Elected as Granted, Tenure},
    voter_count::VoterCount,
};

use super::{
    Bug, Input, World,
    driver::{Coordinator, End, Waiting},
    election::{Command, Elected, Leader},
    host::ProcessEnd,
};

/// The coordination of a voter's process.
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

/// The time for which a process that leaves waits until its voter is replaced.
const REPLACED_WITHIN: Duration = Duration::from_secs(5);

/// The age at which an obituary is forgotten.
const OBITUARY_AGE: Duration = Duration::from_secs(60);

impl Bug {
    /// Returns the time by which a coordinator outlasts the tenure that it was told; `None` if it ends when its voter
    /// does not lead any more.
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
    /// Starts or ends the coordinator of a process, and informs its port, as the leader that its voter reports
    /// requires it.
    pub(super) fn follow_leader(&mut self, id: &NodeId) {
        self.dial_own_leader(id);
        let overtime = self.bug.overtime();
        let Some(local) = self.local(id) else { return };
        let Some(voter) = self.voter(id) else { return };
        let led = match &voter.leader {
            Leader::Here(leadership) => Some(leadership.term),
            Leader::Other(..) | Leader::Unknown => None,
        };
        match &voter.coordination {
            Coordination::Over => return,
            Coordination::Ended(term) if led == Some(*term) => return,
            Coordination::Runs(coordinator) if led == Some(coordinator.term) => return,
            Coordination::Runs(coordinator) => {
                let until = voter.until.get(&coordinator.term).copied().unwrap_or(local);
                if overtime.is_some_and(|overtime| local < until + overtime) {
                    return;
                }
            }
            Coordination::Ended(_) | Coordination::Idle => {}
        }
        self.drop_coordinator(id, Coordination::Idle);
        let Some(voter) = self.voter(id) else { return };
        match voter.leader.clone() {
            Leader::Here(leadership) => self.start_coordinator(id, *leadership),
            Leader::Other(address, term) => self.publish(id, Elected::There(address, term)),
            Leader::Unknown => self.publish(id, Elected::Unknown),
        }
        self.check_process_end(id);
    }

    fn start_coordinator(&mut self, id: &NodeId, leadership: Leadership) {
        let Some(local) = self.local(id) else { return };
        let ignores = self.bug == Bug::IgnoredReplica;
        let memory = leadership.memory.filter(|_| !ignores);
        let number = self.events_scheduled;
        let born_ms = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
        let memory = memory.unwrap_or_else(|| Memory {
            born_ms,
            ..Memory::fresh(JobUid::new(format!("job-{number}")))
        });
        let overtime = self.bug.overtime().unwrap_or_default();
        let workers_until = match self.bug {
            Bug::NoWaitForOthers => local,
            _ => leadership.workers_until,
        };
        let tenure = Tenure::Elected(Granted {
            term: leadership.term,
            until: leadership.until + overtime,
            workers_until,
            former: leadership.former,
        });
        let nodes = self.shared.nodes;
        let settings = Settings {
            run_id: Self::run_id(),
            coordinator: id.to_string(),
            host: Some(id.clone()),
            shared: Some(self.shared),
            voter_count: VoterCount::for_job(nodes.min(), nodes.max() as usize),
            keeps_charges: true,
            leases: Leases::default(),
            voters: leadership.voters.into_iter().map(|seat| seat.address).collect(),
            begins_at: None,
        };
        let rendezvous = Rendezvous::new(local, settings, memory, tenure);
        let coordinator = Coordinator {
            term: leadership.term,
            rendezvous,
            effects: VecDeque::new(),
            copying: None,
            is_over: false,
            reports: MemberReports::default(),
            open: BTreeSet::new(),
            stalled_until: None,
        };
        let Some(voter) = self.voter(id) else { return };
        voter.coordination = Coordination::Runs(Box::new(coordinator));
        voter.recent.retain(|(at, ..)| local.saturating_duration_since(*at) <= OBITUARY_AGE);
        let recent = voter.recent.clone();
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
        let Some(voter) = self.voter(id) else { return };
        let open = voter.coordination.coordinator().map(|coordinator| coordinator.open.clone());
        voter.coordination = next;
        for peer in open.into_iter().flatten() {
            self.hang_up(&peer);
        }
    }

    /// Ends a coordinator in order.
    pub(super) fn end_coordinator(&mut self, id: &NodeId, end: End) {
        let Some(voter) = self.voter(id) else { return };
        let Some(term) = voter.coordination.term() else { return };
        let next = match end {
            End::JobOver => Coordination::Over,
            End::HandedOver | End::Forgotten | End::Ended => Coordination::Ended(term),
        };
        self.drop_coordinator(id, next);
        self.publish(id, Elected::Unknown);
        match end {
            End::JobOver | End::HandedOver => self.pass(id, Input::Command(Command::Leave)),
            End::Forgotten => self.pass(id, Input::Command(Command::Forget)),
            End::Ended => self.pass(id, Input::Command(Command::Resign(term))),
        }
        // The leader may have changed since.
        self.pass(id, Input::Leader);
        self.check_process_end(id);
    }

    /// Handles an obituary that a keeper has sent.
    pub(super) fn arrive_obituary(&mut self, id: &NodeId, node: NodeId, round: Round) {
        let Some(local) = self.local(id) else { return };
        let Some(voter) = self.voter(id) else { return };
        // The proof of its node id cannot be verified without a memory.
        let has_memory = voter.election.replica().memory.is_some();
        match &voter.coordination {
            Coordination::Runs(_) => {
                voter.recent.push_back((local, node.clone(), round));
                self.report_death(id, &node, round);
            }
            Coordination::Idle | Coordination::Ended(_) if has_memory => {
                voter.recent.push_back((local, node.clone(), round));
                self.pass(id, Input::Command(Command::Obituary(node)));
            }
            Coordination::Idle | Coordination::Ended(_) | Coordination::Over => {}
        }
    }

    fn report_death(&mut self, id: &NodeId, node: &NodeId, round: Round) {
        let waiting = Waiting::Obituary(node.clone(), round);
        self.call_coordinator(id, waiting);
    }

    /// Begins the end of a process whose agent has ended.
    pub(super) fn begin_to_end(&mut self, id: &NodeId, end: ProcessEnd) {
        let Some(process) = self.processes.get_mut(id) else { return };
        process.ending = Some(end);
        let Some(voter) = &process.voter else { return self.pass(id, Input::Exit) };
        let is_here = matches!(voter.elected, Elected::Here(_));
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

    /// Ends a process whose job has ended, once its voter is not needed any more.
    pub(super) fn check_process_end(&mut self, id: &NodeId) {
        let Some(process) = self.processes.get(id) else { return };
        let Some(voter) = &process.voter else { return };
        if process.ending != Some(ProcessEnd::Closed) {
            return;
        }
        let is_over = match &voter.coordination {
            Coordination::Over => true,
            Coordination::Runs(_) => false,
            Coordination::Idle | Coordination::Ended(_) => {
                !matches!(voter.elected, Elected::There(..))
            }
        };
        if is_over {
            let flushes = self.random.millis(1, 20);
            self.wake(id, flushes, Input::Exit);
        }
    }
}
