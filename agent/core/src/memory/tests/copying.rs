//! Copies of parts on another node.

use super::*;

/// Without a buddy, a line explains why a part has no copy. A state that each node has needs no copy.
#[test]
fn lack_of_copies_is_explained() {
    for is_replicated in [false, true] {
        let mut pair = Pair::new();
        let alone = Admission { buddy: None, ..Pair::admission(0, 1, None) };
        pair.nodes[0].memory.handle_admission(pair.now, &alone);
        let workers = if is_replicated { 1 } else { 2 };
        for worker in 0..workers {
            let ask = Ask::Buffer { step: 10, bytes: GB, kind: STATE, is_replicated };
            let answer = pair.ask(0, worker, 1, ask);
            assert!(matches!(answer, Some(Answer::Buffer { .. })), "{answer:?}");
            let saved = pair.ask(0, worker, 1, Ask::Saved { step: 10, bytes: GB });
            assert_eq!(saved, Some(Answer::Taken));
        }
        let why = "no copies: no other node is on another host and in another failure domain";
        assert_eq!(pair.nodes[0].obstacle(), if is_replicated { "" } else { why });
    }
    // A job of one node has no other one.
    let mut pair = Pair::new();
    let alone = Admission { buddy: None, group_world_size: 1, ..Pair::admission(0, 1, None) };
    pair.nodes[0].memory.handle_admission(pair.now, &alone);
    pair.save(0, 0, 1, 10);
    pair.save(0, 1, 1, 10);
    assert_eq!(pair.nodes[0].obstacle(), "");
}

/// A node copies its parts if the user wants copies, and it has an address that others reach. Only then are copies part of what it needs.
#[test]
fn copies_need_an_address() {
    for (has_copies, has_address) in [(true, true), (true, false), (false, true)] {
        let mut pair = Pair::new();
        let settings = &mut pair.nodes[0].memory.settings;
        settings.has_copies = has_copies;
        settings.address = Some("n0:1".to_owned()).filter(|_| has_address);
        pair.admit(1, [None, None]);
        pair.save(0, 0, 1, 10);
        pair.save(0, 1, 1, 10);
        let is_copied = has_copies && has_address;
        assert_eq!(!pair.nodes[1].held().is_empty(), is_copied);
        let needed = pair.nodes[0].memory.report().unwrap().needed;
        assert_eq!(needed, if is_copied { 8 * GB } else { 4 * GB });
    }
}

/// A node takes a block only from the node whose copies it keeps, and only if the block belongs to this round or to the checkpoint of the plan.
#[test]
fn blocks_of_others_are_declined() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    let header = BlockHeader {
        part: PartId { checkpoint: checkpoint(1, 10), group_rank: GroupRank(1) },
        local_rank: LocalRank(0),
        nodes: 2,
        first_global_rank: GlobalRank(2),
        local_ranks: NonZeroU32::new(2).unwrap(),
        kind: STATE,
        is_replicated: false,
        bytes: GB,
        sum: Sum(4),
    };
    let mut other_part = header;
    other_part.part.group_rank = GroupRank(0);
    let mut other_round = header;
    other_round.part.checkpoint = checkpoint(7, 10);
    let unfit = [
        BlockHeader { is_replicated: true, ..header },
        BlockHeader { nodes: 3, ..header },
        BlockHeader { local_rank: LocalRank(2), ..header },
        other_part,
        other_round,
        header,
    ];
    for (number, header) in (1..).zip(unfit) {
        let transfer = TransferId { is_foreign: true, number };
        let left = pair.nodes[0].left;
        pair.give(0, Input::Incoming { transfer, header, left });
        let effect = pair.nodes[0].memory.poll_effect();
        match (effect, number == 6) {
            (Some(Effect::Receive { .. }), true) => {}
            (Some(Effect::Decline { why: Decline::NoRoom, .. }), false) => {}
            (effect, _) => panic!("{number}: {effect:?}"),
        }
    }
}

