//! Checks the state of a job that was received as JSON.

use std::time::Duration;

use ragent_rendezvous::{
    ids::{JobUid, NodeId, RunId},
    limits::VOTERS_MAX,
    message::{Outcome, PROGRESS_MAX, REFUSED_CLIENTS_MAX, STEP_MAX, StandbyCounts},
    snapshot::{
        CheckpointTimes, Explanation, JobLook, JobProgress, JobTime, LOOK_PLACES_MAX,
        LOOK_RANGES_MAX, LookPlace, MemoryStatus, NodeSnapshot, REFUSED_PEERS_MAX, RefusedPeer,
        STALL_FACTS_MAX, STALL_TEXT_MAX, Saving, Snapshot, Stall, StateTime, UNREACHED_MAX,
        Unreached, VoterStatus,
    },
};

use super::{
    fitted, fitted_line, fitted_to, list, memory::bytes, millis, name, nonempty, notice, printable,
    progress::optional_step, text, to_millis,
};
use crate::{Malformed, limits, v1};

/// The most states or causes in a list. There are fewer.
const NAMES_MAX: usize = 32;

/// Checks a state that was received. Afterwards, its texts may be printed, and its numbers may be added.
///
/// # Errors
///
/// Returns [`Malformed`] if a value is out of its range, or a text or a list is too long.
pub fn checked(snapshot: Snapshot) -> Result<Snapshot, Malformed> {
    // Without `..`, so that a later field cannot be left unchecked.
    let Snapshot {
        run_id,
        job_uid,
        term,
        round,
        phase,
        min_nodes,
        phase_ms,
        time,
        last_restart,
        restarts,
        max_nodes,
        restarts_used,
        restarts_forgiven,
        max_restarts,
        world_size,
        nodes,
        incomplete,
        refused_clients,
        refused_peers,
        unreached,
        progress,
        saving,
        checkpoints,
        saved_step,
        stall,
        look,
        memory,
        outcome,
        leader,
        voters,
    } = snapshot;
    Ok(Snapshot {
        run_id: RunId::new(name(run_id.to_string(), "run_id")?),
        job_uid: JobUid::new(name(job_uid.to_string(), "job_uid")?),
        term,
        round,
        phase,
        min_nodes,
        phase_ms,
        time: checked_time(time)?,
        last_restart,
        restarts: list(restarts, "restarts", NAMES_MAX, Ok)?,
        max_nodes,
        restarts_used,
        restarts_forgiven,
        max_restarts,
        world_size,
        nodes: list(nodes, "nodes", limits::MAX_NODES, checked_node)?,
        incomplete: incomplete
            .map(|why| Explanation::try_from(v1::Explanation::from(why)))
            .transpose()?,
        refused_clients: list(refused_clients, "refused_clients", REFUSED_CLIENTS_MAX, Ok)?,
        refused_peers: list(refused_peers, "refused_peers", REFUSED_PEERS_MAX, |peer| {
            let RefusedPeer { address, count, reason } = peer;
            Ok(RefusedPeer { address, count, reason: name(reason, "refused_peers.reason")? })
        })?,
        unreached: list(unreached, "unreached", UNREACHED_MAX, |unreached| {
            let Unreached { host_name, to, why } = unreached;
            Ok(Unreached { host_name: fitted(&host_name), to: fitted(&to), why: fitted(&why) })
        })?,
        progress: progress.map(checked_progress).transpose()?,
        saving: saving.map(checked_saving).transpose()?,
        checkpoints: checkpoints.map(checked_checkpoints).transpose()?,
        saved_step: optional_step(saved_step, "saved_step")?,
        stall: stall.map(checked_stall).transpose()?,
        look: look.map(checked_look).transpose()?,
        memory: memory.map(checked_memory).transpose()?,
        // With the same checks as in messages that have an outcome.
        outcome: outcome.map(|it| Outcome::try_from(v1::Outcome::from(it))).transpose()?,
        leader: leader.map(|leader| nonempty(leader, "leader")).transpose()?,
        voters: list(voters, "voters", VOTERS_MAX, |voter| {
            let VoterStatus { endpoint, is_leader, silent_for } = voter;
            age(silent_for, "voters.silent_ms")?;
            Ok(VoterStatus {
                endpoint: nonempty(endpoint, "voters.endpoint")?,
                is_leader,
                silent_for,
            })
        })?,
    })
}

fn checked_time(JobTime { states, redone_ms, now }: JobTime) -> Result<JobTime, Malformed> {
    let state = |StateTime { state, ms, settled_ms }| {
        Ok(StateTime { state: name(state, "time.states")?, ms, settled_ms })
    };
    Ok(JobTime {
        states: list(states, "time.states", NAMES_MAX, state)?,
        redone_ms,
        now: now.map(|now| name(now, "time.now")).transpose()?,
    })
}

