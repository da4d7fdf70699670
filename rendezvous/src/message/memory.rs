//! Describes checkpoints that agents keep in memory, so that a restart need not read them from disk.
//!
//! 1. A node reports the parts that it holds ([`MemoryReport`]).
//! 2. When a round is formed, the coordinator chooses the checkpoint with which it begins. The admission of
//!    each node names the nodes that hold its part ([`MemoryPlan`]).
//! 3. While the round runs, each echo names the newest checkpoint that is whole: all of its parts are held, and
//!    copied to another node. Nodes free older ones.
//! 4. A node that cannot use the chosen checkpoint reports it ([`MemoryUnusable`]). This ends the round.

use std::{num::NonZeroU32, time::Duration};

use serde::{Deserialize, Serialize};

use crate::ids::{GlobalRank, GroupRank, RoundId};

/// The most parts in a [`MemoryReport`]. A node holds at most two of its own and three of others at once.
pub const PARTS_MAX: usize = 16;

/// The most nodes that are named as holders of one part: its owner and the node with the copy.
pub const SOURCES_MAX: usize = 2;

/// The highest number of bytes in these messages: more memory than a machine has. The sum over all nodes cannot
/// overflow.
pub const MEMORY_BYTES_MAX: u64 = 1 << 48;
/// The end of the reason for which memory goes off if a `save` has waited too long. The coordinator may know the steps.
pub const DIFFERENT_STEPS: &str = "all ranks must save the same steps";

/// The most bytes of all addresses in [`MemoryPlan::all_sources`]. Those of 10,000 nodes need about half.
pub const ALL_SOURCES_BYTES_MAX: usize = 768 << 10;

/// Identifies a checkpoint. A job that goes back to step 100 writes another step 120, so the step alone is not
/// enough. A later value is newer.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct CheckpointId {
    /// The round in which it was saved.
    pub round: RoundId,
    /// Its step, at most [`STEP_MAX`](super::STEP_MAX).
    pub step: u64,
}

/// The way in which the script has written a checkpoint. Each reader reads only what its own writer wrote.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// By `save` of the Python module.
    State,
    /// By torch's distributed checkpoint (DCP).
    Dcp,
}

/// The reason why a node holds a part.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PartPlace {
    /// It is the part of the node's own group rank.
    Own,
    /// It is a copy for another node, the *ward*.
    Copy,
    /// The node has held it since an earlier round, in which it had another rank or ward.
    Leftover,
}

/// The part of a checkpoint that the workers of one node have saved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Part {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The group rank of the node whose workers have saved it.
    pub group_rank: GroupRank,
    /// The number of nodes of that round; more than `group_rank`.
    pub nodes: u32,
    /// `RANK` of the first worker of the part.
    pub first_global_rank: GlobalRank,
    /// The number of workers of the part.
    pub local_ranks: NonZeroU32,
    /// The way in which it was written.
    pub kind: MemoryKind,
    /// True if the parts of all nodes are equal, so that any of them is enough.
    pub is_replicated: bool,
    /// The reason why the node holds it.
    pub place: PartPlace,
    /// Its size, at most [`MEMORY_BYTES_MAX`].
    pub bytes: u64,
    /// True if no second node will hold it. Examples: the job has one node or no secret, copies are off, or the
    /// other node did not answer for a minute.
    pub is_alone: bool,
}

/// The checkpoints in the memory of a node. It is sent after each change, and with each registration.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MemoryReport {
    /// The newest round that has admitted the node. What was reported before an admission does not count.
    pub round: RoundId,
    /// The parts that the node holds completely; at most [`PARTS_MAX`].
    pub parts: Vec<Part>,
    /// The memory that its parts need with all copies, in bytes; at most [`MEMORY_BYTES_MAX`].
    pub needed: u64,
    /// The most memory that parts may use, in bytes; at most [`MEMORY_BYTES_MAX`].
    pub limit: u64,
    /// `HOST:PORT` at which other agents fetch parts; `None` if the agent offers none.
    pub address: Option<String>,
    /// The reason why parts are not saved or not copied, for people; at most [`LINE_MAX`](super::LINE_MAX)
    /// bytes.
    pub obstacle: Option<String>,
    /// The lowest of the node's ranks whose `save` waits for a buffer.
    pub waits_for_buffer: Option<GlobalRank>,
    /// The usual time for which a `save` stops a worker.
    pub cost: Option<Duration>,
    /// The time in which the node has fetched its part for the round; `None` if it had it, or has not finished.
    pub fetch_time: Option<Duration>,
    /// The number of processes that the kernel has killed on the node for lack of memory, if it is known. It
    /// also counts an agent that was killed before this one.
    pub oom_kills: Option<u64>,
}

/// The checkpoint with which a node begins a round. It is constant for the round.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemoryPlan {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The way in which it was written.
    pub kind: MemoryKind,
    /// The addresses of nodes that hold this node's part, the best one first; at most [`SOURCES_MAX`]. Empty if
    /// the node holds it.
    pub sources: Vec<String>,
    /// True if the checkpoint was saved with other ranks on the nodes. Then workers read what they need from the parts
    /// of all nodes.
    pub is_resharded: bool,
    /// The holders of all parts by group rank, if it is resharded. Only group rank 0 receives them, and its first worker
    /// passes them on. At most [`NODES_MAX`](crate::limits::NODES_MAX), with addresses of at most
    /// [`ALL_SOURCES_BYTES_MAX`].
    pub all_sources: Vec<PartSources>,
}

/// The nodes that hold one part.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PartSources {
    /// The group rank of the node whose workers have saved it.
    pub group_rank: GroupRank,
    /// `RANK` of the first worker of the part.
    pub first_global_rank: GlobalRank,
    /// The number of workers of the part.
    pub local_ranks: NonZeroU32,
    /// The addresses of its holders, the best one first; at least one, at most [`SOURCES_MAX`].
    pub sources: Vec<String>,
}

/// A node cannot use the checkpoint of its round.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MemoryUnusable {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The reason.
    pub why: UnusableReason,
    /// Details for people, at most [`LINE_MAX`](super::LINE_MAX) bytes; may be empty.
    pub text: String,
}

/// The reason why a node cannot use a checkpoint.
#[derive(Clone, Debug, Eq, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum UnusableReason {
    /// The checksum of the part is wrong at each of its holders.
    Sum,
    /// The script has refused it, for example because its model has changed.
    Script,
    /// Holders of the part did not answer, or the node has freed its own part meanwhile.
    SourceGone {
        /// The addresses of those that did not answer, at most [`SOURCES_MAX`].
        sources: Vec<String>,
    },
}
