//! Joins the same line of several ranks into one.
//!
//! 1. Each line waits 300 ms. The waiting lines are in the order of printing.
//! 2. A line of another rank joins the next equal line that waits after the last line of that rank. So the order within a rank stays exact.
//! 3. A line that joins none waits after the last line of its rank, and after all lines that have arrived earlier.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use super::assembly::Item;

/// The lines that wait at most. The oldest are printed before more wait.
const WAITING_MAX: usize = 4096;

/// The number of waiting lines that are compared with a new one: more than a rank prints at once before it is equal to others again.
const COMPARED: usize = 256;

/// The time for which a line waits for other ranks.
pub(super) const WAIT: Duration = Duration::from_millis(300);

/// The same line of some ranks.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Group {
    /// The ranks.
    pub(super) ranks: BTreeSet<u32>,
    /// Their hosts.
    pub(super) hosts: BTreeSet<Arc<str>>,
    /// True for stderr.
    pub(super) is_stderr: bool,
    /// The round.
    pub(super) round: u64,
    /// The line.
    pub(super) item: Item,
}

/// A line of one rank.
#[derive(Clone, Debug)]
pub(super) struct RankLine {
    pub(super) rank: u32,
    pub(super) host: Arc<str>,
    pub(super) is_stderr: bool,
    pub(super) round: u64,
    pub(super) item: Item,
    /// True if its order with the lines of other ranks is not known.
    pub(super) is_old: bool,
}

/// A group that waits.
#[derive(Debug)]
struct Waiting {
    id: u64,
    /// The place in time: zero for old lines.
    at: u64,
    due: Option<Instant>,
    group: Group,
}

/// The lines that wait.
#[derive(Debug, Default)]
pub(super) struct Collapse {
    waiting: Vec<Waiting>,
    /// The last line of each rank.
    last: HashMap<u32, u64>,
    next_id: u64,
}

impl Collapse {
    /// Adds a line that is printed at `due` at the latest; without a time, when the caller takes all lines.
    pub(super) fn add(&mut self, line: RankLine, due: Option<Instant>) {
        let RankLine { rank, host, is_stderr, round, item, is_old } = line;
        let last = self.last.get(&rank);
        let after_last = last.and_then(|last| self.waiting.iter().rposition(|it| it.id == *last));
        let start = after_last.map_or(0, |at| at + 1);
        let is_same = |waiting: &Waiting| {
            let group = &waiting.group;
            group.item.hash == item.hash
                && (group.round, group.is_stderr) == (round, is_stderr)
                && group.item == item
                && !group.ranks.contains(&rank)
        };
        let same = self.waiting.iter_mut().skip(start).take(COMPARED).find(|it| is_same(it));
        if let Some(Waiting { id, group, .. }) = same {
            group.ranks.insert(rank);
            group.hosts.insert(host);
            self.last.insert(rank, *id);
            return;
        }
        self.next_id += 1;
        let id = self.next_id;
        let at = if is_old { 0 } else { id };
        let rest = self.waiting.iter().skip(start);
        let earlier = rest.take_while(|it| (it.group.round, it.at) < (round, at)).count();
        let group = Group { ranks: [rank].into(), hosts: [host].into(), is_stderr, round, item };
        self.waiting.insert(start + earlier, Waiting { id, at, due, group });
        self.last.insert(rank, id);
    }

