//! The training step in keep-alives.

use std::time::Duration;

use super::fixture::{Did, Fixture, SECOND};
use crate::{
    message::{FromNode, NodeState, StepProgress, StepSource},
    snapshot::JobProgress,
};

fn at_step(step: u64) -> FromNode {
    let progress = StepProgress {
        source: StepSource::Reported,
        lowest: step,
        highest: step,
        total: Some(100),
        age: SECOND,
    };
    FromNode::KeepAlive {
        sequence: 1,
        asks_reason: false,
        progress: Some(progress),
        checkpoint: None,
        save_failed: None,
    }
}

fn progress(t: &Fixture) -> Option<JobProgress> {
    t.machine.snapshot(t.now).progress
}

/// The keep-alives of members carry the step of the job, and cause no message but the echo.
#[test]
fn keep_alives_carry_the_step() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    assert_eq!(progress(&t), None);
    assert_eq!(t.message("a", at_step(5)), [Did::Echo("a")]);
    t.message("b", at_step(4));
    t.now += SECOND;
    let progress = progress(&t).expect("a step");
    assert_eq!((progress.step, progress.highest, progress.steps_left), (4, 5, Some(96)));
    assert_eq!((progress.source, progress.age), (StepSource::Reported, 2 * SECOND));
    let nodes = t.machine.snapshot(t.now).nodes;
    assert!(nodes.iter().all(|node| node.progress_age_ms == Some(2_000)), "{nodes:?}");
}

/// The age of a step is that of its node. A node without steps, a spare or a member, has none.
#[test]
fn ages_belong_to_their_nodes() {
    let mut t = Fixture::new(3, 3);
    t.run(&["a", "b", "d"]);
    t.join("c");
    t.message("a", at_step(5));
    t.now += SECOND;
    t.message("d", at_step(5));
    let nodes = t.machine.snapshot(t.now).nodes;
    let ages = nodes.iter().map(|node| (node.node_id.as_str(), node.progress_age_ms));
    let mut ages: Vec<_> = ages.collect();
    ages.sort_unstable();
    assert_eq!(ages, [("a", Some(2_000)), ("b", None), ("c", None), ("d", Some(1_000))]);
}

/// A spare, and a node that reports about an older round, have no part in the step of the job. The next
/// round begins without one.
#[test]
fn step_is_that_of_the_running_round() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.join("c");
    t.message("c", at_step(1));
    assert_eq!(progress(&t), None);
    t.message("a", at_step(50));
    t.fail("b", Duration::ZERO);
    assert_eq!(progress(&t).map(|progress| progress.step), Some(50));
    t.message("a", at_step(51));
    assert_eq!(progress(&t).map(|progress| progress.step), Some(50), "the round has ended");
    for name in ["a", "b"] {
        t.report(name, NodeState::Preparing);
        t.back(name);
    }
    assert_eq!(t.rounds["a"].round.0, 2);
    assert_eq!(progress(&t), None);
    t.message("a", at_step(51));
    assert_eq!(progress(&t), None, "the node has not reported that it runs the round");
    t.report("a", NodeState::Running);
    t.message("a", at_step(40));
    assert_eq!(progress(&t).map(|progress| progress.step), Some(40));
}
