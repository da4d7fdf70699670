//! Encodes the datagrams of searching agents: one small JSON object each.
//!
//! With a secret, a code (HMAC-SHA256) of 16 bytes follows the object. It covers the whole object, and is checked before the object is
//! parsed. The job's name is in a datagram only as a digest, which depends on the secret, so that listeners learn no names. The rest are
//! numbers and an address.

use std::net::SocketAddr;

use hmac::{Hmac, Mac};
use ragent_base::secret::{Credentials, SearchKey};
use ragent_coordinator::pages::identity::Candidate;
use ragent_rendezvous::ids::RunId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::endpoint::limits;

/// The content of a datagram. The address of the agent is the source of the datagram.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Announcement {
    /// The agent, which may be a candidate.
    pub by: Candidate,
    /// True if it may become the host.
    pub may_host: bool,
    /// True if it searches. Otherwise it is in a job.
    pub searches: bool,
    /// Its port, which answers over TCP.
    pub port: u16,
    /// The address of the host with which it is registered; `None` if it hosts itself, or searches.
    pub home: Option<SocketAddr>,
}

/// A datagram.
#[derive(Debug, Deserialize, Serialize)]
struct Datagram {
    #[serde(flatten)]
    header: Header,
    #[serde(flatten)]
    announcement: Announcement,
}

/// The part that all versions have.
#[derive(Debug, Deserialize, Serialize)]
struct Header {
    /// The version of this format.
    ragent: u32,
    /// The digest of the job's name.
    job: String,
}

/// The version of the format. Version 2 is that of ragent 0.3.
const VERSION: u32 = 3;

/// The length of a code.
const CODE_LEN: usize = 16;

/// The line that precedes the object in version 2, if there is a secret, begins with this.
const EARLIER_PREFIX: &[u8] = b"ragent-search ";

/// Creates and checks the datagrams of one job.
#[derive(Debug)]
pub(crate) struct Seal {
    run_id: RunId,
    credentials: Credentials,
}

/// The content of a datagram that was received.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Opened {
    /// An agent of the job has sent it.
    Announcement(Announcement),
    /// An agent of another job has sent it, or one with another secret.
    OtherJob,
    /// An agent of the job with another version of the format has sent it.
    OtherVersion,
    /// Anything else.
    Foreign,
}

impl Seal {
    /// Creates the seal of the job `run_id`.
    pub(crate) fn new(run_id: RunId, credentials: Credentials) -> Self {
        Self { run_id, credentials }
    }

    /// Returns the datagrams with an announcement: one for each of the newest secrets, because a receiver may have only one of them.
    pub(crate) fn close(&self, announcement: &Announcement) -> Vec<Vec<u8>> {
        let close_with = |key: &Option<SearchKey>| {
            let header = Header { ragent: VERSION, job: self.job(key.as_ref()) };
            let datagram = Datagram { header, announcement: *announcement };
            let mut bytes = serde_json::to_vec(&datagram).unwrap_or_default();
            if let Some(key) = key {
                let code = code(key, &[&bytes]).finalize().into_bytes();
                bytes.extend_from_slice(&code[..CODE_LEN]);
            }
            bytes
        };
        self.keys().iter().take(limits::SEARCH_SECRETS).map(close_with).collect()
    }

    /// Checks and decodes a datagram.
    pub(crate) fn open(&self, bytes: &[u8]) -> Opened {
        if bytes.len() > limits::MAX_DATAGRAM {
            return Opened::Foreign;
        }
        let keys = self.keys();
        let open_with = |key: &Option<SearchKey>| {
            let content = match key {
                Some(key) => authenticated(key, bytes)?,
                None => bytes,
            };
            let datagram: Datagram = serde_json::from_slice(content).ok()?;
            let Header { ragent, job } = datagram.header;
            let is_own = ragent == VERSION && job == self.job(key.as_ref());
            is_own.then_some(datagram.announcement)
        };
        if let Some(announcement) = keys.iter().find_map(open_with) {
            return Opened::Announcement(announcement);
        }
        let Some(Header { ragent, job }) = header(bytes) else { return Opened::Foreign };
        let is_own_job = keys.iter().any(|key| job == self.job(key.as_ref()));
        match (ragent == VERSION, is_own_job) {
            (true, false) => Opened::OtherJob,
            (false, true) => Opened::OtherVersion,
            (true, true) | (false, false) => Opened::Foreign,
        }
    }

    /// Returns the keys of the secrets, or that there is no secret.
    fn keys(&self) -> Vec<Option<SearchKey>> {
        let keys = self.credentials.search_keys();
        if keys.is_empty() { vec![None] } else { keys.into_iter().map(Some).collect() }
    }

