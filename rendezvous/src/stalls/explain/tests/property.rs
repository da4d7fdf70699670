//! Plants faults in random jobs: the culprit is named, and never an innocent rank.

use std::{cell::Cell, time::Instant};

use super::simulator::{ASYNCHRONOUS, Fault, Job, LOOK, ROUND, draw};
use crate::{
    ids::{GlobalRank, Round, RoundId},
    jitter::Jitter,
    message::{Activity, DIGEST_GROUPS_MAX, Digest, GroupLook, Launched, LookPart, WorkerLook},
    stall::{Explanation, Own, RankedNode, explain_stall},
};

/// A look at a job, and the fault in it.
struct Case {
    job: Job,
    own: Own,
    digests: Vec<Digest>,
}

impl Case {
    /// Returns a job that is stuck or slow; `None` if its fault has no effect.
    fn new(seed: u64) -> Option<Self> {
        let mut random = Jitter::new(seed);
        let mut job = Job::new(&mut random);
        // Most faults are ranks that stop or call something else.
        let kind = [0, 0, 0, 1, 1, 2, 3, 4][draw(&mut random, 8)];
        if !job.plant(&mut random, kind) {
            return None;
        }
        let own = job.own();
        let mut digests = Vec::new();
        let earlier = RoundId { round: Round(ROUND.round.0 - 1), ..ROUND };
        let steps = draw(&mut random, 30 * job.ranks.len());
        if job.fault == Fault::Slow {
            // The second part is later.
            job.steps(&mut random, steps);
            digests.extend(job.digests(LookPart::First));
            let before = job.launches();
            let steps = 1 + draw(&mut random, 20);
            job.steps(&mut random, steps);
            if job.launches() == before {
                return None;
            }
            digests.extend(job.digests(LookPart::Second));
        } else {
            job.settle(&mut random);
            if !job.is_stuck() {
                return None;
            }
            digests
                .extend([LookPart::First, LookPart::Second].map(|part| job.digests(part)).concat());
        }
        if digests.iter().any(|digest| digest.groups.len() >= DIGEST_GROUPS_MAX) {
            return None;
        }
        // Another run of the same ranks, in the round before.
        let mut other = job.clone();
        other.fault = Fault::Slow;
        other.steps(&mut random, steps);
        let old = [LookPart::First, LookPart::Second].map(|part| other.digests(part)).concat();
        digests.extend(old.into_iter().map(|digest| Digest { round: earlier, ..digest }));
        Some(Self { job, own, digests })
    }

    /// Explains the digests, and compares the result with the fault.
    fn check(&self, digests: &[Digest]) -> Result<(), String> {
        let explanation = explain_stall(digests, &self.own);
        let Explanation { text, rank, .. } = &explanation;
        let blamed = rank.map(|rank| rank.0 as usize);
        let named = subject(text);
        let is_right = match self.job.fault {
            Fault::Stops { rank, .. } => {
                // It may have launched a collective for which it does not wait. Then only its stack shows it.
                let is_hidden = self.job.is_open(rank) && blamed.is_none();
                named == [rank] && (blamed == Some(rank) || is_hidden)
            }
            Fault::Calls { rank, call } => {
                let group = &self.job.groups[self.job.ranks[rank].calls[call].0];
                // If the others have passed it, it is not known any more what they have called.
                let is_lost = text.contains("launched but not finished") && blamed.is_none();
                // Two ranks may be at that number, and the others have gone on without it.
                let is_pair = group.len() == 2 || text.contains(ASYNCHRONOUS);
                let is_tie = text.starts_with("as number ") && text.matches("rank ").count() == 2;
                let is_even = is_tie && is_pair && has_named(text, rank) && blamed.is_none();
                (named == [rank] && (blamed == Some(rank) || is_lost)) || is_even
            }
            Fault::Swaps { rank, .. } => {
                let is_whole = !text.contains("in a chain of");
                text.contains("in different orders")
                    && blamed.is_none()
                    && (has_named(text, rank) || !is_whole)
            }
            Fault::Network { .. } => {
                let is_stuck = text.contains("all ranks have launched it")
                    || text.contains("launched but not finished");
                blamed.is_none() && is_stuck
            }
            Fault::Slow => blamed.is_none() && text.starts_with("the job does not hang"),
        };
        let fault = self.job.fault;
        if is_right { Ok(()) } else { Err(format!("{fault:?}: {text} (blamed: {blamed:?})")) }
    }
}

