//! The coordinator in the process that leads: it forms one round from the agents that have
//! registered.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use ragent_election::election::{Leadership, message::Version};
use ragent_rendezvous::{
    ids::{Round, Term},
    settings::Memory,
};

use super::{
    Bug, Event, World,
    agent::{Echo, KeepAlive},
};

/// The coordinator of one leadership.
#[derive(Debug)]
pub(super) struct Coordinator {
    pub(super) term: Term,
    until: Instant,
    workers_until: Instant,
    since: Instant,
    memory: Memory,
    /// The hosts whose agents have registered in this term, and run no workers of an earlier one.
    registered: BTreeSet<usize>,
    /// The hosts on which no process is left.
    dead: BTreeSet<usize>,
    /// Numbers that are being copied, with the version of the memory.
    changes: Vec<(Version, u32)>,
    /// The round that is formed when a majority has this version of the memory.
    forming: Option<(Version, Round, BTreeSet<usize>)>,
    round: Option<Round>,
}

/// The time for which a leader waits for registrations, even if no other workers can run.
const REGISTRATION_WAIT: Duration = Duration::from_millis(300);

impl Coordinator {
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    pub(super) fn handle_obituary(&mut self, host: usize) {
        self.dead.insert(host);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let is_waiting = self.round.is_none() && self.forming.is_none();
        is_waiting.then(|| self.workers_until.max(self.since + REGISTRATION_WAIT))
    }
}

impl World {
    pub(super) fn note_leader(&mut self, host: usize, leadership: Leadership) {
        let local = self.hosts[host].local(self.now);
        self.record.elections += 1;
        let Some(process) = &mut self.hosts[host].process else { return };
        let winner = self.record.winners.insert(leadership.term, process.id.clone());
        if let Some(winner) = winner.filter(|winner| *winner != process.id) {
            let (term, id) = (leadership.term, &process.id);
            self.record.broken = Some(format!("rule c: {winner} and {id} have won term {term}"));
        }
        let memory = Self::memory_of(leadership.memory.as_ref());
        let (number, copied) = (memory.restarts_used, self.record.copied);
        if !self.forgets && number < copied {
            let term = leadership.term;
            let lost =
                format!("rule d: term {term} begins with {number} after {copied} was copied");
            self.record.broken = Some(lost);
        }
        process.coordinator = Some(Coordinator {
            term: leadership.term,
            until: leadership.until,
            workers_until: leadership.workers_until,
            since: local,
            memory,
            changes: Vec::new(),
            registered: BTreeSet::new(),
            dead: BTreeSet::new(),
            forming: None,
            round: None,
        });
        self.advance_coordinator(host);
        self.strike_election(host);
    }

    pub(super) fn extend_coordinator(&mut self, host: usize, until: Instant) {
        let local = self.hosts[host].local(self.now);
        let Some(process) = &mut self.hosts[host].process else { return };
        let Some(coordinator) = &mut process.coordinator else { return };
        coordinator.until = match self.bug {
            Bug::LeaseFromReceipt => local + self.timers.leader_lease,
            _ => until,
        };
    }

    pub(super) fn end_coordinator(&mut self, host: usize) {
        let local = self.hosts[host].local(self.now);
        let ignores = self.bug == Bug::LeaseFromReceipt;
        let Some(process) = &mut self.hosts[host].process else { return };
        if process.coordinator.as_ref().is_none_or(|own| !ignores || own.until <= local) {
            process.coordinator = None;
        }
        if process.is_leaving && process.coordinator.is_none() {
            let id = process.id.clone();
            self.hosts[host].workers = None;
            self.end_process(host);
            self.send_obituaries(host, &id);
            let delay = self.random.millis(100, 6_000);
            self.schedule(delay, Event::Start(host));
        }
    }

    /// Handles a keep-alive. Returns the echo, if this process leads.
    ///
    /// An agent counts as registered when it knows this term, and has stopped the workers of a
    /// lower one.
    pub(super) fn echo(&mut self, host: usize, message: &KeepAlive) -> Option<Echo> {
        let counts_early = self.bug == Bug::EarlyRegistration;
        let local = self.hosts[host].local(self.now);
        let until = self.hosts[host].leads_until(self.bug).filter(|until| local < *until)?;
        let coordinator = self.hosts[host].process.as_mut()?.coordinator.as_mut()?;
        if message.term > coordinator.term {
            // Voters that lost their state files may no longer know the leader with the higher term.
            let highest = message.term;
            self.with_election(host, |election, now| election.handle_highest(now, highest));
            return None;
        }
        if message.term == coordinator.term || counts_early {
            coordinator.registered.insert(message.from);
        }
        let sent = message.sent;
        let (term, left) = (coordinator.term, until - local);
        let round = coordinator.round;
        self.advance_coordinator(host);
        if self.random.chance(3) {
            self.change_memory(host);
        }
        Some(Echo::Attended { term, left, sent, round, by: host })
    }

