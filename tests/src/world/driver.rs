//! Runs a coordinator as its driver does: most effects wait until the state is stored.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    Rendezvous,
    effect::Effect,
    ids::{NodeId, Peer, Round, Term, VoterAddress},
    known_job::Seniority,
    member_reports::MemberReports,
    message::{Assignment, FromNode, Registration, ToNode},
    settings::JobState,
};

use super::{Bug, Input, Part, World, election::Command, port::Down};

/// The coordinator of one leadership.
#[derive(Debug)]
pub(super) struct Coordinator {
    pub(super) term: Term,
    pub(super) rendezvous: Rendezvous,
    /// Effects that wait until the state is stored.
    pub(super) effects: VecDeque<Effect>,
    /// The newest change of the state, until a majority has it.
    pub(super) copying: Option<(u64, JobState)>,
    pub(super) reports: MemberReports,
    /// True if this process no longer leads, so that nothing more will be copied.
    pub(super) is_over: bool,
    /// The nodes that have reported a notice. True if the job ends.
    pub(super) noticed: BTreeMap<NodeId, bool>,
    /// The streams that it has not ended.
    pub(super) open: BTreeSet<Peer>,
    /// The time until which deadlines are postponed after a pause.
    pub(super) paused_until: Option<Instant>,
}

/// The reason for the end of a coordinator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    JobOver,
    HandedOver,
    Forgotten,
    Ended,
}

/// An input that waits for the coordinator.
#[derive(Debug)]
pub(super) enum Waiting {
    Registration(Box<Registration>),
    Message(Peer, Box<FromNode>),
    Detached(Peer),
    DeathNotice(NodeId, Round),
    Shutdown,
    Voters(Vec<VoterAddress>),
    OtherJobs(Vec<String>),
    Yield(Seniority, VoterAddress),
    /// It only extends the right to coordinate.
    Nothing,
}

/// A deadline that was missed by more than this shows that the process was paused.
const PAUSE: Duration = Duration::from_millis(500);

/// The time by which deadlines are postponed after a pause.
const CATCH_UP: Duration = Duration::from_secs(1);

impl Coordinator {
    fn is_awaited(&self, bug: Bug) -> bool {
        (self.copying.is_some() || self.is_over) && bug != Bug::EarlyEffects
    }

    /// Returns the time at which its earliest deadline is to be applied.
    fn due(&mut self, now: Instant) -> Option<Instant> {
        let deadline = self.rendezvous.poll_timeout();
        if deadline.is_none_or(|deadline| now < deadline) {
            self.paused_until = None;
        }
        let due = deadline.map(|at| self.paused_until.map_or(at, |until| at.max(until)));
        due.into_iter().chain(self.reports.poll_timeout()).min()
    }

    /// Applies the deadlines that have passed. If the process was paused, postpones them once.
    fn time_out(&mut self, now: Instant) {
        let deadline = self.rendezvous.poll_timeout();
        let is_late = deadline.is_some_and(|deadline| deadline + PAUSE < now);
        let is_paused = is_late && self.paused_until.is_none();
        self.paused_until = is_paused.then(|| now + CATCH_UP);
        if !is_paused {
            self.rendezvous.handle_timeout(now);
        }
    }
}

