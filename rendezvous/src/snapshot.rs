//! Defines the state of a job for people and monitoring, as one value.

mod shared;

use std::{fmt, net::IpAddr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::IgnoredAny};
use strum::{IntoStaticStr, VariantArray};

pub(crate) use self::shared::SharedNode;
pub use self::shared::{JobCounts, NodeCounts, SharedSnapshot};
pub use crate::message::Explanation;
use crate::{
    event::{RestartCause, RestartCost, RestartSum},
    ids::{GlobalRank, GroupRank, JobUid, NodeId, Round, RunId, Term},
    message::{NoticeKind, Outcome, StandbyCounts, StepSource},
};

/// The state of the machine at one moment. Its JSON is for users as well. A later field needs a default,
/// because coordinators of an earlier version do not send it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Snapshot {
    /// The job.
    pub run_id: RunId,
    /// The run.
    pub job_uid: JobUid,
    /// The coordinator's term.
    pub term: Term,
    /// The newest completed round.
    pub round: Round,
    /// The phase of the job.
    pub phase: PhaseName,
    /// The fewest nodes of a round; zero before the first registration.
    pub min_nodes: u32,
    /// The time since the job entered that phase, in milliseconds.
    pub phase_ms: u64,
    /// The time account.
    pub time: JobTime,
    /// The cost of the last restart in this term; `None` before the first.
    #[serde(deserialize_with = "known", default)]
    pub last_restart: Option<RestartCost>,
    /// The restarts so far, by cause.
    #[serde(deserialize_with = "all_known", default)]
    pub restarts: Vec<RestartsByCause>,
    /// The most nodes of a round; zero before the first registration.
    pub max_nodes: u32,
    /// The number of failures charged so far.
    pub restarts_used: u32,
    /// The number of these that progress has forgiven.
    #[serde(default)]
    pub restarts_forgiven: u32,
    /// The number of failures that may be charged.
    pub max_restarts: u32,
    /// The number of workers in the newest completed round.
    pub world_size: u32,
    /// Every node that the coordinator knows, members first, by rank.
    pub nodes: Vec<NodeSnapshot>,
    /// The reason why the next round is not complete yet; `None` while one runs undisturbed.
    pub incomplete: Option<Explanation>,
    /// The clients that the newest round's store has refused, because their addresses are not a member's.
    pub refused_clients: Vec<IpAddr>,
    /// Processes without the right credentials that the coordinator's port has refused, by address; at most
    /// [`REFUSED_PEERS_MAX`]. The coordinator's service has added them.
    pub refused_peers: Vec<RefusedPeer>,
    /// Connections between nodes that could not be opened; at most [`UNREACHED_MAX`]. The coordinator's
    /// driver has added them. Version 0.2.0 has none.
    #[serde(default)]
    pub unreached: Vec<Unreached>,
    /// The training step of the newest round, if any is known.
    #[serde(deserialize_with = "known", default)]
    pub progress: Option<JobProgress>,
    /// The phase of a notice, in which all ranks may save.
    #[serde(deserialize_with = "known", default)]
    pub saving: Option<Saving>,
    /// How often the job saves, if it reports that.
    pub checkpoints: Option<CheckpointTimes>,
    /// The newest step that all ranks have saved, if it is known.
    pub saved_step: Option<u64>,
    /// The reason why the last checkpoint could not be written.
    pub save_failed: Option<String>,
    /// The stall of the workers, while they make no progress for much longer than usual.
    pub stall: Option<Stall>,
    /// The newest look at the workers of the running round, if there was one.
    pub look: Option<JobLook>,
    /// The checkpoints in memory, if the script has saved any.
    pub memory: Option<MemoryStatus>,
    /// The outcome of the job, if it has ended.
    pub outcome: Option<Outcome>,
    /// The endpoint of the leader: the voter that coordinates the job, or the agent that was chosen through
    /// etcd; `None` if the job has one endpoint.
    pub leader: Option<String>,
    /// The voters that elect the coordinator, by place; empty if the job has one endpoint, or uses etcd. The
    /// coordinator's driver has added them.
    pub voters: Vec<VoterStatus>,
}

