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
//! It sends the node's [`Standing`] to the coordinator after each change and on every new stream;
//! the coordinator answers with an [`Assignment`]. It has no process, socket or clock.

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

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Send this message on the current stream. It is not kept while there is none: each new stream
    /// begins with the state at that time.
    Say(FromNode),
    /// Open a fresh worker store, in addition to the one in service, and report its port.
    OpenStore,
    /// Start the workers of a round; group rank 0 serves the store opened last.
    Start(Box<Admission>),
    /// End the workers.
    Stop {
        /// The signal to send them.
        signal: Signal,
        /// The time that they have to end.
        grace: Duration,
    },
    /// Kill the workers.
    Kill,
    /// Report news to the user.
    Announce(News),
    /// End this node's part, in this way.
    Finish(Ending),
}

/// An event that is reported to the user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum News {
    /// The node was admitted.
    Admitted(Box<Admission>),
    /// The node is no longer a member.
    Evicted(RoundId, EvictReason),
    /// The coordinator's host leaves.
    HostLeaving,
    /// A round has ended, for this reason.
    Restarting(RoundId, RestartReason),
    /// All workers of this node exited with 0; the node waits for the others.
    Succeeded(RoundId),
    /// The node waits, for this reason.
    Waiting(RoundId, WaitReason),
    /// A worker of this node failed.
    WorkerFailed(Box<WorkerFailure>),
    /// A worker of this node failed before all others of the node, as their error files show.
    Cause(Box<WorkerFailure>),
    /// The store of the round has refused a client from this address.
    ClientRefused(RoundId, IpAddr),
}

/// The way in which one node's part ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ending {
    /// The job is over.
    Closed(Outcome),
    /// The node left because of this signal.
    Left(Signal),
    /// The coordinator refused this node.
    Refused(RefuseReason),
    /// The coordinator could not be reached for as long as nodes wait for each other.
    Unreachable {
        /// The time without a connection.
        waited: Duration,
        /// True if the coordinator had been reached before.
        was_attended: bool,
    },
}

/// The exit code of an agent whose coordinator's host left or was lost and did not come back.
/// Starting the same job again can succeed.
const HOST_GONE: u8 = 3;
/// The exit code of an agent that registered after its job had failed for good. Starting it again
/// cannot succeed.
pub const CLOSED_BEFORE: u8 = 4;

impl Ending {
    /// Returns true if the job has succeeded.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Closed(outcome) if outcome.result == JobResult::Succeeded)
    }

    /// Returns the exit code for an ending without success, as listed in docs/exit-codes.md.
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

/// The state of the node.
#[derive(Clone, Debug, Eq, PartialEq)]
enum State {
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
    /// The job has ended; the remaining workers are being ended.
    Closing(Box<Outcome>),
    /// Nothing is left to do.
    Finished,
}

/// The settings of an [`Agent`].
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// The time that workers have to end when a round has ended or this agent received a signal.
    pub stop_grace: Duration,
    /// The time for which nodes wait for each other, and so for their coordinator.
    pub join_timeout: Duration,
    /// The newest round known to an earlier process of this node, from its state file.
    pub heard: Heard,
    /// Exempts workers from the lease: nothing can start a second group, because this process
    /// hosts the coordinator of a job of one node.
    pub runs_unleased: bool,
    /// The intervals and leases in use until a welcome names others.
    pub leases: Leases,
    /// The seed for the jitter of dials; differs between the nodes of a job.
    pub seed: u64,
}

/// The progress text of the workers.
#[derive(Debug, Default)]
struct Said {
    text: String,
    /// True if the coordinator has not received the text yet.
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
    /// The failure of the oldest event on this node in that round, with ages as of that moment.
    failure: Option<(WorkerFailure, Instant)>,
    /// True if the lease ended while workers of that round ran.
    was_cut_off: bool,
    heard: Heard,
    term: Term,
    job_uid: Option<JobUid>,
    restarts_used: u32,
    charged_through: Round,
    waiting: Option<(RoundId, WaitReason)>,
    /// The time at which the coordinator became unreachable; `None` while it is reached.
    unattended: Option<Instant>,
    /// True if the coordinator may still count this node as alive.
    is_leased: bool,
    said: Said,
    /// Addresses that the store of `round` has refused, as far as this node knows.
    refused_clients: Vec<IpAddr>,
    effects: VecDeque<Effect>,
}

impl Agent {
    /// Creates a node that has not registered yet.
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

