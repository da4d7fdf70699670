//! Checks rule 11: a state file of another run, of which no node was a member, changes only numbers.
//!
//! The job begins with a full budget, and with as many nodes as a first round waits for.

use crate::world::World;

/// Returns an error if the rule is broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    let Some(planted) = world.planted() else { return Ok(()) };
    let Some((round, members)) = world.chronicle.rounds.first_key_value() else { return Ok(()) };
    if round.round <= planted.round {
        return Err(format!("round {round} was there before"));
    }
    match members.iter().find(|member| member.admission.restart_count != 0) {
        Some(member) => Err(format!(
            "{} was admitted to the first round with {} restarts used",
            member.node, member.admission.restart_count
        )),
        None => Ok(()),
    }
}
