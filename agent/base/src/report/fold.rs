//! Folds lists of hosts and ranks, so that a job of thousands of nodes fits on a screen.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// The ranges that are printed of one list; the rest is omitted, and names are counted.
const RANGES_SHOWN: usize = 16;

/// The digits of the largest number that is folded.
const MAX_DIGITS: usize = 18;

/// Returns numbers, given as inclusive ranges in ascending order, as `0-3,7`.
pub fn numbers(ranges: impl IntoIterator<Item = (u32, u32)>) -> String {
    let mut merged: Vec<(u32, u32)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if before.1.checked_add(1) == Some(first) => before.1 = last,
            Some(_) | None => merged.push((first, last)),
        }
    }
    let shown = merged.iter().take(RANGES_SHOWN).map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    let mut text = shown.collect::<Vec<_>>().join(",");
    if merged.len() > RANGES_SHOWN {
        text += ",…";
    }
    text
}

/// Returns names as `n[0-3,7],login ×2`: a name with a factor is that of several nodes. Names are sorted by the number of nodes,
/// then by their text and by the last number in their first label.
pub fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    let mut sorted: Vec<(usize, Name<'_>)> =
        counts.into_iter().map(|(name, count)| (count, Name::new(name))).collect();
    sorted.sort_unstable();
    let mut ranges: Vec<Range<'_>> = Vec::new();
    for (count, name) in sorted {
        match ranges.last_mut() {
            Some(range) if range.count == count && range.continues_with(&name) => {
                range.last = name;
                range.len += 1;
            }
            Some(_) | None => ranges.push(Range { count, first: name, last: name, len: 1 }),
        }
    }
    let (shown, rest) = ranges.split_at(ranges.len().min(RANGES_SHOWN));
    let same_names = |a: &Range<'_>, b: &Range<'_>| {
        a.count == b.count && a.first.is_like(&b.first) && a.first.digits.is_some()
    };
    let mut text = shown.chunk_by(same_names).map(entry).collect::<Vec<_>>().join(",");
    let hidden: usize = rest.iter().map(|range| range.len * range.count).sum();
    if hidden > 0 {
        text += &format!(" and {hidden} more");
    }
    text
}

/// Compares names as `names` sorts them.
pub fn compare_names(a: &str, b: &str) -> Ordering {
    Name::new(a).cmp(&Name::new(b))
}

/// Returns the text of ranges that differ in their numbers only.
fn entry(ranges: &[Range<'_>]) -> String {
    let [first, ..] = ranges else { return String::new() };
    let Name { before, after, .. } = first.first;
    let numbers = ranges.iter().map(|range| match (range.first.digits, range.last.digits) {
        (Some(first), Some(last)) if range.len > 1 => format!("{first}-{last}"),
        (digits, _) => digits.unwrap_or_default().to_owned(),
    });
    let numbers = numbers.collect::<Vec<_>>().join(",");
    let is_one = ranges.len() == 1 && first.len == 1;
    let text = match is_one {
        true => format!("{before}{numbers}{after}"),
        false => format!("{before}[{numbers}]{after}"),
    };
    match first.count {
        1 => text,
        count => format!("{text} ×{count}"),
    }
}

/// Names with consecutive numbers; `count` nodes have each of them.
#[derive(Clone, Copy, Debug)]
struct Range<'a> {
    count: usize,
    first: Name<'a>,
    last: Name<'a>,
    len: usize,
}

impl Range<'_> {
    /// Returns true if `name` is the next one. The numbers of a range have at least as many digits as its first number, as
    /// in Slurm's lists.
    fn continues_with(&self, name: &Name<'_>) -> bool {
        let (Some(first), Some(digits)) = (self.first.digits, name.digits) else { return false };
        let next = format!("{:0width$}", self.last.number + 1, width = first.len());
        self.first.is_like(name) && next == digits
    }
}

/// A name, split at the last number of its first label. The order of the fields is the order of names.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Name<'a> {
    before: &'a str,
    after: &'a str,
    number: u64,
    /// The digits of the number; `None` if the name has none.
    digits: Option<&'a str>,
}

impl<'a> Name<'a> {
    fn new(name: &'a str) -> Self {
        let label = name.split('.').next().unwrap_or_default();
        let end = label.rfind(|c: char| c.is_ascii_digit()).map_or(0, |at| at + 1);
        let start = label[..end].rfind(|c: char| !c.is_ascii_digit());
        let start = start.map_or(0, |at| at + label[at..].chars().next().map_or(1, char::len_utf8));
        let digits = Some(&name[start..end]).filter(|digits| digits.len() <= MAX_DIGITS);
        match digits.and_then(|digits| Some((digits, digits.parse().ok()?))) {
            Some((digits, number)) => {
                Self { before: &name[..start], after: &name[end..], number, digits: Some(digits) }
            }
            None => Self { before: name, after: "", number: 0, digits: None },
        }
    }

    /// Returns true if both names differ in their numbers only.
    fn is_like(&self, other: &Self) -> bool {
        (self.before, self.after) == (other.before, other.after)
            && self.digits.is_some() == other.digits.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Consecutive numbers are one range, and a long list ends with dots.
    #[test]
    fn numbers_are_ranges() {
        assert_eq!(numbers([]), "");
        assert_eq!(numbers([(0, 7), (8, 15), (24, 31), (40, 40)]), "0-15,24-31,40");
        assert_eq!(numbers([(0, u32::MAX)]), format!("0-{}", u32::MAX));
        let odd = numbers((0..100).map(|number| (2 * number, 2 * number)));
        assert!(odd.starts_with("0,2,4,") && odd.ends_with(",28,30,…"), "{odd}");
    }

    /// Names are folded as Slurm writes them; those without a number, and those of several nodes, stay apart.
    #[test]
    fn names_are_folded() {
        let fold = |list: &[&str]| names(list.iter().copied());
        assert_eq!(fold(&["n2", "n0", "n1", "n7"]), "n[0-2,7]");
        assert_eq!(fold(&["n8", "n9", "n10", "n11"]), "n[8-11]");
        assert_eq!(fold(&["n08", "n09", "n10"]), "n[08-10]");
        assert_eq!(fold(&["r1-n1.cluster2", "r1-n2.cluster2"]), "r1-n[1-2].cluster2");
        assert_eq!(fold(&["login", "n1", "a1b"]), "a1b,login,n1");
        assert_eq!(fold(&["vm", "vm", "n1", "n1", "n2", "n2"]), "n[1-2] ×2,vm ×2");
        assert_eq!(fold(&["é1", "é2", "", "."]), ",.,é[1-2]");
        let long = "n99999999999999999999";
        assert_eq!(fold(&[long]), long);
        let hosts: Vec<String> = (0..100).map(|number| format!("h{}x", 2 * number)).collect();
        let text = names(hosts.iter().map(String::as_str));
        assert!(text.starts_with("h[0,2,4,") && text.ends_with(",30]x and 84 more"), "{text}");
    }
}
