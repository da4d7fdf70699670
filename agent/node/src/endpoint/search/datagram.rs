//! Encodes the datagrams of searching agents: one small JSON object each.
//!
//! `seal` authenticates them. The job's name is in a datagram only as a digest, so that listeners learn no names. The rest are numbers and
//! the endpoint's address.

use std::net::SocketAddr;

use ragent_rendezvous::ids::RunId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::endpoint::limits;

/// The digest that identifies a job in datagrams.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct JobDigest(String);

impl JobDigest {
    /// Returns the digest of a job's name.
    pub(crate) fn of(run_id: &RunId) -> Self {
        let digest =
            Sha256::new().chain_update("ragent job ").chain_update(run_id.as_str()).finalize();
        Self::of_bytes(&digest)
    }

    /// Returns the digest with the first half of these bytes.
    pub(super) fn of_bytes(digest: &[u8]) -> Self {
        Self(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }
}

/// An agent that may become the host. The lowest candidate becomes it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct Candidate {
    /// The rank that the user gave the node. Nodes without a rank come last.
    pub rank: u32,
    /// A random number of this agent.
    pub number: u64,
}

/// The content of a datagram.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SearchMessage {
    /// The sender searches for the coordinator.
    Looking {
        /// The sender.
        by: Candidate,
        /// True if the sender may host.
        may_host: bool,
        /// The lowest candidate that the sender knows, including itself.
        lowest: Option<Candidate>,
    },
    /// The sender knows the current or former address of the coordinator.
    Hosted {
        /// The number of the sender.
        by: u64,
        /// The address of the coordinator. The receiver may be unable to reach it.
        at: SocketAddr,
        /// True if the sender hosts the coordinator. Its source address is then preferred.
        by_host: bool,
    },
    /// The sender asks another agent whether it is present.
    Ask {
        /// The number of the sender.
        by: u64,
        /// The number of the agent that should answer.
        to: u64,
        /// A number that was not sent before, for the answer.
        nonce: u64,
    },
    /// The sender is present. An answer is shorter than its questions, so it cannot amplify traffic.
    Answer {
        /// The number of the sender.
        by: u64,
        /// The nonces of the questions.
        nonces: Vec<u64>,
    },
}

/// A datagram.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Datagram {
    /// The version of this format.
    ragent: u32,
    /// The job.
    pub job: JobDigest,
    /// The content.
    pub message: SearchMessage,
}

const VERSION: u32 = 2;

impl Datagram {
    /// Creates a datagram of this version.
    pub(crate) fn new(job: JobDigest, message: SearchMessage) -> Self {
        Self { ragent: VERSION, job, message }
    }

    /// Encodes the datagram.
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a datagram has no map with odd keys")
    }

    /// Decodes `bytes`; `None` if they are not a datagram of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > limits::MAX_DATAGRAM {
            return None;
        }
        serde_json::from_slice(bytes).ok().filter(|datagram: &Self| datagram.ragent == VERSION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> JobDigest {
        JobDigest::of(&RunId::new(name))
    }

    /// An encoded datagram is decoded again, fits the limit, and does not show the job's name.
    #[test]
    fn round_trip() {
        let by = Candidate { rank: u32::MAX, number: u64::MAX };
        let at = "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535".parse().unwrap();
        for message in [
            SearchMessage::Looking { by, may_host: false, lowest: Some(by) },
            SearchMessage::Hosted { by: u64::MAX, at, by_host: true },
            SearchMessage::Ask { by: u64::MAX, to: u64::MAX, nonce: u64::MAX },
            SearchMessage::Answer { by: u64::MAX, nonces: vec![u64::MAX; limits::MAX_NONCES] },
        ] {
            let datagram = Datagram::new(job("secret-project"), message);
            let bytes = datagram.encode();
            assert!(bytes.len() <= limits::MAX_DATAGRAM);
            assert!(!String::from_utf8_lossy(&bytes).contains("secret"));
            assert_eq!(Datagram::decode(&bytes), Some(datagram));
        }
        assert_ne!(job("a"), job("b"));
    }

    /// An answer is not longer than the questions that it answers.
    #[test]
    fn answers_are_short() {
        let length = |message| Datagram::new(job("a"), message).encode().len();
        for (by, count) in [(0, 1), (u64::MAX, 1), (0, limits::MAX_NONCES)] {
            let question = length(SearchMessage::Ask { by: 0, to: by, nonce: u64::MAX });
            let answer = length(SearchMessage::Answer { by, nonces: vec![u64::MAX; count] });
            assert!(answer <= question * count, "{answer} {question} {count}");
        }
    }

    /// Bytes that are not a datagram of this version are ignored.
    #[test]
    fn foreign_datagrams_are_ignored() {
        let at = "1.2.3.4:5".parse().unwrap();
        let message = SearchMessage::Hosted { by: 1, at, by_host: false };
        let bytes = Datagram::new(job("a"), message).encode();
        for cut in 0..bytes.len() {
            assert_eq!(Datagram::decode(&bytes[..cut]), None);
        }
        let newer = String::from_utf8(bytes).unwrap().replacen(":2,", ":3,", 1);
        assert_eq!(Datagram::decode(newer.as_bytes()), None);
        assert_eq!(Datagram::decode(&[b'{'; 2000]), None);
    }
}
