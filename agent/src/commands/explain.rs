//! `ragent explain`: what a job waits for, why it was restarted, what that cost, and what would help.

mod advice;
mod answer;
mod details;
mod explanation;
mod topic;

use std::process::ExitCode;

use ragent_proto::printable;

use self::{answer::Answer, topic::Topic};
#[cfg(feature = "top")]
pub(super) use self::{
    details::{Happened, of_node},
    explanation::Explanation,
};
use super::{
    error::{LaunchError, system},
    events, runtime,
    status::{asked_job, find_coordinator},
};
use crate::{cli::ExplainArgs, sys::stdout};

/// Prints the explanation of a job, or of a part of it.
///
/// # Errors
///
/// Returns [`LaunchError`] if there is no such topic, the endpoint to ask is unknown, or no process answers.
pub fn print(args: &ExplainArgs) -> Result<ExitCode, LaunchError> {
    let topic = Topic::of(&args.topic)?;
    let (job, credentials) = asked_job(&args.asked)?;
    let (snapshot, entries) = runtime::block_on(async {
        let found = find_coordinator(job, &credentials).await?;
        let entries = events::all(&found).await?;
        Ok::<_, LaunchError>((found.snapshot, entries))
    })??;
    let answer = Answer::new(&topic, &snapshot, &entries);
    let text = if args.json {
        serde_json::to_string(&answer).expect("an explanation has text keys") + "\n"
    } else {
        answer.text()
    };
    // The answer may come from an untrusted process.
    stdout::print(&printable(&text)).map_err(system("print the explanation"))?;
    Ok(ExitCode::SUCCESS)
}
