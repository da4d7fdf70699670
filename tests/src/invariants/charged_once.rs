//! Checks rule 7: no round is charged twice, and none is charged in which no worker failed. The charges never exceed `--max-restarts`.

use ragent_rendezvous::settings::JobState;

use crate::world::World;

/// Returns an error if the rule is broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    let max = world.shared().max_restarts;
    let [.., before, newest] = world.chronicle.job_states.as_slice() else { return Ok(()) };
    if newest.restarts_used > max {
        return Err(format!("{} restarts of at most {max}", newest.restarts_used));
    }
    if before.closed.is_some() && newest.closed.is_none() && newest.restarts_used == 0 {
        // The run of the state file has ended and none of its nodes is left, so another run has begun.
        return Ok(());
    }
    if world.planted().is_some() && newest.restarts_used == 0 && newest.charged_through.0 == 0 {
        // No node was a member of the run in the state file.
        return Ok(());
    }
    let is_known = |job_state: &&JobState| {
        job_state.restarts_used == newest.restarts_used
            && job_state.charged_through == newest.charged_through
    };
    if world.planted().is_some() && world.chronicle.job_states.iter().filter(is_known).count() > 1 {
        // A member of that run registered later, and reported its charges.
        return Ok(());
    }
    if newest.restarts_used < before.restarts_used
        || newest.charged_through < before.charged_through
    {
        return Err("what was charged is forgotten".to_owned());
    }
    let charges = newest.restarts_used - before.restarts_used;
    let charged = newest.charged_through;
    let has_failed = world.chronicle.failed_rounds.contains(&charged);
    match charges {
        0 => Ok(()),
        1 if charged > before.charged_through && has_failed => Ok(()),
        1 => Err(format!("round {charged} was charged twice, or although it had not failed")),
        _ => Err(format!("{charges} charges at once")),
    }
}
