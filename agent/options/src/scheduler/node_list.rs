//! Parses compressed lists, as Slurm prints and users write them: `node[1-3,07],gpu[0-1]x[0-1]` for
//! names, `2(x3),1` for counts.

use std::ops::RangeInclusive;

use ragent_base::limits::{MAX_HOST_NAME, MAX_LISTED_NODES};

/// An error in a list.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NodeListError {
    /// There is nothing between two commas.
    #[error("it contains an empty name")]
    Empty,
    /// Brackets are unpaired or nested.
    #[error("its brackets are not balanced")]
    Brackets,
    /// A name has more brackets than the names of any cluster.
    #[error("a name has more than {MAX_DIMENSIONS} pairs of brackets")]
    Dimensions,
    /// Text in brackets is neither a number nor a range.
    #[error("it contains an invalid range")]
    Range,
    /// A name is longer than a host's name can be.
    #[error("it contains a name with more than {MAX_HOST_NAME} characters")]
    TooLong,
    /// The list has more entries than any cluster has nodes.
    #[error("it contains more than {MAX_LISTED_NODES} names")]
    TooMany,
}

/// The number of digits of the largest number.
const MAX_DIGITS: usize = 20;

/// Slurm supports clusters of up to five dimensions.
const MAX_DIMENSIONS: usize = 8;

/// Returns all names in `text`, in order.
pub fn names(text: &str) -> Result<Vec<String>, NodeListError> {
    let mut names = Vec::new();
    for entry in entries(text)? {
        if entry.trim().is_empty() {
            return Err(NodeListError::Empty);
        }
        if entry.matches('[').count() > MAX_DIMENSIONS {
            return Err(NodeListError::Dimensions);
        }
        expand(entry.trim(), String::new(), &mut names)?;
    }
    Ok(names)
}

/// Splits at the commas outside of brackets.
fn entries(text: &str) -> Result<Vec<&str>, NodeListError> {
    let mut entries = Vec::new();
    let (mut from, mut is_inside) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' if !is_inside => is_inside = true,
            b']' if is_inside => is_inside = false,
            b'[' | b']' => return Err(NodeListError::Brackets),
            b',' if !is_inside => {
                entries.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    if is_inside {
        return Err(NodeListError::Brackets);
    }
    entries.push(&text[from..]);
    Ok(entries)
}

/// Appends all expansions of `rest`, each with the prefix `before`, to `names`; the last bracket
/// varies fastest.
fn expand(rest: &str, before: String, names: &mut Vec<String>) -> Result<(), NodeListError> {
    let Some((plain, rest)) = rest.split_once('[') else {
        if names.len() == MAX_LISTED_NODES {
            return Err(NodeListError::TooMany);
        }
        if before.len() + rest.len() > MAX_HOST_NAME {
            return Err(NodeListError::TooLong);
        }
        names.push(before + rest);
        return Ok(());
    };
    let (ranges, rest) = rest.split_once(']').ok_or(NodeListError::Brackets)?;
    for text in ranges.split(',') {
        let (numbers, width) = range(text.trim())?;
        for number in numbers {
            expand(rest, format!("{before}{plain}{number:0width$}"), names)?;
        }
    }
    Ok(())
}

/// Returns the numbers of `3`, `1-3` or `007-010`, and the minimum number of their digits.
pub fn range(text: &str) -> Result<(RangeInclusive<u64>, usize), NodeListError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse::<u64>().ok()).flatten().ok_or(NodeListError::Range)
    };
    let (from, to) = (number(first)?, number(last)?);
    if to < from || first.len() > MAX_DIGITS {
        return Err(NodeListError::Range);
    }
    if to - from >= MAX_LISTED_NODES as u64 {
        return Err(NodeListError::TooMany);
    }
    Ok((from..=to, first.len()))
}