impl World {
    /// Gives an input to the coordinator of a process, if one runs.
    pub(super) fn call_coordinator(&mut self, id: &NodeId, mut input: Waiting) {
        if let Waiting::Message(peer, message) = &mut input
            && let FromNode::NodeReport(report) = &mut **message
        {
            self.note_report(id, peer, report);
        }
        match &mut input {
            Waiting::Message(peer, message) => {
                self.note_memory_message(id, peer, message);
                if let FromNode::MemoryReport(report) = &mut **message {
                    self.delay_memory_report(id, &peer.node, report);
                }
            }
            Waiting::Registration(registration) => self.note_memory_registration(id, registration),
            _ => {}
        }
        let bug = self.bug;
        let Some(now) = self.local(id) else { return };
        let Some(port) = self.port(id) else { return };
        let Some(term) = port.coordination.term() else { return };
        let until = port.until.get(&term).copied();
        let Some(coordinator) = port.coordination.coordinator() else { return };
        let is_routine = match &input {
            Waiting::Message(_, message) => matches!(**message, FromNode::KeepAlive { .. }),
            Waiting::Nothing | Waiting::Voters(_) | Waiting::OtherJobs(_) | Waiting::Yield(..) => {
                true
            }
            Waiting::Registration(_)
            | Waiting::Detached(_)
            | Waiting::DeathNotice(..)
            | Waiting::Shutdown => false,
        };
        if !is_routine {
            coordinator.reports.note_change(now);
        }
        let rendezvous = &mut coordinator.rendezvous;
        if let Some(until) = until {
            rendezvous.handle_extended(now, until + bug.overtime().unwrap_or_default());
        }
        match input {
            Waiting::Registration(registration) => {
                coordinator.open.insert(registration.peer());
                rendezvous.handle_registration(now, *registration);
            }
            Waiting::Message(peer, message) => rendezvous.handle_message(now, peer, *message),
            Waiting::Detached(peer) => {
                coordinator.open.remove(&peer);
                rendezvous.handle_detached(now, peer);
            }
            Waiting::DeathNotice(node, round) => rendezvous.handle_death_notice(now, &node, round),
            Waiting::Shutdown => rendezvous.handle_shutdown(now),
            Waiting::Voters(voters) => rendezvous.handle_voters(voters),
            Waiting::OtherJobs(jobs) => rendezvous.handle_other_jobs(now, jobs),
            Waiting::Yield(other, at) => {
                rendezvous.handle_elder_job(now, at.to_string(), other.born_ms);
            }
            Waiting::Nothing => {}
        }
        self.drive(id);
    }

    pub(super) fn shut_down(&mut self, id: &NodeId) {
        self.call_coordinator(id, Waiting::Shutdown);
    }

    pub(super) fn time_out_coordinator(&mut self, id: &NodeId) {
        self.call_coordinator(id, Waiting::Nothing);
        if self.bug.overtime().is_some() {
            self.follow_leader(id);
        }
        let Some(now) = self.local(id) else { return };
        let Some(port) = self.port(id) else { return };
        let Some(coordinator) = port.coordination.coordinator() else { return };
        coordinator.time_out(now);
        let next = coordinator.rendezvous.poll_timeout();
        let next = next.filter(|_| coordinator.paused_until.is_none());
        self.note_deadline(now, next);
        let Some(coordinator) = self.port(id).and_then(|port| port.coordination.coordinator())
        else {
            return;
        };
        let mut report = None;
        if coordinator.reports.poll_timeout().is_some_and(|due| due <= now) {
            let Coordinator { reports, rendezvous, .. } = coordinator;
            reports.handle_timeout(now, rendezvous, |members| {
                report = Some(Command::Members(members));
                true
            });
        }
        self.drive(id);
        if let Some(report) = report {
            self.pass(id, Input::Command(report));
        }
    }

    /// Notes that a change of the state is stored, or will never be.
    pub(super) fn handle_stored(&mut self, id: &NodeId, number: u64, is_copied: bool) {
        let Some(port) = self.port(id) else { return };
        let Some(coordinator) = port.coordination.coordinator() else { return };
        let is_newest = |(newest, _): &mut (u64, JobState)| *newest == number;
        let Some((_, job_state)) = coordinator.copying.take_if(is_newest) else { return };
        coordinator.is_over |= !is_copied;
        let ended = job_state.closed.is_some().then(|| job_state.job_uid.clone());
        if let Some(uid) = ended.filter(|_| is_copied) {
            self.note_end(uid);
        }
        if is_copied {
            self.note_stored_memory(&job_state);
            self.note_copied(job_state);
        }
        self.drive(id);
    }

