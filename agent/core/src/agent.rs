//! Decides when this node joins, starts, stops and leaves.
//!
//! ```text
//!            store ready          admitted            all exited 0
//! Preparing ────────────▶ Ready ───────────▶ Running ──────────────▶ Succeeded
//!     ▲                                         │ failed | restart | evicted | lease lost
//!     └───────────── reaped ───────── Stopping ◀┘ (from Succeeded too: there is nothing to reap)
//!
//! a signal, from anywhere:  Leaving (workers end) ─▶ dismissed
//! the job closes:           Closing (workers end) ─▶ goodbye
//! ```
//!
//! It says in which [`Standing`] the node is whenever that changes, and again on every new stream;
//! the coordinator answers with what holds. It knows no process, no socket and no clock.

use std::{
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    ids::{GroupRank, JobUid, Round, RoundId, Term},
    message::{
        Admission, Assignment, EvictReason, FromNode, Heard, JobResult, NodeState, Outcome,
        REFUSED_CLIENTS_MAX, RefuseReason, RefusedClients, RestartReason, Standing, WaitReason,
        Welcome, WorkerFailure,
    },
    settings::Leases,
};

use crate::{limits, signal::Signal, supervisor::GroupEnd};

/// What must be done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Say this on the stream that counts; if there is none, it is said again on the next.
    Say(FromNode),
    /// Open a fresh worker store, beside the one that still serves, and say its port.
    OpenStore,
    /// Start the workers of a round, whose store is the one opened last if this is rank 0.
    Start(Box<Admission>),
    /// End the workers.
    Stop {
        /// What they are told.
        signal: Signal,
        /// How long they may take.
        grace: Duration,
    },
    /// End the workers at once.
    Kill,
    /// Tell the user what the node does now.
    Announce(News),
    /// This node's part is over, in this way.
    Finish(Ending),
}

/// What people want to read about.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum News {
    /// The node was admitted.
    Admitted(Box<Admission>),
    /// It is no longer a member.
    Evicted(RoundId, EvictReason),
    /// The coordinator's host leaves.
    HostLeaving,
    /// A round is over, for this reason.
    Restarting(RoundId, RestartReason),
    /// All its workers exited with 0; it waits for the others.
    Succeeded(RoundId),
    /// It waits, for this reason.
    Waiting(RoundId, WaitReason),
    /// One of its own workers failed.
    WorkerFailed(Box<WorkerFailure>),
    /// One of its own workers has failed before all others here, as their error files show.
    Cause(Box<WorkerFailure>),
    /// The store of the round has refused a client from this address.
    ClientRefused(RoundId, IpAddr),
}

/// How one node's part ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ending {
    /// The job is over.
    Closed(Outcome),
    /// The node was told to leave by this signal.
    Left(Signal),
    /// The coordinator does not take this node.
    Refused(RefuseReason),
    /// The coordinator could not be reached for as long as nodes wait for each other.
    Unreachable {
        /// For how long.
        waited: Duration,
        /// Whether it had been reached before.
        was_attended: bool,
    },
}

/// The exit code of an agent whose coordinator's host left or was lost and did not come back: starting
/// the same job again can succeed.
const HOST_GONE: u8 = 3;
/// The exit code of an agent that came after its job had failed for good: starting it again cannot
/// succeed.
pub const CLOSED_BEFORE: u8 = 4;

impl Ending {
    /// The exit code of an agent that ends in this way although its job has not succeeded, as in
    /// docs/exit-codes.md.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Unreachable { was_attended: true, .. } => HOST_GONE,
            Self::Closed(Outcome { result: JobResult::RecoveryTimeout { .. }, .. }) => HOST_GONE,
            Self::Refused(RefuseReason::Closed(outcome)) if outcome.result.is_lasting() => {
                CLOSED_BEFORE
            }
            Self::Closed(_)
            | Self::Left(_)
            | Self::Refused(_)
            | Self::Unreachable { was_attended: false, .. } => 1,
        }
    }
}

