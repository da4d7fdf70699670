//! Limits the cost of flapping: nodes that fail repeatedly, and rounds that are restarted for
//! newcomers.
//!
//! A node whose worker has failed is *suspected* for a day. This only changes the order in which nodes get a place.

use std::{
    collections::VecDeque,
    iter,
    time::{Duration, Instant},
};

use crate::{
    limits::{
        DEPARTED_TALLIES_MAX, EARLY, EARLY_LOSSES_MAX, HOST_TALLIES_MAX, QUIET_TIME, STRIKES_MAX,
        SUSPECTED_FOR, VOLUNTARY_SPACING_MAX, after,
    },
    message::NodeDescription,
    settings::HostTally,
};

/// Counts the failures and losses of a node shortly after a start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    strikes: VecDeque<Instant>,
    early_losses: u32,
    quarantined_since: Option<Instant>,
    suspicions: u32,
    suspected_at: Option<Instant>,
}

impl Tally {
    /// Counts a failure at `now` in a round that started at `started`. Returns true if the node has
    /// reached [`STRIKES_MAX`].
    pub(crate) fn failed(&mut self, now: Instant, started: Instant) -> bool {
        if now.saturating_duration_since(started) >= EARLY {
            return false;
        }
        while self.strikes.front().is_some_and(|at| after(*at, QUIET_TIME) <= now) {
            self.strikes.pop_front();
        }
        self.strikes.push_back(now);
        if self.strikes.len() > STRIKES_MAX {
            self.strikes.pop_front();
        }
        self.strikes.len() >= STRIKES_MAX
    }

    /// Counts a loss, also as a failure. Returns true if the node has reached [`STRIKES_MAX`].
    pub(crate) fn lost(&mut self, now: Instant, started: Instant) -> bool {
        if now.saturating_duration_since(started) < EARLY {
            self.early_losses = self.early_losses.saturating_add(1);
        }
        self.failed(now, started)
    }

    /// Suspects the node, because one of its workers was the first to fail.
    pub(crate) fn suspect(&mut self, now: Instant) {
        self.suspicions = self.suspicions(now).saturating_add(1);
        self.suspected_at = Some(now);
    }

    /// Returns the number of suspicions, all of which end [`SUSPECTED_FOR`] after the last one.
    pub(crate) fn suspicions(&self, now: Instant) -> u32 {
        self.suspected(now).map_or(0, |(count, _)| count)
    }

    /// Returns the number of suspicions with the time of the last one, if there are any.
    pub(crate) fn suspected(&self, now: Instant) -> Option<(u32, Instant)> {
        let last = self.suspected_at.filter(|at| now < after(*at, SUSPECTED_FOR));
        last.map(|last| (self.suspicions, last))
    }

    /// Quarantines the node.
    pub(crate) fn quarantine(&mut self, now: Instant) {
        self.quarantined_since = Some(now);
    }

    /// Returns the end of the quarantine, if the node is quarantined.
    pub(crate) fn quarantined_until(&self) -> Option<Instant> {
        self.quarantined_since.map(|since| after(since, QUIET_TIME))
    }

    /// Returns true if a job that needs the node may take it back.
    pub(crate) fn may_be_recalled(&self) -> bool {
        self.early_losses < EARLY_LOSSES_MAX
    }

    /// Ends the quarantine because the job needs the node. Its earlier failures still count.
    pub(crate) fn recall(&mut self) {
        self.quarantined_since = None;
    }

    /// Forgets failures and losses after a quiet time. The node is still suspected.
    pub(crate) fn forgive(&mut self) {
        let Self { suspicions, suspected_at, .. } = *self;
        *self = Self { suspicions, suspected_at, ..Self::default() };
    }

    /// Returns true if the tally is empty.
    pub(crate) fn is_clean(&self) -> bool {
        self.strikes.is_empty() && self.quarantined_since.is_none() && self.suspected_at.is_none()
    }

    /// Restores a tally that an earlier coordinator has stored. The times of its events are
    /// unknown, so they are set to `now`.
    fn restored(now: Instant, counted: &HostTally) -> Self {
        let strikes = (counted.strikes as usize).min(STRIKES_MAX);
        Self {
            strikes: iter::repeat_n(now, strikes).collect(),
            early_losses: counted.early_losses,
            quarantined_since: (strikes >= STRIKES_MAX).then_some(now),
            suspicions: counted.suspicions,
            suspected_at: now.checked_sub(counted.suspected_for).filter(|_| counted.suspicions > 0),
        }
    }

