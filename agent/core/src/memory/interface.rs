//! Defines the inputs and effects of [`NodeMemory`](super::NodeMemory).

use std::{num::NonZeroU32, time::Duration};

use ragent_rendezvous::{
    ids::{GlobalRank, GroupRank, LocalRank, RoundId},
    message::{CheckpointId, MEMORY_BYTES_MAX, MemoryKind, PartSources, SOURCES_MAX, STEP_MAX},
};

/// The most ranges in one [`Ask::Ranges`]. They fit into one message of a worker.
pub const RANGES_MAX: usize = 64;
/// The most bytes of all ranges in one [`Ask::Ranges`]. They do not count as memory for parts, so they must be few.
pub const RANGES_BYTES_MAX: u64 = 64 << 20;

/// The settings of a [`NodeMemory`](super::NodeMemory). They are constant for the life of the agent.
#[derive(Clone, Debug)]
pub struct MemorySettings {
    /// The number of workers of this node.
    pub workers: NonZeroU32,
    /// The host name of this node, for people.
    pub host_name: String,
    /// The most memory for parts, in bytes; zero if memory is off on this node.
    pub limit: u64,
    /// The memory that stays free for workers, in bytes.
    pub reserve: u64,
    /// True if parts are copied to another node.
    pub has_copies: bool,
    /// True if content may cross the network: the job has a secret or certificates.
    pub is_secured: bool,
    /// The address at which other agents reach this one; `None` if they do not.
    pub address: Option<String>,
    /// The memory at the start.
    pub left: MemoryLeft,
}

impl MemorySettings {
    /// Returns the settings of a node that keeps nothing.
    pub fn off() -> Self {
        Self {
            workers: NonZeroU32::MIN,
            host_name: String::new(),
            limit: 0,
            reserve: 0,
            has_copies: false,
            is_secured: false,
            address: None,
            left: MemoryLeft::default(),
        }
    }
}

/// A memory file of the agent.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Buffer {
    /// Its number, which is used only once.
    pub id: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// A transfer of one block between two agents, in either direction.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TransferId {
    /// True if another agent has begun it.
    pub is_foreign: bool,
    /// Its number among those that the same side has begun on this node. It is used only once.
    pub number: u64,
}

/// The checksum of a block: the 128 bits of XXH3.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sum(pub u128);

/// The part that a block belongs to.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct PartId {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The group rank of the node whose workers have saved it.
    pub group_rank: GroupRank,
}

/// A description of a block: what one worker has saved for a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockHeader {
    /// Its part.
    pub part: PartId,
    /// The rank of the worker on its node.
    pub local_rank: LocalRank,
    /// The number of nodes of the round in which it was saved.
    pub nodes: u32,
    /// `RANK` of the first worker of that node.
    pub first_global_rank: GlobalRank,
    /// The number of workers of that node.
    pub local_ranks: NonZeroU32,
    /// The way in which it was written.
    pub kind: MemoryKind,
    /// True if the parts of all nodes are equal. Then a part has one block, of local rank 0.
    pub is_replicated: bool,
    /// The size in bytes.
    pub bytes: u64,
    /// The checksum.
    pub sum: Sum,
}

/// Some bytes of a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockRange {
    /// The worker that has saved the block.
    pub local_rank: LocalRank,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl BlockRange {
    /// Returns true if a block can have it, and a request may name it.
    pub fn is_valid(&self) -> bool {
        (1..=RANGES_BYTES_MAX).contains(&self.bytes) && self.offset <= MEMORY_BYTES_MAX
    }
}

/// A request for bytes of a part that another number of ranks has saved.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RangesRequest {
    /// The step of the checkpoint with which the round begins.
    pub step: u64,
    /// The part.
    pub group_rank: GroupRank,
    /// The addresses of its holders, the best one first; one or two.
    pub sources: Vec<String>,
    /// The ranges, at most [`RANGES_MAX`] with [`RANGES_BYTES_MAX`].
    pub ranges: Vec<BlockRange>,
}

impl RangesRequest {
    /// Returns true if all of it is in its bounds.
    pub fn is_valid(&self) -> bool {
        let total = self.ranges.iter().fold(0, |all: u64, range| all.saturating_add(range.bytes));
        self.step <= STEP_MAX
            && (1..=SOURCES_MAX).contains(&self.sources.len())
            && (1..=RANGES_MAX).contains(&self.ranges.len())
            && total <= RANGES_BYTES_MAX
            && self.ranges.iter().all(BlockRange::is_valid)
    }
}

