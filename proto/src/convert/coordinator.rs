//! Converts messages of the coordinator.

use std::time::Duration;

use ragent_rendezvous::{
    ids::{GlobalRank, JobUid, RunId, Term},
    message::{
        Admission, Assignment, EvictReason, HARDWARE_FACTS_MAX, NOTICE_HOSTS_MAX, RefuseReason,
        Replaced, RestartReason, ToNode, WaitReason, Welcome,
    },
    settings::Leases,
    snapshot::Explanation,
};

use super::{
    fitted_line, line, list, millis, name, nonempty, progress::optional_step, required, round,
    to_millis, to_round, voter,
};
use crate::{
    Malformed, Proof, limits,
    v1::{self, assignment, coordinator_message, refusal, restart},
};

/// One message of a registration stream, received by the agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FromCoordinator {
    /// A message of the coordinator.
    Message(ToNode),
    /// A welcome of the coordinator, with the proof of the registered node id.
    Welcomed(Welcome, Proof),
    /// The node id of the registration belongs to another agent: its proof is missing or wrong.
    OtherAgent,
    /// The dialed agent belongs to the job, but does not host its coordinator.
    Elsewhere(CoordinatorAddress),
}

/// The coordinator's location, as another agent knows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CoordinatorAddress {
    /// The newest term that the answering agent knows.
    pub term: Term,
    /// The endpoint of the coordinator with which that agent is registered; empty if no coordinator is
    /// elected at present.
    pub endpoint: String,
}

impl CoordinatorAddress {
    /// Returns the answer of a voter while no coordinator is elected.
    pub fn unknown() -> Self {
        Self { term: Term(0), endpoint: String::new() }
    }
}

message!(CoordinatorAddress, v1::NotHere, "not_here", { term: Same, endpoint: Name });

message!(Explanation, v1::Explanation, "incomplete", {
    kind: Name,
    text: Text(limits::MAX_TEXT_LEN),
});

impl From<FromCoordinator> for v1::CoordinatorMessage {
    fn from(message: FromCoordinator) -> Self {
        use coordinator_message::Message;
        let message = match message {
            FromCoordinator::Elsewhere(address) => Message::NotHere(address.into()),
            FromCoordinator::Welcomed(welcome, Proof(proof)) => {
                Message::Welcome(v1::Welcome { proof: proof.to_vec(), ..welcome.into() })
            }
            FromCoordinator::OtherAgent => {
                let reason = refusal::Reason::OtherAgent(refusal::OtherAgent {});
                Message::Refusal(v1::Refusal { reason: Some(reason) })
            }
            FromCoordinator::Message(message) => match message {
                ToNode::Welcome(welcome) => Message::Welcome(welcome.into()),
                ToNode::Refuse(reason) => Message::Refusal(reason.into()),
                ToNode::Echo { sequence, reason, lease_left, memory_whole } => {
                    Message::Echo(v1::KeepAlive {
                        sequence,
                        asks_reason: false,
                        reason: reason.map(Into::into),
                        lease_left_ms: lease_left.map(to_lease_left),
                        progress: None,
                        checkpoint: None,
                        save_failed: None,
                        memory_whole: memory_whole.map(Into::into),
                    })
                }
                ToNode::Probe { round } => Message::Probe(v1::Probe { round: to_round(round) }),
                ToNode::Assignment(assignment) => Message::Assignment(assignment.into()),
                ToNode::HostLeaving => Message::HostLeaving(v1::HostLeaving {}),
                ToNode::Guidance(guidance) => Message::Guidance(guidance.into()),
                ToNode::RefusedClients(refused) => Message::RefusedClients(refused.into()),
                ToNode::Voters(voters) => Message::Voters(v1::Voters {
                    endpoints: voters.iter().map(ToString::to_string).collect(),
                }),
            },
        };
        Self { message: Some(message) }
    }
}

impl TryFrom<v1::CoordinatorMessage> for FromCoordinator {
    type Error = Malformed;

