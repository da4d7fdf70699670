//! Claims in a seeded world: clocks drift, processes freeze, crash and resign, requests and answers are
//! delayed or lost, a delayed request may be carried out long after its sender has given it up, and the
//! store is away for a while.
//!
//! At any time: (a) at most one process leads; (b) when a process leads, and `workers_until` has passed,
//! no worker of an earlier leader runs; (c) each leader has a higher term than the one before; (f) it has
//! all changes of the memory that were reported as stored. After the last fault, (g) a process leads.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ragent_rendezvous::{
    heir::Successor,
    ids::{JobUid, Round},
};

use super::*;

const PROCESSES: usize = 5;
/// Microseconds of simulated time.
const FAULTS_END: u64 = 60_000_000;
const END: u64 = 90_000_000;
/// The time that a keeper needs to kill the workers, by its own clock.
const KILL: u64 = 500_000;
/// The deadline of a request.
const DEADLINE: u64 = 1_000_000;

#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// The store receives a change.
    Arrive {
        process: usize,
        life: u32,
        number: u64,
    },
    /// A process receives the outcome of a change.
    Answer {
        process: usize,
        life: u32,
        number: u64,
        is_known: bool,
    },
    /// A process receives the value of the key at this index of its history.
    Watch {
        process: usize,
        life: u32,
        at: usize,
    },
    /// A process receives an obituary.
    Obituary {
        process: usize,
        of: NodeId,
    },
    Timer {
        process: usize,
    },
    Fault,
}

struct Process {
    claim: Claim,
    life: u32,
    id: NodeId,
    /// The speed of its clock.
    rate: f64,
    frozen_until: u64,
    /// The end of its leadership in true time, while it leads.
    leads_until: Option<u64>,
    timer: Option<u64>,
}

struct World {
    now: u64,
    base: Instant,
    random: Jitter,
    timers: Timers,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    processes: Vec<Process>,
    /// All values of the key, the newest last.
    history: Vec<Value>,
    revision: u64,
    away_until: u64,
    changes: BTreeMap<ChangeId, (Revision, Option<Box<Record>>)>,
    outcomes: BTreeMap<ChangeId, Outcome>,
    /// The ends of all leases in true time, with the time for the kill.
    workers_until: u64,
    last_term: Term,
    stored: u64,
    rounds: u64,
    remembered: BTreeMap<ChangeId, u64>,
    leaderships: usize,
    ids: BTreeSet<NodeId>,
}

/// A process, its life, and the number of a change of the key or of the memory.
type ChangeId = (usize, u32, u64);

type Violation = String;

impl World {
    fn new(seed: u64, base: Instant, timers: Timers) -> Self {
        let mut world = Self {
            now: 0,
            base,
            random: Jitter::new(seed),
            timers,
            events: BTreeMap::new(),
            sequence: 0,
            processes: Vec::new(),
            history: vec![Value { revision: Revision(5), entry: None }],
            revision: 5,
            away_until: 0,
            changes: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            workers_until: 0,
            last_term: Term(0),
            stored: 0,
            rounds: 0,
            remembered: BTreeMap::new(),
            leaderships: 0,
            ids: BTreeSet::new(),
        };
        for index in 0..PROCESSES {
            let process = world.start(index, 0);
            world.processes.push(process);
            world.schedule_watch(index);
        }
        world.at(1_000_000, Event::Fault);
        world
    }

    fn start(&mut self, index: usize, life: u32) -> Process {
        let id = NodeId::new(format!("p{index}.{life}"));
        self.ids.insert(id.clone());
        let rate = 0.99 + self.random.fraction() * 0.02;
        let settings = Settings {
            process: id.clone(),
            endpoint: format!("h{index}:{life}"),
            timers: self.timers,
            seed: self.random.bits(),
        };
        let claim = Claim::new(local(self.base, rate, self.now), settings);
        Process { claim, life, id, rate, frozen_until: 0, leads_until: None, timer: None }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.bits() % limit.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((time, self.sequence), event);
    }

    fn delay(&mut self) -> u64 {
        let is_disturbed = self.now < FAULTS_END;
        let roll = self.below(100);
        match roll {
            0..=1 if is_disturbed => self.below(8_000_000),
            2..=9 if is_disturbed => self.below(900_000),
            _ => 200 + self.below(3_000),
        }
    }

    fn schedule_watch(&mut self, process: usize) {
        let life = self.processes[process].life;
        let at = self.now + self.delay();
        let newest = self.history.len() - 1;
        self.at(at, Event::Watch { process, life, at: newest });
    }

    fn run(&mut self) -> Result<(), Violation> {
        while let Some(((time, _), event)) = self.events.pop_first() {
            if time > END {
                break;
            }
            self.now = self.now.max(time);
            self.step(event)?;
        }
        let leads = |process: &Process| process.leads_until.is_some_and(|until| self.now < until);
        if self.processes.iter().any(leads) { Ok(()) } else { Err("(g) nobody leads".to_owned()) }
    }

