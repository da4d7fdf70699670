//! Collects the history of a job: the files of its workers, the logs of its agents, and the faults that were injected.

use std::{
    collections::BTreeMap, fs, ops::RangeInclusive, path::Path, str::FromStr, time::Duration,
};

use serde_json::Value;

/// The input of the rules. All times are since boot.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The name of the job.
    pub(crate) run_id: String,
    /// The fewest nodes of a round.
    pub(crate) min_nodes: u32,
    /// The most nodes of a round.
    pub(crate) max_nodes: u32,
    /// Failures that may be charged.
    pub(crate) max_restarts: u32,
    /// All processes that have written a file, in order of their start.
    pub(crate) processes: Vec<Process>,
    /// The admissions that agents logged, in the order of each agent's log.
    pub(crate) admissions: Vec<Admission>,
    /// The ends of agents and keepers.
    pub(crate) deaths: Vec<Death>,
    /// The times at which a node that was frozen as a whole was resumed, process by process.
    pub(crate) thaws: Vec<(u32, RangeInclusive<Duration>)>,
    /// The times at which a worker was made to fail or to hang.
    pub(crate) failures: Vec<Duration>,
    /// The events of all coordinators, in order.
    pub(crate) journal: Vec<Event>,
    /// The exit codes of the agents of a job that has ended on all nodes at once.
    pub(crate) codes: Vec<i32>,
    /// The steps at which agents report that the job is saved, so that nothing is lost.
    pub(crate) saved_ends: Vec<u64>,
    /// True if a checkpoint in memory is the same for all ranks.
    pub(crate) is_replicated: bool,
    /// The number of workers that were started from standbys.
    pub(crate) standbys: usize,
    /// Log lines and events that must not occur.
    pub(crate) complaints: Vec<String>,
}

/// A worker, or a process that a worker has started.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Process {
    /// The number of its node.
    pub(crate) node: u32,
    /// The number of its agent among those of the node, from one.
    pub(crate) agent: u32,
    /// The pid of its agent's keeper.
    pub(crate) keeper: u32,
    /// Its pid.
    pub(crate) pid: u32,
    /// True if it is a worker.
    pub(crate) is_worker: bool,
    /// The values in its environment.
    pub(crate) environment: WorkerEnvironment,
    /// The time of its start.
    pub(crate) started: Duration,
    /// The times at which it was alive.
    pub(crate) beats: Vec<Duration>,
    /// The answer to its request for a checkpoint in memory; `None` if there was no request or no answer.
    pub(crate) loaded: Option<Loaded>,
    /// The steps that it has written to memory, before it told the agent.
    pub(crate) saved: Vec<u64>,
    /// The steps of which the agent has answered that they are whole.
    pub(crate) whole: Vec<u64>,
    /// The steps that it has saved for notices, by the number of the notice.
    pub(crate) answers: BTreeMap<u64, u64>,
}

/// The answer to a worker that loads from memory.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Loaded {
    /// There was nothing.
    Nothing,
    /// A block, with what is written in it; without a rank if it is the same for all.
    Block { step: u64, rank: Option<u32>, master: String },
    /// The content is not what a worker has saved for this step.
    Torn,
}

/// The values in a worker's environment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct WorkerEnvironment {
    pub(crate) run_id: String,
    pub(crate) rank: u32,
    pub(crate) local_rank: u32,
    pub(crate) group_rank: u32,
    pub(crate) world_size: u32,
    pub(crate) local_world_size: u32,
    pub(crate) group_world_size: u32,
    pub(crate) master: String,
    pub(crate) restart_count: u32,
    pub(crate) max_restarts: u32,
}

/// An agent's log line of an admission.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Admission {
    pub(crate) node: u32,
    pub(crate) agent: u32,
    /// Term and round.
    pub(crate) round: (u64, u64),
    /// The number of nodes, the number of workers, the master, and the restart count.
    pub(crate) terms: (u32, u32, String, u32),
    /// True if the agent had found its machine unhealthy.
    pub(crate) is_unhealthy: bool,
}

/// An event that a coordinator has recorded.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Event {
    /// The run of the job.
    pub(crate) job: String,
    /// The term of the coordinator, and a number.
    pub(crate) id: (u64, u64),
    pub(crate) round: u64,
    pub(crate) kind: String,
    /// The id of the node, empty if the event concerns all.
    pub(crate) node: String,
    pub(crate) text: String,
    pub(crate) data: Value,
}

