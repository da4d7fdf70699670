//! Elections with a made-up clock and a network that delivers at once.

use std::{collections::VecDeque, iter};

use super::*;
use crate::ids::JobUid;

/// Voters of one list; a voter that is down receives nothing.
struct Voters {
    now: Instant,
    voters: Vec<Election>,
    is_down: Vec<bool>,
    /// The effects that concern nobody else, by voter.
    seen: Vec<Vec<Effect>>,
}

fn process(place: usize) -> NodeId {
    NodeId::new(format!("process{place}"))
}

fn empty() -> Replica {
    Replica { version: Version::default(), memory: None }
}

fn voter(now: Instant, place: usize, voters: usize) -> Election {
    let settings = Settings {
        place: Place(place),
        voters,
        process: process(place),
        timers: Timers::default(),
        seed: place as u64,
    };
    Election::new(now, settings, empty(), Term(0))
}

impl Voters {
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
    fn new(count: usize) -> Self {
        let now = Instant::now();
        let voters = (0..count).map(|place| voter(now, place, count)).collect();
        Self { now, voters, is_down: vec![false; count], seen: vec![Vec::new(); count] }
    }

    /// Lets `time` pass; deadlines are handled when they are due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let up = |(place, _): &(usize, &Election)| !self.is_down[*place];
            let voters = self.voters.iter().enumerate().filter(up);
            let next =
                voters.filter_map(|(place, voter)| Some((voter.poll_timeout()?, place))).min();
            let Some((at, place)) = next.filter(|(at, _)| *at <= end) else { break };
            self.now = self.now.max(at);
            self.voters[place].handle_timeout(self.now);
            self.deliver();
        }
        self.now = end;
    }

    /// Delivers all messages, and the answers.
    fn deliver(&mut self) {
        let mut requests = VecDeque::new();
        loop {
            for place in 0..self.voters.len() {
                for effect in iter::from_fn(|| self.voters[place].poll_effect()) {
                    match effect {
                        Effect::Send { to, message } => requests.push_back((to, message)),
                        _ => self.seen[place].push(effect),
                    }
                }
            }
            let Some((to, message)) = requests.pop_front() else { return };
            let from = message.place;
            if self.is_down[to.0] || self.is_down[from.0] {
                continue;
            }
            if let Some(answer) = self.voters[to.0].handle_request(self.now, message) {
                self.voters[from.0].handle_answer(self.now, answer);
            }
        }
    }

    fn leader(&self) -> Option<usize> {
        let leads = |place: &usize| {
            let until = self.voters[*place].leads_until();
            !self.is_down[*place] && until.is_some_and(|until| self.now < until)
        };
        let leaders: Vec<usize> = (0..self.voters.len()).filter(leads).collect();
        assert!(leaders.len() < 2, "{leaders:?} lead");
        leaders.first().copied()
    }

    /// Returns the leaderships that began at a place.
    fn led(&self, place: usize) -> Vec<Leadership> {
        let leadership = |effect: &Effect| match effect {
            Effect::Lead(leadership) => Some((**leadership).clone()),
            _ => None,
        };
        self.seen[place].iter().filter_map(leadership).collect()
    }

    /// Starts another process at a place.
    fn restart(&mut self, place: usize, highest: Term) {
        let mut settings = self.voters[place].settings.clone();
        settings.process = NodeId::new(format!("another{place}"));
        self.voters[place] = Election::new(self.now, settings, empty(), highest);
        self.is_down[place] = false;
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn memory(round: u64) -> Memory {
    Memory { round: crate::ids::Round(round), ..Memory::fresh(JobUid::new("job")) }
}

/// A vote that `place` asks for.
fn vote(place: usize, term: Term, cold: Option<NodeId>) -> VoterMessage<Request> {
    VoterMessage {
        place: Place(place),
        process: process(place),
        is_fresh: false,
        highest: term,
        sequence: 1,
        body: Request::Vote { term, cold },
    }
}

/// Voters that were all started a moment ago elect one of them at once, and it stays.
#[test]
fn fresh_voters_elect_at_once() {
    for count in [1, 3, 5] {
        let mut voters = Voters::new(count);
        voters.pass(millis(400));
        let leader = voters.leader().expect("a leader");
        voters.pass(millis(60_000));
        assert_eq!(voters.leader(), Some(leader));
        assert_eq!(voters.led(leader).len(), 1, "elected once");
    }
}

/// If one voter is missing, the others may have forgotten that it leads: they wait for a lease.
#[test]
fn fresh_voters_wait_for_a_lease_if_one_is_missing() {
    let mut voters = Voters::new(3);
    voters.is_down[2] = true;
    voters.pass(millis(2_900));
    assert_eq!(voters.leader(), None);
    voters.pass(millis(600));
    assert!(voters.leader().is_some());
}

/// Without a majority there is no leader.
#[test]
fn minority_elects_nobody() {
    let mut voters = Voters::new(3);
    voters.is_down[1] = true;
    voters.is_down[2] = true;
    voters.pass(millis(60_000));
    assert_eq!(voters.leader(), None);
}

/// The loss of the leader is followed by another one when the voters' leases are over, and that one waits
/// for nobody's workers.
#[test]
fn lost_leader_is_replaced_after_its_lease() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let first = voters.leader().expect("a leader");
    voters.is_down[first] = true;
    voters.pass(millis(2_700));
    assert_eq!(voters.leader(), None);
    voters.pass(millis(700));
    let second = voters.leader().expect("another leader");
    let leadership = voters.led(second).pop().expect("one began");
    assert_eq!(leadership.former, Some(process(first)));
    assert!(leadership.others_until <= voters.now);
    assert!(leadership.term > voters.led(first)[0].term);
}

