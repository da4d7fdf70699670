//! The voters in the status of a job.

use ragent_rendezvous::{
    election::message::Place,
    snapshot::{Snapshot, VoterStatus},
};

use crate::voter::{self, Commands};

/// The voters of which this process is one.
#[derive(Clone, Debug)]
pub(crate) struct ListedVoters {
    /// Their endpoints, by place.
    pub endpoints: Vec<String>,
    /// The place of this process.
    pub own: Place,
    /// The queue of the commands of its voter.
    pub commands: Commands,
}

impl ListedVoters {
    /// Adds the voters to the status of the job that this process coordinates.
    pub(super) async fn add_to(self, snapshot: &mut Snapshot) {
        let answered = voter::answered(&self.commands).await.unwrap_or_default();
        let voters = self.endpoints.into_iter().enumerate();
        snapshot.voters = voters
            .map(|(place, endpoint)| VoterStatus {
                endpoint,
                is_leading: Place(place) == self.own,
                silent_for: answered.get(place).copied().flatten(),
            })
            .collect();
    }
}
