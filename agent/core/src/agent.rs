//! Decides when this node joins, starts, stops and leaves.
//!
//! ```text
//!            store ready          admitted            all exited 0
//! Preparing ────────────▶ Ready ───────────▶ Running ──────────────▶ Succeeded
//!     ▲ ▲                   │                   │ failed | restart | evicted | lease lost
//!     │ └───────────────────┘                   │
//!     │  evicted | leaves its run               │
//!     └───────────── reaped ───────── Stopping ◀┘ (from Succeeded too: there is nothing to reap)
//!
//! a signal, from anywhere:  Leaving (workers end) ─▶ dismissed
//! the job closes:           Closing (workers end) ─▶ goodbye
//! ```
//!
//! The machine sends the node's [`NodeReport`] to the coordinator after each change and on every new stream.
//! The coordinator answers with an [`Assignment`](ragent_rendezvous::message::Assignment). The machine has no
//! process, socket or clock.

mod assignment;
mod effect;
mod import_gate;
mod local_group;
mod looks;
mod memory;
mod node_round;
mod notices;
mod reports;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    ids::{JobUid, Round, Term},
    message::{
        FromNode, JobResult, KnownRound, NodeReport, NodeState, Outcome, RefuseReason,
        StandbyCounts, ToNode, Welcome, WorkerFailure,
    },
    settings::{Leases, SharedSettings},
};

pub use self::effect::{
    Action, CLOSED_BEFORE, Effect, Ending, HOST_GONE, LEFT, NO_PROGRESS, News, REFUSED, SAVED,
};
pub use self::looks::LookOrder;
pub use self::notices::{NotTaken, NoticeEnd, Received, SavedHere, ShownNotice, Wanted};
use self::{import_gate::ImportGate, node_round::NodeRound, notices::Notices, reports::Paced};
pub use crate::wait_reports::WaitReport;
use crate::{
    health::NodeHealth,
    memory::{MemorySettings, NodeMemory},
    signal::Signal,
    wait_reports::WaitReports,
};

/// The state of the node.
#[derive(Clone, Debug, Eq, PartialEq)]
enum AgentState {
    /// The node makes itself ready.
    Preparing,
    /// The node is ready, with this store.
    Ready { store_port: u16 },
    /// Workers run.
    Running,
    /// Workers are being ended.
    Stopping,
    /// All workers exited with 0.
    Succeeded,
    /// A signal was received.
    Leaving { signal: Signal, reaped: bool },
    /// The job has ended, and the remaining workers are being ended.
    Closing(Box<Outcome>),
    /// Nothing is left to do.
    Finished,
}

/// The settings of an [`Agent`].
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// The settings of the job, the same on all nodes.
    pub shared: SharedSettings,
    /// No coordinator of a new job is elected before this time. An agent without a job waits this much
    /// longer.
    pub silence: Duration,
    /// The newest round known to an earlier process of this node, from its state file.
    pub known_round: KnownRound,
    /// Exempts workers from the lease. No second group can start, because this process hosts the coordinator
    /// of a job of one node.
    pub runs_unleased: bool,
    /// True if this node was started with a list of voters, so that another voter may be dialed. Otherwise a
    /// welcome may bring the list.
    pub has_voters: bool,
    /// True if standbys are prepared, and [`Agent::handle_standbys_settled`] follows.
    pub has_standbys: bool,
    /// The intervals and leases until a welcome names others.
    pub leases: Leases,
    /// The checkpoints in the memory of this node.
    pub memory: MemorySettings,
    /// The seed for the jitter of dials, different on each node of a job.
    pub seed: u64,
}

/// One node's part in a job.
#[derive(Debug)]
pub struct Agent {
    settings: AgentSettings,
    state: AgentState,
    coordinator: Coordinator,
    round: NodeRound,
    known_round: KnownRound,
    wait_reports: WaitReports,
    gate: ImportGate,
    health: NodeHealth,
    /// The port of the store that waits for the end of a check.
    unchecked_store: Option<u16>,
    /// The progress text of the workers.
    progress: Paced<String>,
    standbys: Paced<Option<StandbyCounts>>,
    notices: Notices,
    memory: NodeMemory,
    effects: VecDeque<Effect>,
}

/// The coordinator, as this node knows it. A welcome replaces all of it.
#[derive(Debug)]
struct Coordinator {
    /// The newest term that this node knows.
    term: Term,
    /// The run that this node belongs to, if known.
    job_uid: Option<JobUid>,
    /// The time at which it became unreachable; `None` while it is reached.
    unreached_since: Option<Instant>,
    /// True if its host has announced that it leaves.
    has_host_left: bool,
    /// True if it may still count this node as alive.
    is_leased: bool,
}

