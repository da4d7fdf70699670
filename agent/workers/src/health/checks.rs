//! Checks this machine: drives [`Health`], reads the hardware, and runs the program of `--health-check`.
//!
//! The health of the node is published to its agent, which repeats it in each report.

use std::{io, os::unix::process::ExitStatusExt, time::Instant};

use nix::{errno::Errno, sys::signal::Signal};
use ragent_base::sys::{clock, user_command};
use ragent_core::health::{Effect, Health, HealthSettings, NodeHealth, Occasion, Verdict};
use ragent_options::spec::HealthSpec;
use ragent_rendezvous::message::{Unhealthy, WorkerEnd};
use tokio::{sync::watch, task::JoinSet};
use tracing::{info, warn};

use super::hardware::HardwareWatch;

/// The checks of this node. Dropping it ends the program that runs.
#[derive(Debug)]
pub(crate) struct HealthChecks {
    machine: Health,
    spec: HealthSpec,
    running: JoinSet<Done>,
    /// True if all processes of this agent were killed since the program was started, because the keeper was lost.
    is_cleaned_up: bool,
    /// The reason why this machine is unhealthy, as it was last logged.
    logged: Option<Unhealthy>,
    health: watch::Sender<NodeHealth>,
}

/// The end of a part of a check.
#[derive(Debug)]
pub(crate) enum Done {
    Read,
    /// The program has ended: by SIGKILL if `is_killed` is true.
    Ran {
        verdict: Verdict,
        is_killed: bool,
    },
}

/// The exit code of a program that has no result now: `EX_TEMPFAIL`.
const NOT_NOW: i32 = 75;

impl HealthChecks {
    /// Begins with a check.
    pub(crate) fn new(spec: HealthSpec, hardware: &HardwareWatch) -> Self {
        let (reads, runs) = (spec.gpus || spec.ports || spec.folders, !spec.check.is_empty());
        let settings = HealthSettings { reads, runs, seed: rand::random() };
        let machine = Health::new(clock::now(), settings);
        let health = watch::Sender::new(machine.node());
        let mut checks = Self {
            machine,
            spec,
            running: JoinSet::new(),
            is_cleaned_up: false,
            logged: None,
            health,
        };
        checks.carry_out(hardware);
        checks
    }

    /// Returns the health of this node.
    pub(crate) fn subscribe(&self) -> watch::Receiver<NodeHealth> {
        self.health.subscribe()
    }

    /// Returns the earliest deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.machine.poll_timeout()
    }

    /// Waits for the end of a part of a check. Never returns if none runs.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub(crate) async fn done(&mut self) -> Done {
        loop {
            match self.running.join_next().await {
                Some(Ok(done)) => return done,
                // A task neither panics nor is cancelled.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Notes that workers start.
    pub(crate) fn handle_round(&mut self) {
        self.machine.handle_round();
    }

    /// Notes that a worker of this node has failed, and has ended in this way.
    pub(crate) fn handle_failure(&mut self, end: &WorkerEnd, hardware: &HardwareWatch) {
        self.machine.handle_failure(clock::now(), end, hardware.unhealthy());
        self.carry_out(hardware);
    }

    /// Notes that no worker is left.
    pub(crate) fn handle_round_over(&mut self, hardware: &HardwareWatch) {
        self.machine.handle_round_over(clock::now(), hardware.unhealthy());
        self.carry_out(hardware);
    }

    /// Notes that all processes of this agent are killed, or were, because the keeper was lost.
    pub(crate) fn handle_clean_up(&mut self) {
        self.is_cleaned_up = true;
    }

    /// Notes the end of a part of a check.
    pub(crate) fn handle_done(&mut self, done: Done, hardware: &HardwareWatch) {
        match done {
            Done::Read => self.machine.handle_read(hardware.unhealthy()),
            // Perhaps the agent itself has killed it.
            Done::Ran { is_killed: true, .. } if self.is_cleaned_up => {
                self.machine.handle_verdict(clock::now(), Verdict::NotNow);
            }
            Done::Ran { verdict, .. } => self.machine.handle_verdict(clock::now(), verdict),
        }
        self.carry_out(hardware);
    }

    /// Applies every deadline that has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant, hardware: &HardwareWatch) {
        self.machine.handle_timeout(now);
        self.carry_out(hardware);
    }

    fn carry_out(&mut self, hardware: &HardwareWatch) {
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::Read(occasion) => {
                    let reading = hardware.check(occasion);
                    self.running.spawn(async {
                        reading.await;
                        Done::Read
                    });
                }
                Effect::Run(occasion) => {
                    self.is_cleaned_up = false;
                    self.running.spawn(run(self.spec.clone(), occasion));
                }
            }
        }
        let NodeHealth { unhealthy, is_checking } = self.machine.node();
        if self.logged != unhealthy {
            log(unhealthy.as_ref());
            self.logged.clone_from(&unhealthy);
        }
        let unhealthy = unhealthy.filter(|_| self.spec.is_reported);
        let node = NodeHealth { unhealthy, is_checking };
        self.health.send_if_modified(|known| {
            let is_changed = *known != node;
            *known = node;
            is_changed
        });
    }
}

fn log(unhealthy: Option<&Unhealthy>) {
    match unhealthy {
        Some(Unhealthy { class, reason, .. }) => {
            warn!(class = class.name(), "this machine is unhealthy: {reason}");
        }
        None => info!("this machine is healthy again"),
    }
}

/// Runs the program of `--health-check`.
async fn run(spec: HealthSpec, occasion: Occasion) -> Done {
    let occasion: &str = occasion.into();
    let variables = [("RAGENT_HEALTH_WHEN", occasion)];
    let mut is_killed = false;
    let verdict = match user_command::run(&spec.check, &variables, spec.timeout).await {
        Ok(ended) => {
            is_killed =
                ended.status.and_then(|status| status.signal()) == Some(Signal::SIGKILL as i32);
            match ended.status.and_then(|status| status.code()) {
                Some(0) => Verdict::Healthy,
                Some(NOT_NOW) => Verdict::NotNow,
                _ => Verdict::Gone(format!("the health check {}", ended.text(spec.timeout))),
            }
        }
        Err(error) => {
            info!(%error, "failed to run the program of `--health-check`");
            of_error(&error)
        }
    };
    info!(?verdict, occasion, "the program of `--health-check` has ended");
    Done::Ran { verdict, is_killed }
}

/// Returns the verdict after an error of the system. There is none if the agent has reached a limit, or if the program was started and
/// something else has reaped it.
fn of_error(error: &io::Error) -> Verdict {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::ECHILD) => {
            Verdict::NotNow
        }
        _ => Verdict::Gone(format!("the health check cannot be run: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine is bad if the program does not exist there, but not if the agent has reached a limit.
    #[test]
    fn limits_are_no_matter_of_the_machine() {
        let verdict = |errno: Errno| of_error(&errno.into());
        for errno in [Errno::EAGAIN, Errno::ENOMEM, Errno::EMFILE, Errno::ENFILE, Errno::ECHILD] {
            assert_eq!(verdict(errno), Verdict::NotNow, "{errno}");
        }
        for errno in [Errno::ENOENT, Errno::EACCES, Errno::EIO] {
            assert!(matches!(verdict(errno), Verdict::Gone(_)), "{errno}");
        }
    }
}
