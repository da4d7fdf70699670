//! What the driver must do, in order. Events of the job are a part of it: the driver stores and shows them.

use std::collections::{BTreeMap, VecDeque};

use tracing::debug;

use crate::{
    effect::Effect,
    event::{Event, EventId, EventKind, EventNode, FreeReason},
    ids::{NodeId, Peer},
    job::Job,
    limits::FURTHER_FAILURES_MAX,
    message::{EvictReason, ToNode, WorkerFailure},
    phase::Phase,
    roster::RosterNode,
};

/// The most refused registrations of a term that are recorded as events. The refused agents log the
/// reason anyway.
const REFUSALS_MAX: u32 = 64;

/// The effects that the driver has not fetched yet, and the numbers of the events that later ones name as their cause.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) queue: VecDeque<Effect>,
    /// The number of these effects that come before the state of the job is stored; `None` if it need not be.
    pub(crate) remember_after: Option<usize>,
    /// True if members must still receive a change of the notice or of the look.
    pub(crate) has_guidance: bool,
    /// True if this coordinator has given a notice, or has named a worker that hangs.
    pub(crate) has_given_guidance: bool,
    /// The number of the last event.
    number: u64,
    /// The event of the current input that may end the round.
    pub(crate) trigger: Option<EventId>,
    /// The event that began the current activity of the job: the end of the last round, or the
    /// start of the coordinator.
    pub(crate) began: Option<EventId>,
    /// The admission of the newest round.
    pub(crate) admitted: Option<EventId>,
    /// The events of the last round's failures.
    pub(crate) failures: BTreeMap<NodeId, EventId>,
    refusals: u32,
}

impl Effects {
    /// Stores the state from which the next coordinator goes on, before anything that is sent from now on. The driver receives the state
    /// as it is after the input, so once is enough.
    pub(crate) fn remember(&mut self) {
        self.remember_after.get_or_insert(self.queue.len());
    }

    /// Sends a message to a node.
    pub(crate) fn send(&mut self, to: Peer, message: ToNode) {
        debug!(node = %to.node, ?message, "send");
        self.queue.push_back(Effect::Send { to, message });
    }

    /// Records an event.
    pub(crate) fn event(
        &mut self,
        job: &Job,
        cause: Option<EventId>,
        node: Option<EventNode>,
        kind: EventKind,
    ) -> EventId {
        self.number += 1;
        let id = EventId { term: job.state.term, number: self.number };
        let event = Event { id, cause, round: job.state.round, node, kind };
        self.queue.push_back(Effect::Record(event));
        id
    }

    /// Records an event of a node.
    pub(crate) fn event_of(
        &mut self,
        job: &Job,
        cause: Option<EventId>,
        id: &NodeId,
        kind: EventKind,
    ) {
        self.event(job, cause, Some(job.event_node(id)), kind);
    }

    /// Records an event that belongs to the newest round.
    pub(crate) fn event_of_round(&mut self, job: &Job, kind: EventKind) -> EventId {
        self.event(job, self.admitted, None, kind)
    }

    /// Records an event that may end the round. The first one of an input is the cause of the end.
    pub(crate) fn record_cause(
        &mut self,
        job: &Job,
        cause: Option<EventId>,
        node: Option<EventNode>,
        kind: EventKind,
    ) {
        let event = self.event(job, cause, node, kind);
        self.trigger.get_or_insert(event);
    }

    /// Records that this coordinator ignores all input from now on.
    pub(crate) fn coordinator_ended(&mut self, job: &Job, hands_over: bool) {
        self.event(job, None, None, EventKind::CoordinatorEnded { hands_over });
    }

    /// Records the failure of a worker on `id`, unless too many of the round are recorded.
    pub(crate) fn record_failure(&mut self, job: &Job, id: &NodeId, failure: &WorkerFailure) {
        let is_known = self.failures.contains_key(id);
        if is_known || self.failures.len() > FURTHER_FAILURES_MAX {
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
        let event = self.event(job, None, Some(node), kind);
        self.failures.insert(id.clone(), event);
        self.trigger.get_or_insert(event);
    }

    /// Records that the failure which ended the round is not charged.
    pub(crate) fn record_free_failure(&mut self, job: &Job, reason: FreeReason) {
        self.event(job, self.began, None, EventKind::FailureNotCharged { reason });
    }

    /// Records the loss of a node, or its leaving if it was leaving.
    pub(crate) fn record_loss(&mut self, job: &Job, node: &RosterNode, how: EvictReason) {
        let id = &node.description.node_id;
        let was_member = match &job.phase {
            Phase::Running(_) | Phase::Regathering(_) => {
                job.phase.group().is_some_and(|group| group.held(id).is_some())
            }
            Phase::Recovering(_) | Phase::Gathering(_) | Phase::Closed(_) => false,
        };
        let kind = if node.is_leaving() {
            EventKind::NodeLeft
        } else {
            EventKind::NodeLost { how, was_member }
        };
        let host_name = node.description.host_name.clone();
        self.record_cause(job, None, Some(EventNode { node_id: id.clone(), host_name }), kind);
    }

    /// Records that a member counts as lost, although its agent is registered.
    pub(crate) fn record_eviction(&mut self, job: &Job, id: &NodeId, how: EvictReason) {
        let kind = EventKind::NodeLost { how, was_member: true };
        self.record_cause(job, None, Some(job.event_node(id)), kind);
    }

    /// Records a refused registration, if not too many are recorded.
    pub(crate) fn record_refusal(
        &mut self,
        job: &Job,
        id: &NodeId,
        host_name: &str,
        reason: &'static str,
    ) {
        if self.refusals < REFUSALS_MAX {
            self.refusals += 1;
            let node = EventNode { node_id: id.clone(), host_name: host_name.to_owned() };
            let kind = EventKind::NodeRefused { reason: reason.to_owned() };
            self.event(job, None, Some(node), kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::TestJob;

    /// The end of a coordinator, a member that counts as lost, and the first refusals are events.
    #[test]
    fn events_are_recorded() {
        let mut t = TestJob::new(1, 2, &["a"]);
        let id = NodeId::new("a");
        t.out.coordinator_ended(&t.job, true);
        t.out.record_eviction(&t.job, &id, EvictReason::Silent);
        let lost = EventKind::NodeLost { how: EvictReason::Silent, was_member: true };
        assert_eq!(t.events(), [EventKind::CoordinatorEnded { hands_over: true }, lost]);
        for _ in 0..2 * REFUSALS_MAX {
            t.out.record_refusal(&t.job, &id, "a", "version");
        }
        assert_eq!(t.events().len(), REFUSALS_MAX as usize);
    }
}
