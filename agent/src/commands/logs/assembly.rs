//! Joins the lines of a Python traceback, so that it is shown as one line.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    mem,
};

use ragent_options::spec::LinePattern;

/// The first line of a traceback.
const HEAD: &str = "Traceback (most recent call last):";

/// The size of the text of an item.
const TEXT_MAX: usize = 4096;

/// A line, or a traceback.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Item {
    /// Its lines, cut to 4 KiB.
    pub(super) text: String,
    /// The number of its lines.
    pub(super) lines: usize,
    /// The last of them, if there are several.
    last: String,
    /// True if the text lacks lines.
    is_cut: bool,
    /// Two items with the same hash and text are the same.
    pub(super) hash: u64,
}

impl Item {
    fn one(line: &str) -> Self {
        let mut item = Self::default();
        item.add(line);
        item
    }

    fn add(&mut self, line: &str) {
        if self.lines > 0 && self.text.len() < TEXT_MAX {
            self.text.push('\n');
        }
        let mut room = TEXT_MAX.saturating_sub(self.text.len()).min(line.len());
        while !line.is_char_boundary(room) {
            room -= 1;
        }
        self.text += &line[..room];
        self.is_cut |= room < line.len();
        if self.lines > 0 {
            self.last = line.to_owned();
        }
        self.lines += 1;
        let mut hasher = DefaultHasher::new();
        (self.hash, line).hash(&mut hasher);
        self.hash = hasher.finish();
    }

    /// Returns true if a line of it matches.
    pub(super) fn matches(&self, pattern: &LinePattern) -> bool {
        self.text.lines().any(|line| pattern.matches(line))
            || self.text.is_empty() && pattern.matches("")
            || self.lines > 1 && pattern.matches(&self.last)
    }

    /// Returns its lines, without some in the middle if there are many.
    pub(super) fn whole(&self) -> String {
        let end = (self.is_cut && self.lines > 1).then(|| format!("\n…\n{}", self.last));
        format!("{}{}", self.text, end.unwrap_or_default())
    }

    /// Returns the item as one line.
    pub(super) fn line(&self) -> String {
        match self.lines {
            0 | 1 => self.text.clone(),
            lines => format!("{HEAD} … {lines} lines, ending {}", self.last.trim()),
        }
    }
}

/// Joins the lines of one stream.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    traceback: Option<Item>,
}

impl Assembler {
    /// Adds a line of the worker with this rank. Returns the items that are complete.
    pub(super) fn add(&mut self, rank: u32, line: &str) -> Vec<Item> {
        let line = without_rank(rank, line);
        let mut complete = Vec::new();
        match &mut self.traceback {
            Some(traceback) if line.starts_with([' ', '\t']) => {
                traceback.add(line);
                return complete;
            }
            Some(traceback) if line != HEAD && !line.is_empty() => {
                // The exception.
                traceback.add(line);
                complete.extend(self.traceback.take());
                return complete;
            }
            Some(_) => complete.extend(self.traceback.take()),
            None => {}
        }
        if line == HEAD {
            self.traceback = Some(Item::one(line));
        } else {
            complete.push(Item::one(line));
        }
        complete
    }

    /// Returns true if a traceback has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.traceback.is_some()
    }

    /// Returns a traceback that has begun, if there is one.
    pub(super) fn rest(&mut self) -> Option<Item> {
        mem::take(&mut self.traceback)
    }
}

/// Removes `[rank3]: `, which torch puts before the lines of a traceback.
fn without_rank(rank: u32, line: &str) -> &str {
    let prefix = format!("[rank{rank}]:");
    match line.strip_prefix(&prefix) {
        Some(rest) => rest.strip_prefix(' ').unwrap_or(rest),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use ragent_options::spec::Argument;

    use super::*;

    fn shown(rank: u32, text: &str) -> Vec<String> {
        let mut assembler = Assembler::default();
        let mut items: Vec<Item> =
            text.lines().flat_map(|line| assembler.add(rank, line)).collect();
        items.extend(assembler.rest());
        items.iter().map(Item::line).collect()
    }

    /// A traceback is one line with the exception, also with torch's prefix, and also if it is cut in the middle.
    #[test]
    fn tracebacks_are_one_line() {
        let text = "before\nTraceback (most recent call last):\n  File \"a.py\", line 1\n    x()\n\
                    RuntimeError: no\nafter";
        let whole = "Traceback (most recent call last): … 4 lines, ending RuntimeError: no";
        assert_eq!(shown(0, text), ["before", whole, "after"]);
        let marked: String = text.lines().map(|line| format!("[rank3]: {line}\n")).collect();
        assert_eq!(shown(3, &marked), ["before", whole, "after"]);
        assert!(shown(2, &marked)[0].starts_with("[rank3]: "));
        let cut = "Traceback (most recent call last):\n  File \"a.py\", line 1\n";
        assert_eq!(
            shown(0, cut),
            ["Traceback (most recent call last): … 2 lines, ending File \"a.py\", line 1"]
        );
        let chained =
            format!("{cut}ValueError\n\nDuring handling of the above exception:\n\n{cut}");
        assert_eq!(shown(0, &chained).len(), 5);
    }

    /// However long a traceback is, its text is bounded. The hash has all of it.
    #[test]
    fn long_tracebacks_are_bounded() {
        let lines = |end: &str| {
            let mut assembler = Assembler::default();
            assembler.add(0, HEAD);
            for _ in 0..10_000 {
                assembler.add(0, "    deeper é()");
            }
            assembler.add(0, end).remove(0)
        };
        let [one, other] = ["E: 1", "E: 2"].map(lines);
        assert!(one.text.len() <= TEXT_MAX);
        assert_eq!(one.lines, 10_002);
        assert_ne!(one.hash, other.hash);
        assert!(one.line().ends_with("10002 lines, ending E: 1"), "{}", one.line());
        assert!(one.whole().ends_with("\n…\nE: 1"));
        let pattern = LinePattern::read(&Argument::new("--grep", "^E: [2]$")).unwrap();
        assert!(other.matches(&pattern) && !one.matches(&pattern));
    }
}
