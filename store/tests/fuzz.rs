//! The fuzz targets of `store/fuzz` without the fuzzer, on their corpus and on random inputs.
//!
//! `CASES` is the number of random inputs per target, `SEED` the seed of the first; a failure
//! prints how to repeat it.

use std::path::{Path, PathBuf};
use std::{fs, panic};

#[path = "../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "it is a crate of its own elsewhere")]
mod targets;

type Target = (&'static str, fn(&[u8]), u64);

/// The cost of an input for `server` relative to other targets, which get more inputs.
const SERVER_COST: u64 = 20;

const TARGETS: [Target; 4] = [
    ("decode", targets::decode, 1),
    ("engine", targets::engine, 1),
    ("session", targets::session, 1),
    ("server", targets::server, SERVER_COST),
];

/// No input of the corpus breaks a rule.
#[test]
fn corpus_is_replayed() {
    for (name, target, _) in TARGETS {
        let inputs = corpus(name);
        assert!(inputs.len() >= 10, "{name} has a corpus");
        for path in inputs {
            let input = fs::read(&path).expect("a readable file");
            let result = panic::catch_unwind(|| target(&input));
            assert!(result.is_ok(), "{} broke a rule", path.display());
        }
    }
}

/// No random input derived from the corpus breaks a rule.
#[test]
fn made_up_inputs_hold() {
    let (seed, cases) = (variable("SEED", 1), variable("CASES", 2000));
    for (name, target, cost) in TARGETS {
        let corpus: Vec<Vec<u8>> =
            corpus(name).iter().map(|path| fs::read(path).expect("a readable file")).collect();
        for seed in seed..seed + cases.div_ceil(cost) {
            let input = Dice(seed).make_up(&corpus);
            let result = panic::catch_unwind(|| target(&input));
            assert!(result.is_ok(), "{name} broke a rule; repeat it with SEED={seed} CASES=1");
        }
    }
}

fn corpus(name: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let files = fs::read_dir(&folder).expect("a committed corpus");
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort_unstable();
    paths
}

#[expect(clippy::disallowed_methods, reason = "set by the user of the tests")]
fn variable(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else {
        return default;
    };
    text.parse().unwrap_or_else(|_| panic!("{name} is not a number: `{text}`"))
}

/// A random number generator with a fixed seed.
struct Dice(u64);

impl Dice {
    /// SplitMix64, by Steele, Lea and Flood.
    fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.throw() % end.max(1) as u64) as usize
    }

    /// Returns concatenated parts of the corpus and noise, with some bytes changed.
    fn make_up(mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = Vec::new();
        for _ in 0..=self.below(4) {
            if self.below(4) == 0 {
                input.extend((0..self.below(100)).map(|_| self.throw() as u8));
            } else if let Some(part) = corpus.get(self.below(corpus.len())) {
                // Half of the parts start at the beginning, since the rest means little without it.
                let start = if self.below(2) == 0 { 0 } else { self.below(part.len()) };
                let end = part.len() - self.below(part.len() - start) / 2;
                input.extend_from_slice(&part[start..end]);
            }
        }
        for _ in 0..self.below(8) {
            let place = self.below(input.len());
            if let Some(byte) = input.get_mut(place) {
                *byte = self.throw() as u8;
            }
        }
        input
    }
}
