//! Choices of one agent, and of agents on networks that lose datagrams.

use proptest::prelude::*;
use ragent_base::sys::clock;
use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::*;

const MILLIS: Duration = Duration::from_millis(1);

fn candidate(number: u64) -> Candidate {
    Candidate { rank: u32::MAX, number }
}

fn address(number: u64) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number as u8], 29400))
}

/// Agents on one network. Each starts at its own time.
struct World {
    start: Instant,
    now: Instant,
    agents: Vec<Member>,
    random: SmallRng,
    /// Percentage of datagrams that are lost.
    loss: u32,
    in_flight: Vec<(Instant, usize, SearchMessage, SocketAddr)>,
    messages: usize,
    /// The only agents that receive broadcasts; `None`: all agents.
    listed: Option<Vec<u64>>,
    /// Attempts at addresses without a host, and the end of each.
    trials: Vec<(Instant, usize, SocketAddr)>,
    /// Datagrams that an attacker broadcasts again and again, from an address of its own.
    repeated: Vec<SearchMessage>,
    next_repeat: Instant,
}

/// The duration of an attempt at an address without a host.
const TRIAL: Duration = Duration::from_secs(10);
/// The interval at which an attacker sends its datagrams.
const REPEAT: Duration = Duration::from_millis(30);

struct Member {
    number: u64,
    starts: Instant,
    eligible: Eligible,
    choice: Option<HostChoice>,
    found: Option<SocketAddr>,
    is_host: bool,
    rival_requests: usize,
    trials: usize,
    found_at: Option<Instant>,
}

impl World {
    fn new(seed: u64, loss: u32) -> Self {
        let start = clock::now_blocking();
        let random = SmallRng::seed_from_u64(seed);
        Self {
            start,
            now: start,
            agents: vec![],
            random,
            loss,
            in_flight: vec![],
            messages: 0,
            listed: None,
            trials: vec![],
            repeated: vec![],
            next_repeat: start,
        }
    }

    fn add(&mut self, number: u64, after: Duration, eligible: Eligible) {
        self.agents.push(Member {
            number,
            starts: self.start + after,
            eligible,
            choice: None,
            found: None,
            is_host: false,
            rival_requests: 0,
            trials: 0,
            found_at: None,
        });
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.next().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = end;
    }

    fn next(&self) -> Option<Instant> {
        let starts = self.agents.iter().filter(|agent| agent.choice.is_none());
        let starts = starts.map(|agent| agent.starts);
        let timeouts = self.agents.iter().filter_map(|agent| agent.choice.as_ref()?.poll_timeout());
        let rest = self.in_flight.iter().map(|(at, ..)| *at);
        let rest = rest.chain(self.trials.iter().map(|(at, ..)| *at));
        let repeat = (!self.repeated.is_empty()).then_some(self.next_repeat);
        starts.chain(timeouts).chain(rest).chain(repeat).min()
    }

    fn step(&mut self) {
        let now = self.now;
        let (arrived, rest) = self.in_flight.drain(..).partition(|(at, ..)| *at <= now);
        self.in_flight = rest;
        for (_, to, message, peer) in arrived {
            if let Some(choice) = &mut self.agents[to].choice {
                choice.handle_message(now, &message, peer);
            }
        }
        if now >= self.next_repeat {
            self.next_repeat = now + REPEAT;
            for agent in self.agents.iter_mut().filter_map(|agent| agent.choice.as_mut()) {
                for message in &self.repeated {
                    agent.handle_message(now, message, address(250));
                }
            }
        }
        let (ended, rest) = self.trials.drain(..).partition(|(at, ..)| *at <= now);
        self.trials = rest;
        for (_, index, at) in ended {
            self.agents[index].choice.as_mut().unwrap().handle_not_joined(now, at);
        }
        for index in 0..self.agents.len() {
            let agent = &mut self.agents[index];
            if agent.choice.is_none() && agent.starts <= now {
                let eligible = agent.eligible;
                let rank = if eligible == Eligible::Always { 0 } else { u32::MAX };
                let own = Candidate { rank, number: agent.number };
                agent.choice = Some(HostChoice::new(now, own, eligible, Pace::default()));
            }
            if let Some(choice) = &mut agent.choice {
                choice.handle_timeout(now);
            }
            while let Some(effect) =
                self.agents[index].choice.as_mut().and_then(HostChoice::poll_effect)
            {
                self.carry_out(index, effect);
            }
        }
    }