    /// Returns the newest round that this node knows of.
    pub fn heard(&self) -> Heard {
        self.heard
    }

    /// Returns the newest term that this node knows of.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Returns the run that this node belongs to, if known.
    pub fn job_uid(&self) -> Option<&JobUid> {
        self.job_uid.as_ref()
    }

    /// Returns the failures charged to the job and the last round charged, as far as this node
    /// knows.
    pub fn charges(&self) -> (u32, Round) {
        (self.restarts_used, self.charged_through)
    }

    /// Returns true if this node's part is over.
    pub fn is_finished(&self) -> bool {
        self.state == State::Finished
    }

    /// Returns true if this node received a signal to leave, or its part is over.
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

    /// Returns this node's standing, as reported to the coordinator at `now`.
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

    /// Notes that a coordinator has welcomed this node; an assignment follows.
    ///
    /// The standing is sent once more, since it may have changed after the attend was sent.
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

    /// Notes the workers' progress text. Only the newest text is sent, at intervals.
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

    /// Notes that the current stream has ended and has no successor yet.
    pub fn handle_unattended(&mut self, now: Instant) {
        self.unattended.get_or_insert(now);
    }

    /// Notes that the lease is over: no worker may run on this node.
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

    /// Notes that the keeper kills the workers because their lease is over. Other workers may fail
    /// as a consequence, and no failure on this node is a cause.
    pub fn handle_cut_off(&mut self) {
        self.was_cut_off |= self.state == State::Running;
    }

    /// Notes that the coordinator has refused this node for good.
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
            // The coordinator takes no message from this node, so it leaves as soon as its workers
            // have ended.
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

    /// Notes that the process at the other end, whose term is `term`, names another coordinator of
    /// the same job; returns true if the node follows.
    ///
    /// A node that was in no round is bound to no run and no term. Other nodes do not follow a
    /// process whose term has been replaced.
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

    /// Notes that the coordinator asks for a sign of life.
    pub fn handle_probe(&mut self, round: RoundId) {
        self.effects.push_back(Effect::Say(FromNode::Alive { round }));
    }

    /// Notes that the coordinator's host is about to leave.
    pub fn handle_host_leaving(&mut self) {
        if !self.is_leaving() {
            self.announce(News::HostLeaving);
        }
    }

    /// Applies the coordinator's assignment for this node.
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

    /// Notes that a fresh worker store listens on this port.
    pub fn handle_store_open(&mut self, now: Instant, store_port: u16) {
        if self.state == State::Preparing {
            self.state = State::Ready { store_port };
            self.say_standing(now);
        }
    }

    /// Notes that a worker of this node failed; the supervisor is stopping the others.
    pub fn handle_failed(&mut self, now: Instant, failure: WorkerFailure) {
        if failure.round != self.round {
            return;
        }
        // A worker that ends after the round was stopped is a victim, not a failure.
        if self.state == State::Running {
            self.announce(News::WorkerFailed(Box::new(failure.clone())));
            self.failure = Some((failure, now));
            self.state = State::Stopping;
            self.say_standing(now);
        }
    }

    /// Notes the failure of the oldest event among this node's workers, known once all have ended.
    ///
    /// It replaces the failure that was seen first: a worker may write its error file, close its
    /// connections and take its time to exit, and the others then fail because of it and exit
    /// first.
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

    /// Notes that the worker group has ended and nothing is left of it.
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

    /// Notes a signal that asks this process to end.
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
            // A second Ctrl-C means that the user does not want to wait.
            State::Leaving { reaped: false, .. } | State::Closing(_) if signal == Signal::INT => {
                self.effects.push_back(Effect::Kill);
            }
            State::Leaving { .. } | State::Closing(_) | State::Finished => {}
        }
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_finished() {
            return None;
        }
        let gives_up = self.unattended.map(|since| since + self.settings.join_timeout);
        [gives_up, self.said.quiet_until.filter(|_| self.said.is_due)].into_iter().flatten().min()
    }

    /// Applies every deadline that has passed.
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

    /// Returns the next effect; `None` if there are none.
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
            // Either a repetition, or it was sent before this node's last standing was received; a
            // repeated standing resolves both.
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
        // A restarted coordinator names the round under its own term.
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
            // No worker runs, and the coordinator has been informed.
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
            // The coordinator no longer counts this node, so no dismissal will follow.
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

    /// Adds a refused client; returns true if its address is new.
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
