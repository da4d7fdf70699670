//! Checks a job's history by the rules that must always hold. They are the rules of `docs/rendezvous.md`, with the same numbers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    history::{Death, Event, History, Loaded, Process, Whose, WorkerEnvironment},
    schedule::BAD_MACHINES,
};

/// The time that a machine needs to kill its processes after it was frozen: the documented limit of the lease.
const SLIVER: Duration = Duration::from_millis(100);

/// The time that the processes of a dead agent or keeper may take to die.
const DYING: Duration = Duration::from_secs(1);

type Rule = fn(&History) -> Result<(), String>;

/// The rules, by name.
const RULES: [(&str, Rule); 16] = [
    ("1, ranks are dense", ranks_are_dense),
    ("1, all members have the same round", members_have_the_same_round),
    ("2 and 5, no two rounds run at once", no_two_rounds_run_at_once),
    ("3, rounds only grow", rounds_only_grow),
    ("4, no round is too small or too large", rounds_are_of_legal_size),
    ("6, nothing outlives its agent", nothing_outlives_its_agent),
    ("7, restarts are bounded and never forgotten", restarts_are_bounded),
    ("8, the job heals", the_job_heals),
    ("workers have the job's name", the_job_has_its_name),
    ("memory is of one step of one round", memory_is_of_one_step),
    ("memory is not older than what was whole", memory_is_newest),
    ("only failures of workers are charged", only_failures_are_charged),
    ("failures of bad machines are not charged", bad_machines_are_free),
    ("unhealthy nodes get no place", unhealthy_nodes_get_no_place),
    ("a notice is answered by all ranks", notices_are_answered_by_all),
    ("the job has one end", the_job_has_one_end),
];

/// Returns every broken rule, with the reason.
pub(crate) fn violations(history: &History) -> Vec<String> {
    let broken = RULES.iter().filter_map(|(name, rule)| Some((name, rule(history).err()?)));
    broken.map(|(name, why)| format!("rule {name}: {why}")).collect()
}

/// The processes of one round, by the time of their start.
type Round<'a> = Vec<&'a Process>;

/// Rounds in order of their start. A round has its own store, and so its own master, but a port may be used again. So processes with the
/// same master belong to one round only if no other round has started between them.
fn rounds(history: &History) -> Vec<Round<'_>> {
    let mut processes: Vec<&Process> = history.processes.iter().collect();
    processes.sort_by_key(|process| process.started);
    let same = |a: &&Process, b: &&Process| a.environment.master == b.environment.master;
    processes.chunk_by(same).map(<[_]>::to_vec).collect()
}

/// The number of rounds.
pub(crate) fn count_rounds(history: &History) -> usize {
    rounds(history).len()
}

fn check(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

fn workers<'a>(round: &Round<'a>) -> Vec<&'a Process> {
    round.iter().copied().filter(|process| process.is_worker).collect()
}

fn name(process: &Process) -> String {
    let Process { node, agent, pid, is_worker, environment, .. } = process;
    let what = if *is_worker { "worker" } else { "child of worker" };
    let WorkerEnvironment { rank, master, .. } = environment;
    format!("{what} {rank} (pid {pid}, agent {agent} of node {node}, master {master})")
}

/// Within a round no rank occurs twice, none is out of range, and a node has consecutive ranks. A round that has started completely has all
/// ranks.
fn ranks_are_dense(history: &History) -> Result<(), String> {
    for round in rounds(history) {
        let workers = workers(&round);
        let mut ranks = BTreeMap::new();
        let mut groups: BTreeMap<u32, (u32, u32, i64)> = BTreeMap::new();
        let mut nodes = BTreeMap::new();
        for worker in &workers {
            let environment = &worker.environment;
            check(environment.rank < environment.world_size, || {
                format!("{} of too few", name(worker))
            })?;
            check(environment.group_rank < environment.group_world_size, || {
                format!("{} has group rank {}", name(worker), environment.group_rank)
            })?;
            check(environment.local_rank < environment.local_world_size, || {
                format!("{} has local rank {}", name(worker), environment.local_rank)
            })?;
            if let Some(other) = ranks.insert(environment.rank, worker) {
                return Err(format!("{} is there twice: {}", name(worker), name(other)));
            }
            let first = i64::from(environment.rank) - i64::from(environment.local_rank);
            let group = (worker.node, environment.local_world_size, first);
            let known = groups.entry(environment.group_rank).or_insert(group);
            check(*known == group, || {
                format!("group rank {}: {known:?} is not {group:?}", environment.group_rank)
            })?;
            let known = nodes.entry(worker.node).or_insert(environment.group_rank);
            check(*known == environment.group_rank, || {
                format!(
                    "node {} has group ranks {known} and {}",
                    worker.node, environment.group_rank
                )
            })?;
        }
        let is_whole =
            groups.len() == workers.first().map_or(0, |w| w.environment.group_world_size as usize);
        let mut next = 0;
        for (rank, (_, size, first)) in groups.iter().filter(|_| is_whole) {
            check(*first == next, || {
                format!("group rank {rank} begins at rank {first} instead of {next}")
            })?;
            next += i64::from(*size);
        }
        let world_size =
            workers.first().map_or(0, |worker| i64::from(worker.environment.world_size));
        check(!is_whole || next == world_size, || {
            format!("{next} ranks in a world of {world_size}")
        })?;
    }
    Ok(())
}

