//! Simulates jobs whose coordinator is chosen through etcd: the real `Claim` of each process, and a model of the store.
//!
//! - Requests and answers are delayed or lost. A delayed request may arrive long after its sender has given it up.
//! - The store is away for a while, or processes do not reach it.
//! - In half of the worlds, others change the key: they delete it, write garbage to it, empty the store, or restore it from a copy.
//!   Restoring takes longer than all leases.

mod store;

use std::{
    mem,
    time::{Duration, Instant},
};

use ragent_election::{
    claim::{
        ChangeOutcome, Claim, ClaimSettings, ClaimTimers, Effect, KeyContent, Record, RecordKind,
        Stamp,
    },
    election::NewLeadership,
};
use ragent_rendezvous::{
    ids::{NodeId, Round, Term, VoterAddress},
    settings::JobState,
};

use super::{
    Bug, Event, Input, Part, World,
    election::Command,
    fault::{Fault, Victim},
    port::Leader,
    rules::Stage,
};
use store::{Loss, Store};

/// The store, and the claims of the processes.
#[derive(Debug)]
pub(super) struct Etcd {
    pub(super) timers: ClaimTimers,
    store: Store,
    /// The store does not answer until then.
    away_until: Instant,
    /// True if others have changed the key.
    has_losses: bool,
    /// True if the job was forgotten, and no process that knew it could prevent that.
    has_forgotten: bool,
    last_term: Term,
    /// The newest round in the states that were stored.
    stored: Round,
}

/// The claim of a process.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) claim: Claim,
    /// The numbers of changes of the state that are being stored. Each has a number of the claim and a number of the coordinator.
    storing: Vec<(u64, u64)>,
    /// The arrival of the last content of the key, so that contents arrive in order.
    watched_at: Instant,
    /// The process does not reach the store until then.
    cut_until: Instant,
    /// Its messages were late or lost until then.
    disturbed_until: Instant,
    /// True if it was asked to resign.
    resigns: bool,
    /// The highest term and round that it has seen.
    seen: (Term, Round),
}

/// An event of the store.
#[derive(Debug)]
pub(super) enum StoreEvent {
    /// A request to change the key arrives.
    Arrive { from: NodeId, number: u64, expected: Stamp, record: Box<Record>, is_answered: bool },
    /// A process reads the key again.
    Read(NodeId),
}

/// A fault of the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum StoreFault {
    /// It does not answer for a while. After that, the lease of the key may be over.
    Away { time: Duration, loses: bool },
    /// A process does not reach it.
    Unreachable { victim: Victim, time: Duration },
    /// Others change the key.
    Lose(Loss),
}

/// The deadline of a request.
const DEADLINE: Duration = Duration::from_secs(1);

/// The time after a disturbance in which a process may still be late, for its pause after failed requests, and for a silence.
const LATE: Duration = Duration::from_secs(9);

/// The time without the store while it is restored from a copy, longer than all leases.
const RESTORING: Duration = Duration::from_millis(7_500);

impl Bug {
    fn claim_timers(self) -> ClaimTimers {
        let default = ClaimTimers::default();
        let silence = match self {
            Self::SilenceBelowLease => default.leader_lease.mul_f64(0.9),
            Self::SilenceBelowKill => default.leader_lease.mul_f64(1.03),
            _ => default.silence,
        };
        ClaimTimers { silence, ..default }
    }
}

impl World {
    /// Lets the processes choose the coordinator through etcd.
    pub(super) fn choose_through_etcd(&mut self) {
        (self.listed, self.forgets, self.checks_voters) = (self.hosts.len(), false, false);
        let mut store = Store::new();
        if self.random.chance(10) {
            store.lose(Loss::Garbage);
        }
        self.etcd = Some(Box::new(Etcd {
            timers: self.bug.claim_timers(),
            store,
            away_until: self.start,
            has_losses: false,
            has_forgotten: false,
            last_term: Term(0),
            stored: Round(0),
        }));
        let may_lose = self.random.chance(50);
        for _ in 0..self.random.between(1, 6) {
            let (at, fault) = (self.random.millis(0, 38_000), self.roll_store(may_lose));
            self.schedule(at, Event::Fault(Fault::Store(fault)));
        }
    }

