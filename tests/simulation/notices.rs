//! Tests jobs whose workers train, save and fail, and which receive notices.

use ragent_tests::world::{Bug, NoticeTotals, World};

use crate::{assert_noticed, assert_rules_hold, run};

/// The number of seeds of a default run.
const SEEDS: u64 = 400;

/// A job is saved only if all ranks have saved. No node is stopped before its time is over, and no round lasts longer.
#[test]
fn notice_rules_hold_in_every_world() {
    assert_rules_hold(World::with_notices, "NOTICE_SEEDS", SEEDS, "notice_rules");
}

/// The worlds contain phases that are complete, others whose time is over, jobs that are saved, and jobs without
/// progress.
#[test]
fn notice_worlds_are_eventful() {
    let sum = |sum: NoticeTotals, seed: u64| {
        let mut world = World::with_notices(seed, Bug::None);
        run(&mut world).expect("no rule is broken");
        let totals = world.notice_totals();
        NoticeTotals {
            complete: sum.complete + totals.complete,
            incomplete: sum.incomplete + totals.incomplete,
            saved: sum.saved + totals.saved,
            stuck: sum.stuck + totals.stuck,
            ..sum
        }
    };
    let totals = (0..SEEDS / 2).fold(NoticeTotals::default(), sum);
    // Well below the usual numbers.
    assert!(totals.complete > 40 && totals.incomplete > 20, "{totals:?}");
    assert!(totals.saved > 20 && totals.stuck > 2, "{totals:?}");
}

/// The same seed gives the same world.
#[test]
fn notice_worlds_are_repeatable() {
    for seed in 0..20 {
        let life = || {
            let mut world = World::with_notices(seed, Bug::None);
            run(&mut world).expect("no rule is broken");
            (world.elapsed(), world.totals(), world.notice_totals())
        };
        assert_eq!(life(), life());
    }
}

/// Each planted bug is found by the rule that it breaks.
#[test]
#[ignore = "`make test-all` runs it: some bugs need thousands of worlds"]
fn every_bug_of_notices_is_noticed() {
    let bugs: &[(Bug, &str)] = &[
        (Bug::LowestStep, "q"),
        (Bug::OldAnswer, "q"),
        (Bug::EarlyLeaver, "u"),
        (Bug::NewNumber, "t v"),
        (Bug::ForgottenNotice, "r"),
        (Bug::ExitIsSuccess, "t"),
        (Bug::FreeRoundsCount, "s"),
        (Bug::UnnoticedWork, "q"),
        (Bug::EndlessPhase, "p"),
    ];
    assert_noticed(World::with_notices, bugs);
}
