//! Describes the state that a node reports.

use super::{MemoryUnusable, NodeNotice, Requests, Saved, Unhealthy, WorkerFailure};
use crate::ids::RoundId;

/// The current state of a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeReport {
    /// The round that this is about: the newest round in which the node was a member; zero if there was none.
    pub round: RoundId,
    /// The activity of the node.
    pub state: NodeState,
    /// The first failure among its workers in that round.
    ///
    /// An agent sends it in these steps:
    ///
    /// 1. At once, `Stopping` with the first worker that ended badly. This ends the round on all nodes.
    ///    `error_file_age` may be none.
    /// 2. When all its workers are reaped, the agent reads the error files of *all* its workers of that
    ///    round. Meanwhile it sends only keep-alives. A worker has failed too if its error file was written
    ///    before the node began to stop (on request, or because of step 1), even if the worker was killed
    ///    before it exited. Such a failure has the `end` with which the worker was reaped, and
    ///    `error_file_age`. Files written later are consequences of the stop and do not count. The time of a
    ///    file is compared with the wall clock of the same machine, as an age. A time in the future has age
    ///    zero.
    /// 3. `Preparing` with the failure of the largest [`WorkerFailure::event_age`]. It may be the failure of
    ///    step 1 or another one, and a node without step 1 may have one as well. Ages are relative to the
    ///    time of sending, here and in every repetition (`Ready`, registrations) until the next round.
    ///
    /// The coordinator keeps the oldest event of each node. It judges the round once all members have stopped
    /// or are lost. So a failure that a node sends after its first `Preparing` or `Ready` of the round may
    /// come too late. This delays nothing, because the next round waits for the same.
    pub failure: Option<Box<WorkerFailure>>,
    /// True if the node's workers of that round were killed because its lease had ended. Other workers may
    /// have failed because of it.
    pub lease_expired: bool,
    /// The notice that the node has received, until the node has left.
    pub notice: Option<NodeNotice>,
    /// The checkpoint with which the node's workers have answered a notice of that round.
    pub saved: Option<Saved>,
    /// What was requested on the node so far.
    pub requests: Requests,
    /// The reason why the node should get no place, until a check of the node finds none.
    pub unhealthy: Option<Box<Unhealthy>>,
    /// The checkpoint in memory with which that round began, if the node cannot use it.
    pub memory_unusable: Option<Box<MemoryUnusable>>,
}

impl NodeReport {
    /// Returns the report of a node in this state, without anything else.
    pub fn new(round: RoundId, state: NodeState) -> Self {
        Self {
            round,
            state,
            failure: None,
            lease_expired: false,
            notice: None,
            saved: None,
            requests: Requests::default(),
            unhealthy: None,
            memory_unusable: None,
        }
    }
}

/// The activity of a node in the round of its [`NodeReport`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodeState {
    /// No worker runs and none may be started. The node prepares for a round.
    Preparing,
    /// The last process of that round is reaped, and the node is ready for any later round.
    Ready {
        /// The port of the new worker store, which the node would serve as group rank 0.
        store_port: u16,
    },
    /// The node's workers run.
    Running,
    /// The node's workers are being stopped, on request or because one failed.
    Stopping,
    /// All workers of the node exited with 0.
    Succeeded,
    /// The node is leaving (after a signal) and takes part in no further round.
    Leaving {
        /// True if its last process is reaped.
        reaped: bool,
    },
}
