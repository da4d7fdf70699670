//! Copies for the buddy, copies of the ward, and when they are given up.

use super::*;

/// A restart does not free what was whole and copied before the planned checkpoint has its copies: a node may be lost first.
#[test]
fn older_copies_stay_until_the_newer_one_is_copied() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.whole(1, 10);
    pair.is_connected = false;
    pair.save_all(1, 20);
    for node in 0..2 {
        pair.nodes[node].memory.handle_round_over(pair.now);
    }
    pair.admit(2, [Some(plan(1, 20, &[])), Some(plan(1, 20, &[]))]);
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10), (0, 20)]);
    // The older one is whole again, by what all nodes report.
    pair.whole(1, 10);
    assert_eq!(pair.ask_buffer(0, 0, 2, 30), None, "the memory of two checkpoints is in use");
    pair.is_connected = true;
    pair.wait(2);
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10), (0, 20), (1, 20)], "copies go on");
    pair.whole(1, 20);
    assert_eq!(pair.nodes[0].held(), [(0, 20), (1, 20)]);
}

/// Without a buddy, a line explains why a part has no copy. A state that each node has needs no copy, and a single node
/// has no other one to send it to.
#[test]
fn lack_of_copies_is_explained() {
    let why = "no copies: no other node is on another host and in another failure domain";
    for (group_world_size, is_replicated, obstacle) in
        [(2, false, why), (2, true, ""), (1, false, "")]
    {
        let mut pair = Pair::new();
        let alone = Admission { buddy: None, group_world_size, ..Pair::admission(0, 1, None) };
        pair.nodes[0].memory.handle_admission(pair.now, &alone);
        let workers = if is_replicated { 1 } else { 2 };
        for worker in 0..workers {
            let ask = Ask::Buffer { step: 10, bytes: GB, kind: STATE, is_replicated };
            let answer = pair.ask(0, worker, 1, ask);
            assert!(matches!(answer, Some(Answer::Buffer { .. })), "{answer:?}");
            let saved = pair.ask(0, worker, 1, Ask::Saved { step: 10, bytes: GB });
            assert_eq!(saved, Some(Answer::Taken));
        }
        assert_eq!(pair.nodes[0].obstacle(), obstacle);
    }
}

/// A node takes a block only from the node whose copies it keeps, and only if the block belongs to this round or to the checkpoint of the plan.
#[test]
fn blocks_of_others_are_declined() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    let header = header(checkpoint(1, 10), 1, 0);
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
    ];
    for (number, header) in (1..).zip(unfit) {
        assert_eq!(pair.offered(foreign(number), header), Err(Decline::NoRoom), "{number}");
    }
    assert_eq!(pair.offered(foreign(9), header), Ok(()));
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
    assert!(retry <= pair.now + Duration::from_secs(1), "blocks that fail at once are one failure");
    memory.handle_timeout(retry);
    assert!(matches!(memory.poll_effect(), Some(Effect::Copy { .. })));
    assert!(memory.poll_timeout().is_none_or(|at| retry < at));
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

/// A block that is here already, or is being received, is not received again.
#[test]
fn blocks_are_received_once() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    let header = header(checkpoint(1, 10), 1, 0);
    assert_eq!(pair.offered(foreign(1), header), Ok(()));
    assert_eq!(pair.offered(foreign(2), header), Err(Decline::NoRoom));
    pair.end(0, foreign(1), TransferEnd::Done);
    assert_eq!(pair.offered(foreign(3), header), Err(Decline::HaveIt));
}

/// Blocks that are older than the newest whole checkpoint are not needed, and none are while memory is off.
#[test]
fn older_blocks_are_not_needed() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.whole(1, 20);
    let block = |step| header(checkpoint(1, step), 1, 0);
    assert_eq!(pair.offered(foreign(1), block(10)), Err(Decline::NotNeeded));
    assert_eq!(pair.offered(foreign(2), block(20)), Ok(()));
    pair.nodes[0].memory.handle_off(pair.now, round(1), "no room");
    assert_eq!(pair.offered(foreign(3), block(30)), Err(Decline::NotNeeded));
}

/// A node keeps copies of two new checkpoints. What it holds since an earlier round does not count.
#[test]
fn leftovers_do_not_count() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.whole(1, 10);
    pair.save_all(1, 20);
    let resharded = MemoryPlan { is_resharded: true, ..plan(1, 20, &[]) };
    let admission = Admission { group_world_size: 3, ..Pair::admission(0, 2, Some(resharded)) };
    pair.nodes[0].memory.handle_admission(pair.now, &admission);
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10), (0, 20), (1, 20)]);
    let block = |step| BlockHeader { nodes: 3, ..header(checkpoint(2, step), 1, 0) };
    assert_eq!(pair.offered(foreign(101), block(30)), Ok(()));
    assert_eq!(pair.offered(foreign(102), block(40)), Ok(()));
    assert_eq!(pair.offered(foreign(103), block(50)), Err(Decline::NoRoom));
}

