//! Prints the journal of a job: `ragent events`.

mod entry;
mod file;
mod lines;

use std::{ops::ControlFlow, process::ExitCode, time::Duration};

use ragent_options::{cli::EventsArgs, spec::UsageError};
use ragent_proto::printable;
use ragent_rendezvous::event::EventId;
use tokio::time::timeout;
use tracing::warn;

pub(super) use self::{entry::JournalEntry, file::RecordedRun, lines::EventLines};
use ragent_base::sys::stdout;
use ragent_coordinator::client::{JobPage, JournalRequest, PageLines};

use super::{
    asked_job::asked_job,
    error::{LaunchError, system},
    find_coordinator::{FoundJob, find_coordinator},
    follow::{self, Reader, follow, go_on_if},
    runtime,
};

/// Prints the journal of a job.
///
/// # Errors
///
/// Returns [`LaunchError`] if the endpoint to ask is unknown, no process answers, or the file of a journal cannot be
/// read.
pub fn print(args: &EventsArgs) -> Result<ExitCode, LaunchError> {
    if let Some(path) = &args.journal {
        print_file(path, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let after = args.since.as_deref().map(event_id).transpose()?;
    let (job, credentials) = asked_job(&args.asked)?;
    let mut printer = Printer { after, ..Printer::new(args.json) };
    runtime::block_on(async {
        let found = find_coordinator(job.clone(), &credentials).await?;
        if args.follow {
            follow(&job, &credentials, found, &mut printer).await
        } else {
            printer.print_all(&found).await
        }
    })??;
    Ok(ExitCode::SUCCESS)
}

/// Prints the events in a file of `--journal`, in the order of the file.
fn print_file(path: &str, json: bool) -> Result<(), LaunchError> {
    let mut lines = file::open(path)?;
    let mut printer = Printer::new(json);
    let mut job_uid = None;
    while let Some((entry, line)) = lines.next().map_err(|error| file::unreadable(path, &error))? {
        if job_uid.as_ref() != Some(&entry.job_uid) {
            // Another run may have events with the same ids.
            printer = Printer::new(json);
            job_uid = Some(entry.job_uid.clone());
        }
        printer.print(line)?;
    }
    if lines.others > 0 {
        warn!(lines = lines.others, "the file of `--journal` has lines that are not events");
    }
    if job_uid.is_none() {
        return Err(file::without_events(path).into());
    }
    Ok(())
}

fn event_id(text: &str) -> Result<EventId, UsageError> {
    text.parse().map_err(|_| {
        UsageError::new(format!(
            "invalid value '{text}' for `--since`: it is not the id of an event"
        ))
        .with_hint("ids are in the output of `ragent events --json`, such as 2.118")
    })
}

/// Requests the whole journal that the coordinator has.
pub(super) async fn all(found: &FoundJob) -> Result<Vec<JournalEntry>, LaunchError> {
    let mut parts = open_here(found, JournalRequest::default()).await?;
    let mut received = Received::default();
    loop {
        let next = timeout(PART_PATIENCE, parts.next()).await;
        let part = next.map_err(|_| {
            let waited = PART_PATIENCE.as_secs();
            LaunchError::NoJob(format!("{} has sent no events for {waited} s", found.endpoint))
        })?;
        match part.map_err(|error| found.failed(error))? {
            Some(part) if received.add(&part) => {}
            // The journal is read, or it is longer than any coordinator keeps.
            Some(_) | None => return Ok(received.entries),
        }
    }
}

/// The parts of a journal that were received so far.
#[derive(Default)]
struct Received {
    entries: Vec<JournalEntry>,
    /// The number of lines, including lines that are not events.
    lines: usize,
    bytes: usize,
}

impl Received {
    /// Adds a part. Returns false, without adding it, if the journal would exceed its limits.
    fn add(&mut self, part: &str) -> bool {
        // A part without lines counts as well, so that an answer of such parts has an end.
        self.lines += part.lines().count().max(1);
        self.bytes += part.len();
        let is_within = self.lines <= ENTRIES_MAX && self.bytes <= BYTES_MAX;
        if is_within {
            self.entries.extend(part.lines().filter_map(JournalEntry::read));
        }
        is_within
    }
}

/// The longest wait for the next part of a journal.
const PART_PATIENCE: Duration = Duration::from_secs(10);

/// The number of lines that are read at most, twice as many as a coordinator keeps.
const ENTRIES_MAX: usize = 20_000;

/// The size of the events that are read at most, four times what a coordinator keeps. The details of an event can take 16 times as much
/// memory as its line.
pub(super) const BYTES_MAX: usize = 16 << 20;

/// Requests the journal of a process that is expected to coordinate the job.
async fn open_here(found: &FoundJob, request: JournalRequest) -> Result<PageLines, LaunchError> {
    found.open(JobPage::Events(request)).await?.ok_or_else(|| {
        LaunchError::NoJob(format!(
            "{} does not coordinate the job any more; run the command again",
            found.endpoint
        ))
    })
}

struct Printer {
    /// The last event that was printed.
    after: Option<EventId>,
    json: bool,
    lines: EventLines,
    /// True if the job is closed.
    is_over: bool,
}

impl Reader for Printer {
    type Stream = PageLines;
    const PATIENCE: Option<Duration> = Some(follow::PATIENCE);

    fn page(&mut self, at: &FoundJob) -> JobPage {
        self.is_over |= at.snapshot.outcome.is_some();
        JobPage::Events(JournalRequest { after: self.after, follow: true })
    }

    async fn receive(&mut self, lines: String) -> Result<ControlFlow<()>, LaunchError> {
        self.print(&lines)?;
        Ok(ControlFlow::Continue(()))
    }

    async fn end(&mut self, failure: Option<&LaunchError>) -> ControlFlow<()> {
        // The journal may go on if it was not read to its end.
        go_on_if(!self.is_over || failure.is_some())
    }
}

impl Printer {
    fn new(json: bool) -> Self {
        Self { after: None, json, lines: EventLines::default(), is_over: false }
    }

    /// Prints the events that the coordinator has now.
    async fn print_all(&mut self, found: &FoundJob) -> Result<(), LaunchError> {
        let request = JournalRequest { after: self.after, follow: false };
        let mut parts = open_here(found, request).await?;
        while let Some(lines) = parts.next().await.map_err(|error| found.failed(error))? {
            self.print(&lines)?;
        }
        Ok(())
    }

    fn print(&mut self, lines: &str) -> Result<(), LaunchError> {
        let mut text = String::new();
        for line in lines.lines() {
            let Some(entry) = JournalEntry::read(line) else { continue };
            self.is_over |= entry.kind == "job_closed";
            self.after = Some(entry.id);
            text += &if self.json { format!("{line}\n") } else { self.lines.of(&entry) };
        }
        // The answer may come from an untrusted process.
        stdout::print(&printable(&text)).map_err(system("print the events of the job"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of parts that are accepted, up to `most`, and the result.
    fn accepted(part: &str, most: usize) -> (usize, Received) {
        let mut received = Received::default();
        let count = (0..most).take_while(|_| received.add(part)).count();
        (count, received)
    }

    /// An endless journal is read up to a number of lines and of bytes, also if its lines are not events.
    #[test]
    fn journal_without_end_is_cut() {
        let (parts, received) = accepted("no event\n{}\n", 2 * ENTRIES_MAX);
        assert_eq!((parts, received.entries.len()), (ENTRIES_MAX / 2, 0));
        assert_eq!(accepted("", 2 * ENTRIES_MAX).0, ENTRIES_MAX);
        let text = "t".repeat(1 << 20);
        let line = format!(
            r#"{{"id":"1.1","at":"2026-11-21T20:31:07Z","round":1,"kind":"k","text":"{text}"}}"#
        );
        let (parts, received) = accepted(&line, 100);
        assert_eq!((parts, received.entries.len()), (15, 15));
    }
}