    fn step(&mut self, event: Event) -> Result<(), Violation> {
        let target = match &event {
            Event::Fault => {
                self.fault();
                return Ok(());
            }
            Event::Arrive { process, life, number } => {
                self.arrive(*process, *life, *number);
                return Ok(());
            }
            Event::Answer { process, .. }
            | Event::Watch { process, .. }
            | Event::Obituary { process, .. }
            | Event::Timer { process } => *process,
        };
        let frozen_until = self.processes[target].frozen_until;
        if self.now < frozen_until {
            self.at(frozen_until, event);
            return Ok(());
        }
        let process = &mut self.processes[target];
        let now = local(self.base, process.rate, self.now);
        match event {
            Event::Answer { life, number, is_known, .. } if life == process.life => {
                let outcome = self.outcomes.get(&(target, life, number)).cloned();
                let outcome = outcome.filter(|_| is_known).unwrap_or(Outcome::Unknown);
                process.claim.handle_outcome(now, number, outcome);
            }
            Event::Watch { life, at, .. } if life == process.life => {
                process.claim.handle_value(now, self.history[at].clone());
            }
            Event::Obituary { of, .. } => process.claim.handle_obituary(now, &of),
            Event::Timer { .. } => {
                process.timer = None;
                process.claim.handle_timeout(now);
            }
            _ => return Ok(()),
        }
        self.carry_out(target)
    }

    fn arrive(&mut self, process: usize, life: u32, number: u64) {
        if self.now < self.away_until {
            // The store carries it out when it is back.
            let back = self.away_until + self.delay();
            return self.at(back, Event::Arrive { process, life, number });
        }
        let Some((expected, record)) = self.changes.remove(&(process, life, number)) else {
            return;
        };
        let newest = self.history.last().expect("it is not empty");
        let present = newest.entry.as_ref().map_or(Revision(0), |entry| entry.revision);
        let outcome = if present == expected {
            self.revision += 1;
            let revision = Revision(self.revision);
            let entry = record.map(|record| Entry { revision, record: *record });
            self.history.push(Value { revision, entry });
            for other in 0..PROCESSES {
                self.schedule_watch(other);
            }
            Outcome::Made(revision)
        } else {
            let revision = Revision(self.revision);
            Outcome::Refused(Box::new(Value { revision, ..newest.clone() }))
        };
        self.outcomes.insert((process, life, number), outcome);
    }

    /// Carries out the effects of a process, and checks the rules.
    fn carry_out(&mut self, index: usize) -> Result<(), Violation> {
        while let Some(effect) = self.processes[index].claim.poll_effect() {
            let (rate, life) = (self.processes[index].rate, self.processes[index].life);
            match effect {
                Effect::Change { number, expected, record } => {
                    self.request(index, life, number, expected, record);
                }
                Effect::Lead(leadership) => {
                    let until = self.real(rate, leadership.until);
                    let free = self.real(rate, leadership.workers_until).max(self.now);
                    self.check_lead(index, &leadership, free)?;
                    self.extend(index, until);
                    self.remember(index);
                }
                Effect::Extend(until) => {
                    let until = self.real(rate, until);
                    self.extend(index, until);
                }
                Effect::Stored(number) => {
                    let round = self.remembered.get(&(index, life, number)).copied();
                    self.stored = self.stored.max(round.unwrap_or_default());
                    if self.chance(30) {
                        self.remember(index);
                    }
                }
                Effect::Follow { .. } => self.processes[index].leads_until = None,
                Effect::Released => {}
            }
        }
        let process = &self.processes[index];
        if let Some(due) = process.claim.poll_timeout() {
            let at = self.real(process.rate, due).max(self.now) + 1;
            let process = &mut self.processes[index];
            if process.timer.is_none_or(|timer| at < timer) {
                process.timer = Some(at);
                self.at(at, Event::Timer { process: index });
            }
        }
        Ok(())
    }

    fn check_lead(
        &mut self,
        index: usize,
        leadership: &crate::election::Leadership,
        free: u64,
    ) -> Result<(), Violation> {
        let now = self.now;
        self.leaderships += 1;
        let leads = |(other, process): (usize, &Process)| {
            other != index && process.leads_until.is_some_and(|until| now < until)
        };
        if self.processes.iter().enumerate().any(leads) {
            return Err(format!("(a) two processes lead at {now}"));
        }
        if free < self.workers_until {
            return Err(format!("(b) workers run until {}, not {free}", self.workers_until));
        }
        if leadership.term <= self.last_term {
            return Err(format!("(c) the term {} is not new", leadership.term));
        }
        let round = leadership.memory.as_ref().map_or(0, |memory| memory.round.0);
        if round < self.stored {
            return Err(format!("(f) round {} is forgotten", self.stored));
        }
        self.last_term = leadership.term;
        Ok(())
    }

    fn extend(&mut self, index: usize, until: u64) {
        let process = &mut self.processes[index];
        process.leads_until = process.leads_until.max(Some(until));
        // A keeper on another machine, with the slowest clock.
        let killed = until + KILL + KILL / 50;
        self.workers_until = self.workers_until.max(killed);
    }

