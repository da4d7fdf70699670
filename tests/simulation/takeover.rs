//! Jobs with voters, in which the real machines elect, take over and recover, each in a world whose seed determines its
//! faults.

use std::ops::Range;

use ragent_tests::voters::{Bug, Totals, World};

use crate::{first_broken_of, given};

/// The number of seeds of a default run.
const SEEDS: u64 = 300;

/// The seed below which a planted bug must be found.
const SEEDS_TO_FIND_A_BUG: u64 = 5_000;

/// Creates the world of a seed.
type Create = fn(u64, Bug) -> World;

fn run(mut world: World) -> Result<Totals, String> {
    while world.step()? {}
    Ok(world.totals())
}

fn first_broken(seeds: Range<u64>, create: Create, bug: Bug) -> Option<(u64, String)> {
    first_broken_of(seeds, |seed| run(create(seed, bug)).err())
}

/// The seeds of a test that no rule is broken.
fn seeds() -> Range<u64> {
    match given("SEED") {
        Some(seed) => seed..seed.saturating_add(1),
        None => 0..given("TAKEOVER_SEEDS").unwrap_or(SEEDS),
    }
}

/// Fails unless each bug is noticed by one of its rules. A bug comes with these rules, and with the first seed that is
/// tried: most seeds do not trigger a rare bug.
fn assert_noticed(create: Create, bugs: &[(Bug, &str, u64)]) {
    let is_expected = |rules: &str, noticed: &Option<(u64, String)>| {
        let rule = noticed.as_ref().and_then(|(_, why)| why.strip_prefix("rule ")?.chars().next());
        rule.is_some_and(|rule| rules.contains(rule))
    };
    let noticed = bugs.iter().map(|(bug, rules, first)| {
        (bug, rules, first_broken(*first..SEEDS_TO_FIND_A_BUG, create, *bug))
    });
    let missed: Vec<_> =
        noticed.filter(|(_, rules, noticed)| !is_expected(rules, noticed)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

/// No fault leads to two leaders, or to workers of two rounds at the same time; after the last fault the job runs again,
/// or has ended with one outcome.
#[test]
fn takeover_rules_hold_in_every_world() {
    if let Some((seed, why)) = first_broken(seeds(), World::new, Bug::None) {
        panic!("{why}\nSEED={seed} cargo test -p ragent-tests --test simulation takeover");
    }
}

/// The same, if faults are aimed at changes of the voters and at their state files.
#[test]
#[ignore = "a host that loses its state begins a second job"]
fn rules_hold_under_faults_aimed_at_voters() {
    if let Some((seed, why)) = first_broken(seeds(), World::with_aimed_faults, Bug::None) {
        panic!("{why}\nSEED={seed} cargo test -p ragent-tests --test simulation aimed");
    }
}

/// The worlds contain takeovers, rounds, and jobs that end.
#[test]
fn takeover_worlds_are_eventful() {
    let seeds = 0..SEEDS / 2;
    let count = seeds.end;
    let totals = seeds.map(|seed| run(World::new(seed, Bug::None)).expect("no rule is broken"));
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
#[ignore = "a host that loses its state begins a second job"]
fn every_takeover_bug_is_noticed() {
    let bugs: &[(Bug, &str, u64)] = &[
        (Bug::UnchainedWorkers, "b", 0),
        (Bug::NoWaitForOthers, "b", 0),
        (Bug::EarlyEffects, "d", 0),
        (Bug::ObituaryOfPlace, "ab", 2_065),
        (Bug::Overtime, "bd", 0),
        (Bug::IgnoredReplica, "dg", 0),
        (Bug::NoKeeper, "b", 0),
        (Bug::NoTimeouts, "gi", 0),
        (Bug::EagerDials, "g", 0),
    ];
    assert_noticed(World::new, bugs);
}

/// Each planted bug in the changes of the voters is found by one of the rules that it breaks.
#[test]
#[ignore = "a host that loses its state begins a second job"]
fn every_bug_of_voter_changes_is_noticed() {
    let bugs: &[(Bug, &str, u64)] = &[
        (Bug::OnlyNewList, "ad", 0),
        (Bug::UnitedLists, "ad", 0),
        (Bug::NewListAtOnce, "adg", 0),
        (Bug::SeatsByAddress, "ad", 0),
        (Bug::CountedNewcomer, "ad", 0),
        (Bug::UnansweredCandidate, "abd", 0),
        (Bug::IgnorantCandidate, "d", 0),
        (Bug::OldList, "ad", 0),
        (Bug::UninformedHosts, "abd", 0),
        (Bug::EarlyRound, "abd", 0),
        (Bug::SilentVoter, "di", 0),
    ];
    assert_noticed(World::with_aimed_faults, bugs);
}

/// Prints how often each rule is broken, and by which seeds.
#[test]
#[ignore = "for inspection"]
fn census() {
    let seeds = 0..given("TAKEOVER_SEEDS").unwrap_or(SEEDS);
    let found = std::sync::Mutex::new(std::collections::BTreeMap::<String, Vec<u64>>::new());
    let totals = std::sync::Mutex::new((0, 0, 0));
    first_broken_of(seeds, |seed| {
        let mut world = World::with_lost_states(seed, Bug::None);
        loop {
            match world.step() {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => {
                    let letter: String = why.chars().take(6).collect();
                    if std::env::var("WHY").is_ok() {
                        println!("{seed} {why}");
                    }
                    found.lock().unwrap().entry(letter).or_default().push(seed);
                    break;
                }
            }
        }
        let t = world.totals();
        let mut sum = totals.lock().unwrap();
        *sum = (sum.0 + t.elections, sum.1 + t.rounds, sum.2 + t.closed);
        None
    });
    for (rule, mut seeds) in found.into_inner().unwrap() {
        seeds.sort();
        println!("{rule}: {} {:?}", seeds.len(), &seeds[..seeds.len().min(12)]);
    }
    println!("{:?}", totals.into_inner().unwrap());
}

/// Prints the end of one world.
#[test]
#[ignore = "for inspection"]
fn one() {
    let seed = given("SEED").unwrap_or(0);
    println!("{:?}", run(World::with_lost_states(seed, Bug::None)));
}
