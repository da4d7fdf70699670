//! Decides which checkpoints this node keeps in memory, and for how long.

mod interface;

pub use self::interface::{
    Answer, Ask, BlockHeader, Buffer, Decline, Effect, Input, MemoryLeft, MemorySettings, PartId,
    Sum, TransferEnd, TransferId,
};
