//! Jobs of the same name: which of them other processes show, which one begins, and which one yields.

use std::collections::BTreeSet;

use ragent_rendezvous::{
    heir::{Member, MembersReport},
    known_job::{KnownJob, Leads, Seniority},
    limits::VOTERS_MAX,
    message::{JobResult, Outcome},
};

use super::*;
use crate::{
    election::{message::VoterSlot, other_jobs::job_uid},
    limits::OTHER_JOBS_MAX,
};

/// The place of a process without a slot in the job.
pub(super) const OTHER: usize = 7;

pub(super) fn uid(name: &str) -> JobUid {
    JobUid::new(name)
}

pub(super) fn job(name: &str, places: &[usize]) -> KnownJob {
    let voters = places.iter().copied().map(address).collect();
    KnownJob { uid: uid(name), voters, leads: None }
}

/// The state of a job with a round.
pub(super) fn job_state_of(name: &str, born_ms: u64) -> JobState {
    JobState { round: Round(1), born_ms, ..JobState::new(uid(name)) }
}

pub(super) fn closed(job_state: JobState) -> JobState {
    let outcome = Outcome {
        result: JobResult::Succeeded,
        first_failure: None,
        other_failures: 0,
        further_failures: Vec::new(),
        restarts_used: 0,
        complete_step: None,
    };
    JobState { closed: Some(outcome), ..job_state }
}

/// A message of the process at `place`, which knows no job.
pub(super) fn from<Body>(place: usize, body: Body) -> VoterMessage<Body> {
    VoterMessage {
        voter: VoterId(place as u64),
        address: address(place),
        process: process(place),
        has_just_started: false,
        highest: Term(0),
        knows: Knowledge::default(),
        job: None,
        ended: Vec::new(),
        sequence: 1,
        body,
    }
}

/// A message of the process at `place`, which knows this job, and of a later version than any other process.
fn showing<Body>(place: usize, job: KnownJob, body: Body) -> VoterMessage<Body> {
    let version = Version { term: Term(1 << 40), number: 0 };
    let knows = Knowledge { has_round: true, version };
    VoterMessage { knows, job: Some(job), ..from(place, body) }
}

/// Returns a message that shows a job, with the leadership of its sender in that job.
fn leading<Body>(leads: Option<Leads>, mut message: VoterMessage<Body>) -> VoterMessage<Body> {
    message.job = message.job.map(|job| KnownJob { leads, ..job });
    message
}

fn leads(born_ms: u64) -> Option<Leads> {
    Some(Leads { born_ms, term: Term(5 << 16), has_nodes: true })
}

/// An answer that grants nothing.
pub(super) fn refusal() -> Answer {
    Answer {
        is_granted: false,
        is_connected: true,
        workers_for: Duration::ZERO,
        former: None,
        replica: None,
    }
}

/// A replica with a round, with a slot for the voter at each of `places`.
pub(super) fn replica(job_state: JobState, places: &[usize]) -> Replica {
    let slot =
        |place: &usize| VoterSlot { address: address(*place), voter: Some(VoterId(*place as u64)) };
    Replica {
        version: Version { term: Term(1 << 16), number: 1 },
        lists: Lists { before: None, last: places.iter().map(slot).collect() },
        job_state: Some(job_state),
    }
}

/// Starts a voter whose state file has this replica. It lists the first three hosts.
pub(super) fn with_file(now: Instant, place: usize, replica: Replica) -> Election {
    let settings = ElectionSettings { is_first_start: false, ..voter(now, place, 3).settings };
    Election::new(now, settings, replica, Term(1 << 16))
}

pub(super) fn effects(voter: &mut Election) -> Vec<Effect> {
    iter::from_fn(|| voter.poll_effect()).collect()
}

/// Returns the places to which a voter has sent a request of this kind since the last call.
fn asked(voter: &mut Election, is_asked: impl Fn(&Request) -> bool) -> BTreeSet<usize> {
    let to = |effect: Effect| match effect {
        Effect::Send { to, message } if is_asked(&message.body) => Some(place(&to)),
        _ => None,
    };
    effects(voter).into_iter().filter_map(to).collect()
}

fn greeted(voter: &mut Election) -> BTreeSet<usize> {
    asked(voter, |request| *request == Request::Hello)
}

pub(super) fn others(voter: &Election) -> Vec<OtherJob> {
    voter.other_jobs().collect()
}

/// Lets time pass for one voter, without any answer.
pub(super) fn pass(voter: &mut Election, now: &mut Instant, time: Duration) {
    let end = *now + time;
    while let Some(at) = voter.poll_timeout().filter(|at| *at <= end) {
        *now = at.max(*now);
        voter.handle_timeout(*now);
    }
    *now = end;
}