    fn carry_out(&mut self, index: usize, effect: Effect) {
        let own = address(self.agents[index].number);
        let agent = &mut self.agents[index];
        match effect {
            Effect::Broadcast(message) => {
                self.messages += 1;
                for to in 0..self.agents.len() {
                    if !self.gets_through(index, to) {
                        continue;
                    }
                    if to == index || self.random.random_range(0..100) >= self.loss {
                        let delay = MILLIS * self.random.random_range(1..20);
                        self.in_flight.push((self.now + delay, to, message.clone(), own));
                    }
                }
            }
            Effect::Host => {
                agent.is_host = true;
                agent.found = Some(own);
                agent.found_at = Some(self.now);
                agent.choice.as_mut().unwrap().handle_hosting(self.now, own);
            }
            Effect::Try(at) => {
                agent.trials += 1;
                let is_there = |host: &Member| host.is_host && address(host.number) == at;
                if self.agents.iter().any(is_there) {
                    let agent = &mut self.agents[index];
                    agent.found = Some(at);
                    agent.found_at = Some(self.now);
                    agent.choice.as_mut().unwrap().handle_joined(self.now, at);
                } else {
                    self.trials.push((self.now + TRIAL, index, at));
                }
            }
            Effect::Drop(at) => self.trials.retain(|(_, of, place)| (*of, *place) != (index, at)),
            Effect::GiveUp(at) | Effect::Continue(at) => panic!("{at} was only tried"),
            Effect::Answer(peer, message) => {
                let to = self.agents.iter().position(|agent| address(agent.number) == peer);
                if let Some(to) = to.filter(|to| !self.gets_through(index, *to)) {
                    self.in_flight.push((self.now + MILLIS, to, message, own));
                }
            }
            Effect::Send(peers, message) => {
                self.messages += 1;
                peers.iter().for_each(|peer| self.send(index, *peer, message.clone()));
            }
            Effect::Present(asked) => {
                self.messages += 1;
                let by = self.agents[index].number;
                for (peer, nonces) in asked {
                    self.send(index, peer, SearchMessage::Answer { by, nonces });
                }
            }
            // The host with the lower number stays.
            Effect::AskRival(rival) => {
                agent.rival_requests += 1;
                let is_there = |host: &Member| host.is_host && address(host.number) == rival;
                if rival < own && self.agents.iter().any(is_there) {
                    self.agents[index].is_host = false;
                    for agent in self.agents.iter_mut().filter(|agent| agent.found == Some(own)) {
                        agent.found = Some(rival);
                        agent.choice.as_mut().unwrap().handle_sent_elsewhere(self.now, rival);
                    }
                }
            }
        }
    }

    /// Sends to the agent at `peer` alone.
    fn send(&mut self, from: usize, peer: SocketAddr, message: SearchMessage) {
        let to = self.agents.iter().position(|agent| address(agent.number) == peer);
        if let Some(to) = to
            && self.random.random_range(0..100) >= self.loss
        {
            let delay = MILLIS * self.random.random_range(1..20);
            let own = address(self.agents[from].number);
            self.in_flight.push((self.now + delay, to, message, own));
        }
    }

    /// Returns true if a broadcast of `from` reaches `to`.
    fn gets_through(&self, from: usize, to: usize) -> bool {
        from == to
            || self.listed.as_ref().is_none_or(|listed| listed.contains(&self.agents[to].number))
    }

    fn hosts(&self) -> Vec<u64> {
        self.agents.iter().filter(|agent| agent.is_host).map(|agent| agent.number).collect()
    }