    fn roll_store(&mut self, may_lose: bool) -> StoreFault {
        let random = &mut self.random;
        let host = random.between(0, self.hosts.len() as u64 - 1);
        let host = usize::try_from(host).unwrap_or_default();
        let victim = if random.chance(70) { Victim::Leader } else { Victim::Host(host) };
        let time = random.millis(100, 12_000);
        match random.between(1, if may_lose { 100 } else { 45 }) {
            1..=20 => StoreFault::Away { time, loses: false },
            21..=45 => StoreFault::Unreachable { victim, time },
            46..=55 => StoreFault::Away { time, loses: true },
            56..=75 => StoreFault::Lose(Loss::Deleted),
            76..=82 => StoreFault::Lose(Loss::Wiped),
            83..=90 => StoreFault::Lose(Loss::Restored(random.between(0, 1_000_000) as usize)),
            _ => StoreFault::Lose(Loss::Garbage),
        }
    }

    pub(super) fn strike_store(&mut self, fault: StoreFault) {
        let now = self.now;
        match fault {
            StoreFault::Away { time, loses } => {
                self.be_away(time);
                if loses {
                    let fault = Fault::Store(StoreFault::Lose(Loss::Deleted));
                    self.schedule(time, Event::Fault(fault));
                }
            }
            StoreFault::Unreachable { victim, time } => {
                let host = self.victim(victim);
                let Some(id) = self.hosts[host].process.clone() else { return };
                self.disturb(&id, now + time);
                if let Some(candidate) = self.candidate(&id) {
                    candidate.cut_until = candidate.cut_until.max(now + time);
                }
                self.schedule(time, Event::Store(StoreEvent::Read(id)));
            }
            StoreFault::Lose(loss) => {
                if let Loss::Restored(_) = loss {
                    let time = self.random.millis(0, 3_000);
                    self.be_away(RESTORING + time);
                }
                if let Loss::Wiped | Loss::Restored(_) = loss {
                    // Its members are started again, and all connections end.
                    self.events.retain(|_, event| {
                        !matches!(event, Event::Store(StoreEvent::Arrive { .. }))
                    });
                }
                if let Some(etcd) = &mut self.etcd {
                    etcd.has_losses = true;
                    etcd.store.lose(loss);
                }
                self.watch_all();
            }
        }
    }

    fn be_away(&mut self, time: Duration) {
        let until = self.now + time;
        if let Some(etcd) = &mut self.etcd {
            etcd.away_until = etcd.away_until.max(until);
        }
    }

    /// Returns true if a process does not reach the store.
    pub(super) fn is_store_away(&self) -> bool {
        let candidates = self.processes.values().filter_map(|process| process.candidate.as_ref());
        let away = self.etcd.as_ref().map(|etcd| etcd.away_until);
        away.into_iter().chain(candidates.map(|one| one.cut_until)).any(|until| self.now < until)
    }

    pub(super) fn candidate(&mut self, id: &NodeId) -> Option<&mut Candidate> {
        self.processes.get_mut(id)?.candidate.as_mut()
    }

    pub(super) fn new_candidate(&mut self, host: usize, id: &NodeId, local: Instant) -> Candidate {
        let settings = ClaimSettings {
            process: id.clone(),
            endpoint: self.place(host).address().to_string(),
            timers: self.bug.claim_timers(),
            seed: self.random.between(0, u64::MAX - 1),
        };
        Candidate {
            claim: Claim::new(local, settings),
            storing: Vec::new(),
            watched_at: self.now,
            cut_until: self.now,
            disturbed_until: self.now,
            resigns: false,
            seen: (Term(0), Round(0)),
        }
    }

    /// Notes that messages of a process may be late or lost until then.
    fn disturb(&mut self, id: &NodeId, until: Instant) {
        if let Some(candidate) = self.candidate(id) {
            candidate.disturbed_until = candidate.disturbed_until.max(until);
        }
    }

    /// Returns the time that a message between a process and the store takes.
    fn store_delay(&mut self, id: &NodeId) -> Duration {
        let is_faulty = self.stage == Stage::Faulty;
        let delay = match self.random.between(1, 100) {
            1..=2 if is_faulty => self.random.millis(0, 8_000),
            3..=10 if is_faulty => self.random.millis(0, 900),
            _ => Duration::from_micros(self.random.between(200, 3_000)),
        };
        if delay > DEADLINE {
            self.disturb(id, self.now + delay);
        }
        delay
    }

    /// Sends the content of the key to a process.
    pub(super) fn watch(&mut self, id: &NodeId) {
        let delay = self.store_delay(id);
        let Some(etcd) = &self.etcd else { return };
        let value = etcd.store.newest().clone();
        let at = (self.now + delay).max(etcd.away_until);
        let Some(candidate) = self.candidate(id) else { return };
        candidate.watched_at = candidate.watched_at.max(at);
        let at = candidate.watched_at;
        self.schedule_at(at, Event::Process(id.clone(), Input::Watched(Box::new(value))));
    }