/// Creates the only voter of a job with a round, which leads it.
fn leader_of(name: &str, born_ms: u64) -> Voters {
    let mut voters = Voters::new(1);
    voters.pass(Duration::ZERO);
    voters.voters[0].handle_remember(voters.now, job_state_of(name, born_ms)).expect("it leads");
    voters.deliver();
    voters
}

/// Creates the only voter of a job without a round, which leads it.
pub(super) fn beginner() -> Voters {
    let mut voters = Voters::new(1);
    voters.pass(Duration::ZERO);
    assert_eq!(voters.leader(), Some(0));
    voters
}

fn yields(voter: &mut Election) -> Vec<(JobUid, usize)> {
    let yielded = |effect: Effect| match effect {
        Effect::Yield { other, at } => Some((other.uid, place(&at))),
        _ => None,
    };
    effects(voter).into_iter().filter_map(yielded).collect()
}

/// A voter of a job with a round shows it to each listed host and each other voter as soon as it is connected, again at
/// short intervals, and at once on the next connection.
#[test]
fn job_is_shown_to_listed_hosts_at_once_and_again() {
    let mut now = Voters::new(1).now;
    let replica = replica(job_state_of("job", 1), &[0, 3, 4]);
    let shown = Some(job("job", &[0, 3, 4]));
    let mut voter = with_file(now, 0, replica);
    assert!(voter.connections().contains(&address(1)));
    for _ in 0..2 {
        voter.handle_connected(now, &address(1));
        let is_hello = |effect: &Effect| {
            matches!(effect, Effect::Send { to, message }
            if *to == address(1) && message.body == Request::Hello && message.job == shown)
        };
        assert!(effects(&mut voter).iter().any(is_hello));
        for _ in 0..3 {
            pass(&mut voter, &mut now, millis(500));
            assert_eq!(greeted(&mut voter), BTreeSet::from([1, 2, 3, 4]));
        }
        voter.handle_disconnected(&address(1));
    }
}

/// A process that a search has found is shown the job as well, for a while.
#[test]
fn job_is_shown_to_found_processes() {
    let mut voters = leader_of("own", 100);
    let (mut now, voter) = (voters.now, &mut voters.voters[0]);
    voter.handle_found(now, &address(OTHER));
    assert!(voter.connections().contains(&address(OTHER)));
    pass(voter, &mut now, millis(600));
    assert!(greeted(voter).contains(&OTHER));
    pass(voter, &mut now, Timers::default().patience());
    assert!(!voter.connections().contains(&address(OTHER)));
}

/// The job is not shown to a host that shows the same one, until its connection ends or it has shown nothing for a
/// while: then another process may be there.
#[test]
fn job_is_not_shown_to_hosts_that_know_it() {
    let mut now = Voters::new(1).now;
    let replica = replica(job_state_of("job", 1), &[0, 3, 4]);
    let mut voter = with_file(now, 0, replica);
    voter.handle_registered(now, Some(uid("job")));
    voter.handle_connected(now, &address(1));
    voter.handle_answer(now, showing(1, job("job", &[0, 3, 4]), refusal()));
    effects(&mut voter);
    pass(&mut voter, &mut now, millis(1_000));
    assert_eq!(greeted(&mut voter), BTreeSet::from([2, 3, 4]));
    pass(&mut voter, &mut now, millis(500));
    assert_eq!(greeted(&mut voter), BTreeSet::from([1, 2, 3, 4]));
    voter.handle_answer(now, showing(1, job("job", &[0, 3, 4]), refusal()));
    voter.handle_disconnected(&address(1));
    pass(&mut voter, &mut now, millis(500));
    assert_eq!(greeted(&mut voter), BTreeSet::from([1, 2, 3, 4]));
    // A process without the job is at that address now.
    voter.handle_answer(now, showing(1, job("job", &[0, 3, 4]), refusal()));
    voter.handle_answer(now, from(1, refusal()));
    pass(&mut voter, &mut now, millis(500));
    assert_eq!(greeted(&mut voter), BTreeSet::from([1, 2, 3, 4]));
}

/// A process without a job asks the hosts that could know one: the listed ones, and those of jobs that others have
/// shown. A process that is not a voter, and knows of none, asks no host.
#[test]
fn process_without_a_job_asks_for_one() {
    let mut now = Voters::new(1).now;
    let mut young = voter(now, 0, 3);
    pass(&mut young, &mut now, millis(500));
    assert_eq!(greeted(&mut young), BTreeSet::from([1, 2]));
    young.handle_known_job(now, &job("earlier", &[8, OTHER]));
    assert_eq!(greeted(&mut young), BTreeSet::from([1, 2, OTHER, 8]));

    let mut outside = voter(now, OTHER, 3);
    pass(&mut outside, &mut now, millis(5_000));
    assert_eq!(greeted(&mut outside), BTreeSet::new());
    outside.handle_known_job(now, &job("earlier", &[8]));
    assert!(greeted(&mut outside).contains(&8));
}

