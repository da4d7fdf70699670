//! Checks rule 13: no two rounds have the same store for their workers.
//!
//! Requests of an earlier round may still wait at a store. In a later round, they would be carried out.

use crate::world::World;

/// Returns an error if the rule is broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    match world.chronicle.shared_stores.first() {
        Some((store, earlier, later)) => Err(format!("{store} serves {earlier} and {later}")),
        None => Ok(()),
    }
}