    /// Returns the time at which the next line is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.first().and_then(|first| first.due)
    }

    /// Returns the next line that is due, or the next one if too many wait.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<Group> {
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due || self.waiting.len() > WAITING_MAX { self.next() } else { None }
    }

    /// Returns the next line.
    pub(super) fn next(&mut self) -> Option<Group> {
        let first = self.waiting.first()?;
        let (at, round) = (first.at, first.group.round);
        // Old lines of different ranks have no order, so the lowest rank comes first.
        let mut lowest = (first.group.ranks.first().copied(), 0);
        let mut seen: HashSet<u32> = HashSet::new();
        for (index, waiting) in self.waiting.iter().enumerate().take(COMPARED) {
            let group = &waiting.group;
            let is_free = group.ranks.iter().all(|rank| !seen.contains(rank));
            if waiting.at != at || group.round != round || !is_free {
                break;
            }
            seen.extend(&group.ranks);
            lowest = lowest.min((group.ranks.first().copied(), index));
        }
        let Waiting { id, group, .. } = self.waiting.remove(lowest.1);
        // A later line of these ranks has no line before it.
        for rank in &group.ranks {
            if self.last.get(rank) == Some(&id) {
                self.last.remove(rank);
            }
        }
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::assembly::Assembler, *};

    fn line(rank: u32, text: &str, is_old: bool) -> RankLine {
        let item = Assembler::default().add(rank, text).remove(0);
        let host = format!("n{}", rank / 8).into();
        RankLine { rank, host, is_stderr: false, round: 1, item, is_old }
    }

    fn printed(collapse: &mut Collapse) -> Vec<String> {
        let next = std::iter::from_fn(|| collapse.next());
        let text = |group: Group| {
            let ranks: Vec<String> = group.ranks.iter().map(u32::to_string).collect();
            format!("{}:{}", ranks.join(","), group.item.text)
        };
        next.map(text).collect()
    }

    /// New lines are joined, and one of a single rank stands where it has arrived.
    #[test]
    fn equal_lines_are_one() {
        let mut collapse = Collapse::default();
        for rank in 0..3 {
            collapse.add(line(rank, "step 1", false), None);
        }
        collapse.add(line(1, "slow", false), None);
        for rank in 0..3 {
            collapse.add(line(rank, "step 2", false), None);
            collapse.add(line(rank, "step 2", false), None);
        }
        let expected = ["0,1,2:step 1", "1:slow", "0,1,2:step 2", "0,1,2:step 2"];
        assert_eq!(printed(&mut collapse), expected);
    }

    /// The output that was there before is aligned, although one rank is read after the other. Different lines are in the
    /// order of the ranks.
    #[test]
    fn old_lines_are_aligned() {
        let mut collapse = Collapse::default();
        for rank in 0..3 {
            collapse.add(line(rank, &format!("hello from {rank}"), true), None);
            collapse.add(line(rank, "step 1", true), None);
            if rank == 1 {
                collapse.add(line(rank, "slow", true), None);
            }
            collapse.add(line(rank, "step 2", true), None);
        }
        let expected = [
            "0:hello from 0",
            "1:hello from 1",
            "2:hello from 2",
            "0,1,2:step 1",
            "1:slow",
            "0,1,2:step 2",
        ];
        assert_eq!(printed(&mut collapse), expected);
    }

    /// A line is due after its time, and earlier if too many wait.
    #[test]
    fn waiting_is_bounded() {
        let mut collapse = Collapse::default();
        let now = ragent_base::sys::clock::now_blocking();
        collapse.add(line(0, "first", false), Some(now + WAIT));
        assert_eq!(collapse.next_due(now), None);
        assert_eq!(collapse.next_due(now + WAIT).unwrap().item.text, "first");
        for number in 0..=WAITING_MAX {
            collapse.add(line(0, &number.to_string(), false), Some(now + WAIT));
        }
        assert_eq!(collapse.next_due(now).unwrap().item.text, "0");
        assert_eq!(collapse.next_due(now), None);
    }

    proptest! {
        /// No line is lost or added, and each rank keeps its order.
        #[test]
        fn order_of_ranks_is_exact(lines in prop::collection::vec((0..4u32, 0..3u8, any::<bool>()), 0..60)) {
            let mut collapse = Collapse::default();
            // What was there before comes before what is new.
            let (old, new): (Vec<_>, Vec<_>) = lines.into_iter().partition(|(_, _, is_old)| *is_old);
            let lines: Vec<_> = old.into_iter().chain(new).collect();
            for (rank, text, is_old) in &lines {
                collapse.add(line(*rank, &text.to_string(), *is_old), None);
            }
            let groups: Vec<Group> = std::iter::from_fn(|| collapse.next()).collect();
            for rank in 0..4 {
                let given = lines.iter().filter(|line| line.0 == rank).map(|line| line.1.to_string());
                let printed = groups.iter().filter(|group| group.ranks.contains(&rank));
                prop_assert_eq!(
                    given.collect::<Vec<_>>(),
                    printed.map(|group| group.item.text.clone()).collect::<Vec<_>>()
                );
            }
        }
    }
}
