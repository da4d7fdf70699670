//! Prints the output of workers.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use ragent_base::report::fold;
use ragent_coordinator::pages::logs::LogsMessage;
use ragent_options::spec::LinePattern;
use ragent_proto::printable;
use ragent_rendezvous::snapshot::grouped;
use serde_json::json;

use super::{
    assembly::{Assembler, Item},
    collapse::{Collapse, Group, RankLine, WAIT},
};

/// The time for which the old lines of one node wait for those of the others.
const WAIT_OLD: Duration = Duration::from_secs(1);

/// The time after which a traceback is printed that does not go on.
const WAIT_TRACEBACK: Duration = Duration::from_secs(1);

/// The interval between two notes about lines that are not shown.
const SKIPPED_INTERVAL: Duration = Duration::from_secs(1);

/// The width of the ranks before a line: at least this one, so that most lines are aligned.
const WIDTH: usize = 10;
/// The widest ranks with which other lines are aligned.
const WIDTH_MAX: usize = 24;

/// The tracebacks that may be incomplete at the same time. A further one is printed at once.
const TRACEBACKS_MAX: usize = 4096;

/// The way in which lines are printed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Form {
    /// True for each line by itself.
    pub(super) is_raw: bool,
    /// True for JSON.
    pub(super) is_json: bool,
    /// True if output goes on, so that no line waits for long.
    pub(super) follows: bool,
    /// True if the lines are shown on a terminal, which they must not control.
    pub(super) is_terminal: bool,
}

/// The lines that wait, and the text that is to be printed.
#[derive(Debug, Default)]
pub(super) struct Printer {
    form: Form,
    pattern: Option<LinePattern>,
    collapse: Collapse,
    /// Tracebacks that may be incomplete, with the time of their last line.
    tracebacks: HashMap<(u32, bool), (Assembler, Instant, RankLine)>,
    /// The number of lines that a host has left out, and the time at which that is printed.
    skipped: BTreeMap<Arc<str>, u64>,
    skipped_due: Option<Instant>,
    width: usize,
    /// The newest round of a line.
    round: Option<u64>,
    /// The text.
    pub(super) text: String,
}

impl Printer {
    pub(super) fn new(form: Form, pattern: Option<LinePattern>) -> Self {
        Self { form, pattern, width: WIDTH, ..Self::default() }
    }

    /// Returns true if output goes on.
    pub(super) fn follows(&self) -> bool {
        self.form.follows
    }

    /// Handles output of a node on this host.
    pub(super) fn handle(&mut self, now: Instant, host: &Arc<str>, message: LogsMessage) {
        let LogsMessage::Output { rank, is_stderr, round, is_old, skipped, lines } = message else {
            return;
        };
        if skipped > 0 {
            let all = self.skipped.entry(Arc::clone(host)).or_default();
            *all = all.saturating_add(skipped);
            self.skipped_due.get_or_insert(now + SKIPPED_INTERVAL);
        }
        let frame = RankLine {
            rank,
            host: Arc::clone(host),
            is_stderr,
            round,
            item: Item::default(),
            is_old,
        };
        for line in lines {
            if self.form.is_raw {
                self.print_raw(&frame, &line);
            } else {
                self.add(now, &frame, &line);
            }
        }
        self.handle_time(now);
    }

    /// Handles the loss of the connection to a node on this host. Only programs need a line for it: people get a note.
    pub(super) fn handle_gap(&mut self, host: &str) {
        if self.form.is_json {
            self.text += &format!("{}\n", json!({ "hosts": [host], "skipped": null }));
        }
    }

    /// Prints what is due.
    pub(super) fn handle_time(&mut self, now: Instant) {
        if self.form.follows {
            let is_over = |last: Instant| now >= last + WAIT_TRACEBACK;
            let over = self.tracebacks.iter().filter(|(_, (_, last, _))| is_over(*last));
            let over: Vec<_> = over.map(|(key, _)| *key).collect();
            for key in over {
                self.end_traceback(now, key);
            }
        }
        while let Some(group) = self.collapse.next_due(now) {
            self.print(&group);
        }
        if self.skipped_due.is_some_and(|due| due <= now) {
            self.print_skipped();
        }
    }

