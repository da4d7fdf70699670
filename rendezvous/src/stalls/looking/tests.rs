//! Tests when the parts of a look begin and end.

use super::*;
use crate::{fixture::some_instant, ids::RoundId};

/// Records an answer of a node to a part of look 7.
fn answer(looking: &mut Looking, node: u32, part: LookPart) -> LookStep {
    looking.record(&NodeId::new(format!("n{node}")), Digest::new(RoundId::default(), 7, part))
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
    let second = Look { number: 7, part: LookPart::Second };
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
