//! The fuzz targets of `store/fuzz` without the fuzzer, on their corpus and on random inputs.
//!
//! `CASES` is the number of random inputs per target, `SEED` the seed of the first; a failure
//! prints how to repeat it.

use std::path::Path;

#[path = "../../tests/support/replay.rs"]
mod replay;
#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "it is a crate of its own elsewhere")]
mod targets;

use replay::Target;

/// The cost of an input for `server` relative to other targets, which get more inputs.
const SERVER_COST: u64 = 20;

const TARGETS: [Target; 4] = [
    ("decode", targets::decode, 1),
    ("engine", targets::engine, 1),
    ("session", targets::session, 1),
    ("server", targets::server, SERVER_COST),
];

/// The folder of the corpus.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");

/// No input of the corpus breaks a rule.
#[test]
fn corpus_is_replayed() {
    replay::run_corpus(Path::new(CORPUS), &TARGETS);
}

/// No random input derived from the corpus breaks a rule.
#[test]
fn made_up_inputs_hold() {
    replay::run_made_up(Path::new(CORPUS), &TARGETS);
}
