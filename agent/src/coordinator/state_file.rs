//! Small files from which a restarted coordinator recovers its job, and from which `ragent status`
//! lists the jobs of this machine. They are in a folder that only their user can write to:
//! `PrivateFolder`.

mod age;
mod cleaning;

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use ragent_proto::Proof;
use ragent_rendezvous::{
    ids::{GroupRank, JobUid, NodeId, Round, RunId, Term},
    message::Outcome,
    settings::{HostSeat, HostTally, Memory},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use tracing::{info, warn};

use self::age::Stamp;
pub use self::cleaning::clean;
use super::proofs::Key;
use crate::{
    limits,
    spec::Endpoint,
    sys::{host::ThisHost, private_folder::PrivateFolder, process_start::began},
};

/// The content of a coordinator's state file.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Remembered {
    /// [`SCHEMA`]; zero in files of older builds.
    #[serde(default)]
    schema: u32,
    #[serde(default)]
    written: Stamp,
    /// The time after `written` for which agents of the run may wait for the next coordinator.
    #[serde(default)]
    kept_ms: u64,
    job_uid: String,
    term: u64,
    round: u64,
    round_size: u32,
    #[serde(default)]
    is_adopted: bool,
    host_rank: Option<u32>,
    /// This field and the next one are missing in files of older builds.
    #[serde(default)]
    host_node: String,
    #[serde(default)]
    is_host_buried: bool,
    restarts_used: u32,
    charged_through: u64,
    #[serde(default)]
    host_tallies: Vec<RememberedTally>,
    #[serde(default)]
    free_rounds: u32,
    #[serde(default)]
    early_free_rounds: u32,
    #[serde(default)]
    is_early: bool,
    /// Missing in files of older builds.
    #[serde(default)]
    closed: Option<Outcome>,
    /// Missing in files of older builds.
    #[serde(default)]
    proof_key: String,
}

/// One machine's early failures and losses.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct RememberedTally {
    host_name: String,
    address: String,
    strikes: u32,
    early_losses: u32,
}

/// The registration of a running agent, for `ragent status`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RunningAgent {
    /// The run id of the job.
    pub run_id: String,
    /// Its endpoint.
    pub endpoint: String,
    /// The agent's process.
    pub pid: u32,
    /// The process's start time as counted by the kernel, which distinguishes it from another
    /// process with the same number.
    pub began: u64,
    /// The progress of the agent. Missing in files of older builds.
    #[serde(default)]
    pub stage: Stage,
}

/// The progress of a running agent.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The agent has found its coordinator, or hosts it.
    #[default]
    Attending,
    /// The agent looks for the job's other agents: its endpoint names no host.
    Searching,
    /// The agent waits for the host of its endpoint.
    Waiting {
        /// The reason why the last attempt failed, if one has.
        cause: Option<String>,
    },
}

impl RunningAgent {
    /// Describes this process as an agent of a job.
    pub fn this(run_id: &RunId, endpoint: &Endpoint, stage: Stage) -> Self {
        let pid = std::process::id();
        let (run_id, endpoint) = (run_id.to_string(), endpoint.to_string());
        Self { run_id, endpoint, pid, began: began(pid).unwrap_or(0), stage }
    }

    fn is_alive(&self) -> bool {
        began(self.pid) == Some(self.began)
    }
}

/// Returns the path of the state file for the coordinator of a job at `endpoint`.
pub fn memory_path(run_id: &RunId, endpoint: &Endpoint) -> PathBuf {
    ThisHost.state_dir().join(format!("job-{}.json", job_key(run_id, endpoint)))
}

impl From<HostTally> for RememberedTally {
    fn from(HostTally { host_name, address, strikes, early_losses }: HostTally) -> Self {
        Self { host_name, address, strikes, early_losses }
    }
}

impl From<RememberedTally> for HostTally {
    fn from(tally: RememberedTally) -> Self {
        let RememberedTally { host_name, address, strikes, early_losses } = tally;
        Self { host_name, address, strikes, early_losses }
    }
}

