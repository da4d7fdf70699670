//! Each rule of the choice, and random networks that lose datagrams, fall apart, and lose agents.

mod world;

use ragent_base::sys::clock;

use super::*;
use crate::endpoint::limits::MAX_DIALS;

const MILLIS: Duration = Duration::from_millis(1);

fn address(number: u64) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number as u8], 29400))
}

fn candidate(number: u64) -> Candidate {
    Candidate { rank: u32::MAX, number }
}

fn searching(number: u64) -> Announcement {
    let by = candidate(number);
    Announcement { by, may_host: true, searches: true, port: 29400, home: None }
}

fn settled_at(number: u64, home: Option<u64>) -> Announcement {
    Announcement { searches: false, home: home.map(address), ..searching(number) }
}

fn standing(number: u64, stage: SearchStage) -> DialAnswer {
    DialAnswer::Standing(SearchStanding { by: candidate(number), stage })
}

/// One agent, with the answers of the others.
struct One {
    now: Instant,
    choice: HostChoice,
    /// The answer at each address; `None`: no attempt at it ends.
    answers: BTreeMap<SocketAddr, DialAnswer>,
    /// The datagrams that arrive again and again.
    heard: Vec<Announcement>,
    effects: Vec<Effect>,
}

impl One {
    fn new(number: u64, eligible: Eligible) -> Self {
        let now = clock::now_blocking();
        let choice = HostChoice::new(now, candidate(number), eligible);
        Self { now, choice, answers: BTreeMap::new(), heard: vec![], effects: vec![] }
    }

    /// Creates an agent that has settled.
    fn settled(number: u64, stage: SearchStage, home: Option<u64>, compares: bool) -> Self {
        let mut one = Self::new(number, Eligible::IfLowest);
        let settled = Settled { stage, home: home.map(address), compares };
        one.choice.handle_settled(one.now, settled);
        one
    }

    fn hears(&mut self, message: Announcement, answer: Option<DialAnswer>) {
        self.heard.push(message);
        if let Some(answer) = answer {
            self.answers.insert(address(message.by.number), answer);
        }
    }

    /// Passes the time in steps. Others repeat their datagrams every 100 ms.
    fn pass(&mut self, time: Duration) -> &[Effect] {
        let start = self.effects.len();
        for step in 0..time.as_millis() / 10 {
            self.now += 10 * MILLIS;
            for message in self.heard.iter().filter(|_| step % 10 == 0) {
                let from = address(message.by.number);
                self.choice.handle_announcement(self.now, from, message);
            }
            self.choice.handle_timeout(self.now);
            while let Some(effect) = self.choice.poll_effect() {
                if let Effect::Dial(at) = effect
                    && let Some(answer) = self.answers.get(&at)
                {
                    self.choice.handle_answer(self.now, at, *answer);
                }
                self.effects.push(effect);
            }
        }
        &self.effects[start..]
    }

    /// Returns the effects in this time, without datagrams and attempts.
    fn results(&mut self, time: Duration) -> Vec<Effect> {
        let is_result = |effect: &&Effect| !matches!(effect, Effect::Send(_) | Effect::Dial(_));
        self.pass(time).iter().filter(is_result).cloned().collect()
    }

    fn sent(&mut self, time: Duration) -> usize {
        self.pass(time).iter().filter(|effect| matches!(effect, Effect::Send(_))).count()
    }
}

/// A lower candidate is waited for while it answers over TCP. Its datagrams are not enough.
#[test]
fn lowest_that_answers_hosts() {
    let mut alone = One::new(5, Eligible::IfLowest);
    assert_eq!(alone.results(900 * MILLIS), []);
    assert_eq!(alone.results(200 * MILLIS), [Effect::Host]);
    for (answer, other, hosts) in [
        (Some(standing(3, SearchStage::Candidate)), 3, false),
        (Some(standing(7, SearchStage::Candidate)), 7, true),
        (Some(standing(3, SearchStage::Guest)), 3, true),
        (Some(DialAnswer::Nobody), 3, true),
        (None, 3, true),
    ] {
        let mut one = One::new(5, Eligible::IfLowest);
        one.hears(searching(other), answer);
        let hosted = one.results(1_200 * MILLIS) == [Effect::Host];
        assert_eq!(hosted, hosts, "{answer:?}");
        if !hosts {
            assert_eq!(one.results(10_000 * MILLIS), []);
            one.answers.insert(address(3), DialAnswer::Nobody);
            assert_eq!(one.results(2_000 * MILLIS), [Effect::Host], "it has ended");
        }
    }
}

/// The agent with rank 0 hosts although others were found. The others never host.
#[test]
fn ranks_decide() {
    let mut first = One::new(5, Eligible::Always);
    first.hears(searching(3), Some(standing(3, SearchStage::Candidate)));
    assert_eq!(first.results(1_200 * MILLIS), [Effect::Host]);
    assert_eq!(One::new(5, Eligible::Never).results(60_000 * MILLIS), []);
}

/// The first address that answers as a host is joined, also if a member names it. False addresses do not delay this.
#[test]
fn hosts_are_joined() {
    for stage in [SearchStage::Host, SearchStage::Leader] {
        for message in [settled_at(9, None), settled_at(8, Some(9))] {
            let mut one = One::new(5, Eligible::IfLowest);
            one.answers.insert(address(9), standing(9, stage));
            (100..105).for_each(|number| one.hears(settled_at(number, None), None));
            one.hears(message, None);
            assert_eq!(one.results(100 * MILLIS), [Effect::Join(address(9))]);
        }
    }
}

