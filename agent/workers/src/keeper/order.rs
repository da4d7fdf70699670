//! Defines the messages between agent and keeper: one JSON object per line.
//!
//! File descriptors are sent with an `Order::Spawn`: the worker's stdin, stdout and stderr. For each stream that the
//! agent copies, there are also the descriptors with which the keeper continues when the agent is gone.

use std::{collections::BTreeSet, ffi::OsString, net::SocketAddr, path::PathBuf};

use ragent_base::output::flow::FlowOrder;
use ragent_core::process_end::ProcessEnd;
use ragent_options::spec::Signaled;
use serde::{Deserialize, Serialize};

/// A message from the agent to the keeper.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum Order {
    /// Starts a worker from its standby, or as a new process if there is none.
    Spawn(Program),
    /// Starts a standby for the worker `program`, which is described as far as it is known before a round.
    StartStandby {
        /// The worker.
        program: Program,
        /// The variables for the standby only.
        hook: Vec<(String, OsString)>,
    },
    /// Kills a standby without a round.
    DismissStandby {
        /// The local rank of its worker.
        local_rank: u32,
    },
    /// Signals every worker; the workers continue.
    Forward {
        /// The signal's number.
        signal: i32,
    },
    /// Signals every worker; the workers are to end.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// Sends that signal to the processes of workers that have not received it yet.
    SignalRest,
    /// Kills every process that is left in the tree.
    CleanUp {
        /// The number of the cleanup. [`KeeperReport::Reaped`] repeats it.
        number: u64,
    },
    /// Sets the end of the lease.
    Renew {
        /// Nanoseconds of `CLOCK_BOOTTIME`; `None` if the lease has no end.
        until_ns: Option<u64>,
    },
    /// Requests a [`KeeperReport::Pong`] at once.
    Ping,
    /// Sets the death notice that is delivered when the agent is gone.
    SetDeathNotice {
        /// The agent's node id.
        node_id: String,
        /// The addresses of the coordinator and the voters; empty if the agent leaves in order.
        coordinators: Vec<SocketAddr>,
        /// The newest round that ran on this node.
        round: u64,
        /// The proof of the agent's node id; empty before it was registered.
        proof: String,
        /// The state file of the coordinator, if this agent hosts it. The death notice is also
        /// written next to it, for the next agent on this machine.
        state_file: Option<PathBuf>,
    },
}

/// A worker to start. Its environment is the keeper's with these changes.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Program {
    /// The worker's local rank.
    pub(crate) local_rank: u32,
    /// The file to execute.
    pub(crate) program: PathBuf,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// The processors that it is bound to. Empty for the agent's own.
    pub(crate) cpus: BTreeSet<u32>,
    /// The variables to set.
    pub(crate) env: Vec<(String, OsString)>,
    /// The variables to remove.
    pub(crate) unset: Vec<String>,
    /// The soft limit of open files, as the agent has inherited it.
    pub(crate) open_files: u64,
    /// The soft limit of the core dump's size, as the agent has inherited it.
    pub(crate) core_dump: u64,
    /// The nice value, as the agent has inherited it.
    pub(crate) nice: i32,
    /// The signals that the worker ignores from its start on.
    pub(crate) ignored: Vec<i32>,
    /// The processes that get its signals.
    pub(crate) signaled: Signaled,
    /// The worker's streams that the agent copies.
    pub(crate) flows: Vec<FlowOrder>,
}

/// A message from the keeper to the agent.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) enum KeeperReport {
    /// A worker was started.
    Spawned {
        /// The worker's local rank.
        local_rank: u32,
        /// The process id of the worker. Its process group and session have the same id.
        pid: u32,
        /// True if a standby becomes the worker.
        is_standby: bool,
    },
    /// A standby has sent this report; see [`crate::standby`].
    Standby {
        /// The local rank of its worker.
        local_rank: u32,
        /// The report, as the hook sends it.
        text: String,
    },
    /// A standby could not be started.
    StandbyNotStarted {
        /// The local rank of its worker.
        local_rank: u32,
        /// The reason.
        reason: String,
        /// True if the system lacks processes or memory at present.
        is_short: bool,
    },
    /// A standby has ended without a round.
    StandbyEnded {
        /// The local rank of its worker.
        local_rank: u32,
        /// The exit code or signal of the process.
        end: ProcessEnd,
    },
    /// A worker could not be started.
    NotSpawned {
        /// The worker's local rank.
        local_rank: u32,
        /// The reason.
        reason: String,
    },
    /// A worker has ended.
    Ended {
        /// The worker's local rank.
        local_rank: u32,
        /// The exit code or signal of the worker.
        end: ProcessEnd,
    },
    /// All workers have ended, and no process is left in their process groups.
    Quiet,
    /// No process is left in the whole tree.
    Reaped {
        /// The number of the newest cleanup that was ordered.
        number: u64,
    },
    /// The lease has expired, and the tree is being killed.
    LeaseOver,
    /// A process below the keeper has sent this signal to the keeper. It is meant for the agent.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// The answer to `Order::Ping`.
    Pong,
}
