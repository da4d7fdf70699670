//! Single elections, and networks that lose datagrams.

use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::*;
use crate::sys::clock;

const MILLIS: Duration = Duration::from_millis(1);

fn candidate(number: u64) -> Candidate {
    Candidate { rank: u32::MAX, number }
}

fn address(number: u64) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number as u8], 29400))
}

/// Agents on one network, each started at its own time.
struct World {
    start: Instant,
    now: Instant,
    agents: Vec<Member>,
    random: SmallRng,
    /// Percentage of datagrams that are lost.
    loss: u32,
    in_flight: Vec<(Instant, usize, Message, SocketAddr)>,
    messages: usize,
    /// The only agents that receive datagrams sent to all; `None`: all agents.
    listed: Option<Vec<u64>>,
}

struct Member {
    number: u64,
    starts: Instant,
    eligible: Eligible,
    election: Option<Election>,
    found: Option<SocketAddr>,
    is_host: bool,
    rival_requests: usize,
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
        }
    }

    fn add(&mut self, number: u64, after: Duration, eligible: Eligible) {
        self.agents.push(Member {
            number,
            starts: self.start + after,
            eligible,
            election: None,
            found: None,
            is_host: false,
            rival_requests: 0,
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
        let starts = self.agents.iter().filter(|agent| agent.election.is_none());
        let starts = starts.map(|agent| agent.starts);
        let timeouts =
            self.agents.iter().filter_map(|agent| agent.election.as_ref()?.poll_timeout());
        starts.chain(timeouts).chain(self.in_flight.iter().map(|(at, ..)| *at)).min()
    }

    fn step(&mut self) {
        let now = self.now;
        let (arrived, rest) = self.in_flight.drain(..).partition(|(at, ..)| *at <= now);
        self.in_flight = rest;
        for (_, to, message, peer) in arrived {
            if let Some(election) = &mut self.agents[to].election {
                election.handle_message(now, &message, peer);
            }
        }
        for index in 0..self.agents.len() {
            let agent = &mut self.agents[index];
            if agent.election.is_none() && agent.starts <= now {
                let eligible = agent.eligible;
                let rank = if eligible == Eligible::Always { 0 } else { u32::MAX };
                let own = Candidate { rank, number: agent.number };
                agent.election = Some(Election::new(now, own, eligible, Pace::default()));
            }
            if let Some(election) = &mut agent.election {
                election.handle_timeout(now);
            }
            while let Some(effect) =
                self.agents[index].election.as_mut().and_then(Election::poll_effect)
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
                agent.election.as_mut().unwrap().handle_hosting(self.now, own);
            }
            Effect::Join(at) => agent.found = Some(at),
            Effect::Answer(peer, message) => {
                let to = self.agents.iter().position(|agent| address(agent.number) == peer);
                if let Some(to) = to.filter(|to| !self.gets_through(index, *to)) {
                    self.in_flight.push((self.now + MILLIS, to, message, own));
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
                        agent.election.as_mut().unwrap().handle_sent_elsewhere(self.now, rival);
                    }
                }
            }
        }
    }

    /// Returns true if a datagram of `from` to all reaches `to`.
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
        for agent in self.agents.iter().filter(|agent| agent.election.is_some()) {
            assert_eq!(agent.found, Some(address(host)), "agent {}", agent.number);
            assert_eq!(agent.rival_requests, 0);
        }
    }
}

/// Agents that start at once agree on the lowest of them, for any number and order of agents.
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

/// An agent that starts after there is a host joins it, even if it is lower.
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
    assert_eq!(world.agents[2].found, Some(address(1)));
}

/// Two hosts of one job learn of each other, and one of them gives way; after that the other meets
/// none.
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

/// Each other host is met once in three seconds, however often it is named, and the number of
/// meetings is bounded.
#[test]
fn rivals_are_met_now_and_then() {
    let now = clock::now_blocking();
    let mut host = Election::new(now, candidate(1), Eligible::Always, Pace::default());
    host.handle_hosting(now, address(1));
    let mut requests = BTreeMap::new();
    for step in 0..100 {
        for other in [2, 3] {
            let message = Message::Hosted { by: other, at: address(other), by_host: true };
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
        let message = Message::Hosted { by: other, at: address(other), by_host: true };
        host.handle_message(now + Duration::from_secs(20), &message, address(other));
    }
    let requests = std::iter::from_fn(|| host.poll_effect());
    let requests = requests.filter(|effect| matches!(effect, Effect::AskRival(_)));
    assert_eq!(requests.count(), limits::MAX_RIVALS);
}

/// Two agents that answer each other's datagrams do not do so for ever.
#[test]
fn answers_are_not_answered() {
    let now = clock::now_blocking();
    let mut two = [1, 2]
        .map(|number| Election::new(now, candidate(number), Eligible::IfLowest, Pace::default()));
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

/// A list of one or two hosts suffices for all agents, even if another agent is the lowest: agents
/// on no list receive its datagrams only as answers.
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

/// A candidate that could not host looks again at once.
#[test]
fn failed_attempt_restarts_the_search() {
    let now = clock::now_blocking();
    let mut election = Election::new(now, candidate(1), Eligible::IfLowest, Pace::default());
    election.handle_timeout(now + Duration::from_secs(1));
    assert!(matches!(election.poll_effect(), Some(Effect::Broadcast(Message::Looking { .. }))));
    assert_eq!(election.poll_effect(), Some(Effect::Host));
    assert_eq!(election.poll_timeout(), None);
    election.handle_failed(now + Duration::from_secs(1));
    assert_eq!(election.poll_timeout(), Some(now + Duration::from_secs(1)));
}

/// An agent that must host prevails over agents that may, so that there is one job.
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