/// What holds on the node.
#[derive(Clone, Debug, Eq, PartialEq)]
enum State {
    /// Makes itself ready.
    Preparing,
    /// Ready, with this store.
    Ready { store_port: u16 },
    /// Workers run.
    Running,
    /// Workers are being ended.
    Stopping,
    /// All workers exited with 0.
    Succeeded,
    /// A signal has come.
    Leaving { signal: Signal, reaped: bool },
    /// The job is over; what is left of the workers is being ended.
    Closing(Box<Outcome>),
    /// Nothing is left to do.
    Finished,
}

/// What the machine is built from.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// How long workers may take to end, when a round is over and when this agent got a signal.
    pub stop_grace: Duration,
    /// How long nodes wait for each other, and so for their coordinator.
    pub join_timeout: Duration,
    /// What an earlier process of this node knew, if it left a state file.
    pub heard: Heard,
    /// Exempts workers from the lease: nothing can start a second group, because this process
    /// hosts the coordinator of a job of one node.
    pub runs_unleased: bool,
    /// How attendance is timed until a welcome names it.
    pub leases: Leases,
    /// Decides the jitter of dials; differs between the nodes of a job.
    pub seed: u64,
}

/// What the workers say of their progress.
#[derive(Debug, Default)]
struct Said {
    text: String,
    /// The coordinator has not heard it.
    is_due: bool,
    quiet_until: Option<Instant>,
}

/// One node's part in a job.
#[derive(Debug)]
pub struct Agent {
    settings: AgentSettings,
    state: State,
    /// The newest round in which this node was a member.
    round: RoundId,
    /// The failure of the oldest event here in that round, with ages as of that moment.
    failure: Option<(WorkerFailure, Instant)>,
    /// Whether the lease ended while workers of that round ran.
    was_cut_off: bool,
    heard: Heard,
    term: Term,
    job_uid: Option<JobUid>,
    restarts_used: u32,
    charged_through: Round,
    waiting: Option<(RoundId, WaitReason)>,
    /// Since when the coordinator has not been reached.
    unattended: Option<Instant>,
    /// Whether the coordinator may still count this node as alive.
    is_leased: bool,
    said: Said,
    /// Addresses that the store of `round` has refused, as far as this node knows.
    refused_clients: Vec<IpAddr>,
    effects: VecDeque<Effect>,
}

impl Agent {
    /// A node that has not attended yet.
    pub fn new(now: Instant, settings: AgentSettings) -> Self {
        Self {
            state: State::Preparing,
            round: RoundId::default(),
            failure: None,
            was_cut_off: false,
            heard: settings.heard,
            term: settings.heard.round.term,
            job_uid: None,
            restarts_used: 0,
            charged_through: Round(0),
            waiting: None,
            unattended: Some(now),
            is_leased: false,
            said: Said::default(),
            refused_clients: Vec::new(),
            effects: VecDeque::from([Effect::OpenStore]),
            settings,
        }
    }

    /// The newest round that this node has heard of.
    pub fn heard(&self) -> Heard {
        self.heard
    }

    /// The newest term that this node has heard of.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The run that this node belongs to, once it knows.
    pub fn job_uid(&self) -> Option<&JobUid> {
        self.job_uid.as_ref()
    }

    /// Failures charged to the job, and the last round charged, as far as this node knows.
    pub fn charges(&self) -> (u32, Round) {
        (self.restarts_used, self.charged_through)
    }

    /// Whether this node's part is over.
    pub fn is_finished(&self) -> bool {
        self.state == State::Finished
    }

    /// Whether this node has been told to leave, or its part is over.
    pub fn is_leaving(&self) -> bool {
        match self.state {
            State::Leaving { .. } | State::Closing(_) | State::Finished => true,
            State::Preparing
            | State::Ready { .. }
            | State::Running
            | State::Stopping
            | State::Succeeded => false,
        }
    }

