//! Makes the decisions of a launch: which hosts to reach, when to start, when to give up, and the result.
//!
//! ```text
//! Reaching ── all have answered, enough of them ──▶ Running ── all have ended ──▶ Over
//!    │ too few, or a signal                            │ a signal, or too few left    ▲
//!    └─────────────────────────────────────────────────┼──────────────────────────────┤
//!                                                      ▼                              │
//!                                                   Stopping ── all have ended, killed if they must be
//! ```
//!
//! When one agent reports that the job has succeeded, the others have a few seconds to learn it. Then they are signalled to end.
//!
//! The output of workers is handled elsewhere.

mod hosts;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use tracing::{debug, info, warn};

use self::hosts::{HostState, Hosts};
use super::{
    launch_result::{LaunchResult, of_ends},
    order::{AgentEnd, HostAddress, HostNumber, RelayReport},
    rendezvous::RendezvousPlan,
};
use crate::commands::ssh::limits;

/// The settings of a launch, which do not change.
#[derive(Clone, Debug)]
pub(super) struct LaunchSettings {
    /// The names of the hosts, by number.
    pub(super) names: Vec<String>,
    /// The minimum number of hosts of the job.
    pub(super) min: usize,
    /// The time that agents may take to end.
    pub(super) stop: Duration,
    /// The part of it that is for a checkpoint; zero if none is waited for.
    pub(super) notice: Duration,
    /// The maximum time without a report while hosts are being reached.
    pub(super) reach_silence: Duration,
    /// The way in which agents find each other.
    pub(super) rendezvous: RendezvousPlan,
}

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Effect {
    /// Starts the agents of these hosts.
    Start(Vec<(HostNumber, HostAddress)>),
    /// Signals all agents.
    Signal(Signal),
    /// Ends the launch.
    Finish(LaunchResult),
}

#[derive(Debug)]
enum LaunchPhase {
    Reaching { silent_until: Instant },
    Running { give_up_at: Option<Instant>, has_succeeded: bool },
    Stopping { cause: Option<Signal>, until: Instant, stage: StopStage },
    Over,
}

/// The stage of a stop.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum StopStage {
    /// All ranks may save. A further signal ends the agents.
    Saving,
    /// The agents end. A further signal kills them.
    Ending,
    /// The agents were killed.
    Killed,
}

/// The state machine of a launch.
#[derive(Debug)]
pub(super) struct Machine {
    settings: LaunchSettings,
    hosts: Hosts,
    /// The hosts of the job's voters, or the host of its only endpoint, if this launch has chosen them.
    coordinators: Vec<HostNumber>,
    phase: LaunchPhase,
    effects: VecDeque<Effect>,
}

impl Machine {
    /// Creates the machine of a launch whose hosts are being reached.
    pub(super) fn new(now: Instant, settings: LaunchSettings) -> Self {
        info!(hosts = settings.names.len(), "reaching hosts");
        Self {
            hosts: Hosts::new(settings.names.clone()),
            coordinators: Vec::new(),
            phase: LaunchPhase::Reaching { silent_until: now + settings.reach_silence },
            effects: VecDeque::new(),
            settings,
        }
    }

