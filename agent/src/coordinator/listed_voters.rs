//! The voters in the status of a job.

use std::time::Instant;

use ragent_rendezvous::{
    election::message::Place,
    snapshot::{Snapshot, VoterStatus},
};

use crate::{
    sys::clock,
    voter::{self, Commands},
};

/// The voters of which this process is one.
#[derive(Clone, Debug)]
pub(crate) struct ListedVoters {
    /// Their endpoints, by place.
    pub endpoints: Vec<String>,
    /// The place of this process.
    pub own: Place,
    /// The time at which this process was elected.
    pub since: Instant,
    /// The queue of the commands of its voter.
    pub commands: Commands,
}

impl ListedVoters {
    /// Adds the voters to the status of the job that this process coordinates.
    pub(super) async fn add_to(self, snapshot: &mut Snapshot) {
        let answered = voter::answered(&self.commands).await.unwrap_or_default();
        let led_for = clock::now().saturating_duration_since(self.since);
        let voters = self.endpoints.into_iter().enumerate();
        let voters = voters.map(|(place, endpoint)| VoterStatus {
            endpoint,
            is_leader: Place(place) == self.own,
            // It is not asked regularly before this process leads.
            silent_for: answered.get(place).map(|silent| silent.unwrap_or(led_for).min(led_for)),
        });
        snapshot.set_voters(voters.collect());
    }
}