    fn watch_all(&mut self) {
        for id in self.processes.keys().cloned().collect::<Vec<_>>() {
            self.watch(&id);
        }
    }

    pub(super) fn happen_in_store(&mut self, event: StoreEvent) {
        let StoreEvent::Arrive { from, number, expected, record, is_answered } = event else {
            if let StoreEvent::Read(id) = event {
                self.watch(&id);
            }
            return;
        };
        let delay = self.store_delay(&from);
        let known = self.known();
        let Some(etcd) = &mut self.etcd else { return };
        if self.now < etcd.away_until {
            // The store carries it out when it is back.
            let at = etcd.away_until + delay;
            let again = StoreEvent::Arrive { from, number, expected, record, is_answered };
            return self.schedule_at(at, Event::Store(again));
        }
        let job_state = record.job_state.clone();
        let is_claim = record.kind != RecordKind::Placeholder;
        let claimed = is_claim.then(|| (record.term, round_of(record.job_state.as_ref())));
        let outcome = etcd.store.change(expected, record);
        let is_made = matches!(outcome, ChangeOutcome::Made(_));
        // A record replaces an older one of a restored store, before the others have seen that.
        let is_older = |(term, round): (Term, Round)| {
            let is_older_round = known.1 <= round && round < etcd.stored;
            is_older_round || known.0 < term && term < etcd.last_term
        };
        etcd.has_forgotten |= is_made && claimed.is_some_and(is_older);
        if is_made {
            self.watch_all();
            if let Some(ended) = job_state.filter(|job_state| job_state.closed.is_some()) {
                self.note_stored(&ended);
            }
        }
        if is_answered {
            self.wake(&from, delay, Input::Changed(number, Box::new(outcome)));
        }
    }

    fn request(&mut self, id: &NodeId, number: u64, expected: Stamp, record: Box<Record>) {
        let arrives = self.store_delay(id);
        let is_faulty = self.stage == Stage::Faulty;
        let is_lost = is_faulty && self.random.chance(4);
        let is_answered = !(is_faulty && self.random.chance(4));
        let now = self.now;
        let entry = self.etcd.as_ref().and_then(|etcd| etcd.store.newest_entry());
        let is_own =
            |record: &Record| record.process == *id && record.kind != RecordKind::Placeholder;
        let is_there = entry.is_some_and(|entry| is_own(&entry.record));
        let is_bug = self.bug == Bug::RecordNotWritten && !is_there;
        let Some(candidate) = self.candidate(id) else { return };
        let is_lost = is_lost || now < candidate.cut_until;
        let is_unwritten = is_bug && candidate.claim.leads_until().is_some();
        if is_lost || !is_answered {
            self.disturb(id, now + DEADLINE);
        }
        if !is_lost && !is_unwritten {
            let from = id.clone();
            let arrive = StoreEvent::Arrive { from, number, expected, record, is_answered };
            self.schedule(arrives, Event::Store(arrive));
        }
        self.wake(id, DEADLINE, Input::Changed(number, Box::new(ChangeOutcome::Unknown)));
    }

    /// Calls the claim of a process with the time on its clock, and carries out the effects.
    pub(super) fn with_claim<T>(
        &mut self,
        id: &NodeId,
        call: impl FnOnce(&mut Claim, Instant) -> T,
    ) -> Option<T> {
        let local = self.local(id)?;
        let result = call(&mut self.candidate(id)?.claim, local);
        self.settle_claim(id);
        Some(result)
    }

    pub(super) fn handle_watched(&mut self, id: &NodeId, value: KeyContent) {
        if self.is_unread(id, &value) {
            return;
        }
        let is_absent = value.entry.is_none() && value.garbage.is_none();
        if is_absent && self.bug == Bug::StateDropped {
            self.forget_claim(id);
        }
        let value = self.forge_value(id, value);
        self.with_claim(id, |claim, now| claim.handle_value(now, value));
    }

    pub(super) fn handle_changed(&mut self, id: &NodeId, number: u64, outcome: ChangeOutcome) {
        let outcome = match outcome {
            ChangeOutcome::Refused(value) if self.is_unread(id, &value) => return,
            ChangeOutcome::Refused(value) => {
                ChangeOutcome::Refused(Box::new(self.forge_value(id, *value)))
            }
            outcome => outcome,
        };
        let now = self.now;
        let is_cut = self.candidate(id).is_some_and(|candidate| now < candidate.cut_until);
        if !is_cut || outcome == ChangeOutcome::Unknown {
            self.with_claim(id, |claim, now| claim.handle_outcome(now, number, outcome));
        }
    }