/// All members of a round have the same sizes, restart count and master.
fn members_have_the_same_round(history: &History) -> Result<(), String> {
    for round in rounds(history) {
        let terms = |process: &Process| {
            let environment = &process.environment;
            (
                environment.world_size,
                environment.group_world_size,
                environment.restart_count,
                environment.max_restarts,
            )
        };
        for pair in round.windows(2) {
            check(terms(pair[0]) == terms(pair[1]), || {
                let [a, b] = [pair[0], pair[1]].map(|p| format!("{} {:?}", name(p), terms(p)));
                format!("{a} is not {b}")
            })?;
        }
    }
    let mut admitted = BTreeMap::new();
    for admission in &history.admissions {
        let known = admitted.entry(admission.round).or_insert(admission);
        check(known.terms == admission.terms, || format!("{known:?} is not {admission:?}"))?;
    }
    Ok(())
}

/// No process of a round is alive once a later one has started anywhere.
fn no_two_rounds_run_at_once(history: &History) -> Result<(), String> {
    let is_excused = |process: &Process, at: Duration| {
        let mut thaws = history.thaws.iter().filter(|(node, _)| *node == process.node);
        thaws.any(|(_, thaw)| *thaw.start() <= at && at <= *thaw.end() + SLIVER)
    };
    let mut later: Option<&Process> = None;
    for round in rounds(history).iter().rev() {
        let Some(newer) = later.replace(round[0]) else { continue };
        for process in round {
            let beats = [process.started].into_iter().chain(process.beats.iter().copied());
            let last = beats.filter(|&beat| !is_excused(process, beat)).max();
            let overlap = last.and_then(|last| last.checked_sub(newer.started));
            check(overlap.is_none_or(|overlap| overlap.is_zero()), || {
                let (old, new) = (name(process), name(newer));
                let (last, start) = (last.unwrap_or_default(), newer.started);
                format!("{old} is alive at {last:.2?}, after the start of {new} at {start:.2?}")
            })?;
        }
    }
    Ok(())
}

/// The rounds of each node only grow, also from one agent to the next.
fn rounds_only_grow(history: &History) -> Result<(), String> {
    let mut newest = BTreeMap::new();
    for admission in &history.admissions {
        let before = newest.insert(admission.node, admission);
        check(before.is_none_or(|before| before.round < admission.round), || {
            format!("{admission:?} after {before:?}")
        })?;
    }
    Ok(())
}

/// A round has a number of nodes that `--nnodes` allows.
fn rounds_are_of_legal_size(history: &History) -> Result<(), String> {
    let legal = history.min_nodes..=history.max_nodes;
    for process in &history.processes {
        let nodes = process.environment.group_world_size;
        check(legal.contains(&nodes), || format!("{} is one of {nodes} nodes", name(process)))?;
    }
    Ok(())
}

/// The descendants of an agent or a keeper end with it.
fn nothing_outlives_its_agent(history: &History) -> Result<(), String> {
    for Death { node, whose, at } in &history.deaths {
        let is_left = |process: &&Process| {
            let is_of = match *whose {
                Whose::Agent(agent) => process.agent == agent,
                Whose::Keeper(keeper) => process.keeper == keeper,
            };
            process.node == *node && is_of && process.last_seen() > *at + DYING
        };
        if let Some(left) = history.processes.iter().find(is_left) {
            let seen = left.last_seen();
            return Err(format!(
                "{} is alive at {seen:.2?}; {whose:?} died at {at:.2?}",
                name(left)
            ));
        }
    }
    Ok(())
}

