//! Follows which parts the nodes of a round hold, and finds the newest checkpoint that is whole.
//!
//! Every echo names this checkpoint, and after a save each of up to 10,000 nodes reports several times. So
//! nothing visits all nodes: there is a count for each checkpoint, and a report changes only the counts of parts
//! that the node did not hold before, or does not hold any more. That is usually one part.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use crate::{
    ids::{GlobalRank, GroupRank, RoundId},
    message::{CheckpointId, MemoryKind, Part, PartPlace},
};

/// The parts that the nodes of a round have reported in it.
///
/// Invariants:
///
/// - `slots` and `counts` have exactly the parts in `reported`.
/// - `whole` and `complete` have exactly the checkpoints for which [`Count::is_whole`] and
///   [`Count::is_complete`] are true.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    round: RoundId,
    /// The first global rank and the number of workers of each node, by group rank.
    layout: Vec<(GlobalRank, NonZeroU32)>,
    /// True if nodes fetch parts from each other. Else each node needs its own part, also a replicated one.
    may_fetch: bool,
    /// The parts of each node, without leftovers; each only once.
    reported: BTreeMap<GroupRank, Vec<Part>>,
    /// The holders of each part. A replicated part has one slot for each of its holders.
    slots: BTreeMap<(CheckpointId, GroupRank), Slot>,
    counts: BTreeMap<CheckpointId, Count>,
    whole: BTreeSet<CheckpointId>,
    /// The checkpoints of which each own part is held.
    complete: BTreeSet<CheckpointId>,
}

/// The holders of a part.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// True if its own node holds it.
    own: bool,
    /// True if that node reports that no other node will hold it.
    is_alone: bool,
    /// The nodes that hold copies; usually one at most.
    copies: Vec<GroupRank>,
}

impl Slot {
    fn is_copied(&self) -> bool {
        self.own && !self.copies.is_empty()
    }

    fn is_safe(&self) -> bool {
        self.own && (self.is_alone || !self.copies.is_empty())
    }
}

/// The kind of a checkpoint, true if it is replicated, and the number of nodes. All parts must agree.
type Form = (MemoryKind, bool, u32);

/// The number of slots of one checkpoint that are held.
#[derive(Clone, Debug)]
struct Count {
    /// The time of the first report of a part.
    since: Instant,
    /// The number of parts of each form.
    forms: Vec<(Form, u32)>,
    /// The number of parts that do not belong to this round: of another node, or with other ranks.
    odd: u32,
    own: u32,
    alone: u32,
    copied: u32,
    safe: u32,
}

impl Count {
    fn new(since: Instant) -> Self {
        Self { since, forms: Vec::new(), odd: 0, own: 0, alone: 0, copied: 0, safe: 0 }
    }

    /// Returns the form of all parts; `None` if they contradict each other.
    fn form(&self) -> Option<Form> {
        match self.forms[..] {
            [(form, _)] if self.odd == 0 => Some(form),
            _ => None,
        }
    }

    fn is_replicated(&self) -> Option<bool> {
        self.form().map(|(_, is_replicated, _)| is_replicated)
    }

    /// Returns true if no older checkpoint is needed any more.
    fn is_whole(&self, nodes: usize, may_fetch: bool) -> bool {
        match self.is_replicated() {
            Some(true) if !may_fetch => self.own as usize == nodes,
            Some(true) => self.own >= 2 || self.own > 0 && self.own == self.alone,
            Some(false) => self.safe as usize == nodes,
            None => false,
        }
    }

    fn is_copied(&self, nodes: usize) -> bool {
        match self.is_replicated() {
            Some(true) => self.own >= 2,
            Some(false) => self.copied as usize == nodes,
            None => false,
        }
    }

    /// Returns true if each part is held by its own node.
    fn is_complete(&self, nodes: usize) -> bool {
        match self.is_replicated() {
            Some(true) => self.own > 0,
            Some(false) => self.own as usize == nodes,
            None => false,
        }
    }