/// Returns the counts of `2(x3),1`: 2, 2, 2, 1.
pub fn counts(text: &str) -> Result<Vec<u32>, NodeListError> {
    let mut counts = Vec::new();
    for entry in text.split(',') {
        let (count, times) = match entry.split_once("(x") {
            Some((count, times)) => {
                (count, times.strip_suffix(')').ok_or(NodeListError::Brackets)?)
            }
            None => (entry, "1"),
        };
        let count: u32 = count.trim().parse().map_err(|_| NodeListError::Range)?;
        let times: usize = times.parse().map_err(|_| NodeListError::Range)?;
        if times == 0 {
            return Err(NodeListError::Range);
        }
        if times > MAX_LISTED_NODES - counts.len() {
            return Err(NodeListError::TooMany);
        }
        counts.extend(std::iter::repeat_n(count, times));
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ragent_base::report::fold;
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    use super::*;

    fn joined(text: &str) -> Result<String, NodeListError> {
        names(text).map(|names| names.join(" "))
    }

    /// Each form that Slurm prints is parsed: plain names, ranges, leading zeros, several brackets,
    /// text after brackets.
    #[test]
    fn brackets_are_expanded() {
        for (text, expected) in [
            ("node1", "node1"),
            ("a,b,c", "a b c"),
            ("node[1-3]", "node1 node2 node3"),
            ("node[1,3-4,9]", "node1 node3 node4 node9"),
            ("node[1, 3-4]", "node1 node3 node4"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("n[098-101]", "n098 n099 n100 n101"),
            ("r[0-1]n[1-2]", "r0n1 r0n2 r1n1 r1n2"),
            ("r[0-1]n[1-2]-ib,x", "r0n1-ib r0n2-ib r1n1-ib r1n2-ib x"),
            ("gpu-a[1-2].site.org,login", "gpu-a1.site.org gpu-a2.site.org login"),
            ("[1-2]", "1 2"),
        ] {
            assert_eq!(joined(text).as_deref(), Ok(expected), "{text}");
        }
        let longest = "a".repeat(252);
        assert_eq!(joined(&format!("{longest}[1]")), Ok(format!("{longest}1")));
    }

    /// A malformed list returns its error, and no list expands beyond the limit.
    #[test]
    fn malformed_lists() {
        for (text, error) in [
            ("", NodeListError::Empty),
            ("a,,b", NodeListError::Empty),
            ("a[1-2", NodeListError::Brackets),
            ("a1-2]", NodeListError::Brackets),
            ("a[[1]]", NodeListError::Brackets),
            ("a[]", NodeListError::Range),
            ("a[x]", NodeListError::Range),
            ("a[3-1]", NodeListError::Range),
            ("a[1-]", NodeListError::Range),
            ("a[+1-2]", NodeListError::Range),
            ("a[0-99999999]", NodeListError::TooMany),
            ("a[0-999]b[0-999]", NodeListError::TooMany),
            ("a[99999999999999999999]", NodeListError::Range),
            (&format!("a[{}1]", "0".repeat(70_000)), NodeListError::Range),
            ("a[1][1][1][1][1][1][1][1][1]", NodeListError::Dimensions),
            (&format!("{}[0-9]", "a".repeat(253)), NodeListError::TooLong),
            (&format!("[0-65535]{}", "a".repeat(100_000)), NodeListError::TooLong),
        ] {
            assert_eq!(joined(text), Err(error), "{text}");
        }
    }

    /// Task counts are parsed with their repetitions.
    #[test]
    fn counts_are_repeated() {
        assert_eq!(counts("2(x3),1"), Ok(vec![2, 2, 2, 1]));
        assert_eq!(counts("8"), Ok(vec![8]));
        for wrong in ["", "2(x3", "2(y3)", "x", "1,,2", "-1", "1(x0)"] {
            assert!(counts(wrong).is_err(), "{wrong}");
        }
        assert_eq!(counts("1(x4000000000)"), Err(NodeListError::TooMany));
    }

    /// Parsing ends for any text, within the limit.
    #[test]
    fn any_text_is_answered() {
        let mut random = SmallRng::seed_from_u64(17);
        for _ in 0..20_000 {
            let length = random.random_range(0..24);
            let letters = b"a01,-[](x9";
            let pick = |random: &mut SmallRng| letters[random.random_range(0..letters.len())];
            let text: Vec<u8> = (0..length).map(|_| pick(&mut random)).collect();
            let text = String::from_utf8(text).unwrap();
            assert!(names(&text).unwrap_or_default().len() <= MAX_LISTED_NODES, "{text}");
            assert!(counts(&text).unwrap_or_default().len() <= MAX_LISTED_NODES, "{text}");
        }
    }
    proptest! {
        /// Folding loses no name, and adds none.
        #[test]
        fn no_folded_name_is_lost(list in prop::collection::btree_set("[a-c]{0,2}[0-9]{1,3}(-r[0-2])?", 1..14)) {
            let text = fold::names(list.iter().map(String::as_str));
            let expanded = names(&text).unwrap();
            prop_assert_eq!(expanded.len(), list.len(), "{}", text);
            prop_assert_eq!(expanded.into_iter().collect::<std::collections::BTreeSet<_>>(), list);
        }
    }
}
