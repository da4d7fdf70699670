//! The parts that several targets use.

use std::{fmt::Debug, time::Instant};

use ragent_proto::printable;
use ragent_rendezvous::{
    Rendezvous,
    ids::{JobUid, RunId},
    settings::{Leases, Memory, Settings},
    tenure::Tenure,
    voter_count::VoterCount,
};

/// The job that the targets know.
pub(crate) mod job {
    /// Its name.
    pub(crate) const RUN_ID: &str = "fuzzed-job-7f3a90";
    /// The run.
    pub(crate) const UID: &str = "uid7";
    /// The text of its secret.
    pub(crate) const SECRET: &str = "abcdefghijklmnopqrstuvwxyz0123456789_ABCDEFGHIJ";
}

/// Splits an input into parts, each after its length of two bytes. The last one may be shorter.
pub(crate) fn frames(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = input.split_first_chunk()?;
        let len = usize::from(u16::from_le_bytes(*len));
        let (frame, rest) = rest.split_at(len.min(rest.len()));
        input = rest;
        Some(frame)
    })
}

/// Creates the coordinator of the job, which continues from `memory`.
pub(crate) fn coordinator(now: Instant, memory: Memory, tenure: Tenure) -> Rendezvous {
    let settings = Settings {
        run_id: RunId::new(job::RUN_ID),
        coordinator: "c".to_owned(),
        host: None,
        shared: None,
        voters: Vec::new(),
        voter_count: VoterCount::One,
        keeps_charges: true,
        leases: Leases::default(),
        begins_at: None,
    };
    Rendezvous::new(now, settings, memory, tenure)
}

/// The memory of a run that begins.
pub(crate) fn memory() -> Memory {
    Memory::fresh(JobUid::new(job::UID))
}

/// Asserts that a text can be printed on a terminal.
#[track_caller]
pub(crate) fn assert_printable(text: &str) {
    assert_eq!(printable(text), text, "it has characters that control a terminal");
}

/// Asserts that no text within a value has characters that control a terminal: its debug form shows them as escapes.
#[track_caller]
pub(crate) fn assert_shown(value: &impl Debug) {
    let text = format!("{value:?}");
    let mut rest = text.as_str();
    while let Some((_, escape)) = rest.split_once('\\') {
        let character = match escape.strip_prefix("u{").and_then(|digits| digits.split_once('}')) {
            Some((digits, _)) => {
                u32::from_str_radix(digits, 16).ok().and_then(char::from_u32).expect("a character")
            }
            None => match escape.chars().next().expect("an escape") {
                '0' => '\0',
                'r' => '\r',
                _ => ' ',
            },
        };
        assert_printable(character.encode_utf8(&mut [0; 4]));
        rest = escape.get(1..).unwrap_or_default();
    }
}
