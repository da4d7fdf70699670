//! Reads which streams of which worker go to files: torchrun's `-r` and `-t`.

use std::{collections::BTreeMap, str::FromStr};

use ragent_rendezvous::ids::LocalRank;

/// One of a worker's output streams.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Stream {
    /// Its stdout.
    Stdout,
    /// Its stderr.
    Stderr,
}

/// A choice of streams for each local rank.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Streams {
    default: u8,
    by_rank: BTreeMap<LocalRank, u8>,
}

impl Streams {
    /// Returns true if `stream` of the worker with `rank` is chosen.
    pub fn has(&self, rank: LocalRank, stream: Stream) -> bool {
        let choice = self.by_rank.get(&rank).copied().unwrap_or(self.default);
        let bit = match stream {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        };
        choice & bit != 0
    }
}

impl FromStr for Streams {
    type Err = ();

    /// Reads `N` for all ranks or `RANK:N,…` for the listed ones, with N from 0 to 3.
    fn from_str(text: &str) -> Result<Self, ()> {
        let choice = |text: &str| text.trim().parse::<u8>().ok().filter(|n| *n <= 3).ok_or(());
        if !text.contains(':') {
            return Ok(Self { default: choice(text)?, by_rank: BTreeMap::new() });
        }
        let entry = |entry: &str| {
            let (rank, streams) = entry.split_once(':').ok_or(())?;
            let rank = rank.trim().parse().map_err(|_| ())?;
            Ok((LocalRank(rank), choice(streams)?))
        };
        let by_rank = text.split(',').map(entry).collect::<Result<_, ()>>()?;
        Ok(Self { default: 0, by_rank })
    }
}

/// The destinations of all streams.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StreamMap {
    /// The streams that go to a file.
    pub redirects: Streams,
    /// The streams that go to a file and to the console.
    pub tee: Streams,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A single number applies to all ranks, a map only to the ranks that it lists.
    #[test]
    fn grammar_of_streams() {
        let all: Streams = "2".parse().unwrap();
        assert!(all.has(LocalRank(7), Stream::Stderr) && !all.has(LocalRank(7), Stream::Stdout));
        let some: Streams = "0:3,11:1".parse().unwrap();
        assert!(some.has(LocalRank(0), Stream::Stderr));
        assert!(some.has(LocalRank(11), Stream::Stdout));
        assert!(!some.has(LocalRank(1), Stream::Stdout));
        for wrong in ["4", "", "0:4", "x:1", "0:1,", "-1", "0:1,2"] {
            assert!(wrong.parse::<Streams>().is_err(), "{wrong}");
        }
    }
}
