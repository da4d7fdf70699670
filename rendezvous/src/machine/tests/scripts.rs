//! Two jobs at one endpoint: a node whose script is another one is refused.

use super::fixture::{Did, Fixture, SECOND, ready};
use crate::message::{NodeState, RefuseReason, WaitReason};

impl Fixture {
    fn join_with(&mut self, name: &'static str, role: &str, script: &str) -> Vec<Did> {
        let mut registration = self.registration_of(name, ready());
        registration.node.role = role.to_owned();
        registration.node.script = script.to_owned();
        self.register_with(registration)
    }
}

fn refused(name: &'static str) -> Did {
    let (script, host_name) = ("joba.py".to_owned(), "a".to_owned());
    Did::Refuse(name, RefuseReason::OtherScript { script, host_name })
}

/// The second script at an endpoint is refused, while the first one's nodes wait and while they train.
#[test]
fn other_script_is_refused() {
    let mut t = Fixture::new(2, 3);
    t.join_with("a", "trainer", "joba.py");
    assert_eq!(t.join_with("b", "trainer", "jobb.py"), [refused("b")]);
    t.join_with("c", "trainer", "joba.py");
    t.live(&["a", "c"], 60 * SECOND);
    for name in ["a", "c"] {
        t.report(name, NodeState::Running);
    }
    assert_eq!(t.join_with("d", "trainer", "jobb.py"), [refused("d")]);
}

/// Nodes of another role may run another script, and a node whose script is not known is not compared.
#[test]
fn other_roles_have_other_scripts() {
    let mut t = Fixture::new(4, 4);
    let waits = |name| [Did::Welcome(name), Did::Wait(name, WaitReason::Gathering)];
    assert_eq!(t.join_with("a", "trainer", "joba.py"), waits("a"));
    assert_eq!(t.join_with("b", "reader", "jobb.py"), waits("b"));
    assert_eq!(t.join_with("c", "trainer", ""), waits("c"));
    assert_eq!(t.join_with("d", "reader", "joba.py").len(), 1);
}

/// A node that registers again is not compared: after a takeover, another script may register before the nodes of the job.
#[test]
fn member_that_registers_again_keeps_its_place() {
    let mut t = Fixture::new(2, 2);
    t.join_with("a", "trainer", "joba.py");
    let mut registration = t.registration_of("b", ready());
    registration.node.role = "trainer".to_owned();
    registration.node.script = "jobb.py".to_owned();
    registration.job_uid = Some(t.job_state.job_uid.clone());
    assert_eq!(t.register_with(registration)[0], Did::Welcome("b"));
}

/// A job that is over, or lost, does not keep the next one from its endpoint: a node counts only while it is certainly there.
#[test]
fn script_of_a_silent_node_does_not_count() {
    let mut t = Fixture::new(2, 2);
    t.join_with("a", "trainer", "joba.py");
    t.advance(SECOND);
    assert_eq!(t.join_with("b", "trainer", "jobb.py")[0], Did::Welcome("b"));
}
