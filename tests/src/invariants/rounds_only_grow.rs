//! Checks rule 3: (term, round) only grows, also across a restart of the coordinator.

use crate::world::World;

/// Returns an error if the rule is broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    let (before, newest) = (world.chronicle.before_newest, world.chronicle.newest);
    let is_first = world.chronicle.rounds.is_empty();
    if !is_first && (newest.round <= before.round || newest.term < before.term) {
        return Err(format!("round {newest} came after {before}"));
    }
    let job_states = &world.chronicle.job_states;
    if let [.., before, newest] = job_states.as_slice()
        && (newest.term < before.term || newest.round < before.round)
    {
        return Err(format!(
            "the state file went from {}.{} to {}.{}",
            before.term, before.round, newest.term, newest.round
        ));
    }
    Ok(())
}
