//! Decides as a state machine which nodes form the next worker group, and when the job is over.
//!
//! Each input is handled in three steps:
//!
//! 1. It is recorded ([`Roster`], [`Group`]).
//! 2. The phase moves as far as it can ([`Rendezvous::advance`]).
//! 3. Each node concerned receives its assignment, if that has changed ([`Rendezvous::sync`]).
//!
//! The modules below have the conditions and steps of each phase.

mod accepting;
mod accounting;
mod assignment;
mod closing;
mod departing;
mod failing;
mod free_rounds;
mod gathering;
mod handing_over;
mod hanging;
mod journal;
mod looking;
mod memory;
mod memory_status;
mod memory_striking;
mod noticing;
mod progressing;
mod recovering;
mod refused_clients;
mod regathering;
mod registering;
mod running;
mod setting_aside;
mod stalling;
#[cfg(test)]
mod tests;
mod view;
mod voters;

use std::{
    collections::VecDeque,
    mem,
    sync::OnceLock,
    time::{Duration, Instant},
};

use journal::Journal;
use memory::JobMemory;
use registering::Welcomed;
pub use setting_aside::ExcludedHosts;
use tracing::{debug, info};
use voters::SilentVoters;

use crate::{
    checkpoints::Checkpoints,
    departures::Departures,
    effect::Effect,
    event::EventKind,
    flapping::RestartSpacing,
    grant::Grant,
    group::{Group, MemberState},
    ids::{JobUid, NodeId, Peer, Round, RoundId, Term},
    message::{EvictReason, FromNode, NodeState, Registration, RestartReason, ToNode},
    phase::{Gathering, Phase, Recovering},
    progress::JobSteps,
    roster::{Roster, RosterNode},
    safety_valve::SafetyValve,
    settings::{JobState, Settings, SharedSettings},
    snapshot::{Explanation, NodeCounts},
};

/// The state machine that decides which nodes form the next worker group, and when the job is over.
#[derive(Debug)]
pub struct Rendezvous {
    settings: Settings,
    job_state: JobState,
    grant: Option<Grant>,
    availability: Availability,
    phase: Phase,
    roster: Roster,
    /// Nodes that were welcomed, but have not reported their state since.
    welcomed: Welcomed,
    departures: Departures,
    steps: JobSteps,
    checkpoints: Checkpoints,
    /// The numbers of nodes. Each input that may change them clears the value.
    counted: OnceLock<NodeCounts>,
    spacing: RestartSpacing,
    valve: SafetyValve,
    /// The time until which rounds wait for the first list of excluded hosts.
    excluded_awaited_until: Option<Instant>,
    effects: VecDeque<Effect>,
    has_news: bool,
    clock: Instant,
    /// The time up to which the deadlines of the phase were applied. It may be before `clock`, because a message that is handled at once, such as a
    /// keep-alive, moves the clock and applies no deadline.
    advanced: Instant,
    /// The job uid that nodes received before this coordinator adopted another run.
    given_before: Option<JobUid>,
    /// True if the host was lost with the previous coordinator shortly after a start, and this loss
    /// is not counted yet.
    has_lost_host: bool,
    journal: Journal,
    silent_voters: SilentVoters,
    /// Other jobs of this name that may run, as text for people. While there are any, no first
    /// round is completed.
    other_jobs: Vec<String>,
    /// True if this coordinator has given a notice, or has named a worker that hangs.
    has_given_guidance: bool,
    /// The time at which a checkpoint was last requested on behalf of a node.
    last_request: Option<Instant>,
    /// True if another one is requested, but not yet passed on.
    is_save_due: bool,
    /// The number of looks at workers so far.
    looks: u64,
    /// True if members must still receive a change of the notice or of the look.
    has_guidance: bool,
    memory: JobMemory,
}

