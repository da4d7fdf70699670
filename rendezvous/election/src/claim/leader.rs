//! Renews the record of a leader, and releases it when the leader resigns.

use std::time::Instant;

use ragent_rendezvous::{heir::Successor, ids::Term, settings::JobState};
use tracing::info;

use crate::{
    claim::{Claim, Effect, Record, RecordKind, Role},
    limits::CHANGES_UNDER_WAY_MAX,
};

/// The leadership of one term.
#[derive(Debug)]
pub(super) struct ClaimLeader {
    pub(super) term: Term,
    pub(super) until: Instant,
    pub(super) next_renewal: Instant,
    pub(super) successors: Vec<Successor>,
    pub(super) job_state: Option<JobState>,
    /// The number of changes of the job's state.
    pub(super) changes: u64,
    /// The number of the last change of the job's state that the store has.
    pub(super) stored: u64,
}

/// A change that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentChange {
    pub(super) number: u64,
    pub(super) at: Instant,
    /// The number of the last change of the job's state that it contains.
    pub(super) job_state: u64,
}

/// The release of this process's record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    /// The new kind of the record.
    pub(super) kind: RecordKind,
    /// The end of the lease. After it, other processes no longer wait, so a release has no use.
    pub(super) until: Instant,
}

impl ClaimLeader {
    /// Changes the job's state, and returns the number of the change.
    pub(super) fn remember(&mut self, job_state: JobState) -> u64 {
        self.job_state = Some(job_state);
        self.changes += 1;
        self.changes
    }

    /// Returns the time of the next change: at once if the store lacks the newest state.
    pub(super) fn next_change(&self, now: Instant) -> Instant {
        if self.stored < self.changes { now } else { self.next_renewal }
    }
}

impl Claim {
    /// Writes the record again, even if the key has lost it.
    pub(super) fn write_renewal(&mut self, now: Instant) {
        let Some(expected) = self.known.content.expected() else { return };
        let renewal = self.settings.timers.renewal;
        let Role::Leader(leader) = &mut self.role else { return };
        leader.next_renewal = now + renewal;
        let (term, successors, job_state) =
            (leader.term, leader.successors.clone(), leader.job_state.clone());
        let record = self.new_record(term, successors, job_state);
        self.change(now, expected, record);
    }

    /// Records that a change is sent. Only changes sent within the last lease count.
    pub(super) fn note_sent(&mut self, now: Instant, number: u64) {
        let lease = self.settings.timers.leader_lease;
        while self.sent.len() >= CHANGES_UNDER_WAY_MAX
            || self.sent.front().is_some_and(|sent| sent.at + lease <= now)
        {
            self.sent.pop_front();
        }
        let job_state = match &self.role {
            Role::Leader(leader) => leader.changes,
            Role::Follower | Role::Candidate { .. } => 0,
        };
        self.sent.push_back(SentChange { number, at: now, job_state });
    }

    /// Ends the leadership, and releases the record so that a successor need not wait for the end
    /// of the lease.
    pub(super) fn resign(&mut self, now: Instant, reason: &str, kind: RecordKind) {
        let until = self.leads_until().unwrap_or(now);
        // Stop leading before others see the release and lead.
        self.end_leadership(reason);
        self.release = Some(Release { kind, until });
        self.retry_at = None;
    }

    /// Ends the leadership without a change of the record.
    pub(super) fn end_leadership(&mut self, reason: &str) {
        let Role::Leader(leader) = &self.role else { return };
        info!(term = %leader.term, reason, "the leadership has ended");
        self.role = Role::Follower;
        self.stands_at = None;
        self.announce(None);
    }

    /// Ends the release once the store has it, or once the lease is over.
    pub(super) fn check_release(&mut self, now: Instant) {
        let Some(release) = self.release else { return };
        if now < release.until && self.unreleased().is_some() {
            return;
        }
        self.release = None;
        self.effects.push_back(Effect::Released);
        self.follow(now);
        // `follow` would begin it again.
        self.release = None;
    }

    /// Requests to mark the record as resigned, or as over with the job.
    pub(super) fn write_release(&mut self, now: Instant) {
        let (Some(release), Some(expected)) = (self.release, self.known.content.expected()) else {
            return;
        };
        let Some(record) = self.unreleased().cloned() else { return };
        self.change(now, expected, Record { kind: release.kind, ..record });
    }

    /// Returns the record in the key, if this process has written it and has not released it.
    pub(super) fn unreleased(&self) -> Option<&Record> {
        let is_own = |record: &&Record| {
            record.process == self.settings.process && record.kind == RecordKind::Leads
        };
        self.known.content.record().filter(is_own)
    }
}
