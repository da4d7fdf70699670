//! Decides between the causes that the evidence allows, in a fixed order.

use std::cmp::Reverse;

use super::{
    Own, OwnWait,
    evidence::{Evidence, Worker},
    graph::Graph,
    group::{Group, Launch},
};
use crate::message::Activity;

/// The cause of a stall. Groups are indices of the evidence.
#[derive(Debug)]
pub(super) enum Cause<'a> {
    /// Ragent itself makes the workers wait.
    Own(OwnWait),
    /// Collectives went on between the parts of the look.
    Slow { group: usize, launch: Launch<'a> },
    /// Ranks have no connection to the store, and others have.
    NoStore { ranks: Vec<u32>, reached: u64 },
    /// Ranks of a group have launched different collectives as the same number.
    /// The first side is right if `is_clear`.
    Mismatch { group: usize, number: u64, sides: Vec<Side<'a>>, is_clear: bool },
    /// Ranks in no collective have not launched one in which others wait. If some are stopped, only these are named.
    Missing { group: usize, ranks: Vec<u32>, is_stopped: bool },
    /// Ranks between which data is sent wait for others, which are in no collective.
    NoPartner { group: usize, ranks: Vec<u32> },
    /// Ranks are stopped in the middle of a collective, which others have launched too.
    Stopped { group: usize, ranks: Vec<u32> },
    /// Nothing is known of some ranks of a group. `ranks` is empty if it is not known which. If some are stopped, only
    /// these are named.
    Unknown { group: usize, ranks: Vec<u32>, is_stopped: bool },
    /// Ranks wait for each other: the missing rank of each group waits in the next one.
    Cycle(Vec<(usize, u32)>),
    /// All ranks of a group send or receive.
    AllSend { group: usize },
    /// Ranks have launched a collective, and not finished it. Others have.
    Unfinished { group: usize, launch: Launch<'a>, ranks: Vec<u32> },
    /// All ranks have launched the same collective.
    Equal { group: usize, launch: Launch<'a> },
    /// No rank is known to be in a collective. Stacks may show more.
    NoCounts,
}

/// Ranks that have launched the same collective.
#[derive(Debug)]
pub(super) struct Side<'a> {
    pub(super) operation: &'a str,
    pub(super) ranks: Vec<u32>,
    /// True if a rank has finished it.
    pub(super) is_finished: bool,
}

/// Returns the cause, and the rank to blame, if any.
pub(super) fn find<'a>(
    evidence: &Evidence<'a>,
    graph: &Graph,
    own: &Own,
) -> (Cause<'a>, Option<u32>) {
    if let Some(wait) = &own.wait {
        return (Cause::Own(wait.clone()), None);
    }
    if let Some((group, launch)) = evidence.moved {
        return (Cause::Slow { group, launch }, None);
    }
    without_store(evidence)
        .or_else(|| mismatch(evidence, graph))
        .or_else(|| missing(evidence, graph, true))
        .or_else(|| stopped(evidence, graph))
        .or_else(|| missing(evidence, graph, false))
        .or_else(|| unknown(evidence, graph, own))
        .or_else(|| cycle(evidence, graph))
        .or_else(|| unfinished(evidence, graph))
        .unwrap_or((Cause::NoCounts, None))
}

type Found<'a> = Option<(Cause<'a>, Option<u32>)>;

/// Finds ranks without a connection to the store. Ranks that have launched a collective had one.
fn without_store<'a>(evidence: &Evidence<'a>) -> Found<'a> {
    let with = |value| {
        let workers = evidence.workers.iter();
        workers.filter(move |(_, worker)| worker.look.has_reached_store == Some(value))
    };
    let without: Vec<_> = with(false).filter(|(rank, _)| !evidence.has_launched(**rank)).collect();
    let reached = with(true).count();
    let (lowest, worker) = without.first()?;
    if reached == 0 {
        return None;
    }
    let is_sure = worker.stays_without_store() && without.len() <= reached;
    let ranks = without.iter().map(|(rank, _)| **rank).collect();
    Some((Cause::NoStore { ranks, reached: reached as u64 }, is_sure.then_some(**lowest)))
}

/// Finds a group whose ranks disagree. The other sides are to blame, if it is clear which one is right.
fn mismatch<'a>(evidence: &Evidence<'a>, graph: &Graph) -> Found<'a> {
    let (index, number) = largest(evidence, |index, _| graph.waits[index].mismatch)?;
    let group = &evidence.groups[index];
    let mut sides: Vec<Side<'a>> = Vec::new();
    let is_of_number = |launch: &Launch<'_>| launch.number == number && !launch.is_point_to_point();
    let mut members: Vec<_> = group.members.iter().filter(|m| is_of_number(&m.launch)).collect();
    members.sort_by_key(|member| (member.launch.agreed(), member.rank));
    for members in members.chunk_by(|a, b| a.launch.agreed() == b.launch.agreed()) {
        let ranks = members.iter().map(|member| member.rank).collect();
        let is_finished = members.iter().any(|member| member.launch.is_finished);
        sides.push(Side { operation: members[0].launch.operation, ranks, is_finished });
    }
    // A side that a rank has finished is right, else the larger one.
    let weight = |side: &Side<'_>| (side.is_finished, side.ranks.len());
    sides.sort_by_key(|side| Reverse(weight(side)));
    let is_clear = sides.len() > 1 && weight(&sides[0]) > weight(&sides[1]);
    let blamed = sides.iter().skip(1).flat_map(|side| side.ranks.iter().copied()).min();
    let blamed = blamed.filter(|rank| is_clear && is_confirmed(group, *rank));
    Some((Cause::Mismatch { group: index, number, sides, is_clear }, blamed))
}