impl Snapshot {
    /// Returns the state without ages. Two states that differ in more than ages also differ in this form.
    pub fn without_ages(&self) -> Self {
        let mut snapshot = self.clone();
        snapshot.phase_ms = 0;
        snapshot.time.states.clear();
        for node in &mut snapshot.nodes {
            node.last_seen_ms = 0;
            node.progress_age_ms = None;
        }
        if let Some(progress) = &mut snapshot.progress {
            progress.age = Duration::ZERO;
        }
        if let Some(saving) = &mut snapshot.saving {
            saving.left_ms = 0;
        }
        snapshot.checkpoints = None;
        if let Some(stall) = &mut snapshot.stall {
            stall.for_ms = 0;
        }
        if let Some(look) = &mut snapshot.look {
            look.age_ms = 0;
        }
        if let Some(memory) = &mut snapshot.memory {
            memory.age_ms = None;
        }
        for voter in &mut snapshot.voters {
            voter.silent_for = if voter.is_silent() { VOTER_SILENCE } else { Duration::ZERO };
        }
        snapshot
    }

    /// Returns the state without its nodes.
    pub fn without_nodes(&self) -> Self {
        Self {
            run_id: self.run_id.clone(),
            job_uid: self.job_uid.clone(),
            term: self.term,
            round: self.round,
            phase: self.phase,
            min_nodes: self.min_nodes,
            phase_ms: self.phase_ms,
            time: self.time.clone(),
            last_restart: self.last_restart.clone(),
            restarts: self.restarts.clone(),
            max_nodes: self.max_nodes,
            restarts_used: self.restarts_used,
            restarts_forgiven: self.restarts_forgiven,
            max_restarts: self.max_restarts,
            world_size: self.world_size,
            nodes: Vec::new(),
            incomplete: self.incomplete.clone(),
            refused_clients: self.refused_clients.clone(),
            refused_peers: self.refused_peers.clone(),
            unreached: self.unreached.clone(),
            progress: self.progress,
            saving: self.saving.clone(),
            checkpoints: self.checkpoints,
            saved_step: self.saved_step,
            save_failed: self.save_failed.clone(),
            stall: self.stall.clone(),
            look: self.look.clone(),
            memory: self.memory.clone(),
            outcome: self.outcome.clone(),
            leader: self.leader.clone(),
            voters: self.voters.clone(),
        }
    }

    /// Adds the voters that elect the coordinator.
    pub fn set_voters(&mut self, voters: Vec<VoterStatus>) {
        let leader = voters.iter().find(|voter| voter.is_leader);
        self.leader = leader.map(|voter| voter.endpoint.clone());
        self.voters = voters;
    }
}

/// The time account of a job.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobTime {
    /// The time in each state. Their sum is the age of the job.
    pub states: Vec<StateTime>,
    /// The part of the productive time that was spent on steps that were done again after a failure, in
    /// milliseconds.
    pub redone_ms: u64,
    /// The state that the job appears to be in; `None` if it is closed.
    pub now: Option<String>,
}

impl JobTime {
    /// Returns the age of the job in milliseconds.
    pub fn age_ms(&self) -> u64 {
        self.states.iter().fold(0, |sum, state| sum.saturating_add(state.ms))
    }

    /// Returns the time in the state with this name, in milliseconds.
    pub fn of(&self, state: &str) -> u64 {
        self.states.iter().find(|time| time.state == state).map_or(0, |time| time.ms)
    }

    /// Returns the age without the time in which nothing is known about progress.
    pub fn known_ms(&self) -> u64 {
        self.age_ms().saturating_sub(self.of("unknown"))
    }

    /// Returns the productive part of the known time that was not redone, from 0 to 1. `None` if the age is
    /// zero, or if the workers run and have never given a sign of progress.
    pub fn productive_ratio(&self) -> Option<f64> {
        let (known, productive) = (self.known_ms(), self.of("productive"));
        let is_unknown = known == 0 || productive == 0 && self.of("unknown") > 0;
        (!is_unknown).then(|| productive.saturating_sub(self.redone_ms) as f64 / known as f64)
    }
}

