//! Tests the JSON of a snapshot, and its texts for people.

use std::time::Duration;

use serde_json::json;

use super::fixture::*;
use crate::{
    ids::NodeId,
    message::{FromNode, NodeState, StepSource},
    snapshot::{
        JobProgress, MemoryStatus, NodeStateName, SharedSnapshot, Snapshot, Unreached, VoterStatus,
    },
};

fn voter(endpoint: &str, is_leader: bool, silent_ms: u64) -> VoterStatus {
    let silent_for = Duration::from_millis(silent_ms);
    VoterStatus { endpoint: endpoint.to_owned(), is_leader, silent_for }
}

/// A snapshot survives JSON. Causes and sources that this version does not know are left out.
#[test]
fn snapshot_is_read_again() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a"]);
    let mut snapshot = t.machine.snapshot(t.now);
    snapshot.set_voters(vec![voter("a:1", false, 3_500), voter("b:1", true, 0)]);
    assert_eq!(snapshot.leader.as_deref(), Some("b:1"));
    snapshot.progress = Some(JobProgress {
        source: StepSource::Reported,
        step: 7,
        highest: 8,
        steps_left: None,
        step_time: Some(Duration::from_micros(1_500)),
        age: Duration::from_millis(20),
    });
    let mut text = serde_json::to_value(&snapshot).unwrap();
    assert_eq!(text["voters"][0]["silent_ms"], json!(3_500));
    assert_eq!(
        (&text["progress"]["step_ms"], &text["progress"]["age_ms"]),
        (&json!(1.5), &json!(20))
    );
    assert_eq!(serde_json::from_value::<Snapshot>(text.clone()).unwrap(), snapshot);
    let known = text["restarts"][0].clone();
    let mut later = known.clone();
    later["cause"] = json!("of a later version");
    text["restarts"] = json!([later, known]);
    text["progress"]["source"] = json!("of a later version");
    let read: Snapshot = serde_json::from_value(text).unwrap();
    assert_eq!((read.progress, read.restarts), (None, snapshot.restarts));
}

/// While nothing happens, only ages change. A voter that becomes silent is a change.
#[test]
fn ages_are_no_news() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a"]);
    let at = |t: &Fixture, silent_ms: u64| {
        let mut snapshot = t.machine.snapshot(t.now);
        snapshot.set_voters(vec![voter("a:1", false, silent_ms), voter("b:1", true, 0)]);
        let shared = SharedSnapshot::from(snapshot.clone());
        assert_eq!(Snapshot::from(shared), snapshot);
        snapshot.without_ages()
    };
    let before = at(&t, 100);
    t.advance(SECOND);
    assert_eq!(at(&t, 1_100), before);
    assert_ne!(at(&t, 3_000), before);
    assert_eq!(at(&t, 3_000), at(&t, 9_000));
}

/// A member is shown in the state that it has reported about the newest round. A report about an earlier one does not count.
#[test]
fn members_are_shown_as_they_report() {
    let mut t = Fixture::with(2, 2, |shared| shared.timeouts.shrink = 600 * SECOND);
    t.run(&["a", "b"]);
    let mut shown = vec![t.state_of("a")];
    t.fail("a", Duration::ZERO);
    shown.push(t.state_of("a"));
    t.report("b", NodeState::Stopping);
    shown.push(t.state_of("b"));
    t.back("a");
    shown.push(t.state_of("a"));
    t.report("b", NodeState::Preparing);
    shown.push(t.state_of("b"));
    t.back("b");
    shown.extend([t.state_of("a"), t.state_of("b")]);
    // The next round has begun, and no node has reported about it.
    let names: Vec<&str> = shown.iter().map(|state| state.name()).collect();
    assert_eq!(
        names,
        ["running", "failed", "stopping", "joined", "preparing", "running", "running"]
    );
}

/// A lost member is shown with the reason of its loss.
#[test]
fn losses_have_reasons() {
    let mut t = Fixture::with(1, 2, |shared| shared.timeouts.shrink = 600 * SECOND);
    t.run(&["a", "b"]);
    let node = t.machine.description(&NodeId::new("b")).expect("it is registered");
    assert_eq!(node.host_name, "b");
    t.die("b");
    assert!(t.machine.description(&NodeId::new("b")).is_none());
    let nodes = t.machine.snapshot(t.now).nodes;
    let lost = nodes.iter().find(|node| node.host_name == "b").expect("it is shown");
    assert_eq!(
        (lost.state, lost.reason.as_deref()),
        (NodeStateName::Lost, Some("its agent has ended"))
    );
}

/// A node is shown with the reason for its state, or else the reason why it would get no place.
#[test]
fn reasons_are_given() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a"]);
    t.message("a", FromNode::Progress { text: "epoch 7".to_owned() });
    let mut node = t.machine.snapshot(t.now).nodes.remove(0);
    assert_eq!((node.progress.as_deref(), node.why()), (Some("epoch 7"), None));
    t.message("a", FromNode::Progress { text: String::new() });
    assert_eq!(t.machine.snapshot(t.now).nodes[0].progress, None);
    node.excluded = Some("slow".to_owned());
    assert_eq!(node.why().as_deref(), Some("excluded: slow"));
    node.state = NodeStateName::Excluded;
    assert_eq!(node.why().as_deref(), Some("slow"));
    node.unhealthy = Some("XID 79".to_owned());
    assert_eq!(node.why().as_deref(), Some("unhealthy: XID 79"));
    node.reason = Some("it waits".to_owned());
    assert_eq!(node.why().as_deref(), Some("it waits"));
    let kept_out = NodeStateName::ALL.into_iter().filter(|state| state.is_kept_out());
    assert_eq!(
        kept_out.map(|state| state.name()).collect::<Vec<_>>(),
        ["quarantined", "unhealthy", "excluded"]
    );

    let silent =
        [voter("a:1", false, 2_999), voter("a:1", false, 3_000), voter("a:1", true, 3_000)];
    assert_eq!(silent.map(|voter| voter.is_silent()), [false, true, false]);
    let text = |text: Option<&str>| MemoryStatus {
        text: text.map(str::to_owned),
        ..MemoryStatus::default()
    };
    assert_eq!(
        [None, Some("off: no room"), Some("no copies: off: ")].map(|it| text(it).is_off()),
        [false, true, false]
    );
    let [host_name, to, why] = ["a", "b (10.0.0.2:1)", "timed out"].map(str::to_owned);
    let unreached = Unreached { host_name, to, why };
    assert_eq!(unreached.to_string(), "a does not reach b (10.0.0.2:1): timed out");
}
