//! Converts failures of workers, and outcomes of jobs.

use std::time::Duration;

use ragent_rendezvous::{
    ids::{GlobalRank, LocalRank, Round},
    message::{
        DepartedNode, DepartedNodes, Departure, HARDWARE_FACTS_MAX, JobResult, Outcome, WorkerEnd,
        WorkerFailure,
    },
    training::CHARGED_ROUNDS_MAX,
};

use super::{
    list, millis, name, printable,
    progress::{optional_step, step},
    required, round, text, to_millis, to_round,
};
use crate::{
    Malformed, limits,
    v1::{self, outcome, worker_end},
};

impl From<WorkerEnd> for v1::WorkerEnd {
    fn from(end: WorkerEnd) -> Self {
        use worker_end::End;
        let end = match end {
            WorkerEnd::Exited(code) => End::Exited(code),
            WorkerEnd::Signaled(signal) => End::Signaled(signal),
            WorkerEnd::NotStarted(reason) => End::NotStarted(printable(&reason)),
            WorkerEnd::KeeperLost => End::KeeperLost(worker_end::KeeperLost {}),
            WorkerEnd::Hung(time) => End::HungMs(to_millis(time)),
            WorkerEnd::StandbyUnfit(reason) => End::StandbyUnfit(printable(&reason)),
        };
        Self { end: Some(end) }
    }
}

impl TryFrom<v1::WorkerEnd> for WorkerEnd {
    type Error = Malformed;

    fn try_from(end: v1::WorkerEnd) -> Result<Self, Malformed> {
        use worker_end::End;
        Ok(match required(end.end, "worker_end.end")? {
            End::Exited(code) => Self::Exited(code),
            End::Signaled(signal) => Self::Signaled(signal),
            End::NotStarted(reason) => {
                Self::NotStarted(text(reason, "worker_end.not_started", limits::MAX_TEXT_LEN)?)
            }
            End::KeeperLost(worker_end::KeeperLost {}) => Self::KeeperLost,
            End::HungMs(time) => Self::Hung(millis(time, "worker_end.hung_ms")?),
            End::StandbyUnfit(reason) => {
                let reason = text(reason, "worker_end.standby_unfit", limits::MAX_TEXT_LEN)?;
                Self::StandbyUnfit(reason.into())
            }
        })
    }
}

impl From<WorkerFailure> for v1::WorkerFailure {
    fn from(failure: WorkerFailure) -> Self {
        Self {
            host_name: failure.host_name,
            round: to_round(failure.round),
            global_rank: failure.global_rank.0,
            local_rank: failure.local_rank.0,
            pid: failure.pid,
            end: Some(failure.end.into()),
            age_us: to_micros(failure.age),
            // Output of workers may contain any characters.
            message: failure.message.as_deref().map(printable),
            error_file: failure.error_file.as_deref().map(printable),
            stderr_tail: printable(&failure.stderr_tail),
            is_final: failure.is_final,
            error_file_age_us: failure.error_file_age.map(to_micros),
            hardware: failure.hardware.into_iter().map(Into::into).collect(),
            oom: failure.oom.map_or(v1::OomKill::Unspecified, Into::into).into(),
            before_load: failure.before_load,
        }
    }
}

pub(super) fn to_micros(age: Duration) -> u64 {
    u64::try_from(age.as_micros()).unwrap_or(u64::MAX)
}

pub(super) fn micros(age_us: u64, field: &'static str) -> Result<Duration, Malformed> {
    if age_us / 1000 > limits::MAX_DURATION_MS {
        return Err(Malformed::OutOfRange(field));
    }
    Ok(Duration::from_micros(age_us))
}

impl TryFrom<v1::WorkerFailure> for WorkerFailure {
    type Error = Malformed;

    fn try_from(failure: v1::WorkerFailure) -> Result<Self, Malformed> {
        let limited = |value: Option<String>, field, limit| {
            value.map(|value| text(value, field, limit)).transpose()
        };
        Ok(Self {
            // A name that only a later build has is unknown here.
            oom: failure.oom().try_into().ok(),
            before_load: failure.before_load,
            host_name: name(failure.host_name, "failure.host_name")?,
            round: round(failure.round, "failure.round")?,
            global_rank: GlobalRank(failure.global_rank),
            local_rank: LocalRank(failure.local_rank),
            pid: failure.pid,
            end: required(failure.end, "failure.end")?.try_into()?,
            age: micros(failure.age_us, "failure.age_us")?,
            message: limited(failure.message, "failure.message", limits::MAX_TEXT_LEN)?,
            error_file: limited(failure.error_file, "failure.error_file", limits::MAX_PATH_LEN)?,
            stderr_tail: text(failure.stderr_tail, "failure.stderr_tail", limits::MAX_TEXT_LEN)?,
            is_final: failure.is_final,
            error_file_age: failure
                .error_file_age_us
                .map(|age| micros(age, "failure.error_file_age_us"))
                .transpose()?,
            hardware: list(
                failure.hardware,
                "failure.hardware",
                HARDWARE_FACTS_MAX,
                TryInto::try_into,
            )?,
        })
    }
}

enumeration!(Departure, Departure, "departed_node.how", [AgentEnded, Silent, NotReady, Left]);

impl From<DepartedNode> for v1::DepartedNode {
    fn from(node: DepartedNode) -> Self {
        Self {
            host_name: node.host_name,
            how: v1::Departure::from(node.how).into(),
            ago_ms: to_millis(node.ago),
        }
    }
}

impl TryFrom<v1::DepartedNode> for DepartedNode {
    type Error = Malformed;