/// While another attempt lasts, no deadline is left that has passed: the driver would wake the machine again and again.
#[test]
fn attempts_have_no_deadline() {
    let mut pair = Pair::new();
    pair.is_connected = false;
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    let memory = &mut pair.nodes[0].memory;
    let retry = memory.poll_timeout().unwrap();
    memory.handle_timeout(retry);
    assert!(matches!(memory.poll_effect(), Some(Effect::Copy { .. })));
    assert!(memory.poll_timeout().is_none_or(|at| retry < at));
}

/// All blocks of a part fail at the same time. That is one failure, so the first pause follows.
#[test]
fn blocks_that_fail_together_are_one_failure() {
    let mut pair = Pair::new();
    pair.is_connected = false;
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    let retry_at = pair.nodes[0].memory.copying_deadline().unwrap();
    assert!(retry_at <= pair.now + Duration::from_secs(1));
}

/// Without an answer of the other node, a copy is given up after a minute. Later ones are awaited no more, until one arrives.
#[test]
fn copies_are_given_up() {
    let mut pair = Pair::new();
    pair.is_connected = false;
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.wait(59);
    assert_eq!(pair.nodes[0].places(), [(10, PartPlace::Own, false)]);
    pair.wait(40);
    assert_eq!(pair.nodes[0].places(), [(10, PartPlace::Own, true)]);
    assert_eq!(pair.nodes[0].obstacle(), "not copied from n0: n1:1 does not answer: no route");
    pair.whole(1, 10);
    pair.save_all(1, 20);
    assert_eq!(pair.nodes[0].places()[1], (20, PartPlace::Own, true));
    pair.is_connected = true;
    pair.wait(31);
    assert_eq!(pair.nodes[0].places().last().unwrap(), &(20, PartPlace::Copy, false));
    assert_eq!(pair.nodes[0].obstacle(), "");
}

/// The other node drops a copy that was sent, because it is short of memory. The copy is given up after a minute, and a
/// `save` goes on.
#[test]
fn dropped_copy_is_given_up() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.input(1, Input::Left(MemoryLeft { available: GB, oom_kills: None }));
    pair.save_all(1, 20);
    assert_eq!(pair.ask_buffer(0, 0, 1, 30), None);
    pair.wait(61);
    assert_eq!(pair.nodes[0].places()[0], (10, PartPlace::Own, true));
}

/// A node that is not in the round yet declines copies. They are tried again, because it would have room: both have just what they need.
#[test]
fn copies_wait_for_a_buddy_with_room() {
    let mut pair = Pair::with_limit(8 * GB);
    pair.admit_one(0, 1, None);
    pair.run();
    pair.save(0, 0, 1, 10);
    pair.save(0, 1, 1, 10);
    assert_eq!(pair.nodes[0].places(), [(10, PartPlace::Own, false)]);
    pair.admit_one(1, 1, None);
    pair.wait(3);
    assert_eq!(pair.nodes[1].held(), [(0, 10)]);
}

/// A `save` waits a minute for a slow copy. Then the oldest own part that is not whole is given up, and no other one: not the copy of the
/// other node's part, and not what is whole.
#[test]
fn slow_copy_is_given_up() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.whole(1, 10);
    pair.save(0, 0, 1, 20);
    pair.save(0, 1, 1, 20);
    pair.is_slow = true;
    pair.save(1, 0, 1, 20);
    pair.save(1, 1, 1, 20);
    assert_eq!(pair.ask_buffer(1, 0, 1, 30), None);
    let places = |is_given_up| {
        let copy = |step| (step, PartPlace::Copy, false);
        vec![copy(10), (10, PartPlace::Own, false), copy(20), (20, PartPlace::Own, is_given_up)]
    };
    pair.wait(59);
    assert_eq!(pair.nodes[1].places(), places(false));
    pair.wait(2);
    assert_eq!(pair.nodes[1].places(), places(true));
    assert_eq!(pair.nodes[1].obstacle(), "the copy from n1 to n0:1 is slow");
    let is_abort = |effect: &&Effect| matches!(effect, Effect::Abort(_));
    assert_eq!(pair.nodes[1].sent.iter().filter(is_abort).count(), 2, "both blocks");
}

