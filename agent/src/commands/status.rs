//! Prints the state of a job, as text or JSON: `ragent status`.

use std::{
    io::{self, IsTerminal},
    ops::ControlFlow,
    process::ExitCode,
    time::Duration,
};

use ragent_base::{
    report::status_text::{self, Rows},
    sys::stdout,
};
use ragent_coordinator::client::{JobPage, StateStream};
use ragent_options::{cli::StatusArgs, spec::JobEndpoint};
use ragent_rendezvous::snapshot::Snapshot;

use super::{
    asked_job::asked_job,
    credentials::AskerCredentials,
    error::{LaunchError, system},
    find_coordinator::{FoundJob, ask, find_coordinator},
    follow::{self, Reader, follow, go_on_if},
    runtime,
};

/// Asks for the state of a job and prints it.
///
/// # Errors
///
/// Returns [`LaunchError`] if the endpoint to ask is unknown, or no process answers.
pub fn print(args: &StatusArgs) -> Result<ExitCode, LaunchError> {
    let (job, credentials) = asked_job(&args.asked)?;
    if args.watch {
        runtime::block_on(watch(args, job, &credentials))??;
    } else {
        let snapshot = runtime::block_on(ask(job, &credentials))??;
        print_text(&rendered(args, &snapshot))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the state in the format that the flags select.
fn rendered(args: &StatusArgs, snapshot: &Snapshot) -> String {
    if args.json {
        let json = serde_json::to_string(snapshot).expect("a snapshot has no odd keys");
        return json + "\n";
    }
    status_text::text(snapshot, if args.nodes { Rows::Nodes } else { Rows::Folded })
}

fn print_text(text: &str) -> Result<(), LaunchError> {
    stdout::print(text).map_err(system("print the status of the job"))
}

/// Prints the state after each change, until the job is closed. On a terminal, each state replaces the one before.
async fn watch(
    args: &StatusArgs,
    job: JobEndpoint,
    credentials: &AskerCredentials,
) -> Result<(), LaunchError> {
    let (before, after) = match (args.json, io::stdout().is_terminal()) {
        (true, _) => ("", ""),
        (false, true) => (CLEAR, ""),
        (false, false) => ("", "\n"),
    };
    let found = find_coordinator(job.clone(), credentials).await?;
    follow(&job, credentials, found, &mut Watch { args, before, after }).await
}

/// The reader of `ragent status --watch`.
struct Watch<'a> {
    args: &'a StatusArgs,
    /// The text before each state.
    before: &'static str,
    /// The text after each state.
    after: &'static str,
}

impl Reader for Watch<'_> {
    type Stream = StateStream;
    const PATIENCE: Option<Duration> = Some(follow::PATIENCE);

    fn page(&mut self, _at: &FoundJob) -> JobPage {
        JobPage::States
    }

    async fn receive(&mut self, snapshot: Box<Snapshot>) -> Result<ControlFlow<()>, LaunchError> {
        let Self { args, before, after } = self;
        print_text(&format!("{before}{}{after}", rendered(args, &snapshot)))?;
        Ok(go_on_if(snapshot.outcome.is_none()))
    }
}

/// Moves the cursor of a terminal to its first line, and clears all lines.
const CLEAR: &str = "\x1b[H\x1b[2J";
