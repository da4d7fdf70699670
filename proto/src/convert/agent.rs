//! Converts messages of agents.

use std::{net::IpAddr, num::NonZeroU32, time::Duration};

use ragent_rendezvous::{
    heir::Member,
    ids::{JobUid, NodeId, Round, RunId, StreamNumber, Term, VoterId},
    known_job::{KnownJob, Leads},
    limits::VOTERS_MAX,
    message::{
        FromNode, KnownRound, NodeDescription, NodeReport, NodeState, PROGRESS_MAX,
        REFUSED_CLIENTS_MAX, RefusedClients, Registration, StandbyCounts, StoreUnreached,
    },
};

use super::{
    fitted, list, name, nonempty, port, printable, progress, required, round, text, to_millis,
    to_round, voter,
};
use crate::{
    Malformed, Proof, limits,
    v1::{self, agent_message, node_report},
};

/// One message of a registration stream, received by the coordinator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FromAgent {
    /// The first message, with the proof of its node id if one was issued.
    Registration {
        /// The registration.
        registration: Box<Registration>,
        /// The proof of its node id, if it has one.
        proof: Option<Proof>,
        /// The term of the leader that the agent has lost; zero if there is none. A voter that knows no later
        /// leader waits for one before it answers.
        lost_term: Term,
    },
    /// Any further message.
    Message(FromNode),
}

impl TryFrom<v1::AgentMessage> for FromAgent {
    type Error = Malformed;

    fn try_from(message: v1::AgentMessage) -> Result<Self, Malformed> {
        use agent_message::Message;
        Ok(match required(message.message, "message")? {
            Message::Registration(registration) => {
                let proof = Proof::from_wire(&registration.proof);
                if proof.is_none() && !registration.proof.is_empty() {
                    return Err(Malformed::OutOfRange("registration.proof"));
                }
                let lost_term = Term(registration.lost_term);
                Self::Registration {
                    registration: Box::new(registration.try_into()?),
                    proof,
                    lost_term,
                }
            }
            Message::KeepAlive(v1::KeepAlive {
                sequence,
                asks_reason,
                progress,
                checkpoint,
                save_failed,
                ..
            }) => Self::Message(FromNode::KeepAlive {
                sequence,
                asks_reason,
                progress: progress::of_node(progress)?,
                checkpoint: checkpoint.map(TryInto::try_into).transpose()?,
                save_failed: save_failed
                    .map(|why| text(why, "keep_alive.save_failed", PROGRESS_MAX))
                    .transpose()?,
            }),
            Message::NodeReport(report) => Self::Message(FromNode::NodeReport(report.try_into()?)),
            Message::Alive(alive) => {
                Self::Message(FromNode::Alive { round: round(alive.round, "alive.round")? })
            }
            Message::Goodbye(v1::Goodbye {}) => Self::Message(FromNode::Goodbye),
            Message::RefusedClients(refused) => {
                Self::Message(FromNode::RefusedClients(refused.try_into()?))
            }
            Message::StoreUnreached(unreached) => {
                Self::Message(FromNode::StoreUnreached(unreached.try_into()?))
            }
            Message::Progress(v1::Progress { text: progress }) => {
                let text = text(progress, "progress.text", PROGRESS_MAX)?;
                Self::Message(FromNode::Progress { text })
            }
            Message::Standbys(standbys) => Self::Message(FromNode::Standbys(standbys.try_into()?)),
            Message::MemoryReport(report) => {
                Self::Message(FromNode::MemoryReport(report.try_into()?))
            }
            Message::Digest(digest) => Self::Message(FromNode::Digest(digest.try_into()?)),
        })
    }
}

