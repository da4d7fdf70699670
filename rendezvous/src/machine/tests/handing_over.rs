//! An elected coordinator ends when its own node has left, or its process ends.

use super::{
    fixture::{Did, Fixture, SECOND},
    grant::take_over,
};
use crate::{
    Rendezvous,
    grant::Grant,
    ids::{JobUid, Term},
    message::{FromNode, JobResult, NodeState},
    settings::JobState,
};

const LEAVING: NodeState = NodeState::Leaving { reaped: false };
const LEFT: NodeState = NodeState::Leaving { reaped: true };

/// Creates an elected coordinator in the process of `a`, in a job of up to `max` nodes.
fn elected(max: u32) -> Fixture {
    let mut t = Fixture::new(1, max).host("a");
    let elected = Grant {
        term: Term(1 << 16),
        until: t.now + 3_600 * SECOND,
        workers_until: t.now,
        former: None,
    };
    let (settings, job_state) = (t.settings.clone(), JobState::new(JobUid::new("uid")));
    t.machine = Rendezvous::new(t.now, settings, job_state, Some(elected));
    t.drain();
    t
}

/// Creates an elected coordinator that runs a round of `names`.
fn running(names: &[&'static str]) -> Fixture {
    let mut t = elected(u32::try_from(names.len()).expect("few"));
    for name in names {
        t.join(name);
        t.back(name);
    }
    assert_eq!(t.admissions.len(), names.len());
    for name in names {
        t.report(name, NodeState::Running);
    }
    t
}

/// The other nodes run until the workers of the coordinator's node have ended, and are then informed that
/// it has left. The coordinator ends at once. No node is informed that the job cannot continue.
#[test]
fn coordinator_ends_when_its_node_has_left() {
    let mut t = running(&["a", "b", "c"]);
    assert_eq!(t.report("a", LEAVING), []);
    assert_eq!(t.live(&["a", "b", "c"], 20 * SECOND), []);
    assert_eq!(t.report("a", LEFT), [Did::Restart("b", 1), Did::Restart("c", 1), Did::HandOver]);
    assert_eq!(t.machine.poll_timeout(), None);
    assert_eq!(t.back("b"), []);
}

/// The next coordinator dismisses the node, and does not wait for its workers.
#[test]
fn next_coordinator_dismisses_the_node() {
    let mut t = running(&["a", "b"]);
    t.report("a", LEFT);
    t.settings.host = None;
    take_over(&mut t, 2 * SECOND, Some("a"));
    t.register("a", LEFT);
    assert_eq!(t.report("a", LEFT), [Did::Dismiss("a")]);
    t.message("a", FromNode::Goodbye);
    t.register("b", NodeState::Stopping);
    let did = t.back("b");
    assert!(did.contains(&Did::Admit("b", 2, 0)), "{did:?}");
}

/// A coordinator that ends forms no further round: the round would be restarted at once.
#[test]
fn no_round_is_formed_without_the_node() {
    let mut t = running(&["a", "b", "c"]);
    t.report("a", LEAVING);
    t.fail("b", SECOND);
    t.back("b");
    t.back("c");
    let did = t.report("a", LEFT);
    assert_eq!(did.last(), Some(&Did::HandOver), "{did:?}");
    assert!(!did.iter().any(|did| matches!(did, Did::Admit(..))), "{did:?}");
}

/// If all nodes leave, the job is closed, and the coordinator ends when all have the outcome.
#[test]
fn job_closes_when_all_leave() {
    for state in [LEAVING, LEFT] {
        let mut t = running(&["a", "b"]);
        t.report("b", LEAVING);
        let closed = [Did::Remember(1, 0), Did::Close("a"), Did::Close("b")];
        assert_eq!(t.report("a", state), closed);
        assert_eq!(t.outcome().expect("closed").result, JobResult::AllLeft);
        assert_eq!(t.message("a", FromNode::Goodbye), []);
        assert_eq!(t.message("b", FromNode::Goodbye), [Did::Finish]);
    }
}

/// A node that has succeeded serves its round until the others have, and no work is repeated.
#[test]
fn succeeded_node_stays_until_the_round_ends() {
    let mut t = running(&["a", "b"]);
    t.report("a", NodeState::Succeeded);
    assert_eq!(t.report("a", LEFT), []);
    t.report("b", NodeState::Succeeded);
    assert_eq!(t.outcome().expect("closed").result, JobResult::Succeeded);
}

/// Before the first round the coordinator ends at once, unless all nodes leave: they are dismissed.
#[test]
fn coordinator_ends_before_the_first_round() {
    let mut t = elected(3);
    for name in ["a", "b"] {
        t.join(name);
        t.back(name);
    }
    assert_eq!(t.report("a", LEFT), [Did::HandOver]);
    let mut t = elected(3);
    t.join("a");
    assert_eq!(t.report("a", LEFT), [Did::Dismiss("a")]);
    assert_eq!(t.message("a", FromNode::Goodbye), [Did::HandOver]);
}

/// A node that is not a member ends its coordinator as well.
#[test]
fn coordinator_ends_with_a_spare() {
    let mut t = elected(2);
    for name in ["b", "c", "a"] {
        t.join(name);
        t.back(name);
    }
    t.report("b", NodeState::Running);
    t.report("c", NodeState::Running);
    assert_eq!(t.report("a", LEFT), [Did::HandOver]);
}

/// A process that ends for another reason stops no workers: they run on under the next coordinator's leases, or are
/// stopped by it.
#[test]
fn shutdown_ends_the_coordinator_at_once() {
    let mut t = running(&["a", "b"]);
    t.machine.handle_shutdown(t.now);
    assert_eq!(t.drain(), [Did::HandOver]);
    t.machine.handle_shutdown(t.now);
    assert_eq!(t.drain(), []);
}
