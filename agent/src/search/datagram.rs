//! What agents that look for each other say: one small JSON object a datagram.
//!
//! It has the job's name as a digest, so that listeners learn no names, and beside it only numbers and
//! the endpoint's address.

use std::net::SocketAddr;

use ragent_rendezvous::ids::RunId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::limits;

/// The job, as datagrams name it.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct JobDigest(String);

impl JobDigest {
    /// The digest of a job's name.
    pub fn of(run_id: &RunId) -> Self {
        let digest =
            Sha256::new().chain_update("ragent job ").chain_update(run_id.as_str()).finalize();
        Self(digest[..16].iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// An agent that may come to host. The lowest one does.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Candidate {
    /// Where the user wants it: the ranks of nodes, and behind them those without one.
    pub rank: u32,
    /// A number of its own.
    pub number: u64,
}

/// What one agent says to all.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Saying {
    /// It looks for the coordinator.
    Looking {
        /// Who it is.
        by: Candidate,
        /// Whether it may host.
        may_host: bool,
        /// The lowest candidate that it knows of, itself included.
        lowest: Option<Candidate>,
    },
    /// It knows where the coordinator is, or was.
    Hosted {
        /// The number of the agent that says so.
        by: u64,
        /// Where; the address that is said may be one that the listener cannot reach.
        at: SocketAddr,
        /// Whether the one who says so hosts it: then the address it was heard from is better.
        by_host: bool,
    },
}

/// A datagram.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Datagram {
    /// The version of this format.
    ragent: u32,
    /// The job it is about.
    pub job: JobDigest,
    /// What is said about it.
    pub saying: Saying,
}

const VERSION: u32 = 1;

impl Datagram {
    /// A datagram of this version.
    pub fn new(job: JobDigest, saying: Saying) -> Self {
        Self { ragent: VERSION, job, saying }
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a datagram has no map with odd keys")
    }

    /// What `bytes` say, if they are a datagram of this version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
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

    /// What is encoded is decoded, fits, and does not show the job's name.
    #[test]
    fn round_trip() {
        let by = Candidate { rank: u32::MAX, number: u64::MAX };
        let at = "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535".parse().unwrap();
        for saying in [
            Saying::Looking { by, may_host: false, lowest: Some(by) },
            Saying::Hosted { by: u64::MAX, at, by_host: true },
        ] {
            let datagram = Datagram::new(job("secret-project"), saying);
            let bytes = datagram.encode();
            assert!(bytes.len() <= limits::MAX_DATAGRAM);
            assert!(!String::from_utf8_lossy(&bytes).contains("secret"));
            assert_eq!(Datagram::decode(&bytes), Some(datagram));
        }
        assert_ne!(job("a"), job("b"));
    }

    /// What is no datagram of ours is none.
    #[test]
    fn strangers_are_not_heard() {
        let at = "1.2.3.4:5".parse().unwrap();
        let saying = Saying::Hosted { by: 1, at, by_host: false };
        let bytes = Datagram::new(job("a"), saying).encode();
        for cut in 0..bytes.len() {
            assert_eq!(Datagram::decode(&bytes[..cut]), None);
        }
        let newer = String::from_utf8(bytes).unwrap().replacen(":1,", ":2,", 1);
        assert_eq!(Datagram::decode(newer.as_bytes()), None);
        assert_eq!(Datagram::decode(&[b'{'; 2000]), None);
    }
}