/// The availability of this coordinator for another round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Availability {
    /// The coordinator stays.
    Available,
    /// The node in the coordinator's process is leaving. The coordinator ends with that node.
    HostLeaving,
    /// The coordinator's process is shutting down. The coordinator ends when the workers have
    /// stopped.
    ShuttingDown,
    /// The coordinator has returned [`Effect::Finish`], [`Effect::Resign`], [`Effect::HandOver`] or
    /// [`Effect::Forget`], and ignores all input.
    Ended,
}

impl Rendezvous {
    /// Starts a term of the job with the state `job_state`, for as long as `grant` lasts.
    pub fn new(
        now: Instant,
        settings: Settings,
        job_state: JobState,
        grant: Option<Grant>,
    ) -> Self {
        let term = match &grant {
            None => job_state.term.next(),
            Some(grant) => grant.term,
        };
        let job_state = JobState { term, ..job_state };
        let phase = if job_state.round == Round(0) && job_state.closed.is_none() {
            Phase::Gathering(Gathering::default())
        } else {
            let last = RoundId { term: Term(0), round: job_state.round };
            Phase::Recovering(Recovering::new(now, last, job_state.round_size))
        };
        let phase = recovering::without_former(phase, now, &job_state, grant.as_ref());
        // An elected coordinator is on another host than the lost one.
        let is_same_host = grant.is_none();
        let has_lost_host = is_same_host
            && job_state.host.is_some()
            && job_state.is_early
            && job_state.closed.is_none();
        info!(term = %job_state.term, round = %job_state.round, "coordinator started");
        let journal = Journal::new(now, &job_state);
        let mut rendezvous = Self {
            settings,
            job_state,
            grant,
            availability: Availability::Available,
            phase,
            roster: Roster::default(),
            welcomed: Welcomed::default(),
            departures: Departures::default(),
            steps: JobSteps::default(),
            checkpoints: Checkpoints::default(),
            counted: OnceLock::new(),
            spacing: RestartSpacing::default(),
            valve: SafetyValve::default(),
            excluded_awaited_until: None,
            effects: VecDeque::new(),
            has_news: false,
            clock: now,
            advanced: now,
            given_before: None,
            has_lost_host,
            journal,
            silent_voters: SilentVoters::default(),
            other_jobs: Vec::new(),
            has_given_guidance: false,
            last_request: None,
            is_save_due: false,
            looks: 0,
            has_guidance: false,
            memory: JobMemory::default(),
        };
        rendezvous.roster.restore_tallies(now, &rendezvous.job_state.host_tallies);
        rendezvous.record_start(now);
        rendezvous.remember();
        rendezvous
    }

    /// Handles a new stream of a node: accepts it and sends the node's assignment, or refuses it.
    pub fn handle_registration(&mut self, now: Instant, registration: Registration) {
        if !self.begin(now) {
            return;
        }
        let peer = registration.peer();
        debug!(
            node = %peer.node, stream = %peer.stream, state = ?registration.report.state,
            "registration"
        );
        if self.roster.is_late(&peer) {
            debug!(node = %peer.node, stream = %peer.stream, "outdated registration dropped");
            return;
        }
        if self.is_of_job_elsewhere(&registration) {
            info!(node = %peer.node, "the node belongs to a job that began elsewhere");
            self.effects.push_back(Effect::HangUp { to: peer });
            return;
        }
        if let Some(reason) = self.why_refused(&registration) {
            info!(node = %peer.node, reason = reason.kind(), "node refused");
            self.record_refusal(&peer.node, &registration.node.host_name, reason.kind());
            self.send(peer, ToNode::Refuse(reason));
            return;
        }
        self.settings.shared.get_or_insert(registration.settings);
        self.adopt(&registration);
        // Claims of a node of another run do not count: it could claim any round and any charges.
        if self.is_of_this_run(&registration) {
            self.learn(now, &registration);
        }
        match self.grant {
            _ if self.availability == Availability::Ended => {}
            None => self.register(now, registration),
            Some(_) => self.ask_for_report(now, registration),
        }
    }