/// The first round of a job is not shown before a majority knows it: until then it may be lost.
#[test]
fn first_round_is_shown_when_a_majority_has_it() {
    let mut voters = Voters::new(3);
    voters.pass(millis(1_000));
    let leader = voters.leader().expect("a leader");
    let now = voters.now;
    let shown = |voters: &Voters| voters.voters[leader].message(now, 1, ()).job;
    assert_eq!(shown(&voters), None);
    voters.voters[leader].handle_remember(now, job_state(1)).expect("it leads");
    assert_eq!(shown(&voters), None);
    voters.deliver();
    let shown = shown(&voters).map(|job| KnownJob { leads: None, ..job });
    assert_eq!(shown, Some(job("job", &[0, 1, 2])));
}

/// A frame of a process that is not known as a voter is a hint, and nothing more: it gives no replica, receives no vote
/// and no lease, and changes no term and no leader. The process asks at the addresses that the frame names.
#[test]
fn strangers_only_give_hints() {
    let now = Voters::new(1).now;
    let high = Term(1 << 20);
    let earlier = || job("earlier", &[4, 5]);
    let renewed = Box::new(replica(job_state_of("earlier", 1), &[0, 1, OTHER]));
    let requests = [
        Request::PreVote,
        Request::Vote { term: high },
        Request::Renew { term: high, replica: renewed, is_copied: true },
        Request::Hello,
    ];
    for request in requests {
        let mut voter = voter(now, 0, 3);
        let message = showing(OTHER, earlier(), request);
        let message = VoterMessage { highest: high, ..leading(leads(1), message) };
        let answer = voter.handle_stranger(now, message).expect("an answer");
        assert!(!answer.body.is_granted);
        assert_eq!((answer.body.replica, answer.job), (None, None));
        assert_eq!((voter.highest(), voter.lease_term()), (Term(0), None));
        assert!(!voter.replica().has_round());
        let hint = OtherJob {
            uid: uid("earlier"),
            addresses: vec![address(4), address(5), address(OTHER)],
            leader: None,
        };
        assert_eq!(others(&voter), [hint], "its leader is believed only if it answers");
        let connections = voter.connections();
        assert!([4, 5, OTHER].iter().all(|place| connections.contains(&address(*place))));
        assert!(effects(&mut voter).iter().all(|effect| *effect == Effect::OtherJobs));
        let vote = voter.handle_request(now, vote(1, Term(1))).expect("an answer");
        assert!(vote.body.is_granted, "no promise was given");
    }
}

/// A stranger ends no lease, and may leave: no process would replace it.
#[test]
fn strangers_end_no_lease() {
    let mut voters = Voters::new(3);
    voters.pass(millis(5_000));
    let leader = voters.leader().expect("a leader");
    let (now, follower) = (voters.now, (leader + 1) % 3);
    let term = voters.voters[follower].lease_term().expect("a lease");
    let release =
        VoterMessage { process: process(leader), ..from(OTHER, Request::Release { term }) };
    assert_eq!(voters.voters[follower].handle_stranger(now, release), None);
    assert_eq!(voters.voters[follower].lease_term(), Some(term));
    let answer = voters.voters[leader].handle_stranger(now, from(OTHER, Request::Leave));
    assert!(answer.expect("an answer").body.is_granted);
}

/// A stranger does not receive the state of the job, another voter does.
#[test]
fn strangers_receive_no_state() {
    let mut voters = Voters::new(3);
    voters.pass(millis(5_000));
    let leader = voters.leader().expect("a leader");
    voters.voters[leader].handle_remember(voters.now, job_state(1)).expect("it leads");
    voters.deliver();
    let (now, leader) = (voters.now, &mut voters.voters[leader]);
    let answer = leader.handle_stranger(now, from(OTHER, Request::Hello));
    assert_eq!(answer.expect("an answer").body.replica, None);
    let answer = leader.handle_request(now, from(OTHER, Request::Hello));
    assert!(answer.expect("an answer").body.replica.is_some());
}

/// The replica of a job in which a process has no slot is not taken from an answer: perhaps no process can lead that
/// job any more. Only a leader gives it to a process.
#[test]
fn job_without_a_slot_is_not_learned() {
    for (places, is_taken) in [([1, 2, 3], false), ([0, 1, 2], true)] {
        let now = Voters::new(1).now;
        let mut voter = voter(now, 0, 3);
        let answer = Answer {
            replica: Some(Box::new(replica(job_state_of("earlier", 1), &places))),
            ..refusal()
        };
        voter.handle_answer(now, showing(1, job("earlier", &places), answer));
        assert_eq!(voter.replica().has_round(), is_taken);
        assert_eq!(others(&voter).len(), usize::from(!is_taken));
    }
}

