//! Nodes whose machines are unhealthy, or whose hosts are excluded, get no place, as far as the job can do without them.

use std::time::Duration;

use super::fixture::{Did, Fixture, SECOND, ready};
use crate::{
    event::{EventKind, FreeReason},
    limits::SET_ASIDE_TIME,
    message::{HealthClass, JobResult, NodeState, Unhealthy, WaitReason},
    snapshot::NodeStateName,
};

use HealthClass::{Gone, Replace, Reset};

impl Fixture {
    /// Lets `name` find in its checks that its machine has this need, from its next report on.
    fn ails(&mut self, name: &str, class: HealthClass, kind: &str) {
        let (kind, reason) = (kind.to_owned(), format!("GPU 3: {kind}"));
        self.unhealthy.insert(name.to_owned(), Unhealthy { class, kind, reason });
    }

    /// Fails a worker of `name`. All of `names` stop and are ready again.
    fn fail_and_come_back(&mut self, name: &str, names: &[&str]) -> Vec<Did> {
        let mut did = self.fail(name, Duration::ZERO);
        for other in names {
            did.extend(self.back(other));
        }
        did
    }

    fn state_of(&self, name: &str) -> NodeStateName {
        let nodes = self.machine.snapshot(self.now).nodes;
        nodes.iter().find(|node| node.node_id.as_str() == name).expect("a known node").state
    }

    /// Returns the members of the newest round, sorted.
    fn members(&self) -> Vec<String> {
        let nodes = self.machine.snapshot(self.now).nodes;
        let members = nodes.iter().filter(|node| node.group_rank.is_some());
        let mut members: Vec<_> = members.map(|node| node.node_id.to_string()).collect();
        members.sort();
        members
    }

    fn exclude(&mut self, hosts: &[&str]) -> Vec<Did> {
        let hosts = hosts.iter().map(|host| ((*host).to_owned(), "drained".to_owned()));
        self.machine.handle_excluded(self.now, Some(hosts.collect()));
        self.drain()
    }

    /// Returns what the journal says about places of unhealthy nodes.
    fn shown(&self) -> Vec<(String, bool)> {
        let shown = self.events.iter().filter_map(|event| match &event.kind {
            EventKind::NodeUnhealthy { is_set_aside, .. } => {
                Some((event.node.as_ref()?.node_id.to_string(), *is_set_aside))
            }
            _ => None,
        });
        shown.collect()
    }
}

/// The failure on a bad machine is not charged, and a spare takes its place at once. The node waits until its own check
/// finds nothing.
#[test]
fn spare_takes_the_place_of_a_bad_machine() {
    for class in [Reset, Replace] {
        let mut t = Fixture::with(2, 2, |shared| shared.max_restarts = 0);
        t.run(&["a", "b"]);
        t.join("c");
        t.ails("b", class, "xid_79");
        let did = t.fail_and_come_back("b", &["b", "a"]);
        assert!(
            did.ends_with(&[
                Did::Remember(2, 0),
                Did::Admit("a", 2, 0),
                Did::Wait("b", WaitReason::Unhealthy),
                Did::Admit("c", 2, 1),
            ]),
            "{did:?}"
        );
        let free = EventKind::FailureNotCharged { reason: FreeReason::BadMachine };
        assert_eq!(t.shown(), [("b".to_owned(), true)]);
        assert_eq!(t.state_of("b"), NodeStateName::Unhealthy);
        assert!(t.events.iter().any(|event| event.kind == free));
        t.unhealthy.clear();
        assert_eq!(t.back("b"), [Did::Wait("b", WaitReason::Spare)]);
        assert!(t.events.iter().any(|event| event.kind == EventKind::NodeHealthy));
    }
}

/// Without a spare, a job whose size may shrink goes on without the node after the usual wait for a replacement.
#[test]
fn job_shrinks_without_a_bad_machine() {
    let mut t = Fixture::new(2, 3);
    t.run(&["a", "b", "c"]);
    t.ails("b", Replace, "xid_79");
    t.fail_and_come_back("b", &["a", "b", "c"]);
    assert_eq!(t.members(), ["a", "b", "c"], "the last round");
    t.live(&["a", "b", "c"], 6 * SECOND);
    assert_eq!(t.members(), ["a", "c"]);
    assert_eq!(t.job_state.restarts_used, 0);
}

/// A job of fixed size without a spare needs all nodes. The failure is charged, and the journal has a warning.
#[test]
fn needed_machine_keeps_its_place() {
    for class in [Reset, Replace, Gone] {
        let mut t = Fixture::new(2, 2);
        t.run(&["a", "b"]);
        t.ails("b", class, "xid_79");
        let did = t.fail_and_come_back("b", &["a", "b"]);
        assert_eq!(did.last(), Some(&Did::Admit("b", 2, 1)));
        assert_eq!(t.job_state.restarts_used, 1);
        assert_eq!(t.shown(), [("b".to_owned(), false)]);
    }
}

