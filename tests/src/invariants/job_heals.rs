//! Rule 8: when faults stop and at least `min_nodes` are alive, the job ends up running or closed;
//! it never hangs. Nor does the machine wait for a deadline that it has applied.

use crate::world::World;

/// Finds the rule broken.
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