    /// Returns the tally to be stored; `None` if nothing in it is recent.
    pub(crate) fn to_host(&self, now: Instant, node: &NodeDescription) -> Option<HostTally> {
        let (host_name, address) = machine(node);
        self.to_machine(now, host_name, address)
    }

    fn to_machine(&self, now: Instant, host_name: String, address: String) -> Option<HostTally> {
        let (is_quiet, suspected) = (self.is_quiet(now), self.suspected(now));
        let strikes = u32::try_from(self.strikes.len()).unwrap_or(u32::MAX);
        let (suspicions, suspected_for) = suspected
            .map_or((0, Duration::ZERO), |(count, at)| (count, now.saturating_duration_since(at)));
        (!is_quiet || suspicions > 0).then_some(HostTally {
            host_name,
            address,
            strikes: if is_quiet { 0 } else { strikes },
            early_losses: if is_quiet { 0 } else { self.early_losses },
            suspicions,
            suspected_for,
        })
    }

    /// Returns true if its failures and losses no longer count.
    fn is_quiet(&self, now: Instant) -> bool {
        let newest = self.strikes.back().copied().max(self.quarantined_since);
        newest.is_none_or(|at| after(at, QUIET_TIME) <= now)
    }

    fn is_stale(&self, now: Instant) -> bool {
        self.is_quiet(now) && self.suspicions(now) == 0
    }
}

/// Keeps the tallies of departed agents for the next agent of the same machine. A node that crashes
/// repeatedly has a new agent each time.
///
/// Tallies are kept by agent, not by machine, so that those of several agents on one machine do not
/// add up.
#[derive(Debug, Default)]
pub(crate) struct DepartedTallies {
    left: VecDeque<(Machine, Tally)>,
}

type Machine = (String, String);

fn machine(description: &NodeDescription) -> Machine {
    (description.host_name.clone(), description.address.clone())
}

impl DepartedTallies {
    /// Restores the tallies of an earlier coordinator.
    pub(crate) fn restore(&mut self, now: Instant, counted: &[HostTally]) {
        self.left = counted
            .iter()
            .take(HOST_TALLIES_MAX)
            .map(|of| ((of.host_name.clone(), of.address.clone()), Tally::restored(now, of)))
            .collect();
    }

    /// Returns the tallies of departed agents, to be stored.
    pub(crate) fn to_hosts(&self, now: Instant) -> impl Iterator<Item = HostTally> {
        let left = self.left.iter();
        left.filter_map(move |((host_name, address), tally)| {
            tally.to_machine(now, host_name.clone(), address.clone())
        })
    }

    /// Keeps `tally` of a departed agent.
    pub(crate) fn insert(&mut self, description: &NodeDescription, tally: Tally) {
        if self.left.len() >= DEPARTED_TALLIES_MAX {
            self.left.pop_front();
        }
        self.left.push_back((machine(description), tally));
    }

    /// Removes and returns the oldest tally of that machine, for its new agent.
    pub(crate) fn take(&mut self, now: Instant, description: &NodeDescription) -> Option<Tally> {
        if self.left.is_empty() {
            return None;
        }
        self.left.retain(|(_, tally)| !tally.is_stale(now));
        let machine = machine(description);
        let found = self.left.iter().position(|(of, _)| *of == machine)?;
        self.left.remove(found).map(|(_, tally)| tally)
    }
}

/// The spacing of voluntary rounds. Each round doubles it, and a quiet time resets it.
#[derive(Debug, Default)]
pub(crate) struct RestartSpacing {
    last: Option<(Instant, Duration)>,
}

impl RestartSpacing {
    /// Returns the earliest time at which nodes that wait since `waiting_since` may cause a round.
    pub(crate) fn earliest(&self, waiting_since: Instant, settle: Duration) -> Instant {
        let settled = after(waiting_since, settle);
        self.last.map_or(settled, |(at, spacing)| settled.max(after(at, spacing)))
    }

