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
fn every_takeover_bug_is_noticed() {
    let bugs: &[(Bug, &str, u64)] = &[
        (Bug::UnchainedWorkers, "b f", 76),
        (Bug::NoWaitForOthers, "b", 355),
        (Bug::EarlyEffects, "d", 131),
        (Bug::DeathNoticeOfPlace, "a b", 3_057),
        (Bug::Overtime, "b d f", 13),
        (Bug::IgnoredReplica, "d g", 0),
        (Bug::NoKeeper, "b", 0),
        (Bug::NoTimeouts, "g i", 0),
        (Bug::EagerDials, "g", 303),
        (Bug::NoTimeoutsOfVoters, "g", 0),
        (Bug::LeaseFromReceipt, "e", 60),
        (Bug::ShortVoterLease, "a f", 0),
        (Bug::NoTimeForKeepers, "f", 184),
        (Bug::VoteUnderLease, "a", 12),
        (Bug::LeftFromReceipt, "f", 565),
        (Bug::UnreportedWorkers, "f", 439),
        (Bug::EarlyReady, "b", 0),
        (Bug::EarlyVotesCount, "a f", 85),
        (Bug::SharedTerms, "c", 355),
        (Bug::ClockStopsInSuspend, "a e", 1),
        (Bug::DoubleRank, "1", 0),
        (Bug::OneStore, "13", 0),
    ];
    assert_noticed(World::new, bugs);
}

/// Each planted bug in the changes of the voters is found by one of the rules that it breaks.
#[test]
fn every_bug_of_voter_changes_is_noticed() {
    let bugs: &[(Bug, &str, u64)] = &[
        (Bug::NoMute, "a d f", 1_456),
        (Bug::OnlyNewList, "a d", 19),
        (Bug::UnitedLists, "a d", 136),
        (Bug::NewListAtOnce, "a d g", 19),
        (Bug::SlotsByAddress, "a d i", 0),
        (Bug::CountedNewcomer, "a d", 6),
        (Bug::IgnorantCandidate, "d", 1_757),
        (Bug::OldList, "a d f", 17),
        (Bug::UninformedHosts, "a b d i", 12),
        (Bug::SilentVoter, "d i", 21),
    ];
    assert_noticed(World::with_aimed_faults, bugs);
}

/// Each planted bug in the birth of jobs, and in the return of hosts, is found by one of the rules that it breaks.
#[test]
fn every_bug_of_births_is_noticed() {
    let bugs: &[(Bug, &str, u64)] = &[
        (Bug::StrangersDropped, "b j l", 12),
        (Bug::UninformedHosts, "b j l", 333),
        (Bug::UnshownEnds, "m", 2_707),
        (Bug::YieldIsAnEnd, "n", 129),
        (Bug::NoYield, "k", 1_604),
        (Bug::PatientElder, "ar", 834),
        (Bug::OnlyLeadersShow, "b j", 12),
    ];
    assert_noticed(World::with_lost_states, bugs);
}