/// A request of a worker. A worker has one at a time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ask {
    /// A buffer for a checkpoint.
    Buffer {
        /// The step.
        step: u64,
        /// The size in bytes.
        bytes: u64,
        /// The way in which it will be written.
        kind: MemoryKind,
        /// True if all nodes save the same.
        is_replicated: bool,
    },
    /// The buffer is filled.
    Saved {
        /// The step.
        step: u64,
        /// The size in bytes.
        bytes: u64,
    },
    /// The checkpoint with which the round begins.
    Load {
        /// The way in which it must have been written.
        kind: MemoryKind,
    },
    /// Bytes of a part, after [`Answer::Resharded`].
    Ranges(RangesRequest),
    /// The worker reads no more of what it was given.
    Loaded,
    /// The newest step that is whole.
    Newest,
    /// The script cannot use the checkpoint of the round.
    Unusable {
        /// Its step.
        step: u64,
        /// The reason, for people.
        reason: String,
    },
}

/// An answer to an [`Ask`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Answer {
    /// The worker may fill this buffer.
    Buffer {
        /// The buffer.
        buffer: Buffer,
        /// The time for which the worker has waited.
        waited: Duration,
    },
    /// Nothing is saved, for this reason.
    Refused(String),
    /// The checkpoint is taken.
    Taken,
    /// There is nothing to load.
    Nothing,
    /// The worker may read this.
    Block {
        /// The step.
        step: u64,
        /// The buffer.
        buffer: Buffer,
        /// The size of the content in bytes.
        bytes: u64,
        /// True if all nodes have saved the same.
        is_replicated: bool,
    },
    /// Another number of ranks has saved the checkpoint. The worker asks for the ranges that it needs.
    Resharded {
        /// The step.
        step: u64,
        /// All parts in order of their group ranks, for global rank 0; empty for other ranks, to which it passes them.
        parts: Vec<PartSources>,
    },
    /// The worker may read these ranges, one after the other.
    Ranges {
        /// The transfer that has fetched them.
        transfer: TransferId,
        /// Their size in bytes.
        bytes: u64,
    },
    /// The newest step that is whole.
    Newest(Option<u64>),
    /// The reason is noted.
    Noted,
}

/// The memory that is free on this node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MemoryLeft {
    /// The memory that this process may still use, within the limits of its cgroups, in bytes.
    pub available: u64,
    /// The number of processes that the kernel has killed for lack of memory, if it is known.
    pub oom_kills: Option<u64>,
}

/// An event that concerns checkpoints in memory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Input {
    /// A worker of a round asks.
    Asked {
        /// The round of its socket.
        round: RoundId,
        /// The worker.
        worker: LocalRank,
        /// The request.
        ask: Ask,
        /// The memory at this moment.
        left: MemoryLeft,
    },
    /// A worker has closed its socket. No answer reaches it.
    WorkerGone {
        /// The round of its socket.
        round: RoundId,
        /// The worker.
        worker: LocalRank,
    },
    /// The answer to [`Effect::Sum`]; an error if the buffer cannot be read.
    Summed {
        /// The buffer.
        buffer: Buffer,
        /// The checksum, or the system's error.
        sum: Result<Sum, String>,
    },
    /// The sockets of a round could not be opened.
    NotOpened {
        /// The round.
        round: RoundId,
        /// The system's error.
        why: String,
    },
    /// The memory of a buffer is in use.
    Made(Buffer),
    /// A memory file could not be made. It is not used.
    NotMade {
        /// The buffer.
        buffer: Buffer,
        /// The system's error.
        why: String,
    },
    /// Another agent offers a block, or has answered [`Effect::Fetch`] with one. [`Effect::Receive`] or
    /// [`Effect::Decline`] answers.
    Incoming {
        /// The transfer.
        transfer: TransferId,
        /// The block.
        header: BlockHeader,
        /// The memory at this moment.
        left: MemoryLeft,
    },
    /// Another agent wants a block. [`Effect::Serve`] or [`Effect::Decline`] answers.
    Wanted {
        /// The transfer.
        transfer: TransferId,
        /// The part. If it is replicated, the part of any node is meant.
        part: PartId,
        /// The worker that has saved the block.
        local_rank: LocalRank,
    },
    /// Another agent wants some bytes of a block. [`Effect::ServeRange`] or [`Effect::Decline`] answers.
    WantedRange {
        /// The transfer.
        transfer: TransferId,
        /// The part.
        part: PartId,
        /// The bytes.
        range: BlockRange,
    },
    /// A transfer has ended. Of each transfer, this is the last report.
    Ended {
        /// The transfer.
        transfer: TransferId,
        /// How it ended.
        end: TransferEnd,
    },
    /// The memory, each second while parts are held.
    Left(MemoryLeft),
}

/// The way in which a transfer has ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TransferEnd {
    /// The block has arrived, and its checksum is right.
    Done,
    /// The checksum is wrong.
    WrongSum,
    /// The receiver has declined.
    Declined(Decline),
    /// The other agent was not reached, or did not go on, for this reason.
    Failed(String),
}