/// A process that knows of another job does not begin one: its leadership ends instead of completing a first round.
/// When no process has shown that job for a while, it begins its own.
#[test]
fn process_that_was_shown_a_job_begins_none() {
    let mut voters = beginner();
    voters.voters[0].handle_known_job(voters.now, &job("earlier", &[OTHER]));
    assert_eq!(voters.leader(), Some(0), "the job may have ended");
    let now = voters.now;
    assert!(voters.voters[0].handle_remember(now, job_state(0)).is_some(), "it is no round");
    assert_eq!(voters.voters[0].handle_remember(now, job_state(1)), None);
    assert_eq!(voters.leader(), None);
    let effects = effects(&mut voters.voters[0]);
    assert!(effects.contains(&Effect::Follow { leader: None }), "{effects:?}");
    voters.pass(Timers::default().patience());
    assert_eq!(voters.leader(), Some(0));
    assert!(voters.voters[0].handle_remember(voters.now, job_state(1)).is_some());
}

/// Two of three hosts have lost their state files. They begin no other job as long as the third one shows theirs.
#[test]
fn one_voter_with_its_file_prevents_another_job() {
    let mut voters = Voters::new(3);
    voters.pass(millis(1_000));
    let leader = voters.leader().expect("a leader");
    voters.voters[leader].handle_remember(voters.now, job_state(1)).expect("it leads");
    voters.deliver();
    let lost = [(leader + 1) % 3, (leader + 2) % 3];
    // Until its lease has ended, it would still give its state to both.
    voters.is_down[leader] = true;
    voters.pass(Timers::default().leader_lease);
    voters.is_down[leader] = false;
    for place in lost {
        voters.lose_file(place, 70 + place as u64);
    }
    let begins = |voters: &mut Voters| {
        let now = voters.now;
        let begun = lost.map(|place| {
            voters.voters[place].handle_remember(now, job_state_of("another", 2)).is_some()
        });
        voters.deliver();
        begun.contains(&true)
    };
    for _ in 0..120 {
        voters.pass(millis(1_000));
        assert!(!begins(&mut voters));
    }
    for place in lost {
        assert_eq!(others(&voters.voters[place])[0].uid, uid("job"));
    }
    voters.is_down[leader] = true;
    voters.pass(Timers::default().patience() + millis(5_000));
    assert!(begins(&mut voters), "nobody knows the job any more");
}

/// A job is forgotten when no process has shown it for a while. The driver is informed of both.
#[test]
fn what_was_shown_expires() {
    let patience = Timers::default().patience();
    let mut now = Voters::new(1).now;
    let mut voter = voter(now, 0, 1);
    let is_shown = |voter: &mut Election| effects(voter).contains(&Effect::OtherJobs);
    voter.handle_known_job(now, &job("earlier", &[OTHER]));
    assert!(is_shown(&mut voter));
    pass(&mut voter, &mut now, patience - millis(1));
    voter.handle_known_job(now, &job("earlier", &[OTHER]));
    pass(&mut voter, &mut now, patience - millis(1));
    assert_eq!(others(&voter).len(), 1, "it was shown again");
    assert!(!is_shown(&mut voter), "nothing has changed");
    pass(&mut voter, &mut now, millis(1));
    assert_eq!(others(&voter), []);
    assert!(is_shown(&mut voter));
    assert!(!voter.connections().contains(&address(OTHER)));
}

/// The jobs that others have shown, and their addresses, are limited. The own address and the own job are not among
/// them.
#[test]
fn what_is_shown_is_limited() {
    let now = Voters::new(1).now;
    let mut voter = voter(now, 0, 1);
    for number in 0..2 * OTHER_JOBS_MAX {
        voter.handle_known_job(now, &job(&format!("job{number}"), &[0, OTHER]));
    }
    assert_eq!(others(&voter).len(), OTHER_JOBS_MAX);
    assert!(others(&voter).iter().all(|job| job.addresses == [address(OTHER)]));
    voter.handle_known_job(now, &job("job0", &Vec::from_iter(300..350)));
    assert_eq!(
        others(&voter)[0].addresses.len(),
        2 * VOTERS_MAX + 1,
        "the known one, and those of one list"
    );
    for first in 0..10 {
        let places: Vec<_> = (10 * first..10 * first + 20).collect();
        voter.handle_known_job(now, &job("job0", &places));
    }
    assert_eq!(others(&voter)[0].addresses.len(), 4 * VOTERS_MAX);
    for place in 100..200 {
        voter.handle_found(now, &address(place));
    }
    let found = voter.connections().iter().filter(|at| (100..200).contains(&place(at))).count();
    assert_eq!(found, 4 * VOTERS_MAX);

    let mut leader = leader_of("own", 1);
    leader.voters[0].handle_known_job(leader.now, &job("own", &[OTHER]));
    assert_eq!(others(&leader.voters[0]), []);
}

