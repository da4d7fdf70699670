//! Elections with a simulated clock and a network that delivers at once.

use std::{collections::VecDeque, iter};

use std::time::Duration;

use ragent_rendezvous::{
    ids::{JobUid, VoterId},
    settings::NodeRange,
};

mod changes;
mod ended_jobs;
mod other_jobs;
mod renewals;

use super::{timers::Timers, *};

/// Voters of one list. A voter that is down receives nothing, and other addresses have no process.
struct Voters {
    now: Instant,
    voters: Vec<Election>,
    is_down: Vec<bool>,
    /// The effects other than messages, by voter.
    seen: Vec<Vec<Effect>>,
    /// The connections of each of them that are open.
    links: Vec<BTreeSet<VoterAddress>>,
}

fn process(place: usize) -> NodeId {
    NodeId::new(format!("process{place}"))
}

fn address(place: usize) -> VoterAddress {
    VoterAddress::new(format!("host{place}"))
}

fn place(address: &VoterAddress) -> usize {
    address.as_str().trim_start_matches("host").parse().expect("an address of this test")
}

fn empty() -> Replica {
    Replica::default()
}

/// Starts a voter of a job of which no earlier one can exist.
fn voter(now: Instant, place: usize, voters: usize) -> Election {
    let settings = ElectionSettings {
        voter: VoterId(place as u64),
        is_new: true,
        is_first_start: true,
        ended: Vec::new(),
        address: address(place),
        listed: (0..voters).map(address).collect(),
        process: process(place),
        timers: Timers::default(),
        seed: place as u64,
    };
    Election::new(now, settings, empty(), Term(0))
}

impl Voters {
    /// Creates the processes of a list.
    fn new(count: usize) -> Self {
        Self::listed(count, count)
    }