    /// What holds on this node, as it is said to the coordinator at `now`.
    pub fn standing(&self, now: Instant) -> Standing {
        let state = match self.state {
            State::Preparing => NodeState::Preparing,
            State::Ready { store_port } => NodeState::Ready { store_port },
            State::Running => NodeState::Running,
            State::Stopping | State::Closing(_) => NodeState::Stopping,
            State::Succeeded => NodeState::Succeeded,
            State::Leaving { reaped, .. } => NodeState::Leaving { reaped },
            State::Finished => NodeState::Leaving { reaped: true },
        };
        let failure = self.failure.clone().map(|(mut failure, at)| {
            grow_older(&mut failure, now.saturating_duration_since(at));
            failure
        });
        Standing { round: self.round, state, failure, was_cut_off: self.was_cut_off }
    }

    /// A coordinator counts this node; what holds for it follows.
    ///
    /// What holds here is said once more, since it may have changed after the attend was sent.
    pub fn handle_welcome(&mut self, now: Instant, welcome: &Welcome) {
        self.term = self.term.max(welcome.term);
        self.job_uid = Some(welcome.job_uid.clone());
        self.unattended = None;
        self.is_leased = true;
        self.say_standing(now);
        if !self.said.text.is_empty() {
            self.pass_on(now);
        }
        if !self.refused_clients.is_empty() && self.serves_the_store() {
            self.say_refused_clients();
        }
    }

    /// Notes that the store that this node serves to `round` has refused a client.
    pub fn handle_client_refused(&mut self, round: Round, address: IpAddr) {
        if round == self.round.round && self.add_refused_client(address) {
            self.say_refused_clients();
        }
    }

    /// Notes the clients that the store of a round has refused, as the coordinator reports them.
    pub fn handle_refused_clients(&mut self, refused: RefusedClients) {
        if refused.round == self.round {
            refused.addresses.into_iter().for_each(|address| {
                self.add_refused_client(address);
            });
        }
    }

    /// The workers say how far they are; passed on at intervals, the newest only.
    pub fn handle_said(&mut self, now: Instant, text: String) {
        if self.state == State::Running && self.said.text != text {
            self.said.text = text;
            if self.said.quiet_until.is_none_or(|until| until <= now) {
                self.pass_on(now);
            } else {
                self.said.is_due = true;
            }
        }
    }

    /// The stream that counted is gone, and no other is there.
    pub fn handle_unattended(&mut self, now: Instant) {
        self.unattended.get_or_insert(now);
    }

    /// The lease is over: whatever runs here may not run.
    pub fn handle_lease_lost(&mut self) {
        self.is_leased = false;
        if self.settings.runs_unleased {
            return;
        }
        self.handle_cut_off();
        match self.state {
            State::Running | State::Stopping => {
                self.state = State::Stopping;
                self.effects.push_back(Effect::Kill);
            }
            State::Leaving { reaped: false, .. } => self.effects.push_back(Effect::Kill),
            State::Leaving { signal, reaped: true } => self.finish(Ending::Left(signal)),
            State::Preparing
            | State::Ready { .. }
            | State::Succeeded
            | State::Closing(_)
            | State::Finished => {}
        }
    }

    /// Notes that the keeper kills the workers because their lease is over: others may fail because of
    /// it, and no failure here is a cause.
    pub fn handle_cut_off(&mut self) {
        self.was_cut_off |= self.state == State::Running;
    }

    /// The coordinator does not take this node, and never will.
    pub fn handle_refused(&mut self, reason: RefuseReason) {
        let reason = match reason {
            RefuseReason::Closed(outcome)
                if self.job_uid.is_some() || outcome.result == JobResult::Succeeded =>
            {
                return self.close(outcome);
            }
            reason => reason,
        };
        match self.state {
            // It cannot be told, so it goes as soon as its workers have ended.
            State::Leaving { .. } | State::Closing(_) | State::Finished => {}
            State::Preparing
            | State::Ready { .. }
            | State::Running
            | State::Stopping
            | State::Succeeded => {
                self.effects.push_back(Effect::Kill);
                self.finish(Ending::Refused(reason));
            }
        }
    }