/// A job of which another process shows the end prevents nothing any more, even if a third one shows it again. The
/// driver is informed once, so that the next process at this place knows it, too.
#[test]
fn end_refutes_what_was_shown() {
    let mut voters = beginner();
    let now = voters.now;
    let earlier = job("earlier", &[OTHER]);
    voters.voters[0].handle_known_job(now, &earlier);
    let hello = VoterMessage { ended: vec![uid("earlier")], ..from(OTHER, Request::Hello) };
    for _ in 0..2 {
        voters.voters[0].handle_request(now, hello.clone());
    }
    let ended = |effect: &Effect| *effect == Effect::Ended(uid("earlier"));
    assert_eq!(effects(&mut voters.voters[0]).into_iter().filter(ended).count(), 1);
    voters.voters[0].handle_known_job(now, &earlier);
    assert_eq!(others(&voters.voters[0]), []);
    let shown = voters.voters[0].message(now, 1, ());
    assert_eq!(shown.ended, [uid("earlier")], "it refutes the job to others");
    assert!(voters.voters[0].handle_remember(now, job_state(1)).is_some());

    let mut next = Election::new(
        now,
        ElectionSettings { ended: shown.ended, ..voters.voters[0].settings.clone() },
        empty(),
        Term(0),
    );
    next.handle_known_job(now, &earlier);
    assert_eq!(others(&next), []);
}

/// A voter that missed a change of the voters asks a new one, which is not on its own list. An older list is of no use.
#[test]
fn newer_list_of_the_own_job_is_asked_for() {
    let now = Voters::new(1).now;
    let file = replica(job_state_of("job", 1), &[0, 3, 4]);
    let shows = |number| {
        let mut knows = file.knowledge();
        knows.version.number = number;
        let job = Some(job("job", &[0, 4, OTHER]));
        VoterMessage { knows, job, ..from(OTHER, Request::PreVote) }
    };
    let number = file.version.number;
    let mut voter = with_file(now, 0, file.clone());
    voter.handle_found(now, &address(0));
    assert!(!voter.connections().contains(&address(0)), "its own address");
    voter.handle_stranger(now, shows(number));
    assert!(!voter.connections().contains(&address(OTHER)));
    voter.handle_stranger(now, shows(number + 1));
    assert!(voter.connections().contains(&address(OTHER)));
    let job = Some(job("job", &Vec::from_iter(300..350)));
    voter.handle_stranger(now, VoterMessage { job, ..shows(number + 1) });
    let found = voter.connections().iter().filter(|at| place(at) >= 300).count();
    assert_eq!(found, 2 * VOTERS_MAX);
    let mut later = now;
    pass(&mut voter, &mut later, Timers::default().patience());
    assert!(!voter.connections().contains(&address(OTHER)));
}

/// The end of a job is not believed if a stranger shows it.
#[test]
fn strangers_do_not_end_jobs() {
    let now = Voters::new(1).now;
    let hello = || VoterMessage { ended: vec![uid("job")], ..from(OTHER, Request::Hello) };
    let mut young = voter(now, 0, 3);
    young.handle_known_job(now, &job("job", &[OTHER]));
    young.handle_stranger(now, hello());
    assert_eq!(others(&young).len(), 1);
    assert_eq!(young.message(now, 1, ()).ended, []);
    let file = replica(job_state_of("job", 1), &[0, 3, 4]);
    let mut with_file = with_file(now, 0, file.clone());
    with_file.handle_stranger(now, hello());
    assert_eq!(*with_file.replica(), file);
}

/// A leader without a round resigns as soon as another process answers that it leads a job that has one. It is believed
/// only in an answer.
#[test]
fn leader_without_a_round_resigns_to_one_with_a_round() {
    let mut voters = beginner();
    let now = voters.now;
    let earlier = || job("earlier", &[OTHER]);
    let request = showing(OTHER, earlier(), Request::Hello);
    voters.voters[0].handle_request(now, leading(leads(1), request));
    assert_eq!(voters.leader(), Some(0));
    voters.voters[0].handle_answer(now, showing(OTHER, earlier(), refusal()));
    assert_eq!(voters.leader(), Some(0), "it does not lead");
    let answer = showing(OTHER, earlier(), refusal());
    voters.voters[0].handle_answer(now, leading(leads(1), answer));
    assert_eq!(voters.leader(), None);
    let leader = Some((address(OTHER), Term(5 << 16)));
    assert_eq!(others(&voters.voters[0])[0].leader, leader);
    let effects = effects(&mut voters.voters[0]);
    assert!(
        effects.contains(&Effect::OtherJobs) && effects.contains(&Effect::Follow { leader: None })
    );
}