    /// Lets `time` pass. Deadlines are handled when they are due.
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
                let needed = self.voters[place].connections();
                self.links[place].retain(|address| needed.contains(address));
                for address in needed {
                    if self.links[place].insert(address.clone()) {
                        self.voters[place].handle_connected(self.now, &address);
                    }
                }
                for effect in iter::from_fn(|| self.voters[place].poll_effect()) {
                    match effect {
                        Effect::Send { to, message } => requests.push_back((to, message)),
                        _ => self.seen[place].push(effect),
                    }
                }
            }
            let Some((to, message)) = requests.pop_front() else { return };
            let place = |at: &VoterAddress| {
                let mut voters = self.voters.iter().zip(&self.is_down);
                voters.position(|(voter, is_down)| voter.settings.address == *at && !is_down)
            };
            let (Some(from), Some(to)) = (place(&message.address), place(&to)) else { continue };
            if let Some(answer) = self.voters[to].handle_request(self.now, message) {
                self.voters[from].handle_answer(self.now, answer);
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
    fn led(&self, place: usize) -> Vec<NewLeadership> {
        let leadership = |effect: &Effect| match effect {
            Effect::Lead(leadership) => Some((**leadership).clone()),
            _ => None,
        };
        self.seen[place].iter().filter_map(leadership).collect()
    }

    /// Creates voters of which each may have forgotten a job: they were just started.
    fn just_started(count: usize) -> Self {
        let mut voters = Self::new(count);
        for place in 0..count {
            voters.restart(place, Term(0));
        }
        voters
    }

    /// Starts another process at a place. It may have forgotten a promise, or a job.
    fn restart(&mut self, place: usize, highest: Term) {
        let mut settings = self.voters[place].settings.clone();
        settings.process = NodeId::new(format!("another{place}"));
        settings.is_first_start = false;
        self.start(place, settings, highest);
    }

    /// Starts another process at a place, which has lost its state file: it is another voter.
    fn lose_file(&mut self, place: usize, voter: u64) {
        let mut settings = self.voters[place].settings.clone();
        settings.process = NodeId::new(format!("another{place}"));
        settings.is_first_start = false;
        settings.voter = VoterId(voter);
        self.start(place, settings, Term(0));
    }

    /// Starts a process without a state at a place. The connections to the process before it end.
    fn start(&mut self, place: usize, settings: ElectionSettings, highest: Term) {
        self.voters[place] = Election::new(self.now, settings, empty(), highest);
        self.is_down[place] = false;
        self.seen[place].clear();
        self.links[place].clear();
        for (voter, links) in self.voters.iter_mut().zip(&mut self.links) {
            links.remove(&address(place));
            voter.handle_disconnected(&address(place));
        }
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn job_state(round: u64) -> JobState {
    JobState { round: Round(round), round_size: 3, ..JobState::new(JobUid::new("job")) }
}

/// A vote that `place` asks for.
fn vote(place: usize, term: Term) -> VoterMessage<Request> {
    VoterMessage {
        voter: VoterId(place as u64),
        address: address(place),
        knows: Knowledge::default(),
        process: process(place),
        has_just_started: false,
        highest: term,
        job: None,
        ended: Vec::new(),
        sequence: 1,
        body: Request::Vote { term },
    }
}

/// If no earlier job can exist, voters elect one of them at once, and it remains the leader.
#[test]
fn voters_of_a_first_job_elect_at_once() {
    for count in [1, 3, 5] {
        let mut voters = Voters::new(count);
        voters.pass(millis(400));
        let leader = voters.leader().expect("a leader");
        voters.pass(millis(60_000));
        assert_eq!(voters.leader(), Some(leader));
        assert_eq!(voters.led(leader).len(), 1, "elected once");
        let seen = &voters.seen[leader];
        assert!(
            !seen.iter().any(|effect| matches!(effect, Effect::Copied(_))),
            "nothing is written"
        );
        let ends: Vec<_> = seen
            .iter()
            .filter_map(
                |effect| if let Effect::Extend(until) = effect { Some(until) } else { None },
            )
            .collect();
        assert!(ends.is_sorted_by(|one, next| one < next), "each one is reported once");
    }
}

/// The only voter has no rival, and leads without any delay.
#[test]
fn only_voter_leads_at_once() {
    let mut voters = Voters::new(1);
    voters.pass(Duration::ZERO);
    assert_eq!(voters.leader(), Some(0));
}

/// The voter that the user has listed first leads.
#[test]
fn first_listed_voter_leads() {
    for first in 0..3 {
        let mut voters = Voters::new(3);
        for place in 0..3 {
            let mut settings = voters.voters[place].settings.clone();
            settings.listed.rotate_left(first);
            voters.voters[place] = Election::new(voters.now, settings, empty(), Term(0));
        }
        voters.pass(millis(400));
        assert_eq!(voters.leader(), Some(first));
    }
}

/// A voter that has voted does not become a candidate before the other candidate's poll has ended, however often
/// that candidate has failed.
#[test]
fn voter_waits_for_the_longest_poll() {
    let now = Voters::new(1).now;
    let mut voter = voter(now, 0, 3);
    let answer = voter.handle_request(now, vote(1, Term(7))).expect("an answer");
    assert!(answer.body.is_granted);
    let Role::Follower { stands_at } = voter.role else { panic!("it does not stand yet") };
    assert!(stands_at >= now + millis(1_200) + Timers::default().pause);
}

/// Even the first of several voters waits for a random time before it becomes a candidate. A single voter has no rival.
#[test]
fn only_a_single_voter_stands_at_once() {
    let stands_after = |count| {
        let now = Voters::new(1).now;
        let mut voter = voter(now, 0, count);
        voter.stand_after(now, Duration::ZERO);
        let Role::Follower { stands_at } = voter.role else { panic!("it stands") };
        stands_at - now
    };
    assert_eq!(stands_after(1), Duration::ZERO);
    assert!(stands_after(3) > Duration::ZERO);
}

/// A voter votes only for a candidate that knows at least as much. While a process has the voter's lease, it votes for no other.
#[test]
fn votes_are_for_those_that_know_as_much() {
    let now = Voters::new(1).now;
    let (mut voter, one, two) = (voter(now, 0, 3).voter, process(1), process(2));
    let version = Version { term: Term(3), number: 7 };
    let replica = Replica { version, ..voter.replica().clone() };
    let (knows, less) = (replica.knowledge(), empty().knowledge());
    assert!(voter.renew(now, Timers::default(), (&one, Term(3)), &replica));
    assert!(voter.accepts(now, &one, knows) && !voter.accepts(now, &one, less));
    assert!(!voter.accepts(now, &two, knows) && !voter.vote(now, (&two, knows), Term(4)));
    let later = now + Timers::default().voter_lease;
    assert!(!voter.accepts(later, &two, less) && !voter.vote(later, (&two, less), Term(4)));
    assert!(voter.accepts(later, &two, knows) && voter.vote(later, (&two, knows), Term(4)));
    assert!(!voter.vote(later, (&one, knows), Term(4)), "it has voted in this term");

    // It grants no renewal below the term of its vote, without the newest state, or to another process.
    let unknown = Replica { version: Version { term: Term(1), number: 0 }, ..replica.clone() };
    let renews = |voter: &mut Voter, process, term, replica| {
        voter.renew(later, Timers::default(), (process, Term(term)), replica)
    };
    assert!(!renews(&mut voter, &two, 3, &replica) && !renews(&mut voter, &two, 4, &unknown));
    assert!(renews(&mut voter, &two, 4, &replica) && !renews(&mut voter, &one, 5, &replica));
}

/// A voter takes over lists of a newer state only if they are valid.
#[test]
fn invalid_lists_are_not_taken_over() {
    let now = Voters::new(1).now;
    let mut voter = voter(now, 0, 3).voter;
    let version = Version { term: Term(3), number: 7 };
    let valid = Replica { version, ..voter.replica().clone() };
    let lists = Lists { before: None, last: Vec::new() };
    assert!(!voter.take(&Replica { lists, ..valid.clone() }));
    assert!(voter.take(&valid) && !voter.take(&valid), "the same state is not newer");
}

/// An answer counts if it belongs to the poll, and the first one of each voter counts.
#[test]
fn answers_belong_to_their_poll() {
    let now = Voters::new(1).now;
    let mut poll = Poll::new(2, now);
    let mut record = |sequence| {
        let other = voter(now, 1, 3);
        let answer = other.voter.answer(now, true, Knowledge::default());
        poll.record(now, Timers::default(), other.message(now, sequence, answer))
    };
    assert_eq!([record(1), record(2), record(2)], [false, true, false]);
}

/// An answer of a process that was not asked changes nothing.
#[test]
fn answers_of_strangers_do_not_count() {
    let now = Voters::new(1).now;
    for (place, highest) in [(9, Term(0)), (1, Term(50))] {
        let (mut asker, other) = (voter(now, 0, 3), voter(now, place, 3));
        let answer = other.voter.answer(now, false, Knowledge::default());
        let message = VoterMessage { highest: Term(50), ..other.message(now, 1, answer) };
        asker.handle_answer(now, message);
        assert_eq!(asker.highest(), highest);
    }
}

/// The time of the last answer of each voter is known, to be shown to the user.
#[test]
fn last_answers_are_known() {
    let mut voters = Voters::new(3);
    assert!(voters.voters[0].answered().is_empty());
    voters.pass(millis(10_000));
    assert_eq!(voters.leader(), Some(0));
    voters.is_down[1] = true;
    let down = voters.now;
    voters.pass(millis(12_000));
    let answered = voters.voters[0].answered();
    assert!(answered[&address(1)] <= down, "{answered:?}");
    let interval = Timers::default().renewal;
    assert!(answered[&address(2)] + interval >= voters.now, "{answered:?}");
}

/// A leader whose coordinator has ended resigns, in that term only, and another voter leads.
#[test]
fn leader_resigns_with_its_coordinator() {
    let mut voters = Voters::new(3);
    voters.pass(millis(5_000));
    let leader = voters.leader().expect("a leader");
    let (now, term) = (voters.now, voters.voters[leader].highest());
    voters.voters[leader].handle_resigned(now, Term(term.0 - 1));
    assert!(voters.voters[leader].leads_until().is_some());
    let renewal = voters.voters[leader].sequence;
    voters.voters[leader].handle_resigned(now, term);
    assert_eq!(voters.voters[leader].leads_until(), None);
    assert_eq!(voters.voters[leader].sequence, renewal + 1, "the release has a number of its own");
    voters.pass(millis(2_000));
    assert!(voters.leader().is_some());
}

/// Voters that were just started may have forgotten a job, and a lease of it: they elect no leader before such a lease has
/// ended, whether all of them are there or a majority is, and one of them right after it.
#[test]
fn voters_that_have_just_started_wait_for_a_lease() {
    for (count, missing) in [(1, 0), (3, 0), (3, 1), (5, 2)] {
        let mut voters = Voters::just_started(count);
        voters.is_down[count - missing..].fill(true);
        voters.pass(millis(2_999));
        assert_eq!(voters.leader(), None);
        assert!((0..count).all(|place| voters.led(place).is_empty()));
        voters.pass(millis(400));
        assert!(voters.leader().is_some(), "{missing} of {count} are missing");
    }
}

/// Voters that were just started do not elect a candidate that was not, either.
#[test]
fn votes_soon_after_a_start_do_not_count() {
    let mut voters = Voters::new(3);
    voters.restart(1, Term(0));
    voters.restart(2, Term(0));
    voters.pass(millis(2_999));
    assert_eq!(voters.leader(), None);
    voters.pass(millis(1_000));
    assert!(voters.leader().is_some());
}

/// A minority of the voters elects no leader.
#[test]
fn minority_elects_nobody() {
    let mut voters = Voters::new(3);
    voters.is_down[1] = true;
    voters.is_down[2] = true;
    voters.pass(millis(60_000));
    assert_eq!(voters.leader(), None);
}

/// A lost leader is replaced when the voters' leases are over. Its successor does not have to wait for
/// workers of earlier leaders.
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
    let leadership = voters.led(second).pop().expect("a leadership");
    assert_eq!(leadership.former, Some(process(first)));
    assert!(leadership.workers_until <= voters.now);
    assert!(leadership.term > voters.led(first)[0].term);
}

/// A leader that leaves is replaced at once. Workers of its term may still run for a while.
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
    let leadership = voters.led(second).pop().expect("a leadership");
    assert!(Some(leadership.workers_until) >= until, "workers may run as long as the lease");
    voters.pass(millis(60_000));
    assert_eq!(voters.leader(), Some(second), "a voter that leaves does not stand");
}