    /// Returns the digest of the job's name.
    fn job(&self, key: Option<&SearchKey>) -> String {
        let name = self.run_id.as_str();
        let digest: [u8; 32] = match key {
            Some(key) => code(key, &[b"job ", name.as_bytes()]).finalize().into_bytes().into(),
            None => Sha256::new().chain_update("ragent job ").chain_update(name).finalize().into(),
        };
        digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns the object of a datagram if its code is valid.
fn authenticated<'a>(key: &SearchKey, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (content, theirs) = bytes.split_last_chunk::<CODE_LEN>()?;
    code(key, &[content]).verify_truncated_left(theirs).ok().map(|()| content)
}

/// Returns the header of a datagram of any version, which is not authenticated.
fn header(bytes: &[u8]) -> Option<Header> {
    let object = match bytes.strip_prefix(EARLIER_PREFIX) {
        Some(rest) => rest.splitn(2, |byte| *byte == b'\n').nth(1)?,
        None => bytes,
    };
    // A code may follow the object.
    serde_json::Deserializer::from_slice(object).into_iter().next()?.ok()
}

fn code(key: &SearchKey, parts: &[&[u8]]) -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(&*key.key).expect("a key may have any length");
    parts.iter().fold(mac, |mac, part| mac.chain_update(part))
}

#[cfg(test)]
mod tests {
    use ragent_base::secret::{Origin, Secret, Unsecured};

    use super::*;

    fn sealed(characters: &[&str]) -> Seal {
        let secret = |character: &&str| Secret::new(&character.repeat(43)).unwrap();
        let secrets = characters.iter().map(secret).collect();
        Seal::new(RunId::new("run7"), Credentials::new(secrets, Origin::Stdin))
    }

    fn open() -> Seal {
        Seal::new(RunId::new("run7"), Credentials::unsecured(Unsecured::Chosen))
    }

    fn announcement() -> Announcement {
        let by = Candidate { rank: u32::MAX, number: u64::MAX };
        let home = "[fd00:1111:2222:3333:4444:5555:6666:7777]:65535".parse().unwrap();
        Announcement { by, may_host: false, searches: false, port: u16::MAX, home: Some(home) }
    }

    fn only(mut datagrams: Vec<Vec<u8>>) -> Vec<u8> {
        assert_eq!(datagrams.len(), 1);
        let datagram = datagrams.remove(0);
        assert!(datagram.len() <= limits::MAX_DATAGRAM);
        assert!(!String::from_utf8_lossy(&datagram).contains("run7"));
        datagram
    }

    /// Agents with the same secret, or without any, receive each other's announcements. For all others it is another job.
    #[test]
    fn datagrams_need_the_secret() {
        let (a, b) = (sealed(&["a"]), sealed(&["b"]));
        let received = Opened::Announcement(announcement());
        let (of_a, plain) = (only(a.close(&announcement())), only(open().close(&announcement())));
        assert_eq!((a.open(&of_a), open().open(&plain)), (received, received));
        assert_eq!((b.open(&of_a), open().open(&of_a)), (Opened::OtherJob, Opened::OtherJob));
        assert_eq!(a.open(&plain), Opened::OtherJob);
        let other = Seal::new(RunId::new("run8"), a.credentials.clone());
        assert_eq!(other.open(&of_a), Opened::OtherJob);
        assert_eq!(open().open(b"GET / HTTP/1.1"), Opened::Foreign);
        assert_eq!(open().open(&[b'{'; 2000]), Opened::Foreign);
    }

    /// While a secret is replaced, agents with the old one, the new one, or both find each other.
    #[test]
    fn secrets_are_replaced() {
        let (old, both, new) = (sealed(&["a"]), sealed(&["b", "a"]), sealed(&["b"]));
        let received = |seal: &Seal, from: &Seal| {
            let datagrams = from.close(&announcement());
            let is_own = |one: &&Vec<u8>| seal.open(one) == Opened::Announcement(announcement());
            datagrams.iter().filter(is_own).count()
        };
        assert_eq!((received(&old, &both), received(&new, &both)), (1, 1));
        assert_eq!((received(&both, &old), received(&both, &new)), (1, 1));
        assert_eq!(received(&new, &old), 0);
        let many: Vec<String> = ('a'..='p').map(String::from).collect();
        let many = sealed(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(many.close(&announcement()).len(), limits::SEARCH_SECRETS);
    }

    /// A datagram has no effect if any byte was changed or removed.
    #[test]
    fn changed_datagrams_are_refused() {
        let a = sealed(&["a"]);
        let datagram = only(a.close(&announcement()));
        for at in 0..datagram.len() {
            // The second change swaps upper and lower case.
            for change in [1, 0x20] {
                let mut changed = datagram.clone();
                changed[at] ^= change;
                assert!(!matches!(a.open(&changed), Opened::Announcement(_)), "byte {at}");
            }
            assert!(!matches!(a.open(&datagram[..at]), Opened::Announcement(_)), "length {at}");
        }
    }

    /// An agent of the same job is recognised although it has another version, with and without a secret. Version 2 is that of ragent 0.3.
    #[test]
    fn other_versions_are_recognised() {
        for (seal, prefix) in [(open(), ""), (sealed(&["a"]), "ragent-search 7f3a90c2 5e0c\n")] {
            let job = seal.job(seal.keys()[0].as_ref());
            let earlier =
                |job: &str| format!(r#"{prefix}{{"ragent":2,"job":"{job}","message":{{}}}}"#);
            assert_eq!(seal.open(earlier(&job).as_bytes()), Opened::OtherVersion);
            assert_eq!(seal.open(earlier("another").as_bytes()), Opened::Foreign);
            let later = format!(r#"{{"ragent":4,"job":"{job}"}}0123456789abcdef"#);
            assert_eq!(seal.open(later.as_bytes()), Opened::OtherVersion);
        }
    }
}
