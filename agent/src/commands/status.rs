//! `ragent status`: prints the state of a job, as text or JSON.

mod ask;

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal},
    ops::ControlFlow,
    process::ExitCode,
    time::Duration,
};

use ragent_rendezvous::snapshot::Snapshot;

pub(crate) use self::ask::{Found, ask, find as find_coordinator};
use ragent_base::{
    cli::{AskedJobArgs, StatusArgs},
    report::status_text::{self, Rows},
    spec::{self, AskedEndpoint, JobEndpoint},
    sys::{host::ThisHost, proc, stdout},
};
use ragent_coordinator::client::{AttendError, JobPage, States};
use ragent_leadership::state_file::{self, RunningAgent, Stage};

use super::{
    credentials::{self, AskerCredentials},
    error::{LaunchError, system},
    follow::{self, Reader, follow},
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

/// Returns the state in the form that the flags select.
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
    type Stream = States;
    type Part = Box<Snapshot>;
    const PATIENCE: Option<Duration> = Some(follow::PATIENCE);

    async fn open(&mut self, at: &Found) -> Result<Option<States>, LaunchError> {
        Ok(at.open(JobPage::States).await?.map(Into::into))
    }

    async fn next(states: &mut States) -> Result<Option<Box<Snapshot>>, AttendError> {
        states.next().await
    }

    async fn receive(&mut self, snapshot: Box<Snapshot>) -> Result<ControlFlow<()>, LaunchError> {
        let Self { args, before, after } = self;
        print_text(&format!("{before}{}{after}", rendered(args, &snapshot)))?;
        Ok(match snapshot.outcome {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        })
    }

    async fn end(&mut self, _failure: Option<&LaunchError>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Moves the cursor of a terminal to its first line, and clears all lines.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Returns the endpoint of the job that a command asks, and the credentials for it.
pub(super) fn asked_job(
    args: &AskedJobArgs,
) -> Result<(JobEndpoint, AskerCredentials), LaunchError> {
    let job = find(args)?;
    let credentials = credentials::of_job(&args.auth, Some(&job))?;
    Ok((job, credentials))
}

fn find(args: &AskedJobArgs) -> Result<JobEndpoint, LaunchError> {
    match spec::asked_endpoint(args.rdzv_endpoint.clone(), &ThisHost)? {
        AskedEndpoint::At(job) => Ok(job),
        AskedEndpoint::Found | AskedEndpoint::NotGiven => {
            of_this_machine(state_file::running_agents())
        }
    }
}

/// Returns the endpoint of the only job with agents on this machine.
fn of_this_machine(agents: Vec<RunningAgent>) -> Result<JobEndpoint, LaunchError> {
    let mut jobs = one_for_each_job(agents);
    match jobs.as_slice() {
        [] => Err(LaunchError::NoJob("no job of this user is running on this machine".to_owned())),
        [RunningAgent { stage: Stage::Attending | Stage::Launching, endpoint, .. }] => {
            JobEndpoint::of_text(endpoint).ok_or_else(|| {
                LaunchError::NoJob(format!("`{endpoint}` is not a valid endpoint of a job"))
            })
        }
        [_] => Err(LaunchError::NotMet(jobs.remove(0))),
        several => {
            let list: Vec<String> = several
                .iter()
                .map(|agent| {
                    let RunningAgent { run_id, endpoint, pid, .. } = agent;
                    // The words of the agent name the script.
                    let words = proc::read(&format!("{pid}/cmdline")).unwrap_or_default();
                    let words: Vec<&str> =
                        words.split('\0').skip(1).filter(|word| !word.is_empty()).collect();
                    let words: String = words.join(" ").chars().take(WORDS_SHOWN).collect();
                    format!("\n  run id {run_id}, endpoint {endpoint}, process {pid}: {words}")
                        .trim_end_matches([':', ' '])
                        .to_owned()
                })
                .collect();
            let count = several.len();
            Err(LaunchError::NoJob(format!(
                "{count} jobs are running on this machine:{}",
                list.concat()
            )))
        }
    }
}

/// The characters of the command line of an agent that are shown: those of a line of a terminal.
const WORDS_SHOWN: usize = 100;

/// Returns one agent for each job: a registered one, if there is one.
fn one_for_each_job(mut agents: Vec<RunningAgent>) -> Vec<RunningAgent> {
    let attended: Vec<(String, String)> = agents
        .iter()
        .filter(|agent| agent.stage == Stage::Attending)
        .map(|agent| (agent.run_id.clone(), agent.endpoint.clone()))
        .collect();
    let launched: BTreeSet<String> = agents
        .iter()
        .filter(|agent| agent.stage != Stage::Launching)
        .map(|agent| agent.run_id.clone())
        .collect();
    agents.retain(|agent| match agent.stage {
        Stage::Attending => true,
        // An agent of the job on this machine has newer information.
        Stage::Launching => !launched.contains(&agent.run_id) && !agent.endpoint.is_empty(),
        Stage::Searching => attended.iter().all(|(run_id, _)| *run_id != agent.run_id),
        Stage::Waiting { .. } => attended.iter().all(|(_, endpoint)| *endpoint != agent.endpoint),
    });
    // Jobs without an endpoint differ only in their names.
    let key = |agent: &RunningAgent| {
        let is_searching = agent.stage == Stage::Searching;
        (agent.endpoint.clone(), is_searching.then(|| agent.run_id.clone()))
    };
    agents.sort_by_key(key);
    agents.dedup_by_key(|agent| key(agent));
    agents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(run_id: &str, endpoint: &str, stage: Stage) -> RunningAgent {
        let (run_id, endpoint) = (run_id.to_owned(), endpoint.to_owned());
        RunningAgent { run_id, endpoint, pid: 0, began: 0, stage, credentials: Default::default() }
    }

    fn waiting() -> Stage {
        Stage::Waiting { cause: Some("refused".to_owned()) }
    }

    /// A registered agent is asked, independently of other agents of its job; an unregistered one
    /// is reported.
    #[test]
    fn agents_of_this_machine() {
        let error = |agents: Vec<RunningAgent>| of_this_machine(agents).unwrap_err().to_string();
        let at = |endpoint| agent("j", endpoint, Stage::Attending);
        let found = |agents| match of_this_machine(agents).unwrap() {
            JobEndpoint::One(endpoint) => endpoint.to_string(),
            JobEndpoint::Voters(voters) => format!("voters {voters}"),
        };
        assert_eq!(found(vec![at("n:1"), agent("j", "n:1", waiting()), at("n:1")]), "n:1");
        assert_eq!(found(vec![agent("j", "auto:2", Stage::Searching), at("n:1")]), "n:1");
        let list = "n:1,m:1,k:1";
        assert_eq!(
            found(vec![at(list), agent("j", list, waiting()), at(list)]),
            format!("voters {list}")
        );
        assert_eq!(error(vec![at("n:1,m:1")]), "`n:1,m:1` is not a valid endpoint of a job");
        assert_eq!(error(vec![]), "no job of this user is running on this machine");
        let waits = "job j has no coordinator yet: its agent on this machine (process 0) ";
        let lone = vec![agent("j", "n:1", waiting()), agent("j", "n:1", waiting())];
        assert_eq!(error(lone), format!("{waits}is waiting for n:1 (refused)"));
        let searching = ["j", "j"].map(|job| agent(job, "auto:2", Stage::Searching));
        assert_eq!(error(searching.into()), format!("{waits}is searching for the others (auto:2)"));
        let two = ["j", "k"].map(|job| agent(job, "auto:2", Stage::Searching));
        assert_eq!(
            error(two.into()),
            "2 jobs are running on this machine:\n  run id j, endpoint auto:2, process 0\n  run id k, endpoint auto:2, process 0"
        );
        // A launch counts if no agent of its job runs on this machine.
        let launched = || agent("j", "m:1", Stage::Launching);
        assert_eq!(found(vec![launched()]), "m:1");
        assert_eq!(found(vec![launched(), at("n:1")]), "n:1");
        let unknown = agent("k", "", Stage::Launching);
        assert_eq!(found(vec![unknown, at("n:1")]), "n:1");
        let other = vec![at("n:1"), agent("j", "m:1", waiting())];
        assert_eq!(
            error(other),
            "2 jobs are running on this machine:\n  run id j, endpoint m:1, process 0\n  run id j, endpoint n:1, process 0"
        );
    }
}
