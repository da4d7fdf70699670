//! Reads and writes the state file from which a restarted coordinator or voter recovers its job.

use std::{
    collections::BTreeSet,
    fmt::Display,
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use ragent_base::sys::private_folder::PrivateFolder;
use ragent_election::election::message::{Lists, Replica, Version, VoterSlot};
use ragent_proto::{Malformed, v1};
use ragent_rendezvous::{
    account::{TimeState, TimeTotals},
    event::{RestartCause, RestartSum},
    ids::{GroupRank, JobUid, NodeId, ProofKey, Round, Term, VoterAddress, VoterId},
    limits::NUMBER_MAX,
    message::Outcome,
    settings::{HostMember, HostTally, JobState},
    training::Training,
};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::{
    age::{self, WriteStamp},
    files::{folder_of, name_of, read, read_if_there},
};
use crate::{Stored, limits};

/// The content of a coordinator's state file.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Remembered {
    /// [`SCHEMA`] in files of this build.
    schema: u32,
    /// The time of the write. In the file of a voter, the last time at which a leader was known.
    written: WriteStamp,
    /// The time after `written` that agents may wait for the next coordinator.
    kept_ms: u64,
    job_uid: String,
    /// Missing in files of 0.2.0.
    #[serde(default)]
    born_ms: u64,
    term: u64,
    round: u64,
    round_size: u32,
    is_adopted: bool,
    host_rank: Option<u32>,
    host_node: String,
    host_name: String,
    is_host_confirmed_dead: bool,
    restarts_used: u32,
    charged_through: u64,
    host_tallies: Vec<HostTally>,
    free_rounds: u32,
    early_free_rounds: u32,
    is_early: bool,
    closed: Option<Outcome>,
    totals: RememberedTotals,
    /// Missing in files of 0.2.0.
    #[serde(default)]
    training: Training,
    /// Hexadecimal digits.
    proof_key: String,
    /// Only in the file of a voter.
    copy: Option<RememberedCopy>,
}

/// The time account of the job, in the order of the messages between voters.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct RememberedTotals {
    state_ms: Vec<u64>,
    redone_ms: u64,
    /// Count, cost in milliseconds, and repeated steps.
    restarts: Vec<(u32, u64, u64)>,
}

impl RememberedTotals {
    fn of(job_state: &JobState) -> Self {
        let ms = |time: &Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let restart = |sum: &RestartSum| (sum.count, sum.cost_ms, sum.redone_steps);
        Self {
            state_ms: job_state.time.by_state.iter().map(ms).collect(),
            redone_ms: ms(&job_state.time.redone),
            restarts: job_state.restarts.iter().map(restart).collect(),
        }
    }

    fn time(&self) -> TimeTotals {
        let redone = Duration::from_millis(self.redone_ms);
        let mut time = TimeTotals { redone, ..TimeTotals::default() };
        for (state, ms) in TimeState::ALL.into_iter().zip(&self.state_ms) {
            time.add(state, Duration::from_millis(*ms));
        }
        time
    }

    fn restarts(&self) -> [RestartSum; RestartCause::ALL.len()] {
        let mut restarts = [RestartSum::default(); RestartCause::ALL.len()];
        for (restart, (count, cost_ms, redone_steps)) in restarts.iter_mut().zip(&self.restarts) {
            let (count, cost_ms, redone_steps) = (*count, *cost_ms, *redone_steps);
            *restart = RestartSum { count, cost_ms, redone_steps };
        }
        restarts
    }
}

/// The part that only a voter stores: its identity, the version of its copy, the lists of voters,
/// and the highest known term.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct RememberedCopy {
    version_term: u64,
    version_number: u64,
    highest: u64,
    voter: Option<u64>,
    last: Vec<RememberedSlot>,
    before: Vec<RememberedSlot>,
}

/// A voter in a list.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct RememberedSlot {
    address: String,
    voter: Option<u64>,
}

