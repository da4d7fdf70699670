//! Checks rule 5: when round r+1 starts on a node that knows another node, or has outlived its lease, no process of round r runs on that
//! other node.
//!
//! This check is stricter: no two rounds have processes at the same time.

use crate::world::World;

/// Returns an error if the rule is broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    let mut processes = world.alive();
    let Some((first, round)) = processes.next() else { return Ok(()) };
    match processes.find(|(_, other)| *other != round) {
        Some((node, other)) => {
            Err(format!("{first} runs processes of {round}, and {node} of {other}"))
        }
        None => Ok(()),
    }
}