/// A death notice ends the lease of the process that it names, and of no other.
#[test]
fn death_notice_ends_the_lease_of_that_process() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let first = voters.leader().expect("a leader");
    voters.is_down[first] = true;
    for place in (0..3).filter(|place| *place != first) {
        voters.voters[place].handle_death_notice(voters.now, &NodeId::new("another"));
    }
    voters.pass(millis(250));
    assert_eq!(voters.leader(), None);
    for place in (0..3).filter(|place| *place != first) {
        voters.voters[place].handle_death_notice(voters.now, &process(first));
    }
    voters.pass(millis(250));
    assert!(voters.leader().is_some());
}

/// A leader that reaches no majority resigns by itself, before the leases of the others end.
#[test]
fn leader_without_majority_resigns() {
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

/// The leader's state of the job is copied to a majority, and its successor receives it.
#[test]
fn job_state_survives_the_leader() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let first = voters.leader().expect("a leader");
    let now = voters.now;
    let version = voters.voters[first].handle_remember(now, job_state(7)).expect("it leads");
    assert!(!voters.seen[first].contains(&Effect::Copied(version)));
    voters.deliver();
    assert!(voters.seen[first].contains(&Effect::Copied(version)));
    voters.is_down[first] = true;
    voters.pass(millis(4_000));
    let second = voters.leader().expect("another leader");
    let inherited = voters.led(second).pop().and_then(|leadership| leadership.job_state);
    assert_eq!(inherited, Some(job_state(7)));
}

