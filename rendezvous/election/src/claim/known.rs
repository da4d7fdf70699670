//! The content of the job's key, as far as this process knows it.

use std::time::{Duration, Instant};

use ragent_rendezvous::limits::NUMBER_MAX;
use tracing::info;

use crate::claim::{Claim, Entry, Record, Revision, Role, Value};

/// The content of the key, as far as this process knows it.
#[derive(Debug)]
pub(super) enum Known {
    /// The key was not read yet.
    Nothing,
    /// The key did not exist at `revision`. It has existed until `since`, or never as far as this
    /// process knows.
    Absent { revision: Revision, since: Option<Instant> },
    /// The key has this record since its revision, which was received at `seen`.
    Present { entry: Box<Entry>, seen: Instant },
}

impl Known {
    /// Returns the newest revision of the key.
    pub(super) fn revision(&self) -> Option<Revision> {
        match self {
            Self::Nothing => None,
            Self::Absent { revision, .. } => Some(*revision),
            Self::Present { entry, .. } => Some(entry.revision),
        }
    }
}

impl Claim {
    /// Forgets the known revision if the store refuses a change with a lower one: it was restored from a copy. What it has
    /// now is replaced only after a silence.
    pub(super) fn note_reset(&mut self, now: Instant, refused: &Value) {
        if self.known.revision().is_some_and(|known| refused.of_key() < known) {
            info!("the revision of the store has gone back; it may have been restored");
            self.store = refused.revision;
            self.known = Known::Absent { revision: Revision(0), since: Some(now) };
        }
    }

    /// Records the content of the key, unless a later one is known.
    pub(super) fn observe(&mut self, now: Instant, value: Value) {
        self.store = self.store.max(value.revision);
        let revision = value.of_key();
        let since = match &self.known {
            Known::Nothing => None,
            Known::Absent { since, .. } => *since,
            Known::Present { .. } => Some(now),
        };
        if self.known.revision().is_some_and(|known| revision <= known) {
            return;
        }
        let was_absent = matches!(self.known, Known::Absent { .. });
        let Some(entry) = value.entry else {
            self.known = Known::Absent { revision, since };
            if !was_absent || matches!(self.role, Role::Leader(_)) {
                self.lose_record(now);
            }
            return;
        };
        if entry.record.term.0 <= NUMBER_MAX {
            self.highest = self.highest.max(entry.record.term);
        }
        let own = self.own_change(&entry.record);
        self.known = Known::Present { entry: Box::new(entry), seen: now };
        match own {
            Some(number) => self.confirm(now, number),
            None => self.lose_record(now),
        }
    }

    /// Returns the number of the change of this process that has written `record`, if it belongs to its
    /// present candidacy or leadership.
    fn own_change(&self, record: &Record) -> Option<u64> {
        let term = match &self.role {
            Role::Follower => return None,
            Role::Candidate { term, .. } => *term,
            Role::Leader(leader) => leader.term,
        };
        let is_own = record.process == self.settings.process && record.term == term;
        is_own.then_some(record.number)
    }

    /// Follows, because the key no longer has the expected record.
    pub(super) fn lose_record(&mut self, now: Instant) {
        match self.role {
            Role::Leader(_) => self.end_leadership("another process has replaced the record"),
            Role::Candidate { .. } | Role::Follower => self.role = Role::Follower,
        }
        self.follow(now);
    }

    /// Returns the time at which the record in the store may be replaced, because it was not renewed.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        match &self.known {
            Known::Present { entry, seen } => Some(*seen + self.silence(&entry.record)),
            Known::Nothing | Known::Absent { .. } => None,
        }
    }

    /// Returns the time without a new revision after which `record` may be replaced.
    pub(super) fn silence(&self, record: &Record) -> Duration {
        self.settings.timers.silence.max(record.silence)
    }
}
