//! Reports the members of a job to the voter of the coordinator's process, which replaces lost voters by them.

use std::time::Instant;

use ragent_rendezvous::{Rendezvous, heir::Member};

use crate::{
    coordinator::limits,
    voter::{Command, Commands},
};

/// The reports of one coordinator.
#[derive(Debug)]
pub(crate) struct MemberReports {
    commands: Commands,
    /// The members and the number of voters in the last report.
    last: (Vec<Member>, usize),
    /// The time of the next report; `None` if nothing has changed that could matter.
    due: Option<Instant>,
    /// The time before which no further report is sent.
    not_before: Option<Instant>,
}

impl MemberReports {
    pub(crate) fn new(commands: Commands) -> Self {
        Self { commands, last: (Vec::new(), 0), due: None, not_before: None }
    }

    /// Notes that the members may have changed.
    pub(crate) fn note_change(&mut self, now: Instant) {
        let at = self.not_before.map_or(now, |not_before| not_before.max(now));
        self.due.get_or_insert(at);
    }

    /// Returns the time of the next report.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Sends the report that is due, if the members have changed.
    pub(crate) fn handle_timeout(&mut self, now: Instant, rendezvous: &Rendezvous) {
        self.due = None;
        self.not_before = Some(now + limits::MEMBERS_INTERVAL);
        let members = rendezvous.members();
        if self.last == members {
            return;
        }
        let command = Command::Members(members.0.clone(), members.1);
        if self.commands.try_send(command).is_ok() {
            self.last = members;
        } else {
            self.note_change(now);
        }
    }
}
