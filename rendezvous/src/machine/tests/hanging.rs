//! Workers that the coordinator names as hung, with `--hang-timeout auto`.

use std::time::Duration;

use super::{
    fixture::{Did, Fixture, SECOND, failure},
    looking::{answer, digest},
    stalling::{keep_alive_at, stall, train},
};
use crate::{
    ids::GlobalRank,
    message::{
        Activity, FromNode, LookPart, MemoryReport, NodeState, WorkerEnd, WorkerFailure, WorkerLook,
    },
};

/// Returns a job of two nodes with `--hang-timeout auto`, whose last step is the tenth.
fn training() -> Fixture {
    let mut t = Fixture::with(2, 2, |shared| shared.hang_auto = true);
    t.run(&["a", "b"]);
    train(&mut t, &["a", "b"], 1..=10);
    t
}

/// Lets time pass. Returns the workers that were named to each node.
fn named(t: &mut Fixture, seconds: u32) -> Vec<Did> {
    let did = t.live(&["a", "b"], seconds * SECOND);
    did.into_iter().filter(|did| matches!(did, Did::Hung(..) | Did::Notice(..))).collect()
}

fn to_both(rank: u32, if_stopped: bool) -> [Did; 2] {
    ["a", "b"].map(|name| Did::Hung(name, rank, if_stopped))
}

/// Ends the round because a worker has hung, and begins the next one, which reaches a step.
fn fail(t: &mut Fixture, seconds: u32, step: u64) {
    let end = WorkerEnd::Hung(seconds * SECOND);
    t.report_failure("b", WorkerFailure { end, ..failure("b", Duration::ZERO) });
    t.alive("a");
    for name in ["a", "b"] {
        t.report(name, NodeState::Preparing);
        t.back(name);
    }
    for name in ["a", "b"] {
        t.report(name, NodeState::Running);
    }
    train(t, &["a", "b"], 1..=step);
}

/// Without a step for a quarter of an hour, the worker is named that the others wait for, else the first one.
#[test]
fn worker_is_named_after_a_long_time() {
    let mut t = training();
    assert_eq!(named(&mut t, 899), []);
    assert_eq!(named(&mut t, 1), to_both(0, false));
    assert_eq!(named(&mut t, 3_600), []);
    let did = t.register("b", NodeState::Running);
    assert!(did.contains(&Did::Hung("b", 0, false)), "{did:?}");

    let mut t = training();
    named(&mut t, 60);
    for part in [LookPart::First, LookPart::Second] {
        answer(&mut t, "a", part, 7);
        answer(&mut t, "b", part, 6);
        named(&mut t, 10);
    }
    assert_eq!(stall(&t).unwrap().rank, Some(GlobalRank(1)));
    assert_eq!(named(&mut t, 820), to_both(1, false));
}

/// If the last round has ended in this way at the same step, the time is twice as long. If the job gets further, it is not.
#[test]
fn time_is_doubled_at_the_same_step() {
    let mut t = training();
    assert_eq!(named(&mut t, 900), to_both(0, false));
    fail(&mut t, 900, 11);
    assert_eq!(named(&mut t, 1_799), []);
    assert_eq!(named(&mut t, 1), to_both(0, false));
    fail(&mut t, 1_800, 10);
    assert_eq!(named(&mut t, 3_599), []);
    assert_eq!(named(&mut t, 1), to_both(0, false));
    fail(&mut t, 3_600, 30);
    assert_eq!(named(&mut t, 899), []);
    assert_eq!(named(&mut t, 1), to_both(0, false));
    assert_eq!(t.outcome(), None, "the job is not closed without progress");
}

/// A pause of twenty minutes was made before, so that three times its limit must pass.
#[test]
fn long_pauses_extend_the_time() {
    let mut t = training();
    // The nodes of this test kill no worker.
    named(&mut t, 1_199);
    train(&mut t, &["a", "b"], 11..=40);
    assert_eq!(named(&mut t, 7_199), []);
    assert_eq!(named(&mut t, 1), to_both(0, false));
}

/// A worker that was stopped in both parts of the look is named at once. It is not named any more if it goes on.
#[test]
fn stopped_worker_is_named() {
    let mut t = training();
    assert_eq!(named(&mut t, 60), []);
    for part in [LookPart::First, LookPart::Second] {
        let mut waiting = digest(&t, "a", part, 7);
        waiting.workers[0].activity = Some(Activity::Collective);
        let mut stopped = digest(&t, "b", part, 6);
        let rank = GlobalRank(1);
        stopped.workers = vec![WorkerLook { rank, state: Some('T'), ..WorkerLook::default() }];
        assert_eq!(t.message("a", FromNode::Digest(waiting)), []);
        let did = t.message("b", FromNode::Digest(stopped));
        if part == LookPart::Second {
            assert_eq!(did, to_both(1, true));
        }
        assert_eq!(named(&mut t, 10), []);
    }
    t.message("a", keep_alive_at(11));
    let did = t.message("b", keep_alive_at(11));
    let goes_on = ["a", "b"].map(|name| Did::Notice(name, None));
    assert_eq!(did, [&goes_on[..], &[Did::Echo("b")]].concat());
}

/// No worker is named while a copy of a checkpoint in memory is slow, or without `--hang-timeout auto`.
#[test]
fn nobody_is_named_without_need() {
    let mut t = training();
    named(&mut t, 61);
    let round = t.rounds["b"];
    let wait = |rank| {
        FromNode::MemoryReport(MemoryReport {
            round,
            waits_for_buffer: rank,
            ..MemoryReport::default()
        })
    };
    t.message("b", wait(Some(GlobalRank(1))));
    assert_eq!(named(&mut t, 2_000), []);
    // Afterwards, the workers have as much time as before.
    assert_eq!(t.message("b", wait(None)), []);
    assert_eq!(named(&mut t, 899), []);
    assert_eq!(named(&mut t, 2), to_both(0, false));

    let mut t = super::stalling::training();
    assert_eq!(named(&mut t, 10_000), []);
    assert!(stall(&t).is_some());
}
