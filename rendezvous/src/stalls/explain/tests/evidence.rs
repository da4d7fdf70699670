//! Tests what counts as evidence, and that no digest does harm.

use super::fixture::*;
use crate::{
    ids::{GlobalRank, Round, RoundId, Term},
    jitter::Jitter,
    message::{
        Activity, Digest, FACTS_MAX, LAUNCHES_MAX, LINE_MAX, Launched, LookPart, WorkerLook,
    },
    snapshot::{STALL_FACTS_MAX, STALL_TEXT_MAX},
    stall::{explain_stall, restrict},
};

/// If collectives go on between the parts of a look, no rank is blamed, nor by one part alone.
#[test]
fn slow_jobs_are_not_blamed() {
    let own = hosts(4, 1);
    let part = |part, number| {
        let lists = vec![
            launched("all_reduce", number, &[0, 1, 3]),
            finished("all_reduce", number - 1, &[2]),
        ];
        Digest { part, ..digest(vec![records("g", 4, lists)], Vec::new()) }
    };
    let moved = [part(LookPart::First, 11), part(LookPart::Second, 12)];
    let explanation = explain_stall(&moved, &own);
    let text = "the job does not hang: collectives went on within 10 s, such as all_reduce 12 of the group of 4 ranks";
    assert_eq!((explanation.text.as_str(), explanation.rank), (text, None));
    let explanation = explain_stall(&[part(LookPart::First, 11)], &own);
    let text = "rank 2 on n2 has not launched all_reduce 11 of the group of 4 ranks, which 3 ranks have launched (records \
                of torch)";
    assert_eq!((explanation.text.as_str(), explanation.rank), (text, None));
}

/// Digests of an earlier round or look do not count.
#[test]
fn old_digests_do_not_count() {
    let own = hosts(2, 1);
    let lists = vec![launched("all_reduce", 2, &[0]), finished("all_reduce", 1, &[1])];
    let digests = twice(vec![digest(vec![records("g", 2, lists)], Vec::new())]);
    assert_eq!(explain_stall(&digests, &own).rank, Some(GlobalRank(1)));
    for (round, look) in [(RoundId { term: Term(1), round: Round(2) }, 4), (ROUND, 3)] {
        let digests: Vec<_> =
            digests.iter().cloned().map(|d| Digest { round, look, ..d }).collect();
        let text = "nothing is known of the workers, except that they run";
        assert_eq!(explain_stall(&digests, &own).text, text);
    }
}

/// A rank is blamed only if both parts of the look show its launch, and that of a rank which waits for it. If its own launch changed,
/// the text does not call the look unchanged.
#[test]
fn blame_needs_both_parts() {
    let own = hosts(4, 1);
    let (late, waits) = (finished("all_reduce", 6, &[2]), launched("all_reduce", 7, &[0, 1, 3]));
    let part = |part, lists: &[&Launched]| {
        let lists = lists.iter().map(|list| (*list).clone()).collect();
        Digest { part, ..digest(vec![records("g", 4, lists)], Vec::new()) }
    };
    for (first, blamed, is_unchanged) in [
        (vec![&late, &waits], Some(GlobalRank(2)), true),
        (vec![&late], None, true),
        (vec![&waits], None, false),
        (vec![], None, false),
    ] {
        let digests = [part(LookPart::First, &first), part(LookPart::Second, &[&late, &waits])];
        let explanation = explain_stall(&digests, &own);
        assert_eq!(explanation.rank, blamed, "{first:?}");
        assert_eq!(explanation.text.contains("unchanged"), is_unchanged, "{}", explanation.text);
    }
}

/// A stopped rank is blamed if it was stopped, and in the collective, in both parts.
#[test]
fn blame_of_a_stopped_rank_needs_both_parts() {
    let own = hosts(3, 1);
    let part = |part, is_stopped: bool, ranks: &[u32]| {
        let looks = if is_stopped { vec![stopped(1)] } else { Vec::new() };
        Digest {
            part,
            ..digest(vec![records("g", 3, vec![launched("all_reduce", 7, ranks)])], looks)
        }
    };
    for (was_stopped, ranks, blamed) in [
        (true, &[0, 1, 2][..], Some(GlobalRank(1))),
        (false, &[0, 1, 2], None),
        (true, &[0, 2], None),
    ] {
        let first = part(LookPart::First, was_stopped, ranks);
        let explanation = explain_stall(&[first, part(LookPart::Second, true, &[0, 1, 2])], &own);
        assert!(explanation.text.starts_with("rank 1 on n1 is stopped"), "{}", explanation.text);
        assert_eq!(explanation.rank, blamed);
    }
}