/// The time of a job in one state.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StateTime {
    /// The name of the state.
    pub state: String,
    /// The time in milliseconds, with the newest interval in the state that it appears to have.
    pub ms: u64,
    /// The part of it that no later event moves to another state, in milliseconds. It never falls.
    pub settled_ms: u64,
}

/// The restarts of a job by one cause.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RestartsByCause {
    /// The cause.
    pub cause: RestartCause,
    /// Their number and cost.
    #[serde(flatten)]
    pub sum: RestartSum,
}

/// The training step of a job.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobProgress {
    /// The origin of the steps. Nodes with steps of another origin are not included.
    pub source: StepSource,
    /// The step that all workers with a known step have reached.
    pub step: u64,
    /// The highest step of all workers.
    pub highest: u64,
    /// The number of steps after `step`, if the number of all steps is known.
    pub steps_left: Option<u64>,
    /// The usual time of a step, in milliseconds in JSON; `None` until it is known.
    #[serde(rename = "step_ms", with = "fractional_millis")]
    pub step_time: Option<Duration>,
    /// The time since a worker has reached another step, in milliseconds in JSON.
    #[serde(rename = "age_ms", with = "millis")]
    pub age: Duration,
}

/// The phase of a notice, in which all ranks may save.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Saving {
    /// The number of the notice.
    pub notice: u64,
    /// What follows.
    pub kind: NoticeKind,
    /// The host names of nodes that leave, the first few.
    pub hosts: Vec<String>,
    /// The source of the notice, for people.
    pub source: String,
    /// The number of ranks that have saved.
    pub saved_ranks: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The ranks that have not saved, such as `12-31`.
    pub missing: String,
    /// The time that is left, in milliseconds.
    pub left_ms: u64,
}

/// How often a job saves, and how often it should.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct CheckpointTimes {
    /// The usual number of steps between two checkpoints.
    pub every_steps: u64,
    /// The usual time between two checkpoints, in milliseconds.
    pub every_ms: u64,
    /// The usual time for which training pauses, in milliseconds, if known.
    pub cost_ms: Option<u64>,
    /// The mean time between failures, in milliseconds.
    pub failure_every_ms: u64,
    /// True if that time was measured in this job; false if it is a published rate.
    pub is_rate_measured: bool,
    /// The part of the time that checkpoints and repeated work cost, from 0 to 1, if known.
    pub lost: Option<f64>,
    /// The time between checkpoints that loses the least, in milliseconds. `None` if it gains less than 1 %, or
    /// if the cost is not known.
    pub best_ms: Option<u64>,
    /// The same as a number of steps.
    pub best_steps: Option<u64>,
    /// The part of the time that it would cost.
    pub best_lost: Option<f64>,
}

impl Eq for CheckpointTimes {}

/// The most bytes of [`Stall::text`].
pub const STALL_TEXT_MAX: usize = 512;

/// The most lines of [`Stall::facts`]. A line has at most [`LINE_MAX`](crate::message::LINE_MAX) bytes.
pub const STALL_FACTS_MAX: usize = 8;

/// Workers that make no progress for much longer than usual.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Stall {
    /// The last step; `None` if the round has none yet.
    pub step: Option<u64>,
    /// The time since the last sign of progress, in milliseconds.
    pub for_ms: u64,
    /// The time from which on it counts as a stall, in milliseconds.
    pub limit_ms: u64,
    /// The explanation, as a sentence; `None` if the nodes have not answered yet. At most [`STALL_TEXT_MAX`]
    /// bytes.
    pub text: Option<String>,
    /// Further facts, each on a line; at most [`STALL_FACTS_MAX`].
    pub facts: Vec<String>,
    /// The rank for which the others wait, if one is known.
    pub rank: Option<GlobalRank>,
}