/// Finds ranks for which others wait, and which are in no collective. With `is_sure`, ranks that may be in an
/// unknown collective are left out.
fn missing<'a>(evidence: &Evidence<'a>, graph: &Graph, is_sure: bool) -> Found<'a> {
    if is_sure && evidence.has_hidden_waits {
        return None;
    }
    let is_named = |rank: &u32| {
        let worker = evidence.workers.get(rank);
        !is_sure || worker.is_none_or(|worker| !worker.is_in_torch())
    };
    let ends = |index: usize| {
        let waits = &graph.waits[index];
        let ranks: Vec<_> = graph.ends(index).filter(is_named).collect();
        (waits.is_stuck && !ranks.is_empty()).then_some(ranks)
    };
    // A collective shows more than data that is sent between two ranks.
    if let Some((index, mut ranks)) =
        largest(evidence, |index, _| graph.waits[index].top.and_then(|_| ends(index)))
    {
        let group = &evidence.groups[index];
        let top = graph.waits[index].top.unwrap_or_default();
        let is_minority = ranks.len() as u64 <= group.count(|launch| launch.number >= top);
        let is_seen = |rank: &u32| {
            let waiters = group.members.iter().filter(|m| m.launch.number == top);
            is_confirmed(group, *rank) && waiters.clone().any(|m| m.is_confirmed)
        };
        let stopped: Vec<_> = ranks.iter().copied().filter(|r| evidence.is_stopped(*r)).collect();
        let is_stopped = !stopped.is_empty();
        if is_stopped {
            ranks = stopped;
        }
        let blamed = ranks.first().copied();
        let blamed = blamed.filter(|rank| is_sure && is_minority && is_seen(rank));
        return Some((Cause::Missing { group: index, ranks, is_stopped }, blamed));
    }
    let (group, ranks) = largest(evidence, |index, _| ends(index))?;
    Some((Cause::NoPartner { group, ranks }, None))
}

/// Finds stopped ranks that have launched the collective in which others wait.
fn stopped<'a>(evidence: &Evidence<'a>, graph: &Graph) -> Found<'a> {
    let mut ranks = evidence.workers.iter().filter(|(_, worker)| worker.is_stopped());
    let (index, first, worker) = ranks.find_map(|(rank, worker)| {
        let index = graph.waits_of(*rank).next()?;
        Some((index, *rank, worker))
    })?;
    let group = &evidence.groups[index];
    let members = group.members.iter().filter(|member| member.launch.is_open());
    let ranks: Vec<_> = members.map(|m| m.rank).filter(|rank| evidence.is_stopped(*rank)).collect();
    let is_sure = worker.stays_stopped() && is_confirmed(group, first);
    Some((Cause::Stopped { group: index, ranks }, is_sure.then_some(first)))
}

/// Finds a group that waits for ranks of which nothing is known.
fn unknown<'a>(evidence: &Evidence<'a>, graph: &Graph, own: &Own) -> Found<'a> {
    let (index, ()) = largest(evidence, |index, group| {
        let waits = &graph.waits[index];
        (waits.top.is_some() && waits.missing.is_empty() && group.unknown() > 0).then_some(())
    })?;
    let group = &evidence.groups[index];
    let mut ranks = Vec::new();
    let known = group.members.len() as u64 + group.unknown();
    let is_all = u64::from(group.size) == own.world_size() && known == u64::from(group.size);
    if is_all && group.size <= UNKNOWN_OF_MAX {
        ranks.extend((0..group.size).filter(|rank| group.member(*rank).is_none()));
    }
    // A process that was stopped shows nothing else.
    let stopped: Vec<_> = ranks.iter().copied().filter(|r| evidence.is_stopped(*r)).collect();
    let is_stopped = !stopped.is_empty();
    if is_stopped {
        ranks = stopped;
    }
    Some((Cause::Unknown { group: index, ranks, is_stopped }, None))
}

