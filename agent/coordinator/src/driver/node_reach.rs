//! Tests whether the coordinator's host reaches each new node, and lists failed connections in the status of the job.
//!
//! A registered node has reached the coordinator's port. That does not show whether a firewall blocks all other ports. This test finds such
//! a firewall in the first round. Otherwise the workers would find it minutes later, by a timeout.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ragent_base::{net, report::news, sys::host::ThisHost};
use ragent_rendezvous::{
    ids::{NodeId, RoundId},
    limits::NODES_MAX,
    message::{NodeDescription, StoreUnreached},
    snapshot::{UNREACHED_MAX, Unreached},
};
use tokio::{sync::Semaphore, task::JoinSet};
use tracing::warn;

use crate::limits;

/// The result of the test of one node.
#[derive(Debug)]
pub(super) struct Tested {
    node: NodeId,
    /// The failed connection; `None` if the node was reached.
    unreached: Option<Unreached>,
}

/// The connections that were tested, and the running tests.
#[derive(Debug)]
pub(super) struct NodeReach {
    places: Arc<Semaphore>,
    tests: JoinSet<Tested>,
    /// The nodes that are being tested.
    testing: BTreeSet<NodeId>,
    /// The nodes that were not tested, because the list of unreached nodes was full: at most [`NODES_MAX`]. They are tested in a later
    /// round, if the list has room then.
    untested: BTreeSet<NodeId>,
    /// The nodes that this host does not reach.
    agents: BTreeMap<NodeId, Unreached>,
    /// The nodes that do not reach the store of a round.
    stores: BTreeMap<NodeId, Unreached>,
    /// The round of `stores`.
    round: RoundId,
}

impl NodeReach {
    pub(super) fn new() -> Self {
        Self {
            places: Arc::new(Semaphore::new(limits::REACH_AT_ONCE)),
            tests: JoinSet::new(),
            testing: BTreeSet::new(),
            untested: BTreeSet::new(),
            agents: BTreeMap::new(),
            stores: BTreeMap::new(),
            round: RoundId::default(),
        }
    }

    /// Tests whether this host reaches a node that was admitted to a round with others, at its observed address. A node is tested if it is
    /// new, was not tested, or was not reached before.
    pub(super) fn handle_admitted(
        &mut self,
        node: &NodeDescription,
        is_new: bool,
        is_known: impl Fn(&NodeId) -> bool,
    ) {
        let NodeDescription { node_id, host_name, address, observed, agent_port, .. } = node;
        self.agents.retain(|id, _| is_known(id));
        // An address that a node only announces may belong to any host, so it is not tried.
        let announced = address.parse().ok().map(|ip: IpAddr| ip.to_canonical());
        let Some(ip) = observed.filter(|ip| announced == Some(*ip)) else { return };
        if !self.agents.contains_key(node_id) {
            if !is_new && !self.untested.contains(node_id) {
                return;
            }
            if self.agents.len() >= UNREACHED_MAX {
                return self.postpone(node_id.clone(), is_known);
            }
        }
        if !self.testing.insert(node_id.clone()) {
            return;
        }
        self.untested.remove(node_id);
        let (node, address) = (node_id.clone(), SocketAddr::new(ip, *agent_port));
        let to = format!("{host_name} ({address})");
        let places = Arc::clone(&self.places);
        self.tests.spawn(async move {
            // The semaphore is never closed; an error would only lift the limit.
            let _place = places.acquire().await;
            let error = net::dial_twice(address).await.err();
            let host_name = ThisHost.name();
            let unreached = error.map(|error| Unreached { host_name, to, why: error.to_string() });
            Tested { node, unreached }
        });
    }

    /// Notes that a node was not tested. If the list is full, forgets nodes that are gone.
    fn postpone(&mut self, node: NodeId, is_known: impl Fn(&NodeId) -> bool) {
        if self.untested.len() >= NODES_MAX {
            self.untested.retain(|id| is_known(id));
        }
        if self.untested.len() < NODES_MAX {
            self.untested.insert(node);
        }
    }