/// The reason why a block is not received or not sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Decline {
    /// The receiver has it.
    HaveIt,
    /// The receiver needs it no more.
    NotNeeded,
    /// The receiver has no room for it, or does not know yet that it keeps it.
    NoRoom,
    /// The block is not here.
    NotHere,
    /// The content of the block has changed since it was saved.
    Changed,
}

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Open sockets for the workers of a round, in place of those of the last one. This comes before its workers
    /// start.
    OpenSockets {
        /// The round.
        round: RoundId,
        /// The number of workers.
        workers: NonZeroU32,
    },
    /// Close the sockets of the workers.
    CloseSockets,
    /// Answer a worker. A buffer that does not exist is made before.
    Answer {
        /// The worker.
        worker: LocalRank,
        /// The answer.
        answer: Answer,
    },
    /// Compute the checksum of the first bytes of a buffer. [`Input::Summed`] answers.
    Sum {
        /// The buffer.
        buffer: Buffer,
        /// The number of bytes.
        bytes: u64,
    },
    /// Send a block to the agent at this address.
    Copy {
        /// The transfer.
        transfer: TransferId,
        /// The address.
        to: String,
        /// The block.
        header: BlockHeader,
        /// The buffer with the block.
        buffer: Buffer,
    },
    /// Ask the agent at this address for a block. [`Input::Incoming`] follows.
    Fetch {
        /// The transfer.
        transfer: TransferId,
        /// The address.
        from: String,
        /// The part.
        part: PartId,
        /// The worker that has saved the block.
        local_rank: LocalRank,
    },
    /// Ask the agents at these addresses for bytes of a part, one agent after the other until one gives all of them.
    FetchRanges {
        /// The transfer.
        transfer: TransferId,
        /// The addresses.
        sources: Vec<String>,
        /// The part.
        part: PartId,
        /// The bytes.
        ranges: Vec<BlockRange>,
    },
    /// Receive a block that is offered into this buffer, which is made if it does not exist.
    Receive {
        /// The transfer.
        transfer: TransferId,
        /// The buffer.
        buffer: Buffer,
    },
    /// Send a block that another agent wants.
    Serve {
        /// The transfer.
        transfer: TransferId,
        /// The block.
        header: BlockHeader,
        /// The buffer with the block.
        buffer: Buffer,
    },
    /// Send some bytes of a block, which another agent wants.
    ServeRange {
        /// The transfer.
        transfer: TransferId,
        /// The buffer with the block.
        buffer: Buffer,
        /// The bytes.
        range: BlockRange,
    },
    /// Decline what another agent offers or wants.
    Decline {
        /// The transfer.
        transfer: TransferId,
        /// The reason.
        why: Decline,
    },
    /// End a transfer that this agent has begun.
    Abort(TransferId),
    /// Close a memory file. No transfer and no worker of the round uses it.
    Drop(Buffer),
    /// Report the memory each second, or no longer.
    WatchMemory(bool),
    /// Leave this memory to the standbys of this node, in bytes. If it is 0, all of them go. `None` if no parts are held,
    /// so that standbys read the memory themselves.
    LeaveToStandbys(Option<u64>),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker cannot ask for more than a request may name.
    #[test]
    fn requests_have_bounds() {
        let range = |offset, bytes| BlockRange { local_rank: LocalRank(0), offset, bytes };
        for (offset, bytes, is_valid) in [
            (0, 0, false),
            (0, 1, true),
            (0, RANGES_BYTES_MAX, true),
            (0, RANGES_BYTES_MAX + 1, false),
            (MEMORY_BYTES_MAX, 1, true),
            (MEMORY_BYTES_MAX + 1, 1, false),
        ] {
            assert_eq!(range(offset, bytes).is_valid(), is_valid, "{bytes} bytes at {offset}");
        }
        let is_valid = |step, sources: usize, ranges: Vec<BlockRange>| {
            let sources = vec!["a:1".to_owned(); sources];
            RangesRequest { step, group_rank: GroupRank(0), sources, ranges }.is_valid()
        };
        let half = range(0, RANGES_BYTES_MAX / 2);
        assert!(is_valid(STEP_MAX, SOURCES_MAX, vec![half; 2]));
        assert!(is_valid(0, 1, vec![range(0, 1); RANGES_MAX]));
        assert!(!is_valid(STEP_MAX + 1, 1, vec![half]));
        assert!(!is_valid(0, 0, vec![half]) && !is_valid(0, SOURCES_MAX + 1, vec![half]));
        assert!(!is_valid(0, 1, vec![]) && !is_valid(0, 1, vec![range(0, 1); RANGES_MAX + 1]));
        assert!(!is_valid(0, 1, vec![half, half, range(0, 1)]), "too many bytes");
        assert!(!is_valid(0, 1, vec![half, range(0, 0)]));
    }
}
