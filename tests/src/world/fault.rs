//! Chooses and causes the faults of hosts, processes and the network.

use std::time::Duration;

use ragent_rendezvous::{
    ids::{NodeId, Peer, RoundId},
    message::NoticeKind,
};

use super::{
    Event, World, etcd::StoreFault, losses::Way, memory::MemoryFault, node::AgentInput,
    rules::Stage,
};

/// A fault, or another event of a job.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// An agent is killed. Its keeper kills the workers and sends a death notice.
    KillAgent { victim: Victim, down: Duration },
    /// An agent is killed while it carries out effects.
    DieHalfWay { victim: Victim, after: u64 },
    /// All processes of a host die at once.
    KillHost { victim: Victim, down: Duration },
    /// All hosts lose power at once.
    KillAll,
    /// A host is lost for ever.
    LoseHost { victim: Victim },
    /// An agent's process is frozen, but not its keeper.
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
    /// Messages are lost at random.
    Loss { percent: u64, time: Duration },
    /// A stream breaks.
    StreamBreaks,
    /// An agent is killed, and returns without its state file.
    Forget { victim: Victim },
    /// A voter forgets the leader's lease while another one does not reach the leader.
    ForgetLease,
    /// The hosts that the user gave, and others, lose power and their state files.
    LosePower,
    /// A host and others go down. They return after `down` without their state.
    LoseState { victim: Victim, others: usize, way: Way, down: Duration },
    /// A host goes down, and returns after `down`.
    Return { victim: Victim, way: Way, down: Duration },
    /// Each host receives SIGTERM in turn, and is started again.
    Roll { down: Duration },
    /// Each host receives SIGTERM, `pause` after the one before. They are started again when all agents have ended.
    LeaveTogether { pause: Duration },
    /// A worker fails, and perhaps others because of it.
    WorkerFails,
    /// The store has a fault.
    Store(StoreFault),
    /// A host is added.
    Join,
    /// The workers of a node succeed, and soon those of the others.
    Succeeds,
    /// A node receives a notice.
    Notice { kind: NoticeKind },
    /// The node of a host receives the notice that it leaves.
    NoticeAt { host: usize },
    /// A fault of the checkpoints in memory.
    Memory(MemoryFault),
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
            1..=12 => Fault::KillAgent { victim, down },
            13..=18 => Fault::DieHalfWay { victim, after: self.random.between(0, 60) },
            19..=28 => Fault::KillHost { victim, down },
            29..=30 => Fault::KillAll,
            31..=36 => Fault::LoseHost { victim },
            37..=43 => Fault::Freeze { victim, time },
            44..=50 => Fault::Suspend { victim, time },
            51..=56 => Fault::Leave { victim },
            57..=68 => {
                let (receives, sends) = (self.random.chance(40), self.random.chance(40));
                Fault::Isolate { victim, receives, sends, time }
            }
            69..=76 => Fault::Cut { from, to, time },
            77..=80 => Fault::Partition { first: from, time },
            81..=83 => Fault::Loss { percent: self.random.between(5, 50), time },
            84..=88 => Fault::StreamBreaks,
            89..=98 => Fault::WorkerFails,
            _ => Fault::Succeeds,
        }
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        self.note_disturbance(self.now);
        self.tell(|| format!("{fault:?}"));
        match fault {
            Fault::KillAgent { victim, down } => {
                let host = self.victim(victim);
                self.kill_agent(host, down);
            }
            Fault::DieHalfWay { victim, after } => {
                let host = self.victim(victim);
                self.dies_after = self.hosts[host].process.clone().map(|id| (id, after));
            }
            Fault::KillHost { victim, down } => {
                let host = self.victim(victim);
                self.kill_host(host, down);
            }
            Fault::LoseHost { victim } => {
                let host = self.victim(victim);
                self.lose_host(host);
            }
            Fault::KillAll => {
                for host in 0..self.hosts.len() {
                    let down = self.random.millis(20, 3_000);
                    self.kill_host(host, down);
                }
            }
            Fault::Freeze { victim, time } => {
                let host = self.victim(victim);
                self.freeze(host, time);
            }
            Fault::Suspend { victim, time } => {
                let host = self.victim(victim);
                self.suspend(host, time);
            }
            Fault::Leave { victim } => {
                let host = self.victim(victim);
                if let Some(id) = self.hosts[host].process.clone() {
                    self.wake_agent(&id, Duration::ZERO, AgentInput::Terminate);
                }
            }
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
            Fault::Loss { percent, time } => self.loss = (percent, self.now + time),
            Fault::StreamBreaks => {
                let peers: Vec<Peer> = self.streams.keys().cloned().collect();
                if let Some(peer) = self.random.pick(&peers) {
                    self.break_stream(&peer);
                }
            }
            Fault::Forget { victim } => {
                let host = self.victim(victim);
                self.restart_without_file(host);
            }
            Fault::ForgetLease => self.forget_lease(),
            Fault::LosePower => self.lose_power(),
            Fault::LoseState { victim, others, way, down } => {
                let host = self.victim(victim);
                self.lose_state(host, others, way, down);
            }
            Fault::Return { victim, way, down } => {
                let host = self.victim(victim);
                self.go_down(host, way, down, false);
            }
            Fault::Roll { down } => self.roll(down),
            Fault::LeaveTogether { pause } => self.leave_together(pause),
            Fault::WorkerFails => self.fail_some_workers(),
            Fault::Store(fault) => self.strike_store(fault),
            Fault::Join => self.join(),
            Fault::Succeeds => self.succeed(),
            Fault::Notice { kind } => self.give_notice(kind),
            Fault::NoticeAt { host } => self.give_notice_at(host),
            Fault::Memory(fault) => self.strike_memory(fault),
        }
    }

    fn lose_host(&mut self, host: usize) {
        if self.etcd.is_some() || self.hosts[host].is_lost || !self.can_lose(host) {
            return;
        }
        self.kill_host(host, Duration::ZERO);
        self.hosts[host].is_lost = true;
        self.hosts[host].file = None;
    }

    /// Causes a fault within a few milliseconds of a change of the voters.
    pub(super) fn note_change(&mut self) {
        if self.is_calm() || self.stage != Stage::Faulty || !self.random.chance(15) {
            return;
        }
        let fault = if self.loses_states { self.roll_loss() } else { self.roll_fault() };
        let at = Duration::from_micros(self.random.between(0, 6_000));
        self.schedule(at, Event::Fault(fault));
    }

    pub(super) fn cut(&mut self, from: usize, to: usize, time: Duration) {
        self.note_disturbance(self.now + time);
        self.note_memory_failure(self.now + time);
        self.cuts.insert((from, to), self.now + time);
    }

    /// Returns the host that a fault concerns now.
    pub(super) fn victim(&self, victim: Victim) -> usize {
        match victim {
            Victim::Host(host) => host,
            Victim::Leader => self.leading_hosts().next().unwrap_or_default(),
        }
    }

    /// Makes a worker fail, and others because of it.
    fn fail_some_workers(&mut self) {
        let nodes: Vec<NodeId> = self.alive().map(|(id, _)| id.clone()).collect();
        let Some(node) = self.random.pick(&nodes) else { return };
        let Some(round) = self.round_on(&node) else { return };
        self.schedule(Duration::ZERO, Event::WorkerFails(node, round));
        self.fail_others(round);
    }

    /// Makes workers of other nodes fail because a peer of theirs is gone.
    pub(super) fn fail_others(&mut self, round: RoundId) {
        for other in self.alive().map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            if self.random.chance(40) {
                let delay = self.random.millis(0, 100);
                self.schedule(delay, Event::WorkerFails(other, round));
            }
        }
    }

    /// Makes the workers of all nodes succeed, in any order.
    fn succeed(&mut self) {
        let Some((_, round)) = self.alive().next() else { return };
        self.record.succeeded = Some(round);
        self.succeed_everywhere(4_000);
    }

    fn succeed_everywhere(&mut self, within_ms: u64) {
        let Some(round) = self.record.succeeded else { return };
        for id in self.processes.keys().cloned().collect::<Vec<_>>() {
            let delay = self.random.millis(0, within_ms);
            self.schedule(delay, Event::Succeeds(id, round));
        }
    }

    /// Ends the faults when their time is over, and starts all hosts that are down.
    pub(super) fn become_quiet(&mut self) {
        if self.stage != Stage::Faulty || self.now < self.start + self.faulty {
            return;
        }
        self.stage = Stage::Quiet(self.now);
        self.end_faults();
        // All workers have done the same steps.
        self.succeed_everywhere(1_000);
        if self.fixed.is_some() {
            return self.complete_nodes();
        }
        for host in 0..self.hosts.len() {
            self.schedule(Duration::ZERO, Event::Start(host));
        }
    }

    /// Ends all faults.
    pub(super) fn end_faults(&mut self) {
        let is_fixed = self.fixed.is_some();
        self.events.retain(|_, event| match event {
            Event::Fault(_) => false,
            Event::Start(_) => is_fixed,
            _ => true,
        });
        let now = self.now;
        self.cuts.values_mut().for_each(|until| *until = now.min(*until));
        self.dies_after = None;
        self.loss = (0, self.now);
        self.end_memory_faults();
    }
}
