//! Checks rule 4: no round has fewer than `min_nodes` or more than `max_nodes`, or a number of nodes that is not a multiple of their unit.

use crate::world::World;

/// Returns an error if the rule is broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    let chronicle = &world.chronicle;
    let Some(members) = chronicle.rounds.get(&chronicle.newest) else { return Ok(()) };
    let nodes = world.shared().nodes;
    let (min, max, unit) = (world.min_nodes(), nodes.max(), nodes.unit());
    let is_wrong = |n: &u32| *n < min || max < *n || !n.is_multiple_of(unit);
    match members.iter().map(|member| member.admission.group_world_size).find(is_wrong) {
        Some(size) => Err(format!("a round of {size} nodes, not {min} to {max} by {unit}")),
        None => Ok(()),
    }
}
