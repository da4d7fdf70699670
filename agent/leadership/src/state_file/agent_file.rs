//! Registers the running agents of this user on this machine, for `ragent status`.
//!
//! An agent holds a lock on its file. A file with a dead process id and without a lock is removed.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use ragent_base::{
    secret::{CertificateRequest, Credentials, OwnCertificate, WrittenSecret},
    sys::{host::ThisHost, private_folder::PrivateFolder, proc, random::random_id},
};
use ragent_rendezvous::ids::RunId;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::files::{folder_of, name_of};

/// The content of the file by which `ragent status` finds a running agent.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RunningAgent {
    /// The run id of the job.
    pub run_id: String,
    /// The endpoint or the voters of the job, in the form of `--rdzv-endpoint`.
    pub endpoint: String,
    /// The process id of the agent.
    pub pid: u32,
    /// The start time of the process as the kernel counts it. It distinguishes two processes with the same id.
    pub began: u64,
    /// The progress of the agent. Missing in files of older builds.
    #[serde(default)]
    pub stage: Stage,
    /// The credentials with which `ragent status` asks for the job. Missing in files of older builds.
    #[serde(default)]
    pub credentials: RegisteredCredentials,
    /// The socket of the agent for `ragent notice`. Missing in files of older builds.
    pub notices: Option<PathBuf>,
}

/// The credentials of a running agent.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RegisteredCredentials {
    /// It has no secret and no certificates.
    #[default]
    None,
    /// Its certificates are in these files.
    Certificates(Box<CertificateRequest>),
    /// Its secret is in this file.
    SecretFile(PathBuf),
    /// It has received this secret through stdin.
    Secret(WrittenSecret),
}

impl RegisteredCredentials {
    fn of(credentials: &Credentials) -> Self {
        if let Some(OwnCertificate { request, .. }) = credentials.certificate() {
            return Self::Certificates(Box::new(request));
        }
        match (credentials.file(), credentials.newest()) {
            (Some(path), _) => Self::SecretFile(path.to_owned()),
            (None, Some(secret)) => Self::Secret(WrittenSecret(secret)),
            (None, None) => Self::None,
        }
    }
}

/// The progress of a running agent.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The agent has found its coordinator, or hosts it.
    #[default]
    Registered,
    /// The process is not an agent: it has launched the agents of a job on other hosts.
    Launching,
    /// The agent searches for the other agents of the job, because its endpoint names no host.
    Searching,
    /// The agent waits for the host of its endpoint.
    Waiting {
        /// The reason why the last attempt failed; `None` before the first failure.
        cause: Option<String>,
    },
}

impl RunningAgent {
    /// Describes this process as an agent of a job.
    pub fn this(run_id: &RunId, endpoint: String, stage: Stage, credentials: &Credentials) -> Self {
        let pid = std::process::id();
        let began = proc::start_time(pid).unwrap_or(0);
        let credentials = RegisteredCredentials::of(credentials);
        let (run_id, notices) = (run_id.to_string(), None);
        Self { run_id, endpoint, pid, began, stage, credentials, notices }
    }

    fn is_alive(&self) -> bool {
        proc::start_time(self.pid) == Some(self.began)
    }
}

/// The file of a running agent. It is removed when this value is dropped.
#[derive(Debug)]
pub struct AgentFile {
    path: PathBuf,
    /// The open file, which is locked. The lock also protects it from agents in other containers,
    /// which do not see this process.
    locked: Mutex<Option<File>>,
}

impl AgentFile {
    /// Writes the file of a running agent.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn new(agent: &RunningAgent) -> io::Result<Self> {
        // Removes files of killed agents.
        drop(running_agents());
        Self::new_in(&ThisHost.runtime_dir(), agent)
    }

    fn new_in(folder: &Path, agent: &RunningAgent) -> io::Result<Self> {
        let path = folder.join(format!("agent-{}-{}.json", agent.pid, random_id()));
        let file = Self { path, locked: Mutex::default() };
        file.renew(agent)?;
        Ok(file)
    }

    /// Replaces the content of the file.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn renew(&self, agent: &RunningAgent) -> io::Result<()> {
        let text = Zeroizing::new(serde_json::to_vec(agent)?);
        let folder = PrivateFolder::make(folder_of(&self.path))?;
        let locked = folder.replace_locked(name_of(&self.path), &text)?;
        *self.locked.lock().unwrap_or_else(PoisonError::into_inner) = Some(locked);
        Ok(())
    }
}