    fn try_from(message: v1::CoordinatorMessage) -> Result<Self, Malformed> {
        use coordinator_message::Message;
        Ok(Self::Message(match required(message.message, "message")? {
            Message::NotHere(address) => return Ok(Self::Elsewhere(address.try_into()?)),
            Message::Welcome(welcome) => {
                let proof = Proof::from_wire(&welcome.proof);
                let proof = proof.ok_or(Malformed::OutOfRange("welcome.proof"))?;
                return Ok(Self::Welcomed(welcome.try_into()?, proof));
            }
            Message::Refusal(v1::Refusal { reason: Some(refusal::Reason::OtherAgent(_)) }) => {
                return Ok(Self::OtherAgent);
            }
            Message::Refusal(refusal) => ToNode::Refuse(refusal.try_into()?),
            Message::Echo(v1::KeepAlive {
                sequence,
                asks_reason: _,
                save_failed: _,
                reason,
                lease_left_ms,
                progress: _,
                checkpoint: _,
                memory_whole,
            }) => {
                let reason = reason.map(TryInto::try_into).transpose()?;
                let lease_left = lease_left_ms.map(from_lease_left);
                let memory_whole = memory_whole.map(TryInto::try_into).transpose()?;
                ToNode::Echo { sequence, reason, lease_left, memory_whole }
            }
            Message::Probe(probe) => ToNode::Probe { round: round(probe.round, "probe.round")? },
            Message::Assignment(assignment) => ToNode::Assignment(assignment.try_into()?),
            Message::Guidance(guidance) => ToNode::Guidance(guidance.try_into()?),
            Message::HostLeaving(v1::HostLeaving {}) => ToNode::HostLeaving,
            Message::RefusedClients(refused) => ToNode::RefusedClients(refused.try_into()?),
            Message::Voters(v1::Voters { endpoints }) => {
                ToNode::Voters(voter::addresses(endpoints, "voters.endpoints")?)
            }
        }))
    }
}

impl From<Welcome> for v1::Welcome {
    fn from(welcome: Welcome) -> Self {
        Self {
            term: welcome.term.0,
            job_uid: welcome.job_uid.to_string(),
            coordinator: welcome.coordinator,
            keep_alive_interval_ms: to_millis(welcome.leases.keep_alive_interval),
            agent_lease_ms: to_millis(welcome.leases.agent),
            coordinator_lease_ms: to_millis(welcome.leases.coordinator),
            voters: welcome.voters.iter().map(ToString::to_string).collect(),
            proof: Vec::new(),
            lease_left_ms: welcome.lease_left.map(to_lease_left),
        }
    }
}

/// Returns the rest of a lease in milliseconds, rounded down: a longer lease would be unsafe.
fn to_lease_left(left: Duration) -> u32 {
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX)
}

fn from_lease_left(millis: u32) -> Duration {
    Duration::from_millis(millis.into())
}

impl TryFrom<v1::Welcome> for Welcome {
    type Error = Malformed;

    fn try_from(welcome: v1::Welcome) -> Result<Self, Malformed> {
        let leases = Leases {
            keep_alive_interval: millis(
                welcome.keep_alive_interval_ms,
                "welcome.keep_alive_interval_ms",
            )?,
            agent: millis(welcome.agent_lease_ms, "welcome.agent_lease_ms")?,
            coordinator: millis(welcome.coordinator_lease_ms, "welcome.coordinator_lease_ms")?,
        };
        if leases.keep_alive_interval.is_zero() || leases.agent <= leases.keep_alive_interval {
            return Err(Malformed::OutOfRange("welcome.agent_lease_ms"));
        }
        // Workers may run for the agent's lease after the last echoed keep-alive. The coordinator starts
        // replacements after its own lease.
        if leases.coordinator > limits::MAX_LEASE || leases.agent >= leases.coordinator {
            return Err(Malformed::OutOfRange("welcome.coordinator_lease_ms"));
        }
        Ok(Self {
            term: Term(welcome.term),
            job_uid: JobUid::new(nonempty(welcome.job_uid, "welcome.job_uid")?),
            coordinator: name(welcome.coordinator, "welcome.coordinator")?,
            leases,
            voters: voter::addresses(welcome.voters, "welcome.voters")?,
            lease_left: welcome.lease_left_ms.map(from_lease_left),
        })
    }
}