    /// Handles a message of a node on an open stream.
    pub fn handle_message(&mut self, now: Instant, from: Peer, message: FromNode) {
        let is_routine = matches!(
            message,
            FromNode::KeepAlive { .. }
                | FromNode::Progress { .. }
                | FromNode::MemoryReport(_)
                | FromNode::Digest(_)
        );
        let goes_on = if is_routine { self.begin_routine(now) } else { self.begin(now) };
        if !goes_on {
            return;
        }
        let Some(message) = self.register_welcomed(now, &from, message) else { return };
        if !self.roster.renew(now, &from) {
            debug!(
                node = %from.node, stream = %from.stream,
                "message of a replaced stream dropped"
            );
            return;
        }
        match message {
            FromNode::KeepAlive { sequence, asks_reason, progress, checkpoint, save_failed } => {
                self.record_failed_save(&from.node, save_failed);
                self.record_steps(now, &from.node, progress);
                if let Some(checkpoint) = checkpoint {
                    self.record_checkpoint(now, &from.node, &checkpoint);
                }
                let reason = asks_reason.then(|| self.incomplete(now)).flatten();
                let reason = reason.as_ref().map(Explanation::from);
                let lease_left = self.lease_left(now);
                let memory_whole = self.whole_in_memory();
                self.send(from, ToNode::Echo { sequence, reason, lease_left, memory_whole });
                return;
            }
            FromNode::Progress { text } => {
                self.roster.record_progress(&from.node, text);
                return;
            }
            FromNode::Standbys(standbys) => {
                self.roster.record_standbys(&from.node, standbys);
                return;
            }
            FromNode::RefusedClients(refused) => {
                self.note_refused_clients(&from.node, &refused);
                return;
            }
            // The driver keeps it for the status of the job.
            FromNode::StoreUnreached(_) => return,
            FromNode::MemoryReport(report) => {
                self.handle_memory_report(now, &from.node, report);
                return;
            }
            FromNode::Digest(digest) => {
                self.handle_digest(now, &from.node, digest);
                return;
            }
            FromNode::Alive { round } => self.record_sign_of_life(&from.node, round),
            FromNode::NodeReport(report) => {
                debug!(node = %from.node, round = %report.round, state = ?report.state, "report");
                if !self.roster.record_report_on_stream(now, &from.node, report) {
                    debug!(node = %from.node, "report of an older round dropped");
                    return;
                }
                self.on_report(now, &from.node);
            }
            FromNode::Goodbye => self.on_goodbye(now, &from.node),
        }
        self.advance(now);
        self.sync(&from.node);
    }

    /// Handles the end of a stream, which proves nothing about its node.
    pub fn handle_detached(&mut self, now: Instant, from: Peer) {
        if !self.begin(now) {
            return;
        }
        if let Some(node) =
            self.roster.get_mut(&from.node).filter(|node| node.stream == from.stream)
        {
            debug!(node = %from.node, stream = %from.stream, "detached");
            node.attached = false;
        }
    }

    /// Handles a death notice: a node's agent is gone, and all its processes are reaped.
    ///
    /// A keeper sends it only if the agent is gone, not if only the lease is over. Otherwise, a
    /// delayed notice could concern an agent that has been admitted again.
    ///
    /// `round` is the newest round that ran on the node.
    pub fn handle_death_notice(&mut self, now: Instant, node: &NodeId, round: Round) {
        if !self.begin(now) {
            return;
        }
        debug!(%node, "death notice");
        self.confirm_predecessor_dead(node, round);
        self.note_dead_member(node, round);
        self.welcomed.remove(node);
        self.on_lost(now, node, EvictReason::DeathNotice);
        self.advance(now);
    }

    /// Shuts this coordinator down, because its process is ending. The round is stopped, and no
    /// other follows. If the coordinator was elected, another voter continues the job.
    pub fn handle_shutdown(&mut self, now: Instant) {
        if !self.begin(now) || matches!(self.phase, Phase::Closed(_)) {
            return;
        }
        info!("coordinator shutting down");
        if self.grant.is_some() {
            self.hand_over();
            return;
        }
        self.leave(Availability::ShuttingDown);
        if matches!(self.phase, Phase::Running(_)) {
            self.restart(now, RestartReason::HostLeft, None, None);
        }
        self.advance(now);
    }

