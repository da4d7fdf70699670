//! The messages between two agents that send blocks to each other.
//!
//! Numbers are big-endian. Both ends begin with a [`Greeting`]. Then the client sends requests, one after the other:
//!
//! 1. *Put*: the header of a block. The server answers with one byte: [`Verdict::Take`], or the reason why it declines.
//! 2. After `Take`, the bytes of the block follow, without a frame.
//! 3. The receiver answers with one byte: [`Receipt`].
//!
//! *Get* names a block. The server answers with a *put* of that block, and then the roles are exchanged; or with a *decline*.
//!
//! *Range* names some bytes of a block. The server answers with one byte: [`Verdict::Take`], and then the bytes and their
//! checksum; or the reason why it declines.

use std::num::NonZeroU32;

use ragent_base::limits::MAX_LOCAL_WORLD_SIZE;
use ragent_core::memory::{BlockHeader, BlockRange, Decline, PartId, Sum};
use ragent_rendezvous::{
    ids::{GlobalRank, GroupRank, JobUid, LocalRank, Round, RoundId, Term},
    limits::NODES_MAX,
    message::{CheckpointId, MEMORY_BYTES_MAX, MemoryKind, STEP_MAX},
};
use sha2::{Digest, Sha256};

/// The first bytes of a connection.
const MAGIC: [u8; 8] = *b"ragent\0m";
/// The version of this protocol.
const VERSION: u32 = 1;

/// The length of a [`Greeting`].
pub(super) const GREETING_LEN: usize = 64;
/// The length of a [`Frame`].
pub(super) const FRAME_LEN: usize = 80;

/// The reason why a message is not understood.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(super) enum FrameError {
    /// It is another program, or another protocol.
    #[error("it does not speak the protocol of checkpoints")]
    OtherProtocol,
    /// It is another version of ragent.
    #[error(
        "it speaks version {0} of the protocol of checkpoints, not {VERSION}; use one version of ragent"
    )]
    OtherVersion(u32),
    /// The process belongs to another job.
    #[error("it belongs to another job")]
    OtherJob,
    /// A field of a frame has a value that it cannot have.
    #[error("it sends a frame with a wrong {0}")]
    Field(&'static str),
}

/// The first message of each end: the version, and a hash of the job's uid.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Greeting([u8; 32]);

impl Greeting {
    pub(super) fn of(job: &JobUid) -> Self {
        Self(Sha256::digest(job.as_str().as_bytes()).into())
    }

    pub(super) fn encode(self) -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_be_bytes());
        bytes[32..].copy_from_slice(&self.0);
        bytes
    }

    /// Checks the greeting of the other end.
    pub(super) fn check(self, bytes: &[u8; GREETING_LEN]) -> Result<(), FrameError> {
        let mut fields = Fields(bytes);
        if fields.take::<8>() != MAGIC {
            return Err(FrameError::OtherProtocol);
        }
        match fields.u32() {
            VERSION => {}
            version => return Err(FrameError::OtherVersion(version)),
        }
        // These bytes are reserved.
        fields.take::<20>();
        if fields.take() == self.0 { Ok(()) } else { Err(FrameError::OtherJob) }
    }
}

/// A message that is not only one byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Frame {
    /// A block is offered.
    Put(BlockHeader),
    /// A block is wanted.
    Get(PartId, LocalRank),
    /// Some bytes of a block are wanted.
    Range(PartId, BlockRange),
    /// The answer to `Get` if the block is not sent.
    Decline(Decline),
}

const PUT: u8 = 1;
const GET: u8 = 2;
const DECLINE: u8 = 3;
const RANGE: u8 = 4;

impl Frame {
    pub(super) fn encode(self) -> [u8; FRAME_LEN] {
        let mut bytes = Vec::with_capacity(FRAME_LEN);
        match self {
            Self::Put(header) => {
                let kind = match header.kind {
                    MemoryKind::State => 1,
                    MemoryKind::Dcp => 2,
                };
                bytes.extend([PUT, kind, header.is_replicated.into(), 0]);
                put_block(&mut bytes, header.part, header.local_rank);
                bytes.extend(header.nodes.to_be_bytes());
                bytes.extend(header.first_global_rank.0.to_be_bytes());
                bytes.extend(header.local_ranks.get().to_be_bytes());
                bytes.extend(header.bytes.to_be_bytes());
                bytes.extend(header.sum.0.to_be_bytes());
            }
            Self::Get(part, local_rank) => {
                bytes.extend([GET, 0, 0, 0]);
                put_block(&mut bytes, part, local_rank);
            }
            Self::Range(part, range) => {
                bytes.extend([RANGE, 0, 0, 0]);
                put_block(&mut bytes, part, range.local_rank);
                bytes.extend(range.offset.to_be_bytes());
                bytes.extend(range.bytes.to_be_bytes());
            }
            Self::Decline(why) => bytes.extend([DECLINE, Verdict::Decline(why).encode()]),
        }
        let mut frame = [0; FRAME_LEN];
        frame.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        frame
    }