    /// Returns the next time at which something is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let tracebacks = self.tracebacks.values().map(|(_, last, _)| *last + WAIT_TRACEBACK);
        let tracebacks = tracebacks.min().filter(|_| self.form.follows);
        [tracebacks, self.collapse.due(), self.skipped_due].into_iter().flatten().min()
    }

    /// Prints all that waits.
    pub(super) fn finish(&mut self, now: Instant) {
        let keys: Vec<_> = self.tracebacks.keys().copied().collect();
        for key in keys {
            self.end_traceback(now, key);
        }
        while let Some(group) = self.collapse.next() {
            self.print(&group);
        }
        self.print_skipped();
    }

    fn add(&mut self, now: Instant, frame: &RankLine, line: &str) {
        let key = (frame.rank, frame.is_stderr);
        // A traceback does not go on in the next round.
        if self.tracebacks.get(&key).is_some_and(|(_, _, begun)| begun.round != frame.round) {
            self.end_traceback(now, key);
        }
        let begun = self.tracebacks.remove(&key);
        let mut assembler = begun.map(|(assembler, ..)| assembler).unwrap_or_default();
        for item in assembler.add(frame.rank, line) {
            self.add_item(now, RankLine { item, ..frame.clone() });
        }
        if assembler.has_begun() {
            self.tracebacks.insert(key, (assembler, now, frame.clone()));
            if self.tracebacks.len() > TRACEBACKS_MAX {
                self.end_traceback(now, key);
            }
        }
    }

    fn end_traceback(&mut self, now: Instant, key: (u32, bool)) {
        let Some((mut assembler, _, frame)) = self.tracebacks.remove(&key) else { return };
        if let Some(item) = assembler.rest() {
            self.add_item(now, RankLine { item, ..frame });
        }
    }

    fn add_item(&mut self, now: Instant, line: RankLine) {
        if self.pattern.as_ref().is_some_and(|pattern| !line.item.matches(pattern)) {
            return;
        }
        let wait = if line.is_old { WAIT_OLD } else { WAIT };
        self.collapse.add(line, self.form.follows.then(|| now + wait));
        // Without an end, too many lines may wait.
        while let Some(group) = self.collapse.next_due(now) {
            self.print(&group);
        }
    }

    fn print_raw(&mut self, frame: &RankLine, line: &str) {
        if self.pattern.as_ref().is_some_and(|pattern| !pattern.matches(line)) {
            return;
        }
        let RankLine { rank, host, is_stderr, round, .. } = frame;
        if self.form.is_json {
            return self.print_json(&[(*rank, *rank)], &[host], (*is_stderr, *round), line);
        }
        self.begin_round(*round);
        self.print_line(&rank.to_string(), line);
    }

    fn print(&mut self, group: &Group) {
        let Group { ranks, hosts, is_stderr, round, item } = group;
        let ranks: Vec<(u32, u32)> = ranks_as_ranges(ranks.iter().copied());
        if self.form.is_json {
            let hosts: Vec<&str> = hosts.iter().map(AsRef::as_ref).collect();
            return self.print_json(&ranks, &hosts, (*is_stderr, *round), &item.whole());
        }
        self.begin_round(*round);
        self.print_line(&fold::numbers(ranks), &item.line());
    }

    fn print_json(
        &mut self,
        ranks: &[(u32, u32)],
        hosts: &[&str],
        (is_stderr, round): (bool, u64),
        text: &str,
    ) {
        let stream = if is_stderr { "stderr" } else { "stdout" };
        let line = json!({
            "ranks": ranks, "hosts": hosts, "stream": stream, "round": round, "text": text,
        });
        self.text += &format!("{line}\n");
    }

    /// Prints a line between the lines of two rounds.
    fn begin_round(&mut self, round: u64) {
        if self.round.is_some_and(|newest| newest < round) {
            self.print_line("", &format!("(round {round})"));
        }
        self.round = self.round.max(Some(round));
    }

    fn print_line(&mut self, ranks: &str, line: &str) {
        // Only a hostile agent sends a line with a line break.
        let line = line.replace(['\n', '\r'], " ");
        let line = if self.form.is_terminal { printable(&line) } else { line };
        self.width = self.width.max(ranks.len().min(WIDTH_MAX));
        self.text += &format!("{ranks:<width$} | {line}\n", width = self.width);
    }

    fn print_skipped(&mut self) {
        self.skipped_due = None;
        for (host, lines) in std::mem::take(&mut self.skipped) {
            if self.form.is_json {
                self.text += &format!("{}\n", json!({ "hosts": [&*host], "skipped": lines }));
                continue;
            }
            let lines = match lines {
                1 => "1 line".to_owned(),
                lines => format!("{} lines", grouped(lines)),
            };
            let note = format!("({lines} not shown: this reader is too slow; the file has them)");
            self.print_line(&host, &note);
        }
    }
}

