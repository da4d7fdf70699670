//! Removes nodes that are lost or have left.
//!
//! Two things prove that all processes of a node are dead: its lease has ended, or its keeper has
//! reported that the agent is gone and all processes are reaped. The end of a stream proves
//! nothing.

use std::time::Instant;

use tracing::{debug, info};

use super::Rendezvous;
use crate::{
    event::{EventKind, EventNode},
    ids::NodeId,
    job::Availability,
    message::{Assignment, Departure, EvictReason, NodeDescription, ToNode},
    phase::Phase,
    roster::SentAssignment,
};

impl Rendezvous {
    /// Removes a lost node, if it is known. None of its processes runs any more.
    pub(super) fn on_lost(&mut self, now: Instant, id: &NodeId, how: EvictReason) {
        self.count_loss(now, id);
        let Some(node) = self.job.roster.remove_lost(now, id) else { return };
        info!(node = %id, host = %node.description.host_name, reason = how.name(), "node lost");
        self.out.record_loss(&self.job, &node, how);
        self.forget_memory(&node);
        self.health.forget(id);
        let (departure, since) = match how {
            _ if node.is_leaving() => (Departure::Left, node.last_seen),
            EvictReason::DeathNotice => (Departure::AgentEnded, now),
            // The last two are no losses, so they do not come here.
            EvictReason::Silent | EvictReason::NotBack | EvictReason::Quarantined => {
                (Departure::Silent, node.last_seen)
            }
        };
        self.departures.add(&node, departure, since);
        // A death notice may be wrong, by mistake or malice, so an agent that is alive must stop
        // its workers.
        if how == EvictReason::Silent || how == EvictReason::DeathNotice && node.attached {
            let evict = Assignment::Evict { round: node.floor, reason: how };
            self.out.send(node.peer(), ToNode::Assignment(evict));
        }
        match &mut self.job.phase {
            Phase::Recovering(recovering) => recovering.give_up_rank(id),
            Phase::Gathering(_) | Phase::Closed(_) => {}
            Phase::Running(_) => self.on_lost_in_running(now, &node, how),
            Phase::Regathering(_) => self.on_lost_in_regathering(now, id, how),
        }
        self.follow_host(id);
    }

    /// Removes a node that has sent a goodbye, if it was dismissed or the job is closed.
    pub(super) fn on_goodbye(&mut self, now: Instant, id: &NodeId) {
        let sent = self.job.roster.get(id).and_then(|node| node.sent);
        if !matches!(sent, Some(SentAssignment::Dismiss | SentAssignment::Close)) {
            debug!(node = %id, "goodbye of a node that was not dismissed dropped");
            return;
        }
        info!(node = %id, "node has left");
        if let Some(node) = self.job.roster.remove_for_good(now, id) {
            self.departures.add(&node, Departure::Left, now);
            self.forget_memory(&node);
            self.health.forget(id);
            // At the end of a job, all nodes leave.
            if !matches!(self.job.phase, Phase::Closed(_)) {
                let NodeDescription { node_id, host_name, .. } = &*node.description;
                let left = EventNode { node_id: node_id.clone(), host_name: host_name.clone() };
                self.out.event(&self.job, None, Some(left), EventKind::NodeLeft);
            }
        }
        if let Phase::Recovering(recovering) = &mut self.job.phase {
            recovering.let_go(id);
        }
        self.follow_host(id);
        self.follow_elected_host(id);
    }

    /// Ends this coordinator if `id` was its leaving host.
    ///
    /// The coordinator of a closed job stays until every node has received the outcome.
    pub(super) fn follow_host(&mut self, id: &NodeId) {
        let is_closed = matches!(self.job.phase, Phase::Closed(_));
        if self.job.is_host(id) && self.job.availability == Availability::HostLeaving && !is_closed
        {
            self.finish();
        }
    }
}
