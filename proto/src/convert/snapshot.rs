//! The status of a job.

use std::net::IpAddr;

use ragent_rendezvous::{
    ids::{GlobalRank, GroupRank, JobUid, NodeId, RunId},
    limits::VOTERS_MAX,
    message::PROGRESS_MAX,
    snapshot::{
        Explanation, NodeSnapshot, PhaseName, REFUSED_PEERS_MAX, RefusedPeer, Snapshot,
        StandingName, UNREACHED_MAX, Unreached, VoterStatus,
    },
};

use super::{
    NotHere, account, agent::refused_clients, fitted, list, millis, name, nonempty, port,
    printable, progress, required, round, text, to_millis, to_round,
};
use crate::{
    Malformed, limits,
    v1::{self, status_reply},
};

/// The answer to a status request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StatusAnswer {
    /// The answering agent does not host the coordinator.
    NotHere(NotHere),
    /// The status of the job, from its coordinator.
    Snapshot(Box<Snapshot>),
}

impl From<StatusAnswer> for v1::StatusReply {
    fn from(answer: StatusAnswer) -> Self {
        use status_reply::Answer;
        let answer = match answer {
            StatusAnswer::NotHere(not_here) => Answer::NotHere(not_here.into()),
            StatusAnswer::Snapshot(snapshot) => Answer::Snapshot((*snapshot).into()),
        };
        Self { answer: Some(answer) }
    }
}

impl TryFrom<v1::StatusReply> for StatusAnswer {
    type Error = Malformed;

    fn try_from(reply: v1::StatusReply) -> Result<Self, Malformed> {
        use status_reply::Answer;
        Ok(match required(reply.answer, "answer")? {
            Answer::NotHere(not_here) => Self::NotHere(not_here.try_into()?),
            Answer::Snapshot(snapshot) => Self::Snapshot(Box::new(snapshot.try_into()?)),
        })
    }
}

