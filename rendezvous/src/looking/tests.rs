//! Tests when the parts of a look begin and end, and who asks NCCL.

use super::*;
use crate::ids::RoundId;

#[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
fn some_instant() -> Instant {
    Instant::now()
}

/// Records an answer of the node with this rank to a part of look 7.
fn answer(looking: &mut Looking, rank: u32, part: LookPart) -> LookStep {
    let (round, workers, groups, facts) = (RoundId::default(), Vec::new(), Vec::new(), Vec::new());
    let digest = Digest { round, look: 7, part, workers, groups, facts };
    looking.record(&NodeId::new(format!("n{rank}")), GroupRank(rank), digest)
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
