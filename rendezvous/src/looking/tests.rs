//! Tests when the parts of a look begin and end, and who asks NCCL.

use super::*;
use crate::ids::RoundId;

#[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
fn some_instant() -> Instant {
    Instant::now()
}

/// Records an answer of the node with this rank to a part of look 7. The node has asked NCCL, if it should.
fn answer(looking: &mut Looking, rank: u32, part: LookPart) -> LookStep {
    let has_asked_nccl = looking.look().ras_rank == GroupRank(rank);
    record(looking, rank, part, has_asked_nccl)
}

fn record(looking: &mut Looking, rank: u32, part: LookPart, has_asked_nccl: bool) -> LookStep {
    let digest = Digest { has_asked_nccl, ..Digest::new(RoundId::default(), 7, part) };
    recorded(looking, rank, digest)
}

fn recorded(looking: &mut Looking, rank: u32, digest: Digest) -> LookStep {
    let now = looking.since();
    looking.record(now, &NodeId::new(format!("n{rank}")), GroupRank(rank), digest)
}

const EXPLAINED: LookStep = LookStep { is_changed: false, is_explained: true, is_over: false };

/// A part is explained when all nodes have answered it. The second part begins after ten seconds in any case, and is the
/// last one.
#[test]
fn parts_end_with_the_last_answer() {
    let begin = some_instant();
    let mut looking = Looking::new(begin, 7, 2);
    assert_eq!(answer(&mut looking, 0, LookPart::First), LookStep::default());
    assert_eq!(answer(&mut looking, 1, LookPart::Second), LookStep::default(), "it is not due");
    assert_eq!(answer(&mut looking, 1, LookPart::First), EXPLAINED);
    assert_eq!(looking.deadline(), begin + PART);
    assert_eq!(looking.handle_timeout(begin + PART / 2), LookStep::default());
    let changed = LookStep { is_changed: true, ..LookStep::default() };
    assert_eq!(looking.handle_timeout(begin + PART), changed);
    let second = Look { number: 7, part: LookPart::Second, ras_rank: GroupRank(0) };
    assert_eq!(looking.look(), second);
    assert_eq!(answer(&mut looking, 0, LookPart::Second), LookStep::default());
    assert_eq!(answer(&mut looking, 0, LookPart::Second), LookStep::default(), "twice");
    assert_eq!(answer(&mut looking, 1, LookPart::Second), LookStep { is_over: true, ..EXPLAINED });
    assert_eq!(looking.digests().len(), 4);
}

/// A node that does not answer holds a part up for ten seconds.
#[test]
fn silent_nodes_are_not_awaited() {
    let begin = some_instant();
    let mut looking = Looking::new(begin, 7, 3);
    answer(&mut looking, 0, LookPart::First);
    let step = looking.handle_timeout(begin + PART);
    assert_eq!(step, LookStep { is_changed: true, ..EXPLAINED });
    answer(&mut looking, 0, LookPart::Second);
    assert_eq!(looking.deadline(), begin + 2 * PART);
    let step = looking.handle_timeout(begin + 2 * PART);
    assert_eq!(step, LookStep { is_over: true, ..EXPLAINED });
}

/// If the node that asks NCCL does not answer, the next one is asked, three at most. Late answers still count.
#[test]
fn another_node_asks_nccl() {
    let begin = some_instant();
    let mut looking = Looking::new(begin, 7, 9);
    for (seconds, rank) in [(10, 1), (20, 2)] {
        assert!(!looking.asks_nccl(GroupRank(rank)));
        let step = looking.handle_timeout(begin + Duration::from_secs(seconds));
        assert!(step.is_changed && !step.is_over, "{step:?}");
        assert_eq!(looking.look().ras_rank, GroupRank(rank));
    }
    assert!(looking.asks_nccl(GroupRank(0)) && !looking.asks_nccl(GroupRank(3)));
    answer(&mut looking, 0, LookPart::Second);
    assert_eq!(looking.deadline(), begin + Duration::from_secs(30));
    let step = looking.handle_timeout(begin + Duration::from_secs(30));
    assert!(step.is_over && step.is_explained && !step.is_changed, "{step:?}");
    let mut small = Looking::new(begin, 7, 1);
    assert!(small.handle_timeout(begin + PART).is_changed, "the second part");
    assert_eq!(small.look().ras_rank, GroupRank(0));
    assert!(small.handle_timeout(begin + 2 * PART).is_over);
}

/// If NCCL does not answer the node that asks, the next one is asked at once, three at most. Its own view counts, and that it is
/// repeated changes nothing.
#[test]
fn silent_nccl_is_asked_elsewhere() {
    let begin = some_instant();
    let mut looking = Looking::new(begin, 7, 9);
    let silent =
        Digest { is_nccl_silent: true, ..Digest::new(RoundId::default(), 7, LookPart::First) };
    let changed = LookStep { is_changed: true, ..LookStep::default() };
    for rank in 0..2 {
        assert_eq!(recorded(&mut looking, rank, silent.clone()), changed);
        assert_eq!(looking.look().ras_rank, GroupRank(rank + 1));
        assert_eq!(recorded(&mut looking, rank, silent.clone()), LookStep::default(), "repeated");
    }
    assert!(looking.awaits_first_of_nccl());
    assert_eq!(recorded(&mut looking, 2, silent.clone()), LookStep::default());
    assert_eq!((looking.look().ras_rank, looking.awaits_first_of_nccl()), (GroupRank(2), false));
    assert_eq!(looking.digests().len(), 3);
    // The node that has answered in the first part is asked in the second one.
    let mut looking = Looking::new(begin, 7, 2);
    recorded(&mut looking, 0, silent);
    assert_eq!(answer(&mut looking, 1, LookPart::First), EXPLAINED);
    looking.handle_timeout(begin + PART);
    record(&mut looking, 0, LookPart::Second, false);
    assert_eq!(answer(&mut looking, 1, LookPart::Second), LookStep { is_over: true, ..EXPLAINED });
}

/// The answer of NCCL to each part is awaited, although the node that asks has sent what it knows itself. In the second
/// part, another node is asked if that takes too long.
#[test]
fn nccl_is_awaited_in_both_parts() {
    let begin = some_instant();
    let mut looking = Looking::new(begin, 7, 2);
    for part in [LookPart::First, LookPart::Second] {
        let is_over = part == LookPart::Second;
        record(&mut looking, 0, part, false);
        assert_eq!(record(&mut looking, 1, part, false), EXPLAINED);
        assert_eq!(record(&mut looking, 0, part, true), LookStep { is_over, ..EXPLAINED });
        assert_eq!(looking.handle_timeout(begin + PART).is_changed, !is_over);
    }
    let mut looking = Looking::new(begin, 7, 2);
    looking.handle_timeout(begin + PART);
    assert_eq!(looking.look().ras_rank, GroupRank(1), "the first one was silent");
    record(&mut looking, 0, LookPart::Second, true);
    assert_eq!(record(&mut looking, 1, LookPart::Second, false), EXPLAINED);
    assert_eq!(looking.deadline(), begin + 2 * PART);
    assert!(looking.handle_timeout(begin + 2 * PART).is_over);
}
