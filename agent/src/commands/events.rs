//! `ragent events`: prints the journal of a job.

mod entry;
mod lines;

use std::{process::ExitCode, time::Duration};

use ragent_proto::{convert::JournalRequest, printable};
use ragent_rendezvous::event::EventId;
use tokio::time::timeout;

pub(super) use self::entry::Entry;
use self::lines::Lines;
use super::{
    credentials::AskerCredentials,
    error::{LaunchError, system},
    runtime,
    status::{Found, asked_job, find_coordinator, next_coordinator},
};
use crate::{
    cli::EventsArgs,
    coordinator::client::{self, AttendError, Journal, Parts},
    spec::{JobEndpoint, UsageError},
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
    let request = JournalRequest { after, follow: args.follow };
    let mut printer = Printer { after, json: args.json, lines: Lines::default(), is_over: false };
    runtime::block_on(printer.run(job, &credentials, request))??;
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
    let mut parts = open(found, JournalRequest::default()).await?;
    let mut entries = Vec::new();
    loop {
        let next = timeout(PART_PATIENCE, parts.next()).await;
        let part = next.map_err(|_| {
            let waited = PART_PATIENCE.as_secs();
            LaunchError::NoJob(format!("{} has sent no events for {waited} s", found.endpoint))
        })?;
        match part.map_err(|error| failed(found, error))? {
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

async fn open(found: &Found, request: JournalRequest) -> Result<Box<Parts>, LaunchError> {
    match client::journal(&found.endpoint, &found.credentials, request).await {
        Ok(Journal::Parts(parts)) => Ok(parts),
        Ok(Journal::NotHere(_)) => Err(LaunchError::NoJob(format!(
            "{} does not coordinate the job any more; run the command again",
            found.endpoint
        ))),
        Err(error) => Err(failed(found, error)),
    }
}

fn failed(found: &Found, source: AttendError) -> LaunchError {
    LaunchError::Status { agent: None, endpoint: found.endpoint.to_string(), source }
}

struct Printer {
    /// The last event that was printed.
    after: Option<EventId>,
    json: bool,
    lines: Lines,
    /// True if the job is closed.
    is_over: bool,
}

impl Printer {
    async fn run(
        &mut self,
        job: JobEndpoint,
        credentials: &AskerCredentials,
        request: JournalRequest,
    ) -> Result<(), LaunchError> {
        let mut found = find_coordinator(job.clone(), credentials).await?;
        loop {
            self.is_over |= found.snapshot.outcome.is_some();
            let opened = open(&found, JournalRequest { after: self.after, ..request }).await;
            let mut parts = match opened {
                Ok(parts) => parts,
                Err(LaunchError::NoJob(_)) if request.follow => {
                    found = next_coordinator(&job, credentials).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            loop {
                match parts.next().await {
                    Ok(Some(lines)) => self.print(&lines)?,
                    Ok(None) => break,
                    // The next coordinator has the later events.
                    Err(_) if request.follow => break,
                    Err(error) => return Err(failed(&found, error)),
                }
            }
            if !request.follow || self.is_over {
                return Ok(());
            }
            found = next_coordinator(&job, credentials).await?;
        }
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