impl Agent {
    /// Creates a node that has not registered yet.
    pub fn new(now: Instant, settings: AgentSettings) -> Self {
        let coordinator = Coordinator {
            term: settings.known_round.round.term,
            job_uid: None,
            unreached_since: Some(now),
            has_host_left: false,
            is_leased: false,
        };
        Self {
            state: AgentState::Preparing,
            coordinator,
            round: NodeRound::default(),
            known_round: settings.known_round,
            wait_reports: WaitReports::default(),
            gate: ImportGate::new(settings.has_standbys),
            health: NodeHealth::default(),
            unchecked_store: None,
            progress: Paced::default(),
            standbys: Paced::default(),
            notices: Notices::default(),
            memory: NodeMemory::new(settings.memory.clone(), settings.seed),
            effects: VecDeque::from([Effect::Local(Action::OpenStore)]),
            settings,
        }
    }

    /// Returns the newest round that this node knows.
    pub fn known_round(&self) -> KnownRound {
        self.known_round
    }

    /// Returns the newest term that this node knows.
    pub fn term(&self) -> Term {
        self.coordinator.term
    }

    /// Returns the run that this node belongs to, if known.
    pub fn job_uid(&self) -> Option<&JobUid> {
        self.coordinator.job_uid.as_ref()
    }

    /// Returns the failures charged to the job and the last round charged, as this node knows them.
    pub fn charges(&self) -> (u32, Round) {
        self.round.charges
    }

    /// Returns the time at which this node gives up if the coordinator stays unreachable; `None` while it is reached.
    pub fn gives_up_at(&self) -> Option<Instant> {
        self.coordinator.unreached_since.map(|since| since + self.patience())
    }

    /// Returns true if this node's part is over.
    pub fn is_finished(&self) -> bool {
        self.state == AgentState::Finished
    }

    /// Returns true if this node received a signal to leave, or its part is over.
    pub fn is_leaving(&self) -> bool {
        match self.state {
            AgentState::Leaving { .. } | AgentState::Closing(_) | AgentState::Finished => true,
            AgentState::Preparing
            | AgentState::Ready { .. }
            | AgentState::Running
            | AgentState::Stopping
            | AgentState::Succeeded => false,
        }
    }

    /// Returns the report of this node, as it is sent at `now`.
    pub fn report(&self, now: Instant) -> NodeReport {
        let state = match self.state {
            AgentState::Preparing => NodeState::Preparing,
            AgentState::Ready { store_port } => NodeState::Ready { store_port },
            AgentState::Running => NodeState::Running,
            AgentState::Stopping | AgentState::Closing(_) => NodeState::Stopping,
            AgentState::Succeeded => NodeState::Succeeded,
            AgentState::Leaving { reaped, .. } => NodeState::Leaving { reaped },
            AgentState::Finished => NodeState::Leaving { reaped: true },
        };
        let failure = self.round.failure.clone().map(|(mut failure, at)| {
            grow_older(&mut failure, now.saturating_duration_since(at));
            Box::new(failure)
        });
        NodeReport {
            round: self.round.id,
            state,
            failure,
            lease_expired: self.round.lease_expired,
            notice: self.notices.of_node(now),
            saved: self.notices.answer(),
            requests: self.notices.requests,
            unhealthy: self.health.unhealthy.clone().map(Box::new),
            memory_unusable: self.memory.unusable().cloned().map(Box::new),
        }
    }

    /// Notes that a coordinator has welcomed this node. An assignment follows.
    ///
    /// The report is sent once more, because it may have changed after the registration was sent.
    pub(crate) fn handle_welcome(&mut self, now: Instant, welcome: &Welcome) {
        self.coordinator = Coordinator {
            term: self.coordinator.term.max(welcome.term),
            job_uid: Some(welcome.job_uid.clone()),
            unreached_since: None,
            has_host_left: false,
            is_leased: true,
        };
        self.start_gate_timeout(now);
        // The parts count before the report, which may complete a round.
        self.send_memory_report(true);
        self.send_report(now);
        if !self.progress.newest.is_empty() {
            self.send_progress(now);
        }
        self.send_standbys(now);
        if !self.round.refused_clients.is_empty() && self.serves_the_store() {
            self.send_refused_clients();
        }
        self.send_unreached_store();
        self.send_digests();
    }

    /// Notes that the current stream has ended and has no successor yet.
    pub(crate) fn handle_disconnected(&mut self, now: Instant) {
        self.coordinator.unreached_since.get_or_insert(now);
    }