    fn try_from(node: v1::DepartedNode) -> Result<Self, Malformed> {
        Ok(Self {
            how: node.how().try_into()?,
            host_name: name(node.host_name, "departed_node.host_name")?,
            ago: millis(node.ago_ms, "departed_node.ago_ms")?,
        })
    }
}

impl From<Outcome> for v1::Outcome {
    fn from(outcome: Outcome) -> Self {
        use outcome::Result;
        let result = match outcome.result {
            JobResult::Succeeded => Result::Succeeded(outcome::Succeeded {}),
            JobResult::Saved { step } => Result::Saved(outcome::SavedStep { step }),
            JobResult::NoProgress { rounds, step } => {
                let rounds = rounds.into_iter().map(|round| round.0).collect();
                Result::NoProgress(outcome::NoProgress { rounds, step })
            }
            JobResult::BudgetSpent => Result::BudgetSpent(outcome::BudgetSpent {}),
            JobResult::JoinTimeout { present, min, waited, after, departed } => {
                let waited_ms = to_millis(waited);
                let departed_more = departed.more;
                let departed = departed.first.into_iter().map(Into::into).collect();
                Result::JoinTimeout(outcome::JoinTimeout {
                    present,
                    min,
                    waited_ms,
                    departed,
                    departed_more,
                    after_round: after.0,
                })
            }
            JobResult::RecoveryTimeout { present, needed, waited } => {
                let waited_ms = to_millis(waited);
                Result::RecoveryTimeout(outcome::RecoveryTimeout { present, needed, waited_ms })
            }
            JobResult::AllLeft => Result::AllLeft(outcome::AllLeft {}),
            JobResult::LoopbackMaster { address, host_name } => {
                Result::LoopbackMaster(outcome::LoopbackMaster { address, host_name })
            }
            JobResult::AllQuarantined => Result::AllQuarantined(outcome::AllQuarantined {}),
            JobResult::RestartLoop { rounds } => {
                Result::RestartLoop(outcome::RestartLoop { rounds })
            }
            JobResult::FinalFailure => Result::FinalFailure(outcome::FinalFailure {}),
            JobResult::OtherJob { endpoint, born_ms } => {
                Result::OtherJob(outcome::OtherJob { endpoint, born_ms })
            }
        };
        Self {
            result: Some(result),
            first_failure: outcome.first_failure.map(Into::into),
            other_failures: outcome.other_failures,
            restarts_used: outcome.restarts_used,
            further_failures: outcome.further_failures.into_iter().map(Into::into).collect(),
            complete_step: outcome.complete_step,
        }
    }
}

impl TryFrom<v1::Outcome> for Outcome {
    type Error = Malformed;

    fn try_from(outcome: v1::Outcome) -> Result<Self, Malformed> {
        use outcome::Result as Wire;
        let result = match required(outcome.result, "outcome.result")? {
            Wire::Succeeded(outcome::Succeeded {}) => JobResult::Succeeded,
            Wire::Saved(outcome::SavedStep { step: saved }) => {
                JobResult::Saved { step: step(saved, "outcome.step")? }
            }
            Wire::NoProgress(outcome::NoProgress { rounds, step }) => JobResult::NoProgress {
                rounds: list(rounds, "outcome.rounds", CHARGED_ROUNDS_MAX, |round| {
                    Ok(Round(round))
                })?,
                step: optional_step(step, "outcome.step")?,
            },
            Wire::BudgetSpent(outcome::BudgetSpent {}) => JobResult::BudgetSpent,
            Wire::JoinTimeout(outcome::JoinTimeout {
                present,
                min,
                waited_ms,
                departed,
                departed_more,
                after_round,
            }) => {
                let waited = millis(waited_ms, "outcome.waited_ms")?;
                let first = list(
                    departed,
                    "outcome.departed",
                    ragent_rendezvous::limits::DEPARTED_NODES_MAX,
                    TryInto::try_into,
                )?;
                let departed = Box::new(DepartedNodes { first, more: departed_more });
                let after = Round(after_round);
                JobResult::JoinTimeout { present, min, waited, after, departed }
            }
            Wire::RecoveryTimeout(outcome::RecoveryTimeout { present, needed, waited_ms }) => {
                let waited = millis(waited_ms, "outcome.waited_ms")?;
                JobResult::RecoveryTimeout { present, needed, waited }
            }
            Wire::AllLeft(outcome::AllLeft {}) => JobResult::AllLeft,
            Wire::LoopbackMaster(outcome::LoopbackMaster { address, host_name }) => {
                JobResult::LoopbackMaster {
                    address: name(address, "outcome.address")?,
                    host_name: name(host_name, "outcome.host_name")?,
                }
            }
            Wire::AllQuarantined(outcome::AllQuarantined {}) => JobResult::AllQuarantined,
            Wire::RestartLoop(outcome::RestartLoop { rounds }) => JobResult::RestartLoop { rounds },
            Wire::FinalFailure(outcome::FinalFailure {}) => JobResult::FinalFailure,
            Wire::OtherJob(outcome::OtherJob { endpoint, born_ms }) => {
                JobResult::OtherJob { endpoint: name(endpoint, "outcome.endpoint")?, born_ms }
            }
        };
        Ok(Self {
            result,
            first_failure: outcome.first_failure.map(TryInto::try_into).transpose()?,
            other_failures: outcome.other_failures,
            further_failures: list(
                outcome.further_failures,
                "outcome.further_failures",
                ragent_rendezvous::limits::FURTHER_FAILURES_MAX,
                TryInto::try_into,
            )?,
            restarts_used: outcome.restarts_used,
            complete_step: optional_step(outcome.complete_step, "outcome.complete_step")?,
        })
    }
}