/// Restarts that were charged stay charged, and are within the budget. If all agents of a round have ended, the next round may belong to a
/// job that was launched again, with a full budget.
fn restarts_are_bounded(history: &History) -> Result<(), String> {
    let mut charged = 0;
    let mut last = Round::new();
    for round in rounds(history) {
        if have_ended(history, &last, round[0].started) {
            charged = 0;
        }
        for process in &round {
            let environment = &process.environment;
            check(environment.max_restarts == history.max_restarts, || {
                format!("{} may restart {} times", name(process), environment.max_restarts)
            })?;
            let legal = charged..=environment.max_restarts;
            check(legal.contains(&environment.restart_count), || {
                format!(
                    "{} has restart count {} after {charged}",
                    name(process),
                    environment.restart_count
                )
            })?;
            charged = environment.restart_count;
        }
        last = round;
    }
    Ok(())
}

/// Returns true if the agents of all nodes of a round had ended by this time.
fn have_ended(history: &History, round: &Round<'_>, by: Duration) -> bool {
    round.iter().all(|process| {
        let is_its_agent = |death: &&Death| {
            death.node == process.node && death.whose == Whose::Agent(process.agent)
        };
        history.deaths.iter().find(is_its_agent).is_some_and(|death| death.at <= by)
    })
}

/// There are no complaints, such as a job that hangs, or an agent that ends unexpectedly or panics.
fn the_job_heals(history: &History) -> Result<(), String> {
    check(history.complaints.is_empty(), || history.complaints.join("; "))
}

/// All workers of a round that load from memory get the same step, each its own block, as it was saved. All ranks of one earlier round have
/// saved that step; if it is the same for all, one of them.
fn memory_is_of_one_step(history: &History) -> Result<(), String> {
    let rounds = rounds(history);
    for (number, round) in rounds.iter().enumerate() {
        let mut common = None;
        for worker in workers(round) {
            let Some(loaded) = &worker.loaded else { continue };
            let step = match loaded {
                Loaded::Nothing => None,
                Loaded::Torn => return Err(format!("{} has loaded torn content", name(worker))),
                Loaded::Block { step, rank, master } => {
                    check(rank.is_none_or(|rank| rank == worker.environment.rank), || {
                        format!("{} has loaded the block of rank {rank:?}", name(worker))
                    })?;
                    Some((*step, rank.is_none(), master.as_str()))
                }
            };
            let (known, other) = common.get_or_insert((step, worker));
            check(*known == step, || {
                format!("{} has loaded {step:?}, and {} {known:?}", name(worker), name(other))
            })?;
        }
        let Some((Some((step, is_replicated, master)), worker)) = common else { continue };
        let of_master = |round: &&Round<'_>| round[0].environment.master == master;
        let have_saved =
            |round: &Round<'_>| have_all(round, is_replicated, |saver| saver.saved.contains(&step));
        check(rounds[..number].iter().filter(of_master).any(have_saved), || {
            format!("{} has loaded step {step} of {master}, which was not whole", name(worker))
        })?;
    }
    Ok(())
}

/// Returns true if all ranks of a round have saved something; if it is the same for all, one of them.
fn have_all(round: &Round<'_>, is_replicated: bool, has: impl Fn(&Process) -> bool) -> bool {
    let savers = workers(round).into_iter().filter(|saver| has(saver));
    let ranks: BTreeSet<u32> = savers.map(|saver| saver.environment.rank).collect();
    let needed = if is_replicated { 1 } else { round[0].environment.world_size };
    ranks.len() >= needed as usize
}

/// If agents, keepers and ranks stay the same from one round to the next, the next one loads no step before the newest whole one. The
/// exceptions are a checkpoint that is not used again, memory that is off, and a job with a round that has left no trace.
fn memory_is_newest(history: &History) -> Result<(), String> {
    let is_exception = |event: &Event| matches!(&event.kind[..], "memory_struck" | "memory_off");
    if history.journal.iter().any(is_exception) {
        return Ok(());
    }
    // A round whose workers have written nothing before they ended is not known here. It may have begun from disk.
    let admitted: BTreeSet<_> =
        history.admissions.iter().map(|admission| admission.round).collect();
    if admitted.len() > count_rounds(history) {
        return Ok(());
    }
    let places = |round: &Round<'_>| -> BTreeSet<(u32, u32, u32, u32)> {
        let place = |p: &Process| (p.environment.rank, p.node, p.agent, p.keeper);
        workers(round).into_iter().map(place).collect()
    };
    for pair in rounds(history).windows(2) {
        let [before, after] = pair else { continue };
        let [old_size, size] = [before, after].map(|round| round[0].environment.world_size);
        let are_same = old_size == size && places(before) == places(after);
        if !are_same || places(before).len() < size as usize {
            continue;
        }
        let newest = workers(before).iter().flat_map(|p| p.whole.iter().copied()).max();
        for worker in workers(after) {
            let step = match &worker.loaded {
                None | Some(Loaded::Torn) => continue,
                Some(Loaded::Nothing) => None,
                Some(Loaded::Block { step, .. }) => Some(*step),
            };
            check(step >= newest, || {
                format!("{} has loaded {step:?} after {newest:?} was whole", name(worker))
            })?;
        }
    }
    Ok(())
}