/// A node without its GPU is set aside, but its failure is charged: the reason may be the script's.
#[test]
fn failure_without_a_gpu_is_charged() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    t.ails("b", Gone, "gpu_gone");
    t.fail_and_come_back("b", &["a", "b"]);
    t.live(&["a", "b"], 6 * SECOND);
    assert_eq!((t.members(), t.job_state.restarts_used), (vec!["a".to_owned()], 1));
}

/// If the others do not reach MIN, as many bad machines are used as are needed, those that need least first. A machine
/// whose GPU is gone is not.
#[test]
fn job_uses_the_best_of_the_bad_machines() {
    let mut t = Fixture::new(3, 9);
    t.ails("b", Gone, "gpu_gone");
    t.ails("c", Replace, "xid_79");
    t.ails("d", Reset, "xid_48");
    t.ails("e", Replace, "xid_79");
    for name in ["a", "b", "c", "d", "e"] {
        t.join(name);
    }
    t.live(&["a", "b", "c", "d", "e"], 40 * SECOND);
    assert_eq!(t.members().len(), 3);
    let members = t.members();
    assert!(members.contains(&"a".to_owned()) && members.contains(&"d".to_owned()), "{members:?}");
    assert_eq!(t.state_of("b"), NodeStateName::Unhealthy);
}

/// A healthy node that arrives during the last call takes the place of a bad machine.
#[test]
fn bad_machine_gives_its_place_to_a_late_node() {
    let mut t = Fixture::new(2, 4);
    t.ails("b", Reset, "xid_48");
    t.join("a");
    t.join("b");
    t.live(&["a", "b"], 3 * SECOND);
    t.join("c");
    t.live(&["a", "b", "c"], 40 * SECOND);
    assert_eq!(t.members(), ["a", "c"]);
}

/// One kind of reason sets aside at most MAX - MIN nodes in ten minutes, and another kind as many. Beyond that, the nodes
/// keep their places.
#[test]
fn same_reason_on_many_nodes_is_not_believed() {
    let mut t = Fixture::with(2, 4, |shared| shared.max_restarts = 9);
    let names = ["a", "b", "c", "d"];
    t.run(&names);
    for name in ["b", "c", "d"] {
        t.ails(name, Reset, "xid_119");
    }
    t.fail_and_come_back("b", &names);
    t.live(&names, 6 * SECOND);
    assert_eq!(t.members().len(), 2, "two of three are set aside");
    // They are healthy again and get their places back. Then the fourth reports the same.
    t.unhealthy.clear();
    let members = t.members();
    for name in names {
        let is_member = members.contains(&name.to_owned());
        t.report(name, if is_member { NodeState::Running } else { ready() });
    }
    t.live(&names, 5 * SECOND);
    for name in &members {
        t.back(name);
    }
    assert_eq!(t.members(), names);
    t.ails("a", Reset, "xid_119");
    t.fail_and_come_back("a", &names);
    t.live(&names, 6 * SECOND);
    assert_eq!(t.members(), names, "the valve is closed");
    // Ten minutes later it is open again.
    t.live(&names, SET_ASIDE_TIME);
    t.fail_and_come_back("a", &names);
    t.live(&names, 6 * SECOND);
    assert_eq!(t.members(), ["b", "c", "d"]);
}

/// If one kind of reason sets aside one of two nodes, it is the worse one, although the other one has had no place so far.
#[test]
fn worst_machine_is_set_aside_first() {
    let mut t = Fixture::with(3, 4, |shared| shared.max_restarts = 9);
    let names = ["a", "b", "c", "d"];
    t.run(&names[..3]);
    t.ails("d", Replace, "xid_119");
    t.join("d");
    t.ails("b", Gone, "xid_119");
    t.fail_and_come_back("b", &names[..3]);
    t.live(&names, 6 * SECOND);
    assert_eq!(t.members(), ["a", "c", "d"]);
}

/// If all nodes report a reason, the last one keeps its place.
#[test]
fn last_node_is_never_set_aside() {
    let mut t = Fixture::new(1, 3);
    for name in ["a", "b", "c"] {
        t.ails(name, Replace, "xid_79");
        t.join(name);
    }
    t.live(&["a", "b", "c"], 40 * SECOND);
    assert!(!t.members().is_empty());
    assert_eq!(t.outcome(), None);
}

