//! Ranges of parts that another number of ranks has saved.

use super::*;

/// In a round with other ranks, no part of its checkpoint has a place, also on a node whose ranks are the same. The next checkpoint is
/// copied at once, and frees it.
#[test]
fn resharded_parts_are_left_over() {
    let mut t = Pair::new();
    t.admit(1, [None, None]);
    t.save_all(1, 10);
    let resharded = MemoryPlan { is_resharded: true, ..plan(1, 10, &[]) };
    t.admit(2, [Some(resharded.clone()), Some(resharded)]);
    let places = |t: &Pair| -> Vec<(u64, PartPlace)> {
        t.nodes[0].places().iter().map(|(step, place, _)| (*step, *place)).collect()
    };
    assert_eq!(places(&t), [(10, PartPlace::Leftover), (10, PartPlace::Leftover)]);
    assert_eq!(t.nodes[0].memory.unusable(), None);
    t.save_all(2, 20);
    let newer = [(20, PartPlace::Own), (20, PartPlace::Copy)];
    assert_eq!(places(&t)[2..], newer);
    t.whole(2, 20);
    assert_eq!(places(&t), newer);
}

/// Two nodes have saved a checkpoint, and the next round is resharded. `change` is applied before the next round, which node 0 begins, and node 1 if it `has_place`.
fn resharded(has_place: bool, change: impl Fn(&mut Pair)) -> Pair {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.whole(1, 10);
    let part = |group_rank: u32| PartSources {
        group_rank: GroupRank(group_rank),
        first_global_rank: GlobalRank(2 * group_rank),
        local_ranks: NonZeroU32::new(2).unwrap(),
        sources: vec![format!("n{group_rank}:1")],
    };
    let resharded = MemoryPlan { is_resharded: true, ..plan(1, 10, &[]) };
    let first = MemoryPlan { all_sources: vec![part(0), part(1)], ..resharded.clone() };
    change(&mut pair);
    pair.admit_one(0, 2, Some(first));
    if has_place {
        pair.admit_one(1, 2, Some(resharded));
    } else {
        pair.nodes[1].memory.handle_wait(pair.now, round(2), Some(checkpoint(1, 10)));
    }
    pair.run();
    pair
}

impl Pair {
    fn ranges(&mut self, node: usize, worker: u32, step: u64, of: u32) -> Option<Answer> {
        let ranges = vec![BlockRange { local_rank: LocalRank(1), offset: 64, bytes: 100 }];
        let sources = vec![format!("n{of}:1")];
        let ask = RangesRequest { step, group_rank: GroupRank(of), sources, ranges };
        self.ask(node, worker, 2, Ask::Ranges(ask))
    }

    /// Node 1 is asked for a range of its own part.
    fn want(&mut self, transfer: TransferId, worker: u32) {
        let part = PartId { checkpoint: checkpoint(1, 10), group_rank: GroupRank(1) };
        let range = BlockRange { local_rank: LocalRank(worker), offset: 0, bytes: 1 };
        self.give(1, Input::WantedRange { transfer, part, range });
    }

    fn sums(&self, node: usize) -> usize {
        self.nodes[node].sent.iter().filter(|effect| matches!(effect, Effect::Sum { .. })).count()
    }
}

/// Global rank 0 learns where the parts are. All blocks are checked when the round begins, and once.
#[test]
fn ranges_are_read_if_ranks_differ() {
    let mut pair = resharded(true, |pair| pair.nodes[1].sent.clear());
    let load = Ask::Load { kind: STATE };
    let Some(Answer::Resharded { step: 10, parts }) = pair.ask(0, 0, 2, load.clone()) else {
        panic!()
    };
    assert_eq!(parts.len(), 2);
    for (node, worker) in [(0, 1), (1, 0), (1, 1)] {
        let other = Answer::Resharded { step: 10, parts: vec![] };
        assert_eq!(pair.ask(node, worker, 2, load.clone()), Some(other));
    }
    assert_eq!(pair.sums(1), 4);
    for _ in 0..2 {
        let answer = pair.ranges(0, 1, 10, 1);
        assert!(matches!(answer, Some(Answer::Ranges { bytes: 100, .. })), "{answer:?}");
    }
    assert_eq!(pair.sums(1), 4);
    assert!(matches!(pair.ranges(0, 1, 11, 1), Some(Answer::Refused(_))), "another step");
    // A worker that has saved a newer step has nothing to load.
    pair.save(0, 0, 2, 11);
    assert_eq!(pair.ask(0, 0, 2, load), Some(Answer::Nothing));
}

/// A node without a place checks a block before its first range is sent, and again in a later round.
#[test]
fn spares_check_what_they_send() {
    let mut pair = resharded(false, |pair| pair.nodes[1].sent.clear());
    for _ in 0..2 {
        assert!(matches!(pair.ranges(0, 1, 10, 1), Some(Answer::Ranges { .. })));
        assert_eq!(pair.sums(1), 1);
    }
    pair.nodes[1].memory.handle_wait(pair.now, round(3), Some(checkpoint(1, 10)));
    assert!(matches!(pair.ranges(0, 1, 10, 1), Some(Answer::Ranges { .. })));
    assert_eq!(pair.sums(1), 2);
}

