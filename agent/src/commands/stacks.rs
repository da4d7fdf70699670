//! Asks all nodes of a job for a look at their workers, and prints where these are: `ragent stacks`.
//!
//! 1. An agent on this machine passes the request on to its coordinator.
//! 2. The coordinator looks at the workers of all nodes, and shows their places in the state of the job.

use std::{ops::ControlFlow, process::ExitCode, time::Duration};

use ragent_base::{report::stacks_text, sys::stdout};
use ragent_coordinator::client::{JobPage, StateStream};
use ragent_leadership::state_file::{RunningAgent, Stage, running_agents};
use ragent_node::notices::{Answer, Request, ask};
use ragent_options::{
    cli::StacksArgs,
    spec::{Argument, RankRanges, RequestKind, UsageError},
};
use ragent_proto::printable;
use ragent_rendezvous::{
    ids::{RunId, Term},
    snapshot::{JobLook, Snapshot},
};
use tokio::time::timeout;

use super::{
    asked_job::asked_job,
    error::{LaunchError, system},
    find_coordinator::{FoundJob, find_coordinator},
    follow::{self, Reader, follow, go_on_if},
    runtime,
};

/// The longest wait for a look. One that has just begun takes up to 40 s, and delays the next one.
const LOOK_TIMEOUT: Duration = Duration::from_secs(60);

/// Looks at the workers of a job, and prints their places.
///
/// # Errors
///
/// Returns [`LaunchError`] if the job is unknown, no agent of it runs on this machine, or the nodes do not answer.
pub fn print(args: &StacksArgs) -> Result<ExitCode, LaunchError> {
    let wanted = args.ranks.as_deref().map(ranks).transpose()?.unwrap_or_default();
    let (job, credentials) = asked_job(&args.asked)?;
    let look = runtime::block_on(async {
        let found = find_coordinator(job.clone(), &credentials).await?;
        let mut newest = NewLook { known: id_of(&found.snapshot), look: None };
        request_look(&found.snapshot.run_id).await.map_err(|why| failed(&why))?;
        let followed = follow(&job, &credentials, found, &mut newest);
        match timeout(LOOK_TIMEOUT, followed).await {
            Ok(Err(_)) | Err(_) if newest.look.is_some() => {}
            Ok(followed) => followed?,
            Err(_) => {
                let seconds = LOOK_TIMEOUT.as_secs();
                return Err(failed(&format!(
                    "no node has answered within {seconds} s (the round may have ended: `ragent status` shows the job)"
                )));
            }
        }
        newest.look.ok_or_else(|| failed("the job has ended"))
    })??;
    let text = if args.json {
        serde_json::to_string(&look).expect("a look has text keys") + "\n"
    } else {
        stacks_text::text(&look, wanted.ranges())
    };
    // The answer may come from an untrusted process.
    stdout::print(&printable(&text)).map_err(system("print the stacks"))?;
    Ok(ExitCode::SUCCESS)
}

/// Asks an agent of the job on this machine for a look at the workers of all nodes.
///
/// # Errors
///
/// Returns the reason if no look begins.
async fn request_look(run_id: &RunId) -> Result<(), String> {
    let is_of_job =
        |agent: &RunningAgent| agent.run_id == run_id.as_str() && agent.stage == Stage::Registered;
    let agents: Vec<RunningAgent> = running_agents().into_iter().filter(is_of_job).collect();
    if agents.is_empty() {
        return Err(format!(
            "no agent of the job `{run_id}` of this user runs on this machine (type it on a machine of the job, as the \
             user who has started it)"
        ));
    }
    let request =
        Request { kind: RequestKind::Look, within_ms: None, text: String::new(), waits: false };
    let mut why = "its agents have no socket; their logs have the reason".to_owned();
    for RunningAgent { pid, notices, .. } in agents {
        let Some(path) = notices else { continue };
        let mut answer = None;
        match ask(&path, &request, |last| answer = Some(last)).await {
            Ok(()) if answer == Some(Answer::Taken) => return Ok(()),
            Ok(()) => match answer {
                Some(Answer::Refused(refused)) => why = format!("agent {pid}: {refused}"),
                _ => why = format!("agent {pid} has ended"),
            },
            Err(error) => why = format!("agent {pid}: {error}"),
        }
    }
    Err(why)
}

/// Waits for a look that is newer than the known one.
struct NewLook {
    known: Option<(Term, u64)>,
    look: Option<JobLook>,
}

/// Returns the term and number of the newest look.
fn id_of(snapshot: &Snapshot) -> Option<(Term, u64)> {
    Some((snapshot.term, snapshot.look.as_ref()?.number))
}

impl Reader for NewLook {
    type Stream = StateStream;
    const PATIENCE: Option<Duration> = Some(follow::PATIENCE);

    fn page(&mut self, _at: &FoundJob) -> JobPage {
        JobPage::States
    }

    async fn receive(&mut self, snapshot: Box<Snapshot>) -> Result<ControlFlow<()>, LaunchError> {
        let is_new = id_of(&snapshot).is_some_and(|id| Some(id) != self.known);
        match snapshot.look.filter(|_| is_new) {
            Some(look) => {
                self.look = Some(look);
                Ok(ControlFlow::Break(()))
            }
            None => Ok(go_on_if(snapshot.outcome.is_none())),
        }
    }
}

/// Parses the argument RANKS, such as `3,8-15`.
pub(super) fn ranks(given: &str) -> Result<RankRanges, UsageError> {
    given.parse().map_err(|()| {
        Argument::new("RANKS", given)
            .is_not("a list of ranks")
            .with_hint("give ranks and ranges of ranks, such as 3,8-15")
    })
}

fn failed(why: &str) -> LaunchError {
    let report = format!("error: failed to look at the workers: {why}");
    LaunchError::Command { code: 1, report }
}
