//! The small files by which a restarted coordinator remembers its job, and `ragent status` finds
//! the jobs of this machine. They live in a folder that only their user can read.

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{fcntl::OFlag, unistd::geteuid};
use ragent_rendezvous::{
    ids::{GroupRank, JobUid, NodeId, Round, RunId, Term},
    message::Outcome,
    settings::{HostSeat, Memory},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{host::ThisHost, job_spec::Endpoint, limits};

/// What a coordinator's state file holds.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Remembered {
    job_uid: String,
    term: u64,
    round: u64,
    round_size: u32,
    #[serde(default)]
    is_adopted: bool,
    host_rank: Option<u32>,
    /// Files of builds that did not know these two lack them.
    #[serde(default)]
    host_node: String,
    #[serde(default)]
    is_host_buried: bool,
    restarts_used: u32,
    charged_through: u64,
    /// Files of builds that did not know it lack it.
    #[serde(default)]
    closed: Option<Outcome>,
}

/// What an agent that runs leaves for `ragent status`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RunningAgent {
    /// The job.
    pub run_id: String,
    /// Its endpoint.
    pub endpoint: String,
    /// The agent's process.
    pub pid: u32,
    /// When that began, as the kernel counts: a number that is used again has another beginning.
    pub began: u64,
    /// How far it has come. Files of builds that did not know it lack it.
    #[serde(default)]
    pub stage: Stage,
}

/// How far an agent that runs has come.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It has found its coordinator, or hosts it.
    #[default]
    Attending,
    /// It looks for the job's other agents: its endpoint names none.
    Searching,
    /// It waits for whoever hosts its endpoint.
    Waiting {
        /// Why the last attempt failed, once one has.
        cause: Option<String>,
    },
}

impl RunningAgent {
    /// This process, as an agent of a job.
    pub fn this(run_id: &RunId, endpoint: &Endpoint, stage: Stage) -> Self {
        let pid = std::process::id();
        let (run_id, endpoint) = (run_id.to_string(), endpoint.to_string());
        Self { run_id, endpoint, pid, began: began(pid).unwrap_or(0), stage }
    }

    fn is_alive(&self) -> bool {
        began(self.pid) == Some(self.began)
    }
}

/// When a process began, in ticks since boot; none if there is no such process, or it has ended and
/// nobody has taken note of that yet.
pub(crate) fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, and ends at the last parenthesis. The third field is the state, the
    // 22nd is wanted.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let has_ended = ["Z", "X"].contains(&fields.next()?);
    fields.nth(18)?.parse().ok().filter(|_| !has_ended)
}

/// The file in which the coordinator of a job at `endpoint` remembers.
pub fn memory_path(run_id: &RunId, endpoint: &Endpoint) -> PathBuf {
    ThisHost.state_dir().join(format!("job-{}.json", job_key(run_id, endpoint)))
}

