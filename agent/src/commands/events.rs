//! `ragent events`: prints the journal of a job.

mod entry;
mod lines;

use std::{ops::ControlFlow, process::ExitCode, time::Duration};

use ragent_proto::{convert::JournalRequest, printable};
use ragent_rendezvous::event::EventId;
use tokio::time::timeout;

pub(super) use self::{entry::Entry, lines::Lines};
use super::{
    error::{LaunchError, system},
    follow::{self, Reader, follow},
    runtime,
    status::{Found, asked_job, find_coordinator},
};
use crate::{
    cli::EventsArgs,
    coordinator::client::{self, AttendError, Journal, Parts},
    spec::UsageError,
    sys::stdout,
};

/// Prints the journal of a job.
///
/// # Errors
///
/// Returns [`LaunchError`] if the endpoint to ask is unknown, or no process answers.
pub fn print(args: &EventsArgs) -> Result<ExitCode, LaunchError> {
    let after = args.since.as_deref().map(event_id).transpose()?;
    let (job, credentials) = asked_job(&args.asked)?;
    let mut printer = Printer { after, json: args.json, lines: Lines::default(), is_over: false };
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

fn event_id(text: &str) -> Result<EventId, UsageError> {
    text.parse().map_err(|_| {
        UsageError::new(format!(
            "invalid value '{text}' for `--since`: it is not the id of an event"
        ))
        .with_hint("ids are in the output of `ragent events --json`, such as 2.118")
    })
}

/// Requests the whole journal that the coordinator has.
pub(super) async fn all(found: &Found) -> Result<Vec<Entry>, LaunchError> {
    let mut parts = open_here(found, JournalRequest::default()).await?;
    let mut entries = Vec::new();
    loop {
        let next = timeout(PART_PATIENCE, parts.next()).await;
        let part = next.map_err(|_| {
            let waited = PART_PATIENCE.as_secs();
            LaunchError::NoJob(format!("{} has sent no events for {waited} s", found.endpoint))
        })?;
        match part.map_err(|error| found.failed(error))? {
            Some(lines) => entries.extend(lines.lines().filter_map(Entry::read)),
            None => return Ok(entries),
        }
        if entries.len() > ENTRIES_MAX {
            // No coordinator keeps as many.
            return Ok(entries);
        }
    }
}

/// The longest wait for the next part of a journal.
const PART_PATIENCE: Duration = Duration::from_secs(10);

/// The most events that are read: twice as many as a coordinator keeps.
const ENTRIES_MAX: usize = 20_000;

/// Requests the journal; `None` if the process does not coordinate the job any more.
pub(super) async fn open(
    found: &Found,
    request: JournalRequest,
) -> Result<Option<Box<Parts>>, LaunchError> {
    match client::journal(&found.endpoint, &found.credentials, request).await {
        Ok(Journal::Parts(parts)) => Ok(Some(parts)),
        Ok(Journal::NotHere(_)) => Ok(None),
        Err(error) => Err(found.failed(error)),
    }
}

/// Requests the journal of a process that is expected to coordinate the job.
async fn open_here(found: &Found, request: JournalRequest) -> Result<Box<Parts>, LaunchError> {
    open(found, request).await?.ok_or_else(|| {
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
    lines: Lines,
    /// True if the job is closed.
    is_over: bool,
}

impl Reader for Printer {
    type Stream = Box<Parts>;
    type Part = String;
    const PATIENCE: Option<Duration> = Some(follow::PATIENCE);

    async fn open(&mut self, at: &Found) -> Result<Option<Box<Parts>>, LaunchError> {
        self.is_over |= at.snapshot.outcome.is_some();
        open(at, JournalRequest { after: self.after, follow: true }).await
    }

    async fn next(parts: &mut Box<Parts>) -> Result<Option<String>, AttendError> {
        parts.next().await
    }

    async fn receive(&mut self, lines: String) -> Result<ControlFlow<()>, LaunchError> {
        self.print(&lines)?;
        Ok(ControlFlow::Continue(()))
    }

    async fn end(&mut self, failure: Option<&LaunchError>) -> ControlFlow<()> {
        // A journal that was not read is not over.
        if self.is_over && failure.is_none() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

impl Printer {
    /// Prints the events that the coordinator has now.
    async fn print_all(&mut self, found: &Found) -> Result<(), LaunchError> {
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
            let Some(entry) = Entry::read(line) else { continue };
            self.is_over |= entry.kind == "job_closed";
            self.after = Some(entry.id);
            text += &if self.json { format!("{line}\n") } else { self.lines.of(&entry) };
        }
        // The answer may come from an untrusted process.
        stdout::print(&printable(&text)).map_err(system("print the events of the job"))?;
        Ok(())
    }
}
