//! Voters in a simulated world: drifting clocks, a network that loses and delays messages, hosts
//! that fail, freeze and return, and workers whose leases depend on the leader's.
//!
//! The voters run the code of the rendezvous crate. Agents and coordinators are modelled as far as
//! the rules need them: an agent sends keep-alives to the leader and runs workers under the lease
//! that the echo allows; a coordinator forms a round from the agents that have registered with it.

mod agent;
mod coordinator;
mod fault;
mod host;
mod rules;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use ragent_election::election::{
    message::{Answer, Request, VoterMessage},
    timers::Timers,
};
use ragent_rendezvous::ids::{NodeId, Round, Term};

use crate::random::Random;
use agent::{Echo, KeepAlive};
use fault::Fault;
use host::Host;

/// A bug to plant in the leases or between the voters.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Bug {
    /// No bug: the machine as it is.
    None,
    /// A voter votes at once after its start. Breaks rules a and b.
    NoSilence,
    /// The leader's lease runs from the receipt of an answer. Breaks rules a and e.
    LeaseFromReceipt,
    /// The lease of voters is shorter than the leader's. Breaks rules a and b.
    ShortVoterLease,
    /// The lease of voters leaves no time for keepers. Breaks rule b.
    NoTimeForKeepers,
    /// A voter votes although another leader's lease is in force. Breaks rule a.
    VoteUnderLease,
    /// Workers run under a lease of their own. Breaks rule b.
    UnchainedWorkers,
    /// An agent counts the rest of the leadership from the receipt of the echo. Breaks rule b.
    LeftFromReceipt,
    /// Voters do not report how long earlier workers may run. Breaks rule b.
    UnreportedWorkers,
    /// A new leader does not wait for nodes that have not registered. Breaks rule b.
    NoWaitForOthers,
    /// An agent counts as registered before it has stopped its earlier workers. Breaks rule b.
    EarlyRegistration,
    /// An obituary ends the lease of the process that now runs on that host. Breaks rules a and b.
    ObituaryOfPlace,
    /// Votes of fresh voters count. Breaks rules a and b.
    FreshVotesCount,
    /// All processes propose the same terms. Breaks rules b and c.
    SharedTerms,
    /// A winner does not take over the memory of the voters. Breaks rule d.
    IgnoredReplica,
    /// A round is formed before a majority has its memory. Breaks rule d.
    EarlyRound,
    /// The clock stops while a machine is suspended. Breaks rules a and e.
    ClockStopsInSuspend,
    /// No deadline is ever applied. Breaks rule f.
    NoTimeouts,
}

/// A few voters, further hosts without a voter, and the job that runs on all of them.
#[derive(Debug)]
pub struct World {
    start: Instant,
    now: Instant,
    random: Random,
    bug: Bug,
    timers: Timers,
    voters: usize,
    hosts: Vec<Host>,
    processes_started: u64,
    events: BTreeMap<(Instant, u64), Event>,
    events_scheduled: u64,
    /// The times until which messages from one host to another are lost.
    cuts: BTreeMap<(usize, usize), Instant>,
    /// The share of all messages that is lost, in percent, and until when.
    loss: (u64, Instant),
    /// The time that a message takes, in milliseconds: the least and the most.
    latency: (u64, u64),
    /// True if a voter may return without its state file.
    forgets: bool,
    stage: Stage,
    record: Record,
}

/// The history that the rules need.
#[derive(Debug, Default)]
struct Record {
    /// The process that has won each term.
    winners: BTreeMap<Term, NodeId>,
    /// Every round that was formed.
    rounds: BTreeSet<(Round, Term)>,
    /// The time of sending of the newest renewal that each process has granted in a term.
    grants: BTreeMap<(Term, usize), Instant>,
    /// The greatest number that a majority has in its memory.
    copied: u32,
    broken: Option<String>,
    elections: u64,
    events: u64,
}

/// The numbers of a world at its end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Totals {
    /// The number of leaderships that began.
    pub elections: u64,
    /// The number of rounds that were formed.
    pub rounds: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Faulty,
    /// No faults have occurred since then.
    Quiet(Instant),
    /// The job has run again since then, after this number of elections.
    Healed(Instant, u64),
}

#[derive(Debug)]
enum Event {
    /// A request arrives at a voter.
    Request { to: usize, sent: Instant, message: VoterMessage<Request> },
    /// An answer arrives at the voter that has asked.
    Answer { to: usize, process: NodeId, message: VoterMessage<Answer> },
    /// A connection to a voter that was down has been made.
    Connected { from: usize, to: usize },
    /// A keeper's obituary arrives at a voter.
    Obituary { to: usize, of: usize, process: NodeId },
    /// A keep-alive arrives at a voter.
    KeepAlive { to: usize, message: KeepAlive },
    /// The answer to a keep-alive arrives at the agent.
    Echo { to: usize, message: Echo },
    /// A deadline of a host.
    Timer(usize),
    /// The process of a host starts.
    Start(usize),
    /// A host that was frozen or suspended resumes.
    Thaw(usize),
    /// The keeper of a dead agent has killed its workers.
    Swept { host: usize, process: NodeId },
    /// A fault occurs.
    Fault(Fault),
}

/// The time during which faults occur.
const FAULTY: Duration = Duration::from_secs(40);

/// The time that a keeper needs to kill the workers at the end of their lease.
const KEEPER: Duration = Duration::from_millis(500);