/// The most entries of [`JobLook::places`].
pub const LOOK_PLACES_MAX: usize = 32;

/// The most entries of [`LookPlace::ranks`].
pub const LOOK_RANGES_MAX: usize = 32;

/// Where the workers of a round were at a look. Those in the same place are listed together.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobLook {
    /// Its number in this term.
    pub number: u64,
    /// The time since it began, in milliseconds.
    pub age_ms: u64,
    /// The sentence that explains the answers; `None` if they show nothing, and in version 0.3.0. At most
    /// [`STALL_TEXT_MAX`] bytes.
    pub text: Option<String>,
    /// The places; at most [`LOOK_PLACES_MAX`]. The place of the fewest workers is the first.
    pub places: Vec<LookPlace>,
    /// The number of workers in further places.
    pub further: u32,
    /// The number of workers whose nodes have not answered.
    pub unknown: u32,
    /// True if the stack of a worker could be read.
    pub has_stacks: bool,
    /// True if a place has a line of Python. Lines are content, which crosses a network only if it is encrypted.
    pub has_lines: bool,
}

/// Workers in the same place.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct LookPlace {
    /// The place, such as `all_reduce (train.py:7)`.
    pub text: String,
    /// The number of these workers.
    pub count: u32,
    /// Their ranks, as the first and the last one of each range; at most [`LOOK_RANGES_MAX`].
    pub ranks: Vec<(u32, u32)>,
    /// The file with the whole stack of the first of them, with its host, if it was written.
    pub stack: Option<String>,
}

/// Returns a number with commas between groups of three digits, as in `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns an amount of memory with two or three digits: `3.2 MB`, `61 GB`.
pub fn size(bytes: u64) -> String {
    let (amount, unit) = match bytes {
        0..100_000_000 => (bytes as f64 / 1e6, "MB"),
        _ => (bytes as f64 / 1e9, "GB"),
    };
    if amount < 10.0 { format!("{amount:.1} {unit}") } else { format!("{amount:.0} {unit}") }
}

/// The checkpoints in the memory of the nodes.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct MemoryStatus {
    /// The newest step that is whole; `None` if none is.
    pub step: Option<u64>,
    /// True if each part of it is also held by a second node.
    pub is_copied: bool,
    /// The time since it became whole, in milliseconds.
    pub age_ms: Option<u64>,
    /// The usual time for which a `save` stops the workers, in milliseconds.
    pub cost_ms: Option<u64>,
    /// The memory that the node with the largest parts needs for them, in bytes.
    pub needed: u64,
    /// The most memory that this node may use for parts, in bytes.
    pub limit: u64,
    /// The memory of all nodes in which parts are, in bytes.
    #[serde(default)]
    pub bytes: MemoryBytes,
    /// The time from the first report of a part of the newest step with copies until it was whole, in milliseconds.
    #[serde(default)]
    pub copy_ms: Option<u64>,
    /// The time for which any `save` has waited for a buffer, as far as this coordinator knows, in milliseconds.
    #[serde(default)]
    pub waited_ms: u64,
    /// The reason why there is no newer checkpoint, or no copy; at most [`LINE_MAX`](crate::message::LINE_MAX)
    /// bytes.
    pub text: Option<String>,
}

/// The memory of all nodes in which parts are, by the reason why they are kept, in bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct MemoryBytes {
    /// The node's own parts.
    pub own: u64,
    /// Copies of the parts of other nodes.
    pub copy: u64,
    /// Parts that are of no use for the round. They are freed with the next whole checkpoint.
    pub leftover: u64,
}

impl MemoryStatus {
    /// Returns true if nothing is saved in memory for the rest of the round or of the job.
    pub fn is_off(&self) -> bool {
        self.text.as_deref().is_some_and(|text| text.starts_with("off: "))
    }
}

/// The maximum number of [`RefusedPeer`] values: more than a person reads.
pub const REFUSED_PEERS_MAX: usize = 64;