/// While a member answers, its silent host is waited for. On the machine of that host, an agent continues it.
#[test]
fn silent_host_is_waited_for() {
    for (answer, expected) in
        [(DialAnswer::Nobody, None), (DialAnswer::Free, Some(Effect::Continue(address(9))))]
    {
        let mut one = One::new(5, Eligible::IfLowest);
        one.answers.insert(address(9), answer);
        one.hears(settled_at(8, Some(9)), Some(standing(8, SearchStage::Member)));
        assert_eq!(one.results(8_000 * MILLIS), Vec::from_iter(expected));
    }
    // A repeated datagram of a member that has ended.
    let mut one = One::new(5, Eligible::IfLowest);
    one.answers.insert(address(9), DialAnswer::Free);
    one.hears(settled_at(8, Some(9)), Some(DialAnswer::Nobody));
    assert_eq!(one.results(1_200 * MILLIS), [Effect::Host]);
}

/// A refusal ends the search after a while, unless an agent of the job answers.
#[test]
fn refusal_ends_the_search() {
    let mut one = One::new(5, Eligible::IfLowest);
    one.hears(settled_at(9, None), Some(DialAnswer::Refused));
    assert_eq!(one.results(2_900 * MILLIS), []);
    assert_eq!(one.results(300 * MILLIS), [Effect::GiveUp]);
    let mut one = One::new(5, Eligible::IfLowest);
    one.hears(settled_at(9, None), Some(DialAnswer::Refused));
    one.hears(searching(3), Some(standing(3, SearchStage::Candidate)));
    assert_eq!(one.results(8_000 * MILLIS), []);
}

/// A host steps down for a lower one, or for a job that has begun. Voters of a job that has begun show it to other hosts.
#[test]
fn hosts_meet() {
    let begun = Effect::Show(address(3), true);
    let (down, show) = (Effect::StepDown(address(3)), Effect::Show(address(3), false));
    let stages = [SearchStage::Host, SearchStage::Leader, SearchStage::Member];
    for (own, number, others) in [
        (SearchStage::Host, 5, [Some(&down), Some(&down), None]),
        (SearchStage::Host, 2, [None, Some(&down), None]),
        (SearchStage::Leader, 5, [Some(&show), Some(&begun), None]),
        (SearchStage::Member, 5, [Some(&show), Some(&begun), None]),
    ] {
        for (stage, expected) in stages.into_iter().zip(others) {
            let mut one = One::settled(number, own, Some(99), true);
            one.hears(settled_at(3, None), Some(standing(3, stage)));
            assert_eq!(one.results(100 * MILLIS).first(), expected, "{own:?} {stage:?}");
        }
    }
    let mut one = One::settled(5, SearchStage::Member, Some(99), false);
    one.hears(settled_at(3, None), Some(standing(3, SearchStage::Leader)));
    assert_eq!(one.results(100 * MILLIS), [], "it is no voter");
}

/// Few addresses are dialed at once. Where no agent answers, the next attempt comes 5 s later.
#[test]
fn attempts_are_bounded() {
    let mut one = One::new(5, Eligible::Never);
    (100..200).for_each(|number| one.hears(settled_at(number, None), None));
    assert_eq!(one.results(60_000 * MILLIS), []);
    let dials = |one: &One| one.effects.iter().filter(|e| matches!(e, Effect::Dial(_))).count();
    assert_eq!(dials(&one), MAX_DIALS);
    let mut one = One::new(5, Eligible::Never);
    one.hears(settled_at(9, None), Some(DialAnswer::Nobody));
    one.pass(12_000 * MILLIS);
    assert_eq!(dials(&one), 3);
}

/// A searching agent sends ten datagrams a second at first, and later one in 3 s.
#[test]
fn search_becomes_slower() {
    let mut one = One::new(5, Eligible::Never);
    assert!((19..=21).contains(&one.sent(2_000 * MILLIS)));
    one.pass(10_000 * MILLIS);
    assert!((9..=11).contains(&one.sent(30_000 * MILLIS)));
}

/// A host sends a datagram every 3 s, and answers a searching agent at once. A member answers within half a second, unless another agent
/// has answered. Neither answers agents that know their host.
#[test]
fn searching_agents_are_answered() {
    let mut host = One::settled(5, SearchStage::Host, None, true);
    assert_eq!(host.sent(9_500 * MILLIS), 4);
    host.heard.push(searching(7));
    assert!(host.sent(100 * MILLIS) >= 1);
    let mut member = One::settled(u64::MAX / 2, SearchStage::Member, Some(9), false);
    assert_eq!(member.sent(9_000 * MILLIS), 0);
    member.heard.push(settled_at(8, Some(9)));
    assert_eq!(member.sent(9_000 * MILLIS), 0);
    member.heard = vec![searching(7)];
    assert_eq!(member.sent(400 * MILLIS), 1);
    member.heard = vec![searching(7), settled_at(8, Some(9))];
    assert_eq!(member.sent(9_000 * MILLIS), 0, "another agent has answered");
    // The host of a part of the network that was cut off. A datagram of the own host does not answer it.
    member.heard = vec![settled_at(3, None), settled_at(9, None)];
    assert!(member.sent(1_000 * MILLIS) >= 1);
}
