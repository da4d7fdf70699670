//! The last lines of a worker's output.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use crate::output::limits;

/// The last lines of a stream that is being copied.
#[derive(Clone, Debug, Default)]
pub struct SharedTail {
    tail: Arc<Mutex<Tail>>,
    /// Notified of the first output since the last call of [`SharedTail::take_new`].
    output: Option<Arc<Notify>>,
    /// True if parts of much output may be left out.
    is_sampled: bool,
}

impl SharedTail {
    /// Creates a tail that notifies `output`.
    pub fn watched(output: Option<Arc<Notify>>) -> Self {
        Self { output, ..Self::default() }
    }

    /// Creates a tail that notifies `output`, and that may leave out parts of much output, so that reading costs
    /// little.
    pub fn sampled(output: Arc<Notify>) -> Self {
        Self { output: Some(output), is_sampled: true, ..Self::default() }
    }

    /// Creates a tail that keeps more, for readers of the output.
    pub fn readable(output: Option<Arc<Notify>>) -> Self {
        let tail = Tail { max: limits::READABLE_TAIL, ..Tail::default() };
        Self { tail: Arc::new(Mutex::new(tail)), output, is_sampled: false }
    }

    /// Returns what is kept from this position of the stream on.
    pub(super) fn since(&self, position: u64) -> Kept {
        self.lock().since(position)
    }

    /// Returns the kept text.
    pub fn text(&self) -> String {
        self.lock().text()
    }

    /// Returns the last lines if there was output since the last call: those that have ended since then, and a begun one.
    pub fn take_new(&self) -> Option<Vec<u8>> {
        let mut tail = self.lock();
        std::mem::take(&mut tail.is_new).then(|| tail.new_lines())
    }

    /// Adds output.
    pub fn push(&self, chunk: &[u8]) {
        let was_new = {
            let mut tail = self.lock();
            tail.push(chunk);
            std::mem::replace(&mut tail.is_new, true)
        };
        if let Some(output) = self.output.as_ref().filter(|_| !was_new) {
            output.notify_one();
        }
    }

    /// Returns the length of the front of a chunk of `len` bytes that is left out: the caller adds the rest only.
    pub(super) fn leave_out(&self, len: usize) -> usize {
        let unread = len.saturating_sub(limits::SAMPLED_OUTPUT);
        if !self.is_sampled || unread == 0 {
            return 0;
        }
        self.lock().break_off();
        unread
    }

