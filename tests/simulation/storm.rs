//! Tests that retries do not overload a coordinator that was paused. There are thousands of real links, and the coordinator has a finite
//! speed.
//!
//! 1. The coordinator serves one input after another, and takes a fixed time for each.
//! 2. While it is paused, kernels accept connections for it and its queue fills up.
//! 3. Afterwards the queue must drain and every node must register again, in jobs of any size.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use ragent_core::link::{Effect, Link};
use ragent_rendezvous::{
    ids::StreamNumber,
    settings::{Leases, NodeRange},
};

/// The cost of a registration with its connection for a coordinator that has a fifth of a
/// processor.
const REGISTRATION_COST: Duration = Duration::from_micros(1_000);
/// The cost of a registration whose stream is closed.
const CLOSED_COST: Duration = Duration::from_micros(25);
/// The cost of a keep-alive.
const KEEP_ALIVE_COST: Duration = Duration::from_micros(50);
/// The latency of a packet.
const LATENCY: Duration = Duration::from_micros(500);
/// The pause in a small job. It is longer in larger jobs, like all intervals.
const PAUSE: Duration = Duration::from_millis(1_400);

/// A bug to plant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Bug {
    None,
    /// The driver closes every attempt after two seconds, and the coordinator serves registrations
    /// whose stream is closed.
    Impatience,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A deadline of a link.
    Timer(usize),
    /// A connection has been made.
    Connected(usize, StreamNumber),
    /// An input arrives at the coordinator.
    Arrived(Work),
    /// The coordinator has finished an input.
    Served(Work),
    /// The coordinator's answer arrives.
    Answered(Work),
    /// The impatient driver closes its attempt.
    HungUp(usize, StreamNumber),
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Registration(usize, StreamNumber),
    KeepAlive(usize, StreamNumber, u64),
}

struct Storm {
    bug: Bug,
    leases: Leases,
    links: Vec<Link>,
    timers: Vec<Option<Instant>>,
    /// The newest stream of each node that the coordinator knows.
    known: Vec<StreamNumber>,
    /// The number of connections that each node has opened.
    opened: Vec<u32>,
    now: Instant,
    paused_until: Option<Instant>,
    queue: VecDeque<Work>,
    is_busy: bool,
    events: BTreeMap<(Instant, u64), Event>,
    scheduled: u64,
    leases_lost: usize,
}