    /// Carries out the effects of a coordinator, and sets its timer. Some effects wait until the state is stored.
    pub(super) fn drive(&mut self, id: &NodeId) {
        let bug = self.bug;
        while let Some(coordinator) = self.port(id).and_then(|port| port.coordination.coordinator())
        {
            let Some(effect) = coordinator.rendezvous.poll_effect() else { break };
            if let Some(trace) = &mut self.trace {
                trace.add(&effect);
            }
            let Some(port) = self.port(id) else { break };
            let Some(coordinator) = port.coordination.coordinator() else { break };
            match effect {
                // Keep-alives and probes are never delayed.
                Effect::Send {
                    to,
                    message: message @ (ToNode::Echo { .. } | ToNode::Probe { .. }),
                } => self.send_to_node(id, &to, message),
                mut effect => {
                    bug.forge_plan(&mut effect);
                    coordinator.effects.push_back(effect.clone());
                    self.note_effect(id, &effect);
                }
            }
        }
        while let Some(coordinator) = self.port(id).and_then(|port| port.coordination.coordinator())
        {
            if coordinator.is_awaited(bug) {
                break;
            }
            let Some(effect) = coordinator.effects.pop_front() else { break };
            if self.dies_now(id) {
                return;
            }
            if let Some(end) = self.carry_out(id, effect) {
                return self.end_coordinator(id, end);
            }
        }
        let Some(now) = self.local(id) else { return };
        let ignores_deadlines = self.ignores_deadlines(id);
        let Some(port) = self.port(id) else { return };
        let Some(coordinator) = port.coordination.coordinator() else { return };
        let due = coordinator.due(now).filter(|_| !ignores_deadlines);
        self.set_timer(id, Part::Coordinator, due);
    }

    fn carry_out(&mut self, id: &NodeId, effect: Effect) -> Option<End> {
        match effect {
            Effect::Send { to, message } => self.send_to_node(id, &to, message),
            Effect::Record(_) => {}
            Effect::HangUp { to } => {
                if self.forget_stream(id, &to) {
                    self.hang_up(&to);
                }
            }
            Effect::Remember(job_state) if self.write_file(&job_state) => {
                self.note_stored_memory(&job_state);
            }
            Effect::Remember(job_state) => {
                let port = self.port(id)?;
                port.changes += 1;
                let number = port.changes;
                port.coordination.coordinator()?.copying = Some((number, (*job_state).clone()));
                let command = Command::Remember(job_state, number);
                self.pass(id, Input::Command(command));
            }
            Effect::Resign { .. } | Effect::HandOver | Effect::Forget | Effect::Finish { .. }
                if self.finish() => {}
            Effect::Forget => return Some(End::Forgotten),
            Effect::Resign { term } => {
                self.pass(id, Input::Command(Command::Highest(term)));
                return Some(End::Ended);
            }
            Effect::HandOver => return Some(End::HandedOver),
            Effect::Finish { is_over: true } => return Some(End::JobOver),
            Effect::Finish { is_over: false } => return Some(End::Ended),
        }
        None
    }

    fn send_to_node(&mut self, id: &NodeId, to: &Peer, mut message: ToNode) {
        self.note_assignment(&to.node, &mut message);
        let is_open = self
            .port(id)
            .and_then(|port| port.coordination.coordinator())
            .is_some_and(|coordinator| coordinator.open.contains(to));
        if !is_open {
            return;
        }
        if self.bug == Bug::UnchainedWorkers {
            match &mut message {
                ToNode::Echo { lease_left, .. } => *lease_left = None,
                ToNode::Welcome(welcome) => welcome.lease_left = None,
                _ => {}
            }
        }
        let is_refused = matches!(message, ToNode::Refuse(_));
        self.send_down(to, Down::Message(Box::new(message)));
        if is_refused && self.forget_stream(id, to) {
            self.hang_up(to);
        }
    }

    fn forget_stream(&mut self, id: &NodeId, peer: &Peer) -> bool {
        let coordinator = self.port(id).and_then(|port| port.coordination.coordinator());
        coordinator.is_some_and(|coordinator| coordinator.open.remove(peer))
    }

    /// Notes the rounds that a coordinator completes.
    fn note_effect(&mut self, id: &NodeId, effect: &Effect) {
        if let Effect::Record(event) = effect {
            self.journal(event);
            self.check_event(id, event);
            self.check_stall_event(id, event);
            self.check_health_event(id, event);
            self.check_memory_event(id, event);
        }
        if let Effect::Remember(job_state) = effect {
            self.note_memory_state(id, job_state);
        }
        if let Effect::Send { to, message: ToNode::Assignment(Assignment::Admit(admission)) } =
            effect
        {
            self.check_plan(id, &to.node, admission);
            self.check_admission(id, &to.node, admission.round);
            let coordinator = self.port(id).and_then(|port| port.coordination.coordinator());
            if let Some(uid) = coordinator.map(|one| one.rendezvous.job_uid().clone()) {
                self.note_birth(id, uid, admission.round);
            }
            self.note_admission(&to.node, admission.round);
        }
    }
}
