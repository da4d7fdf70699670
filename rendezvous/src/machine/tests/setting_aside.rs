//! Nodes whose machines are unhealthy, or whose hosts are excluded, get no place, as far as the job can do without them.

use std::time::Duration;

use super::fixture::{Did, Fixture, SECOND};
use crate::{
    event::{EventKind, FreeReason},
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

    pub(super) fn state_of(&self, name: &str) -> NodeStateName {
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
}

/// The failure on a bad machine is not charged, and a spare takes its place at once. The node waits until its own check
/// finds nothing.
#[test]
fn spare_takes_the_place_of_a_bad_machine() {
    let mut t = Fixture::with(2, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    t.join("c");
    t.ails("b", Replace, "xid_79");
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
    let is_aside =
        |kind: &EventKind| matches!(kind, EventKind::NodeUnhealthy { is_set_aside: true, .. });
    assert_eq!(t.kinds().filter(|kind| is_aside(kind)).count(), 1);
    assert_eq!(t.state_of("b"), NodeStateName::Unhealthy);
    assert!(t.events.iter().any(|event| event.kind == free));
    t.unhealthy.clear();
    assert_eq!(t.back("b"), [Did::Wait("b", WaitReason::Spare)]);
    assert!(t.events.iter().any(|event| event.kind == EventKind::NodeHealthy));
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

/// A member whose check finds late that its machine must be replaced ends the round.
#[test]
fn late_check_ends_the_round() {
    let mut t = Fixture::with(1, 2, |shared| shared.max_restarts = 0);
    t.run(&["a", "b"]);
    t.ails("b", Replace, "xid_79");
    let did = t.report("b", NodeState::Running);
    assert_eq!(did, [Did::Restart("a", 1), Did::Restart("b", 1)]);
    t.back("a");
    t.back("b");
    t.live(&["a", "b"], 6 * SECOND);
    assert_eq!((t.members(), t.job_state.restarts_used), (vec!["a".to_owned()], 0));
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

/// With a spare and steps that all ranks have saved, all ranks save, and the spare takes the place of the excluded node.
#[test]
fn spare_replaces_an_excluded_member() {
    let mut t = Fixture::with(2, 2, |shared| shared.notice = 30 * SECOND);
    t.run(&["a", "b"]);
    t.join("c");
    t.exclude(&["b"]);
    t.live(&["a", "b", "c"], 60 * SECOND);
    assert_eq!(t.members(), ["a", "b"], "nothing is saved");
    t.checkpoint("a", 7);
    t.checkpoint("b", 7);
    let did = t.live(&["a", "b", "c"], 100 * SECOND);
    assert!(did.iter().any(|did| matches!(did, Did::Notice("a", Some(_)))), "{did:?}");
    for name in ["a", "b"] {
        t.back(name);
    }
    t.live(&["a", "b", "c"], 6 * SECOND);
    assert_eq!(t.members(), ["a", "c"]);
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