/// The second part of a look is the newer one, even if it arrives first.
#[test]
fn second_part_is_the_newer_one() {
    let own = hosts(3, 1);
    let waits = |rank| worker(rank, Activity::Collective, "all_reduce at t.py:7");
    let part = |part, look| Digest { part, ..digest(Vec::new(), vec![waits(0), look, waits(2)]) };
    let (before, now) = (part(LookPart::First, waits(1)), part(LookPart::Second, stopped(1)));
    for digests in [[before.clone(), now.clone()], [now, before]] {
        let text = explain_stall(&digests, &own).text;
        assert!(text.ends_with("rank 1 on n1 is stopped"), "{text}");
    }
}

/// If a list of ranks is cut, others may wait elsewhere, so that no rank is blamed.
#[test]
fn cut_lists_blame_nobody() {
    let own = hosts(4, 1);
    let lists = |count| {
        let cut = Launched { count, ..launched("all_reduce", 7, &[0, 1]) };
        vec![cut, finished("all_reduce", 6, &[2]), launched("all_reduce", 7, &[3])]
    };
    let blamed =
        |count| explain(vec![digest(vec![records("g", 4, lists(count))], Vec::new())], &own).1;
    assert_eq!((blamed(2), blamed(3)), (Some(2), None));
}

/// A node cannot describe the workers of another one.
#[test]
fn digests_are_restricted_to_their_node() {
    let own = hosts(2, 2);
    let lists = vec![launched("all_reduce", 2, &[0, 2]), finished("all_reduce", 1, &[1, 3])];
    let mut digest = digest(vec![records("g", 4, lists)], vec![stopped(1), stopped(2)]);
    restrict(&mut digest, &own.nodes[1]);
    assert_eq!(digest.workers, [stopped(2)]);
    assert_eq!(digest.groups[0].launched[0].ranks, [GlobalRank(2)]);
}

/// Everything that the conversion accepts is explained, within the limits of the text.
#[test]
fn hostile_digests_are_harmless() {
    let mut random = Jitter::new(7);
    let mut draw = |limit: u64| random.bits() % limit;
    for case in 0..2_000 {
        let own = hosts(1 + draw(4) as u32, 1 + draw(4) as u32);
        let number = |n: u64| [0, 1, 2, 3, 4, u64::MAX][n as usize];
        let rank = |n: u64| GlobalRank(if n > 17 { u32::MAX } else { n as u32 });
        let mut digests = Vec::new();
        for _ in 0..draw(6) {
            let mut groups = Vec::new();
            for _ in 0..draw(6) {
                let mut launched = Vec::new();
                for _ in 0..draw(LAUNCHES_MAX as u64 + 1) {
                    let ranks: Vec<_> = (0..draw(5)).map(|_| rank(draw(19))).collect();
                    launched.push(Launched {
                        operation: ["", "send", "é é", "all_reduce [4]", " "][draw(5) as usize]
                            .to_owned(),
                        number: number(draw(6)),
                        is_finished: draw(2) == 0,
                        count: if draw(5) == 0 { u32::MAX } else { ranks.len() as u32 },
                        ranks,
                    });
                }
                let name = ["", "a", "b", "é"][draw(4) as usize];
                let size = [0, 1, 4, 16, u32::MAX][draw(5) as usize];
                groups.push(records(name, size, launched));
            }
            let looks = (0..draw(8)).map(|_| WorkerLook {
                rank: rank(draw(19)),
                activity: [
                    None,
                    Some(Activity::Collective),
                    Some(Activity::Wait),
                    Some(Activity::Other),
                ][draw(4) as usize],
                state: [None, Some('T'), Some('R')][draw(3) as usize],
                has_reached_store: [None, Some(true), Some(false)][draw(3) as usize],
                line: [None, Some("é at ".repeat(33)), Some(" at ".to_owned())][draw(3) as usize]
                    .clone(),
                waits_in: [None, Some("é".repeat(100))][draw(2) as usize].clone(),
            });
            let looks = looks.collect();
            let part = if draw(2) == 0 { LookPart::First } else { LookPart::Second };
            let facts = vec!["é".repeat(100); FACTS_MAX];
            digests.push(Digest { part, facts, ..digest(groups, looks) });
        }
        let explanation = explain_stall(&digests, &own);
        assert!(!explanation.text.is_empty(), "case {case}");
        assert!(explanation.text.len() <= STALL_TEXT_MAX, "case {case}");
        assert!(explanation.facts.len() <= STALL_FACTS_MAX, "case {case}");
        assert!(explanation.facts.iter().all(|fact| fact.len() <= LINE_MAX));
    }
}
