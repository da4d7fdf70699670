//! Restoring the checkpoint with which a round begins.

use super::*;

/// After a worker's death, each node gives its workers their own blocks. They are copied again only if they are missing.
#[test]
fn own_parts_are_loaded() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.save_all(1, 20);
    pair.whole(1, 10);
    for node in 0..2 {
        pair.nodes[node].memory.handle_round_over(pair.now);
    }
    pair.run();
    pair.admit(2, [Some(plan(1, 20, &[])), Some(plan(1, 20, &[]))]);
    assert_eq!(pair.nodes[1].held(), [(0, 10), (1, 10), (0, 20), (1, 20)]);
    assert!(!pair.nodes[0].memory.has_given());
    for (node, worker) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert_eq!(pair.load(node, worker, 2), Some(Some(content(node, worker, 20))));
        assert_eq!(pair.load(node, worker, 2), Some(Some(content(node, worker, 20))));
    }
    assert!(pair.nodes[0].memory.has_given());
    assert_eq!(pair.nodes[0].places()[2], (20, PartPlace::Own, false));
    pair.whole(1, 20);
    // The next one reuses buffers.
    let before: Vec<u64> = pair.nodes[0].contents.keys().copied().collect();
    pair.save_all(2, 30);
    let after: Vec<u64> = pair.nodes[0].contents.keys().copied().collect();
    assert_eq!((before.len(), before), (8, after));
    assert_eq!(pair.load(0, 0, 2), Some(None), "all ranks have gone on from it");
    pair.admit(3, [Some(plan(1, 20, &[])), Some(plan(1, 20, &[]))]);
    pair.save(0, 1, 3, 40);
    assert_eq!(pair.load(0, 1, 3), Some(None), "it has gone on from something else");
}

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
    pair.nodes[0].memory.handle_off(pair.now, round(1), "of an earlier round");
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10)]);
    pair.nodes[0].memory.handle_off(pair.now, round(2), "off: n9 has 1 GB and needs 2 GB");
    pair.run();
    assert_eq!(pair.nodes[0].memory.unusable(), None);
    assert_eq!(pair.load(0, 1, 2), None);
    assert_eq!(pair.nodes[0].memory.unusable().unwrap().why, UnusableReason::Script);
}

/// A script that cannot use the checkpoint ends the round.
#[test]
fn script_refuses() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.admit(2, [Some(plan(1, 10, &[])), Some(plan(1, 10, &[]))]);
    let reason = "another model".to_owned();
    let answer = pair.ask(0, 0, 2, Ask::Unusable { step: 10, reason: reason.clone() });
    assert_eq!(answer, Some(Answer::Noted));
    let unusable =
        MemoryUnusable { checkpoint: checkpoint(1, 10), why: UnusableReason::Script, text: reason };
    assert_eq!(pair.nodes[0].memory.unusable(), Some(&unusable));
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

/// A node takes only the blocks that it has asked for: of the checkpoint of the round, as its own workers have saved it.
#[test]
fn only_own_blocks_of_the_plan_are_fetched() {
    let mut pair = Pair::new();
    pair.admit_one(0, 2, Some(plan(1, 10, &["n1:1"])));
    let block = |worker| header(checkpoint(1, 10), 0, worker);
    let first = block(0);
    let unfit = [
        header(checkpoint(1, 11), 0, 0),
        BlockHeader { part: header(checkpoint(1, 10), 1, 0).part, ..first },
        BlockHeader { kind: MemoryKind::Dcp, ..first },
        BlockHeader { nodes: 3, ..first },
        BlockHeader { first_global_rank: GlobalRank(1), ..first },
        BlockHeader { local_ranks: NonZeroU32::new(3).unwrap(), ..first },
        block(1),
    ];
    for header in unfit {
        assert_eq!(pair.offered(ours(1), header), Err(Decline::NotNeeded), "{header:?}");
    }
    assert_eq!(pair.offered(ours(1), first), Ok(()));
    let replicated = BlockHeader { is_replicated: true, ..block(1) };
    assert_eq!(pair.offered(ours(2), replicated), Err(Decline::NotNeeded), "unlike the first one");
    assert_eq!(pair.offered(ours(2), block(1)), Ok(()));
}

/// When a round ends, unfinished fetches are dropped.
#[test]
fn unfinished_fetch_is_dropped() {
    let mut pair = Pair::new();
    pair.admit_one(0, 2, Some(plan(1, 10, &["n1:1"])));
    assert_eq!(pair.offered(ours(1), header(checkpoint(1, 10), 0, 0)), Ok(()));
    assert_ne!(pair.nodes[0].needed(), 0);
    pair.nodes[0].memory.handle_round_over(pair.now);
    assert_eq!(pair.nodes[0].needed(), 0);
}

/// A copy whose content has changed is not fetched. The coordinator learns that the content is wrong.
#[test]
fn changed_copy_is_not_fetched() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.nodes[0] = Bench::new(0, 100 * GB);
    let copies = pair.nodes[1].contents.values_mut();
    copies.filter(|copy| **copy == content(0, 1, 10)).for_each(|copy| *copy += 1_000);
    pair.nodes[1].memory.handle_round_over(pair.now);
    pair.admit(2, [Some(plan(1, 10, &["n1:1"])), Some(plan(1, 10, &[]))]);
    assert_eq!(pair.nodes[0].memory.unusable().unwrap().why, UnusableReason::Sum);
}

/// A worker reads a part until it has loaded. The part stays until then, even if memory is turned off.
#[test]
fn worker_reads_until_it_has_loaded() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.admit(2, [Some(plan(1, 10, &[])), Some(plan(1, 10, &[]))]);
    pair.load(0, 0, 2);
    pair.nodes[0].memory.handle_off(pair.now, round(2), "no room");
    pair.run();
    assert_eq!(pair.nodes[0].contents.values().collect::<Vec<_>>(), [&content(0, 0, 10)]);
    assert_eq!(pair.ask(0, 0, 2, Ask::Loaded), Some(Answer::Noted));
    assert!(pair.nodes[0].contents.is_empty());
}
