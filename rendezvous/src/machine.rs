//! Decides as a state machine which nodes form the next worker group, and when the job is over.
//!
//! Each input is handled in three steps:
//!
//! 1. It is recorded (in the roster of [`Job`], or in the [`Group`]).
//! 2. The phase moves as far as it can ([`Rendezvous::advance`]).
//! 3. Each node concerned receives its assignment, if that has changed ([`Rendezvous::sync`]).
//!
//! The modules below have the conditions and steps of each phase. They change the [`Job`], and write what follows to [`Effects`].

mod accepting;
mod assignment;
mod closing;
mod departing;
mod failing;
mod free_rounds;
mod gathering;
mod guidance;
mod handing_over;
mod journal;
mod recovering;
mod regathering;
mod registering;
mod running;
mod setting_aside;
#[cfg(test)]
mod tests;
mod view;
mod voters;

use std::{
    mem,
    sync::OnceLock,
    time::{Duration, Instant},
};

use registering::Welcomed;
pub use setting_aside::ExcludedHosts;
use tracing::{debug, info};
use voters::SilentVoters;

use crate::{
    departures::Departures,
    effect::Effect,
    effects::Effects,
    flapping::RestartSpacing,
    grant::Grant,
    group::{Group, MemberState},
    health::JobHealth,
    ids::{NodeId, Peer, Round, RoundId, Term},
    job::{Availability, Job},
    memory::JobMemory,
    message::{EvictReason, FromNode, NodeState, Registration, RestartReason, ToNode},
    notices::JobNotices,
    phase::{Gathering, Phase, Recovering},
    progress::TrainingProgress,
    roster::RosterNode,
    settings::{JobState, Settings, SharedSettings},
    snapshot::{Explanation, NodeCounts},
    stalls::JobStalls,
};

/// The state machine that decides which nodes form the next worker group, and when the job is over.
#[derive(Debug)]
pub struct Rendezvous {
    job: Job,
    /// What the driver must do next.
    out: Effects,
    /// Nodes that were welcomed, but have not reported their state since.
    welcomed: Welcomed,
    departures: Departures,
    /// The numbers of nodes. Each input that may change them clears the value.
    counted: OnceLock<NodeCounts>,
    spacing: RestartSpacing,
    health: JobHealth,
    progress: TrainingProgress,
    silent_voters: SilentVoters,
    memory: JobMemory,
    notices: JobNotices,
    stalls: JobStalls,
}

