//! Decides how an outage is reported: the time from the loss of the coordinator until this node registers
//! again.
//!
//! A lost coordinator causes several errors in a few seconds: the stream breaks, attempts to connect fail,
//! the lease ends. Only these reports are warnings: the first, a repetition every 30 s, and the report that
//! workers are stopped. The others are logged at `info`.

use std::{mem, time::Instant};

use crate::{limits, reported_causes::ReportedCauses};

/// The outage of an agent's coordinator, if there is one.
#[derive(Clone, Debug, Default)]
pub struct Outage {
    causes: ReportedCauses,
    /// The time of the last warning.
    reported_at: Option<Instant>,
    /// True if the user knows that workers are stopped because the lease has ended.
    is_stop_reported: bool,
    /// The time of the first attempt that failed because the secrets differ.
    mismatch_since: Option<Instant>,
}

/// A report about an outage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OutageReport {
    /// The first report, its repetition, or the report that workers are stopped: a warning.
    First,
    /// A further report, logged at `info`.
    Further,
}

impl Outage {
    /// Notes that the coordinator's host has announced that it leaves, which was reported.
    pub fn handle_host_leaving(&mut self, now: Instant) {
        self.reported_at = Some(now);
    }

    /// Notes that the stream to the coordinator has ended. The next attempt follows at once, and finds either
    /// the coordinator or the cause.
    pub fn handle_stream_ended(&mut self, cause: &str) -> Option<OutageReport> {
        self.causes.insert(cause).then_some(OutageReport::Further)
    }

    /// Notes that an attempt to reach the coordinator has failed. Before the first registration, every new
    /// cause is a warning, because nothing else happens on this node.
    pub fn handle_unreachable(
        &mut self,
        now: Instant,
        cause: &str,
        is_registered: bool,
    ) -> Option<OutageReport> {
        let is_new = self.causes.insert(cause);
        let is_due = self.reported_at.is_none_or(|at| at + limits::WAIT_REPEAT <= now);
        if is_due || !is_registered && is_new {
            self.reported_at = Some(now);
            return Some(OutageReport::First);
        }
        is_new.then_some(OutageReport::Further)
    }

    /// Notes that this process and the coordinator have different secrets. Returns true if this has lasted
    /// longer than a process needs to read a changed file.
    pub fn handle_mismatch(&mut self, now: Instant) -> bool {
        let since = *self.mismatch_since.get_or_insert(now);
        now.saturating_duration_since(since) >= limits::MISMATCH_PATIENCE
    }

    /// Notes that an attempt has failed for another reason than different secrets, so that they may be equal
    /// again.
    pub fn handle_no_mismatch(&mut self) {
        self.mismatch_since = None;
    }

    /// Notes that the lease has ended, and that workers of this node are stopped because of that.
    pub fn handle_lease_lost(&mut self, now: Instant) -> OutageReport {
        self.reported_at = Some(now);
        match mem::replace(&mut self.is_stop_reported, true) {
            true => OutageReport::Further,
            false => OutageReport::First,
        }
    }

    /// Notes that the coordinator was reached: this node has registered, or was admitted. Returns true if
    /// there was an outage.
    pub fn handle_reached(&mut self) -> bool {
        let outage = mem::take(self);
        outage.reported_at.is_some() || !outage.causes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROKE: &str = "the connection broke";
    const REFUSED: &str = "connection refused";
    const NO_ROUTE: &str = "no route to host";

    /// Different secrets count when they have lasted. A coordinator that was reached ends the count.
    #[test]
    fn mismatch_counts_when_it_has_lasted() {
        let (mut outage, now) = (Outage::default(), crate::some_instant());
        assert!(!outage.handle_mismatch(now));
        assert!(!outage.handle_mismatch(now + limits::MISMATCH_PATIENCE / 2));
        assert!(outage.handle_mismatch(now + limits::MISMATCH_PATIENCE));
        for end in [Outage::handle_no_mismatch, |outage: &mut Outage| {
            outage.handle_reached();
        }] {
            end(&mut outage);
            assert!(!outage.handle_mismatch(now + limits::MISMATCH_PATIENCE * 2));
        }
    }

    /// A coordinator that is gone is reported once, and again every 30 s, with the cause of the first failed attempt. A stream that
    /// is replaced at once is not reported.
    #[test]
    fn lost_coordinator_is_reported() {
        let (mut outage, now) = (Outage::default(), crate::some_instant());
        assert_eq!(outage.handle_stream_ended(BROKE), Some(OutageReport::Further));
        assert!(outage.handle_reached());
        assert!(!outage.handle_reached());
        assert_eq!(outage.handle_stream_ended(BROKE), Some(OutageReport::Further));
        assert_eq!(outage.handle_unreachable(now, REFUSED, true), Some(OutageReport::First));
        assert_eq!(outage.handle_unreachable(now, REFUSED, true), None);
        assert_eq!(outage.handle_unreachable(now, NO_ROUTE, true), Some(OutageReport::Further));
        let later = now + limits::WAIT_REPEAT;
        assert_eq!(outage.handle_unreachable(later, REFUSED, true), Some(OutageReport::First));
        assert_eq!(outage.handle_unreachable(later, REFUSED, true), None);
        assert!(outage.handle_reached());
        assert_eq!(outage.handle_unreachable(now, REFUSED, true), Some(OutageReport::First));
    }

    /// If only the end of the lease shows the outage, that is reported. After the announcement of the host,
    /// nothing is.
    #[test]
    fn first_sign_is_reported() {
        let (mut outage, now) = (Outage::default(), crate::some_instant());
        assert_eq!(outage.handle_lease_lost(now), OutageReport::First);
        assert_eq!(outage.handle_unreachable(now, REFUSED, true), Some(OutageReport::Further));
        let mut outage = Outage::default();
        outage.handle_host_leaving(now);
        assert_eq!(outage.handle_unreachable(now, REFUSED, true), Some(OutageReport::Further));
    }

    /// The stop of workers is a warning even if the outage has been reported, once for each outage.
    #[test]
    fn stop_of_workers_is_reported_once() {
        let (mut outage, now) = (Outage::default(), crate::some_instant());
        assert_eq!(outage.handle_unreachable(now, REFUSED, true), Some(OutageReport::First));
        assert_eq!(outage.handle_lease_lost(now), OutageReport::First);
        assert_eq!(outage.handle_lease_lost(now), OutageReport::Further);
        assert!(outage.handle_reached());
        assert_eq!(outage.handle_lease_lost(now), OutageReport::First);
    }

    /// The attempt after a stream has ended is reported even if it fails for the same cause.
    #[test]
    fn repeated_cause_is_reported() {
        let (mut outage, now) = (Outage::default(), crate::some_instant());
        outage.handle_stream_ended(BROKE);
        assert_eq!(outage.handle_unreachable(now, BROKE, true), Some(OutageReport::First));
        assert_eq!(outage.handle_unreachable(now, BROKE, true), None);
    }

    /// Before the first registration every new cause is reported.
    #[test]
    fn causes_before_the_first_registration_are_reported() {
        let (mut outage, now) = (Outage::default(), crate::some_instant());
        assert_eq!(outage.handle_unreachable(now, REFUSED, false), Some(OutageReport::First));
        assert_eq!(outage.handle_unreachable(now, REFUSED, false), None);
        assert_eq!(outage.handle_unreachable(now, "no answer", false), Some(OutageReport::First));
    }
}
