//! Claims in a seeded world.
//!
//! Clocks drift, processes freeze, crash and resign, requests and answers are delayed or lost, a delayed
//! request may be carried out long after its sender has given it up, and the store is away for a while. Others
//! delete the key, once or several times, also while the leader does not reach the store; they write garbage to
//! it, and empty the store or restore it from a copy. Restoring takes longer than all leases.
//!
//! At any time:
//!
//! - (a) at most one process leads;
//! - (b) when a process leads, and `workers_until` has passed, no worker of an earlier leader runs;
//! - (c) each leader has a higher term than the one before;
//! - (f) it has all changes of the memory that were reported as stored;
//! - (h) a leader whose messages are not delayed leads until it resigns, or until another process has put a record
//!   of a higher term into the key.
//!
//! After the last fault, (g) a process leads.
//!
//! If others have changed the key, (c) and (f) hold for terms and changes that a living process has seen
//! whose messages were not delayed for a silence.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    ops::Range,
    time::Duration,
};

use ragent_rendezvous::{
    heir::Successor,
    ids::{JobUid, Round},
};

use super::*;
use store::{Loss, Store};

mod store;

const PROCESSES: usize = 5;
/// Microseconds of simulated time.
const FAULTS_END: u64 = 60_000_000;
const END: u64 = 90_000_000;
/// The time that a keeper needs to kill the workers, by its own clock.
const KILL: u64 = 500_000;
/// The deadline of a request.
const DEADLINE: u64 = 1_000_000;
/// The longest delay that does not count as a disturbance.
const PROMPT: u64 = 1_000_000;
/// The time after a disturbance in which a process may still be late: its pause after failed requests, and a silence.
const LATE: u64 = 9_000_000;
/// The time without the store while it is restored from a copy: longer than all leases.
const RESTORING: u64 = 7_500_000;

/// A deliberate error of all processes, which the rules must find.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Bug {
    /// A process forgets the memory when the key is deleted.
    MemoryDropped,
    /// A process that has seen no record leads at once.
    CreatorAtOnce,
    /// A leader whose record is gone does not write it again.
    RecordNotWritten,
    /// Garbage is not replaced.
    GarbageKept,
}

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
    /// A process that was cut off reads the key.
    Read {
        process: usize,
        life: u32,
    },
    /// A process receives an obituary.
    Obituary {
        process: usize,
        of: NodeId,
    },
    Timer {
        process: usize,
    },
    /// Others change the key.
    Lose(Loss),
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
    /// It does not reach the store until then.
    cut_until: u64,
    /// All its messages since then were in time.
    disturbed_until: u64,
    /// The time of its last watched value: they arrive in their order.
    watched_at: u64,
    /// It was asked to resign.
    resigns: bool,
    /// The term in which it led last.
    term: Term,
    /// The highest term and round that it has seen.
    seen: (Term, u64),
}