impl From<&VoterSlot> for RememberedSlot {
    fn from(VoterSlot { address, voter }: &VoterSlot) -> Self {
        Self { address: address.to_string(), voter: voter.map(|voter| voter.0) }
    }
}

impl From<RememberedSlot> for VoterSlot {
    fn from(RememberedSlot { address, voter }: RememberedSlot) -> Self {
        Self { address: VoterAddress::new(address), voter: voter.map(VoterId) }
    }
}

/// The schema of a state file that this build reads and writes.
const SCHEMA: u32 = 1;

/// The validity of a state file.
pub(super) enum Age {
    /// Agents may still wait for the next coordinator.
    Recent,
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
        let age = self.written.age(&WriteStamp::now(), age::changed(path));
        let kept = Duration::from_millis(self.kept_ms).saturating_add(limits::STATE_FILE_INTERVAL);
        if age > kept { Age::Outdated } else { Age::Recent }
    }
}

/// Returns the validity of a state file.
pub(super) fn age_of_job_state(path: &Path) -> Age {
    read::<Remembered>(path).map_or(Age::Unknown, |remembered| remembered.age(path))
}

/// Returns the state that an earlier coordinator has stored. `None` if the file is missing, unreadable or malformed, or so old that no
/// agent can still wait for that run.
pub fn read_job_state(path: &Path) -> Option<JobState> {
    let job_state = JobState::from(read_recent(path)?);
    accept(path, JobState::try_from(v1::JobState::from(job_state)))
}

/// Returns the state of an earlier process of a voter, under the same conditions, and only if the machine was not restarted since.
pub fn read_copy(path: &Path) -> Option<Stored> {
    let mut remembered = read_recent(path)?;
    // The file is not flushed to the disk at once, so granted votes and leases may be missing after a loss of power.
    if !remembered.written.is_of_this_boot() {
        info!(
            path = %path.display(),
            "state file of an earlier boot ignored: this process is another voter of the job"
        );
        return None;
    }
    let copy = remembered.copy.take()?;
    let version = Version { term: Term(copy.version_term), number: copy.version_number };
    let slots =
        |list: Vec<RememberedSlot>| list.into_iter().map(VoterSlot::from).collect::<Vec<_>>();
    let (last, before) = (slots(copy.last), slots(copy.before));
    let lists = Lists { last, before: (!before.is_empty()).then_some(before) };
    let replica = Replica { version, lists, job_state: Some(remembered.into()) };
    let replica = accept(path, Replica::try_from(v1::Replica::from(replica)))?;
    let in_range = (copy.highest <= NUMBER_MAX).then_some(Term(copy.highest));
    let highest = accept(path, in_range.ok_or(Malformed::OutOfRange("highest")))?;
    Some(Stored { voter: Some(VoterId(copy.voter?)), replica, highest, is_led: false })
}

/// Returns the content of a file if it is valid as a message between voters. A number at its limit is refused, because it leaves no next
/// number.
fn accept<T>(path: &Path, content: Result<T, Malformed>) -> Option<T> {
    content.inspect_err(|error| warn_once(path, error)).ok()
}

/// Warns once per process and file that a file cannot be read or is malformed. An agent reads its file again when its voter starts.
fn warn_once(path: &Path, error: &dyn Display) {
    static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if warned.insert(path.to_owned()) {
        warn!(path = %path.display(), %error, "ignored a state file that cannot be read or is malformed; the job continues without it");
    }
}

