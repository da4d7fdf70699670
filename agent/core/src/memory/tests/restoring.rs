//! Rounds that begin with a checkpoint in memory.

use super::*;

/// A node frees its part before it is admitted with it. That is no fault of the checkpoint, which other nodes may hold.
#[test]
fn freed_part_is_no_wrong_sum() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.nodes[0] = Bench::new(0, 100 * GB);
    pair.nodes[1].memory.handle_round_over(pair.now);
    pair.admit(2, [Some(plan(1, 10, &[])), Some(plan(1, 10, &[]))]);
    assert_eq!(pair.load(0, 0, 2), None, "the round ends");
    let unusable = pair.nodes[0].memory.unusable().unwrap();
    assert_eq!(unusable.why, UnusableReason::SourceGone { sources: vec![] });
}

/// A node that has lost its parts fetches them from the other one. If that one does not answer, the round ends.
#[test]
fn parts_are_fetched() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.nodes[0] = Bench::new(0, 100 * GB);
    pair.nodes[1].memory.handle_round_over(pair.now);
    let plans = || [Some(plan(1, 10, &["n1:1"])), Some(plan(1, 10, &[]))];
    pair.admit_one(1, 2, plans()[1].clone());
    pair.admit_one(0, 2, plans()[0].clone());
    assert_eq!(pair.nodes[0].held(), []);
    pair.run();
    let is_fetch = |effect: &&Effect| matches!(effect, Effect::Fetch { .. });
    assert_eq!(pair.nodes[0].sent.iter().filter(is_fetch).count(), 2, "each block once");
    assert_eq!(pair.load(0, 1, 2), Some(Some(content(0, 1, 10))));
    assert_eq!(pair.load(0, 0, 2), Some(Some(content(0, 0, 10))));
    assert!(pair.nodes[0].memory.report().unwrap().fetch_time.is_some());
    // The other node's part is copied to its new buddy.
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10)]);

    pair.nodes[0] = Bench::new(0, 100 * GB);
    pair.is_connected = false;
    pair.nodes[1].memory.handle_round_over(pair.now);
    pair.admit(3, plans());
    assert_eq!(pair.load(0, 0, 3), None, "other ranks may have loaded it");
    let unusable = pair.nodes[0].memory.unusable().unwrap().clone();
    let sources = vec!["n1:1".to_owned()];
    assert_eq!(unusable.why, UnusableReason::SourceGone { sources });
    assert_eq!(unusable.text, "n0 does not reach n1:1");
    pair.admit(4, [None, None]);
    assert_eq!(pair.nodes[0].memory.unusable(), None);
    assert_eq!(pair.load(0, 0, 4), Some(None));
}

/// Content that has changed is not given to a worker: the copy is used, and if that has changed too, the round ends.
#[test]
fn changed_content_is_not_loaded() {
    for both in [false, true] {
        let mut pair = Pair::new();
        pair.admit(1, [None, None]);
        pair.save_all(1, 10);
        for node in &mut pair.nodes {
            let torn = content(0, 1, 10);
            let changed = node.contents.values_mut().filter(|content| **content == torn);
            changed.for_each(|content| *content += 1_000);
            node.memory.handle_round_over(pair.now);
            if !both {
                break;
            }
        }
        pair.nodes[1].memory.handle_round_over(pair.now);
        pair.admit(2, [Some(plan(1, 10, &[])), Some(plan(1, 10, &[]))]);
        let loaded = pair.load(0, 1, 2);
        if both {
            assert_eq!(loaded, None);
            let why = pair.nodes[0].memory.unusable().unwrap().why.clone();
            assert_eq!(why, UnusableReason::Sum);
        } else {
            assert_eq!(loaded, Some(Some(content(0, 1, 10))));
            assert_eq!(pair.nodes[0].memory.unusable(), None);
        }
    }
}

/// If memory goes off before a rank has loaded, the rank does not begin from disk: others may have loaded.
#[test]
fn nobody_begins_from_disk_alone() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.admit(2, [Some(plan(1, 10, &[])), Some(plan(1, 10, &[]))]);
    assert!(pair.load(0, 0, 2).unwrap().is_some());
    pair.nodes[0].memory.handle_off(pair.now, round(2), "off: n9 has 1 GB and needs 2 GB");
    pair.run();
    assert_eq!(pair.nodes[0].memory.unusable(), None);
    assert_eq!(pair.load(0, 1, 2), None);
    assert_eq!(pair.nodes[0].memory.unusable().unwrap().why, UnusableReason::Script);
}

/// A worker that asks for the checkpoint of the round when it was freed already does not begin from disk. The round ends.
#[test]
fn late_load_ends_the_round() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.admit(2, [Some(plan(1, 10, &[])), Some(plan(1, 10, &[]))]);
    pair.whole(2, 20);
    assert_eq!(pair.load(0, 0, 2), None);
    assert_eq!(pair.nodes[0].memory.unusable().unwrap().why, UnusableReason::Script);
}

/// Without sockets, the workers of a node cannot load what others load. The round ends, and nobody saves.
#[test]
fn missing_sockets_end_a_round_from_memory() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.admit(2, [Some(plan(1, 10, &[])), Some(plan(1, 10, &[]))]);
    pair.input(0, Input::NotOpened { round: round(2), why: "no space left".to_owned() });
    assert!(pair.nodes[0].memory.unusable().is_some());
    assert_eq!(pair.nodes[0].obstacle(), "off: n0 has no sockets for its workers: no space left");
}

/// A node that fetches a block takes only the block that it has asked for: of its own rank and the planned checkpoint.
#[test]
fn only_the_planned_block_is_taken() {
    let header = BlockHeader {
        part: PartId { checkpoint: checkpoint(1, 10), group_rank: GroupRank(0) },
        local_rank: LocalRank(0),
        nodes: 2,
        first_global_rank: GlobalRank(0),
        local_ranks: NonZeroU32::new(2).unwrap(),
        kind: STATE,
        is_replicated: false,
        bytes: GB,
        sum: Sum(4),
    };
    let (mut other_step, mut other_node) = (header, header);
    other_step.part.checkpoint.step = 11;
    other_node.part.group_rank = GroupRank(1);
    let unfit = [
        other_step,
        other_node,
        BlockHeader { local_rank: LocalRank(1), ..header },
        BlockHeader { nodes: 3, ..header },
        BlockHeader { first_global_rank: GlobalRank(2), ..header },
        BlockHeader { local_ranks: NonZeroU32::new(3).unwrap(), ..header },
        BlockHeader { kind: MemoryKind::Dcp, ..header },
        header,
    ];
    for (number, header) in (1..).zip(unfit) {
        let mut pair = Pair::new();
        pair.admit_one(0, 2, Some(plan(1, 10, &["n1:1"])));
        let sent: Vec<Effect> = std::iter::from_fn(|| pair.nodes[0].memory.poll_effect()).collect();
        let of_worker = |effect: &Effect| match effect {
            Effect::Fetch { transfer, local_rank: LocalRank(0), .. } => Some(*transfer),
            _ => None,
        };
        let transfer = sent.iter().find_map(of_worker).unwrap();
        let left = pair.nodes[0].left;
        pair.give(0, Input::Incoming { transfer, header, left });
        let effects: Vec<Effect> =
            std::iter::from_fn(|| pair.nodes[0].memory.poll_effect()).collect();
        let is_taken = effects.iter().any(|effect| matches!(effect, Effect::Receive { .. }));
        assert_eq!(is_taken, number == 8, "{number}");
    }
}