/// A copy of a node that is no longer the ward stays until its checkpoint is whole again.
#[test]
fn copies_of_an_earlier_ward_stay_for_a_while() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    let admission = Admission { ward: None, ..Pair::admission(0, 2, Some(plan(1, 10, &[]))) };
    pair.nodes[0].memory.handle_admission(pair.now, &admission);
    pair.run();
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10)]);
    pair.whole(1, 10);
    assert_eq!(pair.nodes[0].held(), [(0, 10)]);
}

/// A node that sends no copies needs half the memory, and no second node will hold its parts.
#[test]
fn parts_are_alone_without_copies() {
    let changes: [fn(&mut MemorySettings); 2] =
        [|settings| settings.has_copies = false, |settings| settings.address = None];
    for change in changes {
        let mut pair = Pair::new();
        change(&mut pair.nodes[0].memory.settings);
        pair.admit(1, [None, None]);
        pair.save(0, 0, 1, 10);
        pair.save(0, 1, 1, 10);
        assert_eq!(pair.nodes[0].places(), [(10, PartPlace::Own, true)]);
        assert_eq!((pair.nodes[0].needed(), pair.nodes[1].held()), (4 * GB, vec![]));
    }
}

/// A buddy without room is asked again for a minute. Then the copy is given up, until the buddy has room.
#[test]
fn buddy_without_room_is_asked_again() {
    let mut pair = Pair::with_limit(8 * GB);
    pair.admit(1, [None, None]);
    pair.nodes[1].left.available = 3 * GB;
    pair.save(0, 0, 1, 10);
    pair.save(0, 1, 1, 10);
    pair.wait(59);
    assert_eq!(pair.nodes[0].places(), [(10, PartPlace::Own, false)]);
    pair.wait(40);
    assert_eq!(pair.nodes[0].places(), [(10, PartPlace::Own, true)]);
    assert_eq!(pair.nodes[0].obstacle(), "not copied from n0: n1:1 has no room");
    pair.nodes[1].left.available = 100 * GB;
    pair.wait(31);
    assert_eq!((pair.nodes[1].held(), pair.nodes[0].obstacle()), (vec![(0, 10)], String::new()));
}

/// After a copy has failed, the next one that is sent is again a complete part, and not the newer one that is being saved.
#[test]
fn unfinished_parts_are_not_sent() {
    let mut pair = Pair::new();
    pair.is_connected = false;
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.wait(90);
    assert_eq!(pair.nodes[0].places(), [(10, PartPlace::Own, true)]);
    pair.save(0, 0, 1, 20);
    pair.is_connected = true;
    pair.nodes[0].sent.clear();
    pair.wait(31);
    assert_eq!(pair.nodes[0].copied_steps(), [10, 10]);
}

/// A `save` that waits gives up the copy of the oldest own part that is not whole. Other parts are not alone then.
#[test]
fn only_the_awaited_copy_is_given_up() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.whole(1, 10);
    pair.save_all(1, 20);
    assert_eq!(pair.ask_buffer(1, 0, 1, 30), None);
    pair.wait(61);
    let (own, copy) = (PartPlace::Own, PartPlace::Copy);
    let places = [(10, copy, false), (10, own, false), (20, copy, false), (20, own, true)];
    assert_eq!(pair.nodes[1].places(), places);
}

/// A `save` waits for a copy for a minute, while attempts to send it fail.
#[test]
fn failed_attempts_give_up_nothing() {
    let mut pair = Pair::new();
    pair.is_connected = false;
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.save_all(1, 20);
    assert_eq!(pair.ask_buffer(0, 0, 1, 30), None);
    pair.wait(59);
    assert_eq!(pair.nodes[0].places()[0], (10, PartPlace::Own, false));
}

/// A block is served only to an agent that names its part.
#[test]
fn other_parts_are_not_served() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    for (number, step, node, is_served) in
        [(101, 11, 0, false), (102, 10, 2, false), (103, 10, 0, true)]
    {
        let part = PartId { checkpoint: checkpoint(1, step), group_rank: GroupRank(node) };
        let transfer = foreign(number);
        pair.give(0, Input::Wanted { transfer, part, local_rank: LocalRank(0) });
        let effects = pair.nodes[0].effects();
        if is_served {
            assert!(matches!(effects[..], [Effect::Serve { .. }]), "{effects:?}");
        } else {
            assert_eq!(effects, [Effect::Decline { transfer, why: Decline::NotHere }]);
        }
    }
}