/// A leader that leaves is replaced at once; the workers under it may still run for a while.
#[test]
fn leader_that_leaves_is_replaced_at_once() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let first = voters.leader().expect("a leader");
    let until = voters.voters[first].leads_until();
    voters.voters[first].handle_leaving(voters.now);
    voters.deliver();
    voters.pass(millis(250));
    let second = voters.leader().expect("another leader");
    assert_ne!(first, second);
    let leadership = voters.led(second).pop().expect("one began");
    assert!(Some(leadership.others_until) >= until, "workers may live as long as the lease");
    voters.pass(millis(60_000));
    assert_eq!(voters.leader(), Some(second), "a voter that leaves does not stand");
}

/// An obituary ends the lease of the process that it names, and of no other.
#[test]
fn obituary_ends_the_lease_of_that_process() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let first = voters.leader().expect("a leader");
    voters.is_down[first] = true;
    for place in (0..3).filter(|place| *place != first) {
        voters.voters[place].handle_obituary(voters.now, &NodeId::new("another"));
    }
    voters.pass(millis(250));
    assert_eq!(voters.leader(), None);
    for place in (0..3).filter(|place| *place != first) {
        voters.voters[place].handle_obituary(voters.now, &process(first));
    }
    voters.pass(millis(250));
    assert!(voters.leader().is_some());
}

/// A leader that reaches no majority stops to lead by itself, before the leases of the others end.
#[test]
fn leader_without_majority_ends() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    for place in (0..3).filter(|place| *place != leader) {
        voters.is_down[place] = true;
    }
    voters.pass(millis(2_500));
    assert_eq!(voters.leader(), None);
    assert_eq!(voters.seen[leader].last(), Some(&Effect::Follow { leader: None }));
}

/// What the leader remembers is copied to a majority, and a successor has it.
#[test]
fn memory_survives_the_leader() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let first = voters.leader().expect("a leader");
    let now = voters.now;
    let version = voters.voters[first].handle_remember(now, memory(7)).expect("it leads");
    assert!(!voters.seen[first].contains(&Effect::Copied(version)));
    voters.deliver();
    assert!(voters.seen[first].contains(&Effect::Copied(version)));
    voters.is_down[first] = true;
    voters.pass(millis(4_000));
    let second = voters.leader().expect("another leader");
    let inherited = voters.led(second).pop().and_then(|leadership| leadership.memory);
    assert_eq!(inherited, Some(memory(7)));
}

/// A memory that only a minority has is not reported as copied, and only a leader changes it.
#[test]
fn memory_needs_a_majority() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    let other = (leader + 1) % 3;
    assert_eq!(voters.voters[other].handle_remember(voters.now, memory(1)), None);
    for place in (0..3).filter(|place| *place != leader) {
        voters.is_down[place] = true;
    }
    let now = voters.now;
    let version = voters.voters[leader].handle_remember(now, memory(7)).expect("it leads");
    voters.pass(millis(2_500));
    assert!(!voters.seen[leader].contains(&Effect::Copied(version)));
}