    /// Records a voluntary round at `now`.
    pub(crate) fn note(&mut self, now: Instant, settle: Duration) {
        let spacing = match self.last {
            Some((at, spacing)) if now < after(at, QUIET_TIME) => spacing,
            Some(_) | None => settle,
        };
        self.last = Some((now, spacing.saturating_mul(2).min(VOLUNTARY_SPACING_MAX)));
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
mod tests {
    use super::*;
    use crate::ids::NodeId;

    const SECOND: Duration = Duration::from_secs(1);

    /// The third failure within 60 s of a start reaches the limit. Later failures do not count.
    #[test]
    fn third_early_failure_is_one_too_many() {
        let start = Instant::now();
        let mut tally = Tally::default();
        assert!(!tally.failed(start + 59 * SECOND, start));
        assert!(!tally.failed(start + 60 * SECOND, start));
        assert!(!tally.failed(start + 70 * SECOND, start + 65 * SECOND));
        assert!(tally.failed(start + 80 * SECOND, start + 75 * SECOND));
    }

    /// If the tallies of too many departed agents are kept, the oldest one is forgotten.
    #[test]
    fn departed_tallies_are_bounded() {
        let (mut departed, now) = (DepartedTallies::default(), Instant::now());
        for number in 0..=DEPARTED_TALLIES_MAX {
            let mut tally = Tally::default();
            tally.suspect(now);
            let host = format!("host{number}");
            departed.insert(&NodeDescription::new(NodeId::new(&host), &host, ""), tally);
        }
        let hosts: Vec<String> = departed.to_hosts(now).map(|tally| tally.host_name).collect();
        assert_eq!((hosts.len(), hosts[0].as_str()), (DEPARTED_TALLIES_MAX, "host1"));
    }

    /// Suspicions add up, outlive a quiet time and another coordinator, and are forgotten together.
    #[test]
    fn suspicions_are_forgotten_after_a_day() {
        let start = Instant::now();
        let mut tally = Tally::default();
        tally.suspect(start);
        tally.failed(start, start);
        let hour = 3_600 * SECOND;
        tally.suspect(start + 20 * hour);
        tally.forgive();
        assert!(!tally.is_clean());
        let now = start + 43 * hour;
        let stored = tally.to_machine(now, "a".to_owned(), "b".to_owned()).unwrap();
        assert_eq!((stored.strikes, stored.suspicions, stored.suspected_for), (0, 2, 23 * hour));
        let restored = Tally::restored(now, &stored);
        for tally in [&tally, &restored] {
            assert_eq!(tally.suspicions(now), 2);
            assert!(!tally.is_stale(now) && tally.is_stale(now + hour));
        }
        tally.suspect(now + hour);
        assert_eq!(tally.suspicions(now + hour), 1);
    }

    /// Early failures further apart than the quiet time do not add up.
    #[test]
    fn quiet_time_forgets_failures() {
        let start = Instant::now();
        let mut tally = Tally::default();
        for n in 0..9 {
            let started = start + n * (QUIET_TIME / 2 + SECOND);
            assert!(!tally.failed(started + SECOND, started));
        }
    }

    /// A node with too many losses shortly after a start cannot be taken back. Later losses do not
    /// count.
    #[test]
    fn early_losses_rule_out_a_recall() {
        let start = Instant::now();
        let mut tally = Tally::default();
        for _ in 0..EARLY_LOSSES_MAX {
            tally.lost(start + EARLY, start);
        }
        assert!(tally.may_be_recalled());
        for losses in 1..=EARLY_LOSSES_MAX {
            tally.lost(start + EARLY - SECOND, start);
            assert_eq!(tally.may_be_recalled(), losses < EARLY_LOSSES_MAX);
        }
    }

    /// The spacing of voluntary rounds doubles up to five minutes, and is reset by a quiet time.
    #[test]
    fn voluntary_rounds_are_spaced() {
        let start = Instant::now();
        let settle = 3 * SECOND;
        let mut pace = RestartSpacing::default();
        let mut now = start;
        let mut spacings = Vec::new();
        for _ in 0..9 {
            let at = pace.earliest(now, settle);
            spacings.push((at - now).as_secs());
            now = at;
            pace.note(now, settle);
        }
        assert_eq!(spacings, [3, 6, 12, 24, 48, 96, 192, 300, 300]);
        now += QUIET_TIME;
        assert_eq!(pace.earliest(now, settle), now + settle);
        pace.note(now, settle);
        assert_eq!(pace.earliest(now, settle), now + 2 * settle);
    }
}