    /// Fails unless all started agents have found `host`.
    #[track_caller]
    fn assert_found(&self, host: u64) {
        assert_eq!(self.hosts(), [host]);
        for agent in self.agents.iter().filter(|agent| agent.choice.is_some()) {
            assert_eq!(agent.found, Some(address(host)), "agent {}", agent.number);
            assert_eq!(agent.rival_requests, 0);
        }
    }
}

/// Agents that start at the same time agree on the lowest of them, for any number and order of agents.
#[test]
fn lowest_of_those_at_once_hosts() {
    for seed in 0..50 {
        let mut world = World::new(seed, 0);
        let count = 1 + seed % 9;
        for number in 0..count {
            // Not in ascending order.
            let number = (number + seed) % count + 1;
            world.add(number, MILLIS * (number as u32 * 5), Eligible::IfLowest);
        }
        world.run(Duration::from_secs(30));
        world.assert_found(1);
    }
}

/// An agent that starts when there is already a host joins it, even if it is lower.
#[test]
fn late_comers_join() {
    let mut world = World::new(1, 0);
    world.add(5, Duration::ZERO, Eligible::IfLowest);
    world.add(1, Duration::from_secs(20), Eligible::IfLowest);
    world.add(9, Duration::from_secs(40), Eligible::Never);
    world.run(Duration::from_secs(60));
    world.assert_found(5);
}

/// Agents that must not host wait for an agent that may, however late it starts.
#[test]
fn others_wait_for_the_host() {
    let mut world = World::new(1, 0);
    world.add(1, Duration::ZERO, Eligible::Never);
    world.add(2, Duration::ZERO, Eligible::Never);
    world.add(3, Duration::from_secs(300), Eligible::Always);
    world.run(Duration::from_secs(299));
    assert_eq!(world.hosts(), [0; 0]);
    world.run(Duration::from_secs(20));
    world.assert_found(3);
}

/// With up to a third of all datagrams lost there is still one host, in each of many worlds.
#[test]
fn lossy_network_has_one_host() {
    for seed in 0..300 {
        let mut world = World::new(seed, 33);
        let count = 2 + seed % 6;
        for number in 1..=count {
            let after = MILLIS * world.random.random_range(0..3000);
            world.add(number, after, Eligible::IfLowest);
        }
        world.run(Duration::from_secs(120));
        assert_eq!(world.hosts().len(), 1, "seed {seed}: {:?}", world.hosts());
        let host = world.hosts()[0];
        for agent in &world.agents {
            assert_eq!(agent.found, Some(address(host)), "seed {seed}, agent {}", agent.number);
        }
    }
}

/// A restarted host learns its own endpoint from the members.
#[test]
fn members_remember_the_endpoint() {
    let mut world = World::new(1, 0);
    for number in [1, 2, 3] {
        world.add(number, Duration::ZERO, Eligible::IfLowest);
    }
    world.run(Duration::from_secs(10));
    world.assert_found(1);
    world.agents.remove(0);
    world.in_flight.clear();
    world.add(7, Duration::from_secs(10), Eligible::IfLowest);
    world.run(Duration::from_secs(10));
    let (_, agent, tried) = world.trials[0];
    assert_eq!((agent, tried), (2, address(1)));
    // It does not host while members are present that name the endpoint.
    world.run(Duration::from_secs(60));
    assert_eq!(world.hosts(), [0; 0]);
    assert!(world.agents[2].trials <= 8, "{}", world.agents[2].trials);
}

/// Two hosts of one job learn of each other, and one of them steps down. After that, the other one meets no host.
#[test]
fn two_hosts_become_one() {
    for seed in 0..50 {
        let mut world = World::new(seed, 33);
        world.add(1, Duration::ZERO, Eligible::Always);
        world.add(2, Duration::ZERO, Eligible::Always);
        world.run(Duration::from_secs(60));
        assert_eq!(world.hosts(), [1], "seed {seed}");
        assert_eq!(world.agents[1].found, Some(address(1)));
        let requests = world.agents[0].rival_requests;
        world.run(Duration::from_secs(60));
        assert_eq!(world.agents[0].rival_requests, requests, "seed {seed}");
    }
}

