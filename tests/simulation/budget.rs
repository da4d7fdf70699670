//! Tests jobs whose workers fail, train for about ten minutes, and fail again.

use ragent_tests::world::{Bug, NoticeTotals, World};

use crate::{assert_noticed, assert_rules_hold, run};

/// The number of seeds of a default run. A world simulates about ten minutes.
const SEEDS: u64 = 40;

/// Only progress forgives failures, and the job ends when its budget is spent. A failure of a node in the place of
/// a failed one counts.
#[test]
fn budget_rules_hold_in_every_world() {
    assert_rules_hold(World::with_budget, "BUDGET_SEEDS", SEEDS, "budget_rules");
}

/// The worlds contain failures that are forgiven, and jobs that end.
#[test]
fn budget_worlds_are_eventful() {
    let sum = |sum: NoticeTotals, seed: u64| {
        let mut world = World::with_budget(seed, Bug::None);
        run(&mut world).expect("no rule is broken");
        let totals = world.notice_totals();
        NoticeTotals {
            forgiven: sum.forgiven + totals.forgiven,
            spent: sum.spent + totals.spent,
            ..sum
        }
    };
    let totals = (0..SEEDS / 2).fold(NoticeTotals::default(), sum);
    // Well below the usual numbers.
    assert!(totals.forgiven > 2 && totals.spent > 5, "{totals:?}");
}

/// Each planted bug is found by the rule that it breaks.
#[test]
#[ignore = "`make test-all` runs it: some bugs need thousands of worlds"]
fn every_bug_of_the_budget_is_noticed() {
    let bugs: &[(Bug, &str)] = &[(Bug::FalseProgress, "ao"), (Bug::FailedLeaves, "ap")];
    assert_noticed(World::with_budget, bugs);
}