/// The maximum number of events in a world; the usual number is 10,000.
const EVENTS_MAX: u64 = 200_000;

/// The maximum drift of a clock, in millionths.
const DRIFT_MAX: u64 = 10_000;

impl World {
    /// Creates the world of `seed`, with a bug planted in it.
    #[expect(clippy::disallowed_methods, reason = "a world needs some instant to begin with")]
    pub fn new(seed: u64, bug: Bug) -> Self {
        let mut random = Random::new(seed);
        let start = Instant::now();
        let default = Timers::default();
        let voter_lease = match bug {
            Bug::ShortVoterLease => Duration::from_millis(2_200),
            Bug::NoTimeForKeepers => Duration::from_millis(2_800),
            _ => default.voter_lease,
        };
        let voters = if random.chance(60) { 3 } else { 5 };
        let hosts = voters + random.pick(&[0, 1, 2]).unwrap_or_default();
        let hosts = (0..hosts).map(|_| Host::new(start, &mut random)).collect();
        let mut world = Self {
            start,
            now: start,
            bug,
            timers: Timers { voter_lease, ..default },
            voters,
            hosts,
            processes_started: 0,
            events: BTreeMap::new(),
            events_scheduled: 0,
            cuts: BTreeMap::new(),
            loss: (0, start),
            latency: if random.chance(10) { (150, 250) } else { (0, 8) },
            forgets: random.chance(25),
            stage: Stage::Faulty,
            record: Record::default(),
            random,
        };
        world.populate();
        world
    }

    /// Starts the hosts, and chooses the faults.
    fn populate(&mut self) {
        for host in 0..self.hosts.len() {
            let latest = if self.random.chance(80) { 300 } else { 6_000 };
            let delay = self.random.millis(0, latest);
            self.schedule(delay, Event::Start(host));
        }
        for _ in 0..self.random.between(0, 14) {
            let at = self.random.millis(0, 40_000);
            let fault = self.roll_fault();
            self.schedule(at, Event::Fault(fault));
        }
    }

    /// Handles the next event; returns false once the job runs again after the last fault.
    ///
    /// # Errors
    ///
    /// Returns the rule that is broken, with the details.
    pub fn step(&mut self) -> Result<bool, String> {
        self.become_quiet();
        let Some(((at, _), event)) = self.events.pop_first() else {
            return Err("rule f: no event is left".to_owned());
        };
        self.now = self.now.max(at);
        self.record.events += 1;
        if self.record.events > EVENTS_MAX {
            return Err(format!(
                "the world has not ended after {EVENTS_MAX} events, at {:?}",
                self.elapsed()
            ));
        }
        self.check_leaders()?;
        self.happen(event);
        self.check_leaders()?;
        if let Some(broken) = self.record.broken.take() {
            return Err(broken);
        }
        self.check_health()
    }

    /// Returns the simulated time since the start.
    pub fn elapsed(&self) -> Duration {
        self.now.saturating_duration_since(self.start)
    }

    /// Returns the numbers so far.
    pub fn totals(&self) -> Totals {
        let rounds = self.record.rounds.len() as u64;
        Totals { elections: self.record.elections, rounds }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Request { to, sent, message } => self.arrive_request(to, sent, message),
            Event::Answer { to, process, message } => self.arrive_answer(to, &process, message),
            Event::Connected { from, to } => self.connect(from, to),
            Event::Obituary { to, of, process } => self.arrive_obituary(to, of, &process),
            Event::KeepAlive { to, message } => self.arrive_keep_alive(to, message),
            Event::Echo { to, message } => self.arrive_echo(to, message),
            Event::Timer(host) => self.time_out(host),
            Event::Start(host) => self.start_process(host),
            Event::Thaw(host) => self.thaw(host),
            Event::Swept { host, process } => self.sweep(host, &process),
            Event::Fault(fault) => self.strike(fault),
        }
    }

    /// Ends the faults when their time is over, and starts all hosts that are down.
    fn become_quiet(&mut self) {
        if self.stage != Stage::Faulty || self.now < self.start + FAULTY {
            return;
        }
        self.stage = Stage::Quiet(self.now);
        self.events.retain(|_, event| !matches!(event, Event::Fault(_) | Event::Start(_)));
        self.cuts.clear();
        self.loss = (0, self.now);
        for host in 0..self.hosts.len() {
            if self.hosts[host].is_down() {
                self.schedule(Duration::ZERO, Event::Start(host));
            }
        }
    }

    /// Sends a message from one host to another, unless the network loses it.
    fn send(&mut self, from: usize, to: usize, event: Event) {
        let is_cut = self.cuts.get(&(from, to)).is_some_and(|until| self.now < *until);
        let (percent, until) = self.loss;
        let is_lost = self.now < until && self.random.chance(percent);
        if is_cut || is_lost {
            return;
        }
        let (least, most) = self.latency;
        let is_slow = self.stage == Stage::Faulty && self.random.chance(2);
        let delay =
            if is_slow { self.random.millis(0, 5_000) } else { self.random.millis(least, most) };
        self.schedule(delay, event);
    }

    fn schedule(&mut self, delay: Duration, event: Event) {
        self.schedule_at(self.now + delay, event);
    }

    fn schedule_at(&mut self, at: Instant, event: Event) {
        self.events_scheduled += 1;
        self.events.insert((at.max(self.now), self.events_scheduled), event);
    }
}