    fn lock(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a stream.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Kept {
    /// The position of its first byte.
    pub(super) start: u64,
    /// The number of lines that end before it.
    pub(super) lines_before: u64,
    /// True if a line begins there.
    pub(super) is_line_start: bool,
    /// The content.
    pub(super) bytes: Vec<u8>,
}

/// The newest bytes of a stream.
#[derive(Debug)]
struct Tail {
    bytes: VecDeque<u8>,
    /// The number of bytes that are kept.
    max: usize,
    /// The number of bytes that are no longer kept, and of the lines that end in them.
    dropped: u64,
    dropped_lines: u64,
    /// True if a line begins with the first kept byte.
    is_line_start: bool,
    /// True if there was output since it was last looked at.
    is_new: bool,
    /// The number of bytes of complete lines that were looked at.
    seen: usize,
    /// True if the first line may be incomplete.
    is_cut: bool,
    /// True if the next output belongs to a line that began in a part that is not known.
    skips_line: bool,
}

impl Default for Tail {
    fn default() -> Self {
        Self {
            bytes: VecDeque::new(),
            max: limits::STDERR_TAIL,
            dropped: 0,
            dropped_lines: 0,
            is_line_start: true,
            is_new: false,
            seen: 0,
            is_cut: false,
            skips_line: false,
        }
    }
}

impl Tail {
    /// Adds new output.
    fn push(&mut self, mut chunk: &[u8]) {
        if self.skips_line {
            let Some(end) = chunk.iter().position(ends_line) else { return };
            chunk = &chunk[end + 1..];
            self.skips_line = false;
        }
        let keep = chunk.len().saturating_sub(self.max);
        let (unkept, chunk) = chunk.split_at(keep);
        let surplus = (self.bytes.len() + chunk.len()).saturating_sub(self.max);
        let surplus = surplus.min(self.bytes.len());
        let mut dropped = 0;
        for byte in self.bytes.drain(..surplus).chain(unkept.iter().copied()) {
            self.is_line_start = byte == b'\n';
            self.dropped_lines += u64::from(self.is_line_start);
            dropped += 1;
        }
        self.dropped += dropped;
        self.bytes.extend(chunk);
        self.is_cut |= dropped > 0;
        self.seen = self.seen.saturating_sub(surplus);
    }

    fn since(&self, position: u64) -> Kept {
        let at = usize::try_from(position.saturating_sub(self.dropped)).unwrap_or(usize::MAX);
        Kept {
            start: position.max(self.dropped),
            lines_before: self.dropped_lines,
            is_line_start: self.is_line_start,
            bytes: self.bytes.iter().skip(at).copied().collect(),
        }
    }

    /// Drops the begun line: its rest is not known.
    fn break_off(&mut self) {
        let complete = self.bytes.iter().rposition(ends_line).map_or(0, |end| end + 1);
        self.bytes.truncate(complete);
        self.skips_line = true;
    }

    /// Returns the lines that have ended since the last call with a line feed or a carriage return, and a begun one.
    fn new_lines(&mut self) -> Vec<u8> {
        let newest = self.bytes.len().saturating_sub(limits::STDERR_TAIL);
        let start = if self.is_cut && self.seen == 0 || newest > self.seen {
            let from = newest.max(self.seen);
            let end = self.bytes.iter().skip(from).position(ends_line);
            end.map_or(self.bytes.len(), |end| from + end + 1)
        } else {
            self.seen
        };
        self.seen = self.bytes.iter().rposition(ends_line).map_or(self.seen, |end| end + 1);
        self.bytes.iter().skip(start).copied().collect()
    }

    /// Returns the last lines; the first of several is complete.
    fn text(&self) -> String {
        let newest = self.bytes.len().saturating_sub(limits::STDERR_TAIL);
        let newest: Vec<u8> = self.bytes.iter().skip(newest).copied().collect();
        last_lines(&newest, self.bytes.len() >= limits::STDERR_TAIL)
    }
}

fn ends_line(byte: &u8) -> bool {
    matches!(byte, b'\n' | b'\r')
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
pub fn last_bytes(text: &str, limit: usize) -> &str {
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
        assert!(tail.bytes.len() <= limits::STDERR_TAIL);
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

    /// A reader gets what is kept from its position on, and the number of lines before that.
    #[test]
    fn readers_have_positions() {
        let tail = SharedTail::readable(None);
        tail.push(b"one\ntwo\n");
        let all =
            Kept { start: 0, lines_before: 0, is_line_start: true, bytes: b"one\ntwo\n".to_vec() };
        assert_eq!(tail.since(0), all);
        assert_eq!(tail.since(8).bytes, b"");
        let chunk = [b"x".repeat(99), b"\n".to_vec()].concat();
        for _ in 0..1000 {
            tail.push(&chunk);
        }
        let kept = tail.since(4);
        assert_eq!(kept.bytes.len(), limits::READABLE_TAIL);
        assert_eq!(kept.start, 8 + 100_000 - limits::READABLE_TAIL as u64);
        assert_eq!(kept.lines_before, 2 + (kept.start - 8) / 100);
        assert!(!kept.is_line_start);
        tail.push(&chunk.repeat(1000));
        assert_eq!(tail.since(0).lines_before, 2 + (tail.since(0).start - 8) / 100);
        assert!(tail.text().len() <= limits::STDERR_TAIL);
    }

    /// However much is written, one notification follows each look, and a look returns the complete last lines.
    #[tokio::test]
    async fn output_is_announced_once() {
        let output = Arc::new(Notify::new());
        let tail = SharedTail::watched(Some(Arc::clone(&output)));
        assert_eq!(tail.take_new(), None);
        for number in 0..1000 {
            tail.push(format!("step: {number}\r").as_bytes());
        }
        output.notified().await;
        let lines = tail.take_new().unwrap();
        assert!(lines.starts_with(b"step: ") && lines.ends_with(b"step: 999\r"));
        assert!(lines.len() <= limits::STDERR_TAIL);
        assert_eq!(tail.take_new(), None);
        tail.push(b"more");
        output.notified().await;
        assert_eq!(tail.take_new().unwrap(), b"more");
        tail.push(b" and\rmore");
        assert_eq!(tail.take_new().unwrap(), b"more and\rmore");
        tail.push(&[b'7'; 10_000]);
        assert_eq!(tail.take_new().unwrap(), b"", "the start of the line is not known");
    }

    /// Where a part is left out, the lines on both sides of it are dropped, as their numbers may be incomplete.
    #[test]
    fn sampled_lines_are_complete() {
        let tail = SharedTail::sampled(Arc::new(Notify::new()));
        tail.push(b"step: 1\nst");
        assert_eq!(tail.leave_out(limits::SAMPLED_OUTPUT), 0);
        tail.push(b"ep: 2\nstep: 3");
        assert_eq!(tail.leave_out(limits::SAMPLED_OUTPUT + 100), 100);
        tail.push(b"45\nstep: 6\nstep: ");
        tail.push(b"7\n");
        assert_eq!(tail.take_new().unwrap(), b"step: 1\nstep: 2\nstep: 6\nstep: 7\n");
        assert_eq!(tail.leave_out(1 << 20), (1 << 20) - limits::SAMPLED_OUTPUT);
        tail.push(b"no end");
        assert_eq!(tail.take_new().unwrap(), b"");
        let all = SharedTail::watched(None);
        assert_eq!(all.leave_out(1 << 20), 0, "the end of a failed worker's stderr is complete");
    }
}
