//! Cuts output into lines with a prefix.

use std::{fs::File, sync::Arc};

use crate::spec::LineFilters;

/// A selection of lines that are copied to a file of their own.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The filters for these lines.
    pub filters: LineFilters,
    /// The file.
    pub file: Arc<File>,
}

/// The settings for the lines of a stream.
#[derive(Debug)]
pub(super) struct Cutter {
    pub(super) prefix: Vec<u8>,
    pub(super) choice: Option<Choice>,
    /// The maximum length of a line; longer ones are cut into several.
    pub(super) max_line: usize,
    /// The maximum output of one cut.
    pub(super) max_out: usize,
}

/// The result of one cut.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Cut {
    /// The number of input bytes that are in the other fields.
    pub(super) used: usize,
    /// Complete lines, with their prefix.
    pub(super) out: Vec<u8>,
    /// Those of them that filters have selected.
    pub(super) chosen: Vec<u8>,
    /// The start of the next line.
    pub(super) rest: Vec<u8>,
}

impl Cutter {
    /// Creates a cutter whose cuts have at most `max_out` bytes.
    pub(super) fn new(
        mut prefix: Vec<u8>,
        choice: Option<Choice>,
        max_line: usize,
        max_out: usize,
    ) -> Self {
        // A line must fit with its prefix, even if the system makes pipes very small.
        prefix.truncate(max_out / 2);
        let max_line = max_line.min((max_out - prefix.len()).saturating_sub(1)).max(1);
        Self { prefix, choice, max_line, max_out }
    }

    /// Cuts `begun`, the start of a line, and the `input` that follows it.
    pub(super) fn cut(&self, begun: &[u8], input: &[u8]) -> Cut {
        let mut cut = Cut { rest: begun.to_vec(), ..Cut::default() };
        for mut line in input.split_inclusive(|&byte| byte == b'\n') {
            while !line.is_empty() {
                let room = self.max_line.saturating_sub(cut.rest.len()).max(1);
                let (part, after) = line.split_at(room.min(line.len()));
                let is_whole = part.ends_with(b"\n") || part.len() == room;
                let len = self.prefix.len() + cut.rest.len() + part.len();
                if is_whole && !cut.out.is_empty() && cut.out.len() + len > self.max_out {
                    return cut;
                }
                cut.rest.extend_from_slice(part);
                cut.used += part.len();
                line = after;
                if is_whole {
                    self.end_line(&mut cut);
                }
            }
        }
        cut
    }

    /// Cuts a last line without a line break, and adds one.
    pub(super) fn cut_rest(&self, begun: &[u8]) -> Cut {
        let mut cut = Cut { rest: begun.to_vec(), ..Cut::default() };
        if !begun.is_empty() {
            cut.rest.push(b'\n');
            self.end_line(&mut cut);
        }
        cut
    }

    fn end_line(&self, cut: &mut Cut) {
        let is_chosen =
            self.choice.as_ref().is_some_and(|choice| choice.filters.matches(&cut.rest));
        for out in [Some(&mut cut.out), is_chosen.then_some(&mut cut.chosen)] {
            let Some(out) = out else { continue };
            out.extend_from_slice(&self.prefix);
            out.extend_from_slice(&cut.rest);
        }
        cut.rest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cutter(choice: Option<Choice>) -> Cutter {
        Cutter::new(b"[a0]:".to_vec(), choice, 100, 1000)
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    /// Every line gets its prefix once, however the output is cut, and carriage returns are kept.
    #[test]
    fn lines_get_one_prefix() {
        let cutter = cutter(None);
        let first = cutter.cut(b"", b"one\ntw");
        assert_eq!((text(&first.out), text(&first.rest)), ("[a0]:one\n", "tw"));
        let second = cutter.cut(&first.rest, b"o\r50%\r");
        assert_eq!((text(&second.out), text(&second.rest)), ("", "two\r50%\r"));
        let third = cutter.cut(&second.rest, b"\nthree");
        assert_eq!(text(&third.out), "[a0]:two\r50%\r\n");
        assert_eq!(text(&cutter.cut_rest(&third.rest).out), "[a0]:three\n");
        assert_eq!(cutter.cut_rest(b""), Cut::default());
    }

    /// Selected lines are copied with their prefix, including a last one without a line break.
    #[test]
    fn chosen_lines_are_copied() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let cutter = cutter(Some(Choice { filters: LineFilters::of(&["loss"]), file }));
        let cut = cutter.cut(b"", b"step 1\nloss 2\nlo");
        assert_eq!(text(&cut.out), "[a0]:step 1\n[a0]:loss 2\n");
        assert_eq!(text(&cut.chosen), "[a0]:loss 2\n");
        let cut = cutter.cut(&cut.rest, b"ss 3");
        assert_eq!(text(&cut.chosen), "");
        assert_eq!(text(&cutter.cut_rest(&cut.rest).chosen), "[a0]:loss 3\n");
    }

    /// A cut never exceeds its limit, and the cuts together have every byte once.
    #[test]
    fn cuts_are_bounded() {
        let cutter = Cutter::new(b"> ".to_vec(), None, 8, 16);
        let input = b"a\nbb\nccc\na line that is too long\nb";
        let (mut left, mut rest, mut all) = (&input[..], Vec::new(), String::new());
        while !left.is_empty() {
            let cut = cutter.cut(&rest, left);
            assert!(cut.used > 0 && cut.out.len() <= 16, "{cut:?}");
            all.push_str(text(&cut.out));
            (left, rest) = (&left[cut.used..], cut.rest);
        }
        assert_eq!(all, "> a\n> bb\n> ccc\n> a line t> hat is t> oo long\n");
        assert_eq!(text(&rest), "b");
    }
}
