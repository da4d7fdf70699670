//! Converts the state of the job, which the voters copy.

use ragent_rendezvous::{
    ids::{GlobalRank, GroupRank, JobUid, NodeId, ProofKey, Round, Term},
    limits::HOST_TALLIES_MAX,
    settings::{HostMember, HostTally, JobState},
    training::{CHARGED_ROUNDS_MAX, ChargedRound, MEMORY_TRIES_MAX, Training, TriedCheckpoint},
};

use super::{
    account::{from_totals, to_totals},
    list, millis, name, nonempty,
    progress::optional_step,
    required, to_millis,
    voter::number,
};
use crate::{Malformed, limits, v1};

impl From<JobState> for v1::JobState {
    fn from(job_state: JobState) -> Self {
        Self {
            job_uid: job_state.job_uid.to_string(),
            born_ms: job_state.born_ms,
            term: job_state.term.0,
            round: job_state.round.0,
            round_size: job_state.round_size,
            is_adopted: job_state.is_adopted,
            host: job_state.host.map(Into::into),
            restarts_used: job_state.restarts_used,
            charged_through: job_state.charged_through.0,
            host_tallies: job_state.host_tallies.into_iter().map(Into::into).collect(),
            free_rounds: job_state.free_rounds,
            early_free_rounds: job_state.early_free_rounds,
            is_early: job_state.is_early,
            closed: job_state.closed.map(Into::into),
            training: Some(job_state.training.into()),
            totals: Some(to_totals(&job_state.time, &job_state.restarts)),
            proof_key: job_state.proof_key.map(|key| key.as_bytes().to_vec()).unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::JobState> for JobState {
    type Error = Malformed;

    fn try_from(job_state: v1::JobState) -> Result<Self, Malformed> {
        if usize::try_from(job_state.round_size).map_or(true, |size| size > limits::MAX_NODES) {
            return Err(Malformed::OutOfRange("job_state.round_size"));
        }
        let (time, restarts) = from_totals(job_state.totals.unwrap_or_default());
        Ok(Self {
            job_uid: JobUid::new(nonempty(job_state.job_uid, "job_state.job_uid")?),
            born_ms: job_state.born_ms,
            term: Term(number(job_state.term, "job_state.term")?),
            round: Round(number(job_state.round, "job_state.round")?),
            round_size: job_state.round_size,
            is_adopted: job_state.is_adopted,
            host: job_state.host.map(TryInto::try_into).transpose()?,
            restarts_used: job_state.restarts_used,
            charged_through: Round(number(job_state.charged_through, "job_state.charged_through")?),
            host_tallies: list(
                job_state.host_tallies,
                "job_state.host_tallies",
                HOST_TALLIES_MAX,
                TryInto::try_into,
            )?,
            free_rounds: job_state.free_rounds,
            early_free_rounds: job_state.early_free_rounds,
            is_early: job_state.is_early,
            closed: job_state.closed.map(TryInto::try_into).transpose()?,
            time,
            training: job_state.training.map(TryInto::try_into).transpose()?.unwrap_or_default(),
            restarts,
            proof_key: proof_key(&job_state.proof_key)?,
        })
    }
}

fn proof_key(bytes: &[u8]) -> Result<Option<ProofKey>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let bytes = bytes.try_into().map_err(|_| Malformed::OutOfRange("job_state.proof_key"))?;
    Ok(Some(ProofKey::new(bytes)))
}

impl From<Training> for v1::Training {
    fn from(training: Training) -> Self {
        let Training {
            highest_step,
            charged_rounds,
            rounds_without_progress,
            saved_step,
            complete_step,
            notices,
            has_steps,
            longest_pause,
            first_step,
            memory,
            restarts_forgiven,
            step_at_charge,
        } = training;
        Self {
            highest_step,
            charged_rounds: charged_rounds.into_iter().map(Into::into).collect(),
            rounds_without_progress,
            saved_step,
            complete_step,
            notices,
            has_steps,
            longest_pause_ms: to_millis(longest_pause),
            first_step_ms: to_millis(first_step),
            memory: memory.map(Into::into),
            restarts_forgiven,
            step_at_charge,
        }
    }
}

impl TryFrom<v1::Training> for Training {
    type Error = Malformed;

    fn try_from(training: v1::Training) -> Result<Self, Malformed> {
        Ok(Self {
            highest_step: optional_step(training.highest_step, "training.highest_step")?,
            charged_rounds: list(
                training.charged_rounds,
                "training.charged_rounds",
                CHARGED_ROUNDS_MAX,
                TryInto::try_into,
            )?,
            rounds_without_progress: training.rounds_without_progress,
            saved_step: optional_step(training.saved_step, "training.saved_step")?,
            complete_step: optional_step(training.complete_step, "training.complete_step")?,
            notices: number(training.notices, "training.notices")?,
            has_steps: training.has_steps,
            longest_pause: millis(training.longest_pause_ms, "training.longest_pause_ms")?,
            first_step: millis(training.first_step_ms, "training.first_step_ms")?,
            memory: training.memory.map(TryInto::try_into).transpose()?,
            restarts_forgiven: training.restarts_forgiven,
            step_at_charge: optional_step(training.step_at_charge, "training.step_at_charge")?,
        })
    }
}

impl From<ChargedRound> for v1::ChargedRound {
    fn from(charged: ChargedRound) -> Self {
        let ChargedRound { round, step, rank, end, at, began_from_memory } = charged;
        let (end, at_ms) = (Some(end.into()), to_millis(at));
        Self { round: round.0, step, rank: rank.0, end, at_ms, began_from_memory }
    }
}

impl TryFrom<v1::ChargedRound> for ChargedRound {
    type Error = Malformed;

    fn try_from(charged: v1::ChargedRound) -> Result<Self, Malformed> {
        Ok(Self {
            round: Round(number(charged.round, "charged_round.round")?),
            step: optional_step(charged.step, "charged_round.step")?,
            rank: GlobalRank(charged.rank),
            end: required(charged.end, "charged_round.end")?.try_into()?,
            at: millis(charged.at_ms, "charged_round.at_ms")?,
            began_from_memory: charged.began_from_memory,
        })
    }
}

impl From<TriedCheckpoint> for v1::TriedCheckpoint {
    fn from(TriedCheckpoint { checkpoint, tries }: TriedCheckpoint) -> Self {
        Self { checkpoint: Some(checkpoint.into()), tries }
    }
}

impl TryFrom<v1::TriedCheckpoint> for TriedCheckpoint {
    type Error = Malformed;

    fn try_from(tried: v1::TriedCheckpoint) -> Result<Self, Malformed> {
        if !(1..=MEMORY_TRIES_MAX).contains(&tried.tries) {
            return Err(Malformed::OutOfRange("tried_checkpoint.tries"));
        }
        let checkpoint = required(tried.checkpoint, "tried_checkpoint.checkpoint")?.try_into()?;
        Ok(Self { checkpoint, tries: tried.tries })
    }
}

impl From<HostMember> for v1::HostMember {
    fn from(host: HostMember) -> Self {
        let HostMember { rank, node, host_name, is_confirmed_dead } = host;
        Self { rank: rank.0, node_id: node.to_string(), host_name, is_confirmed_dead }
    }
}

impl TryFrom<v1::HostMember> for HostMember {
    type Error = Malformed;

    fn try_from(host: v1::HostMember) -> Result<Self, Malformed> {
        Ok(Self {
            rank: GroupRank(host.rank),
            // Both are empty if the state comes from the state file of an older build.
            node: NodeId::new(name(host.node_id, "host.node_id")?),
            host_name: name(host.host_name, "host.host_name")?,
            is_confirmed_dead: host.is_confirmed_dead,
        })
    }
}

impl From<HostTally> for v1::HostTally {
    fn from(tally: HostTally) -> Self {
        let HostTally { host_name, address, strikes, early_losses, suspicions, suspected_for } =
            tally;
        let suspected_for_ms = to_millis(suspected_for);
        Self { host_name, address, strikes, early_losses, suspicions, suspected_for_ms }
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
            suspicions: tally.suspicions,
            suspected_for: millis(tally.suspected_for_ms, "host_tally.suspected_for_ms")?,
        })
    }
}