    /// Waits until the test of a node has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancelling the call loses nothing.
    pub(super) async fn tested(&mut self) -> Tested {
        loop {
            match self.tests.join_next().await {
                Some(Ok(tested)) => return tested,
                // The test has panicked.
                Some(Err(_)) => {}
                None => return std::future::pending().await,
            }
        }
    }

    /// Records the result of a test. Forgets nodes that are gone: those are unknown to `is_known`.
    pub(super) fn record(&mut self, tested: Tested, is_known: impl Fn(&NodeId) -> bool) {
        let Tested { node, unreached } = tested;
        self.testing.remove(&node);
        self.agents.retain(|id, _| is_known(id) && *id != node);
        let Some(unreached) = unreached.filter(|_| is_known(&node)) else { return };
        if self.agents.len() < UNREACHED_MAX {
            let Unreached { to, why, .. } = &unreached;
            warn!(
                "this host does not reach {to}: {why}; the workers connect to each other on any port, so let a \
                 firewall pass all ports between the nodes (`ragent doctor --peers` tests all pairs)"
            );
            self.agents.insert(node, unreached);
        }
        if self.agents.len() >= UNREACHED_MAX {
            // Further nodes would not be listed, so they are not tested now.
            self.tests = JoinSet::new();
            for node in mem::take(&mut self.testing) {
                self.postpone(node, &is_known);
            }
        }
    }

    /// Records that a node does not reach the store of the newest round.
    pub(super) fn handle_store_unreached(
        &mut self,
        node: &NodeDescription,
        StoreUnreached { round, address, why }: StoreUnreached,
        is_known: impl Fn(&NodeId) -> bool,
    ) {
        if round != self.round {
            self.stores.clear();
            self.round = round;
        }
        self.stores.retain(|id, _| is_known(id));
        // A node repeats its report with each registration.
        if self.stores.len() < UNREACHED_MAX && !self.stores.contains_key(&node.node_id) {
            let host_name = node.host_name.clone();
            warn!("{}", news::store_unreached(&host_name, &address, &why));
            let to = format!("the workers' store ({address})");
            self.stores.insert(node.node_id.clone(), Unreached { host_name, to, why });
        }
    }

