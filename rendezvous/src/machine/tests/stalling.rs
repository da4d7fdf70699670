//! Steps in keep-alives, and stalls: when they begin and end, and which pauses are none.

use std::{ops::RangeInclusive, time::Duration};

use super::fixture::{Did, Fixture, SECOND, keep_alive};
use crate::{
    event::EventKind,
    ids::GlobalRank,
    message::{
        FromNode, MemoryReport, NodeNotice, NodeReport, NodeState, StepProgress, StepSource,
    },
    snapshot::{Snapshot, Stall},
};

/// The last step of the job.
const LAST: u64 = 1_000_000;

pub(super) fn keep_alive_at(step: u64) -> FromNode {
    let (lowest, highest, source, total) = (step, step, StepSource::Reported, Some(LAST));
    let progress = StepProgress { source, lowest, highest, total, age: Duration::ZERO };
    keep_alive(false, Some(progress), None)
}

/// All of `names` make these steps, one a second.
pub(super) fn train(t: &mut Fixture, names: &[&str], steps: RangeInclusive<u64>) {
    for step in steps {
        t.live(names, SECOND);
        for name in names {
            t.message(name, keep_alive_at(step));
        }
    }
}

/// Returns a job of two nodes whose last step is the tenth.
pub(super) fn training() -> Fixture {
    let mut t = Fixture::with(2, 2, |shared| shared.notice = 300 * SECOND);
    t.run(&["a", "b"]);
    train(&mut t, &["a", "b"], 1..=10);
    t
}

pub(super) fn stall(t: &Fixture) -> Option<Stall> {
    t.machine.snapshot(t.now).stall
}

/// Returns the events of stalls so far, and of the ends of rounds.
pub(super) fn recorded(t: &mut Fixture) -> Vec<EventKind> {
    let kinds = std::mem::take(&mut t.events).into_iter().map(|event| event.kind);
    kinds.filter(|kind| kind.name().starts_with("stall_") || kind.name() == "round_ended").collect()
}

/// The keep-alives of members carry the step of the job, and cause no message but the echo.
#[test]
fn keep_alives_carry_the_step() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    assert_eq!(t.message("a", keep_alive_at(5)), [Did::Echo("a")]);
    t.message("b", keep_alive_at(4));
    t.now += 2 * SECOND;
    let Snapshot { progress, nodes, .. } = t.machine.snapshot(t.now);
    let progress = progress.expect("a step");
    assert_eq!((progress.step, progress.highest, progress.steps_left), (4, 5, Some(LAST - 4)));
    assert_eq!((progress.source, progress.age), (StepSource::Reported, 2 * SECOND));
    assert!(nodes.iter().all(|node| node.progress_age_ms == Some(2_000)), "{nodes:?}");
}

/// A stall begins when the job has reached no other step for long, although one of its nodes may have. It ends with the
/// next step.
#[test]
fn stall_lasts_until_the_next_step() {
    let mut t = training();
    t.message("a", keep_alive_at(11));
    t.live(&["a", "b"], 59 * SECOND);
    assert_eq!((stall(&t), recorded(&mut t)), (None, Vec::new()));
    let did = t.live(&["a", "b"], 11 * SECOND);
    assert!(did.iter().all(|did| matches!(did, Did::Echo(_) | Did::Look(..))), "{did:?}");
    let expected = Stall { step: Some(10), for_ms: 70_000, limit_ms: 60_000, ..Stall::default() };
    assert_eq!(stall(&t), Some(expected));
    assert_eq!(t.machine.snapshot(t.now).time.now.as_deref(), Some("stalled"));
    t.message("b", keep_alive_at(11));
    assert_eq!(stall(&t), None);
    let began = EventKind::StallBegan { step: Some(10), after_ms: 60_000 };
    let ended = EventKind::StallEnded { step: Some(11), after_ms: 70_000 };
    assert_eq!(recorded(&mut t), [began, ended]);
}

/// A stall ends with its round, and with the job.
#[test]
fn stall_ends_with_the_round() {
    for (state, ended) in [(NodeState::Running, &["round_ended"][..]), (NodeState::Succeeded, &[])]
    {
        let mut t = training();
        t.live(&["a", "b"], 100 * SECOND);
        for name in ["a", "b"] {
            match state {
                NodeState::Succeeded => t.report(name, state),
                _ => t.fail(name, Duration::ZERO),
            };
        }
        let kinds: Vec<_> = recorded(&mut t).iter().map(EventKind::name).collect();
        assert_eq!((kinds, stall(&t)), ([&["stall_began", "stall_ended"], ended].concat(), None));
    }
}

/// Pauses with a known reason do not count: a copy of a checkpoint in memory is slow, workers have exited with 0, the last
/// step is done, or the ranks save for a notice.
#[test]
fn pauses_with_a_reason_are_no_stalls() {
    let mut t = training();
    let (round, waits_for_buffer) = (t.rounds["b"], Some(GlobalRank(1)));
    let report = MemoryReport { round, waits_for_buffer, ..MemoryReport::default() };
    t.message("b", FromNode::MemoryReport(report));
    t.live(&["a", "b"], 200 * SECOND);
    assert_eq!(stall(&t), None);

    let mut t = training();
    t.report("a", NodeState::Succeeded);
    t.live(&["a", "b"], 200 * SECOND);
    assert_eq!(stall(&t), None);

    let mut t = training();
    train(&mut t, &["a", "b"], LAST..=LAST);
    t.live(&["a", "b"], 200 * SECOND);
    assert_eq!(stall(&t), None);

    let mut t = training();
    let notice = NodeNotice { ends_job: false, left: 250 * SECOND, text: String::new() };
    let report = NodeReport::new(t.rounds["a"], NodeState::Running);
    t.message("a", FromNode::NodeReport(NodeReport { notice: Some(notice), ..report }));
    t.live(&["a", "b"], 200 * SECOND);
    assert_eq!(stall(&t), None);
}
