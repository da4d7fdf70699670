//! Splits a stream into lines of limited length, each with a line feed at its end.
//!
//! The codecs of tokio-util would lose output:
//!
//! - `LinesCodec` requires UTF-8 and removes carriage returns.
//! - It and `AnyDelimiterCodec` discard the rest of a line that is too long.

use bytes::{Bytes, BytesMut};

use crate::commands::ssh::limits;

/// The bytes that have been read and not yet taken.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: BytesMut,
    /// The length of the front of `buffer` that is known to have no line feed.
    searched: usize,
}

impl Lines {
    /// Returns the buffer for further bytes.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        self.buffer.reserve(limits::CONSOLE_CHUNK);
        &mut self.buffer
    }

    /// Takes the next line, or a piece of a line that is too long. If `is_over`, also takes a last line without a line feed. A missing line
    /// feed is added.
    pub(super) fn take(&mut self, is_over: bool) -> Option<Bytes> {
        // One byte less, for the line feed that is added to a piece.
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

    /// Every line is returned once and complete, including a last one without a line feed.
    #[test]
    fn lines_are_whole() {
        assert_eq!(cut(&[b"a\nb", b"c\n\nd", b""]), ["a\n", "bc\n", "\n", "d\n"]);
        assert_eq!(cut(&[b""]), Vec::<Bytes>::new());
    }

    /// A line that is too long is returned in pieces of limited length.
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
        /// The lines of a stream are the same, however its bytes are divided.
        #[test]
        fn cut_anywhere(text in "[ab\n]{0,60}", at in 0usize..60) {
            let (head, tail) = text.as_bytes().split_at(at.min(text.len()));
            prop_assert_eq!(cut(&[head, tail, b""]), cut(&[text.as_bytes(), b""]));
        }
    }
}