/// At most as many failures are charged as workers were made to fail until then. So nothing else is charged, and no failure twice.
fn only_failures_are_charged(history: &History) -> Result<(), String> {
    for process in &history.processes {
        let failures = history.failures.iter().filter(|at| **at <= process.started).count();
        let charged = process.environment.restart_count;
        check(charged as usize <= failures, || {
            format!("{} has restart count {charged} after {failures} failures", name(process))
        })?;
    }
    Ok(())
}

/// Events that may leave a job without MIN other nodes. A machine that is needed is charged.
const LOSSES: [&str; 6] = [
    "node_lost",
    "node_left",
    "node_lease_expired",
    "coordinator_took_over",
    "coordinator_started",
    "recovering",
];

/// A failure is not charged if a GPU of the node had reported an error before that needs a repair, and the other nodes reach MIN.
fn bad_machines_are_free(history: &History) -> Result<(), String> {
    for (place, charged) in history.journal.iter().enumerate() {
        let before = || history.journal[..place].iter().filter(|event| event.job == charged.job);
        let in_round = |kind: &str| {
            let mut events = before().filter(|event| event.round == charged.round);
            events.rfind(|event| event.kind == kind).cloned()
        };
        let is_of_bad_machine = |event: Event| {
            event.node == charged.node
                && event.text.contains("XID 79")
                && event.text.contains("before")
        };
        if charged.kind != "failure_charged"
            || !in_round("worker_failed").is_some_and(is_of_bad_machine)
        {
            continue;
        }
        let nodes = in_round("round_admitted").and_then(|event| event.data["nodes"].as_u64());
        // Another machine may be bad at the same time.
        let enough = u64::from(history.min_nodes) + BAD_MACHINES;
        let is_needed = nodes.is_none_or(|nodes| nodes < enough)
            || LOSSES.iter().any(|kind| in_round(kind).is_some())
            || before().any(|event| event.kind == "node_quarantined");
        check(is_needed, || format!("the failure of a bad machine is charged: {charged:?}"))?;
    }
    Ok(())
}

/// A node whose machine is unhealthy takes part only if there are too few others. Then the round has the fewest nodes.
fn unhealthy_nodes_get_no_place(history: &History) -> Result<(), String> {
    let mut unhealthy = history.admissions.iter().filter(|admission| admission.is_unhealthy);
    unhealthy.try_for_each(|admission| {
        check(admission.terms.0 == history.min_nodes, || format!("{admission:?}"))
    })
}

/// Returns true if all ranks of a round have saved this step on disk, for the same notice.
fn is_on_disk(history: &History, step: u64) -> bool {
    let numbers: BTreeSet<u64> =
        history.processes.iter().flat_map(|p| p.answers.keys().copied()).collect();
    let has = |round: &Round<'_>, number: u64| {
        have_all(round, false, |p| p.answers.get(&number) == Some(&step))
    };
    rounds(history).iter().any(|round| numbers.iter().any(|number| has(round, *number)))
}

/// A notice is over with a step only if all ranks have saved this step, on disk or in memory. A job that ends as saved is on disk.
fn notices_are_answered_by_all(history: &History) -> Result<(), String> {
    let in_memory = |step: u64| {
        let has =
            |round: &Round<'_>| have_all(round, history.is_replicated, |p| p.saved.contains(&step));
        rounds(history).iter().any(has)
    };
    for over in history.journal.iter().filter(|event| event.kind == "notice_over") {
        let Some(step) = over.data["step"].as_u64() else { continue };
        check(is_on_disk(history, step) || in_memory(step), || {
            format!("not all have saved: {over:?}")
        })?;
    }
    let mut ends = history.saved_ends.iter();
    ends.try_for_each(|step| {
        check(is_on_disk(history, *step), || {
            format!("the job ends at step {step}, which is not saved")
        })
    })
}

/// If the job ends on all nodes at once, all agents have the same exit code.
fn the_job_has_one_end(history: &History) -> Result<(), String> {
    let codes = &history.codes;
    check(codes.windows(2).all(|pair| pair[0] == pair[1]), || format!("exit codes {codes:?}"))
}

fn count(history: &History, is_counted: impl Fn(&Event) -> bool) -> usize {
    history.journal.iter().filter(|event| is_counted(event)).count()
}

/// The number of notices after which all ranks have saved.
pub(crate) fn count_saved(history: &History) -> usize {
    count(history, |event| event.kind == "notice_over" && event.data["step"].is_u64())
}