    pub(super) fn decode(bytes: &[u8; FRAME_LEN]) -> Result<Self, FrameError> {
        let mut fields = Fields(bytes);
        let [tag, kind, is_replicated, _] = fields.take();
        match tag {
            PUT => decode_put(fields, kind, is_replicated).map(Self::Put),
            GET => {
                let (part, local_rank) = fields.block()?;
                Ok(Self::Get(part, local_rank))
            }
            RANGE => {
                let (part, local_rank) = fields.block()?;
                let range = BlockRange { local_rank, offset: fields.u64(), bytes: fields.u64() };
                if range.is_valid() {
                    Ok(Self::Range(part, range))
                } else {
                    Err(FrameError::Field("range"))
                }
            }
            DECLINE => match Verdict::decode(kind)? {
                Verdict::Decline(why) => Ok(Self::Decline(why)),
                Verdict::Take => Err(FrameError::Field("reason")),
            },
            _ => Err(FrameError::Field("type")),
        }
    }
}

fn put_block(bytes: &mut Vec<u8>, part: PartId, local_rank: LocalRank) {
    bytes.extend(part.checkpoint.round.term.0.to_be_bytes());
    bytes.extend(part.checkpoint.round.round.0.to_be_bytes());
    bytes.extend(part.checkpoint.step.to_be_bytes());
    bytes.extend(part.group_rank.0.to_be_bytes());
    bytes.extend(local_rank.0.to_be_bytes());
}

fn decode_put(
    mut fields: Fields<'_>,
    kind: u8,
    is_replicated: u8,
) -> Result<BlockHeader, FrameError> {
    let (part, local_rank) = fields.block()?;
    let (nodes, first, ranks) = (fields.u32(), fields.u32(), fields.u32());
    let (bytes, sum) = (fields.u64(), u128::from_be_bytes(fields.take()));
    let kind = match kind {
        1 => MemoryKind::State,
        2 => MemoryKind::Dcp,
        _ => return Err(FrameError::Field("kind")),
    };
    let is_replicated = match is_replicated {
        0 => false,
        1 => true,
        _ => return Err(FrameError::Field("flag")),
    };
    if part.group_rank.0 >= nodes || nodes as usize > NODES_MAX {
        return Err(FrameError::Field("number of nodes"));
    }
    let local_ranks = NonZeroU32::new(ranks)
        .filter(|ranks| {
            ranks.get() <= MAX_LOCAL_WORLD_SIZE && first.checked_add(ranks.get()).is_some()
        })
        .filter(|ranks| local_rank.0 < ranks.get() && (!is_replicated || local_rank.0 == 0))
        .ok_or(FrameError::Field("number of workers"))?;
    if !(1..=MEMORY_BYTES_MAX).contains(&bytes) {
        return Err(FrameError::Field("size"));
    }
    Ok(BlockHeader {
        part,
        local_rank,
        nodes,
        first_global_rank: GlobalRank(first),
        local_ranks,
        kind,
        is_replicated,
        bytes,
        sum: Sum(sum),
    })
}

/// The answer of the receiver of a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// Send it.
    Take,
    /// Do not send it.
    Decline(Decline),
}

impl Verdict {
    pub(super) fn encode(self) -> u8 {
        match self {
            Self::Take => 0,
            Self::Decline(Decline::HaveIt) => 1,
            Self::Decline(Decline::NotNeeded) => 2,
            Self::Decline(Decline::NoRoom) => 3,
            Self::Decline(Decline::NotHere) => 4,
            Self::Decline(Decline::Changed) => 5,
        }
    }

    pub(super) fn decode(byte: u8) -> Result<Self, FrameError> {
        Ok(match byte {
            0 => Self::Take,
            1 => Self::Decline(Decline::HaveIt),
            2 => Self::Decline(Decline::NotNeeded),
            3 => Self::Decline(Decline::NoRoom),
            4 => Self::Decline(Decline::NotHere),
            5 => Self::Decline(Decline::Changed),
            _ => return Err(FrameError::Field("answer")),
        })
    }
}

/// The answer of the receiver after the last byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Receipt {
    /// The checksum is right.
    Done,
    /// The checksum is wrong.
    WrongSum,
}

impl Receipt {
    pub(super) fn encode(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::WrongSum => 1,
        }
    }

    pub(super) fn decode(byte: u8) -> Result<Self, FrameError> {
        match byte {
            0 => Ok(Self::Done),
            1 => Ok(Self::WrongSum),
            _ => Err(FrameError::Field("receipt")),
        }
    }
}

