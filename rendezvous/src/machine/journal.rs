//! Records the events of the job, and accounts for its time.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::{
    account::{Pauses, TimeAccount, TimeState, TimeTotals},
    effect::Effect,
    event::{
        Event, EventId, EventKind, EventNode, FreeReason, RestartCause, RestartCost, RestartStages,
        RestartSum,
    },
    ids::NodeId,
    limits::FURTHER_FAILURES_MAX,
    machine::Rendezvous,
    message::{EvictReason, RestartReason, StepSource, WorkerEnd, WorkerFailure},
    phase::Phase,
    roster::RosterNode,
    settings::JobState,
    snapshot::{JobProgress, PhaseName, RestartsByCause},
};

/// The most refused registrations of a term that are recorded as events. The refused agents log the
/// reason anyway.
const REFUSALS_MAX: u32 = 64;

/// The state of the recording.
#[derive(Debug)]
pub(super) struct Journal {
    /// The number of the last event.
    number: u64,
    /// The event of the current input that may end the round.
    trigger: Option<EventId>,
    /// The event that began the current activity of the job: the end of the last round, or the
    /// start of the coordinator.
    began: Option<EventId>,
    /// The admission of the newest round.
    admitted: Option<EventId>,
    /// The events of the last round's failures.
    failures: BTreeMap<NodeId, EventId>,
    refusals: u32,
    /// The number of workers of the newest round.
    workers: u32,
    /// The phase according to the events so far.
    phase: PhaseName,
    phase_since: Instant,
    pub(super) account: TimeAccount,
    /// The time at which the account was last stored.
    pub(super) stored: Instant,
    restart: Option<Restart>,
    last_cost: Option<RestartCost>,
    /// The phase of the newest notice.
    notice: Option<EventId>,
    /// The time of the last checkpoint for a notice, until the next restart begins.
    saving: Duration,
}

/// A restart, until the workers of its round have given a sign of progress.
#[derive(Debug)]
struct Restart {
    why: RestartCause,
    event: Option<EventId>,
    /// The times at its beginning.
    before: TimeTotals,
    /// The time of the checkpoint before the end of the round, for a notice.
    saving: Duration,
    /// Its cost when the workers ran, if it was counted then.
    counted: Option<RestartCost>,
}

impl Journal {
    pub(super) fn new(now: Instant, job_state: &JobState) -> Self {
        let training = &job_state.training;
        let pauses = Pauses { longest: training.longest_pause, first: training.first_step };
        let account = TimeAccount::new(now, job_state.time.clone(), pauses);
        Self {
            number: 0,
            trigger: None,
            began: None,
            admitted: None,
            failures: BTreeMap::new(),
            refusals: 0,
            workers: 0,
            phase: PhaseName::Gathering,
            phase_since: now,
            account,
            stored: now,
            restart: None,
            last_cost: None,
            notice: None,
            saving: Duration::ZERO,
        }
    }
}

impl Rendezvous {
    /// Records an event.
    pub(super) fn event(
        &mut self,
        cause: Option<EventId>,
        node: Option<EventNode>,
        kind: EventKind,
    ) -> EventId {
        self.journal.number += 1;
        let id = EventId { term: self.job.state.term, number: self.journal.number };
        let event = Event { id, cause, round: self.job.state.round, node, kind };
        self.effects.push_back(Effect::Record(event));
        id
    }

    /// Records an event of a node.
    pub(super) fn event_of(&mut self, cause: Option<EventId>, id: &NodeId, kind: EventKind) {
        let node = self.event_node(id);
        self.event(cause, Some(node), kind);
    }

    fn event_node(&self, id: &NodeId) -> EventNode {
        EventNode { node_id: id.clone(), host_name: self.host_name(id) }
    }

    /// Records the start of this coordinator.
    pub(super) fn record_start(&mut self, now: Instant) {
        let (nodes, restarts_used) = (self.job.state.round_size, self.job.state.restarts_used);
        let is_recovery = matches!(self.job.phase, Phase::Recovering(_));
        let reason = is_recovery.then(|| self.why_last_round_ended());
        let kind = match &reason {
            Some(RestartReason::CoordinatorLost { host_name }) => EventKind::CoordinatorTookOver {
                nodes,
                restarts_used,
                lost_host: host_name.clone(),
            },
            Some(
                RestartReason::CoordinatorRestarted
                | RestartReason::HostLeft
                | RestartReason::NodesWaiting { .. }
                | RestartReason::NodeLeft { .. }
                | RestartReason::NodeLost { .. }
                | RestartReason::Notice { .. }
                | RestartReason::BadMachine { .. }
                | RestartReason::MemoryUnusable { .. }
                | RestartReason::WorkerFailed { .. },
            )
            | None => EventKind::CoordinatorStarted { nodes, restarts_used },
        };
        let id = self.event(None, None, kind);
        self.journal.began = Some(id);
        self.journal.phase = self.phase_name();
        let kind = if is_recovery { EventKind::Recovering } else { EventKind::Gathering };
        self.event(Some(id), None, kind);
        let why = reason.as_ref().map_or(RestartCause::FirstStart, RestartCause::from);
        self.begin_restart(now, why, Some(id));
    }