    fn add(&mut self, slot: &Slot) {
        self.own += u32::from(slot.own);
        self.alone += u32::from(slot.own && slot.is_alone);
        self.copied += u32::from(slot.is_copied());
        self.safe += u32::from(slot.is_safe());
    }

    fn remove(&mut self, slot: &Slot) {
        self.own -= u32::from(slot.own);
        self.alone -= u32::from(slot.own && slot.is_alone);
        self.copied -= u32::from(slot.is_copied());
        self.safe -= u32::from(slot.is_safe());
    }

    fn add_form(&mut self, form: Form) {
        match self.forms.iter_mut().find(|(other, _)| *other == form) {
            Some((_, number)) => *number += 1,
            None => self.forms.push((form, 1)),
        }
    }

    fn remove_form(&mut self, form: Form) {
        for (other, number) in &mut self.forms {
            *number -= u32::from(*other == form);
        }
        self.forms.retain(|(_, number)| *number > 0);
    }
}

impl Holdings {
    /// Begins a round with this layout. Nothing that was reported before counts.
    pub(crate) fn new(
        round: RoundId,
        layout: Vec<(GlobalRank, NonZeroU32)>,
        may_fetch: bool,
    ) -> Self {
        Self { round, layout, may_fetch, ..Self::default() }
    }

    /// Replaces the parts of the node at `rank`, by a report that it has made in this round.
    pub(crate) fn record(&mut self, now: Instant, rank: GroupRank, parts: &[Part]) {
        if parts.is_empty() && !self.reported.contains_key(&rank) {
            return;
        }
        let key = |part: &Part| (part.checkpoint, part.group_rank, part.place == PartPlace::Own);
        let mut new: Vec<Part> = Vec::new();
        for part in parts.iter().filter(|part| part.place != PartPlace::Leftover) {
            if !new.iter().any(|other| key(other) == key(part)) {
                new.push(*part);
            }
        }
        let old = self.reported.remove(&rank).unwrap_or_default();
        for part in old.iter().filter(|part| !new.contains(part)) {
            self.change(now, rank, part, false);
        }
        for part in new.iter().filter(|part| !old.contains(part)) {
            self.change(now, rank, part, true);
        }
        if !new.is_empty() {
            self.reported.insert(rank, new);
        }
    }

    fn change(&mut self, now: Instant, holder: GroupRank, part: &Part, is_added: bool) {
        let id = part.checkpoint;
        let is_own = part.place == PartPlace::Own;
        let slot_rank = if part.is_replicated { holder } else { part.group_rank };
        let fits = self.layout.get(slot_rank.0 as usize).is_some_and(|(first, workers)| {
            let has_layout = part.nodes as usize == self.layout.len()
                && part.first_global_rank == *first
                && part.local_ranks == *workers;
            part.is_replicated && is_own || has_layout && is_own == (slot_rank == holder)
        });
        let form = (part.kind, part.is_replicated, part.nodes);
        let count = self.counts.entry(id).or_insert_with(|| Count::new(now));
        if is_added {
            count.add_form(form);
        } else {
            count.remove_form(form);
        }
        if !fits {
            count.odd = if is_added { count.odd + 1 } else { count.odd - 1 };
        } else {
            let slot = self.slots.entry((id, slot_rank)).or_default();
            count.remove(slot);
            if is_own {
                (slot.own, slot.is_alone) = (is_added, is_added && part.is_alone);
            } else if is_added {
                slot.copies.push(holder);
            } else {
                slot.copies.retain(|other| *other != holder);
            }
            count.add(slot);
            if !slot.own && slot.copies.is_empty() {
                self.slots.remove(&(id, slot_rank));
            }
        }
        let nodes = self.layout.len();
        let is_whole = count.is_whole(nodes, self.may_fetch);
        let is_complete = count.is_complete(nodes);
        if count.forms.is_empty() {
            self.counts.remove(&id);
        }
        keep(&mut self.whole, id, is_whole);
        keep(&mut self.complete, id, is_complete);
    }

