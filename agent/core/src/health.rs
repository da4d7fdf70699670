//! Decides when a node checks its machine, and whether it should get a place.
//!
//! The result is a state that holds until a later check changes it. The node repeats it in each report and in each registration.
//!
//! 1. A check reads the GPUs, and runs the user's program if there is one. It begins at the agent's start, after a failure of an own
//!    worker, and again and again while no workers run, at times with a random part. After a failure the program begins only when
//!    no worker of this node is left, because workers hold what it may need.
//! 2. The next round waits for the first two kinds: for the reading a moment, for the program until it has ended.
//! 3. While workers run, the level stays. There is one exception: a check from before the round finds that a GPU is gone or must be
//!    repaired.
//!
//! The machine has no driver, no process and no clock.

use std::{collections::VecDeque, time::Instant};

use ragent_rendezvous::{
    jitter::Jitter,
    message::{HealthClass, LINE_MAX, Unhealthy, WorkerEnd},
};

use crate::limits;

/// The occasion of a check. Its name is the value of `RAGENT_HEALTH_WHEN`, so it never changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Occasion {
    /// The agent has started.
    Start,
    /// A worker of this node has failed or was hanging.
    Failure,
    /// No workers run.
    Idle,
}

/// The result of the user's program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The machine is healthy.
    Healthy,
    /// The program has no result now, and is to run again soon.
    NotNow,
    /// Workers cannot run here, for this reason.
    Gone(String),
}

/// The kinds of checks that a node makes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HealthSettings {
    /// True if checks read the hardware.
    pub reads: bool,
    /// True if checks run the user's program.
    pub runs: bool,
    /// The seed of the random part, another one on each node.
    pub seed: u64,
}

/// An action for the driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Read the hardware. [`Health::handle_read`] follows, unless the driver never answers.
    Read(Occasion),
    /// Run the user's program. [`Health::handle_verdict`] follows.
    Run(Occasion),
}

/// The health of this node.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeHealth {
    /// The reason why the node should get no place.
    pub unhealthy: Option<Unhealthy>,
    /// True while the node takes part in no new round, because a check runs.
    pub is_checking: bool,
}

/// The checks of this node.
#[derive(Debug)]
pub struct Health {
    settings: HealthSettings,
    jitter: Jitter,
    /// The results of the hardware and of the program.
    hardware: Option<Unhealthy>,
    program: Option<Unhealthy>,
    level: Option<Unhealthy>,
    /// The time until which a new round waits for a reading.
    reading: Option<Instant>,
    /// The readings that have not ended.
    readings: usize,
    /// The occasion of the run that has not ended.
    running: Option<Occasion>,
    /// The occasion of a run that is to follow it, or the end of the workers.
    follows: Option<Occasion>,
    /// True if workers have started during the run.
    is_beside_workers: bool,
    has_workers: bool,
    /// True if a worker of this round has failed, so that the round ends.
    has_failed: bool,
    /// The next check without workers.
    next: Option<Instant>,
    effects: VecDeque<Effect>,
}

impl Health {
    /// Begins with a check.
    pub fn new(now: Instant, settings: HealthSettings) -> Self {
        let mut health = Self {
            settings,
            jitter: Jitter::new(settings.seed),
            hardware: None,
            program: None,
            level: None,
            reading: None,
            readings: 0,
            running: None,
            follows: None,
            is_beside_workers: false,
            has_workers: false,
            has_failed: false,
            next: None,
            effects: VecDeque::new(),
        };
        health.check(now, Occasion::Start);
        health.wait_for_next(now);
        health
    }

    /// Notes that workers start.
    pub fn handle_round(&mut self) {
        (self.has_workers, self.has_failed, self.next) = (true, false, None);
        self.is_beside_workers = self.running.is_some();
    }

