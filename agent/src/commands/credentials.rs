//! The credentials of a command that asks a job for its state.

use crate::{
    cli::AuthArgs,
    coordinator::state_file::{self, RegisteredCredentials},
    secret::{Credentials, Origin, Unsecured, file},
    spec::{self, JobEndpoint, UsageError},
    sys::host::ThisHost,
};

/// Returns the credentials that the user gives, else those of an agent of the job on this machine, else those that a new
/// agent would have.
///
/// # Errors
///
/// Returns [`UsageError`] if the flags are invalid, or the file of the secret cannot be used.
pub(super) fn of_job(
    args: &AuthArgs,
    job: Option<&JobEndpoint>,
) -> Result<Credentials, UsageError> {
    let of_agent = job.filter(|_| !spec::gives_auth(args, &ThisHost)).and_then(of_agent);
    of_agent.map_or_else(|| spec::credentials(args, &ThisHost), Ok)
}

/// Returns the credentials of an agent of the job on this machine.
fn of_agent(job: &JobEndpoint) -> Option<Credentials> {
    let endpoint = match job {
        JobEndpoint::One(endpoint) => endpoint.to_string(),
        JobEndpoint::Voters(voters) => voters.to_string(),
    };
    let mut agents = state_file::running_agents().into_iter();
    match agents.find(|agent| agent.endpoint == endpoint)?.credentials {
        RegisteredCredentials::None => {
            Some(Credentials::unsecured(Unsecured::NotFound { searched: Vec::new() }))
        }
        RegisteredCredentials::Secret(secret) => {
            Some(Credentials::new(vec![secret], Origin::Stdin))
        }
        RegisteredCredentials::SecretFile(path) => {
            let secrets = file::read(&path).ok()?;
            Some(Credentials::new(secrets, Origin::File(path)))
        }
    }
}
