//! Buffers for workers, and what they save.

use super::*;

/// A third `save` waits until an older checkpoint is freed. A worker that dies while it saves leaves nothing.
#[test]
fn third_save_waits() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.save_all(1, 20);
    assert_eq!(pair.ask_buffer(0, 0, 1, 30), None);
    assert_eq!(pair.nodes[0].memory.report().unwrap().waits_for_buffer, Some(GlobalRank(0)));
    pair.whole(1, 10);
    assert_eq!(pair.nodes[0].answers.get(&LocalRank(0)), None);
    pair.wait(3);
    pair.whole(1, 20);
    let answer = pair.nodes[0].answers.get(&LocalRank(0)).cloned();
    let Some(Answer::Buffer { waited, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!(waited, Duration::from_secs(3));
    pair.save(0, 1, 1, 30);
    pair.input(0, Input::WorkerGone { round: round(1), worker: LocalRank(0) });
    pair.nodes[0].memory.handle_round_over(pair.now);
    assert_eq!(pair.nodes[0].held(), [(0, 20), (1, 20)]);
    pair.admit(2, [Some(plan(1, 20, &[])), Some(plan(1, 20, &[]))]);
    assert_eq!(pair.nodes[0].held(), [(0, 20), (1, 20)]);
}

/// The cost of a save is reported with the next change, and is none itself: a save on each worker would send a report.
#[test]
fn cost_alone_is_not_reported() {
    let mut t = Pair::new();
    t.admit(1, [None, None]);
    let Some(Answer::Buffer { buffer, .. }) = t.ask_buffer(0, 0, 1, 10) else { panic!() };
    t.nodes[0].contents.insert(buffer.id, 7);
    assert!(t.nodes[0].memory.take_report().is_some(), "saves are used from now on");
    assert_eq!(t.ask(0, 0, 1, Ask::Saved { step: 10, bytes: GB }), Some(Answer::Taken));
    assert_eq!(t.nodes[0].memory.take_report(), None);
    assert_eq!(t.save(0, 1, 1, 10), Some(Answer::Taken));
    assert!(t.nodes[0].memory.take_report().is_some_and(|report| report.cost.is_some()));
}

/// The report has the median cost of the newest 16 saves.
#[test]
fn median_cost_is_reported() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    // Each takes a second less than the one before.
    for save in 0..18 {
        let (worker, step) = (save % 2, 1 + u64::from(save / 2));
        let answer = pair.ask_buffer(0, worker, 1, step);
        let Some(Answer::Buffer { buffer, .. }) = answer else { panic!("{answer:?}") };
        pair.nodes[0].contents.insert(buffer.id, 7);
        pair.now += Duration::from_secs(18 - u64::from(save));
        assert_eq!(pair.ask(0, worker, 1, Ask::Saved { step, bytes: GB }), Some(Answer::Taken));
        if worker == 1 {
            pair.whole(1, step);
        }
    }
    let cost = pair.nodes[0].memory.report().unwrap().cost;
    assert_eq!(cost, Some(Duration::from_secs(9)));
}

/// The report of a node whose `save` waits names the rank that has not saved.
#[test]
fn late_rank_is_named() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    for step in [10, 20] {
        pair.save(0, 0, 1, step);
    }
    assert_eq!(pair.nodes[0].memory.report().unwrap().obstacle, None);
    assert_eq!(pair.ask_buffer(0, 0, 1, 30), None);
    let obstacle = pair.nodes[0].memory.report().unwrap().obstacle;
    let expected = "rank 1 has not saved step 10; all ranks must save the same steps";
    assert_eq!(obstacle.as_deref(), Some(expected));
}

/// Ranks that save different steps never have a whole checkpoint. After two minutes, nothing is saved any more, and the
/// coordinator learns why.
#[test]
fn ranks_that_save_different_steps_go_on_without_memory() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    for (worker, step) in [(0, 10), (1, 11), (0, 20), (1, 21)] {
        pair.save(0, worker, 1, step);
    }
    pair.wait(121);
    let Some(Answer::Refused(why)) = pair.nodes[0].answers.get(&LocalRank(0)) else { panic!() };
    assert!(why.contains("all ranks must save the same steps"), "{why}");
    assert_eq!(pair.nodes[0].obstacle(), format!("{OFF}{why}"));
    assert_eq!(pair.nodes[0].held(), []);
    assert!(matches!(pair.save(0, 1, 1, 30), Some(Answer::Refused(_))));
    // The next round tries again.
    pair.admit(2, [None, None]);
    assert_eq!(pair.save(0, 1, 2, 30), Some(Answer::Taken));
}

/// Parts never use more than the limit, and the reserve stays free. One line says what is missing.
#[test]
fn limit_and_reserve_are_kept() {
    let mut pair = Pair::with_limit(3 * GB);
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    assert!(matches!(pair.ask_buffer(0, 0, 1, 20), Some(Answer::Buffer { .. })));
    let answer = pair.ask_buffer(0, 1, 1, 20);
    let Some(Answer::Refused(why)) = answer else { panic!("{answer:?}") };
    assert_eq!(why, "n0 has 3.0 GB and needs 8.0 GB");

    // Copies take nothing that a node needs for its own parts. No `save` waits for them.
    let mut pair = Pair::with_limit(5 * GB);
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.save_all(1, 20);
    assert_eq!(pair.nodes[0].places()[0], (10, PartPlace::Own, true));
    assert_eq!(pair.nodes[1].held(), [(1, 10), (1, 20)]);
    assert_eq!(pair.nodes[0].obstacle(), "not copied from n0: n1:1 has no room");

    let mut pair = Pair::with_limit(8 * GB);
    pair.admit(1, [None, None]);
    pair.nodes[0].left.available = 2 * GB + GB / 2;
    let answer = pair.ask_buffer(0, 0, 1, 10);
    let why = "n0 has 0.5 GB to spare and needs 1.0 GB".to_owned();
    assert_eq!(answer, Some(Answer::Refused(why)));

    let mut pair = Pair::with_limit(0);
    pair.admit(1, [None, None]);
    let why = "n0 has --memory-limit 0".to_owned();
    assert_eq!(pair.ask_buffer(0, 0, 1, 10), Some(Answer::Refused(why)));
}

/// The same step is not saved twice in a round, and a buffer that was not asked for is not taken.
#[test]
fn misuse_is_refused() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    let why = "step 10 is not later than step 10, which is already saved".to_owned();
    assert_eq!(pair.ask_buffer(0, 0, 1, 10), Some(Answer::Refused(why)));
    let saved = pair.ask(0, 0, 1, Ask::Saved { step: 20, bytes: GB });
    assert!(matches!(saved, Some(Answer::Refused(_))), "{saved:?}");
    for bytes in [0, GB + 1] {
        pair.ask_buffer(0, 0, 1, 20);
        let saved = pair.ask(0, 0, 1, Ask::Saved { step: 20, bytes });
        assert!(matches!(saved, Some(Answer::Refused(_))), "{saved:?}");
    }
    // It may try again.
    assert_eq!(pair.save(0, 0, 1, 20), Some(Answer::Taken));
    let other = Ask::Buffer { step: 20, bytes: GB, kind: MemoryKind::Dcp, is_replicated: false };
    assert!(matches!(pair.ask(0, 1, 1, other), Some(Answer::Refused(_))));
}