/// A check that is late ends the round only if the machine must be replaced, the job can go on, and the node had no such
/// reason when it got its place.
#[test]
fn late_check_ends_the_round() {
    let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    t.ails("b", Reset, "xid_48");
    assert_eq!(t.report("b", NodeState::Running), []);
    t.ails("b", Replace, "xid_79");
    let did = t.report("b", NodeState::Running);
    assert_eq!(did, [Did::Restart("a", 1), Did::Restart("b", 1)]);
    t.back("a");
    t.back("b");
    t.live(&["a", "b"], 6 * SECOND);
    assert_eq!((t.members(), t.job_state.restarts_used), (vec!["a".to_owned()], 0));
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.ails("b", Gone, "gpu_gone");
    assert_eq!(t.report("b", NodeState::Running), [], "it is needed");
}

/// A node that reports the same with which it got its place does not end the round.
#[test]
fn known_reason_does_not_end_the_round() {
    let mut t = Fixture::new(2, 3);
    t.ails("b", Replace, "xid_79");
    t.run(&["a", "b"]);
    t.join("c");
    assert_eq!(t.report("b", NodeState::Running), []);
}

/// An excluded host gets no place in the next round. The running one goes on.
#[test]
fn excluded_host_gets_no_place() {
    let mut t = Fixture::new(1, 3);
    t.run(&["a", "b"]);
    assert_eq!(t.exclude(&["b", "d"]), []);
    assert_eq!(t.exclude(&["b", "d"]), []);
    t.join("d");
    t.live(&["a", "b", "d"], 60 * SECOND);
    assert_eq!(t.members(), ["a", "b"]);
    assert_eq!(t.state_of("d"), NodeStateName::Excluded);
    t.fail_and_come_back("a", &["a", "b"]);
    t.live(&["a", "b", "d"], 6 * SECOND);
    assert_eq!((t.members(), t.job_state.restarts_used), (vec!["a".to_owned()], 1));
    let excluded = t.events.iter().filter_map(|event| match &event.kind {
        EventKind::NodeExcluded { reason } => Some(reason.is_some()),
        _ => None,
    });
    assert_eq!(excluded.collect::<Vec<_>>(), [true, true], "a node each");
    t.machine.handle_excluded(t.now, None);
    assert_eq!((t.drain(), t.state_of("b")), (vec![], NodeStateName::Excluded), "the list stays");
    assert_eq!(
        t.exclude(&[]),
        [Did::Wait("b", WaitReason::NextRound), Did::Wait("d", WaitReason::NextRound)]
    );
}

/// The first round waits for the first list of excluded hosts, but not for long.
#[test]
fn first_list_is_awaited() {
    for is_there in [true, false] {
        let mut t = Fixture::new(1, 2);
        t.machine.await_excluded(t.now + 10 * SECOND);
        t.join("a");
        assert_eq!(t.join("b"), [Did::Welcome("b"), Did::Wait("b", WaitReason::Gathering)]);
        if is_there {
            t.exclude(&["b"]);
            t.live(&["a", "b"], 9 * SECOND);
            assert!(t.members().is_empty(), "the last call");
            t.live(&["a", "b"], 30 * SECOND);
            assert_eq!(t.members(), ["a"]);
        } else {
            t.live(&["a", "b"], 9 * SECOND);
            assert!(t.members().is_empty());
            t.live(&["a", "b"], 2 * SECOND);
            assert_eq!(t.members(), ["a", "b"]);
        }
    }
}

/// Hosts are compared up to the first dot, and by the failure domain. Addresses have no short names.
#[test]
fn names_of_hosts_are_compared() {
    for (listed, host, domain, is_excluded) in [
        ("node7", "node7.cluster.example", "", true),
        ("node7.a.example", "node7", "", true),
        ("node7.a.example", "node8.a.example", "", false),
        ("pool-1.example", "train-0", "pool-1.example", true),
        ("region.10.0.3.7", "train-0", "region.10.0.3.8", false),
        ("10.0.3.7", "10.0.3.8", "10.0.3.8", false),
        ("10.0.3.7", "10.0.3.7", "", true),
    ] {
        let mut t = Fixture::new(1, 1);
        let mut registration = t.registration_of("a", ready());
        registration.node.host_name = host.to_owned();
        registration.node.failure_domain = domain.to_owned();
        t.exclude(&[listed]);
        t.register_with(registration);
        let node = t.machine.snapshot(t.now).nodes.remove(0);
        assert_eq!(node.excluded.is_some(), is_excluded, "{listed} {host} {domain}");
        // It is the only node, so it runs.
        assert_eq!(node.state, NodeStateName::Running);
    }
}