    /// Returns the failed connections, without nodes that are gone and without stores of rounds before `newest`.
    pub(super) fn unreached(
        &self,
        newest: RoundId,
        is_known: impl Fn(&NodeId) -> bool,
    ) -> Vec<Unreached> {
        let stores = self.stores.iter().filter(|_| self.round == newest);
        let all = self.agents.iter().chain(stores);
        let known = all.filter(|(node, _)| is_known(node)).map(|(_, unreached)| unreached.clone());
        known.take(UNREACHED_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use ragent_base::testing::registration;
    use ragent_rendezvous::ids::Round;

    use super::*;

    /// Returns a node that has been reached, or not.
    fn tested(number: usize, is_reached: bool) -> Tested {
        let to = format!("n{number} (10.0.0.1:1)");
        let unreached = Unreached { host_name: "n0".to_owned(), to, why: "no answer".to_owned() };
        Tested {
            node: NodeId::new(format!("n{number}")),
            unreached: (!is_reached).then_some(unreached),
        }
    }

    /// At most a limited number of nodes is listed. Nodes that are gone or reached again make room.
    #[test]
    fn few_nodes_are_listed() {
        let mut reach = NodeReach::new();
        for number in 0..100 {
            reach.record(tested(number, false), |_| true);
        }
        assert_eq!(reach.unreached(RoundId::default(), |_| true).len(), UNREACHED_MAX);
        reach.record(tested(0, true), |_| true);
        reach.record(tested(200, false), |_| true);
        assert!(
            reach
                .unreached(RoundId::default(), |_| true)
                .iter()
                .any(|unreached| unreached.to.starts_with("n200 "))
        );
        reach.record(tested(300, false), |node| node.as_str() == "n300");
        assert_eq!(reach.unreached(RoundId::default(), |_| true).len(), 1);
        assert_eq!(reach.unreached(RoundId::default(), |_| false), []);
    }

    /// A node whose stream comes from its address.
    fn observed(name: &str) -> NodeDescription {
        let node = registration(name).node;
        NodeDescription { observed: node.address.parse().ok(), ..node }
    }

    /// One test of a node runs at a time, only at the address that it registered from, and not again once it was reached.
    #[tokio::test]
    async fn few_tests_run() {
        let mut reach = NodeReach::new();
        let node = observed("n1");
        let elsewhere = Some([10, 9, 9, 9].into());
        for observed in [None, elsewhere] {
            let node = NodeDescription { observed, ..node.clone() };
            reach.handle_admitted(&node, true, |_| true);
        }
        reach.handle_admitted(&node, false, |_| true);
        assert_eq!(reach.tests.len(), 0);
        for _ in 0..3 {
            reach.handle_admitted(&node, true, |_| true);
        }
        assert_eq!(reach.tests.len(), 1);
    }

    /// A node that does not reach the store is listed until the next round.
    #[test]
    fn store_is_listed_for_its_round() {
        let mut reach = NodeReach::new();
        let node = registration("n1").node;
        let next = RoundId { round: Round(2), ..RoundId::default() };
        for (round, port) in [(RoundId::default(), 2), (next, 3)] {
            let address = format!("10.0.0.1:{port}");
            let unreached = StoreUnreached { round, address, why: "no answer".to_owned() };
            reach.handle_store_unreached(&node, unreached, |_| true);
            let list = reach.unreached(round, |_| true);
            assert_eq!(list.len(), 1);
            assert_eq!(list[0].to, format!("the workers' store (10.0.0.1:{port})"));
        }
        assert_eq!(reach.unreached(RoundId::default(), |_| true), []);
    }

    /// A node that was not tested because the list was full is tested in a later round, once.
    #[tokio::test]
    async fn tests_are_postponed() {
        let mut reach = NodeReach::new();
        let [early, late] = ["early", "late"].map(observed);
        let admit = |reach: &mut NodeReach, node: &NodeDescription, is_new| {
            let before = reach.tests.len();
            reach.handle_admitted(node, is_new, |_| true);
            reach.tests.len() - before
        };
        assert_eq!(admit(&mut reach, &early, true), 1);
        for number in 0..UNREACHED_MAX {
            reach.record(tested(number, false), |_| true);
        }
        assert_eq!(admit(&mut reach, &late, true), 0);
        for node in [&early, &late] {
            assert_eq!(admit(&mut reach, node, false), 0);
        }
        reach.record(tested(0, true), |_| true);
        for node in [&early, &late] {
            assert_eq!(admit(&mut reach, node, false), 1);
            let reached = Tested { node: node.node_id.clone(), unreached: None };
            reach.record(reached, |_| true);
            assert_eq!(admit(&mut reach, node, false), 0);
        }
    }

    /// At most a limited number of untested nodes is kept.
    #[test]
    fn few_nodes_are_noted_as_untested() {
        let mut reach = NodeReach::new();
        for number in 0..=NODES_MAX {
            reach.postpone(NodeId::new(format!("n{number}")), |_| true);
        }
        assert_eq!(reach.untested.len(), NODES_MAX);
        reach.postpone(NodeId::new("x"), |node| node.as_str() == "x");
        assert_eq!(reach.untested.len(), 1);
    }

    /// Nodes that are gone make room for tests of new ones.
    #[tokio::test]
    async fn nodes_that_are_gone_make_room() {
        let mut reach = NodeReach::new();
        for number in 0..UNREACHED_MAX {
            reach.record(tested(number, false), |_| true);
        }
        let node = observed("x");
        reach.handle_admitted(&node, true, |_| true);
        assert_eq!(reach.tests.len(), 0);
        reach.handle_admitted(&node, true, |_| false);
        assert_eq!(reach.tests.len(), 1);
    }
}