    /// Returns true if a process does not receive this content of the key. Otherwise notes it.
    fn is_unread(&mut self, id: &NodeId, value: &KeyContent) -> bool {
        let (now, bug) = (self.now, self.bug);
        let Some(candidate) = self.candidate(id) else { return true };
        if now < candidate.cut_until || bug == Bug::GarbageKept && value.garbage.is_some() {
            return true;
        }
        if let Some(entry) = value.entry.as_ref().filter(|entry| entry.record.process != *id) {
            let (term, round) = candidate.seen;
            let seen = round_of(entry.record.job_state.as_ref());
            candidate.seen = (term.max(entry.record.term), round.max(seen));
        }
        false
    }

    /// Commits the error of [`Bug::StateDropped`], and of [`Bug::OutcomeIgnored`].
    fn forget_claim(&mut self, id: &NodeId) {
        let Some(host) = self.processes.get(id).map(|process| process.host) else { return };
        let Some(local) = self.local(id) else { return };
        let claim = self.new_candidate(host, id, local).claim;
        if let Some(candidate) = self.candidate(id)
            && candidate.claim.leads_until().is_none()
        {
            candidate.claim = claim;
        }
    }

    /// Commits the error of [`Bug::CreatorAtOnce`]: a placeholder counts as a record that was released.
    fn forge_value(&mut self, id: &NodeId, mut value: KeyContent) -> KeyContent {
        let is_bug = self.bug == Bug::CreatorAtOnce;
        let knows_record = self.candidate(id).is_some_and(|one| one.claim.record().is_some());
        if let Some(entry) = &mut value.entry
            && is_bug
            && !knows_record
            && entry.record.kind == RecordKind::Placeholder
        {
            entry.record.process = NodeId::new("nobody");
            entry.record.kind = RecordKind::Resigned;
        }
        value
    }

    pub(super) fn command_claim(&mut self, id: &NodeId, command: Command) {
        if let Command::Highest(_) | Command::Resign(_) | Command::JobOver(_) | Command::Leave =
            command
            && let Some(candidate) = self.candidate(id)
        {
            candidate.resigns = true;
        }
        match command {
            Command::Remember(job_state, number) => {
                let port = self.processes.get(id).map(|process| &process.port);
                let coordinator = port.and_then(|port| port.coordination.running());
                let successors = coordinator.map(|one| one.rendezvous.successors());
                self.with_claim(id, |claim, now| {
                    claim.handle_successors(now, successors.unwrap_or_default());
                });
                let stored =
                    self.with_claim(id, |claim, now| claim.handle_remember(now, *job_state));
                match (stored.flatten(), self.candidate(id)) {
                    (Some(change), Some(candidate)) => candidate.storing.push((change, number)),
                    // This process no longer leads.
                    _ => self.pass(id, Input::Stored(number, false)),
                }
            }
            Command::Highest(term) => {
                self.with_claim(id, |claim, now| claim.handle_highest(now, term));
            }
            Command::Resign(term) => {
                self.with_claim(id, |claim, now| claim.handle_resigned(now, term));
            }
            Command::JobOver(term) => {
                self.with_claim(id, |claim, now| claim.handle_job_over(now, term));
            }
            Command::DeathNotice(node) => {
                self.with_claim(id, |claim, now| claim.handle_death_notice(now, &node));
            }
            Command::Leave => {
                self.with_claim(id, |claim, now| claim.handle_leaving(now));
            }
            Command::Members(_) | Command::KnownJob(_) | Command::Ended(_) | Command::Forget => {}
        }
    }

    /// Carries out the effects of a claim, and sets its timer.
    pub(super) fn settle_claim(&mut self, id: &NodeId) {
        while let Some(effect) = self.candidate(id).and_then(|one| one.claim.poll_effect()) {
            if self.dies_now(id) {
                return;
            }
            self.carry_out_of_claim(id, effect);
        }
        let deadline = self.candidate(id).and_then(|candidate| candidate.claim.poll_timeout());
        self.set_timer(id, Part::Voter, deadline);
    }