impl Drop for AgentFile {
    fn drop(&mut self) {
        // Readers check that the process is alive, so a file that remains does no harm.
        if let Ok(folder) = PrivateFolder::open(folder_of(&self.path)) {
            folder.remove(name_of(&self.path));
        }
    }
}

/// Returns the running agents of this user on this machine.
pub fn running_agents() -> Vec<RunningAgent> {
    running_agents_in(&ThisHost.runtime_dir())
}

/// Returns the running agents that are registered in `folder`.
pub fn running_agents_in(folder: &Path) -> Vec<RunningAgent> {
    let Ok(folder) = PrivateFolder::open(folder) else { return Vec::new() };
    let is_agent_file = |name: &OsString| {
        let name = name.to_str();
        name.is_some_and(|name| name.starts_with("agent-") && name.ends_with(".json"))
    };
    let mut agents = Vec::new();
    for name in folder.names().into_iter().filter(is_agent_file) {
        let text = folder.read(&name).ok();
        match text.and_then(|text| serde_json::from_str::<RunningAgent>(&text).ok()) {
            Some(agent) if agent.is_alive() => agents.push(agent),
            // The agent was killed, or it runs in another container and holds a lock.
            Some(agent) => {
                folder.remove_unlocked(&name);
                if !folder.has(&name)
                    && let Some(socket) = agent.notices
                {
                    // A socket that stays does no harm.
                    let _ = fs::remove_file(socket);
                }
            }
            None => {}
        }
    }
    agents.sort_by_key(|agent| agent.pid);
    agents
}

#[cfg(test)]
mod tests {
    use ragent_base::secret::{Origin, Secret};

    use super::*;

    /// Registrations of dead agents are removed. Running agents are found.
    #[test]
    fn stale_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (run_id, none) = (RunId::new("run"), Credentials::default());
        let alive = RunningAgent::this(&run_id, "h:1".to_owned(), Stage::Registered, &none);
        let gone = RunningAgent { began: alive.began + 1, ..alive.clone() };
        for (name, agent) in [("agent-1.json", &gone), ("agent-2.json", &alive)] {
            fs::write(folder.path().join(name), serde_json::to_vec(agent).unwrap()).unwrap();
        }
        assert_eq!(running_agents_in(folder.path()), [alive]);
        assert!(!folder.path().join("agent-1.json").exists());
        assert!(folder.path().join("agent-2.json").exists());
    }

    /// The file of a running agent in another container is kept. Its process is not visible here, and an agent here may have the
    /// same process id.
    #[test]
    fn files_of_other_containers_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (run_id, none) = (RunId::new("run"), Credentials::default());
        let here = RunningAgent::this(&run_id, "h:1".to_owned(), Stage::Registered, &none);
        let unseen = RunningAgent { began: here.began + 1, ..here.clone() };
        let [one, other] =
            [&unseen, &here].map(|agent| AgentFile::new_in(folder.path(), agent).unwrap());
        for _ in 0..2 {
            assert_eq!(running_agents_in(folder.path()), std::slice::from_ref(&here));
            assert!(one.path.exists() && other.path.exists());
            one.renew(&unseen).unwrap();
        }
        drop(other);
        assert!(running_agents_in(folder.path()).is_empty() && one.path.exists());
    }

    /// `ragent status` finds the secret of an agent: its file, or the text that the agent received through stdin.
    #[test]
    fn credentials_are_registered() {
        let secret = || Secret::new(&"k".repeat(43)).unwrap();
        let registered = |credentials: &Credentials| {
            let (run_id, endpoint) = (RunId::new("run"), "h:1".to_owned());
            let agent = RunningAgent::this(&run_id, endpoint, Stage::Registered, credentials);
            let text = serde_json::to_string(&agent).unwrap();
            assert_eq!(serde_json::from_str::<RunningAgent>(&text).unwrap(), agent);
            assert!(!format!("{agent:?}").contains("kkk"));
            agent.credentials
        };
        assert_eq!(registered(&Credentials::default()), RegisteredCredentials::None);
        let of_file = Credentials::new(vec![secret()], Origin::File("/s".into()));
        assert_eq!(registered(&of_file), RegisteredCredentials::SecretFile("/s".into()));
        let of_stdin = Credentials::new(vec![secret()], Origin::Stdin);
        assert_eq!(registered(&of_stdin), RegisteredCredentials::Secret(WrittenSecret(secret())));
        let old = r#"{"run_id":"r","endpoint":"h:1","pid":1,"began":2}"#;
        let old: RunningAgent = serde_json::from_str(old).unwrap();
        assert_eq!(old.credentials, RegisteredCredentials::None);
    }
}