/// A job's state that only a minority has is not reported as copied, and only a leader changes it.
#[test]
fn job_state_needs_a_majority() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    let other = (leader + 1) % 3;
    assert_eq!(voters.voters[other].handle_remember(voters.now, job_state(1)), None);
    for place in (0..3).filter(|place| *place != leader) {
        voters.is_down[place] = true;
    }
    let now = voters.now;
    let version = voters.voters[leader].handle_remember(now, job_state(7)).expect("it leads");
    voters.pass(millis(2_500));
    assert!(!voters.seen[leader].contains(&Effect::Copied(version)));
}

/// A voter votes once in each term, and not while another process leads.
#[test]
fn one_vote_in_a_term_and_none_under_a_lease() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    let follower = (leader + 1) % 3;
    let (now, high) = (voters.now, Term(u64::from(u32::MAX)));
    let answer = voters.voters[follower].handle_request(now, vote((leader + 2) % 3, high));
    assert!(!answer.expect("an answer").body.is_granted, "another leads");
    let asks = VoterMessage { body: Request::PreVote, ..vote((leader + 2) % 3, high) };
    let answer = voters.voters[follower].handle_request(now, asks);
    assert!(!answer.expect("an answer").body.is_granted, "another leads");

    let mut alone = voter(now, 0, 3);
    let granted = |alone: &mut Election, place, term| {
        let answer = alone.handle_request(now, vote(place, term));
        answer.expect("an answer").body.is_granted
    };
    assert!(granted(&mut alone, 1, Term(5)));
    assert!(!granted(&mut alone, 2, Term(5)), "the same term");
    assert!(granted(&mut alone, 2, Term(6)));
    assert!(!granted(&mut alone, 1, Term(u64::MAX)), "no term is left above it");
}