    fn carry_out_of_claim(&mut self, id: &NodeId, effect: Effect) {
        match effect {
            Effect::Change { number, expected, record } => {
                self.request(id, number, expected, record);
            }
            Effect::Lead(leadership) => {
                self.check_claim(&leadership);
                self.note_winner(id, &leadership);
                self.lead(id, leadership);
            }
            Effect::Extend(until) => self.extend(id, until),
            Effect::Stored(change) => {
                let Some(candidate) = self.candidate(id) else { return };
                let done: Vec<_> =
                    candidate.storing.extract_if(.., |(at, _)| *at <= change).collect();
                for (_, number) in done {
                    self.pass(id, Input::Stored(number, true));
                }
            }
            Effect::Follow { leader } => {
                self.check_followed(id);
                let Some(candidate) = self.candidate(id) else { return };
                for (_, number) in mem::take(&mut candidate.storing) {
                    self.pass(id, Input::Stored(number, false));
                }
                let leader = leader.map_or(Leader::Unknown, |(endpoint, term)| {
                    Leader::Other(VoterAddress::new(endpoint), term)
                });
                self.follow(id, leader);
            }
            Effect::Released => {
                if self.processes.get(id).is_some_and(|process| process.ending.is_some()) {
                    self.pass(id, Input::Exit);
                }
            }
            Effect::Outlived(_) if self.bug == Bug::OutcomeIgnored => self.forget_claim(id),
            Effect::Outlived(outcome) => self.pass(id, Input::Outlived(Some(outcome))),
            Effect::GarbageReplaced => {}
        }
    }

    /// Returns true if the state of the job may have been lost with the key.
    pub(super) fn has_lost_key(&self) -> bool {
        self.etcd.as_ref().is_some_and(|etcd| etcd.has_losses)
    }

    /// Notes that the store has a job's state. If the job has ended, the next job need not know it.
    pub(super) fn note_stored(&mut self, job_state: &JobState) {
        let Some(etcd) = &mut self.etcd else { return };
        if job_state.closed.is_some() {
            etcd.stored = Round(0);
            self.record.forget_rounds();
            self.note_end(job_state.job_uid.clone());
        } else {
            etcd.stored = etcd.stored.max(job_state.round);
        }
    }

    /// Returns true if all messages of a process were in time for this time.
    fn is_prompt(&self, host: usize, candidate: &Candidate, time: Duration) -> bool {
        let away = self.etcd.as_ref().map(|etcd| etcd.away_until);
        let until = away.max(Some(candidate.disturbed_until)).max(self.hosts[host].thawed);
        until.is_none_or(|until| until + time < self.now)
    }

    /// Returns the term and the round that the next leader must know. If others have changed the key, they are taken from processes whose
    /// messages were in time.
    fn known(&self) -> (Term, Round) {
        let none = (Term(0), Round(0));
        let Some(etcd) = self.etcd.as_ref().filter(|etcd| !etcd.has_forgotten) else { return none };
        if !etcd.has_losses {
            return (etcd.last_term, etcd.stored);
        }
        let candidates =
            self.processes.values().filter_map(|p| Some((p.host, p.candidate.as_ref()?)));
        let prompt = candidates.filter(|(host, one)| self.is_prompt(*host, one, LATE));
        let (term, round) = prompt
            .fold(none, |(term, round), (_, one)| (term.max(one.seen.0), round.max(one.seen.1)));
        (term.min(etcd.last_term), round.min(etcd.stored))
    }

    /// Checks rules c and d for a leadership that begins.
    fn check_claim(&mut self, leadership: &NewLeadership) {
        let (term, known) = self.known();
        let round = round_of(leadership.job_state.as_ref());
        let Some(etcd) = &mut self.etcd else { return };
        etcd.has_forgotten |= leadership.term <= etcd.last_term || round < etcd.stored;
        etcd.last_term = leadership.term;
        if leadership.term <= term {
            self.record.breaks(|| format!("rule c: the term {} is not new", leadership.term));
        }
        if round < known {
            self.record.breaks(|| format!("rule d: {known} is forgotten: {round} is known"));
        }
    }

    /// Checks rule o for a process that no longer leads.
    fn check_followed(&mut self, id: &NodeId) {
        let Some(process) = self.processes.get(id) else { return };
        let (Leader::Here(leadership), Some(candidate)) =
            (&process.port.leader, &process.candidate)
        else {
            return;
        };
        let (term, host) = (leadership.term, process.host);
        let Some(etcd) = &self.etcd else { return };
        let is_replaced = etcd.store.newest_entry().is_some_and(|entry| entry.record.term > term);
        let is_prompt = self.is_prompt(host, candidate, etcd.timers.leader_lease + DEADLINE);
        if !candidate.resigns && !is_replaced && is_prompt {
            self.record.breaks(|| format!("rule o: the leadership of {id} has ended"));
        }
        if let Some(candidate) = self.candidate(id) {
            candidate.resigns = false;
        }
    }
}

fn round_of(job_state: Option<&JobState>) -> Round {
    job_state.map_or(Round(0), |job_state| job_state.round)
}
