//! Defines the messages between the driver of the workers and the agent.

use std::{
    net::IpAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use ragent_core::{
    agent::{LookOrder, ShownNotice},
    health::NodeHealth,
    saves::NodeSaves,
    signal,
    steps::NodeSteps,
    supervisor::GroupEnd,
};
use ragent_rendezvous::{
    ids::{JobUid, Round, RoundId},
    message::{Admission, Digest, HardwareFact, Hung, StandbyCounts, WorkerFailure},
};
use tokio::sync::{mpsc, watch};

/// A command to the driver of the workers.
#[derive(Debug)]
pub enum WorkersCommand {
    /// Start the workers of a round. The previous group has finished.
    Start {
        /// The admission of the node.
        admission: Box<Admission>,
        /// The run of the job.
        job_uid: JobUid,
        /// The address of this node for the others; `None` if it has registered by a name.
        address: Option<IpAddr>,
        /// The folder with the workers' sockets for checkpoints in memory, if there are any.
        memory_folder: Option<PathBuf>,
    },
    /// End the group.
    Stop {
        /// The signal for its workers.
        signal: signal::Signal,
        /// The time that its workers have to end.
        grace: Duration,
    },
    /// Show a notice to the workers; `None` removes the last one.
    ShowNotice(Option<Box<ShownNotice>>),
    /// Look at the workers, which make no progress.
    Look(LookOrder),
    /// Kill this worker if it is one of this node, or watch whether it stays stopped. `None` takes that back.
    Hung(Option<Hung>),
    /// Forward a signal to the workers, which continue.
    Forward(Signal),
    /// End the group at once.
    Kill,
    /// Allow workers to run until this time; without a limit if they need no lease.
    Renew(Option<Instant>),
    /// Leave this memory to standbys, in bytes; `None` if no checkpoints are in memory.
    LeaveToStandbys(Option<u64>),
    /// Set the death notice that the keeper sends if the agent dies, and its recipients.
    SetDeathNotice {
        /// The id of the agent's node.
        node_id: String,
        /// The addresses of the coordinator and the voters.
        coordinators: Vec<std::net::SocketAddr>,
        /// The newest round that ran on this node.
        round: Round,
        /// The proof of the agent's node id; `None` until the first welcome.
        proof: Option<ragent_proto::Proof>,
        /// The state file of the coordinator, if this agent hosts it.
        state_file: Option<PathBuf>,
    },
}

/// A report of the driver of the workers.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkersEvent {
    /// The first failure of the group. The other workers are being stopped.
    Failed(Box<WorkerFailure>),
    /// The failure with the oldest error file of all workers in the group. It is sent before the end of the group.
    Cause(Box<WorkerFailure>),
    /// The reports of the hardware since the round began. They are sent after a failure, before the end of the group.
    Hardware(RoundId, Vec<HardwareFact>),
    /// The group has ended, and none of its processes is left.
    Finished(GroupEnd),
    /// The keeper kills the workers because their lease has expired.
    LeaseExpired,
    /// A worker has sent this signal to its parent. It is meant for this process.
    SignalOfWorker(Signal),
    /// The status line of a worker.
    Progress(String),
    /// The training steps of the workers have changed.
    Steps(NodeSteps),
    /// The workers have saved a checkpoint.
    Saves(NodeSaves),
    /// The answer to a look.
    Digest(Box<Digest>),
    /// The standbys of this node.
    Standbys(StandbyCounts),
    /// All standbys are ready, or cannot be started. Sent once with `--standby`.
    StandbysSettled,
}

/// A running driver of the workers.
#[derive(Debug)]
pub struct WorkersHandle {
    /// Commands. Dropping this ends the driver, its keeper and all processes below.
    pub commands: mpsc::Sender<WorkersCommand>,
    /// Its reports.
    pub events: mpsc::Receiver<WorkersEvent>,
    /// The health of this node. What it has found about a failure is there before the end of the group is reported.
    pub health: watch::Receiver<NodeHealth>,
    /// Its task, which ends when no process is left.
    pub task: tokio::task::JoinHandle<()>,
}
