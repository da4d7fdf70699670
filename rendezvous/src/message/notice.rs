//! Describes notices: a node or the whole job is about to go, and all ranks should save before.
//!
//! 1. A node receives a notice, for example from its cloud. It sends it in its report ([`NodeNotice`]).
//! 2. The coordinator begins a phase for all nodes of the round ([`Notice`] in a [`Guidance`]).
//! 3. Each node reports the checkpoint that all of its ranks have written for it ([`Saved`]).
//! 4. The round ends once all nodes have the same step, or when the time is over.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Hung, Look};
use crate::ids::RoundId;

/// The most host names in a notice.
pub const NOTICE_HOSTS_MAX: usize = 8;

/// The longest text of a notice, in bytes: one line.
pub const NOTICE_TEXT_MAX: usize = 200;

/// What a notice is about. A later value is stronger.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum NoticeKind {
    /// A checkpoint is wanted. The round goes on.
    Save,
    /// Nodes wait, and join the job after the checkpoint.
    Members,
    /// Nodes leave the job after the checkpoint.
    Leave,
    /// The job ends after the checkpoint.
    End,
}

/// A notice that a node has received: the node is about to leave, or the job is about to end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeNotice {
    /// True if the job ends; false if only this node leaves.
    pub ends_job: bool,
    /// The time that is left for checkpoints.
    pub left: Duration,
    /// The source, for people, such as `SIGTERM`; at most [`NOTICE_TEXT_MAX`] bytes.
    pub text: String,
}

/// The checkpoint with which the workers of a node have answered a notice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Saved {
    /// The number of the notice.
    pub notice: u64,
    /// The newest step that all workers of the node have saved for this notice.
    pub step: u64,
    /// True if one worker has saved the parts of all ranks of the job.
    pub is_whole: bool,
}

/// The newest checkpoint that the workers of a node have reported, for a notice or not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Checkpoint {
    /// Its step. All workers of the node have saved it, unless `is_whole`.
    pub step: u64,
    /// True if one worker has saved the parts of all ranks of the job.
    pub is_whole: bool,
    /// The time for which training paused, if known.
    pub cost: Option<Duration>,
}

/// What was requested on a node so far. These are counters, so that a repeated report requests nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Requests {
    /// The number of checkpoints.
    pub saves: u32,
    /// The number of looks at a job that stands still.
    pub looks: u32,
}

/// What the coordinator has to say to the nodes of a running round, apart from their assignments.
///
/// Like an assignment, it is sent after each change, and again on each new stream.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Guidance {
    /// The round. Nodes of another round ignore it.
    pub round: RoundId,
    /// The newest notice of the round.
    pub notice: Option<Notice>,
    /// The newest look at the workers of the round.
    pub look: Option<Look>,
    /// The worker that counts as hung.
    pub hung: Option<Hung>,
    /// The reason why checkpoints in memory are off for the rest of the round; `None` if they are not. At most
    /// [`LINE_MAX`](super::LINE_MAX) bytes. Nodes free all parts, because an old one must not be used in place
    /// of a newer checkpoint on disk.
    pub memory_off: Option<String>,
}

/// A notice to all nodes of a round.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notice {
    /// Its number. It grows with each notice of a coordinator.
    pub number: u64,
    /// The next action after the checkpoint.
    pub kind: NoticeKind,
    /// The host names of nodes that leave; at most [`NOTICE_HOSTS_MAX`].
    pub hosts: Vec<String>,
    /// The time that is left; `None` if the round goes on after the checkpoint.
    pub left: Option<Duration>,
    /// The source, for people; at most [`NOTICE_TEXT_MAX`] bytes.
    pub text: String,
}