    /// Returns the end of this process's leadership; `None` if it has no end.
    fn grant_until(&self) -> Option<Instant> {
        self.grant.as_ref().map(|grant| grant.until)
    }

    /// Returns the time that is left of this process's leadership; `None` if it has no end.
    fn lease_left(&self, now: Instant) -> Option<Duration> {
        self.grant_until().map(|until| until.saturating_duration_since(now))
    }

    /// Extends this process's leadership until `until`, if it has an end.
    ///
    /// The extension is applied before earlier ends are checked, because a driver may pass it on as
    /// late as the next other event.
    pub fn handle_extended(&mut self, now: Instant, until: Instant) {
        if let Some(grant) = &mut self.grant {
            grant.until = grant.until.max(until);
        }
        self.begin_routine(now);
    }

    /// Handles all deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.begin(now) {
            return;
        }
        while let Some(node) = self.roster.expired(now) {
            self.on_lost(now, &node, EvictReason::Silent);
        }
        self.drop_silent(now);
        self.forgive(now);
        self.roster.grow_up(Some(now));
        self.advance(now);
        self.store_account(now);
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.availability == Availability::Ended {
            return None;
        }
        let forgiven = self.roster.quarantined().first().map(|(at, _)| *at);
        let (until, silent) = (self.grant_until(), self.welcomed.first_until());
        let grown_up = self.roster.young().first().map(|(at, _)| *at);
        let (lease, phase, account) =
            (self.roster.first_lease(), self.phase_deadline(), self.account_due());
        let deadlines = [lease, forgiven, grown_up, phase, until, silent, account];
        deadlines.into_iter().flatten().min()
    }

    /// Returns the next effect to be carried out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Records the time. Returns false if the coordinator ignores all input. This includes the end
    /// of its leadership, which takes effect before anything that arrived later.
    fn begin(&mut self, now: Instant) -> bool {
        self.counted.take();
        self.begin_routine(now)
    }

    /// Like [`Rendezvous::begin`], for an input that changes no number of nodes, so that these are
    /// kept.
    fn begin_routine(&mut self, now: Instant) -> bool {
        debug_assert!(self.clock <= now, "time does not go back");
        self.clock = self.clock.max(now);
        self.begin_input();
        let is_over = self.grant_until().is_some_and(|until| until <= now);
        if is_over && self.availability != Availability::Ended {
            info!(term = %self.job_state.term, "the right to coordinate is over");
            self.availability = Availability::Ended;
            self.event(None, None, EventKind::CoordinatorEnded { hands_over: false });
            self.effects.push_back(Effect::Finish { is_over: false });
        }
        self.availability != Availability::Ended
    }

    /// Applies the state that a node has reported.
    fn on_report(&mut self, now: Instant, id: &NodeId) {
        self.note_requests(now, id);
        self.note_kill(id);
        self.note_health(id);
        match &self.phase {
            Phase::Recovering(_) | Phase::Gathering(_) | Phase::Closed(_) => {}
            Phase::Running(_) => self.on_report_in_running(now, id),
            Phase::Regathering(_) => self.on_report_in_regathering(id),
        }
        self.index_readiness(id);
        if !self.is_sole_host(id) || matches!(self.phase, Phase::Closed(_)) {
            return;
        }
        if let Some(NodeState::Leaving { reaped }) = self.state(id) {
            self.leave(Availability::HostLeaving);
            if reaped && matches!(self.phase, Phase::Running(_)) {
                self.restart(now, RestartReason::HostLeft, None, None);
            }
        }
    }

    /// Moves the phase as far as possible, then sends the assignments that have changed.
    fn advance(&mut self, now: Instant) {
        self.advanced = self.advanced.max(now);
        while self.availability != Availability::Ended && self.step(now) {}
        if mem::take(&mut self.has_news) {
            self.sync_all();
        }
        self.follow_stall(now);
        self.send_new_guidance(now);
        self.follow_phase(now);
    }

    /// Enters `phase`, which may change the assignment of every node.
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.has_news = true;
    }

    /// Takes one step, if the phase can be left or something in it is overdue. Returns true if
    /// another may follow.
    fn step(&mut self, now: Instant) -> bool {
        let Some(shared) = self.settings.shared else {
            if self.availability == Availability::ShuttingDown {
                self.finish();
            }
            return self.step_without_nodes(now);
        };
        if self.has_left_with_host() {
            self.close_or_hand_over(now, shared);
            return false;
        }
        self.set_aside(now, shared);
        match &self.phase {
            Phase::Recovering(_) => self.step_in_recovering(now, shared),
            Phase::Gathering(_) => self.step_in_gathering(now, shared),
            Phase::Running(_) => self.step_in_running(now, shared),
            Phase::Regathering(_) => self.step_in_regathering(now, shared),
            Phase::Closed(_) => {
                self.finish_once_acknowledged(now);
                false
            }
        }
    }

    fn phase_deadline(&self) -> Option<Instant> {
        let Some(shared) = self.settings.shared else { return self.deadline_without_nodes() };
        let is_forming = matches!(self.phase, Phase::Gathering(_) | Phase::Regathering(_));
        let list = self.excluded_awaited_until.filter(|until| self.advanced < *until);
        if let Some(until) = self.memory.deadline(self.advanced).or(list).filter(|_| is_forming) {
            return Some(until);
        }
        match &self.phase {
            Phase::Recovering(recovering) => self.recovery_deadline(recovering, shared),
            Phase::Gathering(gathering) => self.gathering_deadline(gathering, shared),
            Phase::Running(running) => self.running_deadline(running, shared),
            Phase::Regathering(regathering) => self.regathering_deadline(regathering, shared),
            Phase::Closed(closed) => Some(self.closed_deadline(closed)),
        }
    }

    /// Updates the sets of ready and quarantined nodes for a node.
    fn index_readiness(&mut self, id: &NodeId) {
        let is_running_member = match &self.phase {
            Phase::Running(running) => running.group.held(id).is_some(),
            Phase::Recovering(_)
            | Phase::Gathering(_)
            | Phase::Regathering(_)
            | Phase::Closed(_) => false,
        };
        self.roster.index_readiness(id, is_running_member);
    }

    fn state(&self, id: &NodeId) -> Option<NodeState> {
        self.roster.get(id).map(|node| node.report.state)
    }

    fn host_name(&self, id: &NodeId) -> String {
        self.roster.get(id).map(|node| node.description.host_name.clone()).unwrap_or_default()
    }

    fn is_host(&self, id: &NodeId) -> bool {
        self.settings.host.as_ref() == Some(id)
    }

    fn send(&mut self, to: Peer, message: ToNode) {
        debug!(node = %to.node, ?message, "send");
        self.effects.push_back(Effect::Send { to, message });
    }

    fn remember(&mut self) {
        self.job_state.host_tallies = self.roster.host_tallies(self.clock);
        self.remember_time();
        self.effects.push_back(Effect::Remember(Box::new(self.job_state.clone())));
    }
}

/// Returns the state of a member by its own report; `None` if the report is about another round.
fn state_by_report(group: &Group, node: &RosterNode) -> Option<MemberState> {
    // In a recovery, a new agent takes over the rank of its machine's old agent, and has no round
    // of its own to report about.
    let speaks_of_it = node.report.round == group.round
        || group.started.is_none()
        || node.is_leaving()
        || node.missed_its_admission;
    // It runs no workers, but is not back: it must open another store first.
    let state = match node.missed_round {
        Some(_) => MemberState::Stopped,
        None => MemberState::of(node.report.state),
    };
    speaks_of_it.then_some(state)
}

/// Returns true if `ready` nodes are enough for a round.
fn is_enough(ready: usize, shared: SharedSettings) -> bool {
    ready >= shared.nodes.min() as usize
}
