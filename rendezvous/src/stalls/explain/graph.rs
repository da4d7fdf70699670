//! Follows the waits from group to group.
//!
//! The graph has two kinds of vertices. A group leads to the ranks that it misses. A rank leads to the groups in
//! which it waits. So the number of edges is that of the launches, however many groups a rank is in.

use std::collections::{HashMap, HashSet};

use super::{
    evidence::Evidence,
    group::{Group, Launch},
};

/// The waits of all groups.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// The waits by group.
    pub(super) waits: Vec<Waits>,
    /// Ranks and the groups in which they wait, in order.
    waiting: Vec<(u32, usize)>,
    /// Ranks that are in an earlier collective of a group than the highest one, in order.
    behind: Vec<u32>,
}

/// The ranks for which the ranks of a group wait.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The number of the highest collective in which a rank waits; `None` if none waits, or only between two ranks.
    pub(super) top: Option<u64>,
    /// True if ranks wait.
    pub(super) is_stuck: bool,
    /// The members that have not launched it.
    pub(super) missing: Vec<u32>,
    /// The number at which the ranks disagree about the collective, if any.
    pub(super) mismatch: Option<u64>,
    /// True if a chain of waits leads from here to an end.
    pub(super) has_end: bool,
}

impl Graph {
    /// Follows all waits.
    pub(super) fn new(evidence: &Evidence<'_>) -> Self {
        let waits = evidence.groups.iter().map(Waits::of).collect();
        let mut graph = Self { waits, ..Self::default() };
        for (index, group) in evidence.groups.iter().enumerate() {
            let top = graph.waits[index].top;
            let is_stuck = graph.waits[index].is_stuck;
            let waits = group.members.iter().filter(|member| is_stuck && member.launch.is_open());
            for member in waits {
                let launch = &member.launch;
                if Some(launch.number) == top || launch.is_point_to_point() {
                    graph.waiting.push((member.rank, index));
                } else {
                    graph.behind.push(member.rank);
                }
            }
        }
        graph.waiting.sort_unstable();
        graph.behind.sort_unstable();
        graph.mark_ends();
        graph
    }

    /// Returns the groups in which a rank waits.
    pub(super) fn waits_of(&self, rank: u32) -> impl Iterator<Item = usize> {
        let begin = self.waiting.partition_point(|(waiting, _)| *waiting < rank);
        let of_rank = self.waiting[begin..].iter().take_while(move |(other, _)| *other == rank);
        of_rank.map(|(_, group)| *group)
    }

    /// Returns true if the rank is in a collective.
    pub(super) fn is_waiting(&self, rank: u32) -> bool {
        self.behind.binary_search(&rank).is_ok() || self.waits_of(rank).next().is_some()
    }

    /// Returns the ranks that wait, those of several groups repeatedly.
    pub(super) fn waiting(&self) -> impl Iterator<Item = u32> {
        self.waiting.iter().map(|(rank, _)| *rank)
    }

    /// Returns the missing ranks of a group that are in no collective.
    pub(super) fn ends(&self, group: usize) -> impl Iterator<Item = u32> {
        let missing = self.waits[group].missing.iter().copied();
        missing.filter(|rank| !self.is_waiting(*rank))
    }

    /// Marks the groups from which a chain of waits leads to an end: breadth first, backwards from the ends.
    fn mark_ends(&mut self) {
        let mut missing: Vec<(u32, usize)> = Vec::new();
        for (index, waits) in self.waits.iter().enumerate().filter(|(_, waits)| waits.is_stuck) {
            missing.extend(waits.missing.iter().map(|rank| (*rank, index)));
        }
        missing.sort_unstable();
        let mut waiters: Vec<(usize, u32)> = self.waiting.iter().map(|(r, g)| (*g, *r)).collect();
        waiters.sort_unstable();

        let is_end = |graph: &Self, index: usize| {
            let waits = &graph.waits[index];
            let leads_on = |rank: &u32| graph.waits_of(*rank).next().is_some();
            waits.mismatch.is_some()
                || graph.ends(index).next().is_some()
                || !waits.missing.iter().any(leads_on)
        };
        let mut reached: Vec<usize> =
            (0..self.waits.len()).filter(|i| self.waits[*i].is_stuck && is_end(self, *i)).collect();
        for index in &reached {
            self.waits[*index].has_end = true;
        }
        let mut followed = HashSet::new();
        while let Some(group) = reached.pop() {
            let begin = waiters.partition_point(|(other, _)| *other < group);
            for (_, rank) in waiters[begin..].iter().take_while(|(other, _)| *other == group) {
                // A rank that was followed once has nothing more to mark.
                if !followed.insert(*rank) {
                    continue;
                }
                let begin = missing.partition_point(|(other, _)| other < rank);
                for (_, index) in missing[begin..].iter().take_while(|(other, _)| other == rank) {
                    if !self.waits[*index].has_end {
                        self.waits[*index].has_end = true;
                        reached.push(*index);
                    }
                }
            }
        }
    }

    /// Returns a cycle of waits: groups, each with the missing rank that waits in the next one. Empty if there is
    /// none.
    pub(super) fn cycle(&self) -> Vec<(usize, u32)> {
        let is_open = |index: &usize| self.waits[*index].is_stuck && !self.waits[*index].has_end;
        let Some(mut group) = (0..self.waits.len()).find(is_open) else { return Vec::new() };
        let mut path: Vec<(usize, u32)> = Vec::new();
        let mut places = HashMap::new();
        loop {
            if let Some(begin) = places.insert(group, path.len()) {
                return path.split_off(begin);
            }
            // Without an end, each missing rank waits in groups that have no end either.
            let next = self.waits[group].missing.iter().find_map(|rank| {
                let next = self.waits_of(*rank).find(is_open)?;
                Some((*rank, next))
            });
            let Some((rank, next)) = next else { return Vec::new() };
            path.push((group, rank));
            group = next;
        }
    }
}

impl Waits {
    fn of(group: &Group<'_>) -> Self {
        let numbered = |launch: &Launch<'_>| launch.is_open() && !launch.is_point_to_point();
        let mut open = group.counts.keys().filter(|launch| launch.is_open());
        let is_stuck = open.next().is_some();
        let top = group.counts.keys().filter(|l| numbered(l)).map(|l| l.number).max();
        let is_missing = |launch: &Launch<'_>| match top {
            Some(top) => launch.number < top && !launch.is_point_to_point(),
            None => !launch.is_open(),
        };
        let missing = group.members.iter().filter(|member| is_missing(&member.launch));
        let missing = missing.map(|member| member.rank).filter(|_| is_stuck).collect();
        Self { top, is_stuck, missing, mismatch: mismatch(group), has_end: false }
    }
}

/// Returns the highest number at which ranks wait, and have launched different collectives.
fn mismatch(group: &Group<'_>) -> Option<u64> {
    let launches: Vec<_> = group.counts.keys().filter(|l| !l.is_point_to_point()).collect();
    let mut numbers = launches.chunk_by(|a, b| a.number == b.number);
    let differs = |launches: &&[&Launch<'_>]| {
        let is_open = launches.iter().any(|launch| launch.is_open());
        is_open && launches.iter().any(|launch| launch.agreed() != launches[0].agreed())
    };
    numbers.rfind(differs).map(|launches| launches[0].number)
}
