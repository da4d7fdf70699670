//! Jobs that have ended: how processes learn of the end, and what those do that were not there.

use super::{
    other_jobs::{
        OTHER, beginner, closed, effects, from, job, job_state_of, listed, others, pass, refusal,
        replica, uid, with_file,
    },
    *,
};
use crate::{election::other_jobs::job_uid, limits::ENDED_MAX};

/// Creates three voters of a job with a round, and returns its leader.
fn with_a_job() -> (Voters, usize) {
    let mut voters = Voters::new(3);
    voters.pass(millis(1_000));
    let leader = voters.leader().expect("a leader");
    voters.voters[leader].handle_remember(voters.now, job_state(1)).expect("it leads");
    voters.deliver();
    (voters, leader)
}

/// Creates three voters of a job that has ended, and returns its leader.
fn with_an_ended_job() -> (Voters, usize) {
    let (mut voters, leader) = with_a_job();
    voters.voters[leader].handle_remember(voters.now, closed(job_state(1))).expect("it leads");
    voters.deliver();
    voters.pass(millis(500));
    (voters, leader)
}

/// A registration may show the end of a job as well as another voter.
#[test]
fn end_is_shown_by_a_registration() {
    let mut voters = beginner();
    voters.voters[0].handle_known_job(voters.now, &job("earlier", &[OTHER]));
    voters.voters[0].handle_ended(voters.now, &[uid("earlier")]);
    assert_eq!(others(&voters.voters[0]), []);
}

/// A voter that knows a job only from its state file forgets it when a registration shows its end.
#[test]
fn registration_frees_a_voter_with_a_file() {
    let now = Voters::new(1).now;
    let mut voter = with_file(now, 0, replica(job_state_of("job", 1), &[0, 3, 4]));
    voter.handle_ended(now, &[uid("job")]);
    assert_eq!(*voter.replica(), Replica { lists: listed(), ..Replica::default() });
    assert!(voter.is_eligible());
}

/// The newest jobs that have ended are remembered, up to a limit.
#[test]
fn ended_jobs_are_limited() {
    let now = Voters::new(1).now;
    let mut voter = voter(now, 0, 1);
    for number in 0..3 * ENDED_MAX {
        voter.handle_ended(now, &[uid(&format!("job{number}"))]);
    }
    let ended = voter.message(now, 1, ()).ended;
    assert_eq!(ended.len(), ENDED_MAX);
    assert_eq!(ended.last(), Some(&uid(&format!("job{}", 3 * ENDED_MAX - 1))));
    let settings = ElectionSettings {
        ended: (0..3 * ENDED_MAX).map(|number| uid(&format!("job{number}"))).collect(),
        ..voter.settings.clone()
    };
    assert_eq!(Election::new(now, settings, empty(), Term(0)).message(now, 1, ()).ended, ended);
}

/// A voter that has the outcome of its job knows that a majority has it from a later request of the leader.
#[test]
fn outcome_counts_when_the_leader_has_a_majority() {
    let (mut voters, leader) = with_a_job();
    let now = voters.now;
    voters.voters[leader].handle_remember(now, closed(job_state(1))).expect("it leads");
    let outcome = voters.voters[leader].replica().clone();
    for is_copied in [false, true] {
        let replica = Box::new(outcome.clone());
        let renewal = Request::Renew { term: outcome.version.term, replica, is_copied };
        let request = voters.voters[leader].message(now, 1, renewal);
        let follower = &mut voters.voters[(leader + 1) % 3];
        follower.handle_request(now, request);
        assert_eq!(follower.ended_job().is_some(), is_copied);
    }
}

/// A voter shows the end of its job when a majority knows it, and shows the job until then.
#[test]
fn end_is_shown_when_a_majority_has_it() {
    let (mut voters, leader) = with_a_job();
    let now = voters.now;
    voters.voters[leader].handle_remember(now, closed(job_state(1))).expect("it leads");
    let shown = voters.voters[leader].message(now, 1, ());
    assert_eq!((shown.job.is_some(), shown.ended), (true, vec![]));
    voters.deliver();
    for voter in &voters.voters {
        let shown = voter.message(now, 1, ());
        assert!(shown.job.is_none() && shown.ended.contains(&uid("job")), "{shown:?}");
    }
}

/// A job that has ended, and of which no node is left, is forgotten by its leader and then by the other voters, so that another
/// one can begin. All of them were started after its end.
#[test]
fn ended_job_is_forgotten() {
    let (mut voters, _) = with_an_ended_job();
    for place in 0..3 {
        voters.restart(place, voters.voters[place].highest());
    }
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    voters.voters[leader].handle_forgotten(voters.now);
    voters.deliver();
    voters.pass(millis(5_000));
    assert!(voters.voters.iter().all(|voter| !voter.replica().has_round()));
    assert!(voters.leader().is_some());
}

/// A voter whose state file has a job that has ended forgets it, as soon as another process shows the end, and takes
/// part in the next job as a listed host.
#[test]
fn ended_job_of_the_file_is_forgotten() {
    let now = Voters::new(1).now;
    let mut voter = with_file(now, 0, replica(job_state_of("job", 1), &[0, 3, 4]));
    effects(&mut voter);
    let answer = VoterMessage { ended: vec![uid("job")], ..from(3, refusal()) };
    voter.handle_answer(now, answer);
    assert_eq!(*voter.replica(), Replica { lists: listed(), ..Replica::default() });
    let effects = effects(&mut voter);
    assert!(effects.contains(&Effect::Store) && effects.contains(&Effect::Ended(uid("job"))));
    assert!(voter.is_eligible());
}

