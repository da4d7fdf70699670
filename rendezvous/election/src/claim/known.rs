//! Keeps the content of the job's key as this process knows it, and the newest record that the key
//! has had.

use std::time::{Duration, Instant};

use ragent_rendezvous::{ids::JobUid, limits::NUMBER_MAX, message::Outcome};
use tracing::info;

use crate::claim::{Claim, Entry, KeyContent, Record, RecordKind, Revision, Role, Stamp};

/// The key as this process has seen it.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The content of the key.
    pub(super) content: Content,
    /// The newest record, even if the key no longer has it.
    pub(super) newest: Option<Box<Record>>,
    /// The job for which the agent of this process was registered last.
    pub(super) own_job: Option<JobUid>,
    /// The time since which the key has had an older record than `newest`.
    pub(super) outdated_since: Option<Instant>,
    /// The highest revision that a watch of the key has reported.
    watched: Revision,
}

/// The content of the key.
#[derive(Debug, Default)]
pub(super) enum Content {
    /// The key was not read yet.
    #[default]
    Nothing,
    /// The key does not exist at `revision`. This process has known it since `seen`.
    Absent { revision: Revision, seen: Instant },
    /// The key has a value that is not a record. It was received at `seen`.
    Garbage { stamp: Stamp, seen: Instant },
    /// The key has this record. It was received at `seen`.
    Present { entry: Box<Entry>, seen: Instant },
}

impl Content {
    /// Returns the revision of the newest known content.
    fn revision(&self) -> Option<Revision> {
        match self {
            Self::Nothing => None,
            Self::Absent { revision, .. } => Some(*revision),
            Self::Garbage { stamp, .. } => Some(stamp.revision),
            Self::Present { entry, .. } => Some(entry.stamp.revision),
        }
    }

    /// Returns the identity that a change of this content expects; zero if the key does not exist.
    pub(super) fn expected(&self) -> Option<Stamp> {
        match self {
            Self::Nothing => None,
            Self::Absent { .. } => Some(Stamp::default()),
            Self::Garbage { stamp, .. } => Some(*stamp),
            Self::Present { entry, .. } => Some(entry.stamp),
        }
    }

    /// Returns true if the store has gone back to an older copy: it cannot have had both this
    /// content and `value`.
    fn contradicts(&self, value: &KeyContent) -> bool {
        let is_other = self.expected() != Some(value.stamp().unwrap_or_default());
        self.revision() == Some(value.of_key()) && is_other
    }

    /// Returns the record that the key has.
    pub(super) fn record(&self) -> Option<&Record> {
        match self {
            Self::Present { entry, .. } => Some(&entry.record),
            Self::Nothing | Self::Absent { .. } | Self::Garbage { .. } => None,
        }
    }
}

impl Known {
    /// Keeps a record if it is newer than all others. Records are ordered by term and number,
    /// because revisions repeat if the store was restored.
    pub(super) fn keep(&mut self, record: &Record) {
        // Its writer has seen no record, so it begins another job.
        let begins = record.term.0 == 0;
        if self.has_ended() && (begins || self.is_of_another_job(record)) {
            self.newest = None;
        }
        if record.term.0 > 0 && !self.is_outdated(record) {
            self.newest = Some(Box::new(record.clone()));
        }
    }

    /// Returns true if a newer record is known: the store was restored, or the writer has not seen
    /// that record.
    pub(super) fn is_outdated(&self, record: &Record) -> bool {
        let order = |record: &Record| (record.term, record.number);
        self.newest.as_ref().is_some_and(|newest| order(record) < order(newest))
    }

    /// Returns true if a record has the state of another job than the newest record.
    fn is_of_another_job(&self, record: &Record) -> bool {
        let uid =
            |record: &Record| record.job_state.as_ref().map(|job_state| job_state.job_uid.clone());
        let newest = self.newest.as_deref().and_then(uid);
        uid(record).zip(newest).is_some_and(|(other, newest)| other != newest)
    }

    /// Returns the outcome of the job in which this process took part, if the newest record has it.
    pub(super) fn outcome_of_own_job(&self) -> Option<&Outcome> {
        let job_state = self.newest.as_ref()?.job_state.as_ref()?;
        job_state.closed.as_ref().filter(|_| self.own_job.as_ref() == Some(&job_state.job_uid))
    }

