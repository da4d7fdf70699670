//! Checks rule 12: the events give the state of the machine, and each moment of the job is accounted for.

use ragent_rendezvous::account::TimeState;

use crate::world::World;

/// Returns an error if the rule is broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    let Some(snapshot) = world.snapshot() else { return Ok(()) };
    let replay = world.replay_of_journal();
    if let Some(difference) = replay.and_then(|replay| replay.difference(&snapshot)) {
        return Err(difference);
    }
    let (counted, age) = (snapshot.time.age_ms(), world.accounted_ms());
    // Each state is rounded down to whole milliseconds.
    let rounding = TimeState::ALL.len() as u64;
    if snapshot.time.now.is_some() && !(counted..=counted + rounding).contains(&age) {
        return Err(format!("{counted} of {age} ms are accounted for: {:?}", snapshot.time));
    }
    Ok(())
}