    /// Begins to form a round, if one is due: the memory is copied first.
    pub(super) fn advance_coordinator(&mut self, host: usize) {
        let local = self.hosts[host].local(self.now);
        let (all, bug) = (self.hosts.len(), self.bug);
        let leads = self.hosts[host].leads_until(bug).is_some_and(|until| local < until);
        let process = self.hosts[host].process.as_mut().filter(|process| !process.is_leaving);
        let Some(coordinator) = process.and_then(|process| process.coordinator.as_mut()) else {
            return;
        };
        let is_waiting = coordinator.round.is_none() && coordinator.forming.is_none();
        let has_all = coordinator.registered.union(&coordinator.dead).count() == all;
        let may_begin = has_all
            || local >= coordinator.workers_until && local >= coordinator.since + REGISTRATION_WAIT
            || bug == Bug::NoWaitForOthers;
        if !leads || !is_waiting || !may_begin || coordinator.registered.is_empty() {
            return;
        }
        let round = Round(coordinator.memory.round.0 + 1);
        let memory = Memory { round, ..coordinator.memory.clone() };
        coordinator.memory = memory.clone();
        let members = coordinator.registered.clone();
        // The copy may be complete before the call returns.
        coordinator.forming = Some((Version::default(), round, members));
        let local_version = self
            .with_election_quietly(host, |election, now| election.handle_remember(now, memory))
            .flatten();
        let process = self.hosts[host].process.as_mut();
        if let Some(coordinator) = process.and_then(|process| process.coordinator.as_mut())
            && let (Some(version), Some(forming)) = (local_version, &mut coordinator.forming)
        {
            forming.0 = version;
            if bug == Bug::EarlyRound {
                self.form_round(host, version);
            }
        }
        self.settle(host);
    }

    /// Changes the memory, as a failure that is charged does. Nothing is charged before the first round, and a job without a round may
    /// be forgotten.
    fn change_memory(&mut self, host: usize) {
        let process = self.hosts[host].process.as_mut();
        let coordinator = process.and_then(|process| process.coordinator.as_mut());
        let Some(coordinator) = coordinator.filter(|own| own.memory.round > Round(0)) else {
            return;
        };
        coordinator.memory.restarts_used += 1;
        let memory = coordinator.memory.clone();
        let number = memory.restarts_used;
        let version = self
            .with_election_quietly(host, |election, now| election.handle_remember(now, memory))
            .flatten();
        let process = self.hosts[host].process.as_mut();
        if let Some(coordinator) = process.and_then(|process| process.coordinator.as_mut())
            && let Some(version) = version
        {
            coordinator.changes.push((version, number));
        }
        self.settle(host);
    }

    /// Notes what a majority has.
    pub(super) fn note_copied(&mut self, host: usize, version: Version) {
        let process = self.hosts[host].process.as_mut();
        let Some(coordinator) = process.and_then(|process| process.coordinator.as_mut()) else {
            return;
        };
        let copied = coordinator.changes.extract_if(.., |(changed, _)| *changed <= version);
        let newest = copied.map(|(_, number)| number).max();
        self.record.copied = self.record.copied.max(newest.unwrap_or_default());
    }

    /// Admits the members of the round, once a majority has its memory.
    pub(super) fn form_round(&mut self, host: usize, version: Version) {
        let local = self.hosts[host].local(self.now);
        let leads = self.hosts[host].leads_until(self.bug).is_some_and(|until| local < until);
        let process = self.hosts[host].process.as_mut();
        let Some(coordinator) = process.and_then(|process| process.coordinator.as_mut()) else {
            return;
        };
        let is_it = |forming: &mut (Version, Round, BTreeSet<usize>)| forming.0 <= version && leads;
        let Some((_, round, members)) = coordinator.forming.take_if(is_it) else { return };
        coordinator.round = Some(round);
        let term = coordinator.term;
        self.note_round(round, term);
        for member in members {
            self.send(
                host,
                member,
                Event::Echo { to: member, message: Echo::Admitted { term, round } },
            );
        }
    }
}
