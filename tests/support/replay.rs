//! Runs fuzz targets without the fuzzer: on their corpus, and on random inputs derived from it.
//!
//! `CASES` is the number of random inputs per target, `SEED` the seed of the first. A failure prints how to repeat it.

use std::{
    fs, panic,
    path::{Path, PathBuf},
};

/// The name of a target, the target, and the cost of an input. Targets with cheaper inputs get more of them.
pub(crate) type Target = (&'static str, fn(&[u8]), u64);

/// The number of inputs of each target's corpus, at least.
const CORPUS_MIN: usize = 10;

/// Runs each target on its corpus, a folder below `corpora`.
pub(crate) fn run_corpus(corpora: &Path, targets: &[Target]) {
    let mut broken = Vec::new();
    for (name, target, _) in targets {
        let inputs = corpus(corpora, name);
        assert!(inputs.len() >= CORPUS_MIN, "{name} has a corpus");
        for path in inputs {
            let input = fs::read(&path).expect("a readable file");
            if panic::catch_unwind(|| target(&input)).is_err() {
                broken.push(format!("{} broke a rule", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

/// Runs each target on random inputs, up to the first that breaks a rule.
pub(crate) fn run_made_up(corpora: &Path, targets: &[Target]) {
    let (seed, cases) = (variable("SEED", 1), variable("CASES", 2000));
    let mut broken = Vec::new();
    for (name, target, cost) in targets {
        let paths = corpus(corpora, name);
        let inputs: Vec<Vec<u8>> =
            paths.iter().map(|path| fs::read(path).expect("a readable file")).collect();
        let holds = |seed: &u64| {
            let input = Dice(*seed).make_up(&inputs);
            panic::catch_unwind(|| target(&input)).is_ok()
        };
        if let Some(seed) = (seed..seed + cases.div_ceil(*cost)).find(|seed| !holds(seed)) {
            broken.push(format!("{name} broke a rule; repeat it with SEED={seed} CASES=1"));
        }
    }
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

fn corpus(corpora: &Path, name: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(corpora.join(name)).expect("a committed corpus");
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort_unstable();
    paths
}

#[expect(clippy::disallowed_methods, reason = "set by the user of the tests")]
fn variable(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
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

    /// Returns an input of the corpus, or concatenated parts of some and noise, with some bytes changed.
    fn make_up(mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = Vec::new();
        let whole = corpus.get(self.below(corpus.len())).filter(|_| self.below(2) == 0);
        if let Some(part) = whole {
            // Few changes to a valid input reach deeper than many.
            input.extend_from_slice(part);
        }
        let parts = if whole.is_some() { 0 } else { 1 + self.below(4) };
        for _ in 0..parts {
            if self.below(4) == 0 {
                input.extend((0..self.below(100)).map(|_| self.throw() as u8));
            } else if let Some(part) = corpus.get(self.below(corpus.len())) {
                // Half of the parts start at the beginning, because the rest means little without it.
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
