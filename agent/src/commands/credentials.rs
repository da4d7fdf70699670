//! The credentials of a command that asks a job for its state.

use crate::{
    cli::AuthArgs,
    coordinator::state_file::{self, RegisteredCredentials, RunningAgent},
    net::{self, authentication},
    secret::{
        Credentials, Origin, Secret, WrittenSecret,
        file::{self, FileError},
    },
    spec::{self, Endpoint, JobEndpoint, UsageError},
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

impl AskerCredentials {
    /// Puts the credentials of this machine's jobs in the place of `own`, if a process at one of `endpoints` accepts those alone.
    pub(super) async fn for_processes_at(self, endpoints: &[Endpoint]) -> Self {
        let Some(registered) = &self.registered else { return self };
        for endpoint in endpoints {
            for address in net::resolve(endpoint).await.unwrap_or_default() {
                let Some(theirs) = authentication::ask(address).await else { continue };
                let fits = |one: &Credentials| one.compare(&address.to_string(), &theirs).is_ok();
                if fits(&self.own) {
                    return self;
                }
                if fits(registered) {
                    return Self { own: registered.clone(), registered: None };
                }
            }
        }
        self
    }
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
    if spec::gives_auth(args, &ThisHost)? {
        return Ok(AskerCredentials { own: own()?, registered: None });
    }
    let agents = state_file::running_agents();
    let endpoint = job.map(|job| match job {
        JobEndpoint::One(endpoint) => endpoint.to_string(),
        JobEndpoint::Voters(voters) => voters.to_string(),
    });
    let own = match agents.iter().find(|agent| Some(&agent.endpoint) == endpoint.as_ref()) {
        Some(agent) => {
            let secrets = secrets_of(agent).map_err(|error| {
                UsageError::new(format!(
                    "the agent of the job on this machine has a secret: {error}"
                ))
                .with_hint(error.hint())
            })?;
            credentials_of(secrets, origin_of(agent)).unwrap_or_default()
        }
        None => own()?,
    };
    let mut all: Vec<Secret> = Vec::new();
    for secret in agents.iter().flat_map(|agent| secrets_of(agent).unwrap_or_default()) {
        if !all.contains(&secret) {
            all.push(secret);
        }
    }
    Ok(AskerCredentials { own, registered: credentials_of(all, Origin::Registrations) })
}

fn credentials_of(secrets: Vec<Secret>, origin: Origin) -> Option<Credentials> {
    (!secrets.is_empty()).then(|| Credentials::new(secrets, origin))
}

/// Returns the secrets of an agent, none if it has none.
fn secrets_of(agent: &RunningAgent) -> Result<Vec<Secret>, FileError> {
    match &agent.credentials {
        RegisteredCredentials::None => Ok(Vec::new()),
        RegisteredCredentials::Secret(WrittenSecret(secret)) => Ok(vec![secret.clone()]),
        RegisteredCredentials::SecretFile(path) => file::read(path),
    }
}

fn origin_of(agent: &RunningAgent) -> Origin {
    match &agent.credentials {
        RegisteredCredentials::SecretFile(path) => Origin::File(path.clone()),
        RegisteredCredentials::Secret(_) | RegisteredCredentials::None => Origin::Registrations,
    }
}