impl From<RefuseReason> for v1::Refusal {
    fn from(reason: RefuseReason) -> Self {
        use refusal::Reason;
        let reason = match reason {
            RefuseReason::Closed(outcome) => Reason::Closed(outcome.into()),
            RefuseReason::EarlierRun => Reason::EarlierRun(refusal::EarlierRun {}),
            RefuseReason::LoopbackAddress { address } => {
                Reason::LoopbackAddress(refusal::LoopbackAddress { address })
            }
            RefuseReason::NodeRankTaken { node_rank, host_name } => {
                Reason::NodeRankTaken(refusal::NodeRankTaken { node_rank, host_name })
            }
            RefuseReason::NodeRankTooHigh { node_rank, nodes } => {
                Reason::NodeRankTooHigh(refusal::NodeRankTooHigh { node_rank, nodes })
            }
            RefuseReason::OtherScript { script, host_name } => {
                Reason::OtherScript(refusal::OtherScript { script, host_name })
            }
            RefuseReason::ProtocolVersion { ours } => {
                Reason::ProtocolVersion(refusal::ProtocolVersion { ours })
            }
            RefuseReason::RunId { ours } => {
                Reason::OtherRunId(refusal::OtherRunId { ours: ours.to_string() })
            }
            RefuseReason::Settings { ours } => Reason::OtherSettings(ours.into()),
            RefuseReason::TooManyNodes { limit } => {
                Reason::TooManyNodes(refusal::TooManyNodes { limit })
            }
        };
        Self { reason: Some(reason) }
    }
}

impl TryFrom<v1::Refusal> for RefuseReason {
    type Error = Malformed;

    fn try_from(refusal: v1::Refusal) -> Result<Self, Malformed> {
        use refusal::Reason;
        Ok(match required(refusal.reason, "refusal.reason")? {
            Reason::Closed(outcome) => Self::Closed(outcome.try_into()?),
            Reason::EarlierRun(refusal::EarlierRun {}) => Self::EarlierRun,
            // Not a reason of the machine: see `FromCoordinator`.
            Reason::OtherAgent(refusal::OtherAgent {}) => {
                return Err(Malformed::OutOfRange("refusal.reason"));
            }
            Reason::LoopbackAddress(refusal::LoopbackAddress { address }) => {
                Self::LoopbackAddress { address: name(address, "refusal.address")? }
            }
            Reason::NodeRankTaken(refusal::NodeRankTaken { node_rank, host_name }) => {
                Self::NodeRankTaken { node_rank, host_name: name(host_name, "refusal.host_name")? }
            }
            Reason::NodeRankTooHigh(refusal::NodeRankTooHigh { node_rank, nodes }) => {
                Self::NodeRankTooHigh { node_rank, nodes }
            }
            Reason::OtherScript(refusal::OtherScript { script, host_name }) => Self::OtherScript {
                script: name(script, "refusal.script")?,
                host_name: name(host_name, "refusal.host_name")?,
            },
            Reason::ProtocolVersion(refusal::ProtocolVersion { ours }) => {
                Self::ProtocolVersion { ours }
            }
            Reason::OtherRunId(refusal::OtherRunId { ours }) => {
                Self::RunId { ours: RunId::new(nonempty(ours, "refusal.run_id")?) }
            }
            Reason::OtherSettings(ours) => Self::Settings { ours: ours.try_into()? },
            Reason::TooManyNodes(refusal::TooManyNodes { limit }) => Self::TooManyNodes { limit },
        })
    }
}