/// Finds ranks that wait for each other. A rank may launch a collective and go on without it, and then others wait
/// for that rank. So a rank that runs outside of `torch.distributed` is named first, if most ranks are in it.
fn cycle<'a>(evidence: &Evidence<'a>, graph: &Graph) -> Found<'a> {
    let cycle = Some(graph.cycle()).filter(|cycle| !cycle.is_empty())?;
    let workers = || evidence.workers.values();
    let runs = |worker: &Worker<'_>| worker.look.activity == Some(Activity::Other);
    let is_minority =
        workers().filter(|w| runs(w)).count() < workers().filter(|w| w.is_in_torch()).count();
    let running = largest(evidence, |index, _| {
        let is_running = |rank: &u32| evidence.workers.get(rank).is_some_and(runs);
        let waits = &graph.waits[index];
        let missing = waits.missing.iter().copied().filter(is_running);
        Some(missing.collect::<Vec<_>>()).filter(|ranks| waits.top.is_some() && !ranks.is_empty())
    });
    let cause = match running.filter(|_| is_minority) {
        Some((group, ranks)) => Cause::Missing { group, ranks, is_stopped: false },
        None => Cause::Cycle(cycle),
    };
    Some((cause, None))
}

/// Finds a collective that all ranks of a group have launched.
fn unfinished<'a>(evidence: &Evidence<'a>, graph: &Graph) -> Found<'a> {
    let (index, launch) = largest(evidence, |index, group| {
        let is_stuck = graph.waits[index].is_stuck && graph.waits[index].has_end;
        group.counts.keys().find(|launch| launch.is_open()).filter(|_| is_stuck).copied()
    })?;
    let group = &evidence.groups[index];
    if graph.waits[index].top.is_none() {
        return Some((Cause::AllSend { group: index }, None));
    }
    let is_same = |other: &Launch<'_>| {
        (other.number, other.agreed(), other.is_finished)
            == (launch.number, launch.agreed(), launch.is_finished)
    };
    if group.count(is_same) == group.count(|_| true) {
        return Some((Cause::Equal { group: index, launch }, None));
    }
    let members = group.members.iter().filter(|member| is_same(&member.launch));
    let ranks = members.map(|member| member.rank).collect();
    Some((Cause::Unfinished { group: index, launch, ranks }, None))
}

/// The largest group whose unknown members are listed.
const UNKNOWN_OF_MAX: u32 = 1 << 20;

/// Returns the group with the most waiting ranks, among the groups that `select` accepts.
fn largest<'a, T>(
    evidence: &Evidence<'a>,
    select: impl Fn(usize, &Group<'a>) -> Option<T>,
) -> Option<(usize, T)> {
    let selected = evidence.groups.iter().enumerate().filter_map(|(index, group)| {
        let value = select(index, group)?;
        let waiting = group.count(Launch::is_open);
        Some(((waiting, Reverse(index)), value))
    });
    let ((_, Reverse(index)), value) = selected.max_by_key(|(key, _)| *key)?;
    Some((index, value))
}

/// Returns true if both parts of the look show the same launch of a rank.
fn is_confirmed(group: &Group<'_>, rank: u32) -> bool {
    group.member(rank).is_some_and(|member| member.is_confirmed)
}

impl Cause<'_> {
    /// Returns the ranks that the sentence names as the cause.
    pub(super) fn named(&self) -> &[u32] {
        match self {
            Self::NoStore { ranks, .. }
            | Self::Missing { ranks, .. }
            | Self::NoPartner { ranks, .. }
            | Self::Stopped { ranks, .. }
            | Self::Unknown { ranks, .. }
            | Self::Unfinished { ranks, .. } => ranks,
            Self::Mismatch { sides, .. } => sides.get(1).map_or(&[], |side| &side.ranks),
            Self::Own(_)
            | Self::Slow { .. }
            | Self::Cycle(_)
            | Self::AllSend { .. }
            | Self::Equal { .. }
            | Self::NoCounts => &[],
        }
    }

    /// Returns the group in which the sentence counts ranks.
    pub(super) fn group<'e, 'a>(&self, evidence: &'e Evidence<'a>) -> Option<&'e Group<'a>> {
        let index = match self {
            Self::Slow { group, .. }
            | Self::Mismatch { group, .. }
            | Self::Missing { group, .. }
            | Self::NoPartner { group, .. }
            | Self::Stopped { group, .. }
            | Self::Unknown { group, .. }
            | Self::AllSend { group }
            | Self::Unfinished { group, .. }
            | Self::Equal { group, .. } => *group,
            Self::Cycle(path) => path.first()?.0,
            Self::Own(_) | Self::NoStore { .. } | Self::NoCounts => return None,
        };
        evidence.groups.get(index)
    }
}

/// Returns true if both parts of the look show the cause.
pub(super) fn is_unchanged(cause: &Cause<'_>, evidence: &Evidence<'_>) -> bool {
    match (cause, cause.group(evidence)) {
        (_, Some(group)) => {
            let mut named = cause.named().iter().filter_map(|rank| group.member(*rank));
            named.all(|member| member.is_confirmed)
                && group.members.iter().any(|member| member.is_confirmed)
        }
        (Cause::NoStore { ranks, .. }, None) => {
            let worker = |rank| evidence.workers.get(rank);
            ranks.iter().all(|rank| worker(rank).is_some_and(Worker::stays_without_store))
        }
        (_, None) => false,
    }
}