/// Returns ranks in ascending order as ranges.
fn ranks_as_ranges(ranks: impl Iterator<Item = u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            Some(_) | None => ranges.push((rank, rank)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use ragent_base::sys::clock;
    use ragent_options::spec::Argument;

    use super::*;

    fn output(rank: u32, lines: &[&str]) -> LogsMessage {
        LogsMessage::Output {
            rank,
            is_stderr: false,
            round: 1,
            is_old: false,
            skipped: 0,
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
        }
    }

    fn printed(form: Form, pattern: Option<&str>, messages: &[LogsMessage]) -> String {
        let pattern =
            pattern.map(|pattern| LinePattern::read(&Argument::new("--grep", pattern)).unwrap());
        let (mut printer, now) = (Printer::new(form, pattern), clock::now_blocking());
        for (number, message) in messages.iter().enumerate() {
            printer.handle(now, &format!("n{}", number + 1).into(), message.clone());
        }
        printer.finish(now);
        printer.text
    }

    /// The same lines are printed once, with their ranks.
    #[test]
    fn lines_have_ranks() {
        let traceback = ["step 1", "Traceback (most recent call last):", "  File", "E: no"];
        let messages = [output(0, &traceback), output(1, &traceback), output(9, &["step 1"])];
        let expected = "\
0-1,9      | step 1
0-1        | Traceback (most recent call last): … 3 lines, ending E: no
";
        assert_eq!(printed(Form::default(), None, &messages), expected);
        let found = printed(Form::default(), Some("E: n[o]"), &messages);
        assert_eq!(found.lines().count(), 1);
        let raw = Form { is_raw: true, ..Form::default() };
        assert_eq!(
            printed(raw, None, &messages).lines().nth(5),
            Some("1          | Traceback (most recent call last):")
        );
        let json = Form { is_json: true, ..Form::default() };
        let lines = printed(json, None, &messages);
        let expected = r#"{"hosts":["n1","n2","n3"],"ranks":[[0,1],[9,9]],"round":1,"stream":"stdout","text":"step 1"}"#;
        assert_eq!(lines.lines().next(), Some(expected));
        assert!(lines.contains(r"last):\n  File\nE: no"), "{lines}");
    }

    /// Lines that were left out are counted by host, and control characters do not reach a terminal.
    #[test]
    fn notes_and_escapes() {
        let skipping = |skipped| match output(3, &["\u{1b}[31mred\nline"]) {
            LogsMessage::Output { rank, is_stderr, round, is_old, lines, .. } => {
                LogsMessage::Output { rank, is_stderr, round, is_old, skipped, lines }
            }
            other => other,
        };
        let terminal = Form { is_terminal: true, ..Form::default() };
        let text = printed(terminal, None, &[skipping(1203), skipping(1)]);
        let expected = "\
3          | [31mred line
3          | [31mred line
n1         | (1,203 lines not shown: this reader is too slow; the file has them)
n2         | (1 line not shown: this reader is too slow; the file has them)
";
        assert_eq!(text, expected);
    }

    /// A program gets an object for a connection that broke. People get a note on stderr instead.
    #[test]
    fn gaps_are_for_programs() {
        let json = "{\"hosts\":[\"n1\"],\"skipped\":null}\n";
        for (is_json, expected) in [(true, json), (false, "")] {
            let mut printer = Printer::new(Form { is_json, ..Form::default() }, None);
            printer.handle_gap("n1");
            assert_eq!(printer.text, expected);
        }
    }

    /// A begun traceback is printed after a while, and a new round is marked.
    #[test]
    fn waiting_ends() {
        let form = Form { follows: true, ..Form::default() };
        let (mut printer, now) = (Printer::new(form, None), clock::now_blocking());
        let host: Arc<str> = "n1".into();
        printer.handle(now, &host, output(0, &["one", "Traceback (most recent call last):"]));
        assert_eq!((printer.due(), &*printer.text), (Some(now + WAIT), ""));
        printer.handle_time(now + WAIT);
        assert_eq!(printer.text, "0          | one\n");
        assert_eq!(printer.due(), Some(now + WAIT_TRACEBACK));
        printer.handle_time(now + WAIT_TRACEBACK);
        let second = LogsMessage::Output {
            rank: 0,
            is_stderr: false,
            round: 2,
            is_old: false,
            skipped: 0,
            lines: vec!["two".to_owned()],
        };
        printer.handle(now + WAIT_TRACEBACK, &host, second);
        printer.finish(now + WAIT_TRACEBACK);
        let expected = "\
0          | one
0          | Traceback (most recent call last):
           | (round 2)
0          | two
";
        assert_eq!(printer.text, expected);
    }
}