    fn begin_restart(&mut self, now: Instant, why: RestartCause, event: Option<EventId>) {
        let before = self.journal.account.seen(now);
        let saving = std::mem::take(&mut self.journal.saving);
        self.journal.restart = Some(Restart { why, event, before, saving, counted: None });
    }

    /// Forgets the event that may end the round, at the beginning of an input.
    pub(super) fn begin_input(&mut self) {
        self.journal.trigger = None;
    }

    /// Records the failure of a worker on `id`, unless too many of the round are recorded.
    pub(super) fn record_failure(&mut self, id: &NodeId, failure: &WorkerFailure) {
        let is_known = self.journal.failures.contains_key(id);
        if is_known || self.journal.failures.len() > FURTHER_FAILURES_MAX {
            return;
        }
        let kind = EventKind::WorkerFailed {
            rank: failure.global_rank,
            local_rank: failure.local_rank,
            pid: failure.pid,
            end: failure.end.clone(),
            oom: failure.oom,
            hardware: failure.hardware_lines(),
        };
        let node = EventNode { node_id: id.clone(), host_name: failure.host_name.clone() };
        let event = self.event(None, Some(node), kind);
        self.journal.failures.insert(id.clone(), event);
        self.journal.trigger.get_or_insert(event);
    }

    /// Records that the failure which ended the round is not charged.
    pub(super) fn record_free_failure(&mut self, reason: FreeReason) {
        self.event(self.journal.began, None, EventKind::FailureNotCharged { reason });
    }

    /// Returns the event of the failure on `id`.
    pub(super) fn failure_event(&self, id: &NodeId) -> Option<EventId> {
        self.journal.failures.get(id).copied()
    }

    /// Records the loss of a node, or its leaving if it was leaving.
    pub(super) fn record_loss(&mut self, node: &RosterNode, how: EvictReason) {
        let id = &node.description.node_id;
        let was_member = match &self.job.phase {
            Phase::Running(_) | Phase::Regathering(_) => {
                self.job.phase.group().is_some_and(|group| group.held(id).is_some())
            }
            Phase::Recovering(_) | Phase::Gathering(_) | Phase::Closed(_) => false,
        };
        let host_name = node.description.host_name.clone();
        let kind = if node.is_leaving() {
            EventKind::NodeLeft
        } else {
            EventKind::NodeLost { how, was_member }
        };
        let event = self.event(None, Some(EventNode { node_id: id.clone(), host_name }), kind);
        self.journal.trigger.get_or_insert(event);
    }

    /// Records that a member counts as lost, although its agent is registered.
    pub(super) fn record_eviction(&mut self, id: &NodeId, how: EvictReason) {
        let node = self.event_node(id);
        let kind = EventKind::NodeLost { how, was_member: true };
        let event = self.event(None, Some(node), kind);
        self.journal.trigger.get_or_insert(event);
    }

    /// Records that a member has stopped its workers because its lease had ended on its side.
    pub(super) fn record_lease_expired(&mut self, id: &NodeId) {
        let node = self.event_node(id);
        let event = self.event(None, Some(node), EventKind::NodeLeaseExpired);
        self.journal.trigger.get_or_insert(event);
    }

    /// Records that this coordinator is about to leave.
    pub(super) fn record_leaving(&mut self) {
        let event = self.event(None, None, EventKind::CoordinatorLeaving);
        self.journal.trigger.get_or_insert(event);
    }

    /// Records a refused registration, if not too many are recorded.
    pub(super) fn record_refusal(&mut self, id: &NodeId, host_name: &str, reason: &'static str) {
        if self.journal.refusals < REFUSALS_MAX {
            self.journal.refusals += 1;
            let node = EventNode { node_id: id.clone(), host_name: host_name.to_owned() };
            self.event(None, Some(node), EventKind::NodeRefused { reason: reason.to_owned() });
        }
    }