impl From<Snapshot> for v1::Snapshot {
    fn from(snapshot: Snapshot) -> Self {
        let id = ragent_rendezvous::ids::RoundId { term: snapshot.term, round: snapshot.round };
        Self {
            run_id: snapshot.run_id.to_string(),
            job_uid: snapshot.job_uid.to_string(),
            round: to_round(id),
            phase: v1::Phase::from(snapshot.phase).into(),
            min_nodes: snapshot.min_nodes,
            max_nodes: snapshot.max_nodes,
            restarts_used: snapshot.restarts_used,
            max_restarts: snapshot.max_restarts,
            world_size: snapshot.world_size,
            nodes: snapshot.nodes.into_iter().map(Into::into).collect(),
            incomplete: snapshot.incomplete.map(Into::into),
            outcome: snapshot.outcome.map(Into::into),
            refused_clients: snapshot.refused_clients.iter().map(IpAddr::to_string).collect(),
            refused_peers: snapshot.refused_peers.into_iter().map(Into::into).collect(),
            unreached: snapshot.unreached.into_iter().map(Into::into).collect(),
            progress: snapshot.progress.map(Into::into),
            // A voter is the leader in their list.
            leader: snapshot.leader.filter(|_| snapshot.voters.is_empty()).unwrap_or_default(),
            voters: snapshot.voters.into_iter().map(Into::into).collect(),
            phase_ms: snapshot.phase_ms,
            time: Some(snapshot.time.into()),
            last_restart: snapshot.last_restart.map(Into::into),
            restarts: snapshot.restarts.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::Snapshot> for Snapshot {
    type Error = Malformed;

    fn try_from(snapshot: v1::Snapshot) -> Result<Self, Malformed> {
        let phase = snapshot.phase().try_into()?;
        let id = round(snapshot.round, "snapshot.round")?;
        let voters = list(snapshot.voters, "snapshot.voters", VOTERS_MAX, TryInto::try_into)?;
        let mut converted = Self {
            run_id: RunId::new(name(snapshot.run_id, "snapshot.run_id")?),
            job_uid: JobUid::new(name(snapshot.job_uid, "snapshot.job_uid")?),
            term: id.term,
            round: id.round,
            phase,
            phase_ms: snapshot.phase_ms,
            time: snapshot.time.unwrap_or_default().try_into()?,
            last_restart: account::last_restart(snapshot.last_restart)?,
            restarts: account::restarts(snapshot.restarts)?,
            min_nodes: snapshot.min_nodes,
            max_nodes: snapshot.max_nodes,
            restarts_used: snapshot.restarts_used,
            max_restarts: snapshot.max_restarts,
            world_size: snapshot.world_size,
            nodes: list(snapshot.nodes, "snapshot.nodes", limits::MAX_NODES, TryInto::try_into)?,
            incomplete: snapshot.incomplete.map(TryInto::try_into).transpose()?,
            outcome: snapshot.outcome.map(TryInto::try_into).transpose()?,
            refused_clients: refused_clients(snapshot.refused_clients)?,
            refused_peers: list(
                snapshot.refused_peers,
                "snapshot.refused_peers",
                REFUSED_PEERS_MAX,
                TryInto::try_into,
            )?,
            unreached: list(
                snapshot.unreached,
                "snapshot.unreached",
                UNREACHED_MAX,
                TryInto::try_into,
            )?,
            progress: progress::of_job(snapshot.progress)?,
            leader: None,
            voters: Vec::new(),
        };
        converted.set_voters(voters);
        if !snapshot.leader.is_empty() && converted.voters.is_empty() {
            converted.leader = Some(name(snapshot.leader, "snapshot.leader")?);
        }
        Ok(converted)
    }
}

impl From<RefusedPeer> for v1::RefusedPeer {
    fn from(peer: RefusedPeer) -> Self {
        let RefusedPeer { address, count, reason } = peer;
        Self { address: address.to_string(), count, reason }
    }
}

impl TryFrom<v1::RefusedPeer> for RefusedPeer {
    type Error = Malformed;

    fn try_from(peer: v1::RefusedPeer) -> Result<Self, Malformed> {
        const FIELD: &str = "refused_peer.address";
        Ok(Self {
            address: peer.address.parse().map_err(|_| Malformed::OutOfRange(FIELD))?,
            count: peer.count,
            reason: name(peer.reason, "refused_peer.reason")?,
        })
    }
}

impl From<Unreached> for v1::Unreached {
    fn from(Unreached { host_name, to, why }: Unreached) -> Self {
        Self { host_name: fitted(&host_name), to: fitted(&to), why: fitted(&why) }
    }
}

impl TryFrom<v1::Unreached> for Unreached {
    type Error = Malformed;

    fn try_from(v1::Unreached { host_name, to, why }: v1::Unreached) -> Result<Self, Malformed> {
        let name = |value| name(value, "snapshot.unreached");
        Ok(Self { host_name: name(host_name)?, to: name(to)?, why: name(why)? })
    }
}

impl From<VoterStatus> for v1::VoterStatus {
    fn from(VoterStatus { endpoint, is_leader, silent_for }: VoterStatus) -> Self {
        Self { endpoint, is_leader, silent_ms: to_millis(silent_for) }
    }
}

impl TryFrom<v1::VoterStatus> for VoterStatus {
    type Error = Malformed;

    fn try_from(voter: v1::VoterStatus) -> Result<Self, Malformed> {
        Ok(Self {
            endpoint: nonempty(voter.endpoint, "voter.endpoint")?,
            is_leader: voter.is_leader,
            silent_for: millis(voter.silent_ms, "voter.silent_ms")?,
        })
    }
}

impl From<Explanation> for v1::Explanation {
    fn from(Explanation { kind, text }: Explanation) -> Self {
        Self { kind, text: printable(&text) }
    }
}

impl TryFrom<v1::Explanation> for Explanation {
    type Error = Malformed;

    fn try_from(explanation: v1::Explanation) -> Result<Self, Malformed> {
        Ok(Self {
            kind: name(explanation.kind, "incomplete.kind")?,
            text: text(explanation.text, "incomplete.text", limits::MAX_TEXT_LEN)?,
        })
    }
}

impl From<NodeSnapshot> for v1::NodeStatus {
    fn from(node: NodeSnapshot) -> Self {
        Self {
            node_id: node.node_id.to_string(),
            host_name: node.host_name,
            address: node.address,
            agent_port: node.agent_port.into(),
            group_rank: node.group_rank.map(|rank| rank.0),
            first_global_rank: node.first_global_rank.map(|rank| rank.0),
            local_world_size: node.local_world_size,
            standing: v1::StandingName::from(node.standing).into(),
            last_seen_ms: node.last_seen_ms,
            reason: node.reason.as_deref().map(printable),
            progress: node.progress.as_deref().map(printable),
            observed: node.observed.map(|observed| observed.to_string()),
            standbys: node.standbys.map(Into::into),
            progress_age_ms: node.progress_age_ms,
        }
    }
}

impl TryFrom<v1::NodeStatus> for NodeSnapshot {
    type Error = Malformed;

    fn try_from(node: v1::NodeStatus) -> Result<Self, Malformed> {
        let standing = node.standing().try_into()?;
        Ok(Self {
            node_id: NodeId::new(name(node.node_id, "node.node_id")?),
            host_name: name(node.host_name, "node.host_name")?,
            address: name(node.address, "node.address")?,
            observed: node
                .observed
                .map(|observed| observed.parse())
                .transpose()
                .map_err(|_| Malformed::OutOfRange("node.observed"))?,
            agent_port: port(node.agent_port, "node.agent_port")?,
            group_rank: node.group_rank.map(GroupRank),
            first_global_rank: node.first_global_rank.map(GlobalRank),
            local_world_size: node.local_world_size,
            standing,
            last_seen_ms: node.last_seen_ms,
            reason: node
                .reason
                .map(|reason| text(reason, "node.reason", limits::MAX_TEXT_LEN))
                .transpose()?,
            progress: node
                .progress
                .map(|progress| text(progress, "node.progress", PROGRESS_MAX))
                .transpose()?,
            progress_age_ms: node.progress_age_ms,
            standbys: node.standbys.map(TryInto::try_into).transpose()?,
        })
    }
}

enumeration!(
    PhaseName,
    Phase,
    "snapshot.phase",
    [Recovering, Gathering, Running, Stopping, Closed,]
);
enumeration!(
    StandingName,
    StandingName,
    "node.standing",
    [
        Preparing,
        Joined,
        Running,
        Stopping,
        Failed,
        Succeeded,
        Leaving,
        Waiting,
        Spare,
        Quarantined,
        Lost,
    ]
);
