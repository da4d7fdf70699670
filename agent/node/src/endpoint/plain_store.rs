//! Serves a TCPStore on the endpoint's port, for clients of the job that use the endpoint as a store.

use std::{io, net::IpAddr};

use ragent_base::{
    net::port::{PortStore, RegisteredNodes},
    secret::Credentials,
    sys::{
        clock,
        system_error::{SystemError, system},
        users,
    },
};
use ragent_rendezvous::message::REFUSED_CLIENTS_MAX;
use ragent_store::{AdmissionRule, Options, StoreThread};
use tokio::sync::{mpsc, watch};
use tracing::warn;

use crate::endpoint::limits;

/// Opens a store for PyTorch clients of the job that use the endpoint as one. A job with a secret or certificates has none, because the
/// protocol cannot authenticate its clients.
pub fn plain_store(
    stores: &StoreThread,
    registered_nodes: watch::Receiver<RegisteredNodes>,
    credentials: &Credentials,
) -> Result<Option<PortStore>, SystemError> {
    if credentials.is_secured() {
        return Ok(None);
    }
    let admission = plain_admission(&registered_nodes.borrow());
    let (refusals, refused) = mpsc::channel(REFUSED_CLIENTS_MAX);
    let options =
        Options { admission, memory_max: limits::MAX_PLAIN_STORE, refusals: Some(refusals) };
    let store = stores
        .open_with(None, options)
        .map_err(|error| system("open the endpoint's store")(io::Error::other(error)))?;
    let (_, port_store) = watch::channel(Some(store));
    tokio::spawn(admit_registered(port_store.clone(), registered_nodes, refused));
    Ok(Some(port_store))
}

/// Admits registered nodes to the endpoint's store, and warns of each refused address. Ends with the coordinator.
async fn admit_registered(
    port_store: PortStore,
    mut registered_nodes: watch::Receiver<RegisteredNodes>,
    mut refused: mpsc::Receiver<IpAddr>,
) {
    let (mut due, mut not_before) = (None, clock::now());
    loop {
        tokio::select! {
            changed = registered_nodes.changed(), if due.is_none() => {
                if changed.is_err() {
                    return;
                }
                due = Some(not_before);
            }
            // Each time all addresses are copied. Nodes that register meanwhile share the next copy.
            () = clock::until(due) => {
                due = None;
                not_before = clock::now() + limits::ADMISSION_INTERVAL;
                let admission = plain_admission(&registered_nodes.borrow_and_update());
                if let Some(store) = &*port_store.borrow() {
                    store.admit(admission);
                }
            }
            Some(address) = refused.recv() => warn!(
                "refused a client of a TCPStore at {address}, which is not a node of this job; if it is torchrun, start \
                 ragent there instead: all nodes of a job run the same launcher"
            ),
        }
    }
}

fn plain_admission(registered_nodes: &RegisteredNodes) -> AdmissionRule {
    AdmissionRule::Only {
        addresses: registered_nodes.addresses.clone(),
        local_uids: users::trusted_uids(),
        silent_max: limits::silent_store_clients(registered_nodes.world_size),
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::geteuid;

    use super::*;

    /// The endpoint's store admits only the nodes and the user of the job.
    #[test]
    fn plain_store_is_for_the_job() {
        let node: IpAddr = "10.0.0.1".parse().unwrap();
        let registered_nodes = RegisteredNodes { addresses: [node].into(), world_size: 2 };
        let admission = plain_admission(&registered_nodes);
        let expected = AdmissionRule::Only {
            addresses: [node].into(),
            local_uids: [geteuid().as_raw(), 0].into(),
            silent_max: 4 * 2 + 256,
        };
        assert_eq!(admission, expected);
    }
}
