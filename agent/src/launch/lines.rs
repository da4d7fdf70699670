//! Cuts a stream into lines of a bounded length, each with its end.

use bytes::{Bytes, BytesMut};

use crate::limits;

/// What has been read and not been taken.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// How much of it is known to have no end of a line.
    searched: usize,
}

impl Lines {
    /// Where further bytes are put.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        self.buffer.reserve(limits::CONSOLE_CHUNK);
        &mut self.buffer
    }

    /// The next line, or a piece of one that is too long; where nothing more comes, also a last one
    /// that has no end. Each is given one.
    pub(super) fn take(&mut self, is_over: bool) -> Option<Bytes> {
        // Room for the end that a piece is given.
        const LONGEST: usize = limits::MAX_RELAYED_LINE - 1;
        let end = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n');
        let whole = end.map(|end| self.searched + end + 1);
        let is_last = is_over && !self.buffer.is_empty();
        if whole.is_none() && self.buffer.len() < LONGEST && !is_last {
            self.searched = self.buffer.len();
            return None;
        }
        let len = whole.unwrap_or(self.buffer.len()).min(LONGEST);
        self.searched = 0;
        let mut line = self.buffer.split_to(len);
        if !line.ends_with(b"\n") {
            line.extend_from_slice(b"\n");
        }
        Some(line.freeze())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(chunks: &[&[u8]]) -> Vec<Bytes> {
        let (mut lines, mut all) = (Lines::default(), Vec::new());
        for (at, chunk) in chunks.iter().enumerate() {
            lines.room().extend_from_slice(chunk);
            while let Some(line) = lines.take(at + 1 == chunks.len()) {
                all.push(line);
            }
        }
        all
    }

    /// Every line comes once and whole, a last one without an end too.
    #[test]
    fn lines_are_whole() {
        assert_eq!(cut(&[b"a\nb", b"c\n\nd", b""]), ["a\n", "bc\n", "\n", "d\n"]);
        assert_eq!(cut(&[b""]), Vec::<Bytes>::new());
    }

    /// A line without end comes in pieces that are short enough.
    #[test]
    fn long_lines_are_cut() {
        let long = vec![b'x'; 2 * limits::MAX_RELAYED_LINE];
        let pieces = cut(&[&long, b"\nend"]);
        assert_eq!(pieces.last().unwrap(), "end\n");
        assert!(pieces.iter().all(|piece| piece.len() <= limits::MAX_RELAYED_LINE));
        let text: usize = pieces.iter().map(|piece| piece.len() - 1).sum();
        assert_eq!(text, long.len() + "end".len());
    }

    proptest! {
        /// However a stream is cut on its way, its lines are the same.
        #[test]
        fn cut_anywhere(text in "[ab\n]{0,60}", at in 0usize..60) {
            let (head, tail) = text.as_bytes().split_at(at.min(text.len()));
            prop_assert_eq!(cut(&[head, tail, b""]), cut(&[text.as_bytes(), b""]));
        }
    }
}