/// A voter that was restarted while another one leads follows it. Its grants do not count for a lease.
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

/// A leader that receives a higher term resigns, and a leader is elected in a still higher one.
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
    assert!(voters.led(next).last().expect("a leadership").term > known);
}

/// A leader that was stopped for longer than its lease does not lead when it resumes, with any first input.
#[test]
fn frozen_leader_does_not_act() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    let late = voters.now + millis(2_500);
    let version = voters.voters[leader].handle_remember(late, job_state(1));
    assert_eq!(version, None);
    assert_eq!(voters.voters[leader].leads_until(), None);
}

/// A process that answers at two addresses of the list is reported.
#[test]
fn process_at_two_addresses_is_reported() {
    let now = Voters::new(1).now;
    let mut first = voter(now, 0, 3);
    first.handle_timeout(now + millis(200));
    let asked = iter::from_fn(|| first.poll_effect()).find_map(|effect| match effect {
        Effect::Send { to, message } if to == address(1) => Some(message),
        _ => None,
    });
    let answer =
        first.handle_request(now + millis(200), asked.expect("it asks")).expect("an answer");
    assert!(!answer.body.is_granted, "it has voted already");
    first.handle_answer(now + millis(200), VoterMessage { address: address(1), ..answer });
    let effects: Vec<Effect> = iter::from_fn(|| first.poll_effect()).collect();
    assert!(effects.contains(&Effect::Duplicate { address: address(1) }), "{effects:?}");
}

/// Terms that two processes propose at the same time differ, and later terms are higher.
#[test]
fn proposed_terms_are_unique() {
    let term = Term(7 << 16 | 0x1234).proposed(0xffff);
    assert_eq!(term, Term(8 << 16 | 0xffff));
    assert!(term.proposed(0) > term);
    assert_ne!(term.proposed(1), term.proposed(2));
}

