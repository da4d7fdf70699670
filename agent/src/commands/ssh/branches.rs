//! Opens the connections of one host, sends orders through them, and closes them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::timeout,
};
use tracing::{debug, warn};

use super::{
    connection::HostConnection,
    frame::Message,
    order::{HostJob, HostNumber, Job, LaunchId, RelayOrder, RelayReport, TargetHost},
    ssh_command::Way,
    tree,
};
use crate::commands::ssh::limits;

/// The connections of one host. Dropping them ends every ssh process.
#[derive(Debug)]
pub(super) struct Branches {
    way: Arc<Way>,
    launch: Arc<LaunchId>,
    permits: Arc<Semaphore>,
    reports: mpsc::Sender<RelayReport>,
    open: Vec<OpenBranch>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct OpenBranch {
    hosts: BTreeSet<HostNumber>,
    orders: mpsc::Sender<Bytes>,
}

impl Branches {
    /// Creates an empty set of connections. Their reports will be sent to `reports`.
    pub(super) fn new(way: Way, launch: LaunchId, reports: mpsc::Sender<RelayReport>) -> Self {
        let permits = Arc::new(Semaphore::new(way.fanout.max(1) as usize));
        let (way, launch) = (Arc::new(way), Arc::new(launch));
        Self { way, launch, permits, reports, open: Vec::new(), tasks: JoinSet::new() }
    }

    /// Reaches `hosts`. Many hosts are reached as a tree.
    pub(super) fn reach(&mut self, hosts: Vec<TargetHost>) {
        for branch in tree::split(hosts, self.way.fanout) {
            self.open(branch);
        }
    }

    /// Reaches a host by a connection of its own.
    pub(super) fn reach_directly(&mut self, host: TargetHost) {
        for branch in &mut self.open {
            branch.hosts.remove(&host.number);
        }
        self.open(tree::Branch { head: host, below: Vec::new() });
    }

    fn open(&mut self, branch: tree::Branch) {
        let hosts = branch.below.iter().chain([&branch.head]).map(|host| host.number).collect();
        let (sender, orders) = mpsc::channel(limits::ORDER_QUEUE);
        self.open.push(OpenBranch { hosts, orders: sender });
        let connection = HostConnection {
            branch,
            way: Arc::clone(&self.way),
            launch: Arc::clone(&self.launch),
            permits: Arc::clone(&self.permits),
            orders,
            reports: self.reports.clone(),
        };
        self.tasks.spawn(connection.run());
    }

    /// Starts the agents of `hosts`, each by an order to the connection that leads to its host.
    pub(super) fn start(&self, job: &Job, hosts: &[HostJob]) {
        for branch in &self.open {
            let below = |host: &&HostJob| branch.hosts.contains(&host.number);
            let hosts: Vec<HostJob> = hosts.iter().filter(below).cloned().collect();
            if !hosts.is_empty() {
                branch.give(&RelayOrder::Start { job: job.clone(), hosts });
            }
        }
    }

    /// Signals the agents of all hosts.
    pub(super) fn signal(&self, signal: i32) {
        for branch in &self.open {
            branch.give(&RelayOrder::Signal { signal });
        }
    }

    /// Ends all connections at once, and reports their hosts as lost for the reason `why`. The launching host then reaches them directly.
    pub(super) async fn abandon(mut self, why: &str) {
        self.tasks.shutdown().await;
        for host in self.open.into_iter().flat_map(|branch| branch.hosts) {
            let report = RelayReport::Disconnected { host, why: why.to_owned(), is_direct: false };
            // If this fails, the receiver has ended.
            let _ = self.reports.send(report).await;
        }
    }

    /// Closes all connections, so that the relays end their agents. Waits at most `limit` for them to end.
    pub(super) async fn disconnect(mut self, limit: Duration) {
        self.open.clear();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if timeout(limit, ended).await.is_err() {
            debug!("connections did not end in time; closing them");
        }
    }
}

impl OpenBranch {
    fn give(&self, order: &RelayOrder) {
        let order = match order.encode() {
            Ok(order) => order,
            Err(error) => return warn!(%error, "failed to encode an order"),
        };
        // A closed connection has already been reported. A connection with a full queue misses this order.
        if let Err(error) = self.orders.try_send(order) {
            debug!(%error, "failed to send an order");
        }
    }
}
