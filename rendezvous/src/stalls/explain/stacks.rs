//! Compares the stacks of most ranks with those of the others, if no collectives are known. This names ranks, and
//! never blames them.
//!
//! 1. Most ranks are in the same call of `torch.distributed`: the others are named, with their own line.
//! 2. Without any stacks, the kernel's state is compared instead.

use std::collections::BTreeMap;

use super::{
    NOTHING_KNOWN, Own,
    evidence::{Evidence, Worker},
    names::{Ranks, stack_file},
};
use crate::message::Activity;

/// The most ranks that are named with their own lines.
const NAMED_LINES: usize = 4;

/// Returns the sentence.
pub(super) fn of(evidence: &Evidence<'_>, own: &Own) -> String {
    let has_stack = |worker: &Worker<'_>| worker.look.activity.is_some();
    let text = if evidence.workers.values().any(has_stack) {
        by_stacks(evidence, own)
    } else {
        by_kernel(evidence, own)
    };
    text.unwrap_or_else(|| NOTHING_KNOWN.to_owned())
}

/// The same call of several ranks. Ranks in `torch.distributed` come last.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Call<'a> {
    is_in_torch: bool,
    is_collective: bool,
    /// The function. For a rank outside `torch.distributed`, with its line.
    name: Option<&'a str>,
}

impl<'a> Call<'a> {
    fn of(worker: &Worker<'a>) -> Option<Self> {
        let activity = worker.look.activity?;
        let line = worker.look.line.as_deref();
        let is_in_torch = activity != Activity::Other;
        let function = line.and_then(|line| line.rsplit_once(" at ")).map(|(name, _)| name);
        let name = if is_in_torch { function.or(line) } else { line };
        Some(Self { is_in_torch, is_collective: activity == Activity::Collective, name })
    }
}

fn by_stacks(evidence: &Evidence<'_>, own: &Own) -> Option<String> {
    let mut calls: BTreeMap<Call<'_>, Vec<u32>> = BTreeMap::new();
    for (rank, worker) in &evidence.workers {
        if let (Some(call), false) = (Call::of(worker), worker.is_stopped()) {
            calls.entry(call).or_default().push(*rank);
        }
    }
    let in_torch = calls.iter().filter(|(call, _)| call.is_in_torch);
    let all = calls.iter();
    let most = |(_, ranks): &(&Call<'_>, &Vec<u32>)| ranks.len();
    let (call, ranks) = in_torch.max_by_key(most).or_else(|| all.max_by_key(most))?;
    let who = Ranks::new(ranks, own);
    let place = ranks.first().and_then(|rank| evidence.workers.get(rank)).and_then(line);
    let text = match (call.is_in_torch, place) {
        (true, Some(place)) => format!("{} in {place}", who.with("waits", "wait")),
        (true, None) if call.is_collective => {
            format!("{} in a collective", who.with("waits", "wait"))
        }
        (true, None) => format!("{} in torch", who.with("waits", "wait")),
        (false, Some(place)) => format!("{} in {place}", who.with("is", "are")),
        (false, None) => format!("{} in no collective", who.with("is", "are")),
    };
    Some(
        text + &of_others(evidence, ranks, own, |rank, worker| {
            let is_in_torch = worker.is_in_torch();
            match (line(worker), worker.look.activity) {
                (Some(place), _) => format!("in {place}"),
                (None, Some(_)) if is_in_torch && call.is_collective => {
                    "not in the same one".to_owned()
                }
                (None, Some(Activity::Other)) => {
                    let file =
                        stack_file(rank, worker, own).map(|file| format!(", its stack: {file}"));
                    format!("in no collective{}", file.unwrap_or_default())
                }
                (None, Some(_)) => "in torch".to_owned(),
                (None, None) => "without a readable stack".to_owned(),
            }
        }),
    )
}

fn by_kernel(evidence: &Evidence<'_>, own: &Own) -> Option<String> {
    let mut places: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (rank, worker) in evidence.workers.iter().filter(|(_, worker)| !worker.is_stopped()) {
        if let Some(place) = &worker.look.waits_in {
            places.entry(place).or_default().push(*rank);
        }
    }
    let most = places.iter().max_by_key(|(_, ranks)| ranks.len());
    let Some((place, ranks)) = most else {
        let stopped: Vec<_> = evidence.workers.iter().filter(|(_, w)| w.is_stopped()).collect();
        let ranks: Vec<_> = stopped.iter().map(|(rank, _)| **rank).collect();
        let who = Ranks::new(&ranks, own);
        return (!ranks.is_empty()).then(|| format!("{} stopped", who.with("is", "are")));
    };
    let who = Ranks::new(ranks, own);
    let text = format!("{} in the kernel in {place}", who.with("waits", "wait"));
    Some(
        text + &of_others(evidence, ranks, own, |_, worker| {
            let place = worker.look.waits_in.as_deref();
            match (place, worker.look.state) {
                (Some(place), Some(state)) => format!("in {place}, state {state}"),
                (Some(place), None) => format!("in {place}"),
                (None, Some(state)) => format!("in state {state}"),
                (None, None) => "in an unknown state".to_owned(),
            }
        }),
    )
}

/// Names all ranks except `ranks`, those with the same text together.
fn of_others(
    evidence: &Evidence<'_>,
    ranks: &[u32],
    own: &Own,
    describe: impl Fn(u32, &Worker<'_>) -> String,
) -> String {
    let mut kinds: Vec<(String, Vec<u32>)> = Vec::new();
    let mut left: u64 = 0;
    let is_other = |(rank, _): &(&u32, &Worker<'_>)| ranks.binary_search(rank).is_err();
    for (rank, worker) in evidence.workers.iter().filter(is_other) {
        let kind = if worker.is_stopped() { "stopped".to_owned() } else { describe(*rank, worker) };
        match kinds.iter().position(|(other, _)| *other == kind) {
            Some(place) => kinds[place].1.push(*rank),
            None if kinds.len() < NAMED_LINES => kinds.push((kind, vec![*rank])),
            None => left += 1,
        }
    }
    let mut text = String::new();
    for (kind, ranks) in &kinds {
        let who = Ranks::new(ranks, own);
        text.push_str(&format!("; {} {kind}", who.with("is", "are")));
    }
    if left > 0 {
        text.push_str(&format!("; and {left} others"));
    }
    text
}

/// Returns the function and the place of a worker, such as `all_reduce (t.py:7)`.
pub(super) fn line(worker: &Worker<'_>) -> Option<String> {
    let line = worker.look.line.as_deref()?;
    Some(match line.rsplit_once(" at ") {
        Some((function, place)) => format!("{function} ({place})"),
        None => line.to_owned(),
    })
}
