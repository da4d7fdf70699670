//! Reads one stream from a position on, line by line.

use std::{io, mem, os::unix::fs::FileExt, sync::Arc, time::Instant};

use super::{Content, OutputFile, OutputStream};
use crate::output::{limits, tail::Kept};

/// The position at which a reader begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Start {
    /// The begin of a stream that has just begun. Lines before the newest `OUTPUT_WINDOW` bytes count as left out.
    Begin,
    /// The newest lines, at most this many.
    Newest(usize),
}

/// The position of a reader in a stream.
#[derive(Debug)]
pub struct Cursor {
    /// The stream.
    pub stream: Arc<OutputStream>,
    /// The position of the reader; `None` before its first read.
    position: Option<u64>,
    start: Start,
    /// The lines that end before the position.
    lines: u64,
    /// The line that has begun at the position, and the time of its last bytes.
    begun: Vec<u8>,
    begun_at: Option<Instant>,
    /// True if the rest of the begun line is left out.
    skips_line: bool,
    /// True if the front of the begun line was shown.
    is_continued: bool,
    /// True if the stream cannot be read.
    has_failed: bool,
    /// True if there may be more to read.
    pub has_more: bool,
}

/// The result of a read.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct OutputPart {
    /// The lines, without their ends.
    pub lines: Vec<String>,
    /// The number of lines before them that were left out, because the reader was too slow.
    pub skipped: u64,
    /// True if there is more.
    pub has_more: bool,
}

impl Cursor {
    /// Creates a position in a stream.
    pub fn new(stream: Arc<OutputStream>, start: Start) -> Self {
        Self {
            stream,
            position: None,
            start,
            lines: 0,
            begun: Vec::new(),
            begun_at: None,
            skips_line: false,
            is_continued: false,
            has_failed: false,
            has_more: true,
        }
    }

    /// Returns true if nothing was read so far.
    pub fn is_new(&self) -> bool {
        self.position.is_none()
    }

