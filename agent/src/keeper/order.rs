//! What agent and keeper say to each other: one JSON object a line.
//!
//! A [`Order::Spawn`] travels with file descriptors: the worker's stdin, stdout, stderr, and for each
//! of its streams that the agent copies what the keeper needs to go on with that when the agent is gone.

use std::{collections::BTreeSet, ffi::OsString, net::SocketAddr, path::PathBuf};

use crate::supervisor::flow::FlowOrder;
use ragent_core::process_end::ProcessEnd;
use serde::{Deserialize, Serialize};

/// What the keeper is to do.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Order {
    /// Starts a worker.
    Spawn(Program),
    /// Signals the process group of every worker, which is to go on.
    Forward {
        /// The signal's number.
        signal: i32,
    },
    /// Signals the process group of every worker, which is to end.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// Kills whatever is left in the tree.
    Sweep {
        /// Which sweep this is; [`Report::Reaped`] repeats it.
        number: u64,
    },
    /// The lease runs until then.
    Renew {
        /// Nanoseconds of `CLOCK_BOOTTIME`; none: it has no end.
        until_ns: Option<u64>,
    },
    /// Answered with [`Report::Pong`] at once.
    Ping,
    /// Whom to tell, should the agent be gone.
    Bury {
        /// The agent's identity.
        node_id: String,
        /// Where the coordinator listens.
        coordinators: Vec<SocketAddr>,
        /// The newest round that ran here.
        round: u64,
        /// The proof of that agent's node id; empty before it was welcomed.
        proof: String,
        /// The state file beside which word is left for the next agent here, if this one hosts.
        state_file: Option<PathBuf>,
    },
}

/// One worker to be started. Its environment is the keeper's own with these changes.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Program {
    /// Which worker.
    pub local_rank: u32,
    /// The file to execute.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Processors that it is bound to; none: those of the agent.
    pub cpus: BTreeSet<u32>,
    /// Variables that it gets.
    pub env: Vec<(String, OsString)>,
    /// Variables that it does not get.
    pub unset: Vec<String>,
    /// How many files it may open, softly: what the agent itself was given.
    pub open_files: u64,
    /// How large its core dump may be, softly: likewise.
    pub core_dump: u64,
    /// Its streams that the agent copies.
    pub(crate) flows: Vec<FlowOrder>,
}

/// What happened.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Report {
    /// A worker runs.
    Spawned {
        /// Which one.
        local_rank: u32,
        /// Its process id, and that of its group and session.
        pid: u32,
    },
    /// A worker could not be started.
    NotSpawned {
        /// Which one.
        local_rank: u32,
        /// Why.
        reason: String,
    },
    /// A worker ended.
    Ended {
        /// Which one.
        local_rank: u32,
        /// How.
        end: ProcessEnd,
    },
    /// All workers have ended, and nothing is left in their process groups.
    Quiet,
    /// Nothing is left in the whole tree.
    Reaped {
        /// The last sweep that was ordered.
        number: u64,
    },
    /// The lease has passed; the tree is being killed.
    LeaseOver,
    /// Answers [`Order::Ping`].
    Pong,
}