/// A process that knows of a job that is led does not stand, until no leader of that job has answered for a lease.
#[test]
fn process_that_was_shown_a_led_job_does_not_stand() {
    let mut now = Voters::new(1).now;
    let mut voter = voter(now, 0, 3);
    let stands = |voter: &mut Election| !asked(voter, |r| *r == Request::PreVote).is_empty();
    voter.handle_known_job(now, &job("earlier", &[OTHER]));
    for _ in 0..20 {
        let answer = showing(OTHER, job("earlier", &[OTHER]), refusal());
        voter.handle_answer(now, leading(leads(1), answer));
        pass(&mut voter, &mut now, millis(2_900));
        assert!(!stands(&mut voter));
    }
    pass(&mut voter, &mut now, millis(1_000));
    assert!(stands(&mut voter));
}

/// A process that joins a led job receives its state from the leader. Then the job that others show is its own one.
#[test]
fn shown_job_becomes_the_own_one() {
    let now = Voters::new(1).now;
    let mut voter = voter(now, 3, 3);
    voter.handle_known_job(now, &job("job", &[0, 1, 2]));
    assert_eq!(others(&voter).len(), 1);
    let term = Term(2 << 16);
    let renewed = Box::new(replica(job_state(1), &[0, 1, 2]));
    let renew = Request::Renew { term, replica: renewed, is_copied: true };
    let answer = voter.handle_request(now, showing(0, job("job", &[0, 1, 2]), renew));
    assert!(answer.expect("an answer").body.is_granted);
    assert_eq!(others(&voter), []);
    assert!(voter.replica().has_round());
}

/// The answer of another voter at the address of a slot makes the leader replace that slot at once by the member there.
/// Within a second after that, it is not replaced again: two processes at one address would replace each other without
/// end.
#[test]
fn another_voter_in_a_slot_replaces_it_at_once() {
    let mut voters = Voters::new(3);
    voters.pass(millis(1_000));
    let leader = voters.leader().expect("a leader");
    voters.voters[leader].handle_remember(voters.now, job_state(1)).expect("it leads");
    voters.deliver();
    voters.pass(millis(1_000));
    let lost = (leader + 1) % 3;
    let listed = |voters: &Voters, voter: u64| {
        let lists = &voters.voters[leader].replica().lists;
        lists.last.iter().any(|slot| slot.voter == Some(VoterId(voter)))
    };
    let register = |voters: &mut Voters| {
        let members = (0..3).map(|place| {
            let ElectionSettings { voter, address, .. } = &voters.voters[place].settings;
            Member { voter: *voter, address: address.clone() }
        });
        let report = MembersReport { members: members.collect(), wanted: 3, has_nodes: true };
        voters.voters[leader].handle_members(voters.now, report);
        voters.deliver();
    };
    voters.lose_file(lost, 77);
    register(&mut voters);
    voters.pass(millis(250));
    assert!(listed(&voters, 77) && !listed(&voters, lost as u64));
    voters.lose_file(lost, 78);
    register(&mut voters);
    voters.pass(millis(700));
    assert!(listed(&voters, 77) && !listed(&voters, 78));
    voters.pass(millis(400));
    assert!(listed(&voters, 78) && !listed(&voters, 77));
    assert_eq!(voters.leader(), Some(leader));
    assert_eq!(voters.led(leader).len(), 1, "its lease did not end");
}

/// A leader that ends its leadership releases the leases of members that could become voters, too.
#[test]
fn learners_are_released() {
    let mut voters = leader_of("job", 1);
    let member = |place: usize| Member { voter: VoterId(place as u64), address: address(place) };
    let members = vec![member(0), member(OTHER)];
    let report = MembersReport { members, wanted: 1, has_nodes: true };
    voters.voters[0].handle_members(voters.now, report);
    let renewal = voters.now + Timers::default().renewal;
    voters.voters[0].handle_timeout(renewal);
    let renewed = asked(&mut voters.voters[0], |r| matches!(r, Request::Renew { .. }));
    assert_eq!(renewed, BTreeSet::from([OTHER]));
    voters.voters[0].handle_leaving(renewal);
    let released = asked(&mut voters.voters[0], |r| matches!(r, Request::Release { .. }));
    assert_eq!(released, BTreeSet::from([OTHER]));
}

