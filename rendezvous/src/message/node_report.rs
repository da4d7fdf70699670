//! The state that a node reports.

use super::WorkerFailure;
use crate::ids::RoundId;

/// The current state of a node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeReport {
    /// The round that this refers to: the newest one in which the node was a member; zero if none.
    pub round: RoundId,
    /// The activity of the node.
    pub state: NodeState,
    /// The first failure among its workers in that round.
    ///
    /// An agent sends it in these steps:
    ///
    /// 1. `Stopping` with the first worker that ended badly, at once, as known at that time. This
    ///    ends the round on all nodes; `error_file_age` may be none.
    /// 2. When all its workers are reaped, and before it sends anything but keep-alives, the agent
    ///    reads the error files of *all* its workers of that round. A worker whose error file was
    ///    written before the node began to stop (on request, or because of 1) has failed too, even
    ///    if it was killed before it had exited: its failure has `end` as it was reaped, and
    ///    `error_file_age`. The time of a file is compared with the wall clock of the same machine,
    ///    as an age; a time in the future has age zero. Files written later are consequences of the
    ///    stop and do not count.
    /// 3. `Preparing` with the failure of the largest [`WorkerFailure::event_age`], be it the one
    ///    of 1 or another one; also on a node that had none in 1. Ages are relative to the time of
    ///    sending, here and in every repetition (`Ready`, registrations) until the next round.
    ///
    /// The coordinator keeps the oldest event of each node. It judges the round once all members
    /// have stopped or are lost, so a failure that a node sends after its first `Preparing` or
    /// `Ready` of the round may come too late. This delays nothing: the next round waits for the
    /// same.
    pub failure: Option<Box<WorkerFailure>>,
    /// True if the node's workers of that round were killed because its lease had ended: others may
    /// have failed because of it.
    pub lease_expired: bool,
}

/// The activity of a node with regard to the round of its [`NodeReport`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodeState {
    /// No worker runs and none may be started: the node prepares for a round.
    Preparing,
    /// The last process of that round is reaped, and the node is ready for any later round.
    Ready {
        /// The port of the new worker store that the node would serve as group rank 0.
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
