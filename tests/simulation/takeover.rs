//! Jobs with voters, in which the real machines elect, take over and recover, each in a world whose seed determines its
//! faults.

use std::ops::Range;

use ragent_tests::voters::{Bug, Totals, World};

use crate::{first_broken_of, given};

/// The number of seeds of a default run.
const SEEDS: u64 = 300;

/// The seed below which a planted bug must be found.
const SEEDS_TO_FIND_A_BUG: u64 = 31_300;

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

/// Fails if a rule is broken, with the story of the world and the command that replays it.
fn assert_rules_hold(create: Create, test: &str) {
    if let Some((seed, why)) = first_broken(seeds(), create, Bug::None) {
        let mut world = create(seed, Bug::None);
        while world.step() == Ok(true) {}
        let story = world.story();
        panic!("{story}\n{why}\nSEED={seed} cargo test -p ragent-tests --test simulation {test}");
    }
}

/// Fails unless each bug is noticed by one of its rules. A bug comes with these rules, and with the first seed that is
/// tried: most seeds do not trigger a rare bug.
#[expect(clippy::print_stdout, reason = "shows the first seeds with `--nocapture`")]
fn assert_noticed(create: Create, bugs: &[(Bug, &str, u64)]) {
    let is_expected = |rules: &str, noticed: &Option<(u64, String)>| {
        let rule = noticed.as_ref().and_then(|(_, why)| why.strip_prefix("rule ")?.chars().next());
        rule.is_some_and(|rule| rules.contains(rule))
    };
    let noticed = bugs.iter().map(|(bug, rules, first)| {
        let found = first_broken(*first..SEEDS_TO_FIND_A_BUG, create, *bug);
        println!("{bug:?}: {found:?}");
        (bug, rules, found)
    });
    let missed: Vec<_> =
        noticed.filter(|(_, rules, noticed)| !is_expected(rules, noticed)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

/// No fault leads to two leaders, or to workers of two rounds at the same time; after the last fault the job runs again,
/// or has ended with one outcome.
#[test]
fn takeover_rules_hold_in_every_world() {
    assert_rules_hold(World::new, "takeover");
}

/// The same, if faults are aimed at changes of the voters and at their state files.
#[test]
fn rules_hold_under_faults_aimed_at_voters() {
    assert_rules_hold(World::with_aimed_faults, "aimed");
}

/// No two groups train at the same time, and a process that returns is registered soon, if hosts lose their state at any moment,
/// leave, and are started late.
#[test]
fn one_job_rules_hold_whatever_hosts_lose() {
    assert_rules_hold(World::with_lost_states, "one_job");
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
fn every_takeover_bug_is_noticed() {
    let bugs: &[(Bug, &str, u64)] = &[
        (Bug::UnchainedWorkers, "bf", 0),
        (Bug::NoWaitForOthers, "b", 0),
        (Bug::EarlyEffects, "d", 0),
        (Bug::ObituaryOfPlace, "ab", 2_880),
        (Bug::Overtime, "bdf", 0),
        (Bug::IgnoredReplica, "dg", 0),
        (Bug::NoKeeper, "b", 0),
        (Bug::NoTimeouts, "gi", 0),
        (Bug::EagerDials, "g", 0),
        (Bug::NoTimeoutsOfVoters, "g", 0),
        (Bug::LeaseFromReceipt, "e", 0),
        (Bug::ShortVoterLease, "af", 0),
        (Bug::NoTimeForKeepers, "f", 0),
        (Bug::VoteUnderLease, "a", 0),
        (Bug::LeftFromReceipt, "f", 0),
        (Bug::UnreportedWorkers, "f", 0),
        (Bug::EarlyReady, "b", 0),
        (Bug::FreshVotesCount, "af", 0),
        (Bug::SharedTerms, "c", 0),
        (Bug::ClockStopsInSuspend, "ae", 0),
    ];
    assert_noticed(World::new, bugs);
}

/// Each planted bug in the changes of the voters is found by one of the rules that it breaks.
#[test]
fn every_bug_of_voter_changes_is_noticed() {
    let bugs: &[(Bug, &str, u64)] = &[
        (Bug::NoMute, "ad", 850),
        (Bug::OnlyNewList, "ad", 0),
        (Bug::UnitedLists, "ad", 0),
        (Bug::NewListAtOnce, "adg", 0),
        (Bug::SeatsByAddress, "ad", 0),
        (Bug::CountedNewcomer, "ad", 0),
        (Bug::IgnorantCandidate, "d", 1_750),
        (Bug::OldList, "adf", 0),
        (Bug::UninformedHosts, "abdi", 0),
        (Bug::SilentVoter, "di", 0),
    ];
    assert_noticed(World::with_aimed_faults, bugs);
}

/// Each planted bug in the birth of jobs, and in the return of hosts, is found by one of the rules that it breaks.
#[test]
fn every_bug_of_births_is_noticed() {
    let bugs: &[(Bug, &str, u64)] = &[
        (Bug::YoungNodes, "bjl", 31_200),
        (Bug::UnansweredCandidate, "bj", 21_400),
        (Bug::StrangersDropped, "bjl", 0),
        (Bug::UninformedHosts, "bjl", 300),
        (Bug::UnshownEnds, "m", 0),
        (Bug::YieldIsAnEnd, "n", 0),
        (Bug::NoYield, "k", 1_160),
        (Bug::OnlyLeadersShow, "bj", 0),
    ];
    assert_noticed(World::with_lost_states, bugs);
}