impl From<FromAgent> for v1::AgentMessage {
    fn from(message: FromAgent) -> Self {
        use agent_message::Message;
        let message = match message {
            FromAgent::Registration { registration, proof, lost_term } => {
                let proof = proof.map(|Proof(bytes)| bytes.to_vec()).unwrap_or_default();
                let lost_term = lost_term.0;
                Message::Registration(v1::Registration {
                    proof,
                    lost_term,
                    ..(*registration).into()
                })
            }
            FromAgent::Message(FromNode::KeepAlive {
                sequence,
                asks_reason,
                progress,
                checkpoint,
                save_failed,
            }) => Message::KeepAlive(v1::KeepAlive {
                sequence,
                asks_reason,
                progress: progress.map(Into::into),
                checkpoint: checkpoint.map(Into::into),
                save_failed: save_failed.map(|reason| printable(&reason)),
                ..v1::KeepAlive::default()
            }),
            FromAgent::Message(FromNode::NodeReport(report)) => Message::NodeReport(report.into()),
            FromAgent::Message(FromNode::Alive { round }) => {
                Message::Alive(v1::Alive { round: to_round(round) })
            }
            FromAgent::Message(FromNode::StoreUnreached(unreached)) => {
                Message::StoreUnreached(unreached.into())
            }
            FromAgent::Message(FromNode::RefusedClients(refused)) => {
                Message::RefusedClients(refused.into())
            }
            FromAgent::Message(FromNode::Goodbye) => Message::Goodbye(v1::Goodbye {}),
            FromAgent::Message(FromNode::Progress { text }) => {
                Message::Progress(v1::Progress { text: printable(&text) })
            }
            FromAgent::Message(FromNode::Standbys(standbys)) => Message::Standbys(standbys.into()),
            FromAgent::Message(FromNode::MemoryReport(report)) => {
                Message::MemoryReport(report.into())
            }
            FromAgent::Message(FromNode::Digest(digest)) => Message::Digest(digest.into()),
        };
        Self { message: Some(message) }
    }
}

message!(StandbyCounts, v1::Standbys, "standbys", {
    ready: Same,
    importing: Same,
    size: Same,
    obstacle: Optional(Text(PROGRESS_MAX)),
});

message!(StoreUnreached, v1::StoreUnreached, "store_unreached", {
    round: Required(Inner),
    address: OneLine(limits::MAX_NAME_LEN),
    why: OneLine(limits::MAX_NAME_LEN),
});

message!(RefusedClients, v1::RefusedClients, "refused_clients", {
    round: Required(Inner),
    addresses: List(REFUSED_CLIENTS_MAX, Parsed),
});

impl From<Registration> for v1::Registration {
    fn from(registration: Registration) -> Self {
        Self {
            protocol_version: registration.protocol_version,
            run_id: registration.run_id.to_string(),
            job_uid: registration.job_uid.map(|uid| uid.to_string()).unwrap_or_default(),
            stream: registration.stream.0,
            node: Some(registration.node.into()),
            settings: Some(registration.settings.into()),
            known_round: Some(registration.known_round.into()),
            restarts_used: registration.restarts_used,
            charged_through: registration.charged_through.0,
            report: Some(registration.report.into()),
            proof: Vec::new(),
            lost_term: 0,
            job: registration.job.map(Into::into),
            ended: registration.ended.iter().map(ToString::to_string).collect(),
            waited_ms: to_millis(registration.waited),
            memory: registration.memory.map(Into::into),
        }
    }
}

impl TryFrom<v1::Registration> for Registration {
    type Error = Malformed;

    fn try_from(registration: v1::Registration) -> Result<Self, Malformed> {
        let job_uid = name(registration.job_uid, "registration.job_uid")?;
        Ok(Self {
            protocol_version: registration.protocol_version,
            run_id: RunId::new(nonempty(registration.run_id, "registration.run_id")?),
            job_uid: (!job_uid.is_empty()).then(|| JobUid::new(job_uid)),
            stream: StreamNumber(registration.stream),
            node: required(registration.node, "registration.node")?.try_into()?,
            settings: required(registration.settings, "registration.settings")?.try_into()?,
            known_round: required(registration.known_round, "registration.known_round")?
                .try_into()?,
            restarts_used: registration.restarts_used,
            charged_through: Round(registration.charged_through),
            report: required(registration.report, "registration.report")?.try_into()?,
            job: registration.job.map(TryInto::try_into).transpose()?,
            ended: voter::ended_jobs(registration.ended, "registration.ended")?,
            waited: Duration::from_millis(registration.waited_ms),
            memory: registration.memory.map(TryInto::try_into).transpose()?,
        })
    }
}

message!(KnownRound, v1::KnownRound, "known_round", {
    round: Required(Inner),
    size: Same,
    group_rank: Optional(Same),
});

