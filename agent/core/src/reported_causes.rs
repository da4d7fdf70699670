//! Remembers the causes for an unreachable coordinator, so that each is reported once.

use std::collections::BTreeSet;

use crate::limits;

/// Causes that were reported since the coordinator was last reached.
#[derive(Clone, Debug, Default)]
pub struct ReportedCauses(BTreeSet<String>);

impl ReportedCauses {
    /// Adds `cause`. Returns true if it should be reported.
    pub fn insert(&mut self, cause: &str) -> bool {
        self.0.len() < limits::MAX_REPORTED_CAUSES && self.0.insert(cause.to_owned())
    }

    /// Returns true if no cause was reported.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all causes, because the coordinator is reached.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Causes that alternate are reported once each, and again after the coordinator was reached.
    #[test]
    fn alternating_causes_are_reported_once() {
        let mut causes = ReportedCauses::default();
        let alternating = ["no answer", "no route to host"].repeat(20);
        let mut report = || alternating.iter().filter(|cause| causes.insert(cause)).count();
        assert_eq!((report(), report()), (2, 0));
        causes.clear();
        assert!(causes.is_empty());
        assert!(causes.insert("no answer"));
    }

    /// The number of reported causes is bounded.
    #[test]
    fn causes_are_bounded() {
        let mut causes = ReportedCauses::default();
        let reported = (0..1000).filter(|number| causes.insert(&number.to_string())).count();
        assert_eq!(reported, limits::MAX_REPORTED_CAUSES);
    }
}