/// Terms of another job mean nothing in this one: its requests receive no vote and no lease, and end no
/// leadership. Its answers elect no leader.
#[test]
fn terms_of_another_job_are_ignored() {
    let mut voters = leader_of("own", 1);
    let (now, high) = (voters.now, Term(1 << 40));
    let (highest, until) = (voters.voters[0].highest(), voters.voters[0].leads_until());
    let another = || job("another", &[OTHER]);
    let renewed = Box::new(replica(job_state_of("another", 2), &[0, OTHER]));
    let requests = [
        Request::PreVote,
        Request::Vote { term: high },
        Request::Renew { term: high, replica: renewed.clone(), is_copied: true },
        Request::Release { term: highest },
    ];
    for request in requests {
        let message = VoterMessage { highest: high, ..showing(OTHER, another(), request) };
        let answer = voters.voters[0].handle_request(now, message);
        assert!(
            answer.is_none_or(|answer| !answer.body.is_granted && answer.body.replica.is_none())
        );
    }
    let answer = Answer { is_granted: true, replica: Some(renewed), ..refusal() };
    let answer = VoterMessage { highest: high, ..showing(OTHER, another(), answer) };
    voters.voters[0].handle_answer(now, answer);
    let leader = &voters.voters[0];
    assert_eq!((leader.highest(), leader.leads_until()), (highest, until));
    assert_eq!(job_uid(leader.replica()), Some(&uid("own")));
}

/// A candidate does not count the votes of voters of another job.
#[test]
fn votes_of_another_job_do_not_count() {
    let mut now = Voters::new(1).now;
    let mut voter = with_file(now, 0, replica(job_state_of("own", 1), &[0, 1, 2]));
    pass(&mut voter, &mut now, millis(3_100));
    assert!(matches!(voter.role, Role::PreCandidate(_)));
    let sequence = voter.sequence;
    for place in [1, 2] {
        let answer =
            showing(place, job("another", &[1, 2]), Answer { is_granted: true, ..refusal() });
        voter.handle_answer(now, VoterMessage { sequence, ..answer });
    }
    assert!(matches!(voter.role, Role::PreCandidate(_)));
}

/// Of two jobs that are led, the younger one yields, once: as soon as the elder one's leader answers and has nodes.
#[test]
fn younger_job_yields() {
    for (born_ms, name, is_younger) in [(200, "a", true), (100, "b", true), (100, "0", false)] {
        let mut voters = leader_of(name, born_ms);
        let now = voters.now;
        let leader = &mut voters.voters[0];
        let elder = || job("a0", &[OTHER]);
        let request = showing(OTHER, elder(), Request::Hello);
        leader.handle_request(now, leading(leads(100), request));
        leader.handle_answer(now, showing(OTHER, elder(), refusal()));
        let alone = Leads { has_nodes: false, ..leads(100).expect("it leads") };
        let answer = leading(Some(alone), showing(OTHER, elder(), refusal()));
        leader.handle_answer(now, answer.clone());
        assert_eq!(yields(leader), [], "{name}");
        let answer = leading(leads(100), answer);
        leader.handle_answer(now, answer.clone());
        let other = (uid("a0"), OTHER);
        assert_eq!(yields(leader), Vec::from_iter(is_younger.then_some(other)), "{name}");
        leader.handle_answer(now, answer);
        assert_eq!(yields(leader), [], "it does so once");
    }
}

/// The driver is informed of the leader of another job when its address or its term changes.
#[test]
fn leader_of_another_job_is_reported() {
    let mut voters = leader_of("own", 1);
    let (now, other) = (voters.now, job("other", &[OTHER, OTHER + 1]));
    voters.voters[0].handle_known_job(now, &other);
    effects(&mut voters.voters[0]);
    let mut is_reported = |place, term: u64| {
        let leads = leads(100).map(|leads| Leads { term: Term(term << 16), ..leads });
        let answer = leading(leads, showing(place, other.clone(), refusal()));
        voters.voters[0].handle_answer(now, answer);
        effects(&mut voters.voters[0]).contains(&Effect::OtherJobs)
    };
    assert!(is_reported(OTHER, 5) && !is_reported(OTHER, 5));
    assert!(is_reported(OTHER + 1, 5) && is_reported(OTHER + 1, 6) && !is_reported(OTHER + 1, 6));
}

/// Jobs are ordered by the time of their birth, and then by their uids.
#[test]
fn seniority() {
    let born = |born_ms, name| Seniority { born_ms, uid: uid(name) };
    assert!(born(1, "b") < born(2, "a") && born(1, "a") < born(1, "b"));
}

