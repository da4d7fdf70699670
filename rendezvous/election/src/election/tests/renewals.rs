//! Renewals of a leader's lease, and the answers to them.

use super::{
    other_jobs::{replica, with_file},
    *,
};

/// Voters with a leader, and the places of the others.
fn with_leader() -> (Voters, usize, [usize; 2]) {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_050));
    let leader = voters.leader().expect("a leader");
    (voters, leader, [1, 2].map(|step| (leader + step) % 3))
}

fn renew(place: usize, term: Term) -> VoterMessage<Request> {
    let replica = Box::new(empty());
    VoterMessage { body: Request::Renew { term, replica, is_copied: false }, ..vote(place, term) }
}

/// The next renewal is sent after the interval, and not at each deadline before.
#[test]
fn renewals_have_an_interval() {
    let (mut voters, leader, [other, _]) = with_leader();
    assert!(voters.voters[other].has_leader() && !voter(voters.now, 0, 3).has_leader());
    voters.voters[leader].handle_timeout(voters.now);
    assert_eq!(sent(&mut voters.voters[leader]), []);
    voters.voters[leader].handle_timeout(voters.now + Timers::default().renewal);
    assert_eq!(sent(&mut voters.voters[leader]).len(), 2);
}

/// The lease of a leader is longer after an answer that grants a renewal. A refusal does not count, and neither does a process that
/// may have forgotten a vote. An answer to an earlier renewal counts from the sending of that one.
#[test]
fn granted_renewals_extend_the_lease() {
    for (is_granted, has_just_started) in [(true, false), (false, false), (true, true)] {
        let (mut voters, leader, [other, _]) = with_leader();
        let before = voters.voters[leader].leads_until();
        let mut answers = Vec::new();
        for _ in 0..2 {
            voters.now += Timers::default().renewal;
            voters.voters[leader].handle_timeout(voters.now);
            let sequence = voters.voters[leader].sequence;
            let answer =
                voters.voters[other].voter.answer(voters.now, is_granted, Knowledge::default());
            let answer = voters.voters[other].message(voters.now, sequence, answer);
            answers.push((voters.now, VoterMessage { has_just_started, ..answer }));
        }
        for (sent, answer) in answers {
            voters.voters[leader].handle_answer(voters.now, answer);
            let until = voters.voters[leader].leads_until();
            let extended = sent + Timers::default().leader_lease;
            let counts = is_granted && !has_just_started;
            assert_eq!(until, if counts { Some(extended) } else { before });
        }
    }
}

/// A renewal contains whether a majority has its state. Only then may a voter show the job to others.
#[test]
fn renewals_tell_what_a_majority_has() {
    let (mut voters, leader, _) = with_leader();
    voters.voters[leader].handle_remember(voters.now, job_state(1)).expect("it leads");
    let is_copied = |(_, message): (VoterAddress, VoterMessage<Request>)| match message.body {
        Request::Renew { is_copied, .. } => Some(is_copied),
        _ => None,
    };
    let renewals = sent(&mut voters.voters[leader]);
    for (to, message) in &renewals {
        let answer = voters.voters[place(to)].handle_request(voters.now, message.clone());
        voters.voters[leader].handle_answer(voters.now, answer.expect("an answer"));
    }
    assert!(renewals.into_iter().filter_map(is_copied).all(|is_copied| !is_copied));
    voters.voters[leader].handle_timeout(voters.now + Timers::default().renewal);
    let renewals = sent(&mut voters.voters[leader]);
    let told: Vec<bool> = renewals.into_iter().filter_map(is_copied).collect();
    assert_eq!(told, [true, true]);
}

/// A voter grants no renewal soon after its start, and none of a term that no voter can have.
#[test]
fn voters_refuse_renewals() {
    let now = Voters::new(1).now;
    let settings = ElectionSettings { is_first_start: false, ..voter(now, 0, 3).settings };
    let started = Election::new(now, settings, empty(), Term(0));
    for (mut voter, term, is_granted) in [
        (voter(now, 0, 3), NUMBER_MAX, true),
        (voter(now, 0, 3), NUMBER_MAX + 1, false),
        (started, 5, false),
    ] {
        let answer = voter.handle_request(now, renew(1, Term(term))).expect("an answer");
        assert_eq!(answer.body.is_granted, is_granted, "{term}");
    }
}

/// A voter that takes over a newer state of its job still knows the highest term.
#[test]
fn newer_state_lowers_no_term() {
    let now = Voters::new(1).now;
    let older = replica(job_state(1), &[0, 1, 2]);
    let version = Version { number: older.version.number + 1, ..older.version };
    let newer = Replica { version, ..older.clone() };
    let mut voter = with_file(now, 0, older);
    voter.learn(now, Term(9 << 16));
    voter.take(now, &newer, Term(1));
    assert_eq!((voter.highest(), voter.replica().version), (Term(9 << 16), version));
}

/// The state of another job with a round is not taken over, even if its version is higher.
#[test]
fn state_of_another_job_is_not_taken_over() {
    let now = Voters::new(1).now;
    let own = replica(job_state(1), &[0, 1, 2]);
    let state = JobState { job_uid: JobUid::new("another"), ..job_state(1) };
    let version = Version { term: Term(9 << 16), number: 1 };
    let other = Replica { version, ..replica(state, &[0, 1, 2]) };
    let mut voter = with_file(now, 0, own.clone());
    voter.take(now, &other, Term(9 << 16));
    assert_eq!(*voter.replica(), own);
}
