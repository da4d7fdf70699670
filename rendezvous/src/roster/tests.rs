//! Which hosts a list of excluded hosts names.

use super::*;

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
