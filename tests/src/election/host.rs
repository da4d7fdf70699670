//! A host: its clock, the process of its agent, and the voter in it.

use std::{
    mem,
    time::{Duration, Instant},
};

use ragent_election::election::{
    self, Effect, Election,
    message::{Answer, Knowledge, Replica, Request, Version, VoterMessage},
};
use ragent_rendezvous::{
    ids::{NodeId, Term, VoterId},
    settings::Memory,
};

use super::{Bug, DRIFT_MAX, Event, World, agent::Agent, agent::Workers, coordinator::Coordinator};
use crate::{
    addresses::{address, host_of},
    random::Random,
};

/// A version above that of every replica.
const UNREACHED: Version = Version { term: Term(u64::MAX), number: 0 };

/// A host.
#[derive(Debug)]
pub(super) struct Host {
    start: Instant,
    /// The rate of its clock; 1 is exact.
    rate: f64,
    /// The time by which its clock was stopped.
    stopped: Duration,
    pub(super) process: Option<Process>,
    /// The workers that run, also those of an agent that is dead or frozen.
    pub(super) workers: Option<Workers>,
    pub(super) freeze: Option<Freeze>,
    /// True if a voter was started on it.
    has_voted: bool,
    /// The state file.
    pub(super) file: Option<(Replica, Term)>,
}

/// The agent's process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: NodeId,
    pub(super) election: Option<Election>,
    pub(super) coordinator: Option<Coordinator>,
    pub(super) agent: Agent,
    /// The time for which a timer is set.
    pub(super) timer: Option<Instant>,
    /// True if the process ends as soon as it does not lead.
    pub(super) is_leaving: bool,
}

/// A pause of an agent's process or of a whole machine.
#[derive(Debug)]
pub(super) struct Freeze {
    since: Instant,
    pub(super) until: Instant,
    /// True if the keeper and the workers are stopped as well.
    pub(super) is_suspend: bool,
    /// The events that have arrived since.
    held: Vec<Event>,
}

impl Host {
    pub(super) fn new(start: Instant, random: &mut Random) -> Self {
        let drift = random.between(0, 2 * DRIFT_MAX) as f64 - DRIFT_MAX as f64;
        Self {
            start,
            rate: 1.0 + drift / 1e6,
            stopped: Duration::ZERO,
            process: None,
            workers: None,
            freeze: None,
            has_voted: false,
            file: None,
        }
    }

    /// Returns the time on the clock of this host.
    pub(super) fn local(&self, now: Instant) -> Instant {
        let now = now.saturating_duration_since(self.start).mul_f64(self.rate);
        self.start + now.saturating_sub(self.stopped)
    }

    /// Returns the time at which the clock of this host shows `local`.
    pub(super) fn global(&self, local: Instant) -> Instant {
        let local = local.saturating_duration_since(self.start) + self.stopped;
        // Rounded up, so that a deadline has passed when its timer fires.
        self.start + local.div_f64(self.rate) + Duration::from_nanos(2)
    }

    pub(super) fn is_down(&self) -> bool {
        self.process.is_none()
    }

    /// Returns the end of the leadership of this host's process, by its own clock.
    pub(super) fn leads_until(&self, bug: Bug) -> Option<Instant> {
        let process = self.process.as_ref()?;
        if bug == Bug::LeaseFromReceipt {
            return process.coordinator.as_ref().map(Coordinator::until);
        }
        process.election.as_ref()?.leads_until()
    }

    /// Returns true if the agent's process handles what arrives.
    pub(super) fn is_awake(&self) -> bool {
        self.process.is_some() && self.freeze.is_none()
    }
}

impl World {
    pub(super) fn start_process(&mut self, host: usize) {
        if self.hosts[host].freeze.is_some() {
            self.hold(host, Event::Start(host));
            return;
        }
        if !self.hosts[host].is_down() {
            return;
        }
        self.processes_started += 1;
        let id = NodeId::new(format!("{host}-{}", self.processes_started));
        let local = self.hosts[host].local(self.now);
        let election = (host < self.voters).then(|| self.election(host, id.clone(), local));
        self.hosts[host].process = Some(Process {
            id,
            election,
            coordinator: None,
            agent: Agent::new(local),
            timer: None,
            is_leaving: false,
        });
        for from in (0..self.voters).filter(|from| *from != host) {
            self.send(host, from, Event::Connected { from, to: host });
        }
        self.settle(host);
    }

    /// Notifies a voter of its new connection to another one.
    pub(super) fn connect(&mut self, from: usize, to: usize) {
        if self.hosts[from].is_awake() && to < self.voters {
            let to = address(to);
            self.with_election(from, |election, now| election.handle_connected(now, &to));
        }
    }