/// Each other host is met once in three seconds, however often it is named. The number of meetings is limited.
#[test]
fn rivals_are_met_now_and_then() {
    let now = clock::now_blocking();
    let mut host = HostChoice::new(now, candidate(1), Eligible::Always, Pace::default());
    host.handle_hosting(now, address(1));
    let mut requests = BTreeMap::new();
    for step in 0..100 {
        for other in [2, 3] {
            let message = SearchMessage::Hosted { by: other, at: address(other), by_host: true };
            host.handle_message(now + MILLIS * 100 * step, &message, address(other));
        }
        while let Some(effect) = host.poll_effect() {
            if let Effect::AskRival(rival) = effect {
                *requests.entry(rival).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(requests, BTreeMap::from([(address(2), 4), (address(3), 4)]));
    for other in 4..100 {
        let message = SearchMessage::Hosted { by: other, at: address(other), by_host: true };
        host.handle_message(now + Duration::from_secs(20), &message, address(other));
    }
    let requests = std::iter::from_fn(|| host.poll_effect());
    let requests = requests.filter(|effect| matches!(effect, Effect::AskRival(_)));
    assert_eq!(requests.count(), limits::MAX_RIVALS);
}

/// Two agents do not answer each other's answers for ever.
#[test]
fn answers_are_not_answered() {
    let now = clock::now_blocking();
    let mut two = [1, 2]
        .map(|number| HostChoice::new(now, candidate(number), Eligible::IfLowest, Pace::default()));
    two[0].handle_timeout(now);
    let mut count = 0;
    for step in 0..10 {
        let (from, to) = (step % 2, 1 - step % 2);
        while let Some(effect) = two[from].poll_effect() {
            if let Effect::Broadcast(message) | Effect::Answer(_, message) = effect {
                count += 1;
                two[to].handle_message(now + MILLIS, &message, address(from as u64 + 1));
            }
        }
    }
    assert_eq!(count, 3);
}

/// A list of one or two hosts is enough for all agents, even if another agent is the lowest. Agents
/// that are on no list receive its datagrams only as answers.
#[test]
fn list_of_a_few_does() {
    for seed in 0..100 {
        let mut world = World::new(seed, 20);
        let count = 3 + seed % 5;
        for number in 1..=count {
            let after = MILLIS * world.random.random_range(0..3000);
            world.add(number, after, Eligible::IfLowest);
        }
        world.listed = Some(vec![1 + seed % count, 1 + (seed / 2) % count]);
        world.run(Duration::from_secs(120));
    }
}

/// Sixty agents at once send some hundred datagrams in the first second, and few after that.
#[test]
fn many_do_not_shout() {
    let mut world = World::new(1, 0);
    for number in 1..=60 {
        world.add(number, Duration::ZERO, Eligible::IfLowest);
    }
    world.run(Duration::from_secs(10));
    assert_eq!(world.hosts(), [1]);
    assert!(world.messages < 60 * 15, "{}", world.messages);
    let before = world.messages;
    world.run(Duration::from_secs(60));
    assert!(world.messages < before + 40, "{}", world.messages - before);
}

/// Replayed datagrams of a candidate hardly delay the start, because the candidate does not answer. Other agents that report it do not
/// delay the start either.
#[test]
fn repeated_candidates_are_passed_over() {
    for seed in 0..20 {
        let mut world = World::new(seed, 0);
        let ghost = candidate(seed % 3);
        world.repeated =
            vec![SearchMessage::Looking { by: ghost, may_host: true, lowest: Some(ghost) }];
        for number in 3..6 + seed % 4 {
            let after = MILLIS * world.random.random_range(0..500);
            world.add(number, after, Eligible::IfLowest);
        }
        world.add(50, Duration::ZERO, Eligible::Never);
        world.run(Duration::from_secs(3));
        world.assert_found(3);
    }
}

/// Many replayed candidates, all at once or in turn, delay the start by a limited time.
#[test]
fn many_repeated_candidates_do_not_prevent_the_start() {
    let looking = |number: u64| {
        let by = candidate(number);
        SearchMessage::Looking { by, may_host: true, lowest: Some(by) }
    };
    let mut world = World::new(1, 0);
    world.repeated = (0..150).map(looking).collect();
    for number in 201..204 {
        world.add(number, Duration::ZERO, Eligible::IfLowest);
    }
    world.run(Duration::from_secs(15));
    assert_eq!(world.hosts(), [201]);
    let mut world = World::new(1, 0);
    for number in 101..104 {
        world.add(number, Duration::ZERO, Eligible::IfLowest);
    }
    for second in 0..15 {
        world.repeated = vec![looking(second), looking(second + 20)];
        world.run(Duration::from_secs(1));
    }
    assert_eq!(world.hosts(), [101]);
}

/// An agent waits for a lower candidate while that one answers, and no longer.
#[test]
fn present_candidates_are_waited_for() {
    let start = clock::now_blocking();
    let mut agent = HostChoice::new(start, candidate(9), Eligible::IfLowest, Pace::default());
    let looking =
        SearchMessage::Looking { by: candidate(1), may_host: true, lowest: Some(candidate(1)) };
    let (mut now, mut questions, mut hosts_at) = (start, 0, None);
    while hosts_at.is_none() && now < start + Duration::from_secs(100) {
        now += MILLIS * 50;
        agent.handle_message(now, &looking, address(1));
        agent.handle_timeout(now);
        while let Some(effect) = agent.poll_effect() {
            match effect {
                Effect::Send(_, SearchMessage::Ask { to: 1, nonce, .. }) => {
                    questions += 1;
                    if now < start + Duration::from_secs(60) {
                        let answer = SearchMessage::Answer { by: 1, nonces: vec![3, nonce] };
                        agent.handle_message(now, &answer, address(1));
                    }
                }
                Effect::Host => hosts_at = Some(now - start),
                _ => {}
            }
        }
    }
    let hosts_at = hosts_at.unwrap();
    assert!((60..67).contains(&hosts_at.as_secs()), "{hosts_at:?}");
    assert!(questions < 30, "{questions}");
}

/// Questions reach an agent even if its datagrams are replayed from another address.
#[test]
fn questions_reach_the_agent() {
    let start = clock::now_blocking();
    let mut agent = HostChoice::new(start, candidate(9), Eligible::IfLowest, Pace::default());
    let looking =
        SearchMessage::Looking { by: candidate(1), may_host: true, lowest: Some(candidate(1)) };
    let mut questions = 0;
    for step in 0..200 {
        let now = start + MILLIS * 10 * step;
        // The attacker sends more datagrams than the agent, including the first and the last one.
        let peer = if step % 10 == 5 { address(1) } else { address(250) };
        agent.handle_message(now, &looking, peer);
        agent.handle_timeout(now);
        while let Some(effect) = agent.poll_effect() {
            if let Effect::Send(peers, SearchMessage::Ask { nonce, .. }) = effect {
                questions += 1;
                assert!(peers.len() <= 2 && peers.contains(&address(1)), "{peers:?}");
                let answer = SearchMessage::Answer { by: 1, nonces: vec![nonce] };
                agent.handle_message(now, &answer, address(1));
            }
        }
    }
    assert_eq!(questions, 1);
}

/// Datagrams that name false hosts delay neither the start of a job nor the search for its host.
#[test]
fn false_hosts_do_not_delay_the_search() {
    for seed in 0..20 {
        let mut world = World::new(seed, 0);
        let hosted =
            |by: u64| SearchMessage::Hosted { by, at: address(100 + by), by_host: by == 0 };
        world.repeated = (0..seed % 20).map(hosted).collect();
        world.add(1, Duration::from_secs(12), Eligible::Always);
        world.add(2, Duration::ZERO, Eligible::Never);
        world.add(3, Duration::from_secs(20), Eligible::IfLowest);
        world.run(Duration::from_secs(23));
        assert_eq!(world.hosts(), [1]);
        let times: Vec<_> =
            world.agents.iter().map(|agent| agent.found_at.unwrap() - world.start).collect();
        let limits = [12, 12, 20].map(|seconds| Duration::from_secs(seconds + 3));
        assert!(times.iter().zip(limits).all(|(time, limit)| *time < limit), "{times:?}");
    }
}

/// The number of addresses that are tried at once is limited, however many datagrams name.
#[test]
fn trials_are_bounded() {
    let now = clock::now_blocking();
    let mut agent = HostChoice::new(now, candidate(1), Eligible::Never, Pace::default());
    let mut tried = BTreeSet::new();
    for step in 0..2000_u32 {
        let [high, low] = (step as u16).to_be_bytes();
        let at = SocketAddr::from(([10, 1, high, low], 29400));
        let message = SearchMessage::Hosted { by: u64::from(step) + 2, at, by_host: false };
        agent.handle_message(now + MILLIS * 3 * step, &message, address(u64::from(step) % 50));
        agent.handle_timeout(now + MILLIS * 3 * step);
        while let Some(effect) = agent.poll_effect() {
            match effect {
                Effect::Try(at) => assert!(tried.insert(at)),
                Effect::Drop(at) => assert!(tried.remove(&at)),
                _ => {}
            }
        }
        assert!(tried.len() <= limits::MAX_PLACES);
    }
    assert_eq!(tried.len(), limits::MAX_PLACES);
}

/// An agent ends if the host of its job refuses it, and if the agent that names that host is present. It waits a moment, so that another
/// place has time to answer.
#[test]
fn refusal_ends_the_search() {
    let start = clock::now_blocking();
    for is_present in [true, false] {
        let mut agent = HostChoice::new(start, candidate(9), Eligible::Never, Pace::default());
        let hosted = SearchMessage::Hosted { by: 1, at: address(1), by_host: true };
        agent.handle_message(start, &hosted, address(1));
        let mut gives_up = None;
        for step in 0..100 {
            let now = start + MILLIS * 100 * step;
            agent.handle_timeout(now);
            while let Some(effect) = agent.poll_effect() {
                match effect {
                    Effect::Send(_, SearchMessage::Ask { nonce, .. }) if is_present => {
                        let answer = SearchMessage::Answer { by: 1, nonces: vec![nonce] };
                        agent.handle_message(now, &answer, address(1));
                    }
                    Effect::Try(at) => assert!(agent.handle_refused(now, at)),
                    Effect::GiveUp(at) => gives_up = Some((at, now - start)),
                    _ => {}
                }
            }
        }
        let expected = is_present.then(|| (address(1), Pace::default().refusal));
        assert_eq!(gives_up, expected);
    }
}

/// An agent continues the host of its own machine if a present agent names it, but not because of replayed datagrams. If it cannot listen
/// there, it continues to search.
#[test]
fn own_place_is_continued() {
    let start = clock::now_blocking();
    for is_present in [true, false] {
        let mut agent = HostChoice::new(start, candidate(9), Eligible::Never, Pace::default());
        let hosted = SearchMessage::Hosted { by: 1, at: address(9), by_host: false };
        let (mut continues, mut failed, mut dropped, mut tried) = (None, 0, 0, 0);
        for step in 0..100 {
            let now = start + MILLIS * 50 * step;
            agent.handle_message(now, &hosted, address(1));
            agent.handle_timeout(now);
            while let Some(effect) = agent.poll_effect() {
                match effect {
                    Effect::Send(_, SearchMessage::Ask { nonce, .. }) if is_present && step > 3 => {
                        let answer = SearchMessage::Answer { by: 1, nonces: vec![nonce] };
                        agent.handle_message(now, &answer, address(1));
                    }
                    Effect::Try(at) => {
                        tried += 1;
                        agent.handle_own_place(now, at);
                    }
                    // The first attempt to listen there fails.
                    Effect::Continue(at) if failed == 0 => {
                        failed += 1;
                        agent.handle_not_continued(now, at);
                    }
                    Effect::Continue(at) => continues = Some(at),
                    Effect::Drop(_) => dropped += 1,
                    _ => {}
                }
            }
        }
        assert_eq!(continues, is_present.then(|| address(9)));
        assert_eq!(tried, dropped + 2 * u32::from(is_present));
        assert!(tried < 6, "{tried}");
    }
}

/// Questions are answered in every state, in a limited number of datagrams. Questions to other agents are not answered.
#[test]
fn questions_are_answered() {
    let start = clock::now_blocking();
    let own = candidate(1);
    for state in 0..3 {
        let mut agent = HostChoice::new(start, own, Eligible::IfLowest, Pace::default());
        match state {
            0 => {}
            1 => agent.handle_hosting(start, address(1)),
            _ => agent.handle_sent_elsewhere(start, address(2)),
        }
        let (mut datagrams, mut nonces) = (0, 0);
        for step in 0..1000_u32 {
            let now = start + MILLIS * step;
            for to in [1, 2] {
                let question = SearchMessage::Ask { by: 5, to, nonce: u64::from(step) };
                agent.handle_message(now, &question, address(5 + u64::from(step % 4)));
            }
            agent.handle_timeout(now);
            while let Some(effect) = agent.poll_effect() {
                if let Effect::Present(asked) = effect {
                    datagrams += 1;
                    let count: usize = asked.values().map(Vec::len).sum();
                    nonces += count;
                    assert!(count <= limits::MAX_NONCES);
                }
            }
        }
        assert!((40..=51).contains(&datagrams), "{datagrams}");
        assert!(nonces <= datagrams * limits::MAX_NONCES && nonces > 500, "{nonces}");
    }
}

proptest! {
    /// With any datagrams at any time, a searching agent handles every deadline, and asks a limited number of agents. An agent that may
    /// host does so within a limited time after the last datagram.
    #[test]
    fn elections_end(
        steps in proptest::collection::vec((0..6_u8, 0..12_u64, 0..12_u64, 0..900_u32), 1..150),
    ) {
        let start = clock::now_blocking();
        let mut now = start;
        let mut agent = HostChoice::new(now, candidate(6), Eligible::IfLowest, Pace::default());
        let (mut has_chosen, mut questions) = (false, 0_u32);
        let mut nonce = 0;
        let mut steps = steps.into_iter();
        while !has_chosen {
            let step = steps.next();
            now += MILLIS * step.map_or(500, |(.., millis)| millis);
            if step.is_none() {
                prop_assert!(now < start + Duration::from_secs(200));
            }
            let message = step.map(|(kind, one, other, _)| match kind {
                0 | 1 => SearchMessage::Looking { by: candidate(one), may_host: kind == 0, lowest: Some(candidate(other)) },
                2 => SearchMessage::Hosted { by: one, at: address(other), by_host: false },
                3 => SearchMessage::Ask { by: one, to: other, nonce: one },
                _ => SearchMessage::Answer { by: one, nonces: vec![nonce] },
            });
            if let Some(message) = message {
                agent.handle_message(now, &message, address(1));
            }
            agent.handle_timeout(now);
            prop_assert!(agent.poll_timeout().is_none_or(|due| due > now));
            while let Some(effect) = agent.poll_effect() {
                match effect {
                    Effect::Host => has_chosen = true,
                    Effect::Try(at) => agent.handle_not_joined(now, at),
                    Effect::Send(_, SearchMessage::Ask { nonce: asked, .. }) => {
                        questions += 1;
                        nonce = asked;
                    }
                    _ => {}
                }
            }
        }
        let seconds = u32::try_from((now - start).as_secs()).unwrap() + 1;
        prop_assert!(questions <= seconds * 47 * limits::MAX_CHALLENGES as u32);
    }
}

/// An agent that must host wins against agents that may, so that there is one job.
#[test]
fn who_must_host_does() {
    for seed in 0..20 {
        let mut world = World::new(seed, 0);
        world.add(9, Duration::ZERO, Eligible::Always);
        world.add(1, Duration::ZERO, Eligible::IfLowest);
        world.run(Duration::from_secs(20));
        world.assert_found(9);
    }
}
