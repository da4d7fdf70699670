//! Reads the events in a file of `--journal`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, Read},
};

use ragent_options::spec::{Argument, UsageError};
use ragent_rendezvous::event::EventId;

use super::{BYTES_MAX, ENTRIES_MAX, JournalEntry};
use crate::commands::error::LaunchError;

/// The longest line that is read, in bytes. Longer ones are not events.
const LINE_MAX: u64 = 1 << 20;

/// Opens a file of `--journal`.
///
/// # Errors
///
/// Returns a usage error if the file cannot be opened.
pub(super) fn open(path: &str) -> Result<JournalLines<BufReader<File>>, LaunchError> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    Ok(JournalLines::new(BufReader::new(file)))
}

/// Returns the error of a file that cannot be read.
pub(super) fn unreadable(path: &str, error: &io::Error) -> LaunchError {
    let hint = "give the file to which `--journal` of an agent has written";
    given(path).invalid(format_args!("cannot be read: {error}")).with_hint(hint).into()
}

/// Returns the error of a file without events.
pub(super) fn without_events(path: &str) -> UsageError {
    given(path).invalid("contains no events").with_hint(
        "an agent writes to its file only while it coordinates the job; give the file of another agent",
    )
}

fn given(path: &str) -> Argument {
    Argument::new("--journal", path)
}

/// The lines of a journal, read one by one.
#[derive(Debug)]
pub(super) struct JournalLines<R> {
    from: R,
    line: Vec<u8>,
    /// The number of lines so far that are not events.
    pub(super) others: u64,
}

impl<R: BufRead> JournalLines<R> {
    fn new(from: R) -> Self {
        Self { from, line: Vec::new(), others: 0 }
    }

    /// Returns the next event with its line; `None` at the end. Lines that are not events are counted. A last line without an end is not,
    /// since it may be incomplete.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub(super) fn next(&mut self) -> io::Result<Option<(JournalEntry, &str)>> {
        let entry = loop {
            self.line.clear();
            if self.from.by_ref().take(LINE_MAX).read_until(b'\n', &mut self.line)? == 0 {
                return Ok(None);
            }
            let has_end = self.line.ends_with(b"\n");
            if !has_end && self.line.len() as u64 == LINE_MAX {
                self.from.skip_until(b'\n')?;
                self.others += 1;
                continue;
            }
            match str::from_utf8(&self.line).ok().and_then(JournalEntry::read) {
                Some(entry) => break entry,
                None => self.others += u64::from(has_end && !self.line.trim_ascii().is_empty()),
            }
        };
        let line = str::from_utf8(&self.line).unwrap_or_default();
        Ok(Some((entry, line.trim_end())))
    }
}

/// The newest run in a file of `--journal`.
#[derive(Debug, Default)]
pub(in crate::commands) struct RecordedRun {
    /// Its newest events, by id.
    pub(in crate::commands) entries: Vec<JournalEntry>,
    /// True if it has older events, which are omitted.
    pub(in crate::commands) is_cut: bool,
    /// True if the file has events of other runs.
    pub(in crate::commands) has_others: bool,
    /// The number of lines that are not events.
    pub(in crate::commands) other_lines: u64,
}

impl RecordedRun {
    /// Reads the newest run of a file.
    ///
    /// # Errors
    ///
    /// Returns a usage error if the file cannot be read, or contains no events.
    pub(in crate::commands) fn read(path: &str) -> Result<Self, LaunchError> {
        let run = Self::of(open(path)?, ENTRIES_MAX, BYTES_MAX);
        let run = run.map_err(|error| unreadable(path, &error))?;
        if run.entries.is_empty() {
            return Err(without_events(path).into());
        }
        Ok(run)
    }