/// The refused connections and requests from one address.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RefusedPeer {
    /// The address.
    pub address: IpAddr,
    /// Their number.
    pub count: u64,
    /// The reason for the last one.
    pub reason: String,
}

/// The maximum number of [`Unreached`] values: a few show what a firewall blocks.
pub const UNREACHED_MAX: usize = 16;

/// A connection between two nodes that could not be opened.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Unreached {
    /// The host name of the node that has tried.
    pub host_name: String,
    /// The target of the attempt, with its address: `node1 (10.0.0.2:35987)`, or `the workers' store
    /// (10.0.0.1:45931)`.
    pub to: String,
    /// The error.
    pub why: String,
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host_name, to, why } = self;
        write!(f, "{host_name} does not reach {to}: {why}")
    }
}

/// One voter.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct VoterStatus {
    /// Its endpoint.
    pub endpoint: String,
    /// True if its process coordinates the job.
    pub is_leader: bool,
    /// The time since it last answered the leader, or since the leader was elected.
    #[serde(rename = "silent_ms", with = "millis")]
    pub silent_for: Duration,
}

/// A voter counts as silent after this time. By then, several renewals are lost.
const VOTER_SILENCE: Duration = Duration::from_secs(3);

impl VoterStatus {
    /// Returns true if the voter has not answered the leader for several renewals.
    pub fn is_silent(&self) -> bool {
        self.silent_after() == Some(Duration::ZERO)
    }

    /// Returns the time after which the voter counts as silent, unless it answers; `None` for the leader.
    pub fn silent_after(&self) -> Option<Duration> {
        (!self.is_leader).then(|| VOTER_SILENCE.saturating_sub(self.silent_for))
    }
}

/// A time as whole milliseconds in JSON.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        u64::try_from(time.as_millis()).unwrap_or(u64::MAX).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// A time as milliseconds with a fraction in JSON.
mod fractional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_micros() as f64 / 1000.0).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let read = |millis: f64| {
            // Rounds to the microseconds that were written.
            let time = Duration::try_from_secs_f64((millis * 1000.0).round() / 1e6);
            time.map_err(D::Error::custom)
        };
        Option::deserialize(from)?.map(read).transpose()
    }
}

/// Reads a value that names one of a set; `None` if there is none, or if a later version has added the name.
fn known<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<MaybeKnown<T>>::deserialize(from)?.and_then(MaybeKnown::known))
}

/// Reads a list of such values. Leaves out names that a later version has added.
fn all_known<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let values = Vec::<MaybeKnown<T>>::deserialize(from)?;
    Ok(values.into_iter().filter_map(MaybeKnown::known).collect())
}

#[derive(Deserialize)]
#[serde(untagged)]
enum MaybeKnown<T> {
    Known(T),
    Other(IgnoredAny),
}

impl<T> MaybeKnown<T> {
    fn known(self) -> Option<T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Other(_) => None,
        }
    }
}

/// The phase of a job.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum PhaseName {
    /// A restarted coordinator waits for the members of the last round.
    Recovering,
    /// The coordinator waits for nodes, for the first round or the next one.
    Gathering,
    /// A round runs.
    Running,
    /// A round is being stopped.
    Stopping,
    /// The job has ended.
    Closed,
}

impl PhaseName {
    /// All phases.
    pub const ALL: [Self; 5] =
        [Self::Recovering, Self::Gathering, Self::Running, Self::Stopping, Self::Closed];
}