impl Storm {
    #[expect(
        clippy::disallowed_methods,
        reason = "a made-up clock needs some instant to start from"
    )]
    fn new(nodes: usize, bug: Bug) -> Self {
        let start = Instant::now();
        let size = u32::try_from(nodes).expect("a size of a job");
        let range = NodeRange::new(size, size).expect("min is max");
        let leases = Leases::default().for_nodes(range);
        let link = |seed: usize| {
            // Nodes do not start in the same instant.
            let offset = leases.agent.mul_f64(seed as f64 / nodes as f64);
            Link::new(start + offset, leases, seed as u64, false)
        };
        let mut storm = Self {
            bug,
            leases,
            links: (0..nodes).map(link).collect(),
            timers: vec![None; nodes],
            known: vec![StreamNumber(0); nodes],
            opened: vec![0; nodes],
            now: start,
            paused_until: None,
            queue: VecDeque::new(),
            is_busy: false,
            events: BTreeMap::new(),
            scheduled: 0,
            leases_lost: 0,
        };
        for node in 0..nodes {
            storm.settle(node);
        }
        storm
    }

    fn registered(&self) -> usize {
        self.links.iter().filter(|link| link.current().is_some()).count()
    }

    fn schedule(&mut self, delay: Duration, event: Event) {
        self.scheduled += 1;
        self.events.insert((self.now + delay, self.scheduled), event);
    }

    /// Handles all events that are due within `time`.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((at, _), event) = entry.remove_entry();
            self.now = at;
            self.happen(event);
        }
        self.now = end;
    }

    fn pause(&mut self, time: Duration) {
        self.paused_until = Some(self.now + time);
        self.run(time);
        self.paused_until = None;
        self.serve();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Timer(node) => {
                if self.timers[node] == Some(self.now) {
                    self.timers[node] = None;
                    self.links[node].handle_timeout(self.now);
                }
                self.settle(node);
            }
            Event::Connected(node, stream) => {
                if self.links[node].knows(stream) {
                    self.opened[node] += 1;
                    self.links[node].handle_opened(self.now, stream);
                    self.schedule(LATENCY, Event::Arrived(Work::Registration(node, stream)));
                    self.settle(node);
                }
            }
            Event::Arrived(work) => {
                self.queue.push_back(work);
                self.serve();
            }
            Event::Served(work) => {
                self.is_busy = false;
                self.answer(work);
                self.serve();
            }
            Event::Answered(Work::Registration(node, stream)) => {
                self.links[node].handle_welcome(self.now, stream, self.leases, None);
                self.settle(node);
            }
            Event::Answered(Work::KeepAlive(node, stream, sequence)) => {
                if self.links[node].knows(stream) {
                    self.links[node].handle_echo(self.now, sequence, None);
                    self.settle(node);
                }
            }
            Event::HungUp(node, stream) => {
                if self.links[node].current() != Some(stream) {
                    self.links[node].handle_ended(self.now, stream);
                    self.settle(node);
                }
            }
        }
    }

    fn serve(&mut self) {
        if self.is_busy || self.paused_until.is_some_and(|until| self.now < until) {
            return;
        }
        let Some(work) = self.queue.pop_front() else { return };
        let cost = match work {
            Work::Registration(node, stream) if self.is_closed(node, stream) => CLOSED_COST,
            Work::Registration(..) => REGISTRATION_COST,
            Work::KeepAlive(..) => KEEP_ALIVE_COST,
        };
        self.is_busy = true;
        self.schedule(cost, Event::Served(work));
    }

    fn is_closed(&self, node: usize, stream: StreamNumber) -> bool {
        self.bug == Bug::None && !self.links[node].knows(stream)
    }

    fn answer(&mut self, work: Work) {
        match work {
            Work::Registration(node, stream) if !self.is_closed(node, stream) => {
                self.known[node] = self.known[node].max(stream);
            }
            Work::KeepAlive(node, stream, _) if self.known[node] == stream => {}
            Work::Registration(..) | Work::KeepAlive(..) => return,
        }
        self.schedule(LATENCY, Event::Answered(work));
    }

    fn settle(&mut self, node: usize) {
        while let Some(effect) = self.links[node].poll_effect() {
            match effect {
                Effect::Dial(stream) => {
                    self.schedule(LATENCY * 2, Event::Connected(node, stream));
                    if self.bug == Bug::Impatience {
                        self.schedule(Duration::from_secs(2), Event::HungUp(node, stream));
                    }
                }
                Effect::KeepAlive { stream, sequence } => {
                    let work = Work::KeepAlive(node, stream, sequence);
                    self.schedule(LATENCY, Event::Arrived(work));
                }
                Effect::LeaseLost => self.leases_lost += 1,
                Effect::Drop(_) | Effect::Lease(_) => {}
            }
        }
        if let Some(at) = self.links[node].poll_timeout() {
            let at = at.max(self.now);
            if self.timers[node].is_none_or(|timer| at < timer) {
                self.timers[node] = Some(at);
                self.schedule(at - self.now, Event::Timer(node));
            }
        }
    }
}

/// Runs a job of `nodes` through a pause. Returns an error if nodes do not recover within two leases.
fn survive(nodes: usize, bug: Bug) -> Result<(), String> {
    let mut storm = Storm::new(nodes, bug);
    storm.run(storm.leases.agent * 2);
    if storm.registered() != nodes {
        return Err(format!("{} of {nodes} are registered at the start", storm.registered()));
    }
    let before: u32 = storm.opened.iter().sum();
    if before as usize != nodes {
        return Err(format!("{before} connections for {nodes} nodes at the start"));
    }
    storm.pause(PAUSE.mul_f64(storm.leases.factor()));
    let mut backlog = storm.queue.len();
    storm.run(storm.leases.agent * 2);
    let left = storm.queue.len();
    backlog = backlog.max(1);
    if left * 10 > backlog {
        return Err(format!(
            "{left} inputs wait for the coordinator, of {backlog} after the pause"
        ));
    }
    if storm.registered() != nodes {
        return Err(format!("{} of {nodes} are registered two leases later", storm.registered()));
    }
    let most = storm.opened.iter().max().copied().unwrap_or_default();
    if most > 3 {
        return Err(format!("a node has opened {} connections for one pause", most - 1));
    }
    if storm.leases_lost > 0 {
        return Err(format!("{} leases were lost", storm.leases_lost));
    }
    Ok(())
}

/// After a pause of the coordinator, every node registers again within two leases. It opens at most two connections for that and does not
/// lose its lease, in small and in large jobs.
#[test]
fn load_falls_after_a_pause() {
    for nodes in [10, 100, 1_000, 3_000, 10_000] {
        survive(nodes, Bug::None).unwrap_or_else(|why| panic!("{nodes} nodes: {why}"));
    }
}

/// The same job does not recover if attempts are short-lived and closed ones are served too.
#[test]
fn impatience_is_noticed() {
    let why = survive(10_000, Bug::Impatience).expect_err("the storm goes on");
    assert!(why.contains("wait for the coordinator"), "{why}");
}