    /// Notes that a worker of this node has ended in this way, and its round with it. `hardware` is the present result of the hardware.
    pub fn handle_failure(&mut self, now: Instant, end: &WorkerEnd, hardware: Option<Unhealthy>) {
        self.has_failed = true;
        self.hardware = hardware;
        self.review();
        // A standby that does not fit the script says nothing about the machine.
        if !matches!(end, WorkerEnd::StandbyUnfit(_)) {
            self.check(now, Occasion::Failure);
        }
    }

    /// Notes that no worker is left. `hardware` is the present result of the hardware.
    pub fn handle_round_over(&mut self, now: Instant, hardware: Option<Unhealthy>) {
        self.has_workers = false;
        self.hardware = hardware;
        self.review();
        self.wait_for_next(now);
        self.run_what_follows();
    }

    /// Notes that a reading of [`Effect::Read`] has ended.
    pub fn handle_read(&mut self, hardware: Option<Unhealthy>) {
        self.readings = self.readings.saturating_sub(1);
        if self.readings == 0 {
            self.reading = None;
        }
        self.hardware = hardware;
        self.review();
    }

    /// Notes that the program of [`Effect::Run`] has ended.
    pub fn handle_verdict(&mut self, now: Instant, verdict: Verdict) {
        self.running = None;
        match verdict {
            Verdict::Healthy => self.program = None,
            Verdict::NotNow if self.has_workers => {}
            Verdict::NotNow => self.next = Some(now + limits::HEALTH_AGAIN),
            // Workers may have held what it needs.
            Verdict::Gone(_) if self.is_beside_workers => {}
            Verdict::Gone(mut reason) => {
                reason.truncate(reason.floor_char_boundary(LINE_MAX));
                let (class, kind) = (HealthClass::Gone, "health_check".to_owned());
                self.program = Some(Unhealthy { class, kind, reason });
            }
        }
        self.review();
        self.run_what_follows();
    }

    /// Returns the health of this node.
    pub fn node(&self) -> NodeHealth {
        let runs = [self.running, self.follows].into_iter().flatten();
        let is_awaited = |occasion| matches!(occasion, Occasion::Start | Occasion::Failure);
        let is_checking = self.reading.is_some() || runs.into_iter().any(is_awaited);
        NodeHealth { unhealthy: self.level.clone(), is_checking }
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.reading.into_iter().chain(self.next).min()
    }

    /// Applies every deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        // What is read later counts, too.
        self.reading.take_if(|until| *until <= now);
        if self.next.is_some_and(|next| next <= now) {
            self.check(now, Occasion::Idle);
            self.wait_for_next(now);
        }
    }

    /// Returns the next effect; `None` if there are none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn check(&mut self, now: Instant, occasion: Occasion) {
        if self.settings.reads {
            self.effects.push_back(Effect::Read(occasion));
            self.readings += 1;
            if occasion != Occasion::Idle {
                self.reading = Some(now + limits::HEALTH_READING);
            }
        }
        if !self.settings.runs {
            return;
        }
        // A run that has not ended began before the failure.
        if self.running.is_none() || occasion == Occasion::Failure {
            self.follows = Some(occasion);
        }
        self.run_what_follows();
    }

    /// Runs the program if it is to run, unless it runs or workers would be in its way.
    fn run_what_follows(&mut self) {
        if self.running.is_none()
            && !self.has_workers
            && let Some(occasion) = self.follows.take()
        {
            (self.running, self.is_beside_workers) = (Some(occasion), false);
            self.effects.push_back(Effect::Run(occasion));
        }
    }

    fn wait_for_next(&mut self, now: Instant) {
        if self.settings.reads || self.settings.runs {
            self.next = Some(now + self.jitter.spread(limits::HEALTH_INTERVAL));
        }
    }

    /// Updates the level.
    fn review(&mut self) {
        let found = [&self.hardware, &self.program].into_iter().flatten();
        let worst = found.max_by_key(|found| found.class).cloned();
        let ends_round = worst.as_ref().is_some_and(|worst| worst.class >= HealthClass::Replace);
        if !self.has_workers || self.has_failed || ends_round {
            self.level = worst;
        }
    }
}

#[cfg(test)]
mod tests;