message!(KnownJob, v1::KnownJob, "known_job", {
    job_uid as uid: Nonempty,
    voters: List(2 * VOTERS_MAX, Nonempty),
    leads: Optional(Inner),
});

message!(Leads, v1::known_job::Leads, "leads", {
    born_ms: Same,
    term: Number,
    has_nodes: Same,
});

impl From<NodeDescription> for v1::Node {
    fn from(node: NodeDescription) -> Self {
        Self {
            node_id: node.node_id.to_string(),
            host_name: node.host_name,
            address: node.address,
            addresses: node.addresses.iter().map(IpAddr::to_string).collect(),
            agent_port: node.agent_port.into(),
            role: node.role,
            script: fitted(&node.script),
            load: fitted(&node.load),
            failure_domain: node.failure_domain,
            local_world_size: node.local_world_size.get(),
            node_rank: node.node_rank,
            voter: node.voter.as_ref().map(|member| member.voter.0),
            voter_address: node.voter.map(|m| m.address.to_string()).unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::Node> for NodeDescription {
    type Error = Malformed;

    fn try_from(node: v1::Node) -> Result<Self, Malformed> {
        Ok(Self {
            node_id: NodeId::new(nonempty(node.node_id, "node.node_id")?),
            host_name: nonempty(node.host_name, "node.host_name")?,
            address: nonempty(node.address, "node.address")?,
            observed: None,
            addresses: list(
                node.addresses,
                "node.addresses",
                limits::MAX_NODE_ADDRESSES,
                |address| address.parse().map_err(|_| Malformed::OutOfRange("node.addresses")),
            )?,
            agent_port: port(node.agent_port, "node.agent_port")?,
            role: name(node.role, "node.role")?,
            script: name(node.script, "node.script")?,
            load: name(node.load, "node.load")?,
            failure_domain: name(node.failure_domain, "node.failure_domain")?,
            local_world_size: NonZeroU32::new(node.local_world_size)
                .filter(|workers| workers.get() <= limits::MAX_LOCAL_WORLD_SIZE)
                .ok_or(Malformed::OutOfRange("node.local_world_size"))?,
            node_rank: node.node_rank,
            voter: match node.voter {
                Some(id) => Some(Member {
                    voter: VoterId(id),
                    address: voter::address(node.voter_address, "node.voter_address")?,
                }),
                None => None,
            },
        })
    }
}

message!(NodeReport, v1::NodeReport, "report", {
    round: Required(Inner),
    state: Required(Inner),
    failure: Optional(Boxed(Inner)),
    lease_expired: Same,
    notice: Optional(Inner),
    saved: Optional(Inner),
    requests: OrDefault(Inner),
    unhealthy: Optional(Boxed(Inner)),
    memory_unusable: Optional(Boxed(Inner)),
});

impl From<NodeState> for node_report::State {
    fn from(state: NodeState) -> Self {
        match state {
            NodeState::Preparing => Self::Preparing(node_report::Preparing {}),
            NodeState::Ready { store_port } => {
                Self::Ready(node_report::Ready { store_port: store_port.into() })
            }
            NodeState::Running => Self::Running(node_report::Running {}),
            NodeState::Stopping => Self::Stopping(node_report::Stopping {}),
            NodeState::Succeeded => Self::Succeeded(node_report::Succeeded {}),
            NodeState::Leaving { reaped } => Self::Leaving(node_report::Leaving { reaped }),
        }
    }
}

impl TryFrom<node_report::State> for NodeState {
    type Error = Malformed;

    fn try_from(state: node_report::State) -> Result<Self, Malformed> {
        use node_report::State;
        Ok(match state {
            State::Preparing(node_report::Preparing {}) => Self::Preparing,
            State::Ready(node_report::Ready { store_port }) => {
                Self::Ready { store_port: port(store_port, "report.store_port")? }
            }
            State::Running(node_report::Running {}) => Self::Running,
            State::Stopping(node_report::Stopping {}) => Self::Stopping,
            State::Succeeded(node_report::Succeeded {}) => Self::Succeeded,
            State::Leaving(node_report::Leaving { reaped }) => Self::Leaving { reaped },
        })
    }
}