    /// Returns true if a line has begun that is shown after a while even if it does not end.
    pub fn has_begun_line(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Returns the line that has begun, if there is one.
    pub fn take_begun(&mut self) -> Option<String> {
        let mut lines = Vec::new();
        if self.has_begun_line() {
            self.show_begun(&mut lines);
        }
        lines.pop()
    }

    /// Reads what is new, within a limit. This may wait for a disk.
    ///
    /// # Errors
    ///
    /// Returns the system's error if the file cannot be read. Later reads return nothing.
    pub fn read(&mut self, now: Instant) -> io::Result<OutputPart> {
        if self.has_failed {
            return Ok(OutputPart::default());
        }
        let part = self.read_more(now).inspect_err(|_| self.has_failed = true);
        self.has_more = part.as_ref().is_ok_and(|part| part.has_more);
        part
    }

    fn read_more(&mut self, now: Instant) -> io::Result<OutputPart> {
        let stream = Arc::clone(&self.stream);
        let mut part = OutputPart::default();
        let first = self.position.is_none();
        let (kept, has_more) = match &stream.content {
            Content::File(file) => self.read_file(file)?,
            Content::Tail(tail) => (tail.since(self.position.unwrap_or(0)), false),
        };
        part.has_more = has_more;
        let is_gap = self.position.is_none_or(|position| kept.start != position);
        if is_gap {
            part.skipped = kept.lines_before.saturating_sub(self.lines);
            self.lines = kept.lines_before;
            self.begun.clear();
            self.skips_line = !kept.is_line_start;
            self.is_continued = false;
        }
        self.position = Some(kept.start + kept.bytes.len() as u64);
        self.cut(&kept.bytes, &mut part);
        if !kept.bytes.is_empty() {
            self.begun_at = self.has_begun_line().then_some(now);
        } else if self.begun_at.is_some_and(|at| now >= at + limits::OUTPUT_LINE_PATIENCE) {
            self.show_begun(&mut part.lines);
        }
        if let (true, Start::Newest(most)) = (first, self.start) {
            part.lines.drain(..part.lines.len().saturating_sub(most));
            part.skipped = 0;
        }
        Ok(part)
    }

    /// Returns the content of a file from the position on, and true if there is more of it.
    fn read_file(&self, file: &OutputFile) -> io::Result<(Kept, bool)> {
        let opened = file.open()?;
        let len = opened.metadata()?.len();
        let end = file.end.get().copied();
        let position = match (self.position, end) {
            // A file that has become shorter was truncated, and begins again.
            (Some(position), None) => Some(position).filter(|position| *position <= len),
            (position, _) => position,
        };
        let len = end.map_or(len, |end| end.min(len));
        let begin = if self.position.is_some() { 0 } else { file.begin.min(len) };
        let from = position.unwrap_or(begin);
        let len = len.max(from);
        let max = limits::OUTPUT_WINDOW;
        let mut lines_before = self.lines;
        let (mut start, mut is_line_start) = (from, position.is_none());
        if len - from > max {
            start = len - max;
            let is_counted = self.position.is_some() || self.start == Start::Begin;
            let mut chunk = vec![0; usize::try_from(limits::OUTPUT_PART).unwrap_or(usize::MAX)];
            // Without a count, only the byte before the start is of interest.
            let mut at = if is_counted { from } else { start - 1 };
            while at < start {
                let room = usize::try_from(start - at).unwrap_or(usize::MAX).min(chunk.len());
                let len = opened.read_at(&mut chunk[..room], at)?;
                if len == 0 {
                    break;
                }
                let read = &chunk[..len];
                lines_before += read.iter().filter(|byte| **byte == b'\n').count() as u64;
                is_line_start = read.ends_with(b"\n");
                at += len as u64;
            }
        }
        let part = if self.position.is_none() { max } else { limits::OUTPUT_PART };
        let room = usize::try_from((len - start).min(part)).unwrap_or(0);
        let mut bytes = vec![0; room];
        let mut read = 0;
        while read < room {
            match opened.read_at(&mut bytes[read..], start + read as u64)? {
                0 => break,
                more => read += more,
            }
        }
        bytes.truncate(read);
        let has_more = start + (read as u64) < len;
        Ok((Kept { start, lines_before, is_line_start, bytes }, has_more))
    }

    /// Cuts content into lines.
    fn cut(&mut self, bytes: &[u8], part: &mut OutputPart) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_whole = piece.ends_with(b"\n");
            self.lines += u64::from(is_whole);
            let mut text = piece.strip_suffix(b"\n").unwrap_or(piece);
            if self.skips_line {
                // A progress bar may have no other ends for minutes.
                match text.iter().position(|byte| *byte == b'\r') {
                    Some(at) => text = &text[at + 1..],
                    None => {
                        self.skips_line = !is_whole;
                        part.skipped += u64::from(is_whole);
                        continue;
                    }
                }
                self.skips_line = false;
            }
            while !text.is_empty() {
                let room = limits::OUTPUT_LINE - self.begun.len();
                let (bytes, rest) = text.split_at(room.min(text.len()));
                self.begun.extend_from_slice(bytes);
                text = rest;
                if let Some(next) = text.first() {
                    // Of a bar that begins again and again, the newest whole state is shown.
                    let begins = self.begun.iter().rposition(|byte| *byte == b'\r');
                    let at =
                        begins.map_or_else(|| end_of_characters(&self.begun, *next), |at| at + 1);
                    let rest = self.begun.split_off(at);
                    self.show_begun(&mut part.lines);
                    self.begun = rest;
                }
            }
            if is_whole {
                // The rest of a line whose front was shown may be empty.
                if !(self.begun.is_empty() && self.is_continued) {
                    self.show_begun(&mut part.lines);
                }
                self.is_continued = false;
            }
        }
    }

    /// Shows the begun line as a terminal shows it: a carriage return begins the line again.
    fn show_begun(&mut self, lines: &mut Vec<String>) {
        let line = mem::take(&mut self.begun);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        let shown = line.rsplit(|byte| *byte == b'\r').next().unwrap_or_default();
        lines.push(String::from_utf8_lossy(shown).into_owned());
        self.begun_at = None;
        self.is_continued = true;
    }
}

