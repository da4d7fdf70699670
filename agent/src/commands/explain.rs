//! `ragent explain`: what a job waits for, why it was restarted, what that cost, and what would help.

mod advice;
mod explanation;

use std::process::ExitCode;

use ragent_proto::printable;

pub(super) use self::explanation::Explanation;
use super::{
    error::{LaunchError, system},
    events, runtime,
    status::{asked_job, find_coordinator},
};
use crate::{cli::ExplainArgs, sys::stdout};

/// Prints the explanation of a job.
///
/// # Errors
///
/// Returns [`LaunchError`] if the endpoint to ask is unknown, or no process answers.
pub fn print(args: &ExplainArgs) -> Result<ExitCode, LaunchError> {
    let (job, credentials) = asked_job(&args.asked)?;
    let (snapshot, entries) = runtime::block_on(async {
        let found = find_coordinator(job, &credentials).await?;
        let entries = events::all(&found).await?;
        Ok::<_, LaunchError>((found.snapshot, entries))
    })??;
    let explanation = Explanation::new(&snapshot, &entries);
    let text = if args.json {
        serde_json::to_string(&explanation).expect("an explanation has text keys") + "\n"
    } else {
        explanation.text()
    };
    // The answer may come from an untrusted process.
    stdout::print(&printable(&text)).map_err(system("print the explanation"))?;
    Ok(ExitCode::SUCCESS)
}
