//! Tests whether this node reaches the store of a round, which another node serves.
//!
//! So a firewall that blocks the store is reported at once. Otherwise the workers would find it minutes later, by a timeout.

use std::net::IpAddr;

use ragent_base::{
    net::{self, Endpoint},
    sys::{clock, host::ThisHost},
};
use ragent_rendezvous::{
    ids::GroupRank,
    jitter::Jitter,
    message::{Admission, StoreUnreached},
};
use tokio::task::JoinSet;

use super::limits;

/// The test of the connection to the newest round's store.
#[derive(Debug, Default)]
pub(super) struct StoreReach {
    test: JoinSet<Result<String, StoreUnreached>>,
    /// The host of the last store that was reached. It is not tested again, although the next store has another port.
    reached: Option<String>,
}

impl StoreReach {
    /// Starts the test for a round. The test for an earlier round is abandoned.
    pub(super) fn test(&mut self, admission: &Admission) {
        self.test = JoinSet::new();
        let Admission { round, group_rank, master_address, master_port, .. } = admission;
        let is_here = master_address.parse().is_ok_and(|ip: IpAddr| ThisHost.owns(ip));
        let is_known = self.reached.as_ref() == Some(master_address);
        if *group_rank == GroupRank(0) || is_here || is_known {
            return;
        }
        let (round, host, port) = (*round, master_address.clone(), *master_port);
        // All nodes of a round start at the same time, so each waits for a random time.
        let pause = limits::STORE_TEST_PAUSE.mul_f64(1.0 + Jitter::new(rand::random()).fraction());
        self.test.spawn(async move {
            clock::until(Some(clock::now() + pause)).await;
            let endpoint = Endpoint { host: host.clone(), port };
            match reach(&endpoint).await {
                Ok(()) => Ok(host),
                Err(why) => Err(StoreUnreached { round, address: endpoint.to_string(), why }),
            }
        });
    }

    /// Waits for a store that was not reached.
    ///
    /// # Cancel safety
    ///
    /// Cancelling the call loses nothing.
    pub(super) async fn unreached(&mut self) -> StoreUnreached {
        loop {
            match self.test.join_next().await {
                Some(Ok(Ok(address))) => self.reached = Some(address),
                Some(Ok(Err(unreached))) => return unreached,
                // The test has panicked.
                Some(Err(_)) => {}
                None => return std::future::pending().await,
            }
        }
    }
}

/// Opens a connection to one of the addresses of `endpoint`, and closes it.
async fn reach(endpoint: &Endpoint) -> Result<(), String> {
    let mut why = String::new();
    for address in net::resolve(endpoint).await.map_err(|error| error.to_string())? {
        match net::dial_twice(address).await {
            Ok(_) => return Ok(()),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}
