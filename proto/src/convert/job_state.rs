//! Converts the state of the job, which the voters copy.

use ragent_rendezvous::{
    ids::{JobUid, ProofKey, Round, Term},
    limits::HOST_TALLIES_MAX,
    settings::{HostMember, HostTally, JobState},
    training::{CHARGED_ROUNDS_MAX, ChargedRound, MEMORY_TRIES_MAX, Training, TriedCheckpoint},
};

use super::{
    account::{from_totals, to_totals},
    list, nonempty, number,
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

message!(Training, v1::Training, "training", {
    highest_step: Optional(Step),
    charged_rounds: List(CHARGED_ROUNDS_MAX, Inner),
    rounds_without_progress: Same,
    saved_step: Optional(Step),
    complete_step: Optional(Step),
    notices: Number,
    has_steps: Same,
    longest_pause_ms as longest_pause: Millis,
    first_step_ms as first_step: Millis,
    memory: Optional(Inner),
    restarts_forgiven: Same,
    step_at_charge: Optional(Step),
});

message!(ChargedRound, v1::ChargedRound, "charged_round", {
    round: Number,
    step: Optional(Step),
    rank: Same,
    end: Required(Inner),
    at_ms as at: Millis,
    began_from_memory: Same,
});

message!(TriedCheckpoint, v1::TriedCheckpoint, "tried_checkpoint", {
    checkpoint: Required(Inner),
    tries: Same,
}, check_tries);

fn check_tries(tried: &v1::TriedCheckpoint) -> Result<(), Malformed> {
    if !(1..=MEMORY_TRIES_MAX).contains(&tried.tries) {
        return Err(Malformed::OutOfRange("tried_checkpoint.tries"));
    }
    Ok(())
}

message!(HostMember, v1::HostMember, "host", {
    rank: Same,
    // This and the host name are empty if the state comes from the state file of an older build.
    node_id as node: Name,
    host_name: Name,
    is_confirmed_dead: Same,
});

message!(HostTally, v1::HostTally, "host_tally", {
    host_name: Name,
    address: Name,
    strikes: Same,
    early_losses: Same,
    suspicions: Same,
    suspected_for_ms as suspected_for: Millis,
});
