//! The voters in the status of a job.

use std::time::Instant;

use ragent_rendezvous::{
    election::message::Place,
    snapshot::{Snapshot, VoterStatus},
};
use tokio::sync::watch;

use crate::voter::Answered;

/// The list of voters to which this process belongs.
#[derive(Clone, Debug)]
pub(crate) struct ListedVoters {
    /// Their endpoints, by place.
    pub endpoints: Vec<String>,
    /// The place of this process.
    pub own: Place,
    /// The time at which this process was elected.
    pub since: Instant,
    /// The time of the last answer of each voter.
    pub answered: watch::Receiver<Answered>,
}

impl ListedVoters {
    /// Adds the voters to the status of the job that this process coordinates.
    pub(super) fn add_to(&self, now: Instant, snapshot: &mut Snapshot) {
        let answered = self.answered.borrow();
        let voters = self.endpoints.iter().enumerate().map(|(place, endpoint)| {
            let is_leader = Place(place) == self.own;
            let answered = answered.get(place).copied().flatten();
            // Only a leader sends regular requests, so silence before the election means nothing.
            let last = if is_leader { now } else { self.since.max(answered.unwrap_or(self.since)) };
            let silent_for = now.saturating_duration_since(last);
            VoterStatus { endpoint: endpoint.clone(), is_leader, silent_for }
        });
        snapshot.set_voters(voters.collect());
    }
}
