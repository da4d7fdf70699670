//! Converts failures of workers, and outcomes of jobs.

use ragent_rendezvous::{
    ids::Round,
    limits::{DEPARTED_NODES_MAX, FURTHER_FAILURES_MAX},
    message::{
        DepartedNode, DepartedNodes, Departure, HARDWARE_FACTS_MAX, JobResult, Outcome, WorkerEnd,
        WorkerFailure,
    },
    training::CHARGED_ROUNDS_MAX,
};

use super::{
    list, millis, name, printable,
    progress::{optional_step, step},
    required, text, to_millis,
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

message!(WorkerFailure, v1::WorkerFailure, "failure", {
    host_name: Name,
    round: Required(Inner),
    global_rank: Same,
    local_rank: Same,
    pid: Same,
    end: Required(Inner),
    age_us as age: Micros,
    // Output of workers may contain any characters.
    message: Optional(Text(limits::MAX_TEXT_LEN)),
    error_file: Optional(Text(limits::MAX_PATH_LEN)),
    stderr_tail: Text(limits::MAX_TEXT_LEN),
    is_final: Same,
    error_file_age_us as error_file_age: Optional(Micros),
    hardware: List(HARDWARE_FACTS_MAX, Inner),
    oom: IfKnown,
    before_load: Same,
});

enumeration!(Departure, Departure, "departed_node.how", [AgentEnded, Silent, NotReady, Left]);

message!(DepartedNode, v1::DepartedNode, "departed_node", {
    host_name: Name,
    how: Enumeration,
    ago_ms as ago: Millis,
});

message!(Outcome, v1::Outcome, "outcome", {
    result: Required(Inner),
    first_failure: Optional(Inner),
    other_failures: Same,
    restarts_used: Same,
    further_failures: List(FURTHER_FAILURES_MAX, Inner),
    complete_step: Optional(Step),
});

impl From<JobResult> for outcome::Result {
    fn from(result: JobResult) -> Self {
        match result {
            JobResult::Succeeded => Self::Succeeded(outcome::Succeeded {}),
            JobResult::Saved { step } => Self::Saved(outcome::SavedStep { step }),
            JobResult::NoProgress { rounds, step } => {
                let rounds = rounds.into_iter().map(|round| round.0).collect();
                Self::NoProgress(outcome::NoProgress { rounds, step })
            }
            JobResult::BudgetSpent => Self::BudgetSpent(outcome::BudgetSpent {}),
            JobResult::JoinTimeout { present, min, waited, after, departed } => {
                let waited_ms = to_millis(waited);
                let departed_more = departed.more;
                let departed = departed.first.into_iter().map(Into::into).collect();
                Self::JoinTimeout(outcome::JoinTimeout {
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
                Self::RecoveryTimeout(outcome::RecoveryTimeout { present, needed, waited_ms })
            }
            JobResult::AllLeft => Self::AllLeft(outcome::AllLeft {}),
            JobResult::LoopbackMaster { address, host_name } => {
                Self::LoopbackMaster(outcome::LoopbackMaster { address, host_name })
            }
            JobResult::AllQuarantined => Self::AllQuarantined(outcome::AllQuarantined {}),
            JobResult::RestartLoop { rounds } => Self::RestartLoop(outcome::RestartLoop { rounds }),
            JobResult::FinalFailure => Self::FinalFailure(outcome::FinalFailure {}),
            JobResult::OtherJob { endpoint, born_ms } => {
                Self::OtherJob(outcome::OtherJob { endpoint, born_ms })
            }
        }
    }
}

impl TryFrom<outcome::Result> for JobResult {
    type Error = Malformed;

    fn try_from(result: outcome::Result) -> Result<Self, Malformed> {
        use outcome::Result as Wire;
        Ok(match result {
            Wire::Succeeded(outcome::Succeeded {}) => Self::Succeeded,
            Wire::Saved(outcome::SavedStep { step: saved }) => {
                Self::Saved { step: step(saved, "outcome.step")? }
            }
            Wire::NoProgress(outcome::NoProgress { rounds, step }) => Self::NoProgress {
                rounds: list(rounds, "outcome.rounds", CHARGED_ROUNDS_MAX, |round| {
                    Ok(Round(round))
                })?,
                step: optional_step(step, "outcome.step")?,
            },
            Wire::BudgetSpent(outcome::BudgetSpent {}) => Self::BudgetSpent,
            Wire::JoinTimeout(outcome::JoinTimeout {
                present,
                min,
                waited_ms,
                departed,
                departed_more,
                after_round,
            }) => {
                let waited = millis(waited_ms, "outcome.waited_ms")?;
                let first =
                    list(departed, "outcome.departed", DEPARTED_NODES_MAX, TryInto::try_into)?;
                let departed = Box::new(DepartedNodes { first, more: departed_more });
                let after = Round(after_round);
                Self::JoinTimeout { present, min, waited, after, departed }
            }
            Wire::RecoveryTimeout(outcome::RecoveryTimeout { present, needed, waited_ms }) => {
                let waited = millis(waited_ms, "outcome.waited_ms")?;
                Self::RecoveryTimeout { present, needed, waited }
            }
            Wire::AllLeft(outcome::AllLeft {}) => Self::AllLeft,
            Wire::LoopbackMaster(outcome::LoopbackMaster { address, host_name }) => {
                Self::LoopbackMaster {
                    address: name(address, "outcome.address")?,
                    host_name: name(host_name, "outcome.host_name")?,
                }
            }
            Wire::AllQuarantined(outcome::AllQuarantined {}) => Self::AllQuarantined,
            Wire::RestartLoop(outcome::RestartLoop { rounds }) => Self::RestartLoop { rounds },
            Wire::FinalFailure(outcome::FinalFailure {}) => Self::FinalFailure,
            Wire::OtherJob(outcome::OtherJob { endpoint, born_ms }) => {
                Self::OtherJob { endpoint: name(endpoint, "outcome.endpoint")?, born_ms }
            }
        })
    }
}
