//! Tests jobs whose coordinator is chosen through etcd. Each runs in a world whose seed determines its faults.

use ragent_tests::world::{Bug, World};

use crate::{assert_noticed, assert_rules_hold, run};

/// The number of seeds of a default run.
const SEEDS: u64 = 1_000;

/// No fault breaks a rule.
#[test]
fn etcd_rules_hold_in_every_world() {
    assert_rules_hold(World::with_etcd, "ETCD_SEEDS", SEEDS, "etcd_rules");
}

/// The worlds contain takeovers and rounds.
#[test]
fn etcd_worlds_are_eventful() {
    let (mut elections, mut rounds) = (0, 0);
    for seed in 0..SEEDS / 10 {
        let totals = run(&mut World::with_etcd(seed, Bug::None)).expect("no rule is broken");
        elections += totals.elections;
        rounds += totals.rounds;
    }
    // Well below the usual numbers: three of each per world.
    assert!(elections > SEEDS / 5, "{elections} elections");
    assert!(rounds > SEEDS / 5, "{rounds} rounds");
}

/// Each planted bug is found by one of the rules that it breaks.
#[test]
#[ignore = "`make test-all` runs it: some bugs need thousands of worlds"]
fn every_bug_of_etcd_is_noticed() {
    let bugs: &[(Bug, &str)] = &[
        (Bug::SilenceBelowLease, "a f"),
        (Bug::SilenceBelowKill, "f"),
        (Bug::StateDropped, "c d"),
        (Bug::CreatorAtOnce, "a f"),
        (Bug::RecordNotWritten, "o"),
        (Bug::OutcomeIgnored, "b"),
        (Bug::GarbageKept, "g o"),
    ];
    assert_noticed(World::with_etcd, bugs);
}