/// The leases leave time for keepers: with clocks that drift by one per cent, the workers of the old leader are dead before another
/// one can be elected. In a large job all leases last longer, and contain as many renewals.
#[test]
fn leases_leave_time_for_keepers() {
    let large = Timers::for_nodes(NodeRange::new(1, 10_000).expect("a range"));
    for (timers, lease) in [(Timers::default(), 2_400), (large, 22_000)] {
        let Timers { renewal, leader_lease, voter_lease, .. } = timers;
        let keeper = millis(500);
        assert!((leader_lease + keeper).mul_f64(1.01) <= voter_lease.mul_f64(0.99));
        assert_eq!(leader_lease, millis(lease));
        assert_eq!(leader_lease.div_duration_f64(renewal).round(), 12.0);
    }
    // Nothing is given up before three leases of voters have ended.
    assert_eq!(Timers::default().patience(), millis(30_000));
    assert_eq!(large.patience(), 3 * large.voter_lease);
}

/// Answers that arrive after the poll has ended do not count, even before the timer has fired.
#[test]
fn late_answers_do_not_count() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    voters.is_down[leader] = true;
    let candidate = (leader + 1) % 3;
    let now = voters.now + millis(4_000);
    voters.voters[candidate].handle_timeout(now);
    let asked =
        iter::from_fn(|| voters.voters[candidate].poll_effect()).find_map(|effect| match effect {
            Effect::Send { to, message } if to != address(leader) => Some((to, message)),
            _ => None,
        });
    let (to, message) = asked.expect("it asks the other one");
    let answer = voters.voters[place(&to)].handle_request(now, message).expect("an answer");
    assert!(answer.body.is_granted);
    voters.voters[candidate].handle_answer(now + millis(5_000), answer);
    let asks_for_votes = |effect: &Effect| match effect {
        Effect::Send { message, .. } => matches!(message.body, Request::Vote { .. }),
        _ => false,
    };
    assert!(!iter::from_fn(|| voters.voters[candidate].poll_effect()).any(|e| asks_for_votes(&e)));
}

/// Returns one of three voters that asks the others if it may be a candidate.
fn pre_candidate(now: Instant) -> Election {
    let mut voter = voter(now, 0, 3);
    for place in [1, 2] {
        voter.handle_connected(now, &address(place));
    }
    voter.handle_timeout(voter.poll_timeout().expect("it stands soon"));
    voter
}

/// Returns a candidate of three voters, the votes that it asks for, and the voter that has encouraged it.
fn candidate(now: Instant) -> (Election, Vec<(VoterAddress, VoterMessage<Request>)>, Election) {
    let (mut candidate, mut other) = (pre_candidate(now), voter(now, 2, 3));
    for (to, message) in sent(&mut candidate) {
        if to == address(2) && matches!(message.body, Request::PreVote) {
            let answer = other.handle_request(candidate.clock, message).expect("an answer");
            candidate.handle_answer(candidate.clock, answer);
        }
    }
    let votes = sent(&mut candidate);
    assert!(votes.iter().all(|(_, message)| matches!(message.body, Request::Vote { .. })));
    (candidate, votes, other)
}

fn sent(voter: &mut Election) -> Vec<(VoterAddress, VoterMessage<Request>)> {
    let effects = iter::from_fn(|| voter.poll_effect());
    let sent = effects.filter_map(|effect| match effect {
        Effect::Send { to, message } => Some((to, message)),
        _ => None,
    });
    sent.collect()
}

/// A process repeats its request to a voter that is connected again before it has answered, and only then.
#[test]
fn voter_that_is_connected_again_is_asked_again() {
    let (now, again) = (Voters::new(1).now, address(1));
    for (mut asking, has_answered) in [
        (pre_candidate(now), false),
        (candidate(now).0, false),
        (pre_candidate(now), true),
        (candidate(now).0, true),
    ] {
        sent(&mut asking);
        if has_answered {
            let other = voter(now, 1, 3);
            let answer = other.voter.answer(now, false, Knowledge::default());
            asking.handle_answer(asking.clock, other.message(now, asking.sequence, answer));
        }
        asking.handle_disconnected(&again);
        asking.handle_connected(asking.clock, &again);
        let is_asked = |message: &VoterMessage<Request>| {
            matches!(message.body, Request::PreVote | Request::Vote { .. })
        };
        let is_asked_again =
            sent(&mut asking).iter().any(|(to, message)| *to == again && is_asked(message));
        assert_eq!(is_asked_again, !has_answered);
    }
}