/// The number of workers that were killed because they hung.
pub(crate) fn count_hung(history: &History) -> usize {
    count(history, |event| event.kind == "worker_failed" && event.text.contains("no progress"))
}

/// The number of failures that were not charged because the machine was unhealthy.
pub(crate) fn count_free(history: &History) -> usize {
    count(history, |event| event.data["reason"] == "bad_machine")
}

/// The number of rounds whose workers have loaded a step from memory.
pub(crate) fn count_restored(history: &History) -> usize {
    let has_loaded =
        |round: &Round<'_>| round.iter().any(|p| matches!(p.loaded, Some(Loaded::Block { .. })));
    rounds(history).iter().filter(|round| has_loaded(round)).count()
}

/// All workers get the run id of the job.
fn the_job_has_its_name(history: &History) -> Result<(), String> {
    let names: BTreeSet<&str> =
        history.processes.iter().map(|p| p.environment.run_id.as_str()).collect();
    check(names.iter().all(|name| *name == history.run_id), || format!("{names:?}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::history::Admission;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A worker of round `round`, the only one of its node.
    fn worker(round: u32, rank: u32, of: u32, from: u64, to: u64) -> Process {
        let environment = WorkerEnvironment {
            run_id: "j".to_owned(),
            rank,
            local_rank: 0,
            group_rank: rank,
            world_size: of,
            local_world_size: 1,
            group_world_size: of,
            master: format!("10.77.0.1:{}", 4_000 + round),
            restart_count: 0,
            max_restarts: 9,
        };
        Process {
            node: rank + 1,
            agent: 1,
            keeper: 50 + rank,
            pid: round * 100 + rank,
            is_worker: true,
            environment,
            started: ms(from),
            beats: vec![ms(from + 10), ms(to)],
            ..Process::default()
        }
    }

    fn admission(node: u32, round: (u64, u64), of: u32, master: &str) -> Admission {
        let terms = (of, of, master.to_owned(), 0);
        Admission { node, agent: 1, round, terms, is_unhealthy: false }
    }

    /// Two rounds, one of two nodes and one of three, with a child of a worker in the second.
    fn good() -> History {
        let mut child = worker(2, 2, 3, 2_020, 3_000);
        child.is_worker = false;
        History {
            run_id: "j".to_owned(),
            min_nodes: 2,
            max_nodes: 4,
            max_restarts: 9,
            processes: vec![
                worker(1, 0, 2, 1_000, 1_900),
                worker(1, 1, 2, 1_010, 2_000),
                worker(2, 0, 3, 2_000, 3_000),
                worker(2, 1, 3, 2_000, 3_000),
                worker(2, 2, 3, 2_010, 3_000),
                child,
            ],
            admissions: vec![
                admission(1, (1, 1), 2, "m:1"),
                admission(1, (2, 2), 3, "m:2"),
                admission(2, (1, 1), 2, "m:1"),
                admission(2, (2, 2), 3, "m:2"),
            ],
            deaths: vec![Death { node: 1, whose: Whose::Agent(1), at: ms(2_500) }],
            failures: (0..20).map(ms).collect(),
            ..History::default()
        }
    }

    /// The names of the rules that are broken after `change` is made to a good history.
    fn broken(change: impl FnOnce(&mut History)) -> Vec<String> {
        let mut history = good();
        change(&mut history);
        let names = violations(&history).into_iter();
        names
            .filter_map(|why| Some(why.strip_prefix("rule ")?.split(':').next()?.to_owned()))
            .collect()
    }

    const DENSE: &str = "1, ranks are dense";
    const ALIKE: &str = "1, all members have the same round";
    const ONE_AT_ONCE: &str = "2 and 5, no two rounds run at once";
    const GROW: &str = "3, rounds only grow";
    const SIZE: &str = "4, no round is too small or too large";
    const ORPHANS: &str = "6, nothing outlives its agent";
    const RESTARTS: &str = "7, restarts are bounded and never forgotten";
    const MEMORY: &str = "memory is of one step of one round";
    const NEWEST: &str = "memory is not older than what was whole";
    const CHARGES: &str = "only failures of workers are charged";
    const BAD: &str = "failures of bad machines are not charged";
    const PLACES: &str = "unhealthy nodes get no place";
    const ANSWERED: &str = "a notice is answered by all ranks";
    const END: &str = "the job has one end";

    /// A correct history breaks no rule. A round that has started only in part breaks none either.
    #[test]
    fn good_histories_are_good() {
        assert_eq!(broken(|_| {}), [""; 0]);
        assert_eq!(broken(|h| drop(h.processes.remove(3))), [""; 0]);
        assert_eq!(broken(|h| h.processes.clear()), [""; 0]);
    }

    /// A third round of two workers, which have loaded step 5 of the first one.
    fn restored(change: impl FnOnce(&mut [Process])) -> Vec<String> {
        let mut processes = good().processes;
        processes.extend([worker(3, 0, 2, 4_000, 5_000), worker(3, 1, 2, 4_000, 5_000)]);
        // The first one of its node has died.
        processes[6].agent = 2;
        for (rank, index) in [(0, 6), (1, 7)] {
            processes[rank as usize].saved = vec![4, 5, 6];
            let master = "10.77.0.1:4001".to_owned();
            processes[index].loaded = Some(Loaded::Block { step: 5, rank: Some(rank), master });
        }
        change(&mut processes);
        broken(|history| history.processes = processes)
    }

    /// A step that not all ranks have saved, another one for each worker, the block of another rank, and torn content break the rule.
    #[test]
    fn wrong_memory_is_noticed() {
        assert_eq!(restored(|_| {}), [""; 0]);
        assert_eq!(restored(|p| p[6].loaded = None), [""; 0]);
        assert_eq!(restored(|p| p[6].loaded = Some(Loaded::Nothing)), [MEMORY]);
        assert_eq!(restored(|p| p[6].loaded = Some(Loaded::Torn)), [MEMORY]);
        assert_eq!(restored(|p| p[1].saved = vec![4, 6]), [MEMORY]);
        assert_eq!(restored(|p| p[6].loaded = p[7].loaded.clone()), [MEMORY]);
        let replicate = |p: &mut [Process]| {
            for process in &mut p[6..] {
                let Some(Loaded::Block { rank, .. }) = &mut process.loaded else { panic!() };
                *rank = None;
            }
            p[1].saved.clear();
        };
        assert_eq!(restored(replicate), [""; 0]);
        let change = |p: &mut [Process], number: u64| {
            let Some(Loaded::Block { step, .. }) = &mut p[7].loaded else { panic!() };
            *step = number;
        };
        assert_eq!(restored(|p| change(p, 6)), [MEMORY]);
        let change = |p: &mut [Process]| {
            for process in &mut p[6..] {
                let Some(Loaded::Block { master, .. }) = &mut process.loaded else { panic!() };
                *master = "10.77.0.1:4002".to_owned();
            }
        };
        assert_eq!(restored(change), [MEMORY]);
    }

    /// A step before the newest whole one breaks the rule, if nothing but workers has ended.
    #[test]
    fn old_memory_is_noticed() {
        let loaded = |whole: u64, change: fn(&mut History)| {
            let mut processes = good().processes;
            processes.truncate(2);
            processes.extend([worker(2, 0, 2, 4_000, 5_000), worker(2, 1, 2, 4_000, 5_000)]);
            processes.iter_mut().for_each(|process| process.saved = vec![4, 5, 6]);
            processes[1].whole = vec![4, whole];
            for process in &mut processes[2..] {
                let (step, rank) = (5, Some(process.environment.rank));
                let master = "10.77.0.1:4001".to_owned();
                process.loaded = Some(Loaded::Block { step, rank, master });
            }
            broken(|h| {
                (h.processes, h.deaths) = (processes, Vec::new());
                change(h);
            })
        };
        assert_eq!(loaded(5, |_| {}), [""; 0]);
        assert_eq!(loaded(6, |_| {}), [NEWEST]);
        assert_eq!(loaded(6, |h| h.processes[3].keeper = 7), [""; 0]);
        let strike =
            |h: &mut History| h.journal = vec![event(1, "memory_struck", "", "", Value::Null)];
        assert_eq!(loaded(6, strike), [""; 0]);
        let unseen = |h: &mut History| {
            let mut unseen = h.admissions[0].clone();
            for round in 7..10 {
                unseen.round.1 = round;
                h.admissions.push(unseen.clone());
            }
        };
        assert!(!loaded(6, unseen).contains(&NEWEST.to_owned()));
        let grow = |h: &mut History| {
            h.processes[2..].iter_mut().for_each(|p| p.environment.world_size = 3);
        };
        assert!(!loaded(6, grow).contains(&NEWEST.to_owned()));
        let forget = |h: &mut History| {
            h.processes[2..].iter_mut().for_each(|p| p.loaded = Some(Loaded::Nothing));
        };
        assert_eq!(loaded(4, forget), [NEWEST]);
    }

    #[test]
    fn doubled_ranks_are_noticed() {
        assert_eq!(broken(|h| h.processes[4].environment.rank = 1), [DENSE]);
        assert_eq!(broken(|h| h.processes[4].environment.group_rank = 1), [DENSE]);
        assert_eq!(broken(|h| h.processes[1].node = 1), [DENSE]);
    }

    #[test]
    fn ranks_out_of_range_are_noticed() {
        assert_eq!(broken(|h| h.processes[4].environment.rank = 3), [DENSE]);
        assert_eq!(broken(|h| h.processes[4].environment.group_rank = 3), [DENSE]);
        assert_eq!(broken(|h| h.processes[4].environment.local_rank = 1), [DENSE]);
    }

    /// Gaps in a round that has started completely, and ranks that do not follow the order of the
    /// nodes, are found.
    #[test]
    fn gaps_are_noticed() {
        let gap = |h: &mut History| {
            for process in &mut h.processes[2..] {
                process.environment.world_size = 4;
            }
            h.processes[4].environment.rank = 3;
        };
        assert_eq!(broken(gap), [DENSE]);
        let swapped = |h: &mut History| {
            h.processes[2].environment.rank = 1;
            h.processes[3].environment.rank = 0;
        };
        assert_eq!(broken(swapped), [DENSE]);
    }

    #[test]
    fn differing_terms_are_noticed() {
        assert_eq!(broken(|h| h.processes[1].environment.world_size = 3), [ALIKE]);
        assert_eq!(broken(|h| h.processes[5].environment.group_world_size = 4), [ALIKE]);
        assert_eq!(broken(|h| h.admissions[2].terms.2 = "m:3".to_owned()), [ALIKE]);
    }

    /// A worker, or its child, that is alive after the next round has begun is found. A worker that starts late is found too.
    #[test]
    fn overlapping_rounds_are_noticed() {
        assert_eq!(broken(|h| h.processes[1].beats.push(ms(2_010))), [ONE_AT_ONCE]);
        let child = |h: &mut History| {
            h.processes.push(Process { is_worker: false, ..worker(1, 1, 2, 1_020, 2_200) });
        };
        assert_eq!(broken(child), [ONE_AT_ONCE]);
        assert_eq!(broken(|h| h.processes[1].started = ms(2_005)), [ONE_AT_ONCE]);
    }

    /// After a freeze, only the processes of that node have more time, and only up to the limit.
    #[test]
    fn sliver_is_bounded() {
        let late = |node: u32, beat: u64| {
            broken(|h| {
                h.thaws.push((node, ms(2_300)..=ms(2_310)));
                h.processes[1].beats.push(ms(beat));
            })
        };
        assert_eq!(late(2, 2_400), [""; 0]);
        assert_eq!(late(2, 2_420), [ONE_AT_ONCE]);
        assert_eq!(late(2, 2_290), [ONE_AT_ONCE]);
        assert_eq!(late(3, 2_400), [ONE_AT_ONCE]);
    }

    #[test]
    fn falling_rounds_are_noticed() {
        assert_eq!(broken(|h| h.admissions.swap(0, 1)), [GROW]);
        assert_eq!(broken(|h| h.admissions.push(h.admissions[3].clone())), [GROW]);
    }

    #[test]
    fn illegal_sizes_are_noticed() {
        assert_eq!(broken(|h| h.min_nodes = 3), [SIZE]);
        assert_eq!(broken(|h| h.max_nodes = 2), [SIZE]);
    }

    /// Processes that outlive their agent or their keeper are found.
    #[test]
    fn orphans_are_noticed() {
        assert_eq!(broken(|h| h.deaths[0].at = ms(1_900)), [ORPHANS]);
        let keeper = |at| Death { node: 3, whose: Whose::Keeper(52), at: ms(at) };
        assert_eq!(broken(|h| h.deaths.push(keeper(2_100))), [""; 0]);
        assert_eq!(broken(|h| h.deaths.push(keeper(1_990))), [ORPHANS]);
    }

    #[test]
    fn restarts_beyond_the_budget_are_noticed() {
        let restarts = |first: u32, second: u32| {
            broken(|h| {
                let (old, new) = h.processes.split_at_mut(2);
                old.iter_mut().for_each(|process| process.environment.restart_count = first);
                new.iter_mut().for_each(|process| process.environment.restart_count = second);
            })
        };
        assert_eq!(restarts(8, 9), [""; 0]);
        assert_eq!(restarts(9, 10), [RESTARTS]);
        assert_eq!(restarts(2, 1), [RESTARTS]);
    }

    /// A restart count above the number of workers that were made to fail before breaks the rule.
    #[test]
    fn charges_without_a_failure_are_noticed() {
        let charges = |restarts: u32, at: u64| {
            broken(|h| {
                let new = &mut h.processes[2..];
                new.iter_mut().for_each(|process| process.environment.restart_count = restarts);
                h.failures = vec![ms(1_500), ms(at)];
            })
        };
        assert_eq!(charges(2, 1_990), [""; 0]);
        assert_eq!(charges(3, 1_990), [CHARGES]);
        assert_eq!(charges(2, 2_500), [CHARGES]);
    }

    fn event(number: u64, kind: &str, node: &str, text: &str, data: Value) -> Event {
        let [kind, node, text] = [kind, node, text].map(str::to_owned);
        Event { job: "u".to_owned(), id: (1, number), round: 1, kind, node, text, data }
    }

    /// The failure of a machine that was known as bad may be charged only if the job needs the machine.
    #[test]
    fn charged_bad_machines_are_noticed() {
        let charged = |nodes: u32, text: &str, also: &str| {
            broken(|h| {
                h.journal = vec![
                    event(1, "round_admitted", "", "", json!({"nodes": nodes})),
                    event(2, "worker_failed", "n1", text, Value::Null),
                    event(3, also, "n2", "", Value::Null),
                    event(4, "failure_charged", "n1", "", Value::Null),
                ];
            })
        };
        let bad = "killed by SIGKILL; GPU 1 reported XID 79 (fell off the bus) 0.4 s before";
        assert_eq!(charged(4, bad, "round_ended"), [BAD]);
        assert_eq!(charged(3, bad, "round_ended"), [""; 0]);
        assert_eq!(charged(4, "killed by SIGKILL", "round_ended"), [""; 0]);
        assert_eq!(charged(4, bad, "node_lost"), [""; 0]);
        assert_eq!(charged(4, bad, "node_quarantined"), [""; 0]);
    }

    /// An unhealthy node in a round with more than the fewest nodes breaks the rule.
    #[test]
    fn places_of_unhealthy_nodes_are_noticed() {
        assert_eq!(broken(|h| h.admissions[0].is_unhealthy = true), [""; 0]);
        assert_eq!(broken(|h| h.admissions[1].is_unhealthy = true), [PLACES]);
    }

    /// A notice that is over with a step that not all ranks have saved for it breaks the rule, and so does the end of a job with it.
    #[test]
    fn incomplete_answers_are_noticed() {
        let answered = |change: fn(&mut History)| {
            broken(|h| {
                h.journal = vec![event(1, "notice_over", "", "", json!({"notice": 4, "step": 7}))];
                h.saved_ends = vec![7, 7];
                for process in &mut h.processes[2..5] {
                    process.answers = [(4, 7)].into();
                }
                change(h);
            })
        };
        assert_eq!(answered(|_| {}), [""; 0]);
        assert_eq!(answered(|h| h.processes[3].answers = [(4, 8)].into()), [ANSWERED]);
        assert_eq!(answered(|h| h.processes[3].answers = [(3, 7)].into()), [ANSWERED]);
        assert_eq!(answered(|h| h.journal[0].data["step"] = 8.into()), [ANSWERED]);
        assert_eq!(answered(|h| h.saved_ends[1] = 8), [ANSWERED]);
        assert_eq!(answered(|h| h.journal[0].data["step"] = Value::Null), [""; 0]);
        // A step in memory is enough for a notice, but not for the end of the job.
        let keep = |h: &mut History| {
            h.journal[0].data["step"] = 9.into();
            h.processes[..2].iter_mut().for_each(|p| p.saved = vec![9]);
        };
        assert_eq!(answered(keep), [""; 0]);
    }

    /// A job that ends at once has one exit code.
    #[test]
    fn different_ends_are_noticed() {
        assert_eq!(broken(|h| h.codes = vec![5, 5]), [""; 0]);
        assert_eq!(broken(|h| h.codes = vec![5, 8]), [END]);
    }

    /// The restarts that were charged may be forgotten only if all agents of the round before have ended.
    #[test]
    fn forgotten_restarts_are_noticed() {
        let forgotten_after = |deaths: &[u32]| {
            broken(|h| {
                h.processes[..2].iter_mut().for_each(|p| p.environment.restart_count = 1);
                h.processes[2..].iter_mut().for_each(|p| p.agent = 2);
                let whose = Whose::Agent(1);
                h.deaths =
                    deaths.iter().map(|&node| Death { node, whose, at: ms(2_000) }).collect();
            })
        };
        assert_eq!(forgotten_after(&[1, 2]), [""; 0]);
        assert_eq!(forgotten_after(&[1]), [RESTARTS]);
        assert_eq!(forgotten_after(&[1, 3]), [RESTARTS]);
    }

    #[test]
    fn complaints_are_passed_on() {
        let complain = |h: &mut History| h.complaints.push("it hangs".to_owned());
        assert_eq!(broken(complain), ["8, the job heals"]);
        assert_eq!(broken(|h| h.run_id = "k".to_owned()), ["workers have the job's name"]);
    }
}