    fn election(&mut self, host: usize, process: NodeId, local: Instant) -> Election {
        let seed = match self.bug {
            Bug::SharedTerms => 0,
            _ => self.random.between(0, u64::MAX - 1),
        };
        let settings = election::Settings {
            // The identity of a voter is never lost here, so that one that has forgotten its promises still counts.
            voter: VoterId(host as u64),
            is_first_start: false,
            ended: Vec::new(),
            is_new: !mem::replace(&mut self.hosts[host].has_voted, true),
            address: address(host),
            listed: (0..self.voters).map(address).collect(),
            process,
            timers: self.timers,
            seed,
        };
        let (replica, highest) = self.hosts[host].file.clone().unwrap_or_default();
        let started = match self.bug {
            Bug::NoSilence => local.checked_sub(self.timers.voter_lease).unwrap_or(local),
            _ => local,
        };
        Election::new(started, settings, replica, highest)
    }

    /// Calls the voter of a host with the time on its clock, and carries out the effects.
    pub(super) fn with_election<T>(
        &mut self,
        host: usize,
        call: impl FnOnce(&mut Election, Instant) -> T,
    ) -> Option<T> {
        let result = self.with_election_quietly(host, call)?;
        self.settle(host);
        Some(result)
    }

    /// Calls the voter of a host; the caller carries out the effects with [`Self::settle`].
    pub(super) fn with_election_quietly<T>(
        &mut self,
        host: usize,
        call: impl FnOnce(&mut Election, Instant) -> T,
    ) -> Option<T> {
        let local = self.hosts[host].local(self.now);
        let election = self.hosts[host].process.as_mut()?.election.as_mut()?;
        Some(call(election, local))
    }

    pub(super) fn arrive_request(
        &mut self,
        to: usize,
        sent: Instant,
        mut message: VoterMessage<Request>,
    ) {
        if !self.hosts[to].is_awake() {
            self.hold(to, Event::Request { to, sent, message });
            return;
        }
        let asks_for_vote = matches!(message.body, Request::PreVote | Request::Vote { .. });
        if self.bug == Bug::VoteUnderLease && asks_for_vote {
            for place in (0..self.voters).filter(|place| *place != to) {
                let Some(process) = self.hosts[place].process.as_ref().map(|p| p.id.clone()) else {
                    continue;
                };
                self.with_election(to, |election, now| election.handle_obituary(now, &process));
            }
        }
        let Some(from) = host_of(&message.address) else { return };
        let asked_by = message.process.clone();
        let renewal = match message.body {
            Request::Renew { term, .. } => Some(term),
            Request::PreVote
            | Request::Vote { .. }
            | Request::Release { .. }
            | Request::Leave
            | Request::Hello => None,
        };
        if self.bug == Bug::IgnoredReplica {
            message.knows = Knowledge { has_round: true, version: UNREACHED };
        }
        let answer = self.with_election(to, |election, now| election.handle_request(now, message));
        let Some(mut answer) = answer.flatten() else { return };
        if self.bug == Bug::FreshVotesCount && renewal.is_some() && answer.is_fresh {
            answer.body.is_granted = true;
        }
        if let Some(term) = renewal.filter(|_| answer.body.is_granted) {
            let newest = self.record.grants.entry((term, to)).or_insert(sent);
            *newest = (*newest).max(sent);
        }
        self.spoil(&mut answer);
        self.send(to, from, Event::Answer { to: from, process: asked_by, message: answer });
    }

    /// Changes an answer as a planted bug would.
    fn spoil(&self, answer: &mut VoterMessage<Answer>) {
        match self.bug {
            Bug::UnreportedWorkers => answer.body.workers_for = Duration::ZERO,
            Bug::FreshVotesCount => answer.is_fresh = false,
            _ => {}
        }
    }

    pub(super) fn arrive_answer(
        &mut self,
        to: usize,
        process: &NodeId,
        message: VoterMessage<Answer>,
    ) {
        if !self.hosts[to].is_awake() {
            self.hold(to, Event::Answer { to, process: process.clone(), message });
            return;
        }
        let is_asker = self.hosts[to].process.as_ref().is_some_and(|own| own.id == *process);
        if is_asker {
            self.with_election(to, |election, now| election.handle_answer(now, message));
        }
    }

    pub(super) fn arrive_obituary(&mut self, to: usize, of: usize, process: &NodeId) {
        if !self.hosts[to].is_awake() {
            self.hold(to, Event::Obituary { to, of, process: process.clone() });
            return;
        }
        let process = match &self.hosts[of].process {
            Some(now) if self.bug == Bug::ObituaryOfPlace => now.id.clone(),
            Some(_) | None => process.clone(),
        };
        self.with_election(to, |election, now| election.handle_obituary(now, &process));
        // A coordinator ignores the obituary of a process that another one has replaced.
        let is_last = self.hosts[of].process.as_ref().is_none_or(|own| own.id == process);
        let coordinator = self.hosts[to].process.as_mut().and_then(|own| own.coordinator.as_mut());
        if let Some(coordinator) = coordinator.filter(|_| is_last) {
            coordinator.handle_obituary(of);
        }
        self.advance_coordinator(to);
    }