/// Each poll has a number of its own, so that an answer to an earlier one does not count.
#[test]
fn polls_have_numbers_of_their_own() {
    let now = Voters::new(1).now;
    let (first, votes) = (pre_candidate(now).sequence, candidate(now).1);
    assert!(votes.iter().all(|(_, message)| message.sequence > first));
}

/// An elected process to which no majority grants a lease gives up, and becomes a candidate again.
#[test]
fn leader_without_a_first_lease_gives_up() {
    let (mut candidate, votes, mut other) = candidate(Voters::new(1).now);
    let (_, vote) = votes.into_iter().find(|(to, _)| *to == address(2)).expect("a request");
    let answer = other.handle_request(candidate.clock, vote).expect("an answer");
    candidate.handle_answer(candidate.clock, answer);
    assert!(matches!(candidate.role, Role::Leader(_)));
    candidate.handle_timeout(candidate.clock + Timers::default().voter_lease);
    assert!(!matches!(candidate.role, Role::Leader(_)));
}

/// A candidate waits longer for answers after each failure, so a slow network elects a leader too.
#[test]
fn polls_last_longer_after_failures() {
    let mut voters = Voters::new(3);
    voters.is_down = vec![false, true, true];
    voters.pass(millis(20_000));
    let alone = &voters.voters[0];
    assert_eq!(alone.poll_time(), millis(1_200));
}

/// A voter that was restarted grants nothing in a term up to the highest that it has stored.
#[test]
fn restarted_voter_keeps_to_the_highest_term() {
    let now = Voters::new(1).now;
    let mut settings = voter(now, 0, 3).settings.clone();
    settings.process = NodeId::new("another0");
    let mut restarted = Election::new(now, settings, empty(), Term(7));
    let granted = |voter: &mut Election, term| {
        voter.handle_request(now, vote(1, term)).expect("an answer").body.is_granted
    };
    assert!(!granted(&mut restarted, Term(7)));
    assert!(granted(&mut restarted, Term(8)));
}

/// A false report of an agent leaves terms for further elections.
#[test]
fn agents_cannot_use_up_all_terms() {
    let mut voters = Voters::new(3);
    voters.pass(millis(10_000));
    let leader = voters.leader().expect("a leader");
    for term in [Term(NUMBER_MAX), Term(NUMBER_MAX / 2)] {
        let now = voters.now;
        voters.voters[leader].handle_highest(now, term);
        voters.deliver();
        voters.pass(millis(10_000));
    }
    assert!(voters.leader().is_some());
    assert!(Term(NUMBER_MAX).proposed(u16::MAX).0 <= NUMBER_MAX);
    let mut voter = voter(voters.now, 0, 3);
    voter.learn(voters.now, Term(NUMBER_MAX + 1));
    assert_eq!(voter.highest(), Term(0), "no voter has such a term");
    voter.learn(voters.now, Term(NUMBER_MAX));
    assert_eq!(voter.highest(), Term(NUMBER_MAX));
}

/// A voter's claim about workers is limited to the longest lease.
#[test]
fn claims_about_workers_are_limited() {
    let now = Voters::new(1).now;
    let answer = Answer {
        is_granted: true,
        is_connected: true,
        workers_for: Duration::MAX,
        former: None,
        replica: None,
    };
    let mut poll = Poll::new(1, now);
    poll.record(now, Timers::default(), voter(now, 1, 3).message(now, 1, answer));
    assert_eq!(poll.inheritance(now).workers_until, now + millis(3_000));
}
