//! Stores and shows the time account of the job.

use std::time::{Duration, Instant};

use crate::{
    account::{Pauses, TimeState, whole_millis},
    limits::{ACCOUNT_INTERVAL, after, millis},
    machine::Rendezvous,
    snapshot::{JobTime, StateTime},
};

impl Rendezvous {
    /// Returns the time at which the account of a running round must be stored.
    pub(super) fn account_due(&self) -> Option<Instant> {
        let is_running = self.job.phase.running().is_some();
        is_running.then(|| after(self.journal.stored, ACCOUNT_INTERVAL))
    }

    /// Stores the account, if it is due, and what progress has forgiven until then.
    pub(super) fn store_account(&mut self, now: Instant) {
        if self.account_due().is_some_and(|due| due <= now) {
            self.forgive_charges(now);
            self.remember();
        }
    }

    /// Writes the time account and the longest pauses to the state of the job.
    pub(super) fn remember_time(&mut self) {
        self.journal.stored = self.job.clock;
        self.job.state.time = self.journal.account.seen(self.job.clock).in_millis();
        let Pauses { longest, first } = self.journal.account.pauses();
        self.job.state.training.longest_pause = whole_millis(longest);
        self.job.state.training.first_step = whole_millis(first);
    }

    /// Returns the age of the job.
    pub(super) fn job_age(&self, now: Instant) -> Duration {
        self.journal.account.seen(now).age()
    }

    /// Returns the time for which workers have run.
    pub(super) fn time_with_workers(&self) -> Duration {
        let times = self.journal.account.seen(self.job.clock);
        let states = [
            TimeState::Productive,
            TimeState::Stalled,
            TimeState::Hung,
            TimeState::Starting,
            TimeState::Unknown,
        ];
        states.into_iter().fold(Duration::ZERO, |sum, state| sum.saturating_add(times.of(state)))
    }

    /// Returns the time account.
    pub(super) fn job_time(&self, now: Instant) -> JobTime {
        let account = &self.journal.account;
        let (seen, settled) = (account.seen(now), account.settled(now));
        let states = TimeState::ALL.into_iter().map(|state| StateTime {
            state: state.name().to_owned(),
            ms: millis(seen.of(state)),
            settled_ms: millis(settled.of(state)),
        });
        JobTime {
            states: states.collect(),
            redone_ms: millis(seen.redone),
            now: account.state(now).map(|state| state.name().to_owned()),
        }
    }
}