/// Returns the length of a text without a last character that goes on with the byte `next`.
fn end_of_characters(text: &[u8], next: u8) -> usize {
    let goes_on = |byte: u8| byte & 0xC0 == 0x80;
    if !goes_on(next) {
        return text.len();
    }
    // A character has at most four bytes.
    let begun = text.iter().rev().take(3).position(|byte| !goes_on(*byte));
    begun.map_or(text.len(), |before| text.len() - before - 1)
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, io::Write};

    use super::{super::Outputs, *};
    use crate::{
        output::{streams::Stream, tail::SharedTail},
        sys::clock,
    };

    fn of(content: Content) -> Arc<OutputStream> {
        Arc::new(OutputStream { rank: 3, stream: Stream::Stdout, round: 1, content })
    }

    fn lines(part: &OutputPart) -> Vec<&str> {
        part.lines.iter().map(String::as_str).collect()
    }

    /// Lines are read once, from the begin of the round on, and a begun line is shown after a while.
    #[test]
    fn files_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout.log");
        std::fs::write(&path, "an earlier round\n").unwrap();
        let stream = of(Content::File(OutputFile::new(path.clone(), 17)));
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        let mut cursor = Cursor::new(stream, Start::Begin);
        let now = clock::now_blocking();
        let mut read = |text: &str, now| {
            file.write_all(text.as_bytes()).unwrap();
            cursor.read(now).unwrap()
        };
        assert_eq!(lines(&read("one\n10%\r50%\r\ntw", now)), ["one", "50%"]);
        assert_eq!(lines(&read("o\nthree? ", now)), ["two"]);
        assert_eq!(lines(&read("", now)), [""; 0]);
        let later = now + limits::OUTPUT_LINE_PATIENCE;
        assert_eq!(lines(&read("", later)), ["three? "]);
        assert_eq!(lines(&read("\n\nfour\n", later)), ["", "four"]);
        assert_eq!(lines(&read("", later + limits::OUTPUT_LINE_PATIENCE)), [""; 0]);
        // Its folder may be removed meanwhile.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(lines(&read("five\n", later)), ["five"]);
    }

    /// A new reader gets the newest lines only. A slow reader gets the newest lines as well, and the number of all others.
    #[test]
    fn late_readers_lose_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout.log");
        let all: String = (0..100_000).map(|number| format!("line {number:06}\n")).collect();
        std::fs::write(&path, &all).unwrap();
        let stream = || of(Content::File(OutputFile::new(path.clone(), 0)));
        let now = clock::now_blocking();
        let mut newest = Cursor::new(stream(), Start::Newest(2));
        let part = newest.read(now).unwrap();
        assert_eq!(lines(&part), ["line 099998", "line 099999"]);
        assert_eq!((part.skipped, part.has_more), (0, false));
        let mut whole = Cursor::new(stream(), Start::Begin);
        let part = whole.read(now).unwrap();
        assert_eq!(part.skipped + part.lines.len() as u64, 100_000);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"line without an end").unwrap();
        assert_eq!(newest.read(now).unwrap(), OutputPart::default());
        file.write_all(b"\n").unwrap();
        file.write_all(all.as_bytes()).unwrap();
        let (mut shown, mut skipped) = (0, 0);
        loop {
            let part = newest.read(now).unwrap();
            (shown, skipped) = (shown + part.lines.len() as u64, skipped + part.skipped);
            if !part.has_more {
                assert_eq!(part.lines.last().unwrap(), "line 099999");
                break;
            }
        }
        assert_eq!(shown + skipped, 100_001);
        assert!(skipped > 0 && shown > 0);
        file.set_len(0).unwrap();
        file.write_all(b"again\n").unwrap();
        assert_eq!(lines(&newest.read(now).unwrap()), ["again"]);
    }

    /// The end of a stream in the agent's memory is read in the same way.
    #[test]
    fn tails_are_followed() {
        let tail = SharedTail::readable(None);
        let mut cursor = Cursor::new(of(Content::Tail(tail.clone())), Start::Begin);
        let now = clock::now_blocking();
        tail.push(b"one\ntw");
        assert_eq!(lines(&cursor.read(now).unwrap()), ["one"]);
        let many =
            b"o\n".iter().chain(&b"xxxxxxxxx\n".repeat(10_000)).copied().collect::<Vec<u8>>();
        tail.push(&many);
        let part = cursor.read(now).unwrap();
        assert_eq!(part.skipped + part.lines.len() as u64, 10_001);
        assert!(part.skipped > 0);
        tail.push(b"end\n");
        assert_eq!(lines(&cursor.read(now).unwrap()), ["end"]);
    }

    /// A reader that begins within a progress bar sees the bar from its next carriage return on.
    #[test]
    fn bars_are_shown_after_a_cut() {
        let tail = SharedTail::readable(None);
        tail.push(&b"50% of a long bar\r".repeat(10_000));
        let mut cursor = Cursor::new(of(Content::Tail(tail.clone())), Start::Newest(10));
        let now = clock::now_blocking();
        assert!(cursor.read(now).unwrap().lines.iter().all(|line| line == "50% of a long bar"));
        tail.push(b"99%");
        cursor.read(now).unwrap();
        assert_eq!(cursor.take_begun().unwrap(), "99%");
    }

    /// A later round may append to the same file. Each reader reads only its own round.
    #[test]
    fn rounds_share_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout.log");
        let outputs = Outputs::default();
        let begin = |round, begin| {
            let file = Content::File(OutputFile::new(path.clone(), begin));
            outputs.add((1, round), 3, Stream::Stdout, Some(file));
            let rounds = outputs.rounds();
            Arc::clone(&rounds.last().unwrap().streams[0])
        };
        let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let mut write = |text: &[u8]| file.write_all(text).unwrap();
        let now = clock::now_blocking();
        let first = begin(1, 0);
        let mut follower = Cursor::new(Arc::clone(&first), Start::Begin);
        write(b"one\n");
        assert_eq!(lines(&follower.read(now).unwrap()), ["one"]);
        write(b"two\n");
        let mut second = Cursor::new(begin(2, 8), Start::Begin);
        write(b"three\n");
        assert_eq!(lines(&follower.read(now).unwrap()), ["two"]);
        assert_eq!(follower.read(now).unwrap(), OutputPart::default());
        assert_eq!(lines(&second.read(now).unwrap()), ["three"]);
        let mut late = Cursor::new(first, Start::Newest(10));
        assert_eq!(lines(&late.read(now).unwrap()), ["one", "two"]);
        file.set_len(0).unwrap();
        assert_eq!(follower.read(now).unwrap(), OutputPart::default());
    }

    /// A line that is too long becomes several, also if it arrives in pieces.
    #[test]
    fn long_lines_are_cut() {
        let tail = SharedTail::readable(None);
        let mut cursor = Cursor::new(of(Content::Tail(tail.clone())), Start::Begin);
        let now = clock::now_blocking();
        let mut all = Vec::new();
        for _ in 0..3 {
            tail.push(&vec![b'x'; 3000]);
            all.extend(cursor.read(now).unwrap().lines);
        }
        tail.push(b"\nend\n");
        all.extend(cursor.read(now).unwrap().lines);
        assert!(all.iter().all(|line| line.len() <= limits::OUTPUT_LINE));
        assert_eq!(all.concat(), format!("{}end", "x".repeat(9000)));
        assert_eq!(all.last().unwrap(), "end");
        let text = format!("a{}", "é".repeat(3000));
        tail.push(format!("{text}\n").as_bytes());
        assert_eq!(cursor.read(now).unwrap().lines.concat(), text);
        assert_eq!(end_of_characters("a€".as_bytes(), 0x82), 1);
    }
}
