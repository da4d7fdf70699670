//! Checks rule 1: within a round, group ranks are `0..n` and global ranks `0..world_size`, without gaps or duplicates.
//!
//! Every member gets the same world size, master and restart count. Fixed ranks are as typed on each node.

use crate::{chronicle::Member, world::World};

/// Returns an error if the rule is broken.
pub(super) fn check(world: &World) -> Result<(), String> {
    let chronicle = &world.chronicle;
    if let Some(contradiction) = chronicle.contradictions.first() {
        return Err(contradiction.clone());
    }
    let Some(members) = chronicle.rounds.get(&chronicle.newest) else { return Ok(()) };
    let Some(first) = members.first() else { return Ok(()) };
    let mut by_rank: Vec<&Member> = members.iter().collect();
    by_rank.sort_by_key(|member| member.admission.group_rank);
    for (one, next) in by_rank.iter().zip(by_rank.iter().skip(1)) {
        let (one_rank, next_rank) = (one.admission.group_rank.0, next.admission.group_rank.0);
        if one_rank == next_rank {
            return Err(format!("{} and {} both have group rank {one_rank}", one.node, next.node));
        }
        let end = one.admission.first_global_rank.0 + one.local_world_size;
        let is_neighbour = one_rank + 1 == next_rank;
        if is_neighbour && end != next.admission.first_global_rank.0 {
            return Err(format!("the global ranks of {} do not follow on {}", next.node, one.node));
        }
    }
    for member in members {
        let (told, others) = (&member.admission, &first.admission);
        let agrees = told.group_world_size == others.group_world_size
            && told.world_size == others.world_size
            && told.restart_count == others.restart_count
            && told.charged_through == others.charged_through
            && told.master_address == others.master_address
            && told.master_port == others.master_port;
        if !agrees {
            return Err(format!("{} and {} received different rounds", member.node, first.node));
        }
        if member.node_rank.is_some_and(|node_rank| node_rank != told.group_rank.0) {
            return Err(format!("{} has not the rank that it was given", member.node));
        }
        if told.group_rank.0 >= told.group_world_size {
            return Err(format!("{} has a rank beyond the group", member.node));
        }
    }
    let is_complete = members.len() == first.admission.group_world_size as usize;
    let workers: u32 = members.iter().map(|member| member.local_world_size).sum();
    // A coordinator that was killed in between has admitted only some members.
    if is_complete && workers != first.admission.world_size {
        return Err(format!("{workers} workers in a world of {}", first.admission.world_size));
    }
    Ok(())
}
