//! Builds digests for tests.

use crate::{
    ids::{GlobalRank, Round, RoundId, Term},
    message::{Activity, Digest, GroupLook, LISTED_RANKS_MAX, Launched, LookPart, WorkerLook},
    stall::{Own, RankedNode, explain_stall},
};

pub(super) const ROUND: RoundId = RoundId { term: Term(1), round: Round(3) };

pub(super) fn own(hosts: &[(&str, u32)]) -> Own {
    let mut first = 0;
    let mut nodes = Vec::new();
    for (host, workers) in hosts {
        nodes.push(RankedNode {
            host: (*host).to_owned(),
            first: GlobalRank(first),
            workers: *workers,
        });
        first += workers;
    }
    let store = Some("10.0.0.1:41000".to_owned());
    Own { round: ROUND, look: 4, nodes, store, ..Own::default() }
}

/// Returns hosts `n0`, `n1`, … with the same number of workers.
pub(super) fn hosts(nodes: u32, workers: u32) -> Own {
    let names: Vec<_> = (0..nodes).map(|node| format!("n{node}")).collect();
    own(&names.iter().map(|name| (name.as_str(), workers)).collect::<Vec<_>>())
}

pub(super) fn launched(operation: &str, number: u64, ranks: &[u32]) -> Launched {
    Launched {
        operation: operation.to_owned(),
        number,
        is_finished: false,
        count: ranks.len() as u32,
        ranks: ranks.iter().copied().take(LISTED_RANKS_MAX).map(GlobalRank).collect(),
    }
}

pub(super) fn finished(operation: &str, number: u64, ranks: &[u32]) -> Launched {
    Launched { is_finished: true, ..launched(operation, number, ranks) }
}

pub(super) fn records(name: &str, size: u32, launched: Vec<Launched>) -> GroupLook {
    GroupLook { name: name.to_owned(), size, launched }
}

pub(super) fn digest(groups: Vec<GroupLook>, workers: Vec<WorkerLook>) -> Digest {
    let part = LookPart::First;
    Digest {
        round: ROUND,
        look: 4,
        part,
        workers,
        groups,
        facts: Vec::new(),
        logs: Some("/logs/run7_x/attempt_2".to_owned()),
        is_cut: false,
    }
}

pub(super) fn worker(rank: u32, activity: Activity, line: &str) -> WorkerLook {
    let line = Some(line.to_owned()).filter(|line| !line.is_empty());
    WorkerLook { rank: GlobalRank(rank), activity: Some(activity), line, ..WorkerLook::default() }
}

pub(super) fn stopped(rank: u32) -> WorkerLook {
    WorkerLook { rank: GlobalRank(rank), state: Some('T'), ..WorkerLook::default() }
}

/// Repeats the first part as the second one.
pub(super) fn twice(digests: Vec<Digest>) -> Vec<Digest> {
    let second = digests.iter().cloned().map(|d| Digest { part: LookPart::Second, ..d });
    digests.clone().into_iter().chain(second).collect()
}

/// Explains a look in which both parts are the same.
pub(super) fn explain(digests: Vec<Digest>, own: &Own) -> (String, Option<u32>) {
    let explanation = explain_stall(&twice(digests), own);
    (explanation.text, explanation.rank.map(|rank| rank.0))
}
