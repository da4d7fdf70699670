//! The format of messages between voters: frames with a length of four bytes, after one byte that identifies
//! the protocol on the agent's port.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use ragent_proto::{
    Malformed,
    convert::voter::{self, ElectionHeader, FromVoter},
};
use ragent_rendezvous::{election::timers::Timers, ids::RunId};
use sha2::{Digest, Sha256};
use tokio_util::codec::{Encoder, LengthDelimitedCodec};

use super::limits;
use crate::spec::Endpoint;

/// The job and the list of voters, which both ends of a connection must share.
#[derive(Clone, Debug)]
pub(super) struct Format(Arc<ElectionHeader>);

/// The reason for which a message of another voter is not handled.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The message is malformed.
    #[error("its message is malformed")]
    Malformed(#[from] Malformed),
    /// The voter belongs to another job.
    #[error("it belongs to the job {0}")]
    OtherJob(RunId),
    /// The voter has another list, or other leases.
    #[error("its `--rdzv-endpoint` or its `--nnodes` differs")]
    OtherList,
}

impl Format {
    /// Returns the format of this job's messages. Voters with other leases, which depend on the number of nodes,
    /// could elect two leaders, so the leases are a part of the digest.
    pub(super) fn new(run_id: RunId, list: &[Endpoint], timers: Timers) -> Self {
        let mut digest = Sha256::new();
        for endpoint in list {
            digest.update(endpoint.to_string().as_bytes());
            // No endpoint contains this byte.
            digest.update([0]);
        }
        digest.update(timers.voter_lease.as_millis().to_be_bytes());
        digest.update(timers.leader_lease.as_millis().to_be_bytes());
        Self(Arc::new(ElectionHeader { run_id, voters: digest.finalize().into() }))
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
        let (header, message) = voter::decode(frame)?;
        if header.run_id != self.0.run_id {
            return Err(FrameError::OtherJob(header.run_id));
        }
        if header.voters != self.0.voters {
            return Err(FrameError::OtherList);
        }
        Ok(message)
    }
}

/// Returns the codec of frames.
pub(super) fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(limits::MAX_FRAME).new_codec()
}