/// Returns the ranks at the beginning of a sentence.
fn subject(text: &str) -> Vec<usize> {
    let Some(rest) = text.strip_prefix("ranks ").or_else(|| text.strip_prefix("rank ")) else {
        return Vec::new();
    };
    let end =
        rest.find(|c: char| !c.is_ascii_digit() && c != ',' && c != ' ').unwrap_or(rest.len());
    rest[..end].split([',', ' ']).filter_map(|rank| rank.parse().ok()).collect()
}

/// Returns true if a sentence contains the rank.
fn has_named(text: &str, rank: usize) -> bool {
    let mut places = text.match_indices("rank ").chain(text.match_indices("ranks "));
    places.any(|(place, _)| subject(&text[place..]).contains(&rank))
}

/// Checks 2,000 jobs, and returns the first results that are wrong.
fn wrong(change: impl Fn(&Case) -> Vec<Digest>) -> Vec<String> {
    let cases = (0..).filter_map(|seed| Some((seed, Case::new(seed)?))).take(2_000);
    let wrong = cases.filter_map(|(seed, case)| {
        let error = case.check(&change(&case)).err()?;
        Some(format!("seed {seed}: {error}"))
    });
    wrong.take(4).collect()
}

/// In random jobs with nested groups, the planted culprit is named, and never an innocent rank.
#[test]
fn culprit_is_named() {
    let counts: [Cell<u32>; 5] = Default::default();
    let wrong = wrong(|case| {
        let kind = match case.job.fault {
            Fault::Stops { .. } => 0,
            Fault::Calls { .. } => 1,
            Fault::Swaps { .. } => 2,
            Fault::Network { .. } => 3,
            Fault::Slow => 4,
        };
        counts[kind].set(counts[kind].get() + 1);
        case.digests.clone()
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(counts.iter().all(|count| count.get() > 50), "each fault is frequent: {counts:?}");
}

/// The property notices if the ranks ahead are blamed.
#[test]
fn blame_of_those_ahead_is_noticed() {
    let wrong = wrong(|case| {
        let mut digests = case.digests.clone();
        let groups = digests.iter_mut().flat_map(|digest| &mut digest.groups);
        for launched in groups.flat_map(|group| &mut group.launched) {
            launched.number = 1_000 - launched.number;
        }
        digests
    });
    assert!(!wrong.is_empty());
}

/// The property notices if only the first part of a look counts.
#[test]
fn first_part_alone_is_noticed() {
    let wrong = wrong(|case| {
        let first = case.digests.iter().filter(|digest| digest.part == LookPart::First);
        let parts = [LookPart::First, LookPart::Second];
        let repeat = |digest: &Digest| parts.map(|part| Digest { part, ..digest.clone() });
        first.flat_map(repeat).collect()
    });
    assert!(!wrong.is_empty());
}

/// The property notices if launches of an earlier round count.
#[test]
fn earlier_round_is_noticed() {
    let wrong = wrong(|case| {
        let digests = case.digests.iter().cloned();
        digests.map(|digest| Digest { round: ROUND, look: LOOK, ..digest }).collect()
    });
    assert!(!wrong.is_empty());
}

/// The property notices if the search stops at the first group with a missing rank.
#[test]
fn stop_at_the_first_group_is_noticed() {
    let wrong = wrong(|case| {
        let mut digests = case.digests.clone();
        digests.retain(|digest| digest.round == ROUND);
        let waits = |group: &&GroupLook| group.launched.iter().any(|l| !l.is_finished);
        let first = digests.iter().flat_map(|digest| &digest.groups).find(waits);
        if let Some(name) = first.map(|group| group.name.clone()) {
            for digest in &mut digests {
                digest.groups.retain(|group| group.name == name);
            }
        }
        digests
    });
    assert!(!wrong.is_empty());
}

/// Prints the time to explain both parts of a look at 80,000 workers of 10,000 nodes.
#[test]
#[ignore = "a measurement"]
fn time_of_large_job() {
    print_time(&large_job());
}

/// Prints the time to explain 10,000 digests of hostile nodes.
#[test]
#[ignore = "a measurement"]
fn time_of_hostile_nodes() {
    print_time(&hostile_nodes());
}

#[expect(clippy::print_stderr, clippy::disallowed_methods, reason = "a measurement")]
fn print_time(digests: &[Digest]) {
    let node = |index: u32| RankedNode {
        host: format!("n{index}"),
        first: GlobalRank(8 * index),
        workers: 8,
    };
    let nodes = (0..10_000).map(node).collect();
    let own = Own { round: ROUND, look: LOOK, nodes, ..Own::default() };
    let begin = Instant::now();
    let explanation = explain_stall(digests, &own);
    let time = Instant::now() - begin;
    eprintln!("{} digests in {time:?}: {}", digests.len(), explanation.text);
}

/// Returns the digests of 80,000 workers in tensor, data and pipeline groups, which all wait for the last one.
fn large_job() -> Vec<Digest> {
    let mut digests = Vec::new();
    for (node, part) in
        (0..10_000).flat_map(|n| [LookPart::First, LookPart::Second].map(|p| (n, p)))
    {
        let ranks: Vec<_> = (8 * node..8 * node + 8).map(GlobalRank).collect();
        let look = |name: String, size, ranks: &[GlobalRank]| GroupLook {
            name,
            size,
            launched: vec![Launched {
                operation: "all_reduce [1024] float".to_owned(),
                number: if node == 9_999 { 6_649 } else { 6_650 },
                is_finished: node == 9_999,
                count: ranks.len() as u32,
                ranks: ranks.to_vec(),
            }],
        };
        let mut groups = vec![
            look("world".to_owned(), 80_000, &ranks),
            look(format!("tensor{node}"), 8, &ranks),
        ];
        for (local, rank) in ranks.iter().enumerate() {
            groups.push(look(format!("data{local}_{}", node % 10), 1_000, &[*rank]));
            groups.push(look(format!("pipeline{local}_{}", node / 10), 10, &[*rank]));
        }
        let worker = |rank: &GlobalRank| WorkerLook {
            rank: *rank,
            activity: Some(if node == 9_999 { Activity::Other } else { Activity::Collective }),
            state: Some('S'),
            has_reached_store: Some(true),
            line: Some("all_reduce at train.py:88".to_owned()),
            waits_in: Some("futex_wait".to_owned()),
        };
        let workers = ranks.iter().map(worker).collect();
        digests.push(Digest { workers, groups, ..Digest::new(ROUND, LOOK, part) });
    }
    digests
}

/// Returns digests that are full of random ranks and numbers, in groups that all or no nodes share.
fn hostile_nodes() -> Vec<Digest> {
    let mut random = Jitter::new(5);
    let mut digests = Vec::new();
    for node in 0..10_000 {
        let mut groups = Vec::new();
        for index in 0..31 {
            let mut launched = Vec::new();
            for _ in 0..2 {
                let ranks = (0..10).map(|_| GlobalRank(draw(&mut random, 80_000) as u32)).collect();
                launched.push(Launched {
                    operation: String::new(),
                    number: random.bits(),
                    is_finished: draw(&mut random, 2) == 0,
                    count: 10,
                    ranks,
                });
            }
            let name = if index % 2 == 0 { format!("{index}") } else { format!("{index}_{node}") };
            groups.push(GroupLook { name, size: 80_000, launched });
        }
        digests.push(Digest { groups, ..Digest::new(ROUND, LOOK, LookPart::First) });
    }
    digests
}
