//! The events that the parts of [`MemoryService`](super::MemoryService) report to it.

use std::{fs::File, sync::Arc};

use nix::unistd::Pid;
use ragent_base::sys::memory;
use ragent_core::memory::{
    Ask, BlockHeader, BlockRange, Buffer, Decline, MemoryLeft, PartId, Sum, TransferEnd, TransferId,
};
use ragent_rendezvous::ids::{LocalRank, RoundId};
use tokio::sync::oneshot;

use super::buffers::MemoryFile;

/// An event. Most become an input of the machine.
#[derive(Debug)]
pub(super) enum Event {
    /// A worker asks. Its process is known unless it is in another namespace.
    Asked {
        round: RoundId,
        worker: LocalRank,
        process: Option<Pid>,
        ask: Ask,
        left: MemoryLeft,
        reply: ReplySender,
    },
    /// A worker has closed its socket.
    WorkerGone { round: RoundId, worker: LocalRank },
    /// A checksum was computed.
    Summed { buffer: Buffer, sum: Result<Sum, String> },
    /// The memory of a buffer is in use.
    Made(Buffer),
    /// A buffer could not be made, for which the worker of `reply` waits.
    NotMade { buffer: Buffer, why: String, reply: Option<ReplySender> },
    /// Another agent offers a block.
    Incoming { transfer: TransferId, header: BlockHeader, left: MemoryLeft, answer: AnswerSender },
    /// Another agent wants a block.
    Wanted { transfer: TransferId, part: PartId, local_rank: LocalRank, answer: AnswerSender },
    /// Another agent wants some bytes of a block.
    WantedRange { transfer: TransferId, part: PartId, range: BlockRange, answer: AnswerSender },
    /// The ranges of a transfer have arrived. It has ended.
    Fetched { transfer: TransferId, file: Arc<File> },
    /// A transfer has ended.
    Ended { transfer: TransferId, end: TransferEnd },
}

pub(super) type ReplySender = oneshot::Sender<Reply>;
pub(super) type AnswerSender = oneshot::Sender<TransferAnswer>;

/// A message for a worker.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) packet: Vec<u8>,
    pub(super) descriptor: Option<File>,
}

/// The decision about a transfer.
#[derive(Debug)]
pub(super) enum TransferAnswer {
    Receive(Buffer, Arc<MemoryFile>),
    Serve(BlockHeader, Arc<MemoryFile>),
    ServeRange(BlockRange, Arc<MemoryFile>),
    Decline(Decline),
}

/// Reads the memory that is free at this moment. If it is unknown, none is.
pub(super) fn memory_left() -> MemoryLeft {
    MemoryLeft { available: memory::available().unwrap_or(0), oom_kills: memory::oom_kills() }
}
