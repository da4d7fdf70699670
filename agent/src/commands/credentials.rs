//! Chooses the credentials of a command that asks a job for its state.

use ragent_base::{
    net::{self, Endpoint, authentication},
    secret::{
        CertificateRequest, Credentials, Origin, PlacesError, Secret, WrittenSecret,
        file::{self, FileError},
    },
    sys::host::ThisHost,
};
use ragent_leadership::state_file::{self, RegisteredCredentials, RunningAgent};
use ragent_options::{
    cli::AuthArgs,
    spec::{self, JobEndpoint, UsageError},
};

/// The credentials of a command.
#[derive(Clone, Debug)]
pub(crate) struct AskerCredentials {
    /// The user's own choice. By default, the credentials of an agent of the job on this machine, or else those of a new agent.
    pub(crate) own: Credentials,
    /// The credentials of all jobs of this user on this machine. They are tried in turn if a process does not accept `own`. Empty if the
    /// user gives some.
    pub(crate) registered: Vec<Credentials>,
}

impl AskerCredentials {
    /// Replaces `own` by the credentials of one of this machine's jobs, if a process at one of `endpoints` accepts only those.
    pub(super) async fn for_processes_at(self, endpoints: &[Endpoint]) -> Self {
        if self.registered.is_empty() {
            return self;
        }
        for endpoint in endpoints {
            for address in net::resolve(endpoint).await.unwrap_or_default() {
                let Some(theirs) = authentication::ask(address).await else { continue };
                let place = address.to_string();
                for one in [&self.own].into_iter().chain(&self.registered) {
                    if authentication::compare(address, &place, &theirs, one).await.is_ok() {
                        return Self { own: one.clone(), registered: Vec::new() };
                    }
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
        return Ok(AskerCredentials { own: own()?, registered: Vec::new() });
    }
    let agents = state_file::running_agents();
    let endpoint = job.map(|job| match job {
        JobEndpoint::One(endpoint) => endpoint.to_string(),
        JobEndpoint::Voters(voters) => voters.to_string(),
    });
    let own = match agents.iter().find(|agent| Some(&agent.endpoint) == endpoint.as_ref()) {
        Some(agent) => credentials_of_agent(agent).map_err(|error| {
            let hint = error.hint();
            UsageError::new(format!(
                "failed to read the credentials of the job's agent on this machine: {error}"
            ))
            .with_hint(hint)
        })?,
        None => own()?,
    };
    Ok(AskerCredentials { own, registered: registered(&agents) })
}

/// Returns the credentials of all agents: the secrets together, and each certificate.
fn registered(agents: &[RunningAgent]) -> Vec<Credentials> {
    let mut secrets: Vec<Secret> = Vec::new();
    for secret in agents.iter().flat_map(|agent| secrets_of(agent).unwrap_or_default()) {
        if !secrets.contains(&secret) {
            secrets.push(secret);
        }
    }
    let mut requests: Vec<&CertificateRequest> = Vec::new();
    for request in agents.iter().filter_map(|agent| certificates_of(&agent.credentials)) {
        if !requests.contains(&request) {
            requests.push(request);
        }
    }
    let secured = credentials_of(secrets, Origin::Registrations);
    let certified = requests
        .into_iter()
        .filter_map(|request| Credentials::with_certificates(request.clone()).ok());
    secured.into_iter().chain(certified).collect()
}

fn credentials_of(secrets: Vec<Secret>, origin: Origin) -> Option<Credentials> {
    (!secrets.is_empty()).then(|| Credentials::new(secrets, origin))
}

/// Returns the credentials of an agent, if it has any.
fn credentials_of_agent(agent: &RunningAgent) -> Result<Credentials, PlacesError> {
    Ok(match certificates_of(&agent.credentials) {
        Some(request) => Credentials::with_certificates(request.clone())?,
        None => credentials_of(secrets_of(agent)?, origin_of(agent)).unwrap_or_default(),
    })
}

fn certificates_of(registered: &RegisteredCredentials) -> Option<&CertificateRequest> {
    match registered {
        RegisteredCredentials::Certificates(request) => Some(request),
        RegisteredCredentials::None
        | RegisteredCredentials::Secret(_)
        | RegisteredCredentials::SecretFile(_) => None,
    }
}

/// Returns the secrets of an agent, if it has any.
fn secrets_of(agent: &RunningAgent) -> Result<Vec<Secret>, FileError> {
    match &agent.credentials {
        RegisteredCredentials::None | RegisteredCredentials::Certificates(_) => Ok(Vec::new()),
        RegisteredCredentials::Secret(WrittenSecret(secret)) => Ok(vec![secret.clone()]),
        RegisteredCredentials::SecretFile(path) => file::read(path),
    }
}

fn origin_of(agent: &RunningAgent) -> Origin {
    match &agent.credentials {
        RegisteredCredentials::SecretFile(path) => Origin::File(path.clone()),
        RegisteredCredentials::Certificates(_)
        | RegisteredCredentials::Secret(_)
        | RegisteredCredentials::None => Origin::Registrations,
    }
}