/// The fields of a message, in their order. After the last byte, fields are zero.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().unwrap_or((&[0; N], &[]));
        self.0 = rest;
        *field
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    fn block(&mut self) -> Result<(PartId, LocalRank), FrameError> {
        let round = RoundId { term: Term(self.u64()), round: Round(self.u64()) };
        let (step, group_rank, local_rank) = (self.u64(), self.u32(), self.u32());
        if step > STEP_MAX {
            return Err(FrameError::Field("step"));
        }
        if group_rank as usize >= NODES_MAX {
            return Err(FrameError::Field("node"));
        }
        if local_rank >= MAX_LOCAL_WORLD_SIZE {
            return Err(FrameError::Field("worker"));
        }
        let checkpoint = CheckpointId { round, step };
        Ok((PartId { checkpoint, group_rank: GroupRank(group_rank) }, LocalRank(local_rank)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> BlockHeader {
        let round = RoundId { term: Term(3), round: Round(7) };
        let part =
            PartId { checkpoint: CheckpointId { round, step: 48_210 }, group_rank: GroupRank(1) };
        BlockHeader {
            part,
            local_rank: LocalRank(5),
            nodes: 4,
            first_global_rank: GlobalRank(8),
            local_ranks: NonZeroU32::new(8).unwrap(),
            kind: MemoryKind::Dcp,
            is_replicated: false,
            bytes: 7_600_000_000,
            sum: Sum(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
        }
    }

    /// Each message is decoded as it was encoded.
    #[test]
    fn frames_are_decoded_as_encoded() {
        let replicated = BlockHeader {
            local_rank: LocalRank(0),
            is_replicated: true,
            kind: MemoryKind::State,
            ..header()
        };
        let part = header().part;
        let range = BlockRange { local_rank: LocalRank(5), offset: 1 << 40, bytes: 64 << 20 };
        for frame in [
            Frame::Put(header()),
            Frame::Put(replicated),
            Frame::Get(part, LocalRank(5)),
            Frame::Range(part, range),
            Frame::Decline(Decline::NotHere),
        ] {
            assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
        }
        for byte in 0..=5 {
            assert_eq!(Verdict::decode(byte).unwrap().encode(), byte);
        }
        for byte in 0..=1 {
            assert_eq!(Receipt::decode(byte).unwrap().encode(), byte);
        }
        assert!(Verdict::decode(6).is_err() && Receipt::decode(2).is_err());
    }

    /// A header with a value out of its range is refused: 10^18 bytes, a step that Python cannot count, a rank that its
    /// node does not have.
    #[test]
    fn fields_out_of_range_are_refused() {
        let refused = |change: fn(&mut BlockHeader)| {
            let mut header = header();
            change(&mut header);
            Frame::decode(&Frame::Put(header).encode()).unwrap_err()
        };
        let of = FrameError::Field;
        assert_eq!(refused(|header| header.bytes = 10_u64.pow(18)), of("size"));
        assert_eq!(refused(|header| header.bytes = 0), of("size"));
        assert_eq!(refused(|header| header.part.checkpoint.step = STEP_MAX + 1), of("step"));
        assert_eq!(refused(|header| header.part.group_rank.0 = 4), of("number of nodes"));
        assert_eq!(refused(|header| header.nodes = u32::MAX), of("number of nodes"));
        assert_eq!(refused(|header| header.part.group_rank.0 = u32::MAX), of("node"));
        assert_eq!(refused(|header| header.local_rank.0 = 8), of("number of workers"));
        assert_eq!(refused(|header| header.is_replicated = true), of("number of workers"));
        assert_eq!(
            refused(|header| header.first_global_rank.0 = u32::MAX),
            of("number of workers")
        );
    }

    /// A greeting of another program, version or job is refused.
    #[test]
    fn greetings_are_compared() {
        let own = Greeting::of(&JobUid::new("a"));
        let mut bytes = own.encode();
        assert_eq!(own.check(&bytes), Ok(()));
        assert_eq!(Greeting::of(&JobUid::new("b")).check(&bytes), Err(FrameError::OtherJob));
        bytes[11] = 9;
        assert_eq!(own.check(&bytes), Err(FrameError::OtherVersion(9)));
        bytes[0] = b'G';
        assert_eq!(own.check(&bytes), Err(FrameError::OtherProtocol));
    }

    proptest! {
        /// All bytes are either decoded or refused, and what is decoded is encoded to an equal message.
        #[test]
        fn decoding_never_panics(tag in 0_u8..5, kind in 0_u8..4, rest in proptest::collection::vec(any::<u8>(), FRAME_LEN - 2)) {
            let mut bytes = [0; FRAME_LEN];
            bytes[0] = tag;
            bytes[1] = kind;
            bytes[2..].copy_from_slice(&rest);
            if let Ok(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
            }
        }
    }
}