    fn remember(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let now = local(self.base, process.rate, self.now);
        self.rounds += 1;
        let round = self.rounds;
        let memory = Memory { round: Round(round), ..Memory::fresh(JobUid::new("job")) };
        let others = (0..PROCESSES).filter(|other| *other != index).take(3);
        let successor = |other: usize| Successor {
            process: NodeId::new(format!("p{other}.0")),
            endpoint: String::new(),
        };
        process.claim.handle_successors(now, others.map(successor).collect());
        let number = process.claim.handle_remember(now, memory);
        if let Some(number) = number {
            self.remembered.insert((index, process.life, number), round);
        }
    }

    fn request(
        &mut self,
        index: usize,
        life: u32,
        number: u64,
        expected: Revision,
        record: Option<Box<Record>>,
    ) {
        self.changes.insert((index, life, number), (expected, record));
        let arrives = self.now + self.delay();
        let is_disturbed = self.now < FAULTS_END;
        let (is_lost, is_unanswered) =
            (is_disturbed && self.chance(4), is_disturbed && self.chance(4));
        if !is_lost {
            self.at(arrives, Event::Arrive { process: index, life, number });
        }
        let answered = arrives.max(self.away_until) + self.delay() + 10_000;
        let deadline = self.now + DEADLINE;
        let is_known = !is_lost && !is_unanswered && answered < deadline;
        let at = if is_known { answered } else { deadline };
        self.at(at, Event::Answer { process: index, life, number, is_known });
    }

    fn fault(&mut self) {
        if self.now >= FAULTS_END {
            return;
        }
        let leader =
            self.processes.iter().position(|process| process.leads_until.is_some()).unwrap_or(0);
        let any = self.below(PROCESSES as u64) as usize;
        let target = if self.chance(70) { leader } else { any };
        let length = self.below(12_000_000);
        let now = local(self.base, self.processes[target].rate, self.now);
        match self.below(5) {
            0 => self.processes[target].frozen_until = self.now + length,
            1 => self.away_until = self.now + length,
            2 => {
                let (life, id) =
                    (self.processes[target].life + 1, self.processes[target].id.clone());
                self.processes[target] = self.start(target, life);
                self.schedule_watch(target);
                if self.chance(50) {
                    for process in 0..PROCESSES {
                        let at = self.now + self.delay();
                        self.at(at, Event::Obituary { process, of: id.clone() });
                    }
                }
            }
            3 => {
                let term = self.last_term;
                self.processes[target].claim.handle_resigned(now, term);
            }
            _ => {
                let term = Term(self.last_term.0 + (1 << 16));
                self.processes[target].claim.handle_highest(now, term);
            }
        }
        // The effects are carried out with the next event.
        let at = self.now;
        self.at(at, Event::Timer { process: target });
        let next = self.now + 500_000 + self.below(12_000_000);
        self.at(next, Event::Fault);
    }

    /// Returns the true time at which the clock of a process shows `at`.
    fn real(&self, rate: f64, at: Instant) -> u64 {
        let shown = at.saturating_duration_since(self.base).as_secs_f64();
        (shown / rate * 1e6).ceil() as u64
    }
}

fn local(base: Instant, rate: f64, now: u64) -> Instant {
    base + Duration::from_secs_f64(now as f64 / 1e6 * rate)
}

/// Runs worlds until a rule is broken; returns the seed and the violation, or the number of leaderships.
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
fn worlds(count: u64, timers: Timers) -> Result<usize, (u64, Violation)> {
    let base = Instant::now();
    let mut leaderships = 0;
    for seed in 0..count {
        let mut world = World::new(seed, base, timers);
        world.run().map_err(|violation| (seed, violation))?;
        leaderships += world.leaderships;
    }
    Ok(leaderships)
}

/// No rule is broken.
#[test]
fn rules_hold() {
    let leaderships = worlds(1_000, Timers::default()).unwrap_or_else(|(seed, violation)| {
        panic!("seed {seed}: {violation}");
    });
    assert!(leaderships > 2_000, "{leaderships} leaderships");
}

/// A record that is replaced before the leader's lease is over leads to two leaders.
#[test]
fn silence_below_the_lease_is_found() {
    let timers = Timers::default();
    let silence = timers.leader_lease.mul_f64(0.9);
    let (_, violation) = worlds(600, Timers { silence, ..timers }).unwrap_err();
    assert!(violation.starts_with("(a)") || violation.starts_with("(b)"), "{violation}");
}

/// A record that is replaced before the workers of the leader are killed leads to two rounds at once.
#[test]
fn silence_below_the_kill_is_found() {
    let timers = Timers::default();
    let silence = timers.leader_lease.mul_f64(1.03);
    let (_, violation) = worlds(2_000, Timers { silence, ..timers }).unwrap_err();
    assert!(violation.starts_with("(b)"), "{violation}");
}