/// Returns a string that distinguishes jobs in file names.
fn job_key(run_id: &RunId, endpoint: &Endpoint) -> String {
    // The same in every build, so that an upgraded agent finds its job.
    let digest = Sha256::digest(format!("{run_id}\0{}", endpoint.port));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A file with the outcome of a job that has failed for good, in a folder that a service manager
/// keeps for as long as it restarts the agent.
///
/// Without such a folder nothing is recorded: a user who starts an agent again by hand wants the
/// job to run again.
#[derive(Debug)]
pub struct ClosedJob(PathBuf);

impl ClosedJob {
    /// Returns the file for a job; `None` without a service manager.
    pub fn of(run_id: &RunId, endpoint: &Endpoint) -> Option<Self> {
        let folder = ThisHost.service_dir()?;
        Some(Self(folder.join(format!("closed-{}.json", job_key(run_id, endpoint)))))
    }

    /// Returns the outcome of the job, if it has failed for good.
    pub fn outcome(&self) -> Option<Outcome> {
        read(&self.0)
    }

    /// Records the outcome of the job.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn remember(&self, outcome: &Outcome) -> io::Result<()> {
        replace(&self.0, &serde_json::to_vec(outcome)?)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// The schema of a state file that this build reads and writes.
const SCHEMA: u32 = 1;

/// The validity of a state file.
pub(crate) enum Age {
    /// Agents may be waiting for the next coordinator.
    Fresh,
    /// No agent waits any longer.
    Outdated,
    /// The file has an unknown schema, or cannot be read.
    Unknown,
}

impl Remembered {
    fn age(&self, path: &Path) -> Age {
        if self.schema != SCHEMA {
            return Age::Unknown;
        }
        let age = self.written.age(&Stamp::now(), age::changed(path));
        let kept = Duration::from_millis(self.kept_ms).saturating_add(limits::STATE_FILE_INTERVAL);
        if age > kept { Age::Outdated } else { Age::Fresh }
    }
}

pub(crate) fn age_of_memory(path: &Path) -> Age {
    read::<Remembered>(path).map_or(Age::Unknown, |remembered| remembered.age(path))
}

/// Reads the memory of an earlier coordinator; `None` if there is none, it cannot be read, or it is
/// so old that no agent can be waiting for that run.
pub fn read_memory(path: &Path) -> Option<Memory> {
    let remembered: Remembered = read(path)?;
    match remembered.age(path) {
        Age::Fresh => {}
        Age::Outdated => {
            info!(
                path = %path.display(),
                "outdated state file ignored: no agent can be waiting for its run"
            );
            return None;
        }
        Age::Unknown => {
            warn!(path = %path.display(), "state file ignored: unknown format");
            return None;
        }
    }
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
        host_tallies: remembered.host_tallies.into_iter().map(Into::into).collect(),
        free_rounds: remembered.free_rounds,
        early_free_rounds: remembered.early_free_rounds,
        is_early: remembered.is_early,
        closed: remembered.closed,
    })
}

/// Reads the key with which an earlier coordinator made proofs, if there is one.
pub(crate) fn read_key(path: &Path) -> Option<Key> {
    Key::from_hex(&read::<Remembered>(path)?.proof_key)
}

