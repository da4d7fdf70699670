//! Reads a choice of global ranks: `0,8-15`.

use std::{fmt, str::FromStr};

use super::limits;

/// A choice of global ranks.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RankRanges(Vec<(u32, u32)>);

impl RankRanges {
    /// Returns the first and the last rank of each range.
    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Returns true if `rank` is chosen.
    pub fn contains(&self, rank: u32) -> bool {
        self.overlaps((rank, rank))
    }

    /// Returns true if one of these ranks is chosen.
    pub fn overlaps(&self, (first, last): (u32, u32)) -> bool {
        self.0.iter().any(|range| range.0 <= last && first <= range.1)
    }
}

impl FromStr for RankRanges {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first <= last).then_some((first, last))
        };
        let ranges: Vec<_> = text.split(',').map(range).collect::<Option<_>>().ok_or(())?;
        if ranges.len() > limits::RANK_RANGES { Err(()) } else { Ok(Self(ranges)) }
    }
}

impl fmt::Display for RankRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{first}-{last}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks are numbers and ranges, between commas. They are printed as ranges.
    #[test]
    fn ranks_are_parsed() {
        let ranks: RankRanges = "3, 8-15".parse().unwrap();
        assert_eq!(ranks.ranges(), [(3, 3), (8, 15)]);
        assert_eq!(ranks.to_string().parse(), Ok(ranks.clone()));
        assert!(ranks.contains(3) && ranks.contains(15) && !ranks.contains(4));
        assert!(ranks.overlaps((0, 3)) && ranks.overlaps((9, 10)) && !ranks.overlaps((4, 7)));
        for wrong in ["", "x", "3,", "15-8", "1-2-3", "-1", "4294967296"] {
            assert_eq!(wrong.parse::<RankRanges>(), Err(()), "{wrong}");
        }
        assert_eq!("0,".repeat(limits::RANK_RANGES).parse::<RankRanges>(), Err(()));
    }
}
