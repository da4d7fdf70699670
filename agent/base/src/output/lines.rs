//! Cuts output into lines with a prefix.

use std::{fs::File, sync::Arc};

use super::filters::LineFilters;
use crate::output::limits;

/// A selection of lines that are copied to a file of their own.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The filters for these lines.
    pub filters: LineFilters,
    /// The file.
    pub file: Arc<File>,
}

/// Cuts a stream into lines.
#[derive(Debug)]
pub(super) struct Cutter {
    pub(super) prefix: Vec<u8>,
    pub(super) choice: Option<Choice>,
    /// The start of the next line.
    pub(super) begun: Vec<u8>,
}

/// The result of one cut.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Cut {
    /// Complete lines, with their prefix.
    pub(super) out: Vec<u8>,
    /// Those of them that filters have selected.
    pub(super) chosen: Vec<u8>,
}

impl Cutter {
    /// Cuts the next part of the stream. A line of more than [`limits::MAX_CONSOLE_LINE`] becomes several.
    pub(super) fn cut(&mut self, input: &[u8]) -> Cut {
        let mut cut = Cut::default();
        for mut line in input.split_inclusive(|&byte| byte == b'\n') {
            while !line.is_empty() {
                let room = limits::MAX_CONSOLE_LINE.saturating_sub(self.begun.len()).max(1);
                let (part, after) = line.split_at(room.min(line.len()));
                self.begun.extend_from_slice(part);
                line = after;
                if part.ends_with(b"\n") || part.len() == room {
                    self.end_line(&mut cut);
                }
            }
        }
        cut
    }

    /// Ends a last line without a line break, and adds one.
    pub(super) fn end(&mut self) -> Cut {
        let mut cut = Cut::default();
        if !self.begun.is_empty() {
            self.begun.push(b'\n');
            self.end_line(&mut cut);
        }
        cut
    }

    fn end_line(&mut self, cut: &mut Cut) {
        let is_chosen =
            self.choice.as_ref().is_some_and(|choice| choice.filters.matches(&self.begun));
        for out in [Some(&mut cut.out), is_chosen.then_some(&mut cut.chosen)] {
            let Some(out) = out else { continue };
            out.extend_from_slice(&self.prefix);
            out.extend_from_slice(&self.begun);
        }
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cutter(choice: Option<Choice>) -> Cutter {
        Cutter { prefix: b"[a0]:".to_vec(), choice, begun: Vec::new() }
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).unwrap()
    }

    /// Every line gets its prefix once, however the output is cut, and carriage returns are kept.
    #[test]
    fn lines_get_one_prefix() {
        let mut cutter = cutter(None);
        assert_eq!(text(&cutter.cut(b"one\ntw").out), "[a0]:one\n");
        assert_eq!(text(&cutter.cut(b"o\r50%\r").out), "");
        assert_eq!(text(&cutter.cut(b"\nthree").out), "[a0]:two\r50%\r\n");
        assert_eq!(text(&cutter.end().out), "[a0]:three\n");
        assert_eq!(cutter.end(), Cut::default());
    }

    /// Selected lines are copied with their prefix, including a last one without a line break.
    #[test]
    fn chosen_lines_are_copied() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut cutter = cutter(Some(Choice { filters: LineFilters::of(&["loss"]), file }));
        let cut = cutter.cut(b"step 1\nloss 2\nlo");
        assert_eq!(text(&cut.out), "[a0]:step 1\n[a0]:loss 2\n");
        assert_eq!(text(&cut.chosen), "[a0]:loss 2\n");
        assert_eq!(text(&cutter.cut(b"ss 3").chosen), "");
        assert_eq!(text(&cutter.end().chosen), "[a0]:loss 3\n");
    }

    /// A line that is too long becomes several, and no byte is lost.
    #[test]
    fn long_lines_are_cut() {
        const LEN: usize = limits::MAX_CONSOLE_LINE;
        let mut cutter = cutter(None);
        let mut out = cutter.cut(&vec![b'a'; LEN - 1]).out;
        assert_eq!(out, b"");
        out.extend(cutter.cut(&vec![b'a'; LEN + 5]).out);
        out.extend(cutter.cut(b"\nb\n").out);
        let long = "a".repeat(LEN);
        assert!(text(&out) == format!("[a0]:{long}[a0]:{long}[a0]:aaaa\n[a0]:b\n"));
    }
}