/// Replaces the memory; agents of the run may wait for `kept` for the next coordinator.
///
/// A complete group starts only after this write. Renaming over a file makes some file systems
/// (ext4) write it out at once, which takes milliseconds, and more on a busy disk. So an existing
/// file is overwritten in place, by one write of always the same length.
///
/// # Errors
///
/// Returns the system's error.
pub(crate) fn write_memory(
    path: &Path,
    memory: &Memory,
    kept: Duration,
    key: &Key,
) -> io::Result<()> {
    let mut remembered = Remembered {
        schema: SCHEMA,
        written: Stamp::now(),
        kept_ms: u64::try_from(kept.as_millis()).unwrap_or(u64::MAX),
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
        host_tallies: memory.host_tallies.iter().cloned().map(Into::into).collect(),
        free_rounds: memory.free_rounds,
        early_free_rounds: memory.early_free_rounds,
        is_early: memory.is_early,
        closed: memory.closed.clone(),
        proof_key: key.to_hex(),
    };
    let mut text = serde_json::to_vec(&remembered)?;
    if text.len() as u64 > limits::MAX_STATE_FILE
        && let Some(failure) =
            remembered.closed.as_mut().and_then(|closed| closed.first_failure.as_mut())
    {
        // Messages of workers may be long; the fact of the failure must remain readable.
        failure.message = None;
        failure.stderr_tail.clear();
        text = serde_json::to_vec(&remembered)?;
    }
    if text.len() as u64 > limits::MAX_STATE_FILE {
        if let Some(closed) = &mut remembered.closed {
            closed.further_failures.clear();
        }
        remembered.host_tallies.clear();
        text = serde_json::to_vec(&remembered)?;
    }
    text.resize(text.len().max(MEMORY_LEN), b' ');
    let (folder, name) = (PrivateFolder::make(folder_of(path))?, name_of(path));
    // Only a file of the usual length is overwritten in place.
    let is_usual = text.len() == MEMORY_LEN;
    if is_usual && folder.write_over(name, &text)? { Ok(()) } else { folder.replace(name, &text) }
}

/// Writes an obituary next to the state file of a job: no process of an agent is left.
///
/// Does nothing if there is no state file: a job that has ended leaves nothing to the next one.
///
/// # Errors
///
/// Returns the system's error.
pub fn write_grave(state_file: &Path, obituary: &str) -> io::Result<()> {
    let folder = PrivateFolder::open(folder_of(state_file))?;
    if !folder.has(name_of(state_file)) {
        return Ok(());
    }
    folder.replace(name_of(&grave(state_file)), obituary.as_bytes())
}

/// Returns true if there is an obituary of the host in `memory`, for the round in `memory`: a host
/// that ran a later round may have other processes.
pub fn is_buried(state_file: &Path, memory: &Memory) -> bool {
    let Some(seat) = &memory.host else { return false };
    let text = read_text(&grave(state_file)).unwrap_or_default();
    // Its proof is not verified: only this user can write to the folder.
    parse_obituary(&text)
        .is_some_and(|obituary| obituary.node == seat.node && obituary.round == memory.round)
}

/// A keeper's report that its agent is gone and all processes of the node are reaped.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Obituary {
    /// The agent's node id.
    pub node: NodeId,
    /// The newest round that ran there.
    pub round: Round,
    /// The proof of that node id.
    pub proof: Option<Proof>,
}

/// Parses `NODE ROUND PROOF`.
pub fn parse_obituary(text: &str) -> Option<Obituary> {
    let (rest, last) = text.rsplit_once(' ')?;
    let (rest, proof) = match last.parse() {
        Ok(proof) => (rest, Some(proof)),
        Err(_) => (text, None),
    };
    let (node, round) = rest.rsplit_once(' ')?;
    let is_sound = !node.is_empty() && node.len() <= 256 && !node.chars().any(char::is_control);
    let (node, round) = (NodeId::new(node), Round(round.parse().ok()?));
    Some(Obituary { node, round, proof }).filter(|_| is_sound)
}

/// Removes the state file of a job, if there is one.
pub fn forget(state_file: &Path) {
    let Ok(folder) = PrivateFolder::open(folder_of(state_file)) else { return };
    for path in [state_file, &grave(state_file)] {
        folder.remove(name_of(path));
    }
}

fn grave(state_file: &Path) -> PathBuf {
    state_file.with_extension("buried")
}

/// The registration file of an agent, which exists until this value is dropped.
#[derive(Debug)]
pub struct Registration(PathBuf);

impl Registration {
    /// Writes the registration of a running agent.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn new(agent: &RunningAgent) -> io::Result<Self> {
        // Registrations of killed agents.
        drop(running_agents());
        let path = ThisHost.runtime_dir().join(format!("agent-{}.json", agent.pid));
        let registration = Self(path);
        registration.renew(agent)?;
        Ok(registration)
    }

    /// Replaces the registration of the agent.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn renew(&self, agent: &RunningAgent) -> io::Result<()> {
        replace(&self.0, &serde_json::to_vec(agent)?)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Readers check that the process is alive, so a remaining file does no harm.
        if let Ok(folder) = PrivateFolder::open(folder_of(&self.0)) {
            folder.remove(name_of(&self.0));
        }
    }
}