    /// Whoever was attended sends this node to another coordinator of the same job, and is of `term`
    /// itself; says whether the node goes.
    ///
    /// One that was in no round is bound to no run and no term. One that was is not sent by a term that
    /// is over.
    pub fn handle_sent_elsewhere(&mut self, now: Instant, term: Term) -> bool {
        if self.heard.round.round == Round(0) {
            self.term = Term::default();
            self.job_uid = None;
            self.waiting = None;
        } else if term < self.term {
            return false;
        }
        self.unattended.get_or_insert(now);
        true
    }

    /// The coordinator asks for a sign of life.
    pub fn handle_probe(&mut self, round: RoundId) {
        self.effects.push_back(Effect::Say(FromNode::Alive { round }));
    }

    /// The coordinator's host has been told to leave.
    pub fn handle_host_leaving(&mut self) {
        if !self.is_leaving() {
            self.announce(News::HostLeaving);
        }
    }

    /// What holds for this node, as the coordinator says.
    pub fn handle_assignment(&mut self, now: Instant, assignment: Assignment) {
        match assignment {
            Assignment::Wait { round, reason } => self.wait(round, reason),
            Assignment::Admit(admission) => self.admit(now, admission),
            Assignment::Restart { round, reason } => self.restart(now, round, reason),
            Assignment::Evict { round, reason } => self.evict(now, round, reason),
            Assignment::Dismiss => {
                if let State::Leaving { signal, reaped: true } = self.state {
                    self.effects.push_back(Effect::Say(FromNode::Goodbye));
                    self.finish(Ending::Left(signal));
                }
            }
            Assignment::Close(outcome) => self.close(outcome),
        }
    }

    /// A fresh worker store listens on this port.
    pub fn handle_store_open(&mut self, now: Instant, store_port: u16) {
        if self.state == State::Preparing {
            self.state = State::Ready { store_port };
            self.say_standing(now);
        }
    }

    /// A worker of this node failed; the supervisor is stopping the others.
    pub fn handle_failed(&mut self, now: Instant, failure: WorkerFailure) {
        if failure.round != self.round {
            return;
        }
        // What ends after the round was stopped is a victim, not a failure.
        if self.state == State::Running {
            self.announce(News::WorkerFailed(Box::new(failure.clone())));
            self.failure = Some((failure, now));
            self.state = State::Stopping;
            self.say_standing(now);
        }
    }

    /// Notes the failure of the oldest event among all workers of the round, known once they have ended.
    ///
    /// It replaces the one that was seen first: a worker may write its error file, close its connections
    /// and take its time to exit, and the others fail of that first.
    pub fn handle_cause(&mut self, now: Instant, cause: WorkerFailure) {
        if cause.round != self.round {
            return;
        }
        let known = self.failure.as_ref().map(|(failure, at)| {
            failure.event_age().saturating_add(now.saturating_duration_since(*at))
        });
        if known.is_none_or(|known| known <= cause.event_age()) {
            let is_other =
                |(known, _): &(WorkerFailure, Instant)| known.local_rank != cause.local_rank;
            if self.failure.as_ref().is_none_or(is_other) {
                self.announce(News::Cause(Box::new(cause.clone())));
            }
            self.failure = Some((cause, now));
        }
    }

    /// The worker group has ended, and nothing is left of it.
    pub fn handle_finished(&mut self, now: Instant, end: GroupEnd) {
        match (&self.state, end) {
            (State::Running, GroupEnd::Succeeded) => {
                self.state = State::Succeeded;
                self.announce(News::Succeeded(self.round));
                self.say_standing(now);
            }
            (State::Running | State::Stopping, _) => self.prepare(now),
            (&State::Leaving { signal, .. }, _) => self.reaped_to_leave(now, signal),
            (State::Closing(outcome), _) => {
                let outcome = Outcome::clone(outcome);
                self.say_goodbye(outcome);
            }
            (State::Preparing | State::Ready { .. } | State::Succeeded | State::Finished, _) => {}
        }
    }

