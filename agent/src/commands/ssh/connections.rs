//! Opens a connection to each host, sends orders through them, and closes them.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::timeout,
};
use tracing::{debug, warn};

use super::{
    connection::HostConnection,
    filters::ChosenHost,
    frame::Message,
    order::{HostJob, HostNumber, RelayOrder, RelayReport, SharedJob},
    ssh_command::Way,
};
use crate::commands::ssh::limits;

/// The connections to all hosts. Dropping them ends every ssh process.
#[derive(Debug)]
pub(super) struct HostConnections {
    /// The senders of orders, as frames, by the numbers of the hosts.
    orders: Vec<mpsc::Sender<Bytes>>,
    tasks: JoinSet<()>,
}

impl HostConnections {
    /// Reaches all hosts. Their reports are sent to `reports`.
    pub(super) fn open(
        way: &Way,
        hosts: &[ChosenHost],
        reports: &mpsc::Sender<(HostNumber, RelayReport)>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(way.fanout.max(1) as usize));
        let way = Arc::new(way.clone());
        let mut connections = Self { orders: Vec::new(), tasks: JoinSet::new() };
        for (host, chosen) in (0..).zip(hosts) {
            let (sender, orders) = mpsc::channel(limits::ORDER_QUEUE);
            connections.orders.push(sender);
            let connection = HostConnection {
                host,
                target: chosen.target.clone(),
                way: Arc::clone(&way),
                permits: Arc::clone(&permits),
                orders,
                reports: reports.clone(),
            };
            connections.tasks.spawn(connection.run());
        }
        connections
    }

    /// Starts the agents of `hosts`.
    pub(super) fn start(&self, job: SharedJob, hosts: Vec<HostJob>) {
        // All queues share this frame, which may be long.
        let Some(job) = encode(&RelayOrder::Job(job)) else { return };
        for host in hosts {
            let Some(orders) = self.orders.get(host.number as usize) else { continue };
            give(orders, job.clone());
            if let Some(start) = encode(&RelayOrder::Start(host)) {
                give(orders, start);
            }
        }
    }

    /// Signals the agents of all hosts.
    pub(super) fn signal(&self, signal: i32) {
        let Some(order) = encode(&RelayOrder::Signal { signal }) else { return };
        for orders in &self.orders {
            give(orders, order.clone());
        }
    }

    /// Closes all connections, so that the relays end their agents. Waits at most `limit` for them
    /// to end.
    pub(super) async fn disconnect(self, limit: Duration) {
        let Self { orders, mut tasks } = self;
        drop(orders);
        let ended = async { while tasks.join_next().await.is_some() {} };
        if timeout(limit, ended).await.is_err() {
            debug!("connections did not end in time; closing them");
        }
    }
}

fn encode(order: &RelayOrder) -> Option<Bytes> {
    order.encode().inspect_err(|error| warn!(%error, "failed to encode an order")).ok()
}

fn give(orders: &mpsc::Sender<Bytes>, order: Bytes) {
    // A closed connection has already been reported. A connection with a full queue misses this order.
    if let Err(error) = orders.try_send(order) {
        debug!(%error, "failed to send an order");
    }
}
