//! Finds the newest step that all of a group have saved.
//!
//! The newest step of each member is not enough. One has saved 120 and 130, another only 120, a third only 130:
//! the lowest of their newest steps is 120, but the third does not have it. So the members are counted for each
//! step.

use std::collections::{BTreeMap, BTreeSet};

/// The most steps that are remembered. No step waits for a slower member.
const STEPS_MAX: usize = 8;

/// The members that have saved each of the newest steps.
#[derive(Clone, Debug)]
pub struct SavedSteps<K> {
    by_step: BTreeMap<u64, BTreeSet<K>>,
    /// The newest step of which one member has saved all parts.
    whole: Option<u64>,
}

impl<K> Default for SavedSteps<K> {
    fn default() -> Self {
        Self { by_step: BTreeMap::new(), whole: None }
    }
}

impl<K: Ord> SavedSteps<K> {
    /// Records that `member` has saved its part of a step; all parts if `is_whole`.
    pub fn record(&mut self, member: K, step: u64, is_whole: bool) {
        if is_whole {
            self.whole = self.whole.max(Some(step));
        }
        self.by_step.entry(step).or_default().insert(member);
        if self.by_step.len() > STEPS_MAX {
            self.by_step.pop_first();
        }
    }

    /// Returns the newest step that `size` members have saved, or one member for all.
    pub fn newest(&self, size: usize) -> Option<u64> {
        let by_all = self.by_step.iter().rev().find(|(_, members)| members.len() >= size);
        by_all.map(|(step, _)| *step).max(self.whole)
    }

    /// Returns true if `member` has saved its part of any of the newest steps.
    pub fn has(&self, member: &K) -> bool {
        self.by_step.values().any(|members| members.contains(member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(reports: &[(&str, u64)]) -> Option<u64> {
        let mut saved = SavedSteps::default();
        reports.iter().for_each(|(member, step)| saved.record(*member, *step, false));
        saved.newest(2)
    }

    /// A step counts once all have saved it, in any order. Two different steps are no checkpoint.
    #[test]
    fn all_must_have_saved_the_same_step() {
        assert_eq!(newest(&[("a", 120)]), None);
        assert_eq!(newest(&[("a", 120), ("b", 130)]), None);
        assert_eq!(newest(&[("a", 120), ("b", 120)]), Some(120));
        assert_eq!(newest(&[("a", 120), ("a", 130), ("b", 120)]), Some(120));
        assert_eq!(newest(&[("a", 120), ("a", 130), ("b", 120), ("b", 130)]), Some(130));
        assert_eq!(newest(&[("a", 120), ("a", 120)]), None, "one member has reported twice");
    }

    /// One member is enough if it has saved all parts.
    #[test]
    fn one_member_may_save_everything() {
        let mut saved = SavedSteps::default();
        saved.record("a", 7, true);
        assert_eq!(saved.newest(1000), Some(7));
        assert!(saved.has(&"a") && !saved.has(&"b"));
    }

    /// Only the newest steps are remembered.
    #[test]
    fn memory_is_bounded() {
        let mut saved = SavedSteps::default();
        (0..100).for_each(|step| saved.record("a", step, false));
        assert_eq!(saved.by_step.len(), STEPS_MAX);
        saved.record("b", 91, false);
        assert_eq!(saved.newest(2), None);
        saved.record("b", 92, false);
        assert_eq!(saved.newest(2), Some(92));
    }
}