impl Rendezvous {
    /// Starts a term of the job with the state `job_state`, for as long as `grant` lasts.
    pub fn new(
        now: Instant,
        settings: Settings,
        job_state: JobState,
        grant: Option<Grant>,
    ) -> Self {
        let term = grant.as_ref().map_or_else(|| job_state.term.next(), |grant| grant.term);
        let mut job_state = JobState { term, ..job_state };
        let phase = if job_state.round == Round(0) && job_state.closed.is_none() {
            Phase::Gathering(Gathering::default())
        } else {
            let last = RoundId { term: Term(0), round: job_state.round };
            Phase::Recovering(Recovering::new(now, last, job_state.round_size))
        };
        let phase = recovering::without_former(phase, now, &job_state, grant.as_ref());
        // An elected coordinator is on another host than the lost one.
        let has_lost_host = grant.is_none()
            && job_state.host.is_some()
            && job_state.is_early
            && job_state.closed.is_none();
        info!(term = %job_state.term, round = %job_state.round, "coordinator started");
        let (memory, notices) = (JobMemory::new(&job_state), JobNotices::new(&job_state));
        let progress = TrainingProgress::new(now, &mut job_state);
        let job = Job { grant, phase, has_lost_host, ..Job::new(now, settings, job_state) };
        let mut rendezvous = Self {
            job,
            welcomed: Welcomed::default(),
            departures: Departures::default(),
            counted: OnceLock::new(),
            spacing: RestartSpacing::default(),
            health: JobHealth::default(),
            out: Effects::default(),
            progress,
            silent_voters: SilentVoters::default(),
            memory,
            notices,
            stalls: JobStalls::default(),
        };
        rendezvous.job.roster.restore_tallies(now, &rendezvous.job.state.host_tallies);
        rendezvous.record_start(now);
        rendezvous.out.remember();
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
        if self.job.roster.is_late(&peer) {
            debug!(node = %peer.node, stream = %peer.stream, "outdated registration dropped");
            return;
        }
        if self.is_of_job_elsewhere(&registration) {
            info!(node = %peer.node, "the node belongs to a job that began elsewhere");
            self.out.queue.push_back(Effect::HangUp { to: peer });
            return;
        }
        if let Some(reason) = self.why_refused(&registration) {
            info!(node = %peer.node, reason = reason.name(), "node refused");
            let host_name = &registration.node.host_name;
            self.out.record_refusal(&self.job, &peer.node, host_name, reason.name());
            self.out.send(peer, ToNode::Refuse(reason));
            return;
        }
        self.job.settings.shared.get_or_insert(registration.settings);
        self.adopt(&registration);
        // Claims of a node of another run do not count: it could claim any round and any charges.
        if self.is_of_this_run(&registration) {
            self.learn(now, &registration);
        }
        match self.job.grant {
            _ if self.job.availability == Availability::Ended => {}
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
        if !self.job.roster.renew(now, &from) {
            debug!(
                node = %from.node, stream = %from.stream,
                "message of a replaced stream dropped"
            );
            return;
        }
        let id = &from.node;
        match message {
            FromNode::KeepAlive { sequence, asks_reason, progress, checkpoint, save_failed } => {
                if let Some(progress) = progress {
                    self.record_steps(now, id, &progress);
                }
                self.progress.record_failed_save(&self.job, id, save_failed, &mut self.out);
                if let Some(checkpoint) = checkpoint {
                    let out = &mut self.out;
                    self.progress.record_checkpoint(&self.job, id, &checkpoint, out);
                }
                let reason = asks_reason.then(|| self.incomplete(now)).flatten();
                let reason = reason.as_ref().map(Explanation::from);
                let lease_left = self.lease_left(now);
                let memory_whole = self.memory.whole(&self.job);
                self.out.send(from, ToNode::Echo { sequence, reason, lease_left, memory_whole });
                return;
            }
            FromNode::Progress { text } => {
                return self.job.roster.record_progress(id, text);
            }
            FromNode::Standbys(standbys) => return self.job.roster.record_standbys(id, standbys),
            FromNode::RefusedClients(refused) => return self.note_refused_clients(id, &refused),
            // The driver keeps it for the status of the job.
            FromNode::StoreUnreached(_) => return,
            FromNode::MemoryReport(report) => return self.handle_memory_report(now, id, report),
            FromNode::Digest(digest) => return self.handle_digest(now, id, digest),
            FromNode::Alive { round } => self.record_sign_of_life(id, round),
            FromNode::NodeReport(report) => {
                debug!(node = %id, round = %report.round, state = ?report.state, "report");
                if !self.job.roster.record_report_on_stream(now, id, report) {
                    debug!(node = %id, "report of an older round dropped");
                    return;
                }
                self.on_report(now, id);
            }
            FromNode::Goodbye => self.on_goodbye(now, id),
        }
        self.advance(now);
        self.sync(id);
    }

    /// Handles the end of a stream, which proves nothing about its node.
    pub fn handle_detached(&mut self, now: Instant, from: Peer) {
        if !self.begin(now) {
            return;
        }
        if let Some(node) =
            self.job.roster.get_mut(&from.node).filter(|node| node.stream == from.stream)
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
        if !self.begin(now) || matches!(self.job.phase, Phase::Closed(_)) {
            return;
        }
        info!("coordinator shutting down");
        if self.job.grant.is_some() {
            self.hand_over();
            return;
        }
        self.leave(Availability::ShuttingDown);
        if self.job.phase.running().is_some() {
            self.end_round(now, RestartReason::HostLeft);
        }
        self.advance(now);
    }

    /// Returns the end of this process's leadership; `None` if it has no end.
    fn grant_until(&self) -> Option<Instant> {
        self.job.grant.as_ref().map(|grant| grant.until)
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
        if let Some(grant) = &mut self.job.grant {
            grant.until = grant.until.max(until);
        }
        self.begin_routine(now);
    }

    /// Handles all deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.begin(now) {
            return;
        }
        while let Some(node) = self.job.roster.expired(now) {
            self.on_lost(now, &node, EvictReason::Silent);
        }
        self.drop_silent(now);
        self.forgive(now);
        self.job.roster.grow_up(Some(now));
        self.advance(now);
        if self.progress.must_store(&self.job) {
            self.forgive_charges(now);
            self.out.remember();
        }
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.job.availability == Availability::Ended {
            return None;
        }
        let forgiven = self.job.roster.quarantined().first().map(|(at, _)| *at);
        let (until, silent) = (self.grant_until(), self.welcomed.first_until());
        let grown_up = self.job.roster.young().first().map(|(at, _)| *at);
        let (lease, phase, account) =
            (self.job.roster.first_lease(), self.phase_deadline(), self.progress.due(&self.job));
        let deadlines = [lease, forgiven, grown_up, phase, until, silent, account];
        deadlines.into_iter().flatten().min()
    }

    /// Returns the next effect to be carried out.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        match &mut self.out.remember_after {
            Some(0) => {
                self.out.remember_after = None;
                return Some(Effect::Remember(Box::new(self.kept_state())));
            }
            Some(before) => *before -= 1,
            None => {}
        }
        self.out.queue.pop_front()
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
        debug_assert!(self.job.clock <= now, "time does not go back");
        self.job.clock = self.job.clock.max(now);
        self.out.trigger = None;
        let is_over = self.grant_until().is_some_and(|until| until <= now);
        if is_over && self.job.availability != Availability::Ended {
            info!(term = %self.job.state.term, "the right to coordinate is over");
            self.job.availability = Availability::Ended;
            self.out.coordinator_ended(&self.job, false);
            self.out.queue.push_back(Effect::Finish { is_over: false });
        }
        self.job.availability != Availability::Ended
    }

    /// Applies the state that a node has reported.
    fn on_report(&mut self, now: Instant, id: &NodeId) {
        self.note_requests(now, id);
        self.memory.note_kill(&self.job, id, &mut self.out);
        self.health.note_recovery(&self.job, id, &mut self.out);
        match &self.job.phase {
            Phase::Recovering(_) | Phase::Gathering(_) | Phase::Closed(_) => {}
            Phase::Running(_) => self.on_report_in_running(now, id),
            Phase::Regathering(_) => self.on_report_in_regathering(id),
        }
        self.index_readiness(id);
        if !self.is_sole_host(id) || matches!(self.job.phase, Phase::Closed(_)) {
            return;
        }
        if let Some(NodeState::Leaving { reaped }) = self.state(id) {
            self.leave(Availability::HostLeaving);
            if reaped && self.job.phase.running().is_some() {
                self.end_round(now, RestartReason::HostLeft);
            }
        }
    }

    /// Moves the phase as far as possible, then sends the assignments that have changed.
    fn advance(&mut self, now: Instant) {
        self.job.advanced = self.job.advanced.max(now);
        while self.job.availability != Availability::Ended && self.step(now) {}
        if mem::take(&mut self.job.has_news) {
            self.sync_all();
        }
        self.follow_stall(now);
        self.send_new_guidance(now);
        self.follow_phase(now);
    }

    /// Enters `phase`, which may change the assignment of every node.
    fn enter(&mut self, phase: Phase) {
        self.job.phase = phase;
        self.job.has_news = true;
    }

    /// Takes one step, if the phase can be left or something in it is overdue. Returns true if
    /// another may follow.
    fn step(&mut self, now: Instant) -> bool {
        let Some(shared) = self.job.settings.shared else {
            if self.job.availability == Availability::ShuttingDown {
                self.finish();
            }
            return self.step_without_nodes(now);
        };
        if self.has_left_with_host() {
            self.close_or_hand_over(now, shared);
            return false;
        }
        self.set_aside(shared);
        match &self.job.phase {
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
        let Some(shared) = self.job.settings.shared else { return self.deadline_without_nodes() };
        let is_forming = matches!(self.job.phase, Phase::Gathering(_) | Phase::Regathering(_));
        let list = self.health.list_awaited_until(self.job.advanced);
        if let Some(until) =
            self.memory.parts_awaited_until(self.job.advanced).or(list).filter(|_| is_forming)
        {
            return Some(until);
        }
        match &self.job.phase {
            Phase::Recovering(recovering) => self.recovery_deadline(recovering, shared),
            Phase::Gathering(gathering) => self.gathering_deadline(gathering, shared),
            Phase::Running(running) => self.running_deadline(running, shared),
            Phase::Regathering(regathering) => self.regathering_deadline(regathering, shared),
            Phase::Closed(closed) => Some(self.closed_deadline(closed)),
        }
    }

    /// Updates the sets of ready and quarantined nodes for a node.
    fn index_readiness(&mut self, id: &NodeId) {
        let running = self.job.phase.running();
        let is_running_member = running.is_some_and(|running| running.group.held(id).is_some());
        self.job.roster.index_readiness(id, is_running_member);
    }

    fn state(&self, id: &NodeId) -> Option<NodeState> {
        self.job.roster.get(id).map(|node| node.report.state)
    }

    /// Returns the state from which the next coordinator goes on.
    fn kept_state(&mut self) -> JobState {
        let now = self.job.clock;
        let host_tallies = self.job.roster.host_tallies(now);
        let mut state = JobState { host_tallies, ..self.job.state.clone() };
        self.progress.keep(now, &mut state);
        self.memory.keep(&mut state);
        self.notices.keep(&mut state);
        state
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