    /// Records the end of the round.
    pub(super) fn record_end_of_round(&mut self, now: Instant, reason: &RestartReason) {
        let hung_for = match reason {
            RestartReason::WorkerFailed { end: WorkerEnd::Hung(time), .. } => Some(*time),
            RestartReason::WorkerFailed { .. }
            | RestartReason::CoordinatorLost { .. }
            | RestartReason::CoordinatorRestarted
            | RestartReason::HostLeft
            | RestartReason::NodesWaiting { .. }
            | RestartReason::NodeLeft { .. }
            | RestartReason::Notice { .. }
            | RestartReason::BadMachine { .. }
            | RestartReason::MemoryUnusable { .. }
            | RestartReason::NodeLost { .. } => None,
        };
        self.journal.account.round_ended(now, hung_for);
        self.journal.phase = PhaseName::Stopping;
        self.journal.phase_since = now;
        self.end_restart(now);
        let kind = EventKind::RoundEnded { reason: reason.clone() };
        let event = self.event(self.journal.trigger, None, kind);
        self.journal.began = Some(event);
        self.begin_restart(now, reason.into(), Some(event));
    }

    /// Notes the event with which the phase of a notice began.
    pub(super) fn set_notice_event(&mut self, event: EventId) {
        self.journal.notice = Some(event);
    }

    /// Records the end of a notice's phase, which may end the round.
    pub(super) fn record_end_of_notice(&mut self, kind: EventKind) {
        let event = self.event(self.journal.notice, None, kind);
        self.journal.trigger.get_or_insert(event);
    }

    /// Counts the time since the last step as the time of a checkpoint before the end of the round.
    pub(super) fn record_saving(&mut self, now: Instant) {
        self.journal.saving = self.journal.account.saving_over(now);
    }

    /// Records a restart whose round ended before its workers made progress.
    fn end_restart(&mut self, now: Instant) {
        if let Some(restart) = &self.journal.restart
            && restart.counted.is_none()
        {
            self.count_restart(now, None, false);
        }
        self.journal.restart = None;
    }

    /// Records that members of the last round are back after a restart of the coordinator.
    pub(super) fn record_recovery(&mut self, back: usize, nodes: u32) {
        let back = u32::try_from(back).unwrap_or(u32::MAX);
        self.event(self.journal.began, None, EventKind::Recovered { back, nodes });
        self.journal.phase = PhaseName::Stopping;
        self.journal.phase_since = self.job.clock;
    }

    /// Records the completion of a round.
    pub(super) fn record_admission(&mut self, now: Instant, workers: u32, newcomers: usize) {
        self.journal.account.enter(now, TimeState::Starting);
        if self.journal.workers != workers {
            // The number of steps of an epoch depends on the number of workers.
            self.journal.account.forget_steps();
        }
        self.journal.workers = workers;
        self.journal.failures.clear();
        let nodes = self.job.state.round_size;
        let newcomers = u32::try_from(newcomers).unwrap_or(u32::MAX);
        let kind = EventKind::RoundAdmitted { nodes, workers, newcomers };
        let event = self.event(self.journal.began, None, kind);
        self.journal.admitted = Some(event);
        self.journal.phase = PhaseName::Running;
        self.journal.phase_since = now;
    }

    /// Records that all nodes of the round have started their workers.
    pub(super) fn record_workers_started(&mut self, now: Instant) {
        self.event(self.journal.admitted, None, EventKind::WorkersStarted);
        self.journal.account.started(now);
        if !self.job.state.training.has_steps {
            // Its workers may do work that no step shows.
            self.forget_complete_step();
        }
        if self.journal.account.is_unknown() {
            self.count_restart(now, None, true);
        }
    }

    /// Records a sign of progress.
    pub(super) fn record_progress(&mut self, now: Instant, progress: &JobProgress) {
        let JobProgress { step, step_time, source, .. } = *progress;
        let is_read = source == StepSource::Read;
        let first = self.journal.account.progress(now, step, step_time, is_read);
        if let Some(redone) = first {
            self.event(self.journal.admitted, None, EventKind::FirstProgress { step });
            self.count_restart(now, Some(redone), true);
            self.journal.restart = None;
        }
        if self.journal.account.quiet_for(now).is_zero() {
            self.end_stall(now, Some(step));
        }
    }