/// A voter of the younger job that does not lead it yields only if that job has had no leader for a lease: its leader
/// closes it for all nodes.
#[test]
fn followers_leave_the_end_to_their_leader() {
    let mut voters = Voters::new(3);
    voters.pass(millis(1_000));
    let leader = voters.leader().expect("a leader");
    voters.voters[leader].handle_remember(voters.now, job_state_of("own", 200)).expect("it leads");
    voters.deliver();
    let follower = (leader + 1) % 3;
    let answer = || {
        let answer = showing(OTHER, job("elder", &[OTHER]), refusal());
        leading(leads(100), answer)
    };
    voters.voters[follower].handle_known_job(voters.now, &job("elder", &[OTHER]));
    voters.voters[follower].handle_answer(voters.now, answer());
    assert_eq!(yields(&mut voters.voters[follower]), []);
    let mut now = voters.now;
    let follower = &mut voters.voters[follower];
    // Its lease, and then another one without a leader.
    pass(follower, &mut now, Timers::default().voter_lease);
    follower.handle_answer(now, answer());
    assert_eq!(yields(follower), []);
    pass(follower, &mut now, Timers::default().voter_lease);
    follower.handle_answer(now, answer());
    assert_eq!(yields(follower), [(uid("elder"), OTHER)]);
}

/// Reports the members of the job of a leader.
fn report_members(voters: &mut Voters, has_nodes: bool) {
    let report = MembersReport { members: Vec::new(), wanted: 1, has_nodes };
    voters.voters[0].handle_members(voters.now, report);
}

/// An elder job with a leader but without enough nodes yields to a younger one with enough. Otherwise both would wait.
#[test]
fn elder_job_yields_without_nodes() {
    let patience = Timers::default().patience();
    for (has_nodes, yields_to) in [(true, Some((uid("younger"), OTHER))), (false, None)] {
        let mut voters = leader_of("own", 100);
        let answer = || {
            let leads = leads(200).map(|leads| Leads { has_nodes, ..leads });
            leading(leads, showing(OTHER, job("younger", &[OTHER]), refusal()))
        };
        report_members(&mut voters, true);
        voters.pass(patience);
        report_members(&mut voters, false);
        voters.voters[0].handle_known_job(voters.now, &job("younger", &[OTHER]));
        for time in [patience - millis(100), millis(100)] {
            assert_eq!(yields(&mut voters.voters[0]), []);
            voters.pass(time);
            // A report without a change does not begin the time again.
            report_members(&mut voters, false);
            voters.voters[0].handle_known_job(voters.now, &job("younger", &[OTHER]));
            voters.voters[0].handle_answer(voters.now, answer());
        }
        assert_eq!(yields(&mut voters.voters[0]), Vec::from_iter(yields_to));
    }
}

/// An elder job with nodes never yields to a younger one while it has a leader. Without one it does after a while: its majority
/// may be lost.
#[test]
fn elder_job_yields_only_without_a_leader() {
    let mut voters = leader_of("own", 100);
    report_members(&mut voters, true);
    let answer = || {
        let answer = showing(OTHER, job("younger", &[OTHER]), refusal());
        leading(leads(200), answer)
    };
    voters.voters[0].handle_known_job(voters.now, &job("younger", &[OTHER]));
    for _ in 0..60 {
        voters.pass(millis(1_000));
        voters.voters[0].handle_answer(voters.now, answer());
        assert_eq!(yields(&mut voters.voters[0]), []);
    }

    let mut now = voters.now;
    let mut voter = with_file(now, 0, replica(job_state_of("own", 100), &[0, 1, 2]));
    voter.handle_known_job(now, &job("younger", &[OTHER]));
    let patience = Timers::default().patience();
    pass(&mut voter, &mut now, patience - millis(1));
    voter.handle_known_job(now, &job("younger", &[OTHER]));
    voter.handle_answer(now, answer());
    assert_eq!(yields(&mut voter), []);
    pass(&mut voter, &mut now, millis(1));
    voter.handle_answer(now, answer());
    assert_eq!(yields(&mut voter), [(uid("younger"), OTHER)]);
}

/// A job that has ended does not yield: its nodes receive its own outcome.
#[test]
fn ended_job_does_not_yield() {
    let mut voters = leader_of("own", 200);
    voters.voters[0]
        .handle_remember(voters.now, closed(job_state_of("own", 200)))
        .expect("it leads");
    voters.voters[0].handle_known_job(voters.now, &job("elder", &[OTHER]));
    let answer = showing(OTHER, job("elder", &[OTHER]), refusal());
    voters.voters[0].handle_answer(voters.now, leading(leads(100), answer));
    assert_eq!(yields(&mut voters.voters[0]), []);
}

pub(super) fn listed() -> Lists {
    Lists::listed(&[0, 1, 2].map(address))
}
