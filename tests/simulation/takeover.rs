//! Tests jobs with voters, in which the real machines elect, take over and recover. Each runs in a world whose seed determines its faults.

use ragent_tests::world::{Bug, Totals, World};

use crate::{assert_noticed, assert_rules_hold, run};

/// The number of seeds of a default run.
const SEEDS: u64 = 300;

/// The variable that sets the number of seeds.
const VARIABLE: &str = "TAKEOVER_SEEDS";

/// No fault leads to two leaders, or to workers of two rounds at the same time. After the last fault the job runs again, or has ended with
/// one outcome.
#[test]
fn takeover_rules_hold_in_every_world() {
    assert_rules_hold(World::new, VARIABLE, SEEDS, "takeover_rules");
}

/// The same, if faults are aimed at changes of the voters and at their state files.
#[test]
fn rules_hold_under_faults_aimed_at_voters() {
    assert_rules_hold(World::with_aimed_faults, VARIABLE, SEEDS, "aimed");
}

/// If hosts lose their state at any moment, leave, and are started late, no two groups train at the same time, and a process that returns
/// is registered soon.
#[test]
fn one_job_rules_hold_whatever_hosts_lose() {
    assert_rules_hold(World::with_lost_states, VARIABLE, SEEDS, "one_job");
}

/// The worlds contain takeovers, rounds, and jobs that end.
#[test]
fn takeover_worlds_are_eventful() {
    let seeds = 0..SEEDS / 2;
    let count = seeds.end;
    let totals =
        seeds.map(|seed| run(&mut World::new(seed, Bug::None)).expect("no rule is broken"));
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
#[ignore = "`make test-all` runs it: some bugs need thousands of worlds"]
fn every_takeover_bug_is_noticed() {
    let bugs: &[(Bug, &str)] = &[
        (Bug::UnchainedWorkers, "b f"),
        (Bug::NoWaitForOthers, "b"),
        (Bug::EarlyEffects, "d"),
        (Bug::DeathNoticeOfPlace, "a b"),
        (Bug::Overtime, "b d f"),
        (Bug::IgnoredReplica, "d g"),
        (Bug::NoKeeper, "b"),
        (Bug::NoTimeouts, "g i"),
        (Bug::EagerDials, "g"),
        (Bug::NoTimeoutsOfVoters, "g"),
        (Bug::LeaseFromReceipt, "e"),
        (Bug::ShortVoterLease, "a f"),
        (Bug::NoTimeForKeepers, "f"),
        (Bug::VoteUnderLease, "a"),
        (Bug::LeftFromReceipt, "f"),
        (Bug::UnreportedWorkers, "f"),
        (Bug::EarlyReady, "b"),
        (Bug::EarlyVotesCount, "a f"),
        (Bug::SharedTerms, "c"),
        (Bug::ClockStopsInSuspend, "a e"),
        (Bug::DoubleRank, "1"),
        (Bug::OneStore, "13"),
    ];
    assert_noticed(World::new, bugs);
}

/// Each planted bug in the changes of the voters is found by one of the rules that it breaks.
#[test]
#[ignore = "`make test-all` runs it: some bugs need thousands of worlds"]
fn every_bug_of_voter_changes_is_noticed() {
    let bugs: &[(Bug, &str)] = &[
        (Bug::NoMute, "a d f"),
        (Bug::OnlyNewList, "a d"),
        (Bug::UnitedLists, "a d"),
        (Bug::NewListAtOnce, "a d g"),
        (Bug::SlotsByAddress, "a d i"),
        (Bug::CountedNewcomer, "a d"),
        (Bug::IgnorantCandidate, "d"),
        (Bug::OldList, "a d f"),
        (Bug::UninformedHosts, "a b d i"),
        (Bug::SilentVoter, "d i"),
    ];
    assert_noticed(World::with_aimed_faults, bugs);
}

/// Each planted bug in the birth of jobs, and in the return of hosts, is found by one of the rules that it breaks.
#[test]
#[ignore = "`make test-all` runs it: some bugs need thousands of worlds"]
fn every_bug_of_births_is_noticed() {
    let bugs: &[(Bug, &str)] = &[
        (Bug::StrangersDropped, "b j l"),
        (Bug::UninformedHosts, "b j l"),
        (Bug::UnshownEnds, "m"),
        (Bug::YieldIsAnEnd, "n"),
        (Bug::NoYield, "k"),
        (Bug::PatientElder, "ar"),
        (Bug::OnlyLeadersShow, "b j"),
    ];
    assert_noticed(World::with_lost_states, bugs);
}