    /// This process was told to end.
    pub fn handle_signal(&mut self, now: Instant, signal: Signal) {
        match self.state {
            State::Running | State::Stopping => {
                self.state = State::Leaving { signal, reaped: false };
                self.say_standing(now);
                let grace = self.settings.stop_grace;
                self.effects.push_back(Effect::Stop { signal, grace });
            }
            State::Preparing | State::Ready { .. } | State::Succeeded => {
                self.reaped_to_leave(now, signal);
            }
            // Who presses Ctrl-C again does not want to wait.
            State::Leaving { reaped: false, .. } | State::Closing(_) if signal == Signal::INT => {
                self.effects.push_back(Effect::Kill);
            }
            State::Leaving { .. } | State::Closing(_) | State::Finished => {}
        }
    }

    /// The earliest moment at which something is to be done.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_finished() {
            return None;
        }
        let gives_up = self.unattended.map(|since| since + self.settings.join_timeout);
        [gives_up, self.said.quiet_until.filter(|_| self.said.is_due)].into_iter().flatten().min()
    }

    /// Applies every moment that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.said.is_due && self.said.quiet_until.is_none_or(|until| until <= now) {
            self.pass_on(now);
        }
        let gives_up = self.unattended.map(|since| since + self.settings.join_timeout);
        if !self.is_finished() && gives_up.is_some_and(|at| at <= now) {
            let was_attended = self.job_uid.is_some();
            let waited = self.settings.join_timeout;
            self.effects.push_back(Effect::Kill);
            self.finish(Ending::Unreachable { waited, was_attended });
        }
    }

    /// Hands out what must be done, until nothing must.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn wait(&mut self, round: RoundId, reason: WaitReason) {
        if self.waiting != Some((round, reason)) {
            self.waiting = Some((round, reason));
            self.announce(News::Waiting(round, reason));
        }
    }

    fn admit(&mut self, now: Instant, admission: Admission) {
        match self.state {
            State::Ready { .. } if admission.round > self.round => {
                self.round = admission.round;
                self.failure = None;
                self.was_cut_off = false;
                self.refused_clients.clear();
                self.waiting = None;
                self.restarts_used = admission.restart_count;
                self.charged_through = admission.charged_through;
                self.heard = Heard {
                    round: admission.round,
                    size: admission.group_world_size,
                    group_rank: Some(admission.group_rank),
                };
                self.state = State::Running;
                self.announce(News::Admitted(Box::new(admission.clone())));
                self.say_standing(now);
                self.effects.push_back(Effect::Start(Box::new(admission)));
            }
            // A repetition, or it crossed with what this node has said meanwhile; saying it again
            // settles which of the two.
            State::Ready { .. } | State::Preparing | State::Leaving { .. } => {
                self.say_standing(now)
            }
            State::Running
            | State::Stopping
            | State::Succeeded
            | State::Closing(_)
            | State::Finished => {}
        }
    }

    fn restart(&mut self, now: Instant, round: RoundId, reason: RestartReason) {
        // A coordinator that was started anew speaks of the round under its own term.
        let concerns_this = round.round == self.round.round;
        match self.state {
            State::Running if concerns_this => {
                self.announce(News::Restarting(round, reason));
                self.state = State::Stopping;
                self.say_standing(now);
                let grace = self.settings.stop_grace;
                self.effects.push_back(Effect::Stop { signal: Signal::TERM, grace });
            }
            State::Succeeded if concerns_this => {
                self.announce(News::Restarting(round, reason));
                self.prepare(now);
            }
            State::Preparing
            | State::Ready { .. }
            | State::Running
            | State::Stopping
            | State::Succeeded
            | State::Leaving { .. } => self.say_standing(now),
            State::Closing(_) | State::Finished => {}
        }
    }

    fn evict(&mut self, now: Instant, round: RoundId, reason: EvictReason) {
        match self.state {
            State::Running => {
                self.announce(News::Evicted(round, reason));
                self.state = State::Stopping;
                self.effects.push_back(Effect::Kill);
                self.say_standing(now);
            }
            State::Stopping => self.effects.push_back(Effect::Kill),
            State::Succeeded => {
                self.announce(News::Evicted(round, reason));
                self.prepare(now);
            }
            State::Leaving { reaped: false, .. } => self.effects.push_back(Effect::Kill),
            // It runs nothing, and has said so.
            State::Preparing
            | State::Ready { .. }
            | State::Leaving { reaped: true, .. }
            | State::Closing(_)
            | State::Finished => {}
        }
    }

    fn close(&mut self, outcome: Outcome) {
        match self.state {
            State::Running => {
                let grace = self.settings.stop_grace;
                self.effects.push_back(Effect::Stop { signal: Signal::TERM, grace });
                self.state = State::Closing(Box::new(outcome));
            }
            State::Stopping | State::Leaving { reaped: false, .. } => {
                self.state = State::Closing(Box::new(outcome));
            }
            State::Preparing
            | State::Ready { .. }
            | State::Succeeded
            | State::Leaving { reaped: true, .. } => self.say_goodbye(outcome),
            State::Closing(_) | State::Finished => {}
        }
    }

    fn pass_on(&mut self, now: Instant) {
        self.said.is_due = false;
        self.said.quiet_until = Some(now + limits::SAID_INTERVAL);
        let text = self.said.text.clone();
        self.effects.push_back(Effect::Say(FromNode::Said { text }));
    }

    fn prepare(&mut self, now: Instant) {
        self.state = State::Preparing;
        if !self.said.text.is_empty() {
            self.said.text.clear();
            self.pass_on(now);
        }
        self.say_standing(now);
        self.effects.push_back(Effect::OpenStore);
    }

    fn reaped_to_leave(&mut self, now: Instant, signal: Signal) {
        if !self.is_leased {
            // Nobody counts on this node any more, and nobody can dismiss it.
            return self.finish(Ending::Left(signal));
        }
        self.state = State::Leaving { signal, reaped: true };
        self.say_standing(now);
    }

    fn say_goodbye(&mut self, outcome: Outcome) {
        self.effects.push_back(Effect::Say(FromNode::Goodbye));
        self.finish(Ending::Closed(outcome));
    }

    fn say_standing(&mut self, now: Instant) {
        let standing = self.standing(now);
        self.effects.push_back(Effect::Say(FromNode::Standing(standing)));
    }

    /// Returns true if this node is group rank 0 of its newest round.
    fn serves_the_store(&self) -> bool {
        self.heard.round == self.round && self.heard.group_rank == Some(GroupRank(0))
    }

    /// Returns true if the address is a new one.
    fn add_refused_client(&mut self, address: IpAddr) -> bool {
        let is_new = self.refused_clients.len() < REFUSED_CLIENTS_MAX
            && !self.refused_clients.contains(&address);
        if is_new {
            self.refused_clients.push(address);
            self.announce(News::ClientRefused(self.round, address));
        }
        is_new
    }

    fn say_refused_clients(&mut self) {
        let addresses = self.refused_clients.clone();
        let refused = RefusedClients { round: self.round, addresses };
        self.effects.push_back(Effect::Say(FromNode::RefusedClients(refused)));
    }

    fn announce(&mut self, news: News) {
        self.effects.push_back(Effect::Announce(news));
    }

    fn finish(&mut self, ending: Ending) {
        self.state = State::Finished;
        self.effects.push_back(Effect::Finish(ending));
    }
}

/// Adds `time` to both ages of a failure.
fn grow_older(failure: &mut WorkerFailure, time: Duration) {
    failure.age = failure.age.saturating_add(time);
    failure.error_file_age = failure.error_file_age.map(|age| age.saturating_add(time));
}

#[cfg(test)]
mod tests;
