//! Merges the lists of a group of ranks, and knows which launches can be compared.

use std::{collections::BTreeMap, mem};

use crate::message::{GroupLook, LaunchSource, Launched, LookPart};

/// The largest group whose list is completed: as many workers as 16,384 nodes with 64 each.
const COMPLETED_MAX: u32 = 1 << 20;

/// A group of ranks.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) source: LaunchSource,
    pub(super) size: u32,
    /// The known members, by rank.
    pub(super) members: Vec<Member<'a>>,
    /// The number of ranks by launch, with ranks that no list contains.
    pub(super) counts: BTreeMap<Launch<'a>, u64>,
    /// Ranks that have not answered NCCL, in order.
    pub(super) unanswered: Vec<u32>,
    /// The highest number in the first and in the second part; `None` if the group is not in it.
    pub(super) highest: [Option<u64>; 2],
    /// The newest lists of NCCL, which may be incomplete.
    newest: Option<&'a GroupLook>,
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
    pub(super) fn new(source: LaunchSource) -> Self {
        Self {
            source,
            size: 0,
            members: Vec::new(),
            counts: BTreeMap::new(),
            unanswered: Vec::new(),
            highest: [None; 2],
            newest: None,
            records: Vec::new(),
        }
    }

    /// Adds the lists of a digest, at most `left` ranks. Returns false if ranks are left out.
    pub(super) fn add(
        &mut self,
        part: LookPart,
        look: &'a GroupLook,
        world_size: u64,
        left: &mut usize,
    ) -> bool {
        self.size = self.size.max(look.size);
        let highest =
            look.launched.iter().map(|launched| launched.number).max().unwrap_or_default();
        let before = &mut self.highest[usize::from(part == LookPart::Second)];
        *before = Some(before.map_or(highest, |before| before.max(highest)));
        let is_newest = part == LookPart::Second || self.highest[1].is_none();
        if self.source == LaunchSource::Ras && is_newest {
            self.newest = Some(look);
        }
        let mut is_whole = true;
        for launched in &look.launched {
            let launch = Launch::of(launched);
            let ranks = launched.ranks.iter().map(|rank| rank.0);
            let is_cut = u64::from(launched.count) > launched.ranks.len() as u64;
            is_whole &= self.source == LaunchSource::Ras || !is_cut;
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
            // The number falls if ranks do not answer any more.
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
        if let Some(newest) = self.newest {
            let unanswered = newest.unanswered.iter().map(|rank| rank.0);
            self.unanswered = unanswered.filter(|rank| self.member(*rank).is_none()).collect();
            self.unanswered.sort_unstable();
            self.unanswered.dedup();
            self.add_unlisted(newest);
            self.finish_lower();
            let [first, second] = self.highest;
            if first.is_some() && second.is_some() && first != second {
                moved = moved.or_else(|| self.counts.keys().next_back().copied());
            }
        }
        moved
    }

    /// Takes all collectives but the highest one as finished: NCCL does not report it, and ranks launch the next one
    /// after that.
    fn finish_lower(&mut self) {
        let highest = self.counts.keys().next_back().map_or(0, |launch| launch.number);
        let finish = |launch: Launch<'a>| Launch {
            is_finished: launch.is_finished || launch.number < highest,
            ..launch
        };
        for member in &mut self.members {
            member.launch = finish(member.launch);
        }
        for (launch, count) in mem::take(&mut self.counts) {
            let sum = self.counts.entry(finish(launch)).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Counts the ranks that the lists of NCCL do not contain.
    fn add_unlisted(&mut self, newest: &'a GroupLook) {
        for launched in &newest.launched {
            let launch = Launch::of(launched);
            let unlisted = u64::from(launched.count).saturating_sub(launched.ranks.len() as u64);
            if unlisted > 0 {
                let count = self.counts.entry(launch).or_default();
                *count = count.saturating_add(unlisted);
            }
        }
    }

    /// Returns the processes that NCCL lists in place of ranks, of all launches below this number.
    pub(super) fn processes_below(&self, number: u64) -> Vec<&'a str> {
        let launched = self.newest.iter().flat_map(|newest| &newest.launched);
        let below = launched.filter(|launched| launched.number < number);
        below.flat_map(|launched| &launched.processes).map(String::as_str).collect()
    }

    /// Returns the launches whose lists leave out ranks, and the number of these ranks.
    pub(super) fn unlisted(&self) -> Vec<(Launch<'a>, u64)> {
        let mut left = self.counts.clone();
        for member in &self.members {
            if let Some(count) = left.get_mut(&member.launch) {
                *count = count.saturating_sub(1);
            }
        }
        left.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Completes the only list that leaves out ranks, in a group of all ranks, if they wait. Returns true if there is
    /// one.
    pub(super) fn complete(&mut self) -> bool {
        if self.source == LaunchSource::Records {
            return false;
        }
        let mut lists = self.unlisted().into_iter();
        let (Some((launch, unlisted)), None) = (lists.next(), lists.next()) else { return false };
        let known = self.members.len() as u64 + self.unanswered.len() as u64;
        if !launch.is_open()
            || self.size > COMPLETED_MAX
            || unlisted != u64::from(self.size).saturating_sub(known)
        {
            return false;
        }
        let is_confirmed = self.highest.iter().all(Option::is_some);
        let mut members = Vec::with_capacity(self.members.len());
        let mut known = self.members.iter().copied().peekable();
        for rank in 0..self.size {
            if let Some(member) = known.next_if(|member| member.rank == rank) {
                members.push(member);
            } else if self.unanswered.binary_search(&rank).is_err() {
                members.push(Member { rank, launch, is_confirmed });
            }
        }
        self.members = members;
        true
    }

    /// Returns true if all ranks have launched the same collective, and NCCL counts.
    pub(super) fn is_equal_for_nccl(&self) -> bool {
        self.source == LaunchSource::Ras
            && self.unanswered.is_empty()
            && self.counts.values().copied().eq([u64::from(self.size)])
    }

    /// Returns true if ranks wait that no list contains.
    pub(super) fn has_hidden_waits(&self) -> bool {
        let listed = self.members.iter().filter(|member| member.launch.is_open()).count();
        self.count(Launch::is_open) > listed as u64
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
