//! Tests jobs with one endpoint. Each runs in a world whose seed determines its faults.

use ragent_tests::world::{Bug, World};

use crate::{assert_noticed, assert_rules_hold, run};

/// The number of seeds of a default run.
const SEEDS: u64 = 2_000;

fn world(seed: u64) -> World {
    World::with_fixed_coordinator(seed, Bug::None)
}

/// No fault breaks a rule.
#[test]
fn fixed_rules_hold_in_every_world() {
    assert_rules_hold(World::with_fixed_coordinator, "SEEDS", SEEDS, "fixed_rules");
}

/// The same seed gives the same world.
#[test]
fn fixed_worlds_are_repeatable() {
    let life = |seed| {
        let mut world = world(seed);
        run(&mut world).expect("no rule is broken");
        (world.elapsed(), format!("{:?}", world.chronicle))
    };
    for seed in 0..20 {
        assert_eq!(life(seed), life(seed));
    }
}

/// The worlds contain enough of the events that the rules are about. An uneventful world would break none.
#[test]
fn fixed_worlds_are_eventful() {
    let (mut rounds, mut terms, mut charges, mut successes) = (0, 0, 0, 0);
    for seed in 0..SEEDS / 10 {
        let mut world = world(seed);
        run(&mut world).expect("no rule is broken");
        rounds += world.chronicle.rounds.len();
        let job_state = world.chronicle.job_states.last();
        terms += job_state.map_or(0, |job_state| job_state.term.0);
        charges += job_state.map_or(0, |job_state| job_state.restarts_used);
        successes += u32::from(world.has_succeeded());
    }
    // Well below the usual numbers: three rounds, a restart of the coordinator and a quarter of a
    // charge per world.
    assert!(rounds > 400, "{rounds} rounds");
    assert!(terms > 250, "{terms} terms");
    assert!(charges > 30, "{charges} charges");
    assert!(successes > 5, "{successes} jobs that succeeded");
}

/// Each planted bug is found by the rule that it breaks.
#[test]
#[ignore = "`make test-all` runs it: some bugs need thousands of worlds"]
fn every_fixed_bug_is_noticed() {
    let bugs: &[(Bug, &str)] = &[
        (Bug::DoubleRank, "1"),
        (Bug::WaitingMember, "2"),
        (Bug::Amnesia, "3"),
        (Bug::FewerThanMin, "4"),
        (Bug::NoKeeper, "5"),
        (Bug::FalseDeathNotice, "5"),
        (Bug::ForgottenCharges, "7"),
        (Bug::NoTimeouts, "8"),
        (Bug::OthersCharges, "11"),
        (Bug::LostEvents, "12"),
        (Bug::OneStore, "13"),
    ];
    assert_noticed(World::with_fixed_coordinator, bugs);
}
