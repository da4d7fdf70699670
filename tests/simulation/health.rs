//! Tests jobs with machines that are unhealthy for a while.

use ragent_tests::world::{Bug, HealthTotals, World};

use crate::{assert_noticed, assert_rules_hold, run};

/// The number of seeds of a default run.
const SEEDS: u64 = 300;

/// Unhealthy nodes get no place, as far as the job can do without them.
#[test]
fn health_rules_hold_in_every_world() {
    assert_rules_hold(World::with_health, "HEALTH_SEEDS", SEEDS, "health_rules");
}

/// The worlds contain nodes that are set aside, others that are needed, and failures that are not charged.
#[test]
fn health_worlds_are_eventful() {
    let sum = |sum: HealthTotals, seed: u64| {
        let mut world = World::with_health(seed, Bug::None);
        run(&mut world).expect("no rule is broken");
        let totals = world.health_totals();
        HealthTotals {
            set_aside: sum.set_aside + totals.set_aside,
            placed: sum.placed + totals.placed,
            free: sum.free + totals.free,
        }
    };
    let totals = (0..SEEDS / 4).fold(HealthTotals::default(), sum);
    // Well below the usual numbers.
    assert!(totals.set_aside > 10 && totals.placed > 10 && totals.free > 2, "{totals:?}");
}

/// The same seed gives the same world.
#[test]
fn health_worlds_are_repeatable() {
    for seed in 0..4 {
        let life = || {
            let mut world = World::with_health(seed, Bug::None);
            run(&mut world).expect("no rule is broken");
            (world.elapsed(), world.totals(), world.health_totals())
        };
        assert_eq!(life(), life());
    }
}

/// Each planted bug is found by the rule that it breaks.
#[test]
#[ignore = "`make test-all` runs it: some bugs need thousands of worlds"]
fn every_bug_of_health_is_noticed() {
    let bugs: &[(Bug, &str)] = &[
        (Bug::ForgottenNeeds, "aj am"),
        (Bug::NewKinds, "ak"),
        (Bug::MilderNeeds, "aj"),
        (Bug::WorseNeeds, "al"),
        (Bug::SuspicionsLost, "an"),
        (Bug::MostSuspectedFirst, "an"),
    ];
    assert_noticed(World::with_health, bugs);
}