    /// Handles a refusal by the coordinator. It is final, except [`RefuseReason::EarlierRun`] for a node
    /// whose run has formed no round: a host without its state file may have begun that run, so the node
    /// leaves the run.
    pub(crate) fn handle_refused(&mut self, reason: RefuseReason) {
        let reason = match reason {
            RefuseReason::EarlierRun
                if self.coordinator.job_uid.is_some() && !self.is_bound_to_a_run() =>
            {
                return self.forget_run();
            }
            RefuseReason::Closed(outcome)
                if self.coordinator.job_uid.is_some() || outcome.result == JobResult::Succeeded =>
            {
                return self.close(outcome);
            }
            reason => reason,
        };
        self.end_at_once(Ending::Refused(reason));
    }

    /// Ends this node's part, because another job of this name goes on, which is led at `endpoint`.
    pub fn handle_other_job(&mut self, endpoint: String, born_ms: u64) {
        self.end_at_once(Ending::Closed(Outcome {
            result: JobResult::OtherJob { endpoint, born_ms: Some(born_ms) },
            first_failure: None,
            other_failures: 0,
            further_failures: Vec::new(),
            restarts_used: self.round.charges.0,
            complete_step: None,
        }));
    }

    /// Ends this node's part: its job has ended while it had no coordinator. `outcome` is the job's outcome,
    /// if known.
    pub fn handle_outlived(&mut self, outcome: Option<Outcome>) {
        self.end_at_once(outcome.map_or(Ending::Outlived, Ending::Closed));
    }

    /// Kills the workers, and ends this node's part.
    fn end_at_once(&mut self, ending: Ending) {
        match self.state {
            // No coordinator takes a message from this node, so it leaves as soon as its workers have ended.
            AgentState::Leaving { .. } | AgentState::Closing(_) | AgentState::Finished => {}
            AgentState::Preparing
            | AgentState::Ready { .. }
            | AgentState::Running
            | AgentState::Stopping
            | AgentState::Succeeded => {
                self.act(Action::Kill);
                self.finish(ending);
            }
        }
    }

    /// Notes that the process at the other end, with the term `term`, names another coordinator of the same
    /// job. Returns true if the node follows.
    ///
    /// A node that was in no round is bound to no run and no term. Other nodes do not follow a process if its
    /// term is outdated.
    pub(crate) fn handle_sent_elsewhere(&mut self, now: Instant, term: Term) -> bool {
        if !self.is_bound_to_a_run() {
            self.forget_run();
        } else if term < self.coordinator.term {
            return false;
        }
        self.coordinator.unreached_since.get_or_insert(now);
        true
    }

    /// Returns true if this node is bound to a run: it knows a round.
    pub fn is_bound_to_a_run(&self) -> bool {
        self.known_round.round.round != Round(0)
    }

    fn forget_run(&mut self) {
        if self.coordinator.job_uid.is_some() {
            // It may have been in the first round of that run without its knowledge.
            self.replace_offered_store();
        }
        self.coordinator.term = Term::default();
        self.coordinator.job_uid = None;
        self.round.waiting = None;
    }

    /// Handles a message that counts only on the current stream.
    pub(crate) fn handle_message(&mut self, now: Instant, message: ToNode) {
        match message {
            ToNode::Probe { round } => {
                self.effects.push_back(Effect::Send(FromNode::Alive { round }));
            }
            ToNode::Assignment(assignment) => self.handle_assignment(now, assignment),
            ToNode::HostLeaving => self.handle_host_leaving(),
            ToNode::Guidance(guidance) => self.handle_guidance(now, guidance),
            ToNode::RefusedClients(refused) => self.handle_refused_clients(refused),
            // These count on each stream, and have handlers of their own.
            ToNode::Welcome(_) | ToNode::Refuse(_) | ToNode::Echo { .. } | ToNode::Voters(_) => {}
        }
    }

    /// Notes that the coordinator's host is about to leave.
    fn handle_host_leaving(&mut self) {
        self.coordinator.has_host_left = true;
        if !self.is_leaving() {
            self.announce(News::HostLeaving);
        }
    }

    /// Notes that a new worker store listens on this port.
    pub fn handle_store_open(&mut self, now: Instant, store_port: u16) {
        if self.state == AgentState::Preparing {
            self.pass_gate(now, store_port);
        }
    }

    /// Notes the health of this node. It takes part in no new round while a check runs.
    pub fn handle_health(&mut self, now: Instant, health: NodeHealth) {
        let before = std::mem::replace(&mut self.health, health);
        if before.unhealthy != self.health.unhealthy && !self.is_finished() {
            self.send_report(now);
        }
        if !self.health.is_checking
            && let Some(port) = self.unchecked_store.take()
            && self.state == AgentState::Preparing
        {
            self.pass_gate(now, port);
        }
    }