/// A voter votes once in a term, and not while another process leads.
#[test]
fn one_vote_in_a_term_and_none_under_a_lease() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    let follower = (leader + 1) % 3;
    let (now, high) = (voters.now, Term(u64::from(u32::MAX)));
    let answer = voters.voters[follower].handle_request(now, vote((leader + 2) % 3, high, None));
    assert!(!answer.expect("an answer").body.is_granted, "another leads");

    let mut alone = voter(now, 0, 3);
    let granted = |alone: &mut Election, place, term| {
        let answer = alone.handle_request(now, vote(place, term, None));
        answer.expect("an answer").body.is_granted
    };
    assert!(granted(&mut alone, 1, Term(5)));
    assert!(!granted(&mut alone, 2, Term(5)), "the same term");
    assert!(granted(&mut alone, 2, Term(6)));
    assert!(!granted(&mut alone, 1, Term(u64::MAX)), "no term is left above it");
}

/// In an election among fresh voters only the processes that were asked first vote.
#[test]
fn cold_vote_is_for_one_process() {
    let now = Voters::new(1).now;
    let mut fresh = voter(now, 0, 3);
    let other = vote(1, Term(5), Some(NodeId::new("another0")));
    assert!(!fresh.handle_request(now, other).expect("an answer").body.is_granted);
    let own = vote(1, Term(6), Some(process(0)));
    assert!(fresh.handle_request(now, own).expect("an answer").body.is_granted);
}

/// A voter that was started again while another leads follows it, and grants nothing for a lease.
#[test]
fn restarted_voter_is_silent_for_a_lease() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    let (restarted, lost) = ((leader + 1) % 3, (leader + 2) % 3);
    voters.is_down[lost] = true;
    voters.restart(restarted, Term(0));
    voters.pass(millis(2_900));
    assert_eq!(voters.leader(), None, "its grants do not count yet");
    voters.pass(millis(700));
    assert!(voters.leader().is_some());
}

/// A leader that learns of a higher term resigns, and is elected above it.
#[test]
fn leader_below_a_known_term_resigns() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    let known = Term(50 << 16);
    let now = voters.now;
    voters.voters[leader].handle_highest(now, known);
    voters.deliver();
    assert_eq!(voters.leader(), None);
    voters.pass(millis(400));
    let next = voters.leader().expect("a leader");
    assert!(voters.led(next).last().expect("one began").term > known);
}

/// A process that was stopped for longer than its lease does not lead when it goes on, whatever arrives first.
#[test]
fn frozen_leader_does_not_act() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    let late = voters.now + millis(2_500);
    let version = voters.voters[leader].handle_remember(late, memory(1));
    assert_eq!(version, None);
    assert_eq!(voters.voters[leader].leads_until(), None);
}

/// Two names of one process in the list are reported.
#[test]
fn process_at_two_places_is_reported() {
    let now = Voters::new(1).now;
    let mut first = voter(now, 0, 3);
    first.handle_timeout(now + millis(200));
    let asked = iter::from_fn(|| first.poll_effect()).find_map(|effect| match effect {
        Effect::Send { to: Place(1), message } => Some(message),
        _ => None,
    });
    let mut same = voter(now, 1, 3);
    same.settings.process = process(0);
    let answer =
        same.handle_request(now + millis(200), asked.expect("it asks")).expect("an answer");
    first.handle_answer(now + millis(200), answer);
    let effects: Vec<Effect> = iter::from_fn(|| first.poll_effect()).collect();
    assert!(effects.contains(&Effect::Duplicate { place: Place(1) }), "{effects:?}");
}

/// Terms that two processes propose at the same time differ, and a later one is higher.
#[test]
fn proposed_terms_are_unique() {
    let term = Term(7 << 16 | 0x1234).proposed(0xffff);
    assert_eq!(term, Term(8 << 16 | 0xffff));
    assert!(term.proposed(0) > term);
    assert_ne!(term.proposed(1), term.proposed(2));
}

/// The default leases leave the keepers time: with clocks that drift by one per cent, workers of the old leader
/// are dead before another one can be elected.
#[test]
fn leases_leave_time_for_keepers() {
    let Timers { leader_lease, voter_lease, .. } = Timers::default();
    let keeper = millis(500);
    assert!((leader_lease + keeper).mul_f64(1.01) <= voter_lease.mul_f64(0.99));
}
