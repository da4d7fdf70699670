//! The targets without the fuzzer, on their corpus and on random inputs.

use std::path::Path;

use super::*;

#[path = "../../../tests/support/replay.rs"]
mod replay;

/// The folder of the corpus.
pub(super) const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");

/// The cost of an input for which files are written, relative to other targets, which get more inputs.
const FILES: u64 = 4;
/// The cost of an input for which certificates are read.
const CERTIFICATES: u64 = 10;
/// The cost of an input for which a connection is opened.
const CONNECTION: u64 = 10;

/// Makes two tests for each target, by its cost.
macro_rules! targets {
    ($($target:ident: $cost:expr,)+) => {
        /// No input of the corpus breaks a rule.
        mod corpus_is_replayed {
            use super::*;

            $(#[test]
            fn $target() {
                replay::run_corpus(Path::new(CORPUS), &[(stringify!($target), super::$target, $cost)]);
            })+
        }

        /// No random input derived from the corpus breaks a rule.
        mod made_up_inputs_hold {
            use super::*;

            $(#[test]
            fn $target() {
                replay::run_made_up(Path::new(CORPUS), &[(stringify!($target), super::$target, $cost)]);
            })+
        }
    };
}

targets! {
    port: CONNECTION,
    registration: 1,
    coordinator: 1,
    elect: 1,
    death_notice: 1,
    datagram: 1,
    identity: 1,
    secret_file: FILES,
    certificates: CERTIFICATES,
    state_file: FILES,
    agent_file: FILES,
    launch_frames: 1,
    hostfile: 1,
    memory_frames: 1,
    memory_requests: 1,
    node_list: 1,
    torch_records: 1,
}