    /// Notes a signal that asks this process to end.
    pub fn handle_signal(&mut self, now: Instant, signal: Signal) {
        match self.state {
            AgentState::Running | AgentState::Stopping => {
                self.note_leaving();
                self.state = AgentState::Leaving { signal, reaped: false };
                self.send_report(now);
                let grace = self.settings.shared.timeouts.stop_grace;
                self.act(Action::Stop { signal, grace });
            }
            AgentState::Preparing | AgentState::Ready { .. } | AgentState::Succeeded => {
                self.note_leaving();
                self.reaped_to_leave(now, signal);
            }
            // A second Ctrl-C means that the user does not want to wait.
            AgentState::Leaving { reaped: false, .. } | AgentState::Closing(_)
                if signal == Signal::INT =>
            {
                self.act(Action::Kill);
            }
            AgentState::Leaving { .. } | AgentState::Closing(_) | AgentState::Finished => {}
        }
    }

    /// Returns the earliest deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.is_finished() {
            return None;
        }
        let gives_up = self.gives_up_at();
        let (progress, standbys) = (self.progress.poll_timeout(), self.standbys.poll_timeout());
        let (notice, look) = (self.notice_deadline(), self.look_deadline());
        let (gate, memory) = (self.gate.poll_timeout(), self.memory.poll_timeout());
        let deadlines = [gives_up, progress, standbys, gate, notice, look, memory];
        deadlines.into_iter().flatten().min()
    }

    /// Applies every deadline that has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.progress.poll_timeout().is_some_and(|due| due <= now) {
            self.send_progress(now);
        }
        if self.standbys.poll_timeout().is_some_and(|due| due <= now) {
            self.send_standbys(now);
        }
        self.handle_gate_timeout(now);
        self.handle_notice_timeout(now);
        self.handle_look_timeout(now);
        self.change_memory(now, |memory| memory.handle_timeout(now));
        if !self.is_finished() && self.gives_up_at().is_some_and(|at| at <= now) {
            let was_registered = self.coordinator.job_uid.is_some();
            let waited = self.patience();
            self.act(Action::Kill);
            let has_left = self.coordinator.has_host_left;
            let complete_step = self.notices.complete_step;
            self.finish(Ending::Unreachable { waited, was_registered, has_left, complete_step });
        }
    }

    /// Returns the next effect; `None` if there are none.
    pub(crate) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the time without a coordinator after which this node gives up.
    fn patience(&self) -> Duration {
        let silence =
            if self.coordinator.job_uid.is_none() { self.settings.silence } else { Duration::ZERO };
        self.settings.shared.timeouts.join.saturating_add(silence)
    }

    fn prepare(&mut self, now: Instant) {
        self.change_memory(now, |memory| memory.handle_round_over(now));
        self.remove_notice();
        if self.notices.is_leaving() {
            // The round that the notice was about is over.
            return self.reaped_to_leave(now, Signal::TERM);
        }
        self.state = AgentState::Preparing;
        self.unchecked_store = None;
        if !self.progress.newest.is_empty() {
            self.progress.newest.clear();
            self.send_progress(now);
        }
        self.send_report(now);
        self.act(Action::OpenStore);
    }

    /// Replaces the store that this node offers for the next round, if it offers one: workers of other nodes may have connected to it.
    fn replace_offered_store(&mut self) {
        if matches!(self.state, AgentState::Ready { .. }) {
            self.state = AgentState::Preparing;
            self.act(Action::OpenStore);
        }
    }

    fn reaped_to_leave(&mut self, now: Instant, signal: Signal) {
        if !self.coordinator.is_leased {
            // The coordinator no longer counts this node, so no dismissal will follow.
            return self.finish_left(signal);
        }
        self.state = AgentState::Leaving { signal, reaped: true };
        self.send_report(now);
    }

    fn finish_left(&mut self, signal: Signal) {
        let signal = (!self.notices.is_leaving()).then_some(signal);
        self.finish(Ending::Left { signal, saved_step: self.notices.left_after });
    }

    fn finish_closed(&mut self, outcome: Outcome) {
        self.effects.push_back(Effect::Send(FromNode::Goodbye));
        self.finish(Ending::Closed(outcome));
    }

    fn send_report(&mut self, now: Instant) {
        let report = self.report(now);
        self.effects.push_back(Effect::Send(FromNode::NodeReport(report)));
    }

    fn act(&mut self, action: Action) {
        self.effects.push_back(Effect::Local(action));
    }

    fn announce(&mut self, news: News) {
        self.act(Action::Announce(news));
    }

    fn finish(&mut self, ending: Ending) {
        self.state = AgentState::Finished;
        self.act(Action::Finish(ending));
    }
}

/// Adds `time` to all ages of a failure.
fn grow_older(failure: &mut WorkerFailure, time: Duration) {
    failure.age = failure.age.saturating_add(time);
    failure.error_file_age = failure.error_file_age.map(|age| age.saturating_add(time));
    for fact in &mut failure.hardware {
        fact.age = fact.age.map(|age| age.saturating_add(time));
    }
}