/// The end of an agent or of a keeper.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Death {
    pub(crate) node: u32,
    pub(crate) whose: Whose,
    pub(crate) at: Duration,
}

/// The process that has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Whose {
    /// An agent, by its number among those of its node.
    Agent(u32),
    /// A keeper, by its pid.
    Keeper(u32),
}

impl Process {
    /// The last time at which it was alive.
    pub(crate) fn last_seen(&self) -> Duration {
        self.beats.last().copied().unwrap_or(self.started)
    }
}

/// Returns all processes of a node that have written a file so far.
pub(crate) fn read_processes(node: u32, folder: &Path) -> Vec<Process> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    texts.filter_map(|text| process(node, &text)).collect()
}

/// Parses a process. Returns `None` if its facts are incomplete.
fn process(node: u32, text: &str) -> Option<Process> {
    // A line that is being written has no newline yet.
    let (text, _) = text.rsplit_once('\n')?;
    let (facts, beats) = text.split_once('\n').unwrap_or((text, ""));
    let facts = pairs(facts);
    let environment = WorkerEnvironment {
        run_id: facts.get("run_id")?.to_string(),
        rank: number(&facts, "rank")?,
        local_rank: number(&facts, "local_rank")?,
        group_rank: number(&facts, "group_rank")?,
        world_size: number(&facts, "world_size")?,
        local_world_size: number(&facts, "local_world_size")?,
        group_world_size: number(&facts, "group_world_size")?,
        master: facts.get("master")?.to_string(),
        restart_count: number(&facts, "restart_count")?,
        max_restarts: number(&facts, "max_restarts")?,
    };
    Some(Process {
        node,
        agent: number(&facts, "agent")?,
        keeper: number(&facts, "keeper")?,
        pid: number(&facts, "pid")?,
        is_worker: *facts.get("kind")? == "worker",
        environment,
        started: seconds(facts.get("started")?)?,
        beats: beats.lines().filter_map(seconds).collect(),
        loaded: beats.lines().find_map(loaded),
        saved: steps(beats, "saving="),
        whole: steps(beats, "whole="),
        answers: beats.lines().filter_map(answer).collect(),
    })
}

fn steps(beats: &str, name: &str) -> Vec<u64> {
    beats.lines().filter_map(|line| line.strip_prefix(name)?.parse().ok()).collect()
}

fn answer(line: &str) -> Option<(u64, u64)> {
    let facts = pairs(line);
    Some((number(&facts, "answering")?, number(&facts, "step")?))
}

/// Parses the events of a journal.
pub(crate) fn read_journal(text: &str) -> Vec<Event> {
    text.lines().filter_map(event).collect()
}

fn event(line: &str) -> Option<Event> {
    let line: Value = serde_json::from_str(line).ok()?;
    let (term, number) = line["id"].as_str()?.split_once('.')?;
    let word = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    Some(Event {
        job: word("job_uid"),
        id: (term.parse().ok()?, number.parse().ok()?),
        round: line["round"].as_u64().unwrap_or_default(),
        kind: word("kind"),
        node: word("node_id"),
        text: word("text"),
        data: line["data"].clone(),
    })
}

fn loaded(line: &str) -> Option<Loaded> {
    if line == "loaded=nothing" {
        return Some(Loaded::Nothing);
    }
    let facts = pairs(line);
    if facts.contains_key("torn") {
        return Some(Loaded::Torn);
    }
    let master = facts.get("master")?.to_string();
    Some(Loaded::Block { step: number(&facts, "loaded")?, rank: number(&facts, "rank"), master })
}

/// Returns the admissions in an agent's log.
pub(crate) fn read_admissions(node: u32, agent: u32, log: &str) -> Vec<Admission> {
    let mut is_unhealthy = false;
    let admission = |line: &str| {
        is_unhealthy |= line.contains("this machine is unhealthy");
        is_unhealthy &= !line.contains("this machine is healthy again");
        if !line.contains("admitted; starting workers") {
            return None;
        }
        let facts = pairs(line);
        let (term, round) = facts.get("round")?.split_once('.')?;
        let terms = (
            number(&facts, "nodes")?,
            number(&facts, "world_size")?,
            facts.get("master")?.to_string(),
            number(&facts, "restart_count")?,
        );
        let round = (term.parse().ok()?, round.parse().ok()?);
        Some(Admission { node, agent, round, terms, is_unhealthy })
    };
    log.lines().filter_map(admission).collect()
}

