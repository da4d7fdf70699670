//! Encodes messages between voters as frames.
//!
//! The first byte of a connection identifies the protocol on the agent's port. Each frame starts with a length of four bytes.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ragent_election::election::timers::Timers;
use ragent_proto::{
    Malformed,
    convert::voter::{self, ElectionHeader, FromVoter},
};
use ragent_rendezvous::{
    ids::{RunId, VoterAddress},
    known_job::KnownJob,
};
use sha2::{Digest, Sha256};
use tokio_util::codec::{Encoder, LengthDelimitedCodec};

use super::limits;

/// The job and the list of voters, which must be equal at both ends of a connection.
#[derive(Clone, Debug)]
pub(super) struct Format(Arc<ElectionHeader>);

/// The reason why a message of another voter is not handled.
#[derive(Debug, thiserror::Error)]
pub(super) enum VoterFrameError {
    /// The message is malformed.
    #[error("its message is malformed: {0}")]
    Malformed(#[from] Malformed),
    /// The voter has another protocol version. It may show a job of this name.
    #[error("{0}")]
    OtherVersion(Malformed, Option<KnownJob>),
    /// The voter belongs to another job.
    #[error("it belongs to the job {0}")]
    OtherJob(RunId),
    /// The voter has another list, or other leases.
    #[error("its `--rdzv-endpoint` or its `--nnodes` differs")]
    OtherList,
}

impl VoterFrameError {
    /// Returns what to do.
    pub(super) fn hint(&self) -> &'static str {
        match self {
            Self::Malformed(_) | Self::OtherVersion(..) => {
                "install the same version of ragent on all nodes"
            }
            Self::OtherJob(_) | Self::OtherList => {
                "give the same `--rdzv-id`, `--rdzv-endpoint` and `--nnodes` on all nodes"
            }
        }
    }
}

impl Format {
    /// Returns the format of this job's messages. `listed` is the user's list of endpoints, if this process serves one of them.
    ///
    /// Leases depend on the number of nodes. Voters with different leases could elect two leaders, so the lease is compared, too.
    pub(super) fn new(run_id: RunId, listed: Option<&[VoterAddress]>, timers: Timers) -> Self {
        let digest = |listed: &[VoterAddress]| {
            let mut sorted = listed.to_vec();
            sorted.sort();
            let mut digest = Sha256::new();
            for endpoint in sorted {
                digest.update(endpoint.as_str().as_bytes());
                // No endpoint contains this byte.
                digest.update([0]);
            }
            digest.finalize().into()
        };
        let (listed, voter_lease) = (listed.map(digest), timers.voter_lease);
        Self(Arc::new(ElectionHeader { run_id, listed, voter_lease }))
    }

    /// Encodes a message as a frame; `None` if it is too large.
    pub(super) fn encode(&self, message: FromVoter) -> Option<Bytes> {
        let message = Bytes::from(voter::encode(&self.0, message));
        let mut frame = BytesMut::new();
        codec().encode(message, &mut frame).ok()?;
        Some(frame.freeze())
    }

    /// Decodes a message.
    pub(super) fn decode(&self, frame: &[u8]) -> Result<FromVoter, VoterFrameError> {
        let (header, message) = voter::decode(frame).map_err(|error| match error {
            Malformed::ProtocolVersion { .. } => {
                let shown = voter::shown_by_other_version(frame);
                let of_this_run = shown.filter(|(run_id, _)| *run_id == self.0.run_id);
                VoterFrameError::OtherVersion(error, of_this_run.map(|(_, job)| job))
            }
            malformed => malformed.into(),
        })?;
        if header.run_id != self.0.run_id {
            return Err(VoterFrameError::OtherJob(header.run_id));
        }
        let is_other =
            header.listed.zip(self.0.listed).is_some_and(|(theirs, ours)| theirs != ours);
        let is_as_long = header.voter_lease.as_millis() == self.0.voter_lease.as_millis();
        if is_other || !is_as_long {
            return Err(VoterFrameError::OtherList);
        }
        Ok(message)
    }
}

