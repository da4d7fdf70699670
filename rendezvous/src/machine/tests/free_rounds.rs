//! The number of free rounds is bounded.

use std::time::Duration;

use super::fixture::{Did, Fixture, SECOND, known_round, ready};
use crate::{
    ids::NodeId,
    message::{FromNode, JobResult, NodeReport, NodeState},
    settings::HostTally,
    snapshot::NodeStateName,
};

/// Reports that the keeper of `name` found the lease over and killed the workers.
fn lease_expires(t: &mut Fixture, name: &str) {
    let state = NodeState::Preparing;
    let round = t.rounds[name];
    t.message(
        name,
        FromNode::NodeReport(NodeReport { lease_expired: true, ..NodeReport::new(round, state) }),
    );
}

/// Kills and restarts the coordinator. Its nodes come back, and the next round begins.
fn lose_coordinator(t: &mut Fixture, names: &[&'static str]) -> Vec<Did> {
    t.restart_coordinator();
    for name in names {
        t.register(name, NodeState::Running);
    }
    names.iter().flat_map(|name| t.back(name)).collect()
}

/// A member whose lease repeatedly ends on its own side is quarantined like a lost one.
#[test]
fn member_whose_lease_keeps_expiring_is_quarantined() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    for _ in 0..3 {
        lease_expires(&mut t, "b");
        t.back("a");
        t.back("b");
    }
    t.live(&["a", "b"], 5 * SECOND);
    assert_eq!(t.state_of("b"), NodeStateName::Quarantined);
}

/// A free round is early if it ends within a minute of its start.
#[test]
fn early_rounds_are_counted() {
    for (seconds, early) in [(59, 1), (61, 0)] {
        let mut t = Fixture::new(1, 2);
        t.run(&["a", "b"]);
        t.live(&["a", "b"], seconds * SECOND);
        lease_expires(&mut t, "b");
        t.back("a");
        t.back("b");
        assert_eq!(t.job_state.early_free_rounds, early, "{seconds}");
    }
}

/// Cut-offs are also counted if something else ended the round first, and once per round.
#[test]
fn expired_lease_is_counted_once_a_round() {
    let mut t = Fixture::with(1, 3, |shared| shared.max_restarts = 9);
    t.run(&["a", "b", "c"]);
    for _ in 0..2 {
        t.fail("a", Duration::ZERO);
        lease_expires(&mut t, "b");
        lease_expires(&mut t, "b");
        for name in ["a", "b", "c"] {
            t.back(name);
        }
    }
    assert_eq!(t.state_of("b"), NodeStateName::Running);
    let tally = |early_losses| HostTally {
        host_name: "b".to_owned(),
        address: "b.example".to_owned(),
        strikes: early_losses,
        early_losses,
        suspicions: 0,
        suspected_for: Duration::ZERO,
    };
    assert_eq!(t.job_state.host_tallies, [tally(2)]);
}

/// If all members were unreachable, none is counted: the coordinator or its network was away.
#[test]
fn expired_leases_of_all_are_not_counted() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a", "b"]);
    for _ in 0..3 {
        lease_expires(&mut t, "a");
        lease_expires(&mut t, "b");
        t.back("a");
        t.back("b");
    }
    assert_eq!(t.state_of("b"), NodeStateName::Running);
}

/// Losses of a machine are counted across a restart of the coordinator.
#[test]
fn tallies_survive_the_coordinator() {
    let mut t = Fixture::with(1, 2, |shared| shared.timeouts.shrink = Duration::ZERO);
    t.run(&["a", "b"]);
    for new in ["b2", "b3", "b4"] {
        let old = t.rounds.keys().find(|name| name.starts_with('b')).cloned().expect("a member");
        t.die(&old);
        t.rounds.remove(&old);
        t.back("a");
        t.restart_coordinator();
        t.register("a", NodeState::Running);
        t.join(new);
        t.back("a");
    }
    assert_eq!(t.state_of("b4"), NodeStateName::Quarantined);
}

/// The coordinator's own machine is quarantined if it is lost shortly after several starts.
#[test]
fn host_that_keeps_being_lost_is_quarantined() {
    let mut t = Fixture::new(1, 2).host("b");
    t.run(&["a", "b"]);
    let mut old = "b";
    for new in ["b2", "b3", "b4"] {
        t.settings.host = Some(NodeId::new(new));
        let (round, rank) = (t.rounds[old], t.admissions[old].group_rank.0);
        t.restart_coordinator();
        let mut registration = t.registration_of(new, ready());
        registration.known_round = known_round(round, 2, rank);
        t.register_with(registration);
        t.register("a", NodeState::Running);
        t.back("a");
        t.live(&["a", new], 9 * SECOND);
        old = new;
    }
    assert_eq!(t.state_of("b4"), NodeStateName::Quarantined);
}

/// A hundred free rounds in a row that end early close the job, regardless of what ended them.
#[test]
fn early_free_rounds_end_the_job() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    for _ in 0..100 {
        let did = lose_coordinator(&mut t, &["a", "b"]);
        assert!(matches!(did.last(), Some(Did::Admit("b", ..))), "{did:?}");
    }
    let did = lose_coordinator(&mut t, &["a", "b"]);
    assert_eq!(did.last(), Some(&Did::Close("b")));
    assert_eq!(t.outcome().expect("closed").result, JobResult::RestartLoop { rounds: 100 });
}

/// A thousand that last longer, but never for a quiet time, do the same.
#[test]
fn late_free_rounds_end_the_job() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    t.job_state.free_rounds = 998;
    for _ in 0..2 {
        lose_coordinator(&mut t, &["a", "b"]);
        assert!(t.outcome().is_none());
        t.live(&["a", "b"], 120 * SECOND);
        assert!(!t.job_state.is_early && t.job_state.early_free_rounds == 0);
    }
    lose_coordinator(&mut t, &["a", "b"]);
    assert_eq!(t.outcome().expect("closed").result, JobResult::RestartLoop { rounds: 1_000 });
}

/// A quiet time resets the count of free rounds, and so does a charged failure.
#[test]
fn free_rounds_are_forgotten() {
    let mut t = Fixture::new(2, 2);
    t.run(&["a", "b"]);
    lose_coordinator(&mut t, &["a", "b"]);
    assert_eq!((t.job_state.free_rounds, t.job_state.early_free_rounds), (1, 1));
    t.live(&["a", "b"], 599 * SECOND);
    assert_eq!((t.job_state.free_rounds, t.job_state.early_free_rounds), (1, 0));
    t.live(&["a", "b"], SECOND);
    assert_eq!(t.job_state.free_rounds, 0);
    lose_coordinator(&mut t, &["a", "b"]);
    assert_eq!(t.job_state.free_rounds, 1);
    t.fail("a", Duration::ZERO);
    t.back("b");
    t.back("a");
    assert_eq!(t.job_state.free_rounds, 0);
}

/// Rounds after a join or a requested leave are voluntary and not counted.
#[test]
fn rounds_that_were_asked_for_are_not_counted() {
    let mut t = Fixture::new(1, 2);
    t.run(&["a"]);
    t.join("b");
    t.live(&["a", "b"], 3 * SECOND);
    t.back("a");
    t.report("b", NodeState::Leaving { reaped: true });
    t.back("a");
    assert_eq!((t.job_state.round.0, t.job_state.free_rounds), (3, 0));
}
