//! Agents on a network that loses datagrams, falls apart, and loses agents with their state. When it is whole again, one job is left.

use rand::{RngExt, SeedableRng, rngs::SmallRng};

use super::*;

/// A mistake to plant. Each leaves more than one job, or agents without one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    /// Hosts do not step down.
    NoStepDown,
    /// Jobs that have begun are not shown.
    NoShow,
    /// Hosts send no datagrams, except answers.
    SilentHosts,
}

/// The voters' lease: a host begins no round before, and a lost leader is replaced after it.
const LEASE: Duration = Duration::from_secs(3);
const FAULTY: Duration = Duration::from_secs(25);
const CALM: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(20);

struct Agent {
    /// `None` while its process is down.
    choice: Option<HostChoice>,
    starts: Instant,
    eligible: Eligible,
    job: Option<usize>,
}

struct Job {
    host: usize,
    /// The time since which the host is there, or is lost.
    since: Instant,
    born: Option<Instant>,
}

struct World {
    mistake: Option<Mistake>,
    now: Instant,
    random: SmallRng,
    agents: Vec<Agent>,
    jobs: Vec<Job>,
    min: usize,
    loss: u32,
    /// The agents that datagrams to all reach: every one, or those on a list of hosts.
    listed: u32,
    /// One of two sides of the network.
    side: u32,
    datagrams: Vec<(Instant, usize, usize, Announcement)>,
    dials: Vec<(Instant, usize, usize)>,
}

impl World {
    fn new(seed: u64, mistake: Option<Mistake>) -> Self {
        let (now, mut random) = (clock::now_blocking(), SmallRng::seed_from_u64(seed));
        let (count, is_ranked) = (random.random_range(2..7), random.random_range(0..4) == 0);
        let eligible = |place| match (is_ranked, place) {
            (false, _) => Eligible::IfLowest,
            (true, 0) => Eligible::Always,
            (true, _) => Eligible::Never,
        };
        let agents = (0..count).map(|place| {
            let starts = now + MILLIS * random.random_range(0..4_000);
            Agent { choice: None, starts, eligible: eligible(place), job: None }
        });
        let agents: Vec<_> = agents.collect();
        let (min, loss) = (random.random_range(1..=count), random.random_range(0..40));
        let has_list = random.random_range(0..3) == 0;
        let listed = if has_list { random.random_range(1..1 << count) } else { u32::MAX };
        let (side, jobs, datagrams, dials) = (0, vec![], vec![], vec![]);
        Self { mistake, now, random, agents, jobs, min, loss, listed, side, datagrams, dials }
    }

