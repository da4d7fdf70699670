//! Gives the keeper the death notice to send if this process dies, and its recipients.

use std::{collections::BTreeSet, net::SocketAddr};

use ragent_base::net::{self, Endpoint};
use ragent_workers::driver::WorkersCommand;
use tokio::task::JoinSet;

use super::NodeDriver;

/// The addresses that receive the death notice.
#[derive(Debug, Default)]
pub(super) struct Recipients {
    /// The address of the coordinator.
    coordinator: Option<SocketAddr>,
    /// The addresses of all voters, or with etcd of the leader's successors.
    others: BTreeSet<SocketAddr>,
    lookup: JoinSet<BTreeSet<SocketAddr>>,
}

impl Recipients {
    /// Waits for the end of a lookup. Returns `None` at once if there is none.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(super) async fn looked_up(&mut self) -> Option<BTreeSet<SocketAddr>> {
        self.lookup.join_next().await.map(Result::unwrap_or_default)
    }

    /// Looks up the addresses of these endpoints, unless a lookup runs.
    fn look_up(&mut self, endpoints: Vec<Endpoint>) {
        if endpoints.is_empty() || !self.lookup.is_empty() {
            return;
        }
        self.lookup.spawn(async move {
            let mut addresses = BTreeSet::new();
            for endpoint in endpoints {
                addresses.extend(net::resolve(&endpoint).await.unwrap_or_default());
            }
            addresses
        });
    }
}

impl NodeDriver<'_> {
    /// Sends the death notice to the coordinator at this address from now on.
    pub(super) fn handle_registered_at(&mut self, coordinator: SocketAddr) {
        self.recipients.coordinator = Some(coordinator);
        self.set_death_notice();
        self.recipients.look_up(self.spec.destination.death_notice_recipients());
    }

    /// Looks the other recipients up again. An earlier lookup was for other endpoints.
    pub(super) fn handle_other_recipients(&mut self) {
        self.recipients.lookup = JoinSet::new();
        self.recipients.look_up(self.spec.destination.death_notice_recipients());
    }

    pub(super) fn handle_looked_up(&mut self, others: BTreeSet<SocketAddr>) {
        if !others.is_empty() && others != self.recipients.others {
            self.recipients.others = others;
            self.set_death_notice();
        }
    }

    /// Updates the death notice at the keeper.
    pub(super) fn set_death_notice(&self) {
        let Recipients { coordinator, others, .. } = &self.recipients;
        // The leader comes first, because the number of addresses is limited.
        let others = others.iter().copied().filter(|other| Some(*other) != *coordinator);
        self.workers.try_order(WorkersCommand::SetDeathNotice {
            node_id: self.spec.node.node_id.to_string(),
            coordinators: coordinator.iter().copied().chain(others).collect(),
            round: self.node.agent().known_round().round.round,
            proof: self.proof.newest(),
            state_file: self.spec.state_file.clone(),
        });
    }
}
