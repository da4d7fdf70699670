//! Rule 5: no process of round r runs on a node once round r+1 has started on any node that knows
//! of that node or has outlived its lease. Checked in a stronger form: no two rounds have
//! processes.

use crate::world::World;

/// Returns an error if the rule is broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    let mut processes = world.alive();
    let Some((first, round)) = processes.next() else {
        return Ok(());
    };
    match processes.find(|(_, other)| *other != round) {
        Some((node, other)) => {
            Err(format!("{first} runs processes of {round}, and {node} of {other}"))
        }
        None => Ok(()),
    }
}
