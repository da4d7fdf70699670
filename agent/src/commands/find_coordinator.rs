//! Asks for the state of a job, at its endpoint or at all of its voters at once.

use ragent_base::{net::Endpoint, report::news::with_causes, secret::Credentials};
use ragent_coordinator::client::{self, Asked, JobPage, NotFound, PageLines, StreamError};
use ragent_leadership::state_file::{self, RunningAgent, Stage};
use ragent_node::endpoint::identity;
use ragent_options::spec::{JobEndpoint, VoterList};
use ragent_rendezvous::snapshot::Snapshot;
use tokio::task::JoinSet;

use crate::commands::{credentials::AskerCredentials, error::LaunchError};

/// Asks at the endpoint, or at all voters until one of them answers with the state. If an agent does not coordinate the job, it names the
/// coordinator, and that is asked instead.
///
/// # Errors
///
/// Returns [`LaunchError`] if no process answers with the state of a job.
pub(crate) async fn ask(
    job: JobEndpoint,
    credentials: &AskerCredentials,
) -> Result<Snapshot, LaunchError> {
    find_coordinator(job, credentials).await.map(|found| found.snapshot)
}

/// The state of a job, and the process that answered with it.
#[derive(Clone)]
pub(crate) struct FoundJob {
    /// The state.
    pub(crate) snapshot: Snapshot,
    /// The endpoint of the process.
    pub(crate) endpoint: Endpoint,
    /// The credentials that it has accepted.
    pub(crate) credentials: Credentials,
}

impl FoundJob {
    /// Requests a page from the process. Returns `None` if it no longer coordinates the job.
    ///
    /// # Errors
    ///
    /// Returns [`LaunchError`] if it does not answer.
    pub(crate) async fn open(&self, page: JobPage) -> Result<Option<PageLines>, LaunchError> {
        match client::ask(&self.endpoint, &self.credentials, page).await {
            Ok(Asked::Here(lines)) => Ok(Some(lines)),
            Ok(Asked::Elsewhere(_)) => Ok(None),
            Err(source) => Err(self.failed(source)),
        }
    }

    /// Returns the error of a request to the process.
    pub(crate) fn failed(&self, source: StreamError) -> LaunchError {
        LaunchError::Status { agent: None, endpoint: self.endpoint.to_string(), source }
    }
}

/// Asks for the state of a job in the same way. Also returns its coordinator.
///
/// # Errors
///
/// Returns [`LaunchError`] if no process answers with the state of a job.
pub(crate) async fn find_coordinator(
    job: JobEndpoint,
    credentials: &AskerCredentials,
) -> Result<FoundJob, LaunchError> {
    match job {
        JobEndpoint::One(endpoint) => {
            ask_one(&endpoint, credentials).await.map_err(FindFailure::into_error)
        }
        JobEndpoint::Voters(voters) => ask_voters(&voters, credentials).await,
    }
}

/// The reason why a process did not answer with the state of a job.
#[derive(Debug)]
enum FindFailure {
    /// The process at `endpoint` did not answer.
    Asked { endpoint: Endpoint, source: StreamError },
    /// It answered, but named no coordinator that answers.
    NoJob(String),
}

impl FindFailure {
    fn into_error(self) -> LaunchError {
        match self {
            Self::Asked { endpoint, source } => {
                let endpoint = endpoint.to_string();
                LaunchError::Status { agent: local_agent(&endpoint), endpoint, source }
            }
            Self::NoJob(text) => LaunchError::NoJob(text),
        }
    }

    /// Describes the failure in one line, which begins with the voter.
    fn line(&self, voter: &Endpoint) -> String {
        match self {
            Self::Asked { endpoint, source } if endpoint == voter => with_causes(source),
            Self::Asked { endpoint, source } => {
                format!("names the coordinator at {endpoint}: {}", with_causes(source))
            }
            Self::NoJob(text) => text.clone(),
        }
    }
}

/// Returns the process id of an agent on this machine that is registered with this endpoint.
fn local_agent(endpoint: &str) -> Option<u32> {
    let agents = state_file::running_agents();
    let is_agent =
        |agent: &&RunningAgent| agent.endpoint == endpoint && agent.stage != Stage::Launching;
    agents.iter().find(is_agent).map(|agent| agent.pid)
}

/// Asks all voters at once. The first state counts, since most answer with the same coordinator.
async fn ask_voters(
    voters: &VoterList,
    credentials: &AskerCredentials,
) -> Result<FoundJob, LaunchError> {
    let mut asked = JoinSet::new();
    for (place, voter) in voters.endpoints().iter().cloned().enumerate() {
        let credentials = credentials.clone();
        asked.spawn(async move {
            let answer = ask_one(&voter, &credentials).await;
            answer.map_err(|failure| (place, format!("{voter}: {}", failure.line(&voter))))
        });
    }
    let mut failures = Vec::new();
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(failure)) => failures.push(failure),
            Err(error) => failures.push((voters.endpoints().len(), error.to_string())),
        }
    }
    failures.sort();
    let failures = failures.into_iter().map(|(_, line)| line).collect();
    Err(LaunchError::StatusOfVoters { failures, agent: local_agent(&voters.to_string()) })
}

/// Asks at `endpoint`. If the answer contains the coordinator's endpoint, asks there.
async fn ask_one(
    endpoint: &Endpoint,
    credentials: &AskerCredentials,
) -> Result<FoundJob, FindFailure> {
    let ask = |endpoint| async move { ask_at(&endpoint, credentials).await };
    match client::find(endpoint.clone(), ask).await {
        Ok(((snapshot, credentials), endpoint)) => {
            Ok(FoundJob { snapshot: *snapshot, endpoint, credentials })
        }
        Err(NotFound::Failed { endpoint, source }) => Err(FindFailure::Asked { endpoint, source }),
        Err(error) => Err(FindFailure::NoJob(error.to_string())),
    }
}

/// Asks at `endpoint`, and returns the credentials that were accepted. If a process is silent or uses another protocol, finds out what it
/// is.
async fn ask_at(
    endpoint: &Endpoint,
    credentials: &AskerCredentials,
) -> Result<Asked<(Box<Snapshot>, Credentials)>, StreamError> {
    let AskerCredentials { own, registered } = credentials;
    let with = |answer, credentials: &Credentials| match answer {
        Asked::Here(snapshot) => Asked::Here((snapshot, credentials.clone())),
        Asked::Elsewhere(named) => Asked::Elsewhere(named),
    };
    let answer = client::state(endpoint, own).await;
    if let Err(StreamError::Mismatch(_)) = &answer {
        for credentials in registered {
            if let Ok(answer) = client::state(endpoint, credentials).await {
                return Ok(with(answer, credentials));
            }
        }
    }
    if let Err(
        StreamError::Protocol { address, .. }
        | StreamError::Refused { address, .. }
        | StreamError::Silent { address, .. }
        | StreamError::Unable { address, .. },
    ) = answer
        && let Some(what) = identity::describe_other_program(address).await
    {
        return Err(StreamError::Other { address, what });
    }
    answer.map(|answer| with(answer, own))
}