/// Tells jobs apart in names of files.
fn job_key(run_id: &RunId, endpoint: &Endpoint) -> String {
    let mut hasher = DefaultHasher::new();
    (run_id.as_str(), endpoint.port).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The word that a job has failed for good, in a folder that a service manager keeps for as long as
/// it starts the agent again.
///
/// Nothing is remembered where there is no such folder: whoever starts an agent by hand once more
/// wants the job to run once more.
#[derive(Debug)]
pub struct ClosedJob(PathBuf);

impl ClosedJob {
    /// Where the end of a job is remembered, if it is.
    pub fn of(run_id: &RunId, endpoint: &Endpoint) -> Option<Self> {
        let folder = ThisHost.service_dir()?;
        Some(Self(folder.join(format!("closed-{}.json", job_key(run_id, endpoint)))))
    }

    /// How the job ended, if it has.
    pub fn outcome(&self) -> Option<Outcome> {
        read(&self.0)
    }

    /// Remembers how it ended.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal.
    pub fn remember(&self, outcome: &Outcome) -> io::Result<()> {
        replace(&self.0, &serde_json::to_vec(outcome)?)
    }

    /// What remembers it.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Reads what an earlier coordinator remembered; nothing if there was none, or it cannot be read.
pub fn read_memory(path: &Path) -> Option<Memory> {
    let remembered: Remembered = read(path)?;
    Some(Memory {
        job_uid: JobUid::new(remembered.job_uid),
        term: Term(remembered.term),
        round: Round(remembered.round),
        round_size: remembered.round_size,
        is_adopted: remembered.is_adopted,
        host: remembered.host_rank.map(|rank| HostSeat {
            rank: GroupRank(rank),
            node: NodeId::new(remembered.host_node),
            is_buried: remembered.is_host_buried,
        }),
        restarts_used: remembered.restarts_used,
        charged_through: Round(remembered.charged_through),
        closed: remembered.closed,
    })
}

/// Replaces what is remembered.
///
/// This stands between a group that is complete and its start, and renaming over a file makes some
/// file systems (ext4) begin to write it out there and then: milliseconds, and more on a busy disk.
/// So a file that is there already is overwritten in place, by one write of always the same length.
///
/// # Errors
///
/// Returns the system's refusal.
pub fn write_memory(path: &Path, memory: &Memory) -> io::Result<()> {
    let mut remembered = Remembered {
        job_uid: memory.job_uid.to_string(),
        term: memory.term.0,
        round: memory.round.0,
        round_size: memory.round_size,
        is_adopted: memory.is_adopted,
        host_rank: memory.host.as_ref().map(|seat| seat.rank.0),
        host_node: memory.host.as_ref().map(|seat| seat.node.to_string()).unwrap_or_default(),
        is_host_buried: memory.host.as_ref().is_some_and(|seat| seat.is_buried),
        restarts_used: memory.restarts_used,
        charged_through: memory.charged_through.0,
        closed: memory.closed.clone(),
    };
    let mut text = serde_json::to_vec(&remembered)?;
    if text.len() as u64 > limits::MAX_STATE_FILE
        && let Some(failure) =
            remembered.closed.as_mut().and_then(|closed| closed.first_failure.as_mut())
    {
        // What a worker wrote may be long; that it failed must be readable.
        failure.message = None;
        failure.stderr_tail.clear();
        text = serde_json::to_vec(&remembered)?;
    }
    text.resize(text.len().max(MEMORY_LEN), b' ');
    let in_place = File::options().write(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(path);
    match in_place {
        Ok(file) if file.metadata()?.len() == text.len() as u64 => file.write_all_at(&text, 0),
        Ok(_) | Err(_) => replace(path, &text),
    }
}

/// Leaves word, beside the state file of a job, that nothing of an agent runs any more.
///
/// Only where that file is: a job that is over leaves nothing to the next.
///
/// # Errors
///
/// Returns the system's refusal.
pub fn write_grave(state_file: &Path, obituary: &str) -> io::Result<()> {
    if state_file.exists() { replace(&grave(state_file), obituary.as_bytes()) } else { Ok(()) }
}

/// Whether such word was left of the host that `memory` knows, and of the round that it knows: one that
/// ran a later one may have others that run.
pub fn is_buried(state_file: &Path, memory: &Memory) -> bool {
    let Some(seat) = &memory.host else { return false };
    let text = fs::read_to_string(grave(state_file)).unwrap_or_default();
    parse_obituary(&text) == Some((seat.node.clone(), memory.round))
}

/// Reads what a keeper says of its agent: who it was, and the newest round that ran there.
pub fn parse_obituary(text: &str) -> Option<(NodeId, Round)> {
    let (node, round) = text.rsplit_once(' ')?;
    let is_sound = !node.is_empty() && node.len() <= 256;
    Some((NodeId::new(node), Round(round.parse().ok()?))).filter(|_| is_sound)
}

/// Forgets the job of a state file; there may be none.
pub fn forget(state_file: &Path) {
    for path in [state_file, &grave(state_file)] {
        let _ = fs::remove_file(path);
    }
}

fn grave(state_file: &Path) -> PathBuf {
    state_file.with_extension("buried")
}

/// A file that is there for as long as this value.
#[derive(Debug)]
pub struct Registration(PathBuf);

impl Registration {
    /// Leaves word of an agent that runs.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal.
    pub fn new(agent: &RunningAgent) -> io::Result<Self> {
        let path = ThisHost.runtime_dir().join(format!("agent-{}.json", agent.pid));
        let registration = Self(path);
        registration.renew(agent)?;
        Ok(registration)
    }

    /// Says something else of that agent.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal.
    pub fn renew(&self, agent: &RunningAgent) -> io::Result<()> {
        replace(&self.0, &serde_json::to_vec(agent)?)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Readers check that the process lives, so what stays does no harm.
        let _ = fs::remove_file(&self.0);
    }
}

/// The agents of this user that run on this machine.
pub fn running_agents() -> Vec<RunningAgent> {
    let entries = fs::read_dir(ThisHost.runtime_dir());
    let is_registration = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("agent-"))
    };
    let mut agents = Vec::new();
    let paths = entries.into_iter().flatten().flatten().map(|entry| entry.path());
    for path in paths.filter(is_registration) {
        match read::<RunningAgent>(&path) {
            Some(agent) if agent.is_alive() => agents.push(agent),
            // It was killed, and could not do it itself.
            Some(_) => drop(fs::remove_file(&path)),
            None => {}
        }
    }
    agents.sort_by_key(|agent| agent.pid);
    agents
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let mut text = String::new();
    File::open(path).ok()?.take(limits::MAX_STATE_FILE).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Writes a whole file beside and renames it, so that a reader sees the old one or the new one.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    make_private(path.parent().unwrap_or_else(|| Path::new("/")))?;
    let draft = path.with_extension(format!("{}.tmp", std::process::id()));
    // What a process with the same number left.
    let _ = fs::remove_file(&draft);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(text)?;
    fs::rename(&draft, path)
}

/// Makes `folder` if it is not there, and makes sure that only this user can put anything into it.
///
/// # Errors
///
/// Returns the system's refusal, or [`io::ErrorKind::PermissionDenied`] where it is somebody else's.
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    check_private(folder)
}