/// With a spare and steps that all ranks have saved, all ranks save, and the spare takes the place of the excluded node.
#[test]
fn spare_replaces_an_excluded_member() {
    let mut t = Fixture::with(2, 2, |shared| shared.notice = 30 * SECOND);
    t.run(&["a", "b"]);
    t.join("c");
    t.exclude(&["b"]);
    t.live(&["a", "b", "c"], 60 * SECOND);
    assert_eq!(t.members(), ["a", "b"], "nothing is saved");
    t.job_state.training.saved_step = Some(7);
    let mut t2 = Fixture::start(t.settings.clone(), t.shared, t.job_state.clone());
    t2.registrations = t.registrations.clone();
    t2.rounds = t.rounds.clone();
    t2.admissions = t.admissions.clone();
    for name in ["a", "b"] {
        t2.register(name, ready());
    }
    t2.admissions.clear();
    t2.live(&["a", "b"], 6 * SECOND);
    for name in ["a", "b"] {
        t2.report(name, NodeState::Running);
    }
    t2.join("c");
    t2.reopen("c");
    t2.exclude(&["b"]);
    let did = t2.live(&["a", "b", "c"], 60 * SECOND);
    assert!(did.iter().any(|did| matches!(did, Did::Notice("a", Some(_)))), "{did:?}");
    for name in ["a", "b"] {
        t2.back(name);
    }
    t2.live(&["a", "b", "c"], 6 * SECOND);
    assert_eq!(t2.members(), ["a", "c"]);
}

/// A quarantined node that is taken back gets no place if its GPU is gone.
#[test]
fn recall_does_not_help_an_unhealthy_node() {
    let mut t = Fixture::with(2, 3, |shared| shared.max_restarts = 9);
    t.run(&["a", "b", "c"]);
    for _ in 0..3 {
        t.fail_and_come_back("b", &["a", "b", "c"]);
    }
    t.live(&["a", "b", "c"], 6 * SECOND);
    assert_eq!(t.state_of("b"), NodeStateName::Quarantined);
    t.ails("b", Gone, "gpu_gone");
    t.back("b");
    t.die("c");
    t.back("a");
    t.live(&["a", "b"], 6 * SECOND);
    assert_eq!(t.state_of("b"), NodeStateName::Unhealthy);
    t.unhealthy.clear();
    t.back("b");
    assert_eq!(t.members(), ["a", "b"]);
}

/// A node that is set aside counts for as long as it is, also after ten minutes. Otherwise the places of two such nodes would
/// change again and again.
#[test]
fn places_do_not_change_again_and_again() {
    let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 99);
    let names = ["a", "b", "c"];
    t.run(&["a", "b"]);
    t.join("c");
    t.ails("b", Replace, "xid_79");
    t.fail_and_come_back("b", &["a", "b"]);
    assert_eq!((t.members(), t.job_state.restarts_used), (vec!["a".to_owned(), "c".to_owned()], 0));
    t.ails("c", Replace, "xid_79");
    for restarts in 1..3 {
        t.report("a", NodeState::Running);
        t.live(&names, SET_ASIDE_TIME);
        t.fail_and_come_back("c", &["a", "c"]);
        t.live(&names, 6 * SECOND);
        assert_eq!(t.members(), ["a", "c"]);
        assert_eq!(t.job_state.restarts_used, restarts, "it keeps its place, so it is charged");
    }
}

/// A machine that fails again and again, and is healthy in between, is quarantined.
#[test]
fn failures_of_a_bad_machine_are_counted() {
    let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    for _ in 0..3 {
        t.ails("b", Reset, "xid_48");
        t.fail("b", Duration::ZERO);
        t.unhealthy.remove("b");
        // The level of the report with the failure counts.
        t.ails("b", Reset, "xid_48");
        t.back("b");
        t.unhealthy.remove("b");
        t.back("a");
        t.back("b");
    }
    t.live(&["a", "b"], 6 * SECOND);
    assert_eq!((t.state_of("b"), t.job_state.restarts_used), (NodeStateName::Quarantined, 0),);
}

/// A job with fixed ranks sets no node aside.
#[test]
fn fixed_ranks_need_all_nodes() {
    let mut t = Fixture::with(2, 2, |shared| shared.fixed_ranks = true);
    t.ails("b", Gone, "gpu_gone");
    for (name, rank) in [("a", 0), ("b", 1)] {
        let mut registration = t.registration_of(name, ready());
        registration.node.node_rank = Some(rank);
        t.register_with(registration);
    }
    assert_eq!(t.members(), ["a", "b"]);
}

/// Nodes whose GPUs are gone do not help a job that needs more nodes: it waits, and ends at the join timeout.
#[test]
fn gone_machines_do_not_help() {
    let mut t = Fixture::new(2, 4);
    t.ails("b", Gone, "gpu_gone");
    t.join("a");
    t.join("b");
    t.live(&["a", "b"], SECOND);
    let why = t.why();
    assert!(
        why.starts_with("waiting for 1 more node (1 of at least 2 are ready; 1 node is unhealthy"),
        "{why}"
    );
    t.live(&["a", "b"], 1200 * SECOND);
    let result = t.outcome().map(|outcome| outcome.result);
    assert!(matches!(result, Some(JobResult::JoinTimeout { .. })), "{result:?}");
}
