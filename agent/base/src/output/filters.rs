//! Reads which of the workers' output is shown and copied: `--local-ranks-filter`,
//! `--duplicate-stdout-filters`, `--duplicate-stderr-filters`.

use std::{collections::BTreeSet, num::ParseIntError};

use ragent_rendezvous::ids::LocalRank;

/// The workers whose output the console shows.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ShownRanks(Option<BTreeSet<LocalRank>>);

impl ShownRanks {
    /// Reads `RANK,…`; an empty text means all.
    pub fn parse(text: &str) -> Result<Self, ParseIntError> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        // As with torchrun, a negative number is accepted. It matches no worker.
        let ranks = text.split(',').map(|rank| rank.trim().parse::<i64>());
        let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
        let ranks = ranks.into_iter().filter_map(|rank| u32::try_from(rank).ok());
        Ok(Self(Some(ranks.map(LocalRank).collect())))
    }

    /// Returns true if the console shows the output of the worker with `rank`.
    pub fn shows(&self, rank: LocalRank) -> bool {
        self.0.as_ref().is_none_or(|ranks| ranks.contains(&rank))
    }
}

/// A line is copied if it contains one of these texts. Without any, no line is copied.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LineFilters(Vec<String>);

impl LineFilters {
    /// Reads `TEXT,…`; `,,` is a comma. As with torchrun, an empty text matches every
    /// line.
    pub fn parse(text: &str) -> Self {
        let mut filters = vec![String::new()];
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            let last = filters.last_mut().expect("there is one from the start");
            match c {
                ',' if rest.next_if_eq(&',').is_some() => last.push(','),
                ',' => filters.push(String::new()),
                c => last.push(c),
            }
        }
        Self(filters)
    }

    /// Returns filters with these texts.
    #[cfg(any(test, feature = "testing"))]
    pub fn of(texts: &[&str]) -> Self {
        Self(texts.iter().map(|text| (*text).to_owned()).collect())
    }

    /// Returns true if no line is to be copied.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if `line` is to be copied.
    pub fn matches(&self, line: &[u8]) -> bool {
        self.0.iter().any(|text| {
            text.is_empty() || line.windows(text.len()).any(|part| part == text.as_bytes())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks are a list of numbers; an empty list means all.
    #[test]
    fn shown_ranks() {
        let shown = ShownRanks::parse("0, 2").unwrap();
        assert!(shown.shows(LocalRank(2)) && !shown.shows(LocalRank(1)));
        assert!(ShownRanks::parse("").unwrap().shows(LocalRank(7)));
        assert!(!ShownRanks::parse("-1").unwrap().shows(LocalRank(1)));
        for wrong in ["a", "0,", "0;1"] {
            assert!(ShownRanks::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// A line that contains one of the texts is copied; a doubled comma is a literal one.
    #[test]
    fn line_filters() {
        let filters = LineFilters::parse("loss,a,,b");
        assert!(filters.matches(b"step 1 loss 0.5\n") && filters.matches(b"a,b"));
        assert!(!filters.matches(b"a b\n"));
        assert!(LineFilters::parse("x,").matches(b"anything"));
        assert!(LineFilters::default().is_empty());
    }
}
