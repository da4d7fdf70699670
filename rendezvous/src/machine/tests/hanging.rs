//! Workers that the coordinator names as hung, with `--hang-timeout auto`.

use super::{
    fixture::{Did, Fixture, SECOND},
    looking::{answer, digest},
    stalling::{keep_alive_at, stall, train},
};
use crate::{
    ids::GlobalRank,
    message::{Activity, FromNode, LookPart, NodeState, WorkerLook},
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
