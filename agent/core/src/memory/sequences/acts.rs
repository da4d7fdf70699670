//! Makes up the inputs of a sequence.

use proptest::{prelude::*, sample::select};
use ragent_rendezvous::{
    ids::{GroupRank, LocalRank},
    message::MemoryKind,
};

use super::{Ask, BlockRange, RANGES_BYTES_MAX, RangesRequest};

/// The number of workers of the node. Others do not exist.
pub(super) const WORKERS: u32 = 2;

/// An input, in which numbers select one of what exists.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Admission {
        plan: Option<usize>,
        is_resharded: bool,
        sources: usize,
        place: (u32, u32),
        ward: u32,
        has_buddy: bool,
    },
    RoundOver,
    Wait(Option<usize>),
    Whole(usize),
    Off,
    Asked {
        worker: u32,
        ask: Ask,
        is_late: bool,
    },
    /// The worker has filled its buffer.
    Saved(u32),
    /// All workers save a step, and the checksums are computed.
    SaveAll,
    /// The ward sends all blocks of a part.
    ReceiveAll(usize),
    /// The sources send all blocks that are fetched.
    FetchAll,
    WorkerGone(u32),
    Summed {
        which: usize,
        sum: u8,
    },
    UnknownSum(u64),
    NotMade(usize),
    /// Another agent offers a block. With `is_ours`, it answers a fetch.
    Incoming {
        which: usize,
        is_ours: bool,
        part: usize,
        group_rank: u32,
        worker: u32,
        bytes: u64,
        is_odd: bool,
    },
    Wanted {
        part: usize,
        group_rank: u32,
        worker: u32,
    },
    WantedRange {
        part: usize,
        group_rank: u32,
        range: BlockRange,
    },
    Ended {
        which: usize,
        end: u8,
    },
    UnknownEnd(u64),
    Left(u64),
    Pass(u64),
}

/// A transfer ends well.
pub(super) const DONE: u8 = 9;

fn worker() -> impl Strategy<Value = u32> {
    prop_oneof![12 => 0..WORKERS, 1 => select(vec![WORKERS, u32::MAX])]
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![12 => select(vec![90, 100, 100, 100, 300]), 1 => select(vec![1, 1 << 48, u64::MAX])]
}

fn range() -> impl Strategy<Value = BlockRange> {
    let bytes = || select(vec![1_u64, 90, 100, RANGES_BYTES_MAX]);
    (worker(), bytes(), bytes()).prop_map(|(worker, offset, bytes)| BlockRange {
        local_rank: LocalRank(worker),
        offset: offset - 1,
        bytes,
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    let kind = prop_oneof![9 => Just(MemoryKind::State), 1 => Just(MemoryKind::Dcp)];
    let step = prop_oneof![12 => 0..2_u64, 1 => Just((1 << 53) - 1)];
    let is_replicated = prop::bool::weighted(0.1);
    prop_oneof![
        12 => (step.clone(), bytes(), kind.clone(), is_replicated).prop_map(
            |(step, bytes, kind, is_replicated)| Ask::Buffer { step, bytes, kind, is_replicated }
        ),
        1 => (step.clone(), bytes()).prop_map(|(step, bytes)| Ask::Saved { step, bytes }),
        4 => kind.prop_map(|kind| Ask::Load { kind }),
        2 => (step, 0..3_u32, range()).prop_map(|(step, group_rank, range)| {
            let (group_rank, sources) = (GroupRank(group_rank), vec!["s0:1".to_owned()]);
            Ask::Ranges(RangesRequest { step, group_rank, sources, ranges: vec![range] })
        }),
        1 => Just(Ask::Newest),
        1 => Just(Ask::Loaded),
        1 => (0..8_u64).prop_map(|step| Ask::Unusable { step, reason: "x".repeat(9_999) }),
    ]
}

/// Returns any input.
pub(super) fn act() -> impl Strategy<Value = Act> {
    let which = || 0..16_usize;
    let node = || prop_oneof![12 => 0..5_u32, 1 => Just(u32::MAX / 4)];
    let admission = (
        prop::option::weighted(0.7, which()),
        prop::bool::weighted(0.2),
        0..3_usize,
        prop_oneof![9 => (0..5_u32, Just(5_u32)), 1 => (0..1_u32, Just(1_u32))],
        0..5_u32,
        prop::bool::weighted(0.8),
    );
    let incoming =
        (which(), any::<bool>(), which(), node(), worker(), bytes(), prop::bool::weighted(0.1));
    prop_oneof![
        3 => admission.prop_map(|(plan, is_resharded, sources, place, ward, has_buddy)| {
            Act::Admission { plan, is_resharded, sources, place, ward, has_buddy }
        }),
        1 => Just(Act::RoundOver),
        1 => prop::option::of(which()).prop_map(Act::Wait),
        4 => which().prop_map(Act::Whole),
        1 => Just(Act::Off),
        14 => (worker(), ask(), prop::bool::weighted(0.05))
            .prop_map(|(worker, ask, is_late)| Act::Asked { worker, ask, is_late }),
        12 => worker().prop_map(Act::Saved),
        8 => Just(Act::SaveAll),
        6 => which().prop_map(Act::ReceiveAll),
        4 => Just(Act::FetchAll),
        1 => worker().prop_map(Act::WorkerGone),
        14 => (which(), prop_oneof![9 => Just(1_u8), 1 => 0..3_u8])
            .prop_map(|(which, sum)| Act::Summed { which, sum }),
        1 => (1..u64::MAX).prop_map(Act::UnknownSum),
        1 => which().prop_map(Act::NotMade),
        14 => incoming.prop_map(|(which, is_ours, part, group_rank, worker, bytes, is_odd)| {
            Act::Incoming { which, is_ours, part, group_rank, worker, bytes, is_odd }
        }),
        3 => (which(), node(), worker())
            .prop_map(|(part, group_rank, worker)| Act::Wanted { part, group_rank, worker }),
        3 => (which(), node(), range())
            .prop_map(|(part, group_rank, range)| Act::WantedRange { part, group_rank, range }),
        14 => (which(), prop_oneof![3 => Just(DONE), 1 => 0..5_u8])
            .prop_map(|(which, end)| Act::Ended { which, end }),
        1 => any::<u64>().prop_map(Act::UnknownEnd),
        1 => select(vec![0, 9, 200, u64::MAX, u64::MAX]).prop_map(Act::Left),
        5 => select(vec![1, 5, 29, 60, 121]).prop_map(Act::Pass),
    ]
}
