//! The memory of a coordinator, which the voters copy.

use ragent_rendezvous::{
    ids::{GroupRank, JobUid, NodeId, ProofKey, Round, Term},
    limits::HOST_TALLIES_MAX,
    settings::{HostSeat, HostTally, Memory},
};

use super::{
    account::{from_totals, to_totals},
    list, name, nonempty,
    voter::number,
};
use crate::{Malformed, limits, v1};

impl From<Memory> for v1::Memory {
    fn from(memory: Memory) -> Self {
        Self {
            job_uid: memory.job_uid.to_string(),
            born_ms: memory.born_ms,
            term: memory.term.0,
            round: memory.round.0,
            round_size: memory.round_size,
            is_adopted: memory.is_adopted,
            host: memory.host.map(Into::into),
            restarts_used: memory.restarts_used,
            charged_through: memory.charged_through.0,
            host_tallies: memory.host_tallies.into_iter().map(Into::into).collect(),
            free_rounds: memory.free_rounds,
            early_free_rounds: memory.early_free_rounds,
            is_early: memory.is_early,
            closed: memory.closed.map(Into::into),
            totals: Some(to_totals(&memory.time, &memory.restarts)),
            proof_key: memory.proof_key.map(|key| key.as_bytes().to_vec()).unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::Memory> for Memory {
    type Error = Malformed;

    fn try_from(memory: v1::Memory) -> Result<Self, Malformed> {
        if usize::try_from(memory.round_size).map_or(true, |size| size > limits::MAX_NODES) {
            return Err(Malformed::OutOfRange("memory.round_size"));
        }
        let (time, restarts) = from_totals(memory.totals.unwrap_or_default());
        Ok(Self {
            job_uid: JobUid::new(nonempty(memory.job_uid, "memory.job_uid")?),
            born_ms: memory.born_ms,
            term: Term(number(memory.term, "memory.term")?),
            round: Round(number(memory.round, "memory.round")?),
            round_size: memory.round_size,
            is_adopted: memory.is_adopted,
            host: memory.host.map(TryInto::try_into).transpose()?,
            restarts_used: memory.restarts_used,
            charged_through: Round(number(memory.charged_through, "memory.charged_through")?),
            host_tallies: list(
                memory.host_tallies,
                "memory.host_tallies",
                HOST_TALLIES_MAX,
                TryInto::try_into,
            )?,
            free_rounds: memory.free_rounds,
            early_free_rounds: memory.early_free_rounds,
            is_early: memory.is_early,
            closed: memory.closed.map(TryInto::try_into).transpose()?,
            time,
            restarts,
            proof_key: proof_key(&memory.proof_key)?,
        })
    }
}

fn proof_key(bytes: &[u8]) -> Result<Option<ProofKey>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let bytes = bytes.try_into().map_err(|_| Malformed::OutOfRange("memory.proof_key"))?;
    Ok(Some(ProofKey::new(bytes)))
}

impl From<HostSeat> for v1::HostSeat {
    fn from(seat: HostSeat) -> Self {
        let HostSeat { rank, node, host_name, is_confirmed_dead } = seat;
        Self { rank: rank.0, node_id: node.to_string(), host_name, is_confirmed_dead }
    }
}

impl TryFrom<v1::HostSeat> for HostSeat {
    type Error = Malformed;

    fn try_from(seat: v1::HostSeat) -> Result<Self, Malformed> {
        Ok(Self {
            rank: GroupRank(seat.rank),
            // Both are empty in a memory that comes from the state file of an older build.
            node: NodeId::new(name(seat.node_id, "host_seat.node_id")?),
            host_name: name(seat.host_name, "host_seat.host_name")?,
            is_confirmed_dead: seat.is_confirmed_dead,
        })
    }
}

impl From<HostTally> for v1::HostTally {
    fn from(tally: HostTally) -> Self {
        let HostTally { host_name, address, strikes, early_losses } = tally;
        Self { host_name, address, strikes, early_losses }
    }
}

impl TryFrom<v1::HostTally> for HostTally {
    type Error = Malformed;

    fn try_from(tally: v1::HostTally) -> Result<Self, Malformed> {
        Ok(Self {
            host_name: name(tally.host_name, "host_tally.host_name")?,
            address: name(tally.address, "host_tally.address")?,
            strikes: tally.strikes,
            early_losses: tally.early_losses,
        })
    }
}
