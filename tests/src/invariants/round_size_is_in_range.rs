//! Rule 4: no round completes with fewer than `min_nodes` or more than `max_nodes`.

use crate::world::World;

/// Finds the rule broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    let chronicle = &world.chronicle;
    let Some(members) = chronicle.rounds.get(&chronicle.newest) else {
        return Ok(());
    };
    let (min, max) = (world.min_nodes(), world.shared().nodes.max());
    match members
        .iter()
        .map(|member| member.admission.group_world_size)
        .find(|n| *n < min || max < *n)
    {
        Some(size) => Err(format!("a round of {size} nodes, not {min} to {max}")),
        None => Ok(()),
    }
}
