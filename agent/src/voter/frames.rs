//! The format of messages between voters: frames with a length of four bytes, after one byte that identifies
//! the protocol on the agent's port.

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

/// The job and the list of voters, which both ends of a connection must share.
#[derive(Clone, Debug)]
pub(super) struct Format(Arc<ElectionHeader>);

/// The reason for which a message of another voter is not handled.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The message is malformed.
    #[error("its message is malformed: {0}")]
    Malformed(#[from] Malformed),
    /// The voter has another protocol version, and perhaps a job of this name.
    #[error("{0}")]
    OtherVersion(Malformed, Option<KnownJob>),
    /// The voter belongs to another job.
    #[error("it belongs to the job {0}")]
    OtherJob(RunId),
    /// The voter has another list, or other leases.
    #[error("its `--rdzv-endpoint` or its `--nnodes` differs")]
    OtherList,
}

impl FrameError {
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
    /// Returns the format of this job's messages. `listed` has the endpoints that the user gave, if this process serves
    /// one of them. Voters with other leases, which depend on the number of nodes, could elect two leaders.
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

    /// Encodes a message as a frame; `None` if it is too large for one.
    pub(super) fn encode(&self, message: FromVoter) -> Option<Bytes> {
        let message = Bytes::from(voter::encode(&self.0, message));
        let mut frame = BytesMut::new();
        codec().encode(message, &mut frame).ok()?;
        Some(frame.freeze())
    }

    /// Decodes a message.
    pub(super) fn decode(&self, frame: &[u8]) -> Result<FromVoter, FrameError> {
        let (header, message) = voter::decode(frame).map_err(|error| match error {
            Malformed::ProtocolVersion { .. } => {
                let shown = voter::shown_by_other_version(frame);
                let of_this_run = shown.filter(|(run_id, _)| *run_id == self.0.run_id);
                FrameError::OtherVersion(error, of_this_run.map(|(_, job)| job))
            }
            malformed => malformed.into(),
        })?;
        if header.run_id != self.0.run_id {
            return Err(FrameError::OtherJob(header.run_id));
        }
        let is_other =
            header.listed.zip(self.0.listed).is_some_and(|(theirs, ours)| theirs != ours);
        let is_as_long = header.voter_lease.as_millis() == self.0.voter_lease.as_millis();
        if is_other || !is_as_long {
            return Err(FrameError::OtherList);
        }
        Ok(message)
    }
}

/// Returns the codec of frames.
pub(super) fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(limits::MAX_FRAME).new_codec()
}