/// A part whose content has changed is dropped, and the round ends. So it does if memory is turned off meanwhile.
#[test]
fn ranges_that_cannot_be_read_end_the_round() {
    let change = |pair: &mut Pair| {
        pair.nodes[1].contents.values_mut().for_each(|content| *content += 1);
    };
    for has_place in [true, false] {
        let mut pair = resharded(has_place, change);
        assert_eq!(pair.ranges(0, 0, 10, 1), None);
        let unusable = pair.nodes[0].memory.unusable().unwrap();
        if has_place {
            let sources = vec!["n1:1".to_owned()];
            assert_eq!(unusable.why, UnusableReason::SourceGone { sources });
            assert_eq!(unusable.text, "n1:1 no longer has it");
        } else {
            assert_eq!(unusable.why, UnusableReason::Sum);
            assert_eq!(unusable.text, "its content has changed on n1:1");
        }
        assert_eq!(pair.nodes[1].obstacle(), "step 10 has changed in the memory of n1");
        assert!(!pair.nodes[1].held().contains(&(1, 10)));
    }

    let mut pair = resharded(true, |_| {});
    pair.nodes[0].memory.handle_off(pair.now, round(2), "no room");
    pair.run();
    assert_eq!(pair.ranges(0, 0, 10, 1), None);
    assert_eq!(pair.nodes[0].memory.unusable().unwrap().text, "no room");
}

/// What a worker was reading is aborted when it is gone. A short lack of memory does not free what is being loaded.
#[test]
fn ranges_end_with_their_worker() {
    let mut pair = resharded(true, |_| {});
    let (node, left) = (&mut pair.nodes[0], MemoryLeft { available: GB, oom_kills: None });
    node.memory.handle_input(pair.now, Input::Left(left));
    assert_eq!(node.held(), [(0, 10), (1, 10)]);
    let range = BlockRange { local_rank: LocalRank(0), offset: 0, bytes: 1 };
    let (sources, ranges) = (vec!["n1:1".to_owned()], vec![range]);
    let request = RangesRequest { step: 10, group_rank: GroupRank(1), sources, ranges };
    let (worker, round, ask) = (LocalRank(1), round(2), Ask::Ranges(request));
    node.memory.handle_input(pair.now, Input::Asked { round, worker, ask, left });
    let Some(Effect::FetchRanges { transfer, .. }) = node.memory.poll_effect() else { panic!() };
    node.memory.handle_input(pair.now, Input::WorkerGone { round, worker });
    assert_eq!(node.memory.poll_effect(), Some(Effect::Abort(transfer)));
    let end = TransferEnd::Failed("aborted".to_owned());
    node.memory.handle_input(pair.now, Input::Ended { transfer, end });
    assert_eq!((node.memory.poll_effect(), node.memory.unusable()), (None, None));
}

/// A range is sent once the checksum of its block is computed, if it is still wanted.
#[test]
fn ranges_wait_for_their_checksum() {
    let mut pair = resharded(false, |_| {});
    for (number, worker) in [(101, 0), (102, 0), (103, 1)] {
        pair.want(foreign(number), worker);
    }
    pair.end(1, foreign(101), TransferEnd::Failed("closed".to_owned()));
    let sums = pair.nodes[1].effects();
    assert_eq!(sums.len(), 2, "one for each block: {sums:?}");
    for (effect, number) in sums.into_iter().zip([102, 103]) {
        let Effect::Sum { buffer, .. } = effect else { panic!("{effect:?}") };
        let sum = pair.nodes[1].contents.get(&buffer.id).copied().unwrap();
        pair.give(1, Input::Summed { buffer, sum: Ok(Sum(sum.into())) });
        let sent = pair.nodes[1].effects();
        let [Effect::ServeRange { transfer, .. }] = sent[..] else { panic!("{sent:?}") };
        assert_eq!(transfer, foreign(number));
    }
}

/// If a block has changed, all ranges of its part are declined.
#[test]
fn ranges_of_a_changed_part_are_declined() {
    let mut pair = resharded(false, |_| {});
    pair.want(foreign(101), 0);
    pair.want(foreign(102), 1);
    let sums = pair.nodes[1].effects();
    let Effect::Sum { buffer, .. } = sums[0] else { panic!("{sums:?}") };
    pair.give(1, Input::Summed { buffer, sum: Ok(Sum(1_000)) });
    let declined = |number, why| Effect::Decline { transfer: foreign(number), why };
    let effects = [declined(101, Decline::Changed), declined(102, Decline::NotHere)];
    assert_eq!(pair.nodes[1].effects(), effects);
}

/// A part of a node whose ranks have moved since is not its own: workers of these ranks need other content.
#[test]
fn parts_of_other_ranks_are_left_over() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    let admission = Pair::admission(1, 2, Some(plan(1, 10, &[])));
    let moved = Admission { first_global_rank: GlobalRank(3), ..admission };
    pair.nodes[1].memory.handle_admission(pair.now, &moved);
    let places = [(10, PartPlace::Copy, false), (10, PartPlace::Leftover, false)];
    assert_eq!(pair.nodes[1].places(), places);
}
