//! Checks rule 2: a node is in at most one round at a time, and never both a member and waiting.

use std::collections::BTreeSet;

use ragent_rendezvous::snapshot::NodeStateName;

use crate::world::World;

/// Returns an error if the rule is broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    if let Some(node) = world.chronicle.waiting_members.first() {
        return Err(format!("{node} was assigned to wait while it was a member"));
    }
    let Some(snapshot) = world.snapshot() else { return Ok(()) };
    let waiting = snapshot.nodes.iter().filter(|node| node.state == NodeStateName::Waiting);
    let is_settling = snapshot.incomplete.is_some_and(|why| why.kind == "settling");
    if is_settling && waiting.count() == 0 {
        return Err("the round is interrupted for its own members".to_owned());
    }
    let mut seen = BTreeSet::new();
    for node in &snapshot.nodes {
        if !seen.insert(&node.node_id) {
            return Err(format!("{} is there twice", node.node_id));
        }
        let waits = match node.state {
            NodeStateName::Waiting
            | NodeStateName::Spare
            | NodeStateName::Quarantined
            | NodeStateName::Unhealthy
            | NodeStateName::Excluded => true,
            NodeStateName::Preparing
            | NodeStateName::Joined
            | NodeStateName::Running
            | NodeStateName::Stopping
            | NodeStateName::Failed
            | NodeStateName::Succeeded
            | NodeStateName::Leaving
            | NodeStateName::Lost => false,
        };
        if waits && node.group_rank.is_some() {
            return Err(format!("{} has a rank and waits", node.node_id));
        }
    }
    Ok(())
}