    /// Returns the newest checkpoint that is whole: each node holds its part, and another node has a copy, or
    /// never will have one. If it is replicated, two nodes hold it, or one that stays alone; or all nodes, if these
    /// fetch nothing from each other.
    pub(crate) fn newest_whole(&self) -> Option<CheckpointId> {
        self.whole.last().copied()
    }

    /// Returns the newest checkpoint of this round of which each node holds its part.
    pub(crate) fn newest_complete(&self) -> Option<CheckpointId> {
        self.complete.last().copied().filter(|id| id.round == self.round)
    }

    /// Returns the newest checkpoint of this round of which the node at `rank` holds its own part.
    pub(crate) fn newest_own(&self, rank: GroupRank) -> Option<CheckpointId> {
        let own = self.reported.get(&rank)?.iter().filter(|part| part.place == PartPlace::Own);
        own.map(|part| part.checkpoint).filter(|id| id.round == self.round).max()
    }

    /// Returns true if a second node holds each part of a checkpoint.
    pub(crate) fn is_copied(&self, checkpoint: CheckpointId) -> bool {
        self.counts.get(&checkpoint).is_some_and(|count| count.is_copied(self.layout.len()))
    }

    /// Returns the time since the first report of a checkpoint of this round, if a second node holds each part of it now.
    pub(crate) fn copied_after(&self, now: Instant, checkpoint: CheckpointId) -> Option<Duration> {
        let is_of_round = checkpoint.round == self.round && self.is_copied(checkpoint);
        let count = self.counts.get(&checkpoint).filter(|_| is_of_round)?;
        Some(now.saturating_duration_since(count.since))
    }

    /// Returns the newest checkpoint of this round that was first reported after `since`, and of which the nodes
    /// hold all parts without `leavers`. Returns its kind too, and true if it is replicated.
    pub(crate) fn held_without(
        &self,
        leavers: &BTreeSet<GroupRank>,
        since: Instant,
    ) -> Option<(CheckpointId, MemoryKind, bool)> {
        let newest_first = self.complete.iter().rev().filter(|id| id.round == self.round);
        newest_first.copied().find_map(|id| {
            let count = self.counts.get(&id).filter(|count| since < count.since)?;
            let slot = |rank: &GroupRank| self.slots.get(&(id, *rank));
            let (kind, is_replicated, _) = count.form()?;
            let is_held = if is_replicated {
                let gone = leavers.iter().filter(|rank| slot(rank).is_some_and(|slot| slot.own));
                let (gone, staying) =
                    (gone.count(), self.layout.len().saturating_sub(leavers.len()));
                let least = if self.may_fetch { 1 } else { staying };
                count.own as usize >= gone + least
            } else {
                let stays = |rank: &GroupRank| !leavers.contains(rank);
                leavers
                    .iter()
                    .all(|rank| slot(rank).is_some_and(|slot| slot.copies.iter().any(stays)))
            };
            is_held.then_some((id, kind, is_replicated))
        })
    }
}