/// Returns the running agents of this user on this machine.
pub fn running_agents() -> Vec<RunningAgent> {
    running_agents_in(&ThisHost.runtime_dir())
}

fn running_agents_in(folder: &Path) -> Vec<RunningAgent> {
    let Ok(folder) = PrivateFolder::open(folder) else { return Vec::new() };
    let is_registration = |name: &OsString| {
        let name = name.to_str();
        name.is_some_and(|name| name.starts_with("agent-") && name.ends_with(".json"))
    };
    let mut agents = Vec::new();
    for name in folder.names().into_iter().filter(is_registration) {
        let text = folder.read(&name).ok();
        match text.and_then(|text| serde_json::from_str::<RunningAgent>(&text).ok()) {
            Some(agent) if agent.is_alive() => agents.push(agent),
            // The agent was killed, and could not remove it.
            Some(_) => folder.remove(&name),
            None => {}
        }
    }
    agents.sort_by_key(|agent| agent.pid);
    agents
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_str(&read_text(path)?).ok()
}

fn read_text(path: &Path) -> Option<String> {
    PrivateFolder::open(folder_of(path)).ok()?.read(name_of(path)).ok()
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    PrivateFolder::make(folder_of(path))?.replace(name_of(path), text)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or_else(|| Path::new("/"))
}

fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// The usual length of a state file: one page, which the kernel writes at once. A longer file, as
/// after failures on many machines, is written to a temporary file and renamed.
const MEMORY_LEN: usize = 4096;

#[cfg(test)]
mod tests {
    use ragent_rendezvous::message::JobResult;

    use std::fs::{self, File};

    use super::*;

