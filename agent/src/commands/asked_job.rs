//! Chooses the job that a command asks: the job of its arguments, or the only job with agents on this machine.

use std::collections::BTreeSet;

use ragent_base::sys::{host::ThisHost, proc};
use ragent_leadership::state_file::{self, RunningAgent, Stage};
use ragent_options::{
    cli::AskedJobArgs,
    spec::{self, AskedEndpoint, JobEndpoint},
};

use super::{
    credentials::{self, AskerCredentials},
    error::LaunchError,
};

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
        [RunningAgent { stage: Stage::Registered | Stage::Launching, endpoint, .. }] => {
            JobEndpoint::of_text(endpoint).ok_or_else(|| {
                LaunchError::NoJob(format!("`{endpoint}` is not a valid endpoint of a job"))
            })
        }
        [_] => Err(LaunchError::NotMet(Box::new(jobs.remove(0)))),
        several => {
            let list: Vec<String> = several
                .iter()
                .map(|agent| {
                    let RunningAgent { run_id, endpoint, pid, .. } = agent;
                    // The script is in the command line of the agent.
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

/// The number of characters that are shown of an agent's command line, as many as fit on a line of a terminal.
const WORDS_SHOWN: usize = 100;

/// Returns one agent for each job: a registered one, if there is one.
fn one_for_each_job(mut agents: Vec<RunningAgent>) -> Vec<RunningAgent> {
    let registered: Vec<(String, String)> = agents
        .iter()
        .filter(|agent| agent.stage == Stage::Registered)
        .map(|agent| (agent.run_id.clone(), agent.endpoint.clone()))
        .collect();
    let launched: BTreeSet<String> = agents
        .iter()
        .filter(|agent| agent.stage != Stage::Launching)
        .map(|agent| agent.run_id.clone())
        .collect();
    agents.retain(|agent| match agent.stage {
        Stage::Registered => true,
        // An agent of the job on this machine has newer information.
        Stage::Launching => !launched.contains(&agent.run_id) && !agent.endpoint.is_empty(),
        Stage::Searching => registered.iter().all(|(run_id, _)| *run_id != agent.run_id),
        Stage::Waiting { .. } => registered.iter().all(|(_, endpoint)| *endpoint != agent.endpoint),
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
        let (credentials, notices) = Default::default();
        RunningAgent { run_id, endpoint, pid: 0, began: 0, stage, credentials, notices }
    }

    fn waiting() -> Stage {
        Stage::Waiting { cause: Some("refused".to_owned()) }
    }

    /// A registered agent is asked, independently of other agents of its job. An unregistered one is reported.
    #[test]
    fn agents_of_this_machine() {
        let error = |agents: Vec<RunningAgent>| of_this_machine(agents).unwrap_err().to_string();
        let at = |endpoint| agent("j", endpoint, Stage::Registered);
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