fn keep(set: &mut BTreeSet<CheckpointId>, id: CheckpointId, belongs: bool) {
    if belongs {
        set.insert(id);
    } else {
        set.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::fixture::{alone, checkpoint, part, replicated, round};

    const OWN: PartPlace = PartPlace::Own;
    const COPY: PartPlace = PartPlace::Copy;

    struct World {
        holdings: Holdings,
        now: Instant,
    }

    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
    fn world(nodes: u32) -> World {
        let layout = (0..nodes).map(|rank| (GlobalRank(rank), NonZeroU32::MIN)).collect();
        World { holdings: Holdings::new(round(5), layout, true), now: Instant::now() }
    }

    impl World {
        fn report(&mut self, rank: u32, parts: &[Part]) {
            self.now += Duration::from_millis(1);
            self.holdings.record(self.now, GroupRank(rank), parts);
            self.check();
        }

        /// Counts everything again.
        fn check(&self) {
            let Holdings { round, layout, may_fetch, .. } = &self.holdings;
            let mut again = Holdings::new(*round, layout.clone(), *may_fetch);
            for (rank, parts) in &self.holdings.reported {
                again.record(self.now, *rank, parts);
            }
            assert_eq!(again.whole, self.holdings.whole);
            assert_eq!(again.complete, self.holdings.complete);
            assert_eq!(again.slots.len(), self.holdings.slots.len());
            let counts = |holdings: &Holdings| -> Vec<_> {
                let counts = holdings.counts.values();
                counts.map(|it| (it.odd, it.own, it.alone, it.copied, it.safe)).collect()
            };
            assert_eq!(counts(&again), counts(&self.holdings));
        }

        fn whole(&self) -> Option<u64> {
            self.holdings.newest_whole().map(|id| id.step)
        }
    }

    /// A checkpoint is whole when each node holds its part and its buddy the copy, not before.
    #[test]
    fn whole_if_each_part_is_copied() {
        let (mut t, id) = (world(2), checkpoint(5, 10));
        t.report(0, &[part(id, 0, 2, OWN)]);
        t.report(1, &[part(id, 1, 2, OWN)]);
        assert_eq!(t.holdings.newest_complete(), Some(id));
        t.report(0, &[part(id, 0, 2, OWN), part(id, 1, 2, COPY)]);
        assert_eq!(t.whole(), None, "rank 0's part has no copy");
        assert_eq!(t.holdings.copied_after(t.now, id), None);
        t.report(1, &[part(id, 1, 2, OWN), part(id, 0, 2, COPY)]);
        assert_eq!(t.whole(), Some(10));
        assert!(t.holdings.is_copied(id));
        assert_eq!(t.holdings.copied_after(t.now, id), Some(Duration::from_millis(3)));
        t.report(1, &[]);
        assert_eq!(t.whole(), None, "a lost node holds nothing");
    }

    /// A part that stays alone needs no copy. Each part must be.
    #[test]
    fn alone_needs_no_copy() {
        let (mut t, id) = (world(2), checkpoint(5, 10));
        t.report(0, &[alone(part(id, 0, 2, OWN))]);
        t.report(1, &[part(id, 1, 2, OWN)]);
        assert_eq!(t.whole(), None);
        t.report(1, &[alone(part(id, 1, 2, OWN))]);
        assert_eq!(t.whole(), Some(10));
        assert!(!t.holdings.is_copied(id));
    }

    /// The newest steps of two nodes are different checkpoints, and none of them is whole.
    #[test]
    fn lowest_of_the_newest_is_not_whole() {
        let mut t = world(2);
        t.report(0, &[alone(part(checkpoint(5, 120), 0, 2, OWN))]);
        t.report(1, &[alone(part(checkpoint(5, 130), 1, 2, OWN))]);
        assert_eq!(t.whole(), None);
        // The same step of another round is another checkpoint.
        t.report(1, &[alone(part(checkpoint(4, 120), 1, 2, OWN))]);
        assert_eq!(t.whole(), None);
    }

    /// Leftovers do not count: they are freed once a checkpoint is whole.
    #[test]
    fn leftovers_do_not_count() {
        let (mut t, id) = (world(2), checkpoint(4, 10));
        t.report(0, &[part(id, 0, 2, OWN), part(id, 1, 2, PartPlace::Leftover)]);
        t.report(1, &[part(id, 1, 2, OWN), part(id, 0, 2, COPY)]);
        assert_eq!(t.whole(), None);
        t.report(0, &[part(id, 0, 2, OWN), part(id, 1, 2, COPY)]);
        assert_eq!(t.whole(), Some(10));
    }

    /// A part that another node calls its own, a copy of the own part, or a part of another layout is none of this
    /// round.
    #[test]
    fn odd_parts_are_never_whole() {
        let id = checkpoint(5, 10);
        let own = alone(part(id, 1, 2, OWN));
        let elsewhere = Part { first_global_rank: GlobalRank(7), ..own };
        let reports = [
            vec![own, part(id, 0, 2, OWN)],
            vec![own, part(id, 1, 2, COPY)],
            vec![own, part(id, 9, 2, COPY)],
            vec![Part { nodes: 3, ..own }],
            vec![elsewhere],
        ];
        for report in reports {
            let mut t = world(2);
            t.report(0, &[alone(part(id, 0, 2, OWN))]);
            t.report(1, &report);
            assert_eq!(t.whole(), None, "{report:?}");
            t.report(1, &[own]);
            assert_eq!(t.whole(), Some(10), "{report:?}");
        }
    }

    /// Two nodes with a replicated checkpoint are enough. A single one is if it stays alone.
    #[test]
    fn replicated_needs_two_holders() {
        let (mut t, id) = (world(4), checkpoint(5, 10));
        let of = |rank| replicated(part(id, rank, 4, OWN));
        t.report(1, &[of(1)]);
        assert_eq!((t.whole(), t.holdings.newest_complete()), (None, Some(id)));
        t.report(3, &[of(3)]);
        assert_eq!(t.whole(), Some(10));
        t.report(3, &[]);
        t.report(1, &[alone(of(1))]);
        assert_eq!(t.whole(), Some(10));
        // A restored one may come from a round of another size.
        let mut t = world(4);
        for rank in 0..2 {
            t.report(rank, &[replicated(part(checkpoint(4, 20), rank + 1, 3, OWN))]);
        }
        assert_eq!(t.whole(), Some(20));
    }

    /// If nodes fetch nothing from each other, each one needs what is replicated.
    #[test]
    fn replicated_needs_all_holders_without_transport() {
        let (mut t, id) = (world(3), checkpoint(5, 10));
        t.holdings.may_fetch = false;
        let leavers = BTreeSet::from([GroupRank(2)]);
        let before = t.now;
        let of = |rank| replicated(part(id, rank, 3, OWN));
        t.report(0, &[of(0)]);
        t.report(2, &[of(2)]);
        assert_eq!((t.whole(), t.holdings.held_without(&leavers, before)), (None, None));
        t.report(1, &[of(1)]);
        assert_eq!(t.whole(), Some(10));
        assert_eq!(t.holdings.held_without(&leavers, before), Some((id, MemoryKind::State, true)));
    }

    /// Before nodes leave, their parts must be held elsewhere, and saved since the notice.
    #[test]
    fn leavers_hold_nothing() {
        let (mut t, id) = (world(2), checkpoint(5, 10));
        let leavers = BTreeSet::from([GroupRank(1)]);
        let before = t.now;
        t.report(0, &[part(id, 0, 2, OWN)]);
        t.report(1, &[part(id, 1, 2, OWN), part(id, 0, 2, COPY)]);
        assert_eq!(t.holdings.held_without(&leavers, before), None);
        t.report(0, &[part(id, 0, 2, OWN), part(id, 1, 2, COPY)]);
        assert_eq!(t.holdings.held_without(&leavers, before), Some((id, MemoryKind::State, false)));
        assert_eq!(t.holdings.held_without(&leavers, t.now), None, "saved before");
        let both = BTreeSet::from([GroupRank(0), GroupRank(1)]);
        assert_eq!(t.holdings.held_without(&both, before), None);
        let mut t = world(2);
        t.report(1, &[replicated(part(id, 1, 2, OWN))]);
        assert_eq!(t.holdings.held_without(&leavers, before), None);
        t.report(0, &[replicated(part(id, 0, 2, OWN))]);
        assert_eq!(t.holdings.held_without(&leavers, before), Some((id, MemoryKind::State, true)));
    }
}