    /// Records an event that belongs to the newest round.
    pub(super) fn event_of_round(&mut self, kind: EventKind) -> EventId {
        self.event(self.journal.admitted, None, kind)
    }

    /// Counts the restart that has brought the job to its current state. Replaces a cost that was counted
    /// before.
    fn count_restart(&mut self, now: Instant, redone_steps: Option<u64>, is_complete: bool) {
        let times = self.journal.account.seen(now);
        let Some(restart) = &mut self.journal.restart else { return };
        let stages = RestartStages::of(&times.since(&restart.before), restart.saving);
        let cost = RestartCost { why: restart.why, stages, redone_steps, is_complete };
        let sum = &mut self.job.state.restarts[restart.why as usize];
        let before = *sum;
        if let Some(counted) = restart.counted.replace(cost.clone()) {
            sum.remove(&counted);
        }
        sum.add(&cost);
        let has_changed = *sum != before;
        let cause = restart.event;
        self.journal.last_cost = Some(cost.clone());
        self.event(cause, None, EventKind::RestartCost(cost));
        if is_complete && has_changed {
            // Otherwise, changes that are stored follow the end of the round.
            self.remember();
        }
    }

    /// Records the end of the job.
    pub(super) fn record_closed(&mut self, now: Instant) {
        let Some(outcome) = &self.job.state.closed else { return };
        let kind = EventKind::JobClosed { result: outcome.result.clone() };
        self.journal.account.close(now);
        self.event(self.journal.trigger.or(self.journal.began), None, kind);
        self.journal.phase = PhaseName::Closed;
        self.journal.phase_since = now;
    }

    /// Updates the account and the events after an input, by the phase of the job.
    pub(super) fn follow_phase(&mut self, now: Instant) {
        let state = match &self.job.phase {
            Phase::Recovering(_) => Some(TimeState::Waiting),
            Phase::Gathering(gathering) if gathering.last_call_until.is_none() => {
                Some(TimeState::Waiting)
            }
            Phase::Gathering(_) => Some(TimeState::Rendezvous),
            Phase::Running(_) | Phase::Closed(_) => None,
            Phase::Regathering(regathering) => Some(if !regathering.group.unstopped().is_empty() {
                TimeState::Stopping
            } else if regathering.group.pending().is_empty() && regathering.verdict.is_none() {
                TimeState::Waiting
            } else {
                TimeState::Rendezvous
            }),
        };
        if let Some(state) = state {
            self.journal.account.enter(now, state);
        }
        let (before, phase) = (self.journal.phase, self.phase_name());
        if before == phase {
            return;
        }
        self.journal.phase = phase;
        self.journal.phase_since = now;
        if let (Phase::Recovering(_), Some(restart)) = (&self.job.phase, &mut self.journal.restart)
            && restart.why == RestartCause::FirstStart
        {
            // A coordinator without state has learned that there was a round.
            restart.why = RestartCause::CoordinatorRestarted;
        }
        let kind = match &self.job.phase {
            Phase::Recovering(_) => EventKind::Recovering,
            Phase::Gathering(_) => EventKind::Gathering,
            Phase::Regathering(_) if phase == PhaseName::Gathering => EventKind::RoundStopped,
            Phase::Regathering(_) if before == PhaseName::Gathering => {
                EventKind::RoundStillStopping
            }
            // These have events of their own.
            Phase::Regathering(_) | Phase::Running(_) | Phase::Closed(_) => return,
        };
        self.event(self.journal.began, None, kind);
    }

    /// Begins the account of a new run.
    pub(super) fn record_new_run(&mut self) {
        let now = self.job.clock;
        self.journal.account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
        self.journal.last_cost = None;
        self.job.state.restarts = Default::default();
        let event = self.event(None, None, EventKind::RunBegan { restarts_used: 0 });
        self.journal.began = Some(event);
        self.begin_restart(now, RestartCause::FirstStart, Some(event));
    }

    /// Returns how long the job has been in its phase.
    pub(super) fn phase_age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.journal.phase_since)
    }

    /// Returns the cost of the last restart.
    pub(super) fn last_restart(&self) -> Option<RestartCost> {
        self.journal.last_cost.clone()
    }

    /// Returns the restarts so far, by cause.
    pub(super) fn restarts_by_cause(&self) -> Vec<RestartsByCause> {
        let sums = RestartCause::ALL.into_iter().zip(self.job.state.restarts);
        let used = sums.filter(|(_, sum)| *sum != RestartSum::default());
        used.map(|(cause, sum)| RestartsByCause { cause, sum }).collect()
    }
}