/// Returns the codec of frames.
pub(super) fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(limits::MAX_FRAME).new_codec()
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use ragent_election::election::message::{
        Knowledge, Lists, Replica, Request, Version, VoterMessage, VoterSlot,
    };
    use ragent_rendezvous::{
        account::{TimeState, TimeTotals},
        event::{RestartCause, RestartSum},
        ids::{
            GlobalRank, GroupRank, JobUid, LocalRank, NodeId, ProofKey, Round, RoundId, Term,
            VoterId,
        },
        known_job::Leads,
        limits::{
            DEPARTED_NODES_MAX, FURTHER_FAILURES_MAX, FURTHER_TEXT_MAX, HOST_TALLIES_MAX,
            NUMBER_MAX, VOTERS_MAX,
        },
        message::{
            CheckpointId, DepartedNode, DepartedNodes, Departure, ENDED_SHOWN_MAX,
            HARDWARE_FACTS_MAX, HardwareFact, JobResult, LINE_MAX, OomKill, Outcome, STEP_MAX,
            WorkerEnd, WorkerFailure,
        },
        settings::{HostMember, HostTally, JobState},
        training::{CHARGED_ROUNDS_MAX, ChargedRound, MEMORY_TRIES_MAX, Training, TriedCheckpoint},
    };

    use super::*;

    /// The longest names, paths and texts that a coordinator accepts from nodes.
    const NAME: usize = 256;
    const PATH: usize = 4096;
    const TEXT: usize = 8192;

    const TIME: Duration = Duration::from_secs(366 * 24 * 3600);

    fn long(len: usize) -> String {
        "x".repeat(len)
    }

    /// A failure with each field at the limit that a coordinator accepts.
    fn failure() -> WorkerFailure {
        WorkerFailure {
            host_name: long(NAME),
            round: RoundId { term: Term(NUMBER_MAX), round: Round(NUMBER_MAX) },
            global_rank: GlobalRank(u32::MAX),
            local_rank: LocalRank(u32::MAX),
            pid: u32::MAX,
            end: WorkerEnd::NotStarted(long(TEXT)),
            age: TIME,
            message: Some(long(TEXT)),
            error_file: Some(long(PATH)),
            stderr_tail: long(TEXT),
            is_final: true,
            error_file_age: Some(TIME),
            hardware: vec![
                HardwareFact { text: long(LINE_MAX), age: Some(TIME) };
                HARDWARE_FACTS_MAX
            ],
            oom: Some(OomKill::Probable),
            before_load: true,
        }
    }

    fn training() -> Training {
        let charged = ChargedRound {
            round: Round(NUMBER_MAX),
            step: Some(STEP_MAX),
            rank: GlobalRank(u32::MAX),
            end: WorkerEnd::Hung(TIME),
            at: TIME,
            began_from_memory: true,
        };
        let round = RoundId { term: Term(NUMBER_MAX), round: Round(NUMBER_MAX) };
        let checkpoint = CheckpointId { round, step: STEP_MAX };
        Training {
            highest_step: Some(STEP_MAX),
            charged_rounds: vec![charged; CHARGED_ROUNDS_MAX],
            rounds_without_progress: u32::MAX,
            saved_step: Some(STEP_MAX),
            complete_step: Some(STEP_MAX),
            notices: NUMBER_MAX,
            has_steps: true,
            longest_pause: TIME,
            first_step: TIME,
            memory: Some(TriedCheckpoint { checkpoint, tries: MEMORY_TRIES_MAX }),
            restarts_forgiven: u32::MAX,
            step_at_charge: Some(STEP_MAX),
        }
    }

    /// The state of a closed job, with each field at its limit.
    pub(crate) fn largest_job_state() -> JobState {
        let departed = DepartedNode { host_name: long(NAME), how: Departure::NotReady, ago: TIME };
        let further = WorkerFailure {
            end: WorkerEnd::NotStarted(long(FURTHER_TEXT_MAX)),
            message: Some(long(FURTHER_TEXT_MAX)),
            error_file: Some(long(FURTHER_TEXT_MAX)),
            stderr_tail: String::new(),
            ..failure()
        };
        let closed = Outcome {
            result: JobResult::JoinTimeout {
                present: u32::MAX,
                min: u32::MAX,
                waited: TIME,
                after: Round(NUMBER_MAX),
                departed: Box::new(DepartedNodes {
                    first: vec![departed; DEPARTED_NODES_MAX],
                    more: u32::MAX,
                }),
            },
            first_failure: Some(failure()),
            other_failures: u32::MAX,
            further_failures: vec![further; FURTHER_FAILURES_MAX],
            restarts_used: u32::MAX,
            complete_step: None,
        };
        let tally = HostTally {
            host_name: long(NAME),
            address: long(NAME),
            strikes: u32::MAX,
            early_losses: u32::MAX,
            suspicions: u32::MAX,
            suspected_for: TIME,
        };
        let restarts = RestartSum { count: u32::MAX, cost_ms: u64::MAX, redone_steps: u64::MAX };
        JobState {
            born_ms: u64::MAX,
            term: Term(NUMBER_MAX),
            round: Round(NUMBER_MAX),
            round_size: 65_536,
            host: Some(HostMember {
                rank: GroupRank(u32::MAX),
                node: NodeId::new(long(NAME)),
                host_name: long(NAME),
                is_confirmed_dead: true,
            }),
            restarts_used: u32::MAX,
            charged_through: Round(NUMBER_MAX),
            time: TimeTotals { by_state: [TIME; TimeState::ALL.len()], redone: TIME },
            restarts: [restarts; RestartCause::ALL.len()],
            host_tallies: vec![tally; HOST_TALLIES_MAX],
            closed: Some(closed),
            training: training(),
            proof_key: Some(ProofKey::new([7; ProofKey::LEN])),
            ..JobState::new(JobUid::new(long(NAME)))
        }
    }

    /// The largest state of a job needs half of a message between voters. So the end of a job is always copied, for any content of its
    /// failures.
    #[test]
    fn largest_job_state_fits() {
        let address = || VoterAddress::new(long(NAME));
        let slots =
            || vec![VoterSlot { address: address(), voter: Some(VoterId(u64::MAX)) }; VOTERS_MAX];
        let version = || Version { term: Term(NUMBER_MAX), number: NUMBER_MAX };
        let uid = || JobUid::new(long(NAME));
        let replica = Replica {
            version: version(),
            lists: Lists { last: slots(), before: Some(slots()) },
            job_state: Some(largest_job_state()),
        };
        let renewal = VoterMessage {
            voter: VoterId(u64::MAX),
            address: address(),
            knows: Knowledge { has_round: true, version: version() },
            process: NodeId::new(long(NAME)),
            has_just_started: true,
            highest: Term(NUMBER_MAX),
            job: Some(KnownJob {
                uid: uid(),
                voters: vec![address(); VOTERS_MAX],
                leads: Some(Leads { born_ms: u64::MAX, term: Term(NUMBER_MAX), has_nodes: true }),
            }),
            ended: vec![uid(); ENDED_SHOWN_MAX],
            sequence: u64::MAX,
            body: Request::Renew {
                term: Term(NUMBER_MAX),
                replica: Box::new(replica),
                is_copied: false,
            },
        };
        let format = Format::new(RunId::new(long(NAME)), Some(&[address()]), Timers::default());
        let frame = format.encode(FromVoter::Request(renewal.clone())).expect("it fits");
        assert!(frame.len() <= limits::MAX_FRAME / 2, "{}", frame.len());
        // The other voter accepts each field. The length of the message comes before it.
        assert_eq!(format.decode(&frame[4..]).unwrap(), FromVoter::Request(renewal));
    }
}