fn checked_node(node: NodeSnapshot) -> Result<NodeSnapshot, Malformed> {
    let NodeSnapshot {
        node_id,
        host_name,
        address,
        observed,
        agent_port,
        group_rank,
        first_global_rank,
        local_world_size,
        state,
        last_seen_ms,
        reason,
        progress,
        progress_age_ms,
        standbys,
        load,
        unhealthy,
        excluded,
    } = node;
    let words = |words: Option<String>, field, limit| {
        words.map(|words| text(printable(&words), field, limit)).transpose()
    };
    Ok(NodeSnapshot {
        node_id: NodeId::new(name(node_id.to_string(), "nodes.node_id")?),
        host_name: name(host_name, "nodes.host_name")?,
        address: name(address, "nodes.address")?,
        observed,
        agent_port,
        group_rank,
        first_global_rank,
        local_world_size,
        state,
        last_seen_ms,
        reason: words(reason, "nodes.reason", limits::MAX_TEXT_LEN)?,
        progress: words(progress, "nodes.progress", PROGRESS_MAX)?,
        progress_age_ms,
        standbys: standbys
            .map(|standbys| StandbyCounts::try_from(v1::Standbys::from(standbys)))
            .transpose()?,
        load: load.map(|load| name(load, "nodes.load")).transpose()?,
        unhealthy: unhealthy.as_deref().map(fitted_line),
        excluded: excluded.as_deref().map(fitted_line),
    })
}

fn checked_progress(progress: JobProgress) -> Result<JobProgress, Malformed> {
    let JobProgress { source: _, step, highest, steps_left, step_time, age: since } = progress;
    if [Some(step), Some(highest), steps_left].into_iter().flatten().any(|step| step > STEP_MAX) {
        return Err(Malformed::OutOfRange("progress.step"));
    }
    age(step_time.unwrap_or_default(), "progress.step_ms")?;
    age(since, "progress.age_ms")?;
    Ok(progress)
}

fn checked_saving(saving: Saving) -> Result<Saving, Malformed> {
    let Saving { notice, kind, hosts, source, saved_ranks, ranks, missing, left_ms } = saving;
    Ok(Saving {
        notice,
        kind,
        hosts: notice::hosts(hosts, "saving.hosts")?,
        source: name(source, "saving.source")?,
        saved_ranks,
        ranks,
        missing: name(missing, "saving.missing")?,
        left_ms,
    })
}

fn checked_checkpoints(times: CheckpointTimes) -> Result<CheckpointTimes, Malformed> {
    let part = |part: Option<f64>| part.is_none_or(|part| (0.0..=1.0).contains(&part));
    if !part(times.lost) || !part(times.best_lost) {
        return Err(Malformed::OutOfRange("checkpoints.lost"));
    }
    Ok(times)
}

fn checked_look(look: JobLook) -> Result<JobLook, Malformed> {
    let JobLook { number, age_ms, text, places, further, unknown, has_stacks, has_lines } = look;
    let is_range = |(first, last): &(u32, u32)| first <= last;
    let place = |LookPlace { text, count, ranks, stack }| {
        let ranks = list(ranks, "look.places.ranks", LOOK_RANGES_MAX, Ok)?;
        if !ranks.iter().all(is_range) {
            return Err(Malformed::OutOfRange("look.places.ranks"));
        }
        let text = fitted_to(&text, STALL_TEXT_MAX);
        let stack = stack.map(|stack| fitted_to(&stack, STALL_TEXT_MAX));
        Ok(LookPlace { text, count, ranks, stack })
    };
    Ok(JobLook {
        number,
        age_ms: to_millis(millis(age_ms, "look.age_ms")?),
        text: text.map(|text| fitted_to(&text, STALL_TEXT_MAX)),
        places: list(places, "look.places", LOOK_PLACES_MAX, place)?,
        further,
        unknown,
        has_stacks,
        has_lines,
    })
}

fn checked_stall(stall: Stall) -> Result<Stall, Malformed> {
    let Stall { step, for_ms, limit_ms, text, facts, rank } = stall;
    Ok(Stall {
        step: optional_step(step, "stall.step")?,
        for_ms: to_millis(millis(for_ms, "stall.for_ms")?),
        limit_ms: to_millis(millis(limit_ms, "stall.limit_ms")?),
        text: text.map(|text| fitted_to(&text, STALL_TEXT_MAX)),
        facts: list(facts, "stall.facts", STALL_FACTS_MAX, |fact| Ok(fitted_line(&fact)))?,
        rank,
    })
}

fn checked_memory(memory: MemoryStatus) -> Result<MemoryStatus, Malformed> {
    let MemoryStatus {
        step,
        is_copied,
        age_ms,
        cost_ms,
        needed,
        limit,
        bytes: in_use,
        copy_ms,
        waited_ms,
        text,
    } = memory;
    let time = |ms: Option<u64>, field| {
        ms.map(|ms| millis(ms, field)).transpose().map(|time| time.map(to_millis))
    };
    Ok(MemoryStatus {
        step: optional_step(step, "memory.step")?,
        is_copied,
        age_ms: time(age_ms, "memory.age_ms")?,
        cost_ms: time(cost_ms, "memory.cost_ms")?,
        needed: bytes(needed, "memory.needed")?,
        limit: bytes(limit, "memory.limit")?,
        // Sums of all nodes, which are not compared with a limit of one.
        bytes: in_use,
        copy_ms: time(copy_ms, "memory.copy_ms")?,
        waited_ms: to_millis(millis(waited_ms, "memory.waited_ms")?),
        text: text.as_deref().map(fitted_line),
    })
}

fn age(age: Duration, field: &'static str) -> Result<(), Malformed> {
    if to_millis(age) > limits::MAX_DURATION_MS {
        return Err(Malformed::OutOfRange(field));
    }
    Ok(())
}
