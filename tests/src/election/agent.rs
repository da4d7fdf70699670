//! The agents: keep-alives to the leader, and workers under the lease that its echoes allow.

use std::time::{Duration, Instant};

use ragent_rendezvous::ids::{NodeId, Round, Term};

use super::{Bug, Event, KEEPER, World, host::Host};

/// An agent.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) next_keep_alive: Instant,
    /// The voter to which it sends its keep-alives.
    target: usize,
    /// The highest term in which it has registered.
    term: Term,
    /// The end of its lease in that term.
    lease: Option<Instant>,
    admitted: Option<Round>,
}

/// The workers of a host; they outlive an agent that is killed or frozen.
#[derive(Debug)]
pub(super) struct Workers {
    pub(super) term: Term,
    pub(super) round: Round,
    /// The end of the lease, by the clock of the host: the keeper kills them then.
    until: Instant,
}

/// A keep-alive.
#[derive(Debug)]
pub(super) struct KeepAlive {
    pub(super) from: usize,
    process: NodeId,
    /// The term in which the agent has registered last.
    pub(super) term: Term,
    pub(super) sent: Instant,
}

/// The answer to a keep-alive, or an admission.
#[derive(Debug)]
pub(super) enum Echo {
    /// The agent is known, and the process leads for the time `left`.
    Attended { term: Term, left: Duration, sent: Instant, round: Option<Round>, by: usize },
    /// The process does not lead.
    NotHere,
    /// The workers of a round may start.
    Admitted { term: Term, round: Round },
}

/// The interval of keep-alives.
const INTERVAL: Duration = Duration::from_millis(300);
/// The pause before a keep-alive is sent to another voter.
const NEXT_TARGET: Duration = Duration::from_millis(100);
/// The longest lease of an agent.
const LEASE: Duration = Duration::from_millis(2_400);

impl Agent {
    pub(super) fn new(now: Instant) -> Self {
        Self { next_keep_alive: now, target: 0, term: Term(0), lease: None, admitted: None }
    }
}

impl Workers {
    /// Returns the time by which the keeper has killed them.
    fn gone_at(&self) -> Instant {
        self.until + KEEPER
    }
}

impl Host {
    /// Returns the workers that run now.
    pub(super) fn alive(&self, now: Instant) -> Option<&Workers> {
        let is_suspended = self.freeze.as_ref().is_some_and(|freeze| freeze.is_suspend);
        let local = self.local(now);
        self.workers.as_ref().filter(|workers| !is_suspended && local < workers.gone_at())
    }
}

impl World {
    /// Sends a keep-alive, if one is due.
    pub(super) fn keep_alive(&mut self, host: usize) {
        let voters = self.voters;
        let local = self.hosts[host].local(self.now);
        let Some(process) = &mut self.hosts[host].process else { return };
        let agent = &mut process.agent;
        if local < agent.next_keep_alive {
            return;
        }
        let has_lease = agent.lease.is_some_and(|until| local < until);
        if !has_lease {
            agent.target = (agent.target + 1) % voters;
        }
        let message =
            KeepAlive { from: host, process: process.id.clone(), term: agent.term, sent: local };
        agent.next_keep_alive = local + if has_lease { INTERVAL } else { NEXT_TARGET };
        let to = agent.target;
        self.send(host, to, Event::KeepAlive { to, message });
    }

    pub(super) fn arrive_keep_alive(&mut self, to: usize, message: KeepAlive) {
        if !self.hosts[to].is_awake() {
            self.hold(to, Event::KeepAlive { to, message });
            return;
        }
        let from = message.from;
        // The stream of a process that has ended is closed.
        if self.hosts[from].process.as_ref().is_none_or(|own| own.id != message.process) {
            return;
        }
        let echo = self.echo(to, &message).unwrap_or(Echo::NotHere);
        self.send(to, from, Event::Echo { to: from, message: echo });
    }

    pub(super) fn arrive_echo(&mut self, to: usize, message: Echo) {
        if !self.hosts[to].is_awake() {
            self.hold(to, Event::Echo { to, message });
            return;
        }
        match message {
            Echo::NotHere => {}
            Echo::Attended { term, left, sent, round, by } => {
                self.attended(to, (term, left, sent), by);
                if let Some(round) = round {
                    self.admit(to, term, round);
                }
            }
            Echo::Admitted { term, round } => self.admit(to, term, round),
        }
        self.set_timer(to);
    }

    /// Extends the lease of an agent; a lease of a higher term ends the workers of a lower one.
    fn attended(&mut self, host: usize, (term, left, sent): (Term, Duration, Instant), by: usize) {
        let local = self.hosts[host].local(self.now);
        let bug = self.bug;
        let until = match bug {
            Bug::UnchainedWorkers => sent + LEASE,
            Bug::LeftFromReceipt => local + left.min(LEASE),
            _ => sent + left.min(LEASE),
        };
        let Host { process: Some(process), workers, .. } = &mut self.hosts[host] else { return };
        let agent = &mut process.agent;
        if term < agent.term {
            return;
        }
        if term > agent.term {
            agent.term = term;
            agent.lease = None;
            agent.admitted = None;
            agent.next_keep_alive = local;
            *workers = None;
        }
        agent.target = by;
        agent.lease = agent.lease.max(Some(until));
        // An agent whose lease has ended has lost its workers, and is admitted again.
        let lease = agent.lease.filter(|until| local < *until);
        match (workers, lease) {
            (Some(workers), Some(lease)) if local < workers.until => {
                workers.until = workers.until.max(lease);
            }
            _ => agent.admitted = None,
        }
    }

    /// Starts the workers of a round, once.
    fn admit(&mut self, host: usize, term: Term, round: Round) {
        let local = self.hosts[host].local(self.now);
        let Some(process) = &mut self.hosts[host].process else { return };
        let agent = &mut process.agent;
        let Some(until) = agent.lease.filter(|until| local < *until) else { return };
        if process.is_leaving || term != agent.term || agent.admitted == Some(round) {
            return;
        }
        agent.admitted = Some(round);
        self.hosts[host].workers = Some(Workers { term, round, until });
        self.check_workers(host);
    }

    /// Kills the workers whose lease has ended while the machine was suspended.
    pub(super) fn thaw_workers(&mut self, host: usize) {
        let local = self.hosts[host].local(self.now);
        let is_over = |workers: &mut Workers| workers.until <= local;
        self.hosts[host].workers.take_if(is_over);
    }

    /// Kills the workers of a dead agent, as its keeper does, and sends the obituary.
    pub(super) fn sweep(&mut self, host: usize, process: &NodeId) {
        let is_newer = self.hosts[host].process.as_ref().is_some_and(|own| own.id != *process);
        if !is_newer {
            self.hosts[host].workers = None;
        }
        self.send_obituaries(host, process);
    }

    /// Sends an obituary to all voters; it may arrive late, or twice.
    pub(super) fn send_obituaries(&mut self, host: usize, process: &NodeId) {
        for to in 0..self.voters {
            let obituary =
                |process: &NodeId| Event::Obituary { to, of: host, process: process.clone() };
            self.send(host, to, obituary(process));
            if self.random.chance(10) {
                let delay = self.random.millis(0, 10_000);
                self.schedule(delay, obituary(process));
            }
        }
    }
}
