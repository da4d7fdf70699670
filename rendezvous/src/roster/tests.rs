//! Which hosts a list of excluded hosts names, and who gets the tally of a machine.

use std::time::Duration;

use super::*;
use crate::{
    fixture::{TestJob, describe, ready},
    ids::RunId,
    message::Registration,
};

/// Hosts are compared up to the first dot, and by the failure domain. Addresses have no short names.
#[test]
fn names_of_hosts_are_compared() {
    for (listed, host, failure_domain, is_excluded) in [
        ("node7", "node7.cluster.example", "", true),
        ("node7.a.example", "node7", "", true),
        ("node7.a.example", "node8.a.example", "", false),
        ("pool-1.example", "train-0", "pool-1.example", true),
        ("region.10.0.3.7", "train-0", "region.10.0.3.8", false),
        ("10.0.3.7", "10.0.3.8", "10.0.3.8", false),
        ("10.0.3.7", "10.0.3.7", "", true),
    ] {
        let failure_domain = failure_domain.to_owned();
        let node = NodeDescription::new(NodeId::new("a"), host, "");
        let node = NodeDescription { failure_domain, ..node };
        let hosts = with_short_names([(listed.to_owned(), "drained".to_owned())].into());
        let reason = excluded_because(&hosts, &node);
        assert_eq!(reason.as_deref(), is_excluded.then_some("drained"), "{listed} {node:?}");
    }
}

/// The tally of a departed agent goes on with the agent of the same machine that already waits.
#[test]
fn waiting_agent_gets_the_tally_of_its_machine() {
    let mut t = TestJob::new(1, 3, &["a", "b", "a2"]);
    let (now, departed) = (t.job.clock, NodeId::new("a"));
    t.job.roster.get_mut(&departed).expect("a node").tally.suspect(now);
    t.job.roster.remove_lost(now, &departed);
    let tally = |name: &str| &t.job.roster.get(&NodeId::new(name)).expect("a node").tally;
    assert_eq!((tally("a2").suspicions(now), tally("b").suspicions(now)), (1, 0));
    t.job.roster.forget_tallies();
    let node = t.job.roster.get(&NodeId::new("a2")).expect("a node");
    assert_eq!(node.tally.suspicions(now), 0, "another run begins");
}

/// An agent with the same host name and another address runs on another machine.
#[test]
fn agent_of_another_machine_gets_no_tally() {
    let mut t = TestJob::new(1, 3, &["a"]);
    let (now, departed) = (t.job.clock, NodeId::new("a"));
    let node = NodeDescription { address: "elsewhere".to_owned(), ..describe("a2") };
    let registration = Registration::new(RunId::new("run"), node, t.shared(), ready());
    t.job.roster.register(now, registration, Duration::from_secs(60), None);
    t.job.roster.get_mut(&departed).expect("a node").tally.suspect(now);
    t.job.roster.remove_lost(now, &departed);
    let other = t.job.roster.get(&NodeId::new("a2")).expect("a node");
    assert_eq!(other.tally.suspicions(now), 0);
}

/// A node that has left is no longer found by its host name.
#[test]
fn lost_nodes_leave_no_trace() {
    let mut t = TestJob::new(1, 3, &["a", "b"]);
    let known = t.job.roster.alike.len();
    t.job.roster.remove_lost(t.job.clock, &NodeId::new("b"));
    assert!(t.job.roster.alike.len() < known);
    t.job.roster.remove_lost(t.job.clock, &NodeId::new("a"));
    assert_eq!(t.job.roster.alike.len(), 0);
}