impl From<Assignment> for v1::Assignment {
    fn from(assignment: Assignment) -> Self {
        use assignment::Assignment as Wire;
        let assignment = match assignment {
            Assignment::Wait { round, reason, memory } => Wire::Wait(v1::Wait {
                round: to_round(round),
                reason: v1::WaitReason::from(reason).into(),
                memory: memory.map(Into::into),
            }),
            Assignment::Admit(admission) => Wire::Admit(admission.into()),
            Assignment::Restart { round, reason, complete_step, memory_step } => {
                Wire::Restart(v1::Restart {
                    round: to_round(round),
                    reason: Some(reason.into()),
                    complete_step,
                    memory_step,
                })
            }
            Assignment::Evict { round, reason } => Wire::Evict(v1::Evict {
                round: to_round(round),
                reason: v1::EvictReason::from(reason).into(),
            }),
            Assignment::Dismiss => Wire::Dismiss(assignment::Dismiss {}),
            Assignment::Close(outcome) => Wire::Close(outcome.into()),
        };
        Self { assignment: Some(assignment) }
    }
}

impl TryFrom<v1::Assignment> for Assignment {
    type Error = Malformed;

    fn try_from(assignment: v1::Assignment) -> Result<Self, Malformed> {
        use assignment::Assignment as Wire;
        Ok(match required(assignment.assignment, "assignment")? {
            Wire::Wait(wait) => Self::Wait {
                reason: wait.reason().try_into()?,
                round: round(wait.round, "wait.round")?,
                memory: wait.memory.map(TryInto::try_into).transpose()?,
            },
            Wire::Admit(admission) => Self::Admit(admission.try_into()?),
            Wire::Restart(restart) => Self::Restart {
                round: round(restart.round, "restart.round")?,
                reason: required(restart.reason, "restart.reason")?.try_into()?,
                complete_step: optional_step(restart.complete_step, "restart.complete_step")?,
                memory_step: optional_step(restart.memory_step, "restart.memory_step")?,
            },
            Wire::Evict(evict) => Self::Evict {
                reason: evict.reason().try_into()?,
                round: round(evict.round, "evict.round")?,
            },
            Wire::Dismiss(assignment::Dismiss {}) => Self::Dismiss,
            Wire::Close(outcome) => Self::Close(outcome.try_into()?),
        })
    }
}

enumeration!(
    WaitReason,
    WaitReason,
    "wait.reason",
    [Gathering, NextRound, Spare, Quarantined, Recovering, Ending, Unhealthy, Excluded]
);
enumeration!(EvictReason, EvictReason, "evict.reason", [DeathNotice, Silent, NotBack, Quarantined]);

impl From<RestartReason> for restart::Reason {
    fn from(reason: RestartReason) -> Self {
        match reason {
            RestartReason::CoordinatorLost { host_name } => {
                Self::CoordinatorLost(restart::CoordinatorLost { host_name })
            }
            RestartReason::CoordinatorRestarted => {
                Self::CoordinatorRestarted(restart::CoordinatorRestarted {})
            }
            RestartReason::HostLeft => Self::HostLeft(restart::HostLeft {}),
            RestartReason::NodesWaiting { waiting } => {
                Self::NodesWaiting(restart::NodesWaiting { waiting })
            }
            RestartReason::NodeLeft { host_name } => {
                Self::NodeLeft(restart::NodeLeft { host_name })
            }
            RestartReason::NodeLost { host_name, how } => Self::NodeLost(restart::NodeLost {
                host_name,
                how: v1::EvictReason::from(how).into(),
            }),
            RestartReason::Notice { kind, hosts } => {
                let kind = v1::NoticeKind::from(kind).into();
                Self::Notice(restart::NoticeOver { kind, hosts })
            }
            RestartReason::BadMachine { host_name, reason } => {
                let reason = fitted_line(&reason);
                Self::BadMachine(restart::BadMachine { host_name, reason })
            }
            RestartReason::MemoryUnusable { host_name, unusable } => {
                let unusable = Some(unusable.into());
                Self::MemoryUnusable(restart::MemoryUnusableOn { host_name, unusable })
            }
            RestartReason::WorkerFailed { host_name, global_rank, end, oom, hardware } => {
                Self::WorkerFailed(restart::WorkerFailed {
                    host_name,
                    global_rank: global_rank.0,
                    end: Some(end.into()),
                    oom: oom.map_or(v1::OomKill::Unspecified, Into::into).into(),
                    hardware: hardware.iter().map(|text| fitted_line(text)).collect(),
                })
            }
        }
    }
}

