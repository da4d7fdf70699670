//! The training step in keep-alives.

use super::fixture::{Did, Fixture, SECOND, keep_alive};
use crate::{
    message::{FromNode, StepProgress, StepSource},
    snapshot::JobProgress,
};

fn at_step(step: u64) -> FromNode {
    let (lowest, highest, source, total) = (step, step, StepSource::Reported, Some(100));
    keep_alive(false, Some(StepProgress { source, lowest, highest, total, age: SECOND }), None)
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