    /// Returns false if the network between two agents is cut.
    fn reaches(&self, one: usize, other: usize) -> bool {
        (self.side >> one) & 1 == (self.side >> other) & 1
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            self.step();
        }
    }

    fn step(&mut self) {
        let now = self.now;
        for place in 0..self.agents.len() {
            let agent = &mut self.agents[place];
            if agent.choice.is_none() && agent.starts <= now {
                let rank = if agent.eligible == Eligible::Always { 0 } else { u32::MAX };
                let own = Candidate { rank, number: self.random.random() };
                agent.choice = Some(HostChoice::new(now, own, agent.eligible));
            }
        }
        let (arrived, rest) = self.datagrams.drain(..).partition(|(at, ..)| *at <= now);
        self.datagrams = rest;
        for (_, from, to, message) in arrived {
            if let Some(choice) = &mut self.agents[to].choice {
                choice.handle_announcement(now, address(from as u64 + 1), &message);
            }
        }
        let (ended, rest) = self.dials.drain(..).partition(|(at, ..)| *at <= now);
        self.dials = rest;
        for (_, from, to) in ended {
            let there = self.agents[to].choice.as_ref().filter(|_| self.reaches(from, to));
            let answer =
                there.map_or(DialAnswer::Nobody, |there| DialAnswer::Standing(there.standing()));
            if let Some(choice) = &mut self.agents[from].choice {
                choice.handle_answer(now, address(to as u64 + 1), answer);
            }
        }
        self.run_jobs();
        for place in 0..self.agents.len() {
            self.settle(place);
            while let Some(effect) = self.agents[place].choice.as_mut().and_then(|choice| {
                choice.handle_timeout(now);
                choice.poll_effect()
            }) {
                self.carry_out(place, effect);
                self.settle(place);
            }
        }
    }

    fn is_up(&self, place: usize) -> bool {
        self.agents[place].choice.is_some()
    }

    /// Begins jobs with enough nodes, and replaces lost leaders.
    fn run_jobs(&mut self) {
        for number in 0..self.jobs.len() {
            let Job { host, since, born } = self.jobs[number];
            let there = self.agents[host].job;
            if born.is_none() && self.is_up(host) && there.is_some_and(|there| there != number) {
                // The next process of the host is in another job, and its port redirects the members of this one.
                self.merge(Some(number), host);
            }
            let members = (0..self.agents.len()).filter(|place| {
                let is_member = self.agents[*place].job == Some(number);
                is_member && self.is_up(*place) && self.reaches(host, *place)
            });
            let members: Vec<_> = members.collect();
            let is_due = since + LEASE <= self.now;
            if born.is_none() && is_due && members.contains(&host) && members.len() >= self.min {
                self.jobs[number].born = Some(self.now);
            } else if born.is_some() && is_due && !members.contains(&host) {
                let left = (0..self.agents.len())
                    .find(|place| self.agents[*place].job == Some(number) && self.is_up(*place));
                self.jobs[number].host = left.unwrap_or(host);
            }
        }
    }

    /// Reports its part to an agent in a job.
    fn settle(&mut self, place: usize) {
        let Some(job) = self.agents[place].job.map(|job| &self.jobs[job]) else { return };
        let stage = match (job.host == place, job.born) {
            (true, Some(_)) => SearchStage::Leader,
            (true, None) => SearchStage::Host,
            (false, _) => SearchStage::Member,
        };
        let compares = stage != SearchStage::Member || job.born.is_some();
        let settled = Settled { stage, home: Some(address(job.host as u64 + 1)), compares };
        if let Some(choice) = &mut self.agents[place].choice {
            choice.handle_settled(self.now, settled);
        }
    }

    fn place(&self, at: SocketAddr) -> usize {
        (0..self.agents.len()).find(|place| address(*place as u64 + 1) == at).expect("an agent")
    }

    fn carry_out(&mut self, place: usize, effect: Effect) {
        match effect {
            Effect::Send(peers) => {
                let choice = self.agents[place].choice.as_ref().expect("it is up");
                let Some(message) = choice.announcement(29400) else { return };
                let is_unasked = peers.is_empty() && !message.searches;
                let is_silent = is_unasked && self.mistake == Some(Mistake::SilentHosts);
                for to in 0..self.agents.len() {
                    if (self.listed >> to) & 1 == 0 && !peers.contains(&address(to as u64 + 1)) {
                        continue;
                    }
                    let is_lost = self.random.random_range(0..100) < self.loss;
                    if self.reaches(place, to) && !is_lost && !is_silent {
                        self.datagrams.push((self.now + STEP, place, to, message));
                    }
                }
            }
            Effect::Dial(at) => {
                let delay = MILLIS * self.random.random_range(0..200);
                self.dials.push((self.now + delay, place, self.place(at)));
            }
            Effect::Host => self.host(place),
            // Its earlier process has hosted the job, which has no round.
            Effect::Continue(at) => {
                let is_own = |job: &Job| job.host == place && job.born.is_none();
                assert_eq!(self.place(at), place);
                let Some(job) = self.jobs.iter().position(is_own) else { return self.host(place) };
                self.jobs[job].since = self.now;
                self.agents[place].job = Some(job);
            }
            Effect::Join(at) => {
                let job = self.agents[self.place(at)].job;
                let agent = &mut self.agents[place];
                agent.job = job;
                // The host has ended in this moment. The agent ends as well, and is started again.
                agent.choice.take_if(|_| job.is_none());
            }
            Effect::StepDown(_) if self.mistake == Some(Mistake::NoStepDown) => {}
            Effect::StepDown(at) => self.merge(self.agents[place].job, self.place(at)),
            Effect::Show(..) if self.mistake == Some(Mistake::NoShow) => {}
            Effect::Show(at, _) => self.show(place, self.place(at)),
            Effect::GiveUp => panic!("nobody refuses"),
        }
    }

    fn host(&mut self, place: usize) {
        self.agents[place].job = Some(self.jobs.len());
        self.jobs.push(Job { host: place, since: self.now, born: None });
    }

    /// Moves all agents of a job to that of the agent at `to`.
    fn merge(&mut self, from: Option<usize>, to: usize) {
        let to = self.agents[to].job;
        self.agents.iter_mut().filter(|agent| agent.job == from).for_each(|agent| agent.job = to);
    }

    /// If two jobs meet, a job that has begun goes on, and of two such jobs the elder one.
    fn show(&mut self, place: usize, to: usize) {
        let (own, other) = (self.agents[place].job, self.agents[to].job);
        let born = |job: Option<usize>| job.and_then(|job| self.jobs[job].born);
        let later = |job: Option<usize>| born(job).map_or((true, None), |at| (false, Some(at)));
        if own == other || !self.reaches(place, to) || later(other) < later(own) {
            return;
        }
        if born(other).is_none() {
            return self.merge(other, place);
        }
        for agent in self.agents.iter_mut().filter(|agent| agent.job == other) {
            (agent.choice, agent.job, agent.starts) =
                (None, None, self.now + Duration::from_secs(1));
        }
    }

    /// Cuts the network in two, or loses an agent with its state.
    fn disturb(&mut self) {
        if self.random.random_range(0..2) == 0 {
            self.side = self.random.random_range(0..1 << self.agents.len());
        } else {
            let place = self.random.random_range(0..self.agents.len());
            let starts = self.now + MILLIS * self.random.random_range(0..6_000);
            let agent = &mut self.agents[place];
            (agent.choice, agent.job, agent.starts) = (None, None, starts);
            let led = self.jobs.iter_mut().filter(|job| job.host == place);
            led.for_each(|job| job.since = self.now);
        }
    }

    /// Lives through faults, and then some time without any. Returns true if one job is left, which has begun.
    fn heals(&mut self) -> bool {
        let end = self.now + FAULTY;
        while self.now < end {
            let time = MILLIS * self.random.random_range(100..6_000);
            self.pass(time);
            self.disturb();
        }
        self.side = 0;
        self.pass(CALM);
        let first = self.agents[0].job;
        let has_begun = first.is_some_and(|job| self.jobs[job].born.is_some());
        has_begun && self.agents.iter().all(|agent| agent.job == first)
    }
}

/// Returns the first of many worlds that does not heal.
fn first_that_does_not_heal(mistake: Option<Mistake>) -> Option<u64> {
    (0..300).find(|seed| !World::new(*seed, mistake).heals())
}

/// Networks that have fallen apart, and lost agents, have one job in the end.
#[test]
fn one_job_is_left() {
    assert_eq!(first_that_does_not_heal(None), None);
}

/// Each planted mistake is noticed.
#[test]
fn mistakes_are_noticed() {
    for mistake in [Mistake::NoStepDown, Mistake::NoShow, Mistake::SilentHosts] {
        assert!(first_that_does_not_heal(Some(mistake)).is_some(), "{mistake:?}");
    }
}

/// Without faults, agents that start together choose one host, and find it within two seconds.
#[test]
fn one_host_is_chosen() {
    for seed in 0..100 {
        let mut world = World::new(seed, None);
        let starts = world.now;
        world.agents.iter_mut().for_each(|agent| agent.starts = starts);
        (world.loss, world.listed) = (10, u32::MAX);
        world.pass(Duration::from_millis(2_500));
        assert_eq!(world.jobs.len(), 1, "{seed}");
        assert!(world.agents.iter().all(|agent| agent.job == Some(0)), "{seed}");
    }
}
