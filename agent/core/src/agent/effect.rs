//! Defines the effects of the agent machine, the news that it reports, and how its part ends.

use std::{net::IpAddr, time::Duration};

use ragent_rendezvous::{
    ids::RoundId,
    message::{
        Admission, EvictReason, FromNode, Hung, JobResult, Notice, Outcome, RefuseReason,
        RestartReason, WaitReason, WorkerFailure,
    },
};

use super::{
    looks::LookOrder,
    notices::{NoticeEnd, ShownNotice},
};
use crate::{memory, signal::Signal, wait_reports::WaitReport};

/// An effect of an [`Agent`](super::Agent).
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Send this message on the current stream. Without a stream it is dropped: each new stream begins with
    /// the state at that time.
    Send(FromNode),
    /// Carry out this action on the node.
    Local(Action),
}

/// An action for the driver, on this node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Action {
    /// Open a new worker store, in addition to the one in service, and report its port.
    OpenStore,
    /// Start the workers of a round. Group rank 0 serves the store that was opened last.
    Start(Box<Admission>),
    /// Show this notice to the workers, with the time at which it is over; `None` removes the last one.
    ShowNotice(Option<Box<ShownNotice>>),
    /// Look at the workers, and report the answer.
    Look(LookOrder),
    /// Kill this worker of the round if it is one of this node, or watch whether it stays stopped. `None` ends the watch.
    Hung(Option<Hung>),
    /// Do this for the checkpoints in memory.
    Memory(memory::Effect),
    /// End the workers.
    Stop {
        /// The signal to send them.
        signal: Signal,
        /// The time that they have to end.
        grace: Duration,
    },
    /// Kill the workers.
    Kill,
    /// Report news to the user.
    Announce(News),
    /// Report to the user that this node waits.
    ReportWait(WaitReport),
    /// End this node's part, in this way.
    Finish(Ending),
}

/// An event that is reported to the user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum News {
    /// The node was admitted.
    Admitted(Box<Admission>),
    /// The node is no longer a member.
    Evicted(RoundId, EvictReason),
    /// The coordinator's host leaves.
    HostLeaving,
    /// A round has ended, for this reason.
    Restarting(RoundId, RestartReason),
    /// All workers of this node exited with 0. The node waits for the others.
    Succeeded(RoundId),
    /// The node waits, for this reason.
    Waiting(RoundId, WaitReason),
    /// A worker of this node failed.
    WorkerFailed(Box<WorkerFailure>),
    /// A worker of this node failed before all others of the node, as their error files show.
    Cause(Box<WorkerFailure>),
    /// The store of the round has refused a client from this address.
    ClientRefused(RoundId, IpAddr),
    /// All ranks may save, because a notice was given.
    NoticeGiven(Notice),
    /// The phase of a notice is over.
    NoticeOver(NoticeEnd),
    /// Checkpoints in memory are off for the rest of the round, for this reason.
    MemoryOff(RoundId, String),
}

/// The way in which one node's part ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ending {
    /// The job is over.
    Closed(Outcome),
    /// The node left because of a signal or a notice.
    Left {
        /// The signal; `None` if a notice was about this node.
        signal: Option<Signal>,
        /// The step that all ranks had saved; `None` if steps may be lost. It is set if the signal came between two
        /// rounds, and the earlier one ended with this checkpoint.
        saved_step: Option<u64>,
    },
    /// The coordinator refused this node.
    Refused(RefuseReason),
    /// The job has ended while this node had no coordinator, so its outcome is not known here.
    Outlived,
    /// The coordinator could not be reached for as long as nodes wait for each other.
    Unreachable {
        /// The time without a connection.
        waited: Duration,
        /// True if the coordinator had been reached before.
        was_registered: bool,
        /// True if its host had announced that it leaves.
        has_left: bool,
        /// The step from which the job goes on: all ranks have saved it for a notice, and no later round has
        /// reported anything.
        complete_step: Option<u64>,
    },
}

/// The exit code of an agent that has lost its coordinator for good. Starting the same job again can succeed.
/// The cases:
///
/// - The coordinator's host left or was lost, and did not come back.
/// - A majority of the voters, or etcd, was not reached.
/// - The job does not go on, because another job of its name does.
pub const HOST_GONE: u8 = 3;
/// The exit code of an agent that registered after its job had failed permanently. Starting it again cannot
/// succeed.
pub const CLOSED_BEFORE: u8 = 4;
/// The exit code of an agent whose job has ended after a notice, with all ranks saved. Nothing is lost if it is
/// started again.
pub const SAVED: u8 = 5;

/// The exit code of an agent whose job failed again and again before a new step. Another start would probably
/// fail in the same way.
pub const NO_PROGRESS: u8 = 6;

/// The exit code of an agent that left its job after a signal. The node rejoins when the agent is started
/// again.
pub const LEFT: u8 = 8;
/// The exit code of an agent that its coordinator has refused. Usually its flags must be changed first.
pub const REFUSED: u8 = 9;

impl Ending {
    /// Returns true if this node was refused because its job was saved, and is about to end. Another agent of this
    /// name begins the next one.
    pub fn is_of_saved_job(&self) -> bool {
        let Self::Refused(RefuseReason::Closed(outcome)) = self else { return false };
        matches!(outcome.result, JobResult::Saved { .. }) || outcome.complete_step.is_some()
    }

    /// Returns the exit code for an ending without success, as listed in docs/exit-codes.md.
    pub fn exit_code(&self) -> u8 {
        match self {
            // Otherwise the job may go on without this node.
            Self::Unreachable { complete_step: Some(_), has_left: true, .. }
            | Self::Left { saved_step: Some(_), .. }
            | Self::Closed(Outcome { result: JobResult::Saved { .. }, .. })
            | Self::Closed(Outcome {
                result:
                    JobResult::AllLeft
                    | JobResult::JoinTimeout { .. }
                    | JobResult::RecoveryTimeout { .. },
                complete_step: Some(_),
                ..
            }) => SAVED,
            Self::Closed(Outcome { result: JobResult::NoProgress { .. }, .. }) => NO_PROGRESS,
            Self::Unreachable { was_registered: true, .. } => HOST_GONE,
            Self::Closed(Outcome {
                result: JobResult::RecoveryTimeout { .. } | JobResult::OtherJob { .. },
                ..
            })
            | Self::Outlived => HOST_GONE,
            Self::Refused(RefuseReason::Closed(outcome)) if outcome.result.is_lasting() => {
                CLOSED_BEFORE
            }
            Self::Left { saved_step: None, .. }
            | Self::Closed(Outcome { result: JobResult::AllLeft, .. }) => LEFT,
            Self::Closed(_)
            | Self::Refused(RefuseReason::Closed(_))
            | Self::Unreachable { was_registered: false, .. } => 1,
            Self::Refused(_) => REFUSED,
        }
    }
}
