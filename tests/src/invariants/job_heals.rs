//! Checks rule 8: when faults have stopped and at least `min_nodes` are alive, the job ends up running or closed. It never hangs, and a
//! deadline that was applied is not waited for again.

use crate::world::World;

/// Returns an error if the rule is broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    if let Some(at) = world.overdue() {
        return Err(format!("the deadline at {at:?} has passed and is still awaited"));
    }
    if !world.is_stuck() {
        return Ok(());
    }
    let why = world.snapshot().and_then(|snapshot| snapshot.incomplete).map(|why| why.text);
    Err(format!("the job neither runs nor is closed: {}", why.unwrap_or_default()))
}
