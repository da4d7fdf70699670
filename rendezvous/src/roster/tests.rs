//! Which hosts a list of excluded hosts names, and who gets the tally of a machine.

use super::*;
use crate::fixture::TestJob;

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
}