/// Returns the answers to blocks that other nodes send.
fn answers(
    pair: &mut Pair,
    headers: impl IntoIterator<Item = BlockHeader>,
) -> Vec<Option<Decline>> {
    let answer = |(number, header)| {
        let transfer = TransferId { is_foreign: true, number };
        let left = pair.nodes[0].left;
        pair.give(0, Input::Incoming { transfer, header, left });
        let memory = &mut pair.nodes[0].memory;
        let answer = |effect| match effect {
            Effect::Receive { .. } => Some(None),
            Effect::Decline { why, .. } => Some(Some(why)),
            _ => None,
        };
        std::iter::from_fn(|| memory.poll_effect()).find_map(answer).expect("an answer")
    };
    (1..).zip(headers).map(answer).collect()
}

/// A block of node 1, whose copies node 0 keeps.
fn block(step: u64, worker: u32) -> BlockHeader {
    BlockHeader {
        part: PartId { checkpoint: checkpoint(1, step), group_rank: GroupRank(1) },
        local_rank: LocalRank(worker),
        nodes: 2,
        first_global_rank: GlobalRank(2),
        local_ranks: NonZeroU32::new(2).unwrap(),
        kind: STATE,
        is_replicated: false,
        bytes: GB,
        sum: Sum(4),
    }
}

/// A node declines a block if it has the block already, or if a newer checkpoint is whole. While it receives the block, it declines a second
/// copy for now.
#[test]
fn blocks_are_taken_once() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    let (have, busy, useless) =
        (Some(Decline::HaveIt), Some(Decline::NoRoom), Some(Decline::NotNeeded));
    assert_eq!(answers(&mut pair, [block(10, 0), block(10, 0)]), [None, busy]);
    let transfer = TransferId { is_foreign: true, number: 1 };
    pair.give(0, Input::Ended { transfer, end: TransferEnd::Done });
    assert_eq!(answers(&mut pair, [block(10, 0)]), [have]);
    let other_kind = BlockHeader { kind: MemoryKind::Dcp, ..block(10, 1) };
    assert_eq!(answers(&mut pair, [other_kind]), [busy]);

    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.nodes[0].memory.handle_whole(pair.now, Some(checkpoint(1, 10)));
    assert_eq!(answers(&mut pair, [block(9, 0), block(10, 0)]), [useless, None]);
    pair.nodes[0].memory.handle_off(pair.now, round(1), "no room");
    while pair.nodes[0].memory.poll_effect().is_some() {}
    assert_eq!(answers(&mut pair, [block(10, 1)]), [useless]);
}

/// A node keeps copies of two checkpoints of its ward.
#[test]
fn copies_are_limited() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    let blocks = [block(10, 0), block(20, 0), block(30, 0), block(20, 1)];
    assert_eq!(answers(&mut pair, blocks), [None, None, Some(Decline::NoRoom), None]);
}

/// Only the wanted checkpoint is sent.
#[test]
fn only_what_is_wanted_is_sent() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    for (number, (step, rank)) in (100..).zip([(10, 0), (10, 1), (11, 0), (10, 9)]) {
        let transfer = TransferId { is_foreign: true, number };
        let part = PartId { checkpoint: checkpoint(1, step), group_rank: GroupRank(rank) };
        pair.give(0, Input::Wanted { transfer, part, local_rank: LocalRank(0) });
        let effect = pair.nodes[0].memory.poll_effect();
        assert_eq!(matches!(effect, Some(Effect::Serve { .. })), number < 102, "{effect:?}");
    }
}