    /// Notes the time at which the key first had an older record than `newest`.
    fn note_outdated(&mut self, now: Instant) {
        let is_outdated = self.content.record().is_some_and(|record| self.is_outdated(record));
        self.outdated_since = self.outdated_since.or(Some(now)).filter(|_| is_outdated);
    }

    /// Returns true if the newest record has the outcome of the job.
    pub(super) fn has_ended(&self) -> bool {
        let job_state = self.newest.as_ref().and_then(|newest| newest.job_state.as_ref());
        job_state.is_some_and(|job_state| job_state.closed.is_some())
    }
}

impl Claim {
    /// Forgets the content if a watch reports a lower revision: the store is empty, or was restored
    /// from a copy.
    pub(super) fn note_watched(&mut self, value: &KeyContent) {
        if value.revision < self.known.watched || self.known.content.contradicts(value) {
            self.reset(value);
        }
        self.known.watched = value.revision;
    }

    /// Forgets the content if the store refuses a change with a lower revision.
    pub(super) fn note_refused(&mut self, value: &KeyContent) {
        let content = &self.known.content;
        let is_lower = content.revision().is_some_and(|known| value.of_key() < known);
        if is_lower || content.contradicts(value) {
            self.reset(value);
        }
    }

    fn reset(&mut self, value: &KeyContent) {
        info!("the revision of the store has gone back; it may have been restored");
        self.store = value.revision;
        self.known.content = Content::Nothing;
    }

    /// Records the content of the key, unless a later one is known.
    pub(super) fn observe(&mut self, now: Instant, value: KeyContent) {
        self.store = self.store.max(value.revision);
        let revision = value.of_key();
        if let Some(Entry { record, .. }) = &value.entry {
            self.known.keep(record);
            if record.term.0 <= NUMBER_MAX {
                self.highest = self.highest.max(record.term);
            }
        }
        if self.known.content.revision().is_some_and(|known| revision <= known) {
            return;
        }
        let (content, own) = match (value.entry, value.garbage) {
            (Some(entry), _) => {
                let own = self.own_change(&entry.record);
                (Content::Present { entry: Box::new(entry), seen: now }, own)
            }
            (None, Some(stamp)) => (Content::Garbage { stamp, seen: now }, None),
            (None, None) => {
                if let Content::Absent { revision: known, .. } = &mut self.known.content {
                    *known = revision;
                    return;
                }
                (Content::Absent { revision, seen: now }, None)
            }
        };
        self.known.content = content;
        self.known.note_outdated(now);
        match own {
            Some(number) => self.confirm(now, number),
            None => self.handle_loss(now),
        }
    }

    /// Returns the number of the change that has written `record`, if this process has sent it in
    /// its present candidacy or leadership.
    fn own_change(&self, record: &Record) -> Option<u64> {
        let term = match &self.role {
            Role::Follower => return None,
            Role::Candidate { term, .. } => *term,
            Role::Leader(leader) => leader.term,
        };
        let is_own = record.process == self.settings.process && record.term == term;
        (is_own && record.kind != RecordKind::Placeholder).then_some(record.number)
    }

    /// Handles that the key does not have the record of this process. A leader writes its record
    /// again, unless the key has the record of another leader. This is safe: after the key was
    /// lost, no other process leads before a silence has passed, which is longer than the lease.
    /// Other processes follow.
    pub(super) fn handle_loss(&mut self, now: Instant) {
        if let Role::Leader(leader) = &mut self.role {
            let is_replaced = self.known.content.record().is_some_and(|record| {
                let is_placeholder = record.kind == RecordKind::Placeholder;
                record.term > leader.term || record.term == leader.term && !is_placeholder
            });
            if !is_replaced {
                leader.next_renewal = now;
                return;
            }
            self.end_leadership("another process has replaced the record");
        }
        self.role = Role::Follower;
        self.follow(now);
    }

    /// Returns the time at which the record in the key may be replaced, because it was not renewed.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        match &self.known.content {
            Content::Present { entry, seen } => Some(*seen + self.silence(&entry.record)),
            Content::Nothing | Content::Absent { .. } | Content::Garbage { .. } => None,
        }
    }

    /// Returns the time without a new revision after which `record` may be replaced.
    pub(super) fn silence(&self, record: &Record) -> Duration {
        self.settings.timers.silence.max(record.silence)
    }
}
