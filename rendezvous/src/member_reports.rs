//! Decides when a coordinator reports its members to the voter of its process, which replaces lost voters by
//! them.

use std::time::{Duration, Instant};

use crate::{Rendezvous, heir::MembersReport};

/// The reports of one coordinator.
#[derive(Debug, Default)]
pub struct MemberReports {
    last: MembersReport,
    /// The time of the next report; `None` if nothing relevant has changed.
    due: Option<Instant>,
    /// No further report is sent before this time.
    not_before: Option<Instant>,
}

/// The interval between reports.
const INTERVAL: Duration = Duration::from_secs(1);

impl MemberReports {
    /// Notes that the members may have changed.
    pub fn note_change(&mut self, now: Instant) {
        let at = self.not_before.map_or(now, |not_before| not_before.max(now));
        self.due.get_or_insert(at);
    }

    /// Returns the time of the next report.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Sends the report that is due, if the members have changed. A report that `send` cannot send is
    /// repeated later.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        rendezvous: &Rendezvous,
        send: impl FnOnce(MembersReport) -> bool,
    ) {
        self.due = None;
        self.not_before = Some(now + INTERVAL);
        let report = rendezvous.members();
        if self.last == report {
            return;
        }
        if send(report.clone()) {
            self.last = report;
        } else {
            self.note_change(now);
        }
    }
}