    /// Collects the newest `most` events of the newest run. Their lines have at most `most_bytes` bytes together. The events may be in any
    /// order, because files of several coordinators may have been joined.
    fn of(
        mut lines: JournalLines<impl BufRead>,
        most: usize,
        most_bytes: usize,
    ) -> io::Result<Self> {
        let mut run = Self::default();
        let mut newest: Option<(String, jiff::Timestamp)> = None;
        let mut entries: BTreeMap<EventId, JournalEntry> = BTreeMap::new();
        let mut bytes = 0;
        while let Some((entry, _)) = lines.next()? {
            match &mut newest {
                Some((uid, at)) if *uid == entry.job_uid => *at = entry.at.max(*at),
                Some((_, at)) if entry.at < *at => {
                    run.has_others = true;
                    continue;
                }
                Some(_) | None => {
                    run.has_others |= newest.is_some();
                    run.is_cut = false;
                    entries.clear();
                    bytes = 0;
                    newest = Some((entry.job_uid.clone(), entry.at));
                }
            }
            bytes += entry.len;
            bytes -= entries.insert(entry.id, entry).map_or(0, |same| same.len);
            while entries.len() > most || bytes > most_bytes {
                bytes -= entries.pop_first().map_or(bytes, |(_, oldest)| oldest.len);
                run.is_cut = true;
            }
        }
        run.entries = entries.into_values().collect();
        run.other_lines = lines.others;
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(uid: &str, id: &str, second: u32) -> String {
        format!(
            r#"{{"schema":1,"id":"{id}","at":"2026-11-21T20:31:{second:02}Z","run_id":"r","job_uid":"{uid}","round":7,"kind":"k","cause":null,"text":"t"}}"#
        ) + "\n"
    }

    fn read(text: &[u8], most: usize) -> (Vec<String>, RecordedRun) {
        read_within(text, most, usize::MAX)
    }

    fn read_within(text: &[u8], most: usize, bytes: usize) -> (Vec<String>, RecordedRun) {
        let lines = JournalLines::new(text);
        let run = RecordedRun::of(lines, most, bytes).expect("memory can be read");
        (run.entries.iter().map(|entry| format!("{}/{}", entry.job_uid, entry.id)).collect(), run)
    }

    /// The events of the newest run are read in the order of their ids, each once, at any place in the file.
    #[test]
    fn newest_run_is_read() {
        let [a1, a2, b1, b2, b3] = [
            line("a", "1.1", 1),
            line("a", "1.2", 2),
            line("b", "1.1", 3),
            line("b", "2.1", 5),
            line("b", "1.2", 4),
        ];
        let (ids, run) = read([&a1[..], &b1, &b2, &a2, &b3, &b1].concat().as_bytes(), 10);
        assert_eq!(ids, ["b/1.1", "b/1.2", "b/2.1"]);
        assert!(run.has_others && !run.is_cut);
        assert!(!read(b1.as_bytes(), 10).1.has_others);
    }

    /// Lines that are not events are counted, and an incomplete last line is not.
    #[test]
    fn other_lines_are_counted() {
        let event = line("a", "1.1", 1);
        let long = "x".repeat(LINE_MAX as usize + 5);
        let text = [&event[..], "no event\n\n{}\n", &long, "\n", &event[..40]].concat();
        let (ids, run) = read(text.as_bytes(), 10);
        assert_eq!((&ids[..], run.other_lines), (&["a/1.1".to_owned()][..], 3));
        let (ids, run) = read(&[b"\xff\n", event.trim_end().as_bytes()].concat(), 10);
        assert_eq!((&ids[..], run.other_lines), (&["a/1.1".to_owned()][..], 1));
    }

    /// A long journal keeps only the newest events.
    #[test]
    fn old_events_are_omitted() {
        let text: String =
            (1..=5).map(|number| line("a", &format!("1.{number}"), number)).collect();
        let (ids, run) = read(text.as_bytes(), 2);
        assert_eq!(ids, ["a/1.4", "a/1.5"]);
        assert!(run.is_cut);
        assert!(!read(text.as_bytes(), 5).1.is_cut);
        let again = text.repeat(2);
        let (ids, run) = read_within(again.as_bytes(), 5, text.len() / 2);
        assert_eq!(ids, ["a/1.4", "a/1.5"]);
        assert!(run.is_cut);
        assert!(!read_within(again.as_bytes(), 5, text.len()).1.is_cut);
    }
}