struct World {
    bug: Option<Bug>,
    now: u64,
    base: Instant,
    random: Jitter,
    timers: Timers,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    processes: Vec<Process>,
    store: Store,
    away_until: u64,
    /// Others have changed the key.
    has_losses: bool,
    /// A process has replaced the memory by an older one, and none that knew it could prevent that.
    has_forgotten: bool,
    changes: BTreeMap<ChangeId, (Stamp, Option<Box<Record>>)>,
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
    fn new(seed: u64, base: Instant, timers: Timers, bug: Option<Bug>) -> Self {
        let mut world = Self {
            bug,
            now: 0,
            base,
            random: Jitter::new(seed),
            timers,
            events: BTreeMap::new(),
            sequence: 0,
            processes: Vec::new(),
            store: Store::new(),
            away_until: 0,
            has_losses: false,
            has_forgotten: false,
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
        if world.chance(10) {
            world.store.lose(Loss::Garbage);
        }
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
        Process {
            claim,
            life,
            id,
            rate,
            frozen_until: 0,
            leads_until: None,
            timer: None,
            cut_until: 0,
            disturbed_until: 0,
            watched_at: 0,
            resigns: false,
            term: Term(0),
            seen: (Term(0), 0),
        }
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

    /// Returns the delay of a message of a process.
    fn delay_of(&mut self, process: usize) -> u64 {
        let delay = self.delay();
        if delay > PROMPT {
            self.disturb(process, self.now + delay);
        }
        delay
    }

    /// Notes that messages of a process may be late or lost until then.
    fn disturb(&mut self, process: usize, until: u64) {
        let process = &mut self.processes[process];
        process.disturbed_until = process.disturbed_until.max(until);
    }

    /// Returns true if all messages of a process were in time for this time.
    fn is_prompt(&self, process: &Process, time: u64) -> bool {
        process.disturbed_until.max(self.away_until) + time < self.now
    }

    fn schedule_watch(&mut self, process: usize) {
        let at = self.now + self.delay_of(process);
        let Process { life, watched_at, .. } = &mut self.processes[process];
        let (life, at) = (*life, at.max(*watched_at));
        *watched_at = at;
        self.at(at, Event::Watch { process, life, at: self.store.newest() });
    }

    fn schedule_watches(&mut self) {
        for process in 0..PROCESSES {
            self.schedule_watch(process);
        }
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
        if self.processes.iter().any(leads) { Ok(()) } else { Err("(g) no leader".to_owned()) }
    }

    fn step(&mut self, event: Event) -> Result<(), Violation> {
        let target = match &event {
            Event::Read { process, life } => {
                if self.processes[*process].life == *life {
                    self.schedule_watch(*process);
                }
                return Ok(());
            }
            Event::Fault => {
                self.fault();
                return Ok(());
            }
            Event::Lose(loss) => {
                self.lose(*loss);
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
        if self.bug == Some(Bug::CreatorAtOnce) {
            process.wait_for(self.timers.silence);
        }
        let now = local(self.base, process.rate, self.now);
        match event {
            Event::Answer { life, number, is_known, .. } if life == process.life => {
                let outcome = self.outcomes.get(&(target, life, number)).cloned();
                let mut outcome = outcome.filter(|_| is_known).unwrap_or(Outcome::Unknown);
                if let Outcome::Refused(value) = &outcome {
                    process.see(value);
                    if value.garbage.is_some() && self.bug == Some(Bug::GarbageKept) {
                        outcome = Outcome::Unknown;
                    }
                }
                process.claim.handle_outcome(now, number, outcome);
            }
            Event::Watch { life, at, .. } if life == process.life => {
                if self.now < process.cut_until {
                    return Ok(());
                }
                let value = self.store.at(at).clone();
                if value.garbage.is_some() && self.bug == Some(Bug::GarbageKept) {
                    return Ok(());
                }
                process.see(&value);
                process.claim.handle_value(now, value);
                if self.bug == Some(Bug::MemoryDropped) {
                    process.forget_absent();
                }
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
        let claimed = record.as_ref().filter(|record| !record.is_placeholder);
        let round = claimed.map(|record| round_of(record.memory.as_ref()));
        let outcome = self.store.change(expected, record);
        if matches!(outcome, Outcome::Made(_)) {
            // A record that replaces an older one of a restored store, before the others have seen that.
            let (_, known) = self.known();
            self.has_forgotten |= round.is_some_and(|round| known <= round && round < self.stored);
            self.schedule_watches();
        }
        self.outcomes.insert((process, life, number), outcome);
    }

    /// Others change the key.
    fn lose(&mut self, loss: Loss) {
        if self.now >= FAULTS_END {
            return;
        }
        self.has_losses = true;
        if matches!(loss, Loss::Wiped | Loss::Restored(_)) {
            // Its members are started again, and all connections end.
            self.changes.clear();
        }
        self.store.lose(loss);
        self.schedule_watches();
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
                Effect::Follow { .. } => self.check_end(index)?,
                Effect::GarbageReplaced | Effect::Released => {}
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
        let (term, known) = self.known();
        if leadership.term <= term {
            return Err(format!("(c) the term {} is not new", leadership.term));
        }
        let round = round_of(leadership.memory.as_ref());
        if round < known {
            return Err(format!("(f) round {known} is forgotten at {now}"));
        }
        self.has_forgotten |= leadership.term <= self.last_term || round < self.stored;
        self.last_term = leadership.term;
        self.processes[index].term = leadership.term;
        Ok(())
    }

    /// Returns the term and the round that the next leader must know.
    fn known(&self) -> (Term, u64) {
        if self.has_forgotten {
            return (Term(0), 0);
        }
        if !self.has_losses {
            return (self.last_term, self.stored);
        }
        let prompt = self.processes.iter().filter(|process| self.is_prompt(process, LATE));
        let seen = |(term, round): (Term, u64), process: &Process| {
            (term.max(process.seen.0), round.max(process.seen.1))
        };
        let (term, round) = prompt.fold((Term(0), 0), seen);
        (term.min(self.last_term), round.min(self.stored))
    }

    /// Ends the leadership of a process, if it leads.
    fn check_end(&mut self, index: usize) -> Result<(), Violation> {
        let now = self.now;
        let process = &mut self.processes[index];
        let (led, resigns) = (process.leads_until.take(), mem::take(&mut process.resigns));
        let process = &self.processes[index];
        let entry = self.store.at(self.store.newest()).entry.as_ref();
        let is_replaced = entry.is_some_and(|entry| entry.record.term > process.term);
        let lease = self.timers.leader_lease.as_micros() as u64;
        let is_prompt = self.is_prompt(process, lease + DEADLINE);
        if led.is_some() && !resigns && !is_replaced && is_prompt {
            return Err(format!("(h) the leadership of {index} has ended at {now}"));
        }
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
        expected: Stamp,
        record: Option<Box<Record>>,
    ) {
        self.changes.insert((index, life, number), (expected, record));
        let arrives = self.now + self.delay_of(index);
        let is_disturbed = self.now < FAULTS_END;
        let (mut is_lost, is_unanswered) =
            (is_disturbed && self.chance(4), is_disturbed && self.chance(4));
        is_lost |= self.now < self.processes[index].cut_until;
        if is_lost || is_unanswered {
            self.disturb(index, self.now + DEADLINE);
        }
        let process = &self.processes[index];
        let has_lost = process.leads_until.is_some() && process.claim.unreleased().is_none();
        is_lost |= self.bug == Some(Bug::RecordNotWritten) && has_lost;
        if !is_lost {
            self.at(arrives, Event::Arrive { process: index, life, number });
        }
        let answered = arrives.max(self.away_until) + self.delay_of(index) + 10_000;
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
        match self.below(12) {
            0 => {
                self.processes[target].frozen_until = self.now + length;
                self.disturb(target, self.now + length);
            }
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
                self.processes[target].resigns = true;
            }
            4 => {
                let term = Term(self.last_term.0 + (1 << 16));
                self.processes[target].claim.handle_highest(now, term);
                self.processes[target].resigns = true;
            }
            5 => self.cut_off(target, length),
            6 => {
                // The key may be deleted before it is there again.
                for _ in 0..=self.below(3) {
                    let at = self.now + self.below(8_000_000);
                    self.at(at, Event::Lose(Loss::Deleted));
                }
            }
            7 => {
                self.cut_off(target, length);
                for _ in 0..=self.below(2) {
                    let at = self.now + self.below(length + 1_000_000);
                    self.at(at, Event::Lose(Loss::Deleted));
                }
            }
            8 => {
                // The lease of the key ends while no process reaches the store.
                self.away_until = self.now + length;
                self.at(self.away_until, Event::Lose(Loss::Deleted));
            }
            9 => self.lose(Loss::Wiped),
            10 => {
                let index = self.random.bits() as usize;
                self.lose(Loss::Restored(index));
                self.away_until = self.now + RESTORING + length / 4;
            }
            _ => self.lose(Loss::Garbage),
        }
        // The effects are carried out with the next event.
        let at = self.now;
        self.at(at, Event::Timer { process: target });
        let next = self.now + 500_000 + self.below(12_000_000);
        self.at(next, Event::Fault);
    }

    /// A process does not reach the store for a time; then it reads the key.
    fn cut_off(&mut self, process: usize, time: u64) {
        let until = self.now + time;
        self.disturb(process, until);
        let Process { life, cut_until, watched_at, .. } = &mut self.processes[process];
        *cut_until = until.max(*cut_until);
        *watched_at = (*cut_until).max(*watched_at);
        let (life, at) = (*life, *watched_at);
        self.at(at, Event::Read { process, life });
    }

    /// Returns the true time at which the clock of a process shows `at`.
    fn real(&self, rate: f64, at: Instant) -> u64 {
        let shown = at.saturating_duration_since(self.base).as_secs_f64();
        (shown / rate * 1e6).ceil() as u64
    }
}

impl Process {
    /// The error of [`Bug::MemoryDropped`].
    fn forget_absent(&mut self) {
        if matches!(self.claim.known.content, Content::Absent { .. }) {
            self.claim.known.newest = None;
        }
    }

    /// The error of [`Bug::CreatorAtOnce`].
    fn wait_for(&mut self, silence: Duration) {
        let is_known = self.claim.known.newest.is_some();
        self.claim.settings.timers.silence = if is_known { silence } else { Duration::ZERO };
    }

    /// Notes what the process sees.
    fn see(&mut self, value: &Value) {
        let Some(Entry { record, .. }) = &value.entry else { return };
        let round = round_of(record.memory.as_ref());
        self.seen = (self.seen.0.max(record.term), self.seen.1.max(round));
    }
}

fn round_of(memory: Option<&Memory>) -> u64 {
    memory.map_or(0, |memory| memory.round.0)
}

fn local(base: Instant, rate: f64, now: u64) -> Instant {
    base + Duration::from_secs_f64(now as f64 / 1e6 * rate)
}

/// Runs the worlds of these seeds until a rule is broken; returns the seed and the violation, or the number of
/// leaderships.
#[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
fn worlds(seeds: Range<u64>, timers: Timers, bug: Option<Bug>) -> Result<usize, (u64, Violation)> {
    let base = Instant::now();
    let mut leaderships = 0;
    for seed in seeds {
        let mut world = World::new(seed, base, timers, bug);
        world.run().map_err(|violation| (seed, violation))?;
        leaderships += world.leaderships;
    }
    Ok(leaderships)
}

/// The number of worlds: `CLAIM_SEEDS` in the environment.
#[expect(clippy::disallowed_methods, reason = "the user of the simulation selects its worlds")]
fn seeds() -> u64 {
    std::env::var("CLAIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1_000)
}

/// No rule is broken.
#[test]
fn rules_hold() {
    let leaderships =
        worlds(0..seeds(), Timers::default(), None).unwrap_or_else(|(seed, violation)| {
            panic!("seed {seed}: {violation}");
        });
    assert!(leaderships > 2_000, "{leaderships} leaderships");
}

/// A record that is replaced before the leader's lease is over leads to two leaders.
#[test]
fn silence_below_the_lease_is_found() {
    let timers = Timers::default();
    let silence = timers.leader_lease.mul_f64(0.9);
    let (_, violation) = worlds(0..600, Timers { silence, ..timers }, None).unwrap_err();
    assert!(violation.starts_with("(a)") || violation.starts_with("(b)"), "{violation}");
}

/// A record that is replaced before the workers of the leader are killed leads to two rounds at once.
#[test]
fn silence_below_the_kill_is_found() {
    let timers = Timers::default();
    let silence = timers.leader_lease.mul_f64(1.03);
    let (_, violation) = worlds(0..2_000, Timers { silence, ..timers }, None).unwrap_err();
    assert!(violation.starts_with("(b)"), "{violation}");
}

/// Each deliberate error breaks the rule that is named.
#[test]
fn bugs_are_found() {
    for (bug, rules) in [
        (Bug::MemoryDropped, &["(f)", "(c)"][..]),
        (Bug::CreatorAtOnce, &["(a)", "(b)"]),
        (Bug::RecordNotWritten, &["(h)"]),
        (Bug::GarbageKept, &["(g)", "(h)"]),
    ] {
        let (_, violation) = worlds(0..1_000, Timers::default(), Some(bug)).unwrap_err();
        assert!(rules.iter().any(|rule| violation.starts_with(rule)), "{bug:?}: {violation}");
    }
}
