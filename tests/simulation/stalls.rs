//! Tests jobs whose workers make long pauses.

use ragent_tests::world::{Bug, StallTotals, World};

use crate::{assert_noticed, assert_rules_hold, run};

/// The number of seeds of a default run.
const SEEDS: u64 = 100;

/// Stalls begin and end with the pauses of the workers, and no innocent rank is named.
#[test]
fn stall_rules_hold_in_every_world() {
    assert_rules_hold(World::with_stalls, "STALL_SEEDS", SEEDS, "stall_rules");
}

/// The worlds contain stalls that end with a step, and ranks that are named.
#[test]
fn stall_worlds_are_eventful() {
    let sum = |sum: StallTotals, seed: u64| {
        let mut world = World::with_stalls(seed, Bug::None);
        run(&mut world).expect("no rule is broken");
        let totals = world.stall_totals();
        StallTotals {
            began: sum.began + totals.began,
            ended: sum.ended + totals.ended,
            named: sum.named + totals.named,
        }
    };
    let totals = (0..SEEDS / 4).fold(StallTotals::default(), sum);
    // Well below the usual numbers.
    assert!(totals.began > 10 && totals.ended > 5 && totals.named > 5, "{totals:?}");
}

/// The same seed gives the same world.
#[test]
fn stall_worlds_are_repeatable() {
    for seed in 0..4 {
        let life = || {
            let mut world = World::with_stalls(seed, Bug::None);
            run(&mut world).expect("no rule is broken");
            (world.elapsed(), world.totals(), world.stall_totals())
        };
        assert_eq!(life(), life());
    }
}

/// Each planted bug is found by the rule that it breaks.
#[test]
#[ignore = "`make test-all` runs it: some bugs need thousands of worlds"]
fn every_bug_of_stalls_is_noticed() {
    let bugs: &[(Bug, &str)] = &[
        (Bug::HiddenSteps, "ae ag"),
        (Bug::ForgottenPauses, "ae"),
        (Bug::EternalWait, "af"),
        (Bug::LostStallEnds, "12"),
        (Bug::LostLook, "ah"),
        (Bug::OldDigest, "ai"),
    ];
    assert_noticed(World::with_stalls, bugs);
}
