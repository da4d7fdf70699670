//! The faults of hosts and of the network.

use std::time::Duration;

use super::{Bug, Event, Stage, World};

/// A fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// An agent is killed; its keeper kills the workers and sends an obituary.
    KillAgent { victim: Victim, down: Duration },
    /// All processes of a host die at once.
    KillHost { victim: Victim, down: Duration },
    /// All hosts lose power at once.
    KillAll,
    /// An agent's process is frozen; its keeper is not.
    Freeze { victim: Victim, time: Duration },
    /// A machine is suspended.
    Suspend { victim: Victim, time: Duration },
    /// An agent is asked to leave.
    Leave { victim: Victim },
    /// A host receives no messages, sends none, or both.
    Isolate { victim: Victim, receives: bool, sends: bool, time: Duration },
    /// One direction between two hosts is cut.
    Cut { from: usize, to: usize, time: Duration },
    /// The hosts are divided in two.
    Partition { first: usize, time: Duration },
    /// One voter does not receive the leader for longer than a lease; then the leader is cut off from another
    /// one, which is restarted.
    Forget { time: Duration },
    /// Messages are lost at random.
    Loss { percent: u64, time: Duration },
}

/// The host that a fault concerns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Victim {
    /// The leader's host, or the first host without a leader.
    Leader,
    /// The host with this index.
    Host(usize),
}

impl World {
    /// Chooses a fault.
    pub(super) fn roll_fault(&mut self) -> Fault {
        let hosts = self.hosts.len() as u64;
        let mut host = || usize::try_from(self.random.between(0, hosts - 1)).unwrap_or_default();
        let (from, to) = (host(), host());
        let victim = if self.random.chance(50) { Victim::Leader } else { Victim::Host(from) };
        let down = self.random.millis(20, 6_000);
        let time = self.random.millis(100, 8_000);
        match self.random.between(1, 100) {
            1..=20 => Fault::KillAgent { victim, down },
            21..=32 => Fault::KillHost { victim, down },
            33..=36 => Fault::KillAll,
            37..=50 => Fault::Freeze { victim, time },
            51..=60 => Fault::Suspend { victim, time },
            61..=66 => Fault::Leave { victim },
            67..=80 => {
                let (receives, sends) = (self.random.chance(40), self.random.chance(40));
                Fault::Isolate { victim, receives, sends, time }
            }
            81..=90 => Fault::Cut { from, to, time },
            91..=92 => Fault::Forget { time: self.random.millis(2_900, 4_000) },
            93..=95 => Fault::Partition { first: from, time },
            _ => Fault::Loss { percent: self.random.between(5, 50), time },
        }
    }

    /// Sometimes kills another voter right after an election, and separates the leader from a third one: the voter that
    /// returns has forgotten its vote.
    pub(super) fn strike_election(&mut self, leader: usize) {
        if self.stage != Stage::Faulty || !self.random.chance(10) {
            return;
        }
        let (killed, separated) = ((leader + 1) % self.voters, (leader + 2) % self.voters);
        let (at, down) = (self.random.millis(0, 10), self.random.millis(20, 200));
        let victim = Victim::Host(killed);
        self.schedule(at, Event::Fault(Fault::KillHost { victim, down }));
        let time = self.random.millis(500, 3_000);
        self.cut(leader, separated, time);
        if self.random.chance(50) {
            self.cut(separated, leader, time);
        }
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::KillAgent { victim, down } => {
                let host = self.victim(victim);
                let Some(process) = self.hosts[host].process.as_ref() else { return };
                let process = process.id.clone();
                self.end_process(host);
                let sweep = self.random.millis(1, 450);
                self.schedule(sweep, Event::Swept { host, process });
                // The next agent waits for the keeper of the last one.
                self.schedule(down.max(sweep), Event::Start(host));
            }
            Fault::KillHost { victim, down } => {
                let host = self.victim(victim);
                self.kill_host(host, down);
            }
            Fault::KillAll => {
                for host in 0..self.hosts.len() {
                    let down = self.random.millis(20, 3_000);
                    self.kill_host(host, down);
                }
            }
            Fault::Freeze { victim, time } => {
                let host = self.victim(victim);
                self.freeze(host, time, false);
            }
            Fault::Suspend { victim, time } => {
                let host = self.victim(victim);
                self.freeze(host, time, true);
            }
            Fault::Leave { victim } => self.leave(victim),
            Fault::Isolate { victim, receives, sends, time } => {
                let host = self.victim(victim);
                for other in (0..self.hosts.len()).filter(|other| *other != host) {
                    if !receives {
                        self.cut(other, host, time);
                    }
                    if !sends {
                        self.cut(host, other, time);
                    }
                }
            }
            Fault::Cut { from, to, time } => self.cut(from, to, time),
            Fault::Partition { first, time } => {
                for from in 0..self.hosts.len() {
                    for to in 0..self.hosts.len() {
                        if (from <= first) != (to <= first) {
                            self.cut(from, to, time);
                        }
                    }
                }
            }
            Fault::Forget { time } => self.forget(time),
            Fault::Loss { percent, time } => self.loss = (percent, self.now + time),
        }
    }

    /// Asks an agent to leave: its workers stop first, then it resigns.
    fn leave(&mut self, victim: Victim) {
        let host = self.victim(victim);
        if !self.hosts[host].is_awake() {
            return;
        }
        self.hosts[host].workers = None;
        if let Some(process) = &mut self.hosts[host].process {
            process.is_leaving = true;
        }
        self.with_election(host, |election, now| election.handle_leaving(now));
        self.end_coordinator(host);
    }

    /// Prepares an election in which a voter has forgotten a lease that is in force.
    fn forget(&mut self, time: Duration) {
        let leader = self.victim(Victim::Leader);
        let (restarted, separated) = ((leader + 1) % self.voters, (leader + 2) % self.voters);
        let cut = Duration::from_secs(3);
        self.cut(leader, separated, time + cut);
        self.cut(separated, leader, time + cut);
        for (from, to) in [(leader, restarted), (restarted, leader)] {
            self.schedule(time, Event::Fault(Fault::Cut { from, to, time: cut }));
        }
        let (victim, down) = (Victim::Host(restarted), self.random.millis(20, 200));
        self.schedule(time, Event::Fault(Fault::KillHost { victim, down }));
    }

    fn kill_host(&mut self, host: usize, down: Duration) {
        if self.hosts[host].is_down() {
            return;
        }
        self.hosts[host].freeze = None;
        self.hosts[host].workers = None;
        self.end_process(host);
        self.schedule(down, Event::Start(host));
    }

    fn cut(&mut self, from: usize, to: usize, time: Duration) {
        self.cuts.insert((from, to), self.now + time);
    }

    /// Returns the host that a fault concerns now.
    fn victim(&self, victim: Victim) -> usize {
        match victim {
            Victim::Host(host) => host,
            Victim::Leader => {
                let leads = |host: &usize| self.hosts[*host].leads_until(Bug::None).is_some();
                (0..self.hosts.len()).find(leads).unwrap_or_default()
            }
        }
    }
}
