//! Decides when a coordinator reports its members to the voter of its process, which replaces lost voters by them.

use std::time::{Duration, Instant};

use crate::{Rendezvous, heir::Member};

/// The reports of one coordinator.
#[derive(Debug, Default)]
pub struct MemberReports {
    /// The members and the number of voters in the last report.
    last: (Vec<Member>, usize),
    /// The time of the next report; `None` if nothing has changed that could matter.
    due: Option<Instant>,
    /// The time before which no further report is sent.
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

    /// Sends the report that is due, if the members have changed. A report that `send` cannot send is repeated later.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        rendezvous: &Rendezvous,
        send: impl FnOnce(Vec<Member>, usize) -> bool,
    ) {
        self.due = None;
        self.not_before = Some(now + INTERVAL);
        let members = rendezvous.members();
        if self.last == members {
            return;
        }
        if send(members.0.clone(), members.1) {
            self.last = members;
        } else {
            self.note_change(now);
        }
    }
}
