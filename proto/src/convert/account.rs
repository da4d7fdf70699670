//! Converts the totals of a job: its time account, and the costs of its restarts.

use std::time::Duration;

use ragent_rendezvous::{
    account::{TimeState, TimeTotals},
    event::{RestartCause, RestartSum},
};

use super::to_millis;
use crate::v1;

/// Returns the totals of a job's state.
pub(super) fn to_totals(
    time: &TimeTotals,
    restarts: &[RestartSum; RestartCause::ALL.len()],
) -> v1::JobTotals {
    v1::JobTotals {
        state_ms: time.by_state.iter().map(|time| to_millis(*time)).collect(),
        redone_ms: to_millis(time.redone),
        restarts: restarts.iter().map(|sum| (*sum).into()).collect(),
    }
}

/// Reads the totals of a job's state. Anything that an older build has not counted is zero.
pub(super) fn from_totals(
    totals: v1::JobTotals,
) -> (TimeTotals, [RestartSum; RestartCause::ALL.len()]) {
    let redone = Duration::from_millis(totals.redone_ms);
    let mut time = TimeTotals { redone, ..TimeTotals::default() };
    for (state, ms) in TimeState::ALL.into_iter().zip(totals.state_ms) {
        time.add(state, Duration::from_millis(ms));
    }
    let mut restarts = [RestartSum::default(); RestartCause::ALL.len()];
    for (restart, sum) in restarts.iter_mut().zip(totals.restarts) {
        *restart = sum.into();
    }
    (time, restarts)
}

impl From<RestartSum> for v1::RestartSum {
    fn from(RestartSum { count, cost_ms, redone_steps }: RestartSum) -> Self {
        Self { count, cost_ms, redone_steps }
    }
}

impl From<v1::RestartSum> for RestartSum {
    fn from(v1::RestartSum { count, cost_ms, redone_steps }: v1::RestartSum) -> Self {
        Self { count, cost_ms, redone_steps }
    }
}

/// The totals of a job for tests, in whole milliseconds.
#[cfg(test)]
pub(super) fn some_totals() -> (TimeTotals, [RestartSum; RestartCause::ALL.len()]) {
    let mut time = TimeTotals { redone: Duration::from_millis(9), ..TimeTotals::default() };
    for (state, ms) in TimeState::ALL.into_iter().zip(10..) {
        time.add(state, Duration::from_millis(ms));
    }
    let mut restarts = [RestartSum::default(); RestartCause::ALL.len()];
    restarts[1] = RestartSum { count: 2, cost_ms: 24_000, redone_steps: 80 };
    (time, restarts)
}
