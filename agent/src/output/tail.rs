//! The last lines of a worker's output.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use crate::output::limits;

/// The last lines of a stream that is being copied.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedTail(Arc<Mutex<Tail>>);

impl SharedTail {
    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).text()
    }

    pub(super) fn push(&self, chunk: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(chunk);
    }
}

/// The newest [`limits::STDERR_TAIL`] bytes of a stream.
#[derive(Debug, Default)]
struct Tail(VecDeque<u8>);

impl Tail {
    /// Adds new output.
    fn push(&mut self, chunk: &[u8]) {
        let keep = chunk.len().saturating_sub(limits::STDERR_TAIL);
        self.0.extend(&chunk[keep..]);
        let surplus = self.0.len().saturating_sub(limits::STDERR_TAIL);
        self.0.drain(..surplus);
    }

    /// Returns the last lines; the first of several is complete.
    fn text(&self) -> String {
        let (head, tail) = self.0.as_slices();
        last_lines(&[head, tail].concat(), self.0.len() >= limits::STDERR_TAIL)
    }
}

/// Returns `bytes` as text, without a first line that was cut.
fn last_lines(bytes: &[u8], cut: bool) -> String {
    let start = match bytes.iter().position(|&byte| byte == b'\n') {
        Some(end) if cut && end + 1 < bytes.len() => end + 1,
        Some(_) | None => 0,
    };
    let text = String::from_utf8_lossy(&bytes[start..]);
    last_bytes(text.trim_end(), limits::STDERR_TAIL).to_owned()
}

/// Returns the end of `text`, at most `limit` bytes; an invalid byte has become three bytes.
pub(crate) fn last_bytes(text: &str, limit: usize) -> &str {
    let surplus = text.len().saturating_sub(limit);
    let start = (surplus..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However much is written, memory stays bounded, and the kept text begins with a complete
    /// line.
    #[test]
    fn keeps_the_last_whole_lines() {
        let mut tail = Tail::default();
        for number in 0..10_000 {
            tail.push(format!("line {number}\n").as_bytes());
        }
        assert!(tail.0.len() <= limits::STDERR_TAIL);
        let text = tail.text();
        assert!(text.starts_with("line ") && text.ends_with("line 9999"), "{text}");
    }

    /// A single endless line is kept as far as it fits, and invalid bytes are replaced.
    #[test]
    fn odd_output_is_no_trouble() {
        let mut tail = Tail::default();
        tail.push(&[b'x'; 100_000]);
        assert_eq!(tail.text().len(), limits::STDERR_TAIL);
        let mut tail = Tail::default();
        tail.push(b"a\xff\n");
        assert_eq!(tail.text(), "a\u{fffd}");
        let mut tail = Tail::default();
        tail.push(&[0xff; 100_000]);
        assert!(tail.text().len() <= limits::STDERR_TAIL);
    }
}
