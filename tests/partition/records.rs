//! Reads the records of workers, and checks their rules: workers of two rounds never run at the same time, and later rounds have higher
//! numbers.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    str::FromStr,
    time::Duration,
};

/// A term, and the number of a round.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct RoundId {
    pub(crate) term: u64,
    pub(crate) number: u64,
}

impl FromStr for RoundId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('.');
        let parts =
            parts.and_then(|(term, number)| Some((term.parse().ok()?, number.parse().ok()?)));
        let (term, number) = parts.ok_or_else(|| format!("`{text}` is not the id of a round"))?;
        Ok(Self { term, number })
    }
}

impl fmt::Display for RoundId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.number)
    }
}

/// The first and the last time at which a worker recorded itself, since boot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Lifetime {
    pub(crate) begin: Duration,
    pub(crate) last: Duration,
}

impl Lifetime {
    /// Reads the record of a worker. Returns `None` if the worker was killed before it wrote a line.
    pub(crate) fn read(path: &Path) -> io::Result<Option<Self>> {
        /// More than two lines.
        const PART: u64 = 64;
        let mut file = File::open(path)?;
        let begin = lines(&mut file)?.first().copied();
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(PART)))?;
        let last = lines(&mut file)?.last().copied();
        return Ok(begin.zip(last).map(|(begin, last)| Self { begin, last }));

        /// The complete lines of the next part. The first line is truncated, except at the start of the file.
        fn lines(file: &mut File) -> io::Result<Vec<Duration>> {
            let mut text = String::new();
            file.by_ref().take(PART).read_to_string(&mut text)?;
            let Some((complete, _)) = text.rsplit_once('\n') else { return Ok(Vec::new()) };
            Ok(complete
                .lines()
                .filter_map(|line| line.parse().ok())
                .map(Duration::from_nanos)
                .collect())
        }
    }
}

/// The workers of each round.
pub(crate) type Rounds = BTreeMap<RoundId, Vec<Lifetime>>;

/// Returns the broken rules.
pub(crate) fn violations(rounds: &Rounds) -> Vec<String> {
    let spans = rounds.iter().filter_map(|(id, workers)| {
        let begin = workers.iter().map(|worker| worker.begin).min()?;
        let last = workers.iter().map(|worker| worker.last).max()?;
        Some((*id, begin, last))
    });
    let mut spans: Vec<(RoundId, Duration, Duration)> = spans.collect();
    spans.sort_by_key(|(_, begin, _)| *begin);
    let mut violations = Vec::new();
    for (index, (id, begin, _)) in spans.iter().enumerate() {
        for (earlier, _, last) in &spans[..index] {
            if last >= begin {
                let overlap = last.saturating_sub(*begin);
                violations.push(format!("rounds {earlier} and {id} overlap by {overlap:?}"));
            }
            if earlier.number >= id.number || earlier.term > id.term {
                violations.push(format!("round {id} begins after round {earlier}"));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(term: u64, number: u64, workers: &[(u64, u64)]) -> (RoundId, Vec<Lifetime>) {
        let ms = Duration::from_millis;
        let workers =
            workers.iter().map(|(begin, last)| Lifetime { begin: ms(*begin), last: ms(*last) });
        (RoundId { term, number }, workers.collect())
    }

    /// Workers of two rounds at the same time are a violation, also if the numbers of the rounds are not adjacent.
    #[test]
    fn overlap_is_found() {
        let good =
            [round(1, 1, &[(0, 10), (2, 12)]), round(7, 2, &[(13, 20)]), round(7, 3, &[(30, 40)])];
        assert_eq!(violations(&Rounds::from(good.clone())), Vec::<String>::new());
        let mut bad = Rounds::from(good);
        bad.insert(RoundId { term: 1, number: 1 }, round(1, 1, &[(0, 10), (0, 31)]).1);
        let expected = ["rounds 1.1 and 7.2 overlap by 18ms", "rounds 1.1 and 7.3 overlap by 1ms"];
        assert_eq!(violations(&bad), expected);
    }

    /// A round that begins after one with a higher number, or of a later term, is a violation.
    #[test]
    fn lower_round_is_found() {
        for (later, earlier) in [((1, 2), (2, 1)), ((1, 1), (1, 2)), ((2, 1), (1, 1))] {
            let earlier = round(earlier.0, earlier.1, &[(0, 10)]);
            let later = round(later.0, later.1, &[(20, 30)]);
            assert_eq!(violations(&Rounds::from([earlier, later])).len(), 1);
        }
    }

    /// A record is read up to its last complete line.
    #[test]
    fn record_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "").unwrap();
        assert_eq!(Lifetime::read(file.path()).unwrap(), None);
        let lines: String = (1000..1100).map(|number| format!("{number}000000\n")).collect();
        std::fs::write(file.path(), lines + "11").unwrap();
        let ms = Duration::from_millis;
        let expected = Lifetime { begin: ms(1000), last: ms(1099) };
        assert_eq!(Lifetime::read(file.path()).unwrap(), Some(expected));
    }
}
