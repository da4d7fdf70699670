//! The time account of a job and the costs of its restarts.

use std::time::Duration;

use ragent_rendezvous::{
    account::{TimeState, TimeTotals},
    event::{RestartCause, RestartCost, RestartStages, RestartSum},
    snapshot::{JobTime, RestartsByCause, StateTime},
};

use super::{list, name, required, to_millis};
use crate::{Malformed, v1};

/// The most states or causes of a list; there are fewer.
const NAMES_MAX: usize = 32;

/// Returns the totals of a coordinator's memory.
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

/// Reads the totals of a coordinator's memory. What an older build has not counted is zero.
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

impl From<JobTime> for v1::JobTime {
    fn from(JobTime { states, redone_ms, now }: JobTime) -> Self {
        let states = states.into_iter();
        Self {
            states: states
                .map(|StateTime { state, ms, settled_ms }| v1::StateTime { state, ms, settled_ms })
                .collect(),
            redone_ms,
            now: now.unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::JobTime> for JobTime {
    type Error = Malformed;

    fn try_from(time: v1::JobTime) -> Result<Self, Malformed> {
        let state_time = |v1::StateTime { state, ms, settled_ms }| {
            Ok(StateTime { state: name(state, "time.state")?, ms, settled_ms })
        };
        let now = (!time.now.is_empty()).then(|| name(time.now, "time.now")).transpose()?;
        Ok(Self {
            states: list(time.states, "time.states", NAMES_MAX, state_time)?,
            redone_ms: time.redone_ms,
            now,
        })
    }
}

impl From<RestartsByCause> for v1::RestartsByCause {
    fn from(RestartsByCause { cause, sum }: RestartsByCause) -> Self {
        Self { cause: v1::RestartCause::from(cause).into(), sum: Some(sum.into()) }
    }
}

impl TryFrom<v1::RestartsByCause> for RestartsByCause {
    type Error = Malformed;

    fn try_from(restarts: v1::RestartsByCause) -> Result<Self, Malformed> {
        let cause = restarts.cause().try_into()?;
        Ok(Self { cause, sum: required(restarts.sum, "restarts.sum")?.into() })
    }
}

/// Reads the restarts by cause, apart from causes that a later version has added.
pub(super) fn restarts(sums: Vec<v1::RestartsByCause>) -> Result<Vec<RestartsByCause>, Malformed> {
    let known = |sum: &v1::RestartsByCause| sum.cause() != v1::RestartCause::Unspecified;
    let sums = sums.into_iter().filter(known).collect();
    list(sums, "snapshot.restarts", NAMES_MAX, TryInto::try_into)
}

/// Reads the cost of the last restart; `None` if a later version has added its cause.
pub(super) fn last_restart(
    cost: Option<v1::RestartCost>,
) -> Result<Option<RestartCost>, Malformed> {
    let known = cost.filter(|cost| cost.why() != v1::RestartCause::Unspecified);
    known.map(TryInto::try_into).transpose()
}

impl From<RestartCost> for v1::RestartCost {
    fn from(RestartCost { why, stages, redone_steps, is_complete }: RestartCost) -> Self {
        let RestartStages { stopping_ms, waiting_ms, rendezvous_ms, starting_ms } = stages;
        Self {
            why: v1::RestartCause::from(why).into(),
            stopping_ms,
            waiting_ms,
            rendezvous_ms,
            starting_ms,
            redone_steps,
            is_complete,
        }
    }
}

impl TryFrom<v1::RestartCost> for RestartCost {
    type Error = Malformed;

    fn try_from(cost: v1::RestartCost) -> Result<Self, Malformed> {
        let why = cost.why().try_into()?;
        let v1::RestartCost { stopping_ms, waiting_ms, rendezvous_ms, starting_ms, .. } = cost;
        Ok(Self {
            why,
            stages: RestartStages { stopping_ms, waiting_ms, rendezvous_ms, starting_ms },
            redone_steps: cost.redone_steps,
            is_complete: cost.is_complete,
        })
    }
}

enumeration!(
    RestartCause,
    RestartCause,
    "restart.cause",
    [
        FirstStart,
        WorkerFailed,
        NodeLost,
        NodeLeft,
        NodesWaiting,
        CoordinatorLost,
        CoordinatorRestarted,
        HostLeft,
    ]
);

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
