//! The credentials of a command that asks a job for its state.

use crate::{
    cli::AuthArgs,
    coordinator::state_file::{self, RegisteredCredentials, RunningAgent},
    secret::{Credentials, Origin, Secret, WrittenSecret, file},
    spec::{self, JobEndpoint, UsageError},
    sys::host::ThisHost,
};

/// The credentials of a command.
#[derive(Clone, Debug)]
pub(crate) struct AskerCredentials {
    /// Those that the user gives, else those of an agent of the job on this machine, else those that a new agent would
    /// have.
    pub(crate) own: Credentials,
    /// Those of all jobs of this user on this machine, which are tried if a process does not accept `own`; `None` if the
    /// user gives some.
    pub(crate) registered: Option<Credentials>,
}

/// Returns the credentials for a job.
///
/// # Errors
///
/// Returns [`UsageError`] if the flags are invalid, or the file of the secret cannot be used.
pub(super) fn of_job(
    args: &AuthArgs,
    job: Option<&JobEndpoint>,
) -> Result<AskerCredentials, UsageError> {
    let own = || spec::credentials(args, &ThisHost);
    if spec::gives_auth(args, &ThisHost) {
        return Ok(AskerCredentials { own: own()?, registered: None });
    }
    let agents = state_file::running_agents();
    let endpoint = job.map(|job| match job {
        JobEndpoint::One(endpoint) => endpoint.to_string(),
        JobEndpoint::Voters(voters) => voters.to_string(),
    });
    let own = match agents.iter().find(|agent| Some(&agent.endpoint) == endpoint.as_ref()) {
        Some(agent) => credentials_of(secrets_of(agent), origin_of(agent)).unwrap_or_default(),
        None => own()?,
    };
    let mut all: Vec<Secret> = agents.iter().flat_map(secrets_of).collect();
    all.dedup();
    Ok(AskerCredentials { own, registered: credentials_of(all, Origin::Registrations) })
}

fn credentials_of(secrets: Vec<Secret>, origin: Origin) -> Option<Credentials> {
    (!secrets.is_empty()).then(|| Credentials::new(secrets, origin))
}

/// Returns the secrets of an agent; none if it has none, or its file cannot be read any more.
fn secrets_of(agent: &RunningAgent) -> Vec<Secret> {
    match &agent.credentials {
        RegisteredCredentials::None => Vec::new(),
        RegisteredCredentials::Secret(WrittenSecret(secret)) => vec![secret.clone()],
        RegisteredCredentials::SecretFile(path) => file::read(path).unwrap_or_default(),
    }
}

fn origin_of(agent: &RunningAgent) -> Origin {
    match &agent.credentials {
        RegisteredCredentials::SecretFile(path) => Origin::File(path.clone()),
        RegisteredCredentials::Secret(_) | RegisteredCredentials::None => Origin::Registrations,
    }
}