fn pairs(line: &str) -> BTreeMap<&str, &str> {
    line.split_ascii_whitespace().filter_map(|word| word.split_once('=')).collect()
}

fn number<T: FromStr>(facts: &BTreeMap<&str, &str>, name: &str) -> Option<T> {
    facts.get(name)?.parse().ok()
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

/// Returns the step at which an agent reports that the job is saved.
pub(crate) fn read_saved_end(log: &str) -> Option<u64> {
    let (_, end) = log.rsplit_once("the job is saved at step ")?;
    end.split_once(':')?.0.replace(',', "").parse().ok()
}

/// The time since boot, from the clock that workers read. No other clock is free for them.
pub(crate) fn now() -> Duration {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split(' ').next().and_then(seconds).expect("Linux reports its uptime")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All complete lines of a worker's file are read.
    #[test]
    fn workers_files_are_read() {
        let text = "started=10.50 agent=2 kind=worker pid=7 keeper=6 run_id=j rank=3 local_rank=1 \
                    group_rank=2 world_size=4 local_world_size=2 group_world_size=3 \
                    master=10.77.0.1:4000 restart_count=1 max_restarts=9\n10.51\n\
                    loaded=7 rank=3 master=10.77.0.1:3999\n10.55\nsaving=8\nwhole=7\nsaving=9\n\
                    answering=4 step=17\n10.";
        let process = process(5, text).unwrap();
        assert_eq!((process.node, process.agent, process.pid), (5, 2, 7));
        assert_eq!((process.keeper, process.is_worker), (6, true));
        assert_eq!(process.environment.master, "10.77.0.1:4000");
        assert_eq!((process.environment.rank, process.environment.world_size), (3, 4));
        assert_eq!(process.last_seen(), Duration::from_millis(10_550));
        let master = "10.77.0.1:3999".to_owned();
        assert_eq!(process.loaded, Some(Loaded::Block { step: 7, rank: Some(3), master }));
        assert_eq!((process.saved, process.whole), (vec![8, 9], vec![7]));
        assert_eq!(process.answers, [(4, 17)].into());
    }

    /// Complete lines of a journal are parsed, also those without a node.
    #[test]
    fn journals_are_read() {
        let text = r#"{"id":"2.118","round":7,"kind":"worker_failed","node_id":"n1_0","text":"t","data":{"rank":11}}
                      {"id":"2.119","round":7,"kind":"notice_over","text":"t","data":{"step":null}}
                      {"id":"2.1"#;
        let [failed, over] = read_journal(text).try_into().unwrap();
        assert_eq!((failed.id, failed.round, failed.kind.as_str()), ((2, 118), 7, "worker_failed"));
        assert_eq!((failed.node.as_str(), failed.data["rank"].as_u64()), ("n1_0", Some(11)));
        assert_eq!((over.node.as_str(), over.data["step"].as_u64()), ("", None));
    }

    /// Admissions are parsed from the lines that agents log.
    #[test]
    fn logs_are_read() {
        let log = "2026-01-01T00:00:00Z  INFO registered term=2\n\
                   2026-01-01T00:00:00Z  INFO admitted; starting workers round=2.7 group_rank=1 \
                   nodes=2 world_size=3 master=10.77.0.1:4000 restart_count=1\n";
        let [admission] = read_admissions(1, 1, log).try_into().unwrap();
        assert_eq!(admission.round, (2, 7));
        assert_eq!(admission.terms, (2, 3, "10.77.0.1:4000".to_owned(), 1));
        assert!(!admission.is_unhealthy);
        let bad = "2026-01-01T00:00:00Z  WARN this machine is unhealthy: GPU 1 class=replace\n";
        let [admission] = read_admissions(1, 1, &format!("{bad}{log}")).try_into().unwrap();
        assert!(admission.is_unhealthy);
        let good = "2026-01-01T00:00:00Z  INFO this machine is healthy again\n";
        let [admission] = read_admissions(1, 1, &format!("{bad}{good}{log}")).try_into().unwrap();
        assert!(!admission.is_unhealthy);
        let end =
            "ragent: the job is saved at step 48,210: start it again, and it goes on from there\n";
        assert_eq!(read_saved_end(end), Some(48_210));
        assert_eq!(read_saved_end(log), None);
    }
}
