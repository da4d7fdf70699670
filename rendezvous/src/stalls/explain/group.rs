//! Merges the lists of a group of ranks, and knows which launches can be compared.

use std::{collections::BTreeMap, mem};

use crate::message::{GroupLook, Launched, LookPart};

/// A group of ranks.
#[derive(Debug, Default)]
pub(super) struct Group<'a> {
    pub(super) size: u32,
    /// The known members, by rank.
    pub(super) members: Vec<Member<'a>>,
    /// The number of ranks by launch.
    pub(super) counts: BTreeMap<Launch<'a>, u64>,
    records: Vec<Record<'a>>,
}

/// A member of a group, and its last launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    pub(super) rank: u32,
    pub(super) launch: Launch<'a>,
    /// True if both parts of the look show the same launch.
    pub(super) is_confirmed: bool,
}

/// The last launch of a rank in a group. Higher numbers come later.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Launch<'a> {
    pub(super) number: u64,
    pub(super) operation: &'a str,
    pub(super) is_finished: bool,
}

/// A launch of one part, as a digest contains it.
#[derive(Clone, Copy, Debug)]
struct Record<'a> {
    rank: u32,
    part: LookPart,
    launch: Launch<'a>,
}

/// The operations between two ranks of a group.
const POINT_TO_POINT: [&str; 6] =
    ["send", "recv", "isend", "irecv", "batch_isend_irecv", "coalesced"];

/// The collectives whose data has the same size and type on all ranks.
const SAME_SIZE: [&str; 4] = ["all_reduce", "allreduce", "broadcast", "reduce"];

impl<'a> Launch<'a> {
    fn of(launched: &'a Launched) -> Self {
        let Launched { operation, number, is_finished, .. } = launched;
        Self { number: *number, operation, is_finished: *is_finished }
    }

    /// Returns true if a rank waits in it.
    pub(super) fn is_open(&self) -> bool {
        self.number > 0 && !self.is_finished
    }

    /// Returns true if it concerns two ranks of the group only. Its number cannot be compared with those of other
    /// ranks.
    pub(super) fn is_point_to_point(&self) -> bool {
        POINT_TO_POINT.contains(&self.name())
    }

    /// Returns its name, without size and type of the data.
    pub(super) fn name(&self) -> &'a str {
        let kind = self.operation.split(' ').next().unwrap_or_default();
        kind.rsplit(':').next().unwrap_or(kind)
    }

    /// Returns the part on which all ranks must agree.
    pub(super) fn agreed(&self) -> &'a str {
        if SAME_SIZE.contains(&self.name()) { self.operation } else { self.name() }
    }
}

impl<'a> Group<'a> {
    /// Adds the lists of a digest, at most `left` ranks. Returns false if ranks are left out.
    pub(super) fn add(
        &mut self,
        part: LookPart,
        look: &'a GroupLook,
        world_size: u64,
        left: &mut usize,
    ) -> bool {
        self.size = self.size.max(look.size);
        let mut is_whole = true;
        for launched in &look.launched {
            let launch = Launch::of(launched);
            let ranks = launched.ranks.iter().map(|rank| rank.0);
            is_whole &= u64::from(launched.count) <= launched.ranks.len() as u64;
            for rank in ranks.filter(|rank| u64::from(*rank) < world_size) {
                let Some(rest) = left.checked_sub(1) else { return false };
                *left = rest;
                self.records.push(Record { rank, part, launch });
            }
        }
        is_whole
    }

    /// Merges the lists. Returns a launch of the second part if it differs from that of the first one.
    pub(super) fn merge(&mut self) -> Option<Launch<'a>> {
        let mut records = mem::take(&mut self.records);
        // The order of digests stays: the last one of each part counts.
        records.sort_by_key(|record| (record.rank, record.part));
        let mut moved = None;
        for records in records.chunk_by(|a, b| a.rank == b.rank) {
            let of = |part| records.iter().rev().find(|r| r.part == part).map(|r| r.launch);
            let (first, second) = (of(LookPart::First), of(LookPart::Second));
            let Some(launch) = second.or(first) else { continue };
            if first.is_some() && second > first {
                moved = moved.max(second);
            }
            let is_confirmed = first == second;
            self.members.push(Member { rank: records[0].rank, launch, is_confirmed });
        }
        // A map is built from a sorted list in one pass.
        let mut launches: Vec<_> = self.members.iter().map(|member| member.launch).collect();
        launches.sort_unstable();
        let same = launches.chunk_by(|a, b| a == b);
        self.counts = same.map(|launches| (launches[0], launches.len() as u64)).collect();
        moved
    }

    /// Returns the member with that rank.
    pub(super) fn member(&self, rank: u32) -> Option<&Member<'a>> {
        let index = self.members.binary_search_by_key(&rank, |member| member.rank).ok()?;
        self.members.get(index)
    }

    /// Returns the number of ranks whose last launch is of that kind.
    pub(super) fn count(&self, is_counted: impl Fn(&Launch<'a>) -> bool) -> u64 {
        let counted = self.counts.iter().filter(|(launch, _)| is_counted(launch));
        counted.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Returns the number of ranks of which nothing is known.
    pub(super) fn unknown(&self) -> u64 {
        u64::from(self.size).saturating_sub(self.count(|_| true))
    }
}