    /// Takes the next effect.
    pub(super) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the time at which [`Machine::handle_timeout`] must be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            LaunchPhase::Reaching { silent_until } => Some(silent_until),
            LaunchPhase::Running { give_up_at, .. } => give_up_at,
            LaunchPhase::Stopping { until, .. } => Some(until),
            LaunchPhase::Over => None,
        }
    }

    /// Handles a report about a host.
    pub(super) fn handle_report(&mut self, now: Instant, host: HostNumber, report: RelayReport) {
        match report {
            RelayReport::Line { .. } => {}
            RelayReport::Reached(host_address) => self.reached(host, host_address),
            RelayReport::Disconnected(why) => self.disconnected(host, why),
            RelayReport::Ended(end) => self.ended(host, end),
        }
        if let LaunchPhase::Reaching { silent_until } = &mut self.phase {
            *silent_until = now + self.settings.reach_silence;
        }
        self.advance(now);
    }

    /// Handles a signal. The first one is passed on, the second one kills the agents, the third one ends the launch at once. If ranks may
    /// save, another one comes first, which is a notice to the agents.
    pub(super) fn handle_signal(&mut self, now: Instant, signal: Signal) {
        match self.phase {
            LaunchPhase::Reaching { .. } => self.finish(LaunchResult::Interrupted { signal }),
            LaunchPhase::Running { .. } if !self.settings.notice.is_zero() => {
                let seconds = self.settings.notice.as_secs_f64();
                warn!("saving, at most {seconds} s; {signal} again stops now");
                // To an agent, this signal is a notice.
                self.stop(now, Some(signal), Signal::SIGTERM);
                self.enter(StopStage::Saving);
            }
            LaunchPhase::Running { .. } => {
                info!(%signal, "signal received; forwarding it to all hosts");
                self.stop(now, Some(signal), signal);
            }
            LaunchPhase::Stopping { stage: StopStage::Saving, .. } => {
                warn!(%signal, "signal received again; not waiting for a checkpoint");
                self.stop(now, Some(signal), signal);
            }
            LaunchPhase::Stopping { stage: StopStage::Killed, .. } => self.give_up(),
            LaunchPhase::Stopping { ref mut cause, .. } => {
                warn!(%signal, "signal received again; killing all agents");
                *cause = cause.or(Some(signal));
                self.kill(now);
            }
            LaunchPhase::Over => {}
        }
    }

    /// Handles the deadline, if it has passed.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.phase {
            LaunchPhase::Reaching { .. } => {
                for host in self.hosts.those(&HostState::Reaching) {
                    self.unreachable(host, "no answer in time".to_owned());
                }
                self.advance(now);
            }
            LaunchPhase::Running { has_succeeded: true, .. } => {
                info!("the job has succeeded; stopping agents that have not received the result");
                self.stop(now, None, Signal::SIGTERM);
            }
            LaunchPhase::Running { has_succeeded: false, .. } => {
                warn!("too few hosts are left; stopping the others");
                self.stop(now, None, Signal::SIGTERM);
            }
            LaunchPhase::Stopping { stage: StopStage::Saving | StopStage::Ending, .. } => {
                warn!("agents did not end in time; killing them");
                self.kill(now);
            }
            LaunchPhase::Stopping { stage: StopStage::Killed, .. } => self.give_up(),
            LaunchPhase::Over => {}
        }
    }

    fn reached(&mut self, host: HostNumber, host_address: HostAddress) {
        if *self.hosts.at(host) == HostState::Reaching {
            debug!(host = self.hosts.name(host), "host reached");
            self.hosts.set(host, HostState::Reached(host_address));
        }
    }

    fn disconnected(&mut self, host: HostNumber, why: String) {
        match self.hosts.at(host) {
            HostState::Unreachable(_) | HostState::Ended(_) | HostState::Lost(_) => {}
            HostState::Running => {
                warn!(host = self.hosts.name(host), cause = why, "host lost");
                self.hosts.set(host, HostState::Lost(why));
            }
            HostState::Reaching | HostState::Reached(_) => self.unreachable(host, why),
        }
    }

    fn unreachable(&mut self, host: HostNumber, why: String) {
        warn!(host = self.hosts.name(host), cause = why, "host cannot be reached");
        self.hosts.set(host, HostState::Unreachable(why));
    }

    fn ended(&mut self, host: HostNumber, end: AgentEnd) {
        let not_started =
            "its ragent sent an invalid message: an agent has ended that was not started";
        match self.hosts.at(host) {
            HostState::Running => {}
            // The end of its agent would not be reported again, so the launch must not wait for it.
            HostState::Reaching | HostState::Reached(_) => {
                return self.unreachable(host, not_started.to_owned());
            }
            HostState::Unreachable(_) | HostState::Ended(_) | HostState::Lost(_) => return,
        }
        if let AgentEnd::NotStarted(why) = &end {
            warn!(host = self.hosts.name(host), cause = why, "agent not started");
        }
        self.hosts.set(host, HostState::Ended(end));
    }

    /// Advances the phase, by the states of the hosts.
    fn advance(&mut self, now: Instant) {
        match self.phase {
            LaunchPhase::Reaching { .. } => {
                if self.hosts.reaching() == 0 {
                    self.begin();
                }
            }
            LaunchPhase::Running { .. } | LaunchPhase::Stopping { .. }
                if self.hosts.running() == 0 =>
            {
                self.conclude();
            }
            LaunchPhase::Running { give_up_at, has_succeeded } => {
                let due = self.gives_up_at(now);
                // Once the job has succeeded, a deadline from before that no longer counts.
                let before = give_up_at.filter(|_| has_succeeded || !self.hosts.have_success());
                let earliest = before.into_iter().chain(due).min();
                let has_succeeded = self.hosts.have_success();
                self.phase = LaunchPhase::Running { give_up_at: earliest, has_succeeded };
                self.handle_timeout(now);
            }
            LaunchPhase::Stopping { .. } | LaunchPhase::Over => {}
        }
    }

    /// Starts the agents of all reached hosts, or none if there are too few.
    fn begin(&mut self) {
        let reached = self.hosts.reached();
        if reached.len() < self.settings.min {
            let (reached, min) = (reached.len(), self.settings.min);
            let unreachable = self.hosts.unreachable();
            return self.finish(LaunchResult::TooFewHosts { reached, min, unreachable });
        }
        info!(hosts = reached.len(), of = self.hosts.len(), "starting agents");
        for (host, _) in &reached {
            self.hosts.set(*host, HostState::Running);
        }
        self.coordinators = self.settings.rendezvous.coordinators(&reached);
        if let Some(warning) = self.settings.rendezvous.voters_warning(&self.coordinators) {
            warn!("{warning}");
        }
        self.effects.push_back(Effect::Start(reached));
        self.phase = LaunchPhase::Running { give_up_at: None, has_succeeded: false };
    }

    /// Returns the time at which the remaining agents are signalled to end, because they would wait in vain. This is now if a needed agent
    /// cannot return. Otherwise they first have the time to end by themselves.
    fn gives_up_at(&self, now: Instant) -> Option<Instant> {
        if self.hosts.have_success() {
            // All agents learn of it, except agents that have lost the job and would wait.
            return Some(now + limits::SUCCESS_TIMEOUT);
        }
        let majority = self.coordinators.len() / 2 + 1;
        let needed = if self.coordinators.is_empty() { 0 } else { majority };
        // True if the job needs more hosts than are left. `left` counts all hosts, and `is_left` selects the hosts with a coordinator.
        let too_few = |left: usize, is_left: fn(&HostState) -> bool| {
            let coordinators =
                self.coordinators.iter().filter(|host| is_left(self.hosts.at(**host)));
            left < self.settings.min || coordinators.count() < needed
        };
        if too_few(self.hosts.may_return(), |state| !state.cannot_return()) {
            return Some(now);
        }
        let is_running = |state: &HostState| *state == HostState::Running;
        too_few(self.hosts.running(), is_running).then(|| now + self.settings.stop)
    }

    fn stop(&mut self, now: Instant, cause: Option<Signal>, signal: Signal) {
        let until = now + self.settings.stop;
        self.phase = LaunchPhase::Stopping { cause, until, stage: StopStage::Ending };
        self.effects.push_back(Effect::Signal(signal));
    }

    fn enter(&mut self, next: StopStage) {
        if let LaunchPhase::Stopping { stage, .. } = &mut self.phase {
            *stage = next;
        }
    }

    fn kill(&mut self, now: Instant) {
        if let LaunchPhase::Stopping { until, stage, .. } = &mut self.phase {
            (*until, *stage) = (now + limits::CLEANUP_TIMEOUT, StopStage::Killed);
            self.effects.push_back(Effect::Signal(Signal::SIGKILL));
        }
    }

    /// Counts the agents that still run as lost, and ends the launch.
    fn give_up(&mut self) {
        for host in self.hosts.those(&HostState::Running) {
            self.hosts.set(host, HostState::Lost("its agent did not end".to_owned()));
        }
        self.conclude();
    }

    /// Ends the launch with the result by the ends of all agents.
    fn conclude(&mut self) {
        let cause = match self.phase {
            LaunchPhase::Stopping { cause, .. } => cause,
            LaunchPhase::Reaching { .. } | LaunchPhase::Running { .. } | LaunchPhase::Over => None,
        };
        self.finish(of_ends(&self.hosts.ends(), cause));
    }

    fn finish(&mut self, result: LaunchResult) {
        self.effects.push_back(Effect::Finish(result));
        self.phase = LaunchPhase::Over;
    }
}

#[cfg(test)]
mod tests;
