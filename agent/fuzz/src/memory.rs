//! The messages about checkpoints in memory: frames of other agents, and requests of workers.

use std::{num::NonZeroU32, time::Duration};

use ragent_base::testing::{assert_printable, job};
use ragent_core::memory::{Answer, Ask, BlockRange, Buffer, RangesRequest, TransferId};
use ragent_rendezvous::{
    ids::{GlobalRank, JobUid},
    limits::NODES_MAX,
    message::{LINE_MAX, MEMORY_BYTES_MAX, MemoryKind, PartSources, STEP_MAX},
};
use serde_json::{Value, json};

use super::frames::{FRAME_LEN, Frame, FrameError, GREETING_LEN, Greeting, Receipt, Verdict};
use crate::memory::{
    limits,
    worker_messages::{packet, parse},
};

/// Decodes a greeting if the first byte is even; else a frame after the other, and each byte of the input as an answer. What is
/// decoded is decoded again from its own encoding.
pub fn memory_frames(input: &[u8]) {
    let Some((&kind, rest)) = input.split_first() else { return };
    if kind % 2 == 0 {
        return greeting(rest);
    }
    for chunk in rest.chunks(FRAME_LEN) {
        match Frame::decode(&filled(chunk)) {
            Ok(frame) => {
                check_bounds(&frame);
                assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
            }
            Err(error) => check_error(error),
        }
    }
    for &byte in rest {
        compare(byte, Verdict::decode(byte), Verdict::encode);
        compare(byte, Receipt::decode(byte), Receipt::encode);
    }
}

/// Returns a message of this length. What is missing is zero.
fn filled<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut message = [0; N];
    message.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    message
}

fn greeting(bytes: &[u8]) {
    let bytes: [u8; GREETING_LEN] = filled(bytes);
    let own = Greeting::of(&JobUid::new(job::UID));
    let is_alike = |part: std::ops::Range<usize>| bytes[part.clone()] == own.encode()[part];
    match own.check(&bytes) {
        // The bytes between are reserved.
        Ok(()) => assert!(is_alike(0..12) && is_alike(32..GREETING_LEN)),
        Err(error) => {
            assert!(!is_alike(0..GREETING_LEN), "the own greeting is accepted");
            check_error(error);
        }
    }
}

fn check_bounds(frame: &Frame) {
    let part = match frame {
        Frame::Put(header) => {
            assert!((1..=MEMORY_BYTES_MAX).contains(&header.bytes), "{header:?}");
            assert!(header.local_rank.0 < header.local_ranks.get(), "{header:?}");
            assert!(header.part.group_rank.0 < header.nodes, "{header:?}");
            header.part
        }
        Frame::Get(part, _) => *part,
        Frame::Range(part, range) => {
            assert!(range.is_valid(), "{range:?}");
            *part
        }
        Frame::Decline(_) => return,
    };
    assert!(part.checkpoint.step <= STEP_MAX && (part.group_rank.0 as usize) < NODES_MAX);
}

fn compare<T>(byte: u8, decoded: Result<T, FrameError>, encode: fn(T) -> u8) {
    match decoded {
        Ok(decoded) => assert_eq!(encode(decoded), byte),
        Err(error) => check_error(error),
    }
}

fn check_error(error: FrameError) {
    let text = error.to_string();
    assert!(!text.is_empty() && text.len() <= LINE_MAX, "{text}");
    assert_printable(&text);
}

/// Parses the request of a worker, and writes answers with its values.
pub fn memory_requests(input: &[u8]) {
    let Some(ask) = parse(input) else { return };
    let request = match &ask {
        Ask::Buffer { step, bytes, kind, is_replicated } => {
            check_numbers(*step, *bytes);
            let kind = name(*kind);
            json!({"ask": "buffer", "step": step, "bytes": bytes, "kind": kind, "replicated": is_replicated})
        }
        Ask::Saved { step, bytes } => {
            check_numbers(*step, *bytes);
            json!({"ask": "saved", "step": step, "bytes": bytes})
        }
        Ask::Load { kind } => json!({"ask": "load", "kind": name(*kind)}),
        Ask::Ranges(RangesRequest { step, group_rank, sources, ranges }) => {
            check_numbers(*step, 1);
            assert!((1..=2).contains(&sources.len()) && (1..=64).contains(&ranges.len()));
            let of = |range: &BlockRange| (range.local_rank.0, range.offset, range.bytes);
            let ranges: Vec<_> = ranges.iter().map(of).collect();
            let group_rank = group_rank.0;
            json!({"ask": "ranges", "step": step, "group_rank": group_rank, "sources": sources, "ranges": ranges})
        }
        Ask::Loaded => json!({"ask": "loaded"}),
        Ask::Newest => json!({"ask": "newest"}),
        Ask::Unusable { step, reason } => {
            check_numbers(*step, 1);
            assert!(reason.len() <= LINE_MAX, "{reason}");
            assert_printable(reason);
            json!({"ask": "unusable", "step": step, "reason": reason})
        }
    };
    assert_eq!(parse(request.to_string().as_bytes()).as_ref(), Some(&ask));
    answers(&ask).iter().for_each(check_packet);
}

fn check_numbers(step: u64, bytes: u64) {
    assert!(step <= STEP_MAX && (1..=MEMORY_BYTES_MAX).contains(&bytes));
}

fn name(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::State => "state",
        MemoryKind::Dcp => "dcp",
    }
}

fn answers(ask: &Ask) -> Vec<Answer> {
    let buffer = |bytes| Buffer { id: u64::MAX, size: bytes };
    match *ask {
        Ask::Ranges(RangesRequest { step, group_rank, ref sources, ref ranges }) => {
            let part = PartSources {
                group_rank,
                first_global_rank: GlobalRank(0),
                local_ranks: NonZeroU32::MIN,
                sources: sources.clone(),
            };
            let (transfer, bytes) =
                (TransferId { is_foreign: false, number: step }, ranges[0].bytes);
            vec![Answer::Resharded { step, parts: vec![part] }, Answer::Ranges { transfer, bytes }]
        }
        Ask::Buffer { step, bytes, is_replicated, .. } => vec![
            Answer::Buffer { buffer: buffer(bytes), waited: Duration::from_nanos(bytes) },
            Answer::Block { step, buffer: buffer(bytes), bytes, is_replicated },
        ],
        Ask::Saved { step, .. } => vec![Answer::Taken, Answer::Newest(Some(step))],
        Ask::Load { .. } => vec![Answer::Nothing],
        Ask::Loaded => vec![Answer::Noted],
        Ask::Newest => vec![Answer::Newest(None)],
        Ask::Unusable { ref reason, .. } => {
            vec![Answer::Noted, Answer::Refused(reason.repeat(100))]
        }
    }
}

fn check_packet(answer: &Answer) {
    let packet = packet(answer);
    assert!(packet.len() <= limits::MAX_PACKET, "{answer:?}");
    let value: Result<Value, _> = serde_json::from_slice(&packet);
    assert!(value.is_ok_and(|value| value.is_object()), "{answer:?}");
}
