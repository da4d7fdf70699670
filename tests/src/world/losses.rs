//! Simulates hosts that lose their state, leave and return at any moment, or are started late.
//!
//! A majority of the voters' files may be lost in these worlds. So a job may end for ever, and another one begin. Their rules are in
//! [`jobs`](super::jobs). Each concerns one job, or two that must not run at the same time.

use std::time::Duration;

use ragent_rendezvous::settings::NodeRange;

use super::{
    Event, World,
    fault::{Fault, Victim},
    node::AgentInput,
};

/// The way in which a host goes down.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// The agent is killed. Its keeper kills the workers.
    Kill,
    /// The machine loses power.
    Power,
    /// The agent receives SIGTERM, and is started again when it has ended.
    Term,
}

impl World {
    /// Creates a world in which hosts lose their state.
    pub(super) fn lose_states(&mut self) {
        self.loses_states = true;
        self.forgets = false;
        self.checks_voters = false;
        self.events.clear();
        let hosts = self.hosts.len();
        let bound = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let min = self.random.pick(&[1, 2, 2, 2, 3]).unwrap_or(2).min(hosts);
        let most = self.random.between(min as u64, hosts as u64);
        let max = usize::try_from(most).unwrap_or(hosts);
        self.shared.nodes = NodeRange::new(bound(min), bound(max)).expect("min is at most max");
        self.shared.timeouts.last_call = self.random.millis(100, 1_000);
        for host in 0..hosts {
            let is_newcomer = host >= min.max(1) && self.random.chance(40);
            let delay = if is_newcomer {
                self.random.millis(3_000, 35_000)
            } else {
                self.random.millis(0, 500)
            };
            self.schedule(delay, Event::Start(host));
        }
        for _ in 0..self.random.between(1, 5) {
            let at = self.random.millis(4_000, 36_000);
            let fault = self.roll_loss();
            self.schedule(at, Event::Fault(fault));
        }
    }

    pub(super) fn roll_loss(&mut self) -> Fault {
        let hosts = self.hosts.len() as u64;
        let mut host = || usize::try_from(self.random.between(0, hosts - 1)).unwrap_or_default();
        let first = host();
        let second = (first + 1) % self.hosts.len();
        let victim = match self.random.between(1, 10) {
            1..=4 => Victim::Host(0),
            5..=7 => Victim::Leader,
            _ => Victim::Host(first),
        };
        let way = self.random.pick(&[Way::Kill, Way::Power, Way::Term]).unwrap_or(Way::Kill);
        let down = match self.random.between(1, 10) {
            1..=3 => self.random.millis(5, 50),
            4..=8 => self.random.millis(200, 4_000),
            9 => Duration::from_secs(3),
            _ => Duration::from_secs(40),
        };
        let others = usize::try_from(self.random.between(0, 1)).unwrap_or(0);
        let time = self.random.millis(500, 12_000);
        match self.random.between(1, 100) {
            1..=45 => Fault::LoseState { victim, others, way, down },
            46..=65 => Fault::Return { victim, way, down },
            66..=72 => Fault::Roll { down: self.random.pick(&ROLLS).unwrap_or(ROLLS[0]) },
            73..=75 => Fault::LeaveTogether { pause: self.random.pick(&ROLLS).unwrap_or(ROLLS[0]) },
            76..=85 => Fault::Cut { from: first, to: second, time },
            86..=95 => {
                Fault::Partition { first, time: time * self.random.pick(&[1, 1, 4]).unwrap_or(1) }
            }
            _ => Fault::WorkerFails,
        }
    }

    /// Takes down a host, which returns after `down`. It has no state then if `loses`.
    pub(super) fn go_down(&mut self, host: usize, way: Way, down: Duration, loses: bool) {
        self.hosts[host].returns = Some((down, loses));
        match way {
            Way::Kill => self.kill_agent(host, down),
            Way::Power => self.kill_host(host, down),
            Way::Term => {
                if let Some(id) = self.hosts[host].process.clone() {
                    return self.wake_agent(&id, Duration::ZERO, AgentInput::Terminate);
                }
            }
        }
        self.hosts[host].returns = None;
        if loses {
            self.hosts[host].file = None;
        }
    }

    /// Takes down a host and others. They lose their state.
    pub(super) fn lose_state(&mut self, victim: usize, others: usize, way: Way, down: Duration) {
        let hosts = self.hosts.len();
        let others = (1..hosts).map(|step| (victim + step) % hosts).take(others);
        for host in [victim].into_iter().chain(others) {
            self.go_down(host, way, down, true);
        }
    }

    /// Sends SIGTERM to all hosts, one after the other. In half of the worlds, the leader's host is the first.
    pub(super) fn roll(&mut self, down: Duration) {
        let first = match self.random.chance(50) {
            true => self.leading_hosts().next().unwrap_or_default(),
            false => 0,
        };
        let hosts = self.hosts.len();
        let mut at = Duration::ZERO;
        for host in (0..hosts).map(|step| (first + step) % hosts) {
            let fault = Fault::Return { victim: Victim::Host(host), way: Way::Term, down };
            self.schedule(at, Event::Fault(fault));
            at += down + self.random.millis(0, 6_000);
        }
    }

    /// Sends SIGTERM to all hosts. They are started again when all of them have ended.
    pub(super) fn leave_together(&mut self, pause: Duration) {
        let hosts = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        for host in 0..hosts {
            let down = pause * (hosts - host) + self.random.millis(6_000, 8_000);
            let victim = Victim::Host(host as usize);
            let fault = Fault::Return { victim, way: Way::Term, down };
            self.schedule(pause * host, Event::Fault(fault));
        }
    }
}

/// The times after which a host is started again in a rolling restart.
const ROLLS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_secs(1), Duration::from_secs(3)];
