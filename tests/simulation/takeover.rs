//! Jobs with voters, in which the real machines elect, take over and recover, each in a world whose seed determines its
//! faults.

use std::ops::Range;

use ragent_tests::voters::{Bug, Totals, World};

use crate::{first_broken_of, given};

/// The number of seeds of a default run.
const SEEDS: u64 = 300;

/// The seed below which a planted bug must be found.
const SEEDS_TO_FIND_A_BUG: u64 = 5_000;

fn run(seed: u64, bug: Bug) -> Result<Totals, String> {
    let mut world = World::new(seed, bug);
    while world.step()? {}
    Ok(world.totals())
}

fn first_broken(seeds: Range<u64>, bug: Bug) -> Option<(u64, String)> {
    first_broken_of(seeds, |seed| run(seed, bug).err())
}

/// No fault leads to two leaders, or to workers of two rounds at the same time; after the last fault the job runs again,
/// or has ended with one outcome.
#[test]
fn takeover_rules_hold_in_every_world() {
    let seeds = match given("SEED") {
        Some(seed) => seed..seed.saturating_add(1),
        None => 0..given("TAKEOVER_SEEDS").unwrap_or(SEEDS),
    };
    if let Some((seed, why)) = first_broken(seeds, Bug::None) {
        panic!("{why}\nSEED={seed} cargo test -p ragent-tests --test simulation takeover");
    }
}

/// The worlds contain takeovers, rounds, and jobs that end.
#[test]
fn takeover_worlds_are_eventful() {
    let seeds = 0..SEEDS / 2;
    let count = seeds.end;
    let totals = seeds.map(|seed| run(seed, Bug::None).expect("no rule is broken"));
    let sum = |sum: Totals, totals: Totals| Totals {
        elections: sum.elections + totals.elections,
        rounds: sum.rounds + totals.rounds,
        closed: sum.closed + totals.closed,
    };
    let Totals { elections, rounds, closed } = totals.fold(Totals::default(), sum);
    // Well below the usual numbers.
    assert!(elections > 2 * count, "{elections} elections in {count} worlds");
    assert!(rounds > 2 * count, "{rounds} rounds in {count} worlds");
    assert!(closed > count / 40, "{closed} jobs of {count} have ended");
}

/// The same seed gives the same world.
#[test]
fn takeover_worlds_are_repeatable() {
    for seed in 0..10 {
        let life = |seed| {
            let mut world = World::new(seed, Bug::None);
            while world.step().expect("no rule is broken") {}
            (world.elapsed(), world.totals())
        };
        assert_eq!(life(seed), life(seed));
    }
}

/// Each planted bug is found by one of the rules that it breaks.
#[test]
fn every_takeover_bug_is_noticed() {
    // The rules that a bug breaks, and the first seed that is tried: most seeds do not trigger a rare bug.
    let bugs = [
        (Bug::UnchainedWorkers, "b", 0),
        (Bug::NoWaitForOthers, "b", 0),
        (Bug::EarlyEffects, "d", 0),
        (Bug::ObituaryOfPlace, "ab", 1_800),
        (Bug::Overtime, "bd", 0),
        (Bug::IgnoredReplica, "dg", 0),
        (Bug::NoKeeper, "b", 0),
        (Bug::NoTimeouts, "g", 0),
        (Bug::EagerDials, "g", 0),
    ];
    let noticed: Vec<_> = bugs
        .into_iter()
        .map(|(bug, rules, first)| (bug, rules, first_broken(first..SEEDS_TO_FIND_A_BUG, bug)))
        .collect();
    let is_as_expected = |(_, rules, noticed): &(_, &str, Option<(u64, String)>)| {
        let rule = noticed.as_ref().and_then(|(_, why)| why.strip_prefix("rule ")?.chars().next());
        rule.is_some_and(|rule| rules.contains(rule))
    };
    let missed: Vec<_> = noticed.iter().filter(|noticed| !is_as_expected(noticed)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