impl TryFrom<restart::Reason> for RestartReason {
    type Error = Malformed;

    fn try_from(reason: restart::Reason) -> Result<Self, Malformed> {
        use restart::Reason;
        Ok(match reason {
            Reason::CoordinatorLost(restart::CoordinatorLost { host_name }) => {
                let host_name = host_name.map(|host| name(host, "restart.host_name"));
                Self::CoordinatorLost { host_name: host_name.transpose()? }
            }
            Reason::CoordinatorRestarted(restart::CoordinatorRestarted {}) => {
                Self::CoordinatorRestarted
            }
            Reason::HostLeft(restart::HostLeft {}) => Self::HostLeft,
            Reason::NodesWaiting(restart::NodesWaiting { waiting }) => {
                Self::NodesWaiting { waiting }
            }
            Reason::NodeLeft(restart::NodeLeft { host_name }) => {
                Self::NodeLeft { host_name: name(host_name, "restart.host_name")? }
            }
            Reason::NodeLost(lost) => Self::NodeLost {
                how: lost.how().try_into()?,
                host_name: name(lost.host_name, "restart.host_name")?,
            },
            Reason::Notice(notice) => Self::Notice {
                kind: notice.kind().try_into()?,
                hosts: list(notice.hosts, "restart.hosts", NOTICE_HOSTS_MAX, |host| {
                    name(host, "restart.hosts")
                })?,
            },
            Reason::BadMachine(restart::BadMachine { host_name, reason }) => Self::BadMachine {
                host_name: name(host_name, "restart.host_name")?,
                reason: line(reason, "restart.reason")?,
            },
            Reason::MemoryUnusable(restart::MemoryUnusableOn { host_name, unusable }) => {
                Self::MemoryUnusable {
                    host_name: name(host_name, "restart.host_name")?,
                    unusable: required(unusable, "restart.unusable")?.try_into()?,
                }
            }
            Reason::WorkerFailed(failed) => Self::WorkerFailed {
                // A name that only a later build has is unknown here.
                oom: failed.oom().try_into().ok(),
                host_name: name(failed.host_name, "restart.host_name")?,
                global_rank: GlobalRank(failed.global_rank),
                end: required(failed.end, "restart.end")?.try_into()?,
                hardware: list(failed.hardware, "restart.hardware", HARDWARE_FACTS_MAX, |text| {
                    line(text, "restart.hardware")
                })?,
            },
        })
    }
}

message!(Admission, v1::Admission, "admission", {
    round: Required(Inner),
    group_rank: Same,
    group_world_size: Same,
    first_global_rank: Same,
    world_size: Same,
    first_role_rank: Same,
    role_world_size: Same,
    restart_count: Same,
    restarts_forgiven: Same,
    charged_through: Same,
    master_address: Nonempty,
    master_port: PortNumber,
    store_clients: List(limits::MAX_STORE_CLIENTS, Parsed),
    rounds_without_progress: Same,
    saved_step: Optional(Step),
    memory: Optional(Boxed(Inner)),
    buddy: Optional(Address),
    ward: Optional(Same),
    replaced: Optional(Inner),
}, check_admission);

fn check_admission(admission: &v1::Admission) -> Result<(), Malformed> {
    if admission.group_rank >= admission.group_world_size {
        return Err(Malformed::OutOfRange("admission.group_rank"));
    }
    if admission.first_global_rank >= admission.world_size {
        return Err(Malformed::OutOfRange("admission.first_global_rank"));
    }
    if admission.ward.is_some_and(|ward| ward >= admission.group_world_size) {
        return Err(Malformed::OutOfRange("admission.ward"));
    }
    Ok(())
}

message!(Replaced, v1::admission::Replaced, "admission.replaced", {
    host: Nonempty,
    by: Nonempty,
});