    /// Carries out the effects of a host's voter, and sets its timer.
    pub(super) fn settle(&mut self, host: usize) {
        loop {
            let process = self.hosts[host].process.as_mut();
            let Some(effect) = process
                .and_then(|process| process.election.as_mut())
                .and_then(Election::poll_effect)
            else {
                break;
            };
            self.carry_out(host, effect);
        }
        self.store(host);
        self.set_timer(host);
    }

    fn carry_out(&mut self, host: usize, effect: Effect) {
        match effect {
            Effect::Send { to, message } => {
                let sent = self.now;
                let Some(to) = host_of(&to) else { return };
                self.send(host, to, Event::Request { to, sent, message });
            }
            Effect::Lead(leadership) => self.note_leader(host, *leadership),
            Effect::Extend(until) => self.extend_coordinator(host, until),
            Effect::Copied(version) => {
                self.note_copied(host, version);
                self.form_round(host, version);
            }
            Effect::Follow { .. } => self.end_coordinator(host),
            // The file is written after each call.
            Effect::Store | Effect::Voters(_) => {}
            // All voters are of one job.
            Effect::OtherJobs | Effect::Ended(_) | Effect::Yield { .. } | Effect::Outlived(_) => {}
            Effect::Duplicate { address } => {
                self.record.broken = Some(format!("a process answers at {address} as well"));
            }
        }
    }

    /// Writes the state file.
    fn store(&mut self, host: usize) {
        let process = self.hosts[host].process.as_ref();
        let election = process.and_then(|process| process.election.as_ref());
        let file = election.map(|election| (election.replica().clone(), election.highest()));
        if file.is_some() {
            self.hosts[host].file = file;
        }
    }

    /// Sets the timer of a host for its earliest deadline.
    pub(super) fn set_timer(&mut self, host: usize) {
        if self.bug == Bug::NoTimeouts {
            return;
        }
        let Some(process) = &self.hosts[host].process else { return };
        let now = self.hosts[host].local(self.now);
        let coordinator = process.coordinator.as_ref().and_then(Coordinator::poll_timeout);
        // After its deadline, a coordinator waits for registrations only.
        let coordinator = coordinator.filter(|at| now < *at);
        let election = process.election.as_ref().and_then(Election::poll_timeout);
        let agent = Some(process.agent.next_keep_alive);
        let Some(local) = [coordinator, election, agent].into_iter().flatten().min() else {
            return;
        };
        let at = self.hosts[host].global(local).max(self.now);
        let process = self.hosts[host].process.as_mut();
        if let Some(process) = process.filter(|process| process.timer != Some(at)) {
            process.timer = Some(at);
            self.schedule_at(at, Event::Timer(host));
        }
    }

    pub(super) fn time_out(&mut self, host: usize) {
        if !self.hosts[host].is_awake() {
            return;
        }
        let now = self.now;
        let Some(process) = &mut self.hosts[host].process else { return };
        if process.timer != Some(now) {
            return;
        }
        process.timer = None;
        self.with_election(host, |election, now| election.handle_timeout(now));
        self.advance_coordinator(host);
        self.keep_alive(host);
        self.set_timer(host);
    }

    /// Stops a process or a machine for a while.
    pub(super) fn freeze(&mut self, host: usize, time: Duration, is_suspend: bool) {
        if !self.hosts[host].is_awake() {
            return;
        }
        let (since, until) = (self.now, self.now + time);
        self.hosts[host].freeze = Some(Freeze { since, until, is_suspend, held: Vec::new() });
        self.schedule_at(until, Event::Thaw(host));
    }

    pub(super) fn thaw(&mut self, host: usize) {
        let now = self.now;
        let is_over = |freeze: &mut Freeze| freeze.until <= now;
        let Some(freeze) = self.hosts[host].freeze.take_if(is_over) else { return };
        if freeze.is_suspend {
            if self.bug == Bug::ClockStopsInSuspend {
                let host = &mut self.hosts[host];
                host.stopped += (now - freeze.since).mul_f64(host.rate);
            }
            self.thaw_workers(host);
        }
        if let Some(process) = &mut self.hosts[host].process {
            process.timer = None;
        }
        for event in freeze.held {
            self.happen(event);
        }
        self.set_timer(host);
    }

    /// Keeps an event for a frozen process; a dead one does not receive it.
    pub(super) fn hold(&mut self, host: usize, event: Event) {
        if let Some(freeze) = &mut self.hosts[host].freeze {
            freeze.held.push(event);
        }
    }

    /// Ends the process of a host; its file may be lost with it.
    pub(super) fn end_process(&mut self, host: usize) {
        self.hosts[host].process = None;
        if self.hosts[host].freeze.as_ref().is_some_and(|freeze| !freeze.is_suspend) {
            self.hosts[host].freeze = None;
        }
        if self.forgets && self.random.chance(30) {
            self.hosts[host].file = None;
        }
    }

    pub(super) fn memory_of(replica: Option<&Memory>) -> Memory {
        let fresh = || Memory::fresh(ragent_rendezvous::ids::JobUid::new("job"));
        replica.cloned().unwrap_or_else(fresh)
    }
}