/// One node.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NodeSnapshot {
    /// The id of its agent.
    pub node_id: NodeId,
    /// Its host name.
    pub host_name: String,
    /// Its address.
    pub address: String,
    /// The address that its stream comes from, if the coordinator's driver knows it. For a stream from the
    /// coordinator's own machine, it is the named address, if that machine has it.
    pub observed: Option<IpAddr>,
    /// The port on which its agent listens.
    pub agent_port: u16,
    /// Its rank in the newest completed round, if it is a member.
    pub group_rank: Option<GroupRank>,
    /// `RANK` of its first worker, if it is a member.
    pub first_global_rank: Option<GlobalRank>,
    /// The number of its workers.
    pub local_world_size: u32,
    /// The state of the node.
    pub state: NodeStateName,
    /// The time since its last sign of life, in milliseconds.
    pub last_seen_ms: u64,
    /// The reason why it waits, is quarantined or was lost, if there is one.
    pub reason: Option<String>,
    /// The latest progress report of its workers (`STATUS=`), if any.
    pub progress: Option<String>,
    /// The time since its workers have reached another training step, in milliseconds; `None` if no step is
    /// known.
    pub progress_age_ms: Option<u64>,
    /// Its standbys, if it has any.
    pub standbys: Option<StandbyCounts>,
    /// The load of its machine when it last registered, if known.
    pub load: Option<String>,
    /// The reason why its machine is unhealthy, if it is.
    pub unhealthy: Option<String>,
    /// The reason for which the user has excluded its host, if it is excluded.
    pub excluded: Option<String>,
}

impl NodeSnapshot {
    /// Returns why the node is in its state, or why it should get no place, for people.
    pub fn why(&self) -> Option<String> {
        let named = |text: &Option<String>, name: NodeStateName| {
            let text = text.as_ref()?;
            Some(if self.state == name { text.clone() } else { format!("{}: {text}", name.name()) })
        };
        self.reason
            .clone()
            .or_else(|| named(&self.unhealthy, NodeStateName::Unhealthy))
            .or_else(|| named(&self.excluded, NodeStateName::Excluded))
    }
}

/// The state of a node, as the coordinator sees it.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum NodeStateName {
    /// The node is registered and prepares for a round.
    Preparing,
    /// The node is ready for the round that is being gathered.
    Joined,
    /// The node's workers run.
    Running,
    /// The node's workers are being stopped.
    Stopping,
    /// One of the node's workers failed. The others are being stopped.
    Failed,
    /// All workers of the node exited with 0.
    Succeeded,
    /// The node is leaving.
    Leaving,
    /// The node waits for the next round.
    Waiting,
    /// The node waits for a place in a full round.
    Spare,
    /// The node failed too often and is quarantined.
    Quarantined,
    /// The node's machine is unhealthy, so it gets no place.
    Unhealthy,
    /// The user has excluded the node's host, so it gets no place.
    Excluded,
    /// The node was a member and is gone.
    Lost,
}

impl NodeStateName {
    /// All states.
    pub const ALL: [Self; 13] = *Self::VARIANTS.as_array().expect("all variants");

    /// Returns true if the node is here, but gets no place for a reason of its own.
    pub fn is_kept_out(self) -> bool {
        matches!(self, Self::Quarantined | Self::Unhealthy | Self::Excluded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The productive part is that of the time in which something is known about progress, without what was done again.
    #[test]
    fn productive_part_is_of_the_known_time() {
        let time = |states: &[(&str, u64)], redone_ms| JobTime {
            states: states
                .iter()
                .map(|(state, ms)| StateTime { state: (*state).to_owned(), ms: *ms, settled_ms: 0 })
                .collect(),
            redone_ms,
            now: None,
        };
        let known = time(&[("productive", 60), ("stalled", 40), ("unknown", 900)], 10);
        assert_eq!((known.age_ms(), known.known_ms()), (1_000, 100));
        assert_eq!(known.productive_ratio(), Some(0.5));
        assert_eq!(time(&[("stalled", 40)], 0).productive_ratio(), Some(0.0));
        assert_eq!(time(&[("stalled", 40), ("unknown", 9)], 0).productive_ratio(), None);
        assert_eq!(time(&[("unknown", 9)], 0).productive_ratio(), None);
    }

    /// Below 10, an amount of memory has one decimal. From 100 MB on, its unit is GB.
    #[test]
    fn sizes_have_few_digits() {
        let sizes = [3_200_000, 10_000_000, 99_000_000, 100_000_000, 61_000_000_000].map(size);
        assert_eq!(sizes, ["3.2 MB", "10 MB", "99 MB", "0.1 GB", "61 GB"]);
    }
}