    /// A written memory is read again; invalid text is ignored.
    #[test]
    fn memory_survives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/job.json");
        let key = Key::from_hex(&"0f".repeat(32)).unwrap();
        assert_eq!(read_memory(&path), None);
        let memory = Memory {
            round: Round(7),
            host: Some(HostSeat { rank: GroupRank(2), node: NodeId::new("n"), is_buried: true }),
            host_tallies: vec![HostTally {
                host_name: "n".into(),
                address: "10.0.0.1".into(),
                strikes: 2,
                early_losses: 5,
            }],
            free_rounds: 3,
            early_free_rounds: 2,
            is_early: true,
            ..Memory::fresh(JobUid::new("u"))
        };
        // The second is shorter, and no part of the first remains.
        let first = Memory { round: Round(1 << 60), ..memory.clone() };
        let outcome = Outcome {
            result: JobResult::AllLeft,
            first_failure: None,
            other_failures: 1,
            further_failures: Vec::new(),
            restarts_used: 2,
        };
        let closed = Memory { closed: Some(outcome), ..memory.clone() };
        for written in [first, memory, closed] {
            write_memory(&path, &written, Duration::from_secs(600), &key).unwrap();
            assert_eq!(read_memory(&path), Some(written));
        }
        fs::write(&path, "{").unwrap();
        assert_eq!(read_memory(&path), None);
    }

    /// Writes a state file whose stamp is `age` seconds old, of a run whose agents wait for ten
    /// minutes.
    fn write_aged(path: &Path, age: u64, change: impl FnOnce(&mut Remembered)) {
        let memory = Memory::fresh(JobUid::new("u"));
        let key = Key::from_hex(&"ab".repeat(32)).unwrap();
        write_memory(path, &memory, Duration::from_secs(600), &key).unwrap();
        let mut remembered: Remembered = read(path).unwrap();
        let now = u64::try_from(crate::sys::clock::boot_time().as_millis()).unwrap();
        remembered.written = serde_json::from_value(serde_json::json!({
            "boot_id": serde_json::to_value(&remembered.written).unwrap()["boot_id"],
            "boot_time_ms": now.saturating_sub(age * 1000),
        }))
        .unwrap();
        change(&mut remembered);
        fs::write(path, serde_json::to_vec(&remembered).unwrap()).unwrap();
    }

    /// A state file is read only while agents may wait for its run, and only with the known schema.
    #[test]
    fn old_memory_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job-1.json");
        write_aged(&path, 600, |_| {});
        assert!(read_memory(&path).is_some());
        write_aged(&path, 620, |_| {});
        assert!(read_memory(&path).is_none());
        write_aged(&path, 0, |remembered| remembered.schema = SCHEMA + 1);
        assert!(read_memory(&path).is_none());
        // After a reboot the time of the last change counts.
        let of_another_boot = |remembered: &mut Remembered| remembered.written = Stamp::default();
        write_aged(&path, 620, of_another_boot);
        assert!(read_memory(&path).is_some());
        let changed =
            std::time::UNIX_EPOCH + crate::sys::clock::wall_time() - Duration::from_secs(620);
        File::options().append(true).open(&path).unwrap().set_modified(changed).unwrap();
        assert!(read_memory(&path).is_none());
    }

    /// File names of jobs do not depend on the build.
    #[test]
    fn names_are_fixed() {
        let endpoint = Endpoint { host: "h".into(), port: 29400 };
        assert_eq!(job_key(&RunId::new("run"), &endpoint), "66a9e947e24ea6ea");
    }

    /// Outdated files are removed, and no others.
    #[test]
    fn cleaning_removes_what_is_outdated() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        write_aged(&path("job-fresh.json"), 0, |_| {});
        write_aged(&path("job-old.json"), 620, |_| {});
        let forgotten = std::time::UNIX_EPOCH;
        for name in ["job-fresh.buried", "job-old.buried", "job-lone.buried", "job-x.9.tmp", "else"]
        {
            fs::write(path(name), "n 1").unwrap();
            let file = File::options().append(true).open(path(name)).unwrap();
            file.set_modified(forgotten).unwrap();
        }
        fs::write(path("job-new.buried"), "n 1").unwrap();
        fs::write(path("job-other.json"), "{}").unwrap();
        write_aged(&path("job-own.json"), 620, |_| {});
        clean(&path("job-own.json"));
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let expected = [
            "else",
            "job-fresh.buried",
            "job-fresh.json",
            "job-new.buried",
            "job-other.json",
            "job-own.json",
        ];
        assert_eq!(left, expected);
    }

    /// Registrations of dead agents are removed, those of running agents are found.
    #[test]
    fn stale_registrations_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint { host: "h".into(), port: 1 };
        let alive = RunningAgent::this(&RunId::new("run"), &endpoint, Stage::Attending);
        let gone = RunningAgent { began: alive.began + 1, ..alive.clone() };
        for (name, agent) in [("agent-1.json", &gone), ("agent-2.json", &alive)] {
            fs::write(folder.path().join(name), serde_json::to_vec(agent).unwrap()).unwrap();
        }
        assert_eq!(running_agents_in(folder.path()), [alive]);
        assert!(!folder.path().join("agent-1.json").exists());
        assert!(folder.path().join("agent-2.json").exists());
    }

    /// An obituary may lack a proof; a node id may contain spaces.
    #[test]
    fn obituaries_are_read() {
        let proof = "000102030405060708090a0b0c0d0e0f";
        let read =
            |text: &str| parse_obituary(text).map(|o| (o.node.to_string(), o.round.0, o.proof));
        let parsed: Proof = proof.parse().unwrap();
        assert_eq!(read(&format!("n 7 {proof}")), Some(("n".to_owned(), 7, Some(parsed))));
        assert_eq!(read(&format!("n m 7 {proof}")), Some(("n m".to_owned(), 7, Some(parsed))));
        assert_eq!(read("n 7"), Some(("n".to_owned(), 7, None)));
        let wrong = ["", "n", "7", " 7", "n x", "n\x1b[2J 7", &format!("7 {proof}")];
        for wrong in wrong {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
