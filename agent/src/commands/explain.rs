//! Explains what a job waits for, why it restarted, what that cost, and what would help: `ragent explain`.

mod advice;
mod answer;
mod details;
mod explanation;
mod hardware;
mod limits;
mod recorded;
mod topic;

use std::process::ExitCode;

use ragent_base::sys::stdout;
use ragent_options::cli::ExplainArgs;
use ragent_proto::printable;
use serde::Serialize;

use self::{answer::ExplainAnswer, recorded::Recorded, topic::Topic};
use super::{
    asked_job::asked_job,
    error::{LaunchError, system},
    events,
    find_coordinator::find_coordinator,
    runtime,
};

/// Prints the explanation of a job, or of a part of it.
///
/// # Errors
///
/// Returns [`LaunchError`] if there is no such topic, the endpoint to ask is unknown, no process answers, or the file of a
/// journal cannot be read.
pub fn print(args: &ExplainArgs) -> Result<ExitCode, LaunchError> {
    let topic = Topic::of(&args.topic)?;
    if let Some(path) = &args.journal {
        let recorded = Recorded::new(&topic, &events::RecordedRun::read(path)?)?;
        print_answer(args.json, &recorded, Recorded::text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (job, credentials) = asked_job(&args.asked)?;
    let answer = runtime::block_on(async {
        let found = find_coordinator(job, &credentials).await?;
        let entries = events::all(&found).await?;
        let mut answer = ExplainAnswer::new(&topic, &found.snapshot, &entries);
        if let ExplainAnswer::Node { nodes, hardware, .. } = &mut answer {
            *hardware = hardware::ask_all(nodes.iter(), &found.credentials).await;
        }
        Ok::<_, LaunchError>(answer)
    })??;
    print_answer(args.json, &answer, ExplainAnswer::text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints an answer, as JSON or as text.
fn print_answer<T: Serialize>(
    json: bool,
    answer: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), LaunchError> {
    let text = if json {
        serde_json::to_string(answer).expect("an explanation has text keys") + "\n"
    } else {
        text(answer)
    };
    // The answer may come from an untrusted process.
    stdout::print(&printable(&text)).map_err(system("print the explanation"))
}