/// A process that knows from its file that the file's job has ended does not begin with it.
#[test]
fn known_end_is_stronger_than_the_file() {
    let now = Voters::new(1).now;
    let settings = ElectionSettings { ended: vec![uid("job")], ..voter(now, 0, 3).settings };
    let file = replica(job_state_of("job", 1), &[0, 3, 4]);
    let voter = Election::new(now, settings, file, Term(1 << 16));
    assert_eq!(*voter.replica(), Replica { lists: listed(), ..Replica::default() });
}

/// A process that had a leader in a job keeps that job while the leader leads it, even if another process shows its
/// end.
#[test]
fn job_with_a_leader_is_not_forgotten() {
    let (mut voters, leader) = with_a_job();
    for place in 0..3 {
        let hello = VoterMessage { ended: vec![uid("job")], ..from(OTHER, Request::Hello) };
        voters.voters[place].handle_request(voters.now, hello);
        assert_eq!(job_uid(voters.voters[place].replica()), Some(&uid("job")));
    }
    voters.pass(millis(10_000));
    assert_eq!(voters.leader(), Some(leader));
    assert!(voters.voters.iter().all(|voter| voter.ended().is_empty()), "it is passed on");
    for place in [(leader + 1) % 3, leader] {
        let voter = &mut voters.voters[place];
        voter.handle_ended(voters.now, &[uid("job")]);
        voter.handle_leaving(voters.now);
        voter.handle_ended(voters.now, &[uid("job")]);
        assert!(voter.is_needed(), "it would remove its state file");
    }
    assert_eq!(voters.led(leader).len(), 1);
}

/// A process whose job has ended while it had no leader for a lease ends, once: it was not there, and does not know the
/// outcome. It keeps its replica until then.
#[test]
fn process_outlives_its_job_without_a_leader() {
    let (mut voters, leader) = with_a_job();
    let (mut now, follower) = (voters.now, &mut voters.voters[(leader + 1) % 3]);
    let lease = Timers::default().voter_lease;
    for (time, is_outlived) in
        [(lease, false), (lease - millis(1), false), (millis(1), true), (lease, false)]
    {
        pass(follower, &mut now, time);
        let hello = VoterMessage { ended: vec![uid("job")], ..from(OTHER, Request::Hello) };
        follower.handle_request(now, hello);
        follower.handle_timeout(now);
        assert_eq!(effects(follower).contains(&Effect::Outlived(None)), is_outlived, "{time:?}");
        assert_eq!(job_uid(follower.replica()), Some(&uid("job")));
    }
}

/// A process that knows the outcome of its job, and has no leader any more, ends with that outcome after a while, once. Until
/// then it may become the leader from which others learn the outcome.
#[test]
fn process_ends_with_the_outcome_that_it_knows() {
    let (mut voters, leader) = with_an_ended_job();
    let (mut now, follower) = (voters.now, &mut voters.voters[(leader + 1) % 3]);
    let timers = Timers::default();
    let outcome = Effect::Outlived(closed(job_state(1)).closed.map(Box::new));
    // The lease may have ended before, or may still last.
    for (time, is_outlived) in [
        (timers.patience() - millis(500), false),
        (millis(500) + timers.voter_lease, true),
        (timers.patience(), false),
    ] {
        pass(follower, &mut now, time);
        assert_eq!(effects(follower).contains(&outcome), is_outlived, "{time:?}");
        assert_eq!(job_uid(follower.replica()), Some(&uid("job")));
    }
}

/// A process whose agent has joined another job goes on with that one when it learns that its own job has ended, also if the agent
/// is not registered at that moment.
#[test]
fn process_in_another_job_forgets_its_own() {
    let timers = Timers::default();
    for (joined, is_forgotten) in [("job", false), ("other", true)] {
        let (mut voters, leader) = with_an_ended_job();
        let (mut now, follower) = (voters.now, &mut voters.voters[(leader + 1) % 3]);
        follower.handle_registered(now, Some(uid(joined)));
        follower.handle_registered(now, None);
        pass(follower, &mut now, timers.patience() + timers.voter_lease);
        let effects = effects(follower);
        let ends = effects.iter().any(|effect| matches!(effect, Effect::Outlived(_)));
        assert_eq!((ends, job_uid(follower.replica()).is_none()), (!is_forgotten, is_forgotten));
    }
}

/// An outcome that no majority is known to have may not be that of the job. A leader that was unreachable with it ends
/// without one when it learns that the job has ended.
#[test]
fn outcome_that_no_majority_has_is_not_reported() {
    let (mut voters, leader) = with_a_job();
    let (mut now, leader) = (voters.now, &mut voters.voters[leader]);
    leader.handle_remember(now, closed(job_state(1))).expect("it leads");
    pass(leader, &mut now, 2 * Timers::default().patience());
    effects(leader);
    let hello = VoterMessage { ended: vec![uid("job")], ..from(OTHER, Request::Hello) };
    leader.handle_request(now, hello);
    leader.handle_timeout(now);
    assert!(effects(leader).contains(&Effect::Outlived(None)));
}

/// The coordinator of a job that had ended before has no node left. Its process forgets the job, and is free for the next one.
#[test]
fn job_without_nodes_is_forgotten() {
    let (mut voters, leader) = with_an_ended_job();
    let now = voters.now;
    assert!(voters.voters[leader].replica().has_round());
    voters.voters[leader].handle_forgotten(now);
    assert!(!voters.voters[leader].replica().has_round());
    assert_eq!(voters.voters[leader].leads_until(), None);
    let (mut voters, leader) = with_a_job();
    let now = voters.now;
    voters.voters[leader].handle_forgotten(now);
    assert!(voters.voters[leader].replica().has_round(), "it has not ended");
}