fn read_recent(path: &Path) -> Option<Remembered> {
    let remembered: Remembered = match read_if_there(path) {
        Ok(remembered) => remembered?,
        Err(error) => {
            warn_once(path, &error);
            return None;
        }
    };
    match remembered.age(path) {
        Age::Recent => {}
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
    Some(remembered)
}

impl From<Remembered> for JobState {
    fn from(remembered: Remembered) -> Self {
        Self {
            job_uid: JobUid::new(remembered.job_uid),
            born_ms: remembered.born_ms,
            term: Term(remembered.term),
            round: Round(remembered.round),
            round_size: remembered.round_size,
            is_adopted: remembered.is_adopted,
            host: remembered.host_rank.map(|rank| HostMember {
                rank: GroupRank(rank),
                node: NodeId::new(remembered.host_node),
                host_name: remembered.host_name,
                is_confirmed_dead: remembered.is_host_confirmed_dead,
            }),
            restarts_used: remembered.restarts_used,
            charged_through: Round(remembered.charged_through),
            host_tallies: remembered.host_tallies,
            free_rounds: remembered.free_rounds,
            early_free_rounds: remembered.early_free_rounds,
            is_early: remembered.is_early,
            closed: remembered.closed,
            time: remembered.totals.time(),
            training: remembered.training,
            restarts: remembered.totals.restarts(),
            proof_key: key_from_hex(&remembered.proof_key),
        }
    }
}

/// Replaces the state. Agents of the run may wait for `kept` for the next coordinator. Does nothing if there is no state.
///
/// A group starts only after this write, so the write must be fast. Renaming over a file makes some
/// file systems (ext4) flush it at once, which takes milliseconds, and more on a busy disk. So an
/// existing file is overwritten in place, by one write of constant length.
///
/// # Errors
///
/// Returns the system's error.
pub fn write_copy(path: &Path, stored: &Stored, kept: Duration) -> io::Result<()> {
    let Stored { voter, replica, highest, is_led } = stored;
    let Replica { version, lists, job_state: Some(job_state) } = replica else { return Ok(()) };
    let slots = |list: &[VoterSlot]| list.iter().map(Into::into).collect();
    let copy = voter.map(|voter| RememberedCopy {
        version_term: version.term.0,
        version_number: version.number,
        highest: highest.0,
        voter: Some(voter.0),
        last: slots(&lists.last),
        before: lists.before.as_deref().map(slots).unwrap_or_default(),
    });
    // Without a leader the old time stays. Otherwise agents that are restarted again and again would keep the state of a job forever that
    // no process can lead.
    let led = (!is_led).then(|| led_until(path, job_state)).flatten();
    write(path, job_state, copy, (led.unwrap_or_else(WriteStamp::now), kept))
}

/// Returns the last time at which the job had a leader, according to its state file.
fn led_until(path: &Path, job_state: &JobState) -> Option<WriteStamp> {
    let before: Remembered = read(path)?;
    (before.job_uid == job_state.job_uid.as_str()).then_some(before.written)
}

fn write(
    path: &Path,
    job_state: &JobState,
    copy: Option<RememberedCopy>,
    (written, kept): (WriteStamp, Duration),
) -> io::Result<()> {
    let mut remembered = Remembered {
        schema: SCHEMA,
        written,
        kept_ms: u64::try_from(kept.as_millis()).unwrap_or(u64::MAX),
        job_uid: job_state.job_uid.to_string(),
        born_ms: job_state.born_ms,
        term: job_state.term.0,
        round: job_state.round.0,
        round_size: job_state.round_size,
        is_adopted: job_state.is_adopted,
        host_rank: job_state.host.as_ref().map(|host| host.rank.0),
        host_node: job_state.host.as_ref().map(|host| host.node.to_string()).unwrap_or_default(),
        host_name: job_state.host.as_ref().map(|host| host.host_name.clone()).unwrap_or_default(),
        is_host_confirmed_dead: job_state.host.as_ref().is_some_and(|host| host.is_confirmed_dead),
        restarts_used: job_state.restarts_used,
        charged_through: job_state.charged_through.0,
        host_tallies: job_state.host_tallies.clone(),
        free_rounds: job_state.free_rounds,
        early_free_rounds: job_state.early_free_rounds,
        is_early: job_state.is_early,
        closed: job_state.closed.clone(),
        totals: RememberedTotals::of(job_state),
        training: job_state.training.clone(),
        proof_key: job_state.proof_key.as_ref().map(key_to_hex).unwrap_or_default(),
        copy,
    };
    let mut text = serde_json::to_vec(&remembered)?;
    if text.len() as u64 > limits::MAX_STATE_FILE
        && let Some(failure) =
            remembered.closed.as_mut().and_then(|closed| closed.first_failure.as_mut())
    {
        // Messages of workers may be long. The fact of the failure must remain readable.
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
    // Only a file of the usual length can be overwritten in place.
    let is_usual = text.len() == MEMORY_LEN;
    if is_usual && folder.write_over(name, &text)? { Ok(()) } else { folder.replace(name, &text) }
}

fn key_to_hex(key: &ProofKey) -> String {
    key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn key_from_hex(text: &str) -> Option<ProofKey> {
    let mut bytes = [0; ProofKey::LEN];
    if text.len() != 2 * ProofKey::LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(ProofKey::new(bytes))
}

/// The usual length of a state file: one page, which the kernel writes at once. A longer file, for
/// example after failures on many machines, is written to a temporary file and renamed.
const MEMORY_LEN: usize = 4096;

#[cfg(test)]
pub(super) mod tests {
    use std::fs::{self, File};

    use ragent_rendezvous::{
        ids::GlobalRank,
        message::{CheckpointId, JobResult, WorkerEnd},
        training::{ChargedRound, TriedCheckpoint},
    };

    use super::*;

    /// Writes the state file of a fixed coordinator.
    fn write_job_state(path: &Path, job_state: JobState) {
        let replica = Replica { job_state: Some(job_state), ..Replica::default() };
        let stored = Stored { replica, is_led: true, ..Stored::default() };
        write_copy(path, &stored, Duration::from_secs(600)).unwrap();
    }

    /// Writes a state file with a stamp that is `age` seconds old. Agents of its run wait for ten minutes.
    pub(in super::super) fn write_aged(
        path: &Path,
        age: u64,
        change: impl FnOnce(&mut Remembered),
    ) {
        write_job_state(path, JobState::new(JobUid::new("u")));
        let mut remembered: Remembered = read(path).unwrap();
        let now = u64::try_from(ragent_base::sys::clock::boot_time().as_millis()).unwrap();
        remembered.written = serde_json::from_value(serde_json::json!({
            "boot_id": serde_json::to_value(&remembered.written).unwrap()["boot_id"],
            "boot_time_ms": now.saturating_sub(age * 1000),
        }))
        .unwrap();
        change(&mut remembered);
        fs::write(path, serde_json::to_vec(&remembered).unwrap()).unwrap();
    }

    /// A written state is read again. Invalid text is ignored.
    #[test]
    fn job_state_survives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/job.json");
        assert_eq!(read_job_state(&path), None);
        let job_state = JobState {
            round: Round(7),
            host: Some(HostMember {
                rank: GroupRank(2),
                node: NodeId::new("n"),
                host_name: "node1".to_owned(),
                is_confirmed_dead: true,
            }),
            host_tallies: vec![HostTally {
                host_name: "n".into(),
                address: "10.0.0.1".into(),
                strikes: 2,
                early_losses: 5,
                suspicions: 3,
                suspected_for: Duration::from_millis(3_600_001),
            }],
            free_rounds: 3,
            early_free_rounds: 2,
            is_early: true,
            training: Training {
                charged_rounds: vec![ChargedRound {
                    round: Round(7),
                    step: Some(120),
                    rank: GlobalRank(3),
                    end: WorkerEnd::Exited(1),
                    at: Duration::from_secs(60),
                    began_from_memory: true,
                }],
                longest_pause: Duration::from_millis(1_200_001),
                first_step: Duration::from_millis(182_003),
                memory: Some(TriedCheckpoint { checkpoint: CheckpointId::default(), tries: 2 }),
                ..Training::default()
            },
            time: {
                let mut time = TimeTotals { redone: Duration::from_secs(1), ..Default::default() };
                time.add(TimeState::Productive, Duration::from_millis(86_400_123));
                time
            },
            restarts: [RestartSum { count: 1, cost_ms: 2, redone_steps: 3 };
                RestartCause::ALL.len()],
            proof_key: Some(ProofKey::new([0xf; 32])),
            ..JobState::new(JobUid::new("u"))
        };
        // The second state is shorter. No part of the first one remains.
        let first = JobState { round: Round(1 << 60), ..job_state.clone() };
        let outcome = Outcome {
            result: JobResult::AllLeft,
            first_failure: None,
            other_failures: 1,
            further_failures: Vec::new(),
            restarts_used: 2,
            complete_step: None,
        };
        let closed = JobState { closed: Some(outcome), ..job_state.clone() };
        for written in [first, job_state, closed] {
            write_job_state(&path, written.clone());
            assert_eq!(read_job_state(&path), Some(written));
        }
        fs::write(&path, "{").unwrap();
        assert_eq!(read_job_state(&path), None);
    }

    /// A state file is ignored if a number in it leaves no next number, or if a name in it is not valid for a node.
    #[test]
    fn malformed_job_state_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job-1.json");
        write_aged(&path, 0, |remembered| remembered.round = NUMBER_MAX);
        assert!(read_job_state(&path).is_some());
        write_aged(&path, 0, |remembered| remembered.round = NUMBER_MAX + 1);
        assert_eq!(read_job_state(&path), None);
        write_aged(&path, 0, |remembered| {
            (remembered.host_rank, remembered.host_name) = (Some(0), "\u{1b}[2J".to_owned());
        });
        assert_eq!(read_job_state(&path), None);
        let slots = vec![RememberedSlot { address: "a:1".to_owned(), voter: Some(1) }];
        for (highest, version_number, is_read) in
            [(NUMBER_MAX, NUMBER_MAX, true), (NUMBER_MAX + 1, 1, false), (1, u64::MAX, false)]
        {
            write_aged(&path, 0, |remembered| {
                let (voter, last, before) = (Some(7), slots.clone(), Vec::new());
                let version_term = 1;
                let copy =
                    RememberedCopy { version_term, version_number, highest, voter, last, before };
                remembered.copy = Some(copy);
            });
            assert_eq!(read_copy(&path).is_some(), is_read, "{highest} {version_number}");
        }
    }

    /// A key in a state file has 64 hexadecimal digits. Anything else is ignored.
    #[test]
    fn key_is_parsed() {
        let key = ProofKey::new(std::array::from_fn(|at| 8 * u8::try_from(at).unwrap()));
        assert_eq!(key_from_hex(&key_to_hex(&key)), Some(key));
        for wrong in ["", "00", &"0".repeat(63), &"+".repeat(64), &"\u{fc}".repeat(32)] {
            assert_eq!(key_from_hex(wrong), None);
        }
    }

    /// A state file is read only while agents may wait for its run, and only if its schema is known.
    #[test]
    fn old_job_state_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job-1.json");
        write_aged(&path, 600, |_| {});
        assert!(read_job_state(&path).is_some());
        write_aged(&path, 620, |_| {});
        assert!(read_job_state(&path).is_none());
        write_aged(&path, 0, |remembered| remembered.schema = SCHEMA + 1);
        assert!(read_job_state(&path).is_none());
        // After a reboot, the time of the last change counts.
        let of_another_boot =
            |remembered: &mut Remembered| remembered.written = WriteStamp::default();
        write_aged(&path, 620, of_another_boot);
        assert!(read_job_state(&path).is_some());
        let changed =
            std::time::UNIX_EPOCH + ragent_base::sys::clock::wall_time() - Duration::from_secs(620);
        File::options().append(true).open(&path).unwrap().set_modified(changed).unwrap();
        assert!(read_job_state(&path).is_none());
    }
}
