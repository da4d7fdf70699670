//! Follows the part of an agent in its job, for agents that still search.

use std::net::SocketAddr;

use ragent_base::net::{self, Endpoint};
use ragent_coordinator::{driver::Inputs, pages::identity::SearchStage, role::ElectedCoordinator};
use ragent_leadership::Leadership;
use ragent_proto::convert::CoordinatorAddress;
use tokio::sync::watch;

use super::choice::Settled;

/// The part of an agent in its job, as the rest of the agent knows it.
pub(crate) struct Home {
    pub(super) leading: Option<(Leadership, watch::Receiver<ElectedCoordinator>)>,
    known: watch::Receiver<CoordinatorAddress>,
    /// The address of the host with which the agent is registered, and its name.
    at: (Option<SocketAddr>, String),
}

impl Home {
    /// Returns the part of an agent that is registered with the endpoint `known`, or hosts. `leading` is the leadership of its process, if
    /// that may lead, and the coordinator that it knows. `found` is the address of the host that the search has found.
    pub(crate) fn new(
        leading: Option<(Leadership, watch::Receiver<ElectedCoordinator>)>,
        known: watch::Receiver<CoordinatorAddress>,
        found: Option<SocketAddr>,
    ) -> Self {
        Self { leading, known, at: (found, String::new()) }
    }

    /// Returns the coordinator of this process, if it leads.
    pub(super) fn coordinator(&self) -> Option<Inputs> {
        match &*self.leading.as_ref()?.1.borrow() {
            ElectedCoordinator::Here(inputs) => Some(inputs.clone()),
            ElectedCoordinator::There(_) | ElectedCoordinator::Unknown => None,
        }
    }

    /// Returns the present part.
    pub(super) async fn settled(&mut self) -> Settled {
        let known = self.known.borrow_and_update().endpoint.clone();
        if known != self.at.1 {
            let address = address_of(&known).await;
            self.at = (address.or(self.at.0), known);
        }
        let home = self.at.0;
        let Some((leadership, elected)) = &mut self.leading else {
            return Settled { stage: SearchStage::Member, home, compares: false };
        };
        let (has_begun, is_closed) = {
            let stored = leadership.stored.borrow_and_update();
            (stored.replica.has_round(), stored.replica.is_closed())
        };
        if is_closed {
            // No agent should join this job any more.
            return Settled { stage: SearchStage::Guest, home, compares: false };
        }
        let is_voter = !leadership.is_fixed() && !leadership.is_outside();
        let stage = match &*elected.borrow_and_update() {
            ElectedCoordinator::Here(_) if has_begun => SearchStage::Leader,
            ElectedCoordinator::Here(_) => SearchStage::Host,
            // It will be elected soon.
            ElectedCoordinator::Unknown if is_voter && !has_begun => SearchStage::Host,
            ElectedCoordinator::Unknown | ElectedCoordinator::There(_) => SearchStage::Member,
        };
        let compares = stage != SearchStage::Member || is_voter && has_begun;
        Settled { stage, home, compares }
    }

    /// Waits until the part may have changed.
    pub(super) async fn changed(&mut self) {
        let has_changed = match &mut self.leading {
            None => self.known.changed().await.is_ok(),
            Some((leadership, elected)) => tokio::select! {
                Ok(()) = leadership.stored.changed() => true,
                Ok(()) = elected.changed() => true,
                Ok(()) = self.known.changed() => true,
                else => false,
            },
        };
        if !has_changed {
            // The agent ends.
            std::future::pending().await
        }
    }
}

/// Returns an address of an endpoint, if known.
async fn address_of(endpoint: &str) -> Option<SocketAddr> {
    let endpoint: Endpoint = endpoint.parse().ok()?;
    net::resolve(&endpoint).await.ok()?.into_iter().next()
}

/// Returns the endpoint at an address that the search has found.
pub(crate) fn endpoint_at(at: SocketAddr) -> Endpoint {
    Endpoint { host: at.ip().to_string(), port: at.port() }
}