/// Makes sure that nobody else could have put anything into `folder`.
fn check_private(folder: &Path) -> io::Result<()> {
    let folder = fs::symlink_metadata(folder)?;
    if folder.is_dir() && folder.uid() == geteuid().as_raw() && folder.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "others may write to its folder"))
}

/// What is remembered takes less, and the kernel writes as much at once: within one page.
const MEMORY_LEN: usize = 1024;

#[cfg(test)]
mod tests {
    use ragent_rendezvous::message::JobResult;

    use super::*;

    /// What is written is read again, and garbage is nothing.
    #[test]
    fn memory_survives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/job.json");
        assert_eq!(read_memory(&path), None);
        let memory = Memory {
            round: Round(7),
            host: Some(HostSeat { rank: GroupRank(2), node: NodeId::new("n"), is_buried: true }),
            ..Memory::fresh(JobUid::new("u"))
        };
        // The second is shorter, and nothing of the first is left.
        let first = Memory { round: Round(1 << 60), ..memory.clone() };
        let outcome = Outcome {
            result: JobResult::AllLeft,
            first_failure: None,
            other_failures: 1,
            restarts_used: 2,
        };
        let closed = Memory { closed: Some(outcome), ..memory.clone() };
        for written in [first, memory, closed] {
            write_memory(&path, &written).unwrap();
            assert_eq!(read_memory(&path), Some(written));
        }
        fs::write(&path, "{").unwrap();
        assert_eq!(read_memory(&path), None);
    }
}
