//! Adds the voters and their silence to the status of a job.

use std::time::Instant;

use ragent_leadership::Leadership;
use ragent_rendezvous::{
    ids::VoterAddress,
    snapshot::{Snapshot, VoterStatus},
};

/// The voters of the job that this process coordinates; none if the job has no voters.
#[derive(Clone, Debug)]
pub(crate) struct ListedVoters {
    /// The handle of this process's voter, with the list and the times of the last answers.
    pub leadership: Leadership,
    /// The endpoint of this process.
    pub own: VoterAddress,
    /// The time at which this process was elected.
    pub since: Instant,
}

impl ListedVoters {
    /// Adds the voters and the leader to the status of the job that this process coordinates.
    pub(super) fn add_to(&self, now: Instant, snapshot: &mut Snapshot) {
        if self.leadership.is_fixed() {
            return;
        }
        snapshot.set_voters(self.statuses(now));
        // This code runs only in the process that coordinates.
        snapshot.leader = Some(self.own.to_string());
    }

    /// Returns the voters with their silence.
    pub(super) fn statuses(&self, now: Instant) -> Vec<VoterStatus> {
        let answered = self.leadership.answered.borrow();
        let voters = self.leadership.stored.borrow().voters().into_iter().map(|address| {
            let is_leader = address == self.own;
            let answered = answered.get(&address).copied();
            // Only a leader sends regular requests, so silence before the election means nothing.
            let last = if is_leader { now } else { self.since.max(answered.unwrap_or(self.since)) };
            let silent_for = now.saturating_duration_since(last);
            VoterStatus { endpoint: address.to_string(), is_leader, silent_for }
        });
        voters.collect()
    }
}
