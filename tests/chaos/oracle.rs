//! Checks a job's history by the rules that must always hold. They are the rules of `docs/rendezvous.md`, with the same numbers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::history::{Death, History, Loaded, Process, Whose, WorkerEnvironment};

/// The time that a machine needs to kill its processes after it was frozen: the documented limit of the lease.
const SLIVER: Duration = Duration::from_millis(100);

/// The time that the processes of a dead agent or keeper may take to die.
const DYING: Duration = Duration::from_secs(1);

type Rule = fn(&History) -> Result<(), String>;

/// The rules, by name.
const RULES: [(&str, Rule); 10] = [
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
        let have_saved = |round: &Round<'_>| {
            let savers = workers(round).into_iter().filter(|saver| saver.saved.contains(&step));
            let ranks: BTreeSet<u32> = savers.map(|saver| saver.environment.rank).collect();
            let needed = if is_replicated { 1 } else { round[0].environment.world_size };
            ranks.len() >= needed as usize
        };
        check(rounds[..number].iter().filter(of_master).any(have_saved), || {
            format!("{} has loaded step {step} of {master}, which was not whole", name(worker))
        })?;
    }
    Ok(())
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
            loaded: None,
            saved: Vec::new(),
        }
    }

    fn admission(node: u32, round: (u64, u64), of: u32, master: &str) -> Admission {
        Admission { node, agent: 1, round, terms: (of, of, master.to_owned(), 0) }
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
            thaws: Vec::new(),
            standbys: 0,
            complaints: Vec::new(),
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
