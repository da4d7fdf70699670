//! Authenticates datagrams with the secret.
//!
//! With a secret, a line comes before the JSON object. It has the public name of the secret and a code (HMAC-SHA256):
//!
//! ```text
//! ragent-search 7f3a90c2 5e0c…32 hexadecimal digits…\n{"ragent":2,…}
//! ```
//!
//! The code covers the name and the JSON object, and is checked before the object is parsed. With a secret, the digest of the job's name
//! depends on the secret, too, so that names cannot be guessed from it.

use hmac::{Hmac, Mac};
use ragent_base::secret::{Credentials, SearchKey, SecretId};
use ragent_rendezvous::ids::RunId;
use sha2::Sha256;

use super::datagram::{Datagram, JobDigest, SearchMessage};
use crate::endpoint::limits;

/// Creates and checks the datagrams of one job.
#[derive(Debug)]
pub(super) struct Seal {
    run_id: RunId,
    credentials: Credentials,
}

/// The content of a datagram that was received.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Opened {
    /// A message of the job, from an agent with the same secret.
    Message(SearchMessage),
    /// A datagram from an agent with this secret, which this agent does not have.
    OtherSecret(SecretId),
    /// A datagram from an agent of the job without a secret, although this agent has one.
    NoSecret,
    /// A datagram of another job or program, or a forged one.
    Foreign,
}

const PREFIX: &str = "ragent-search ";
const ID_LEN: usize = 8;
const CODE_LEN: usize = 16;
/// The prefix, the name, a space, the code in hexadecimal digits, and the end of the line.
const HEADER_LEN: usize = PREFIX.len() + ID_LEN + 1 + 2 * CODE_LEN + 1;

impl Seal {
    pub(super) fn new(run_id: RunId, credentials: Credentials) -> Self {
        Self { run_id, credentials }
    }

    /// Returns the datagrams with `message`: one for each of the newest secrets, because a receiver may have only one of them.
    pub(super) fn close(&self, message: &SearchMessage) -> Vec<Vec<u8>> {
        let keys = self.credentials.search_keys();
        if keys.is_empty() {
            return vec![Datagram::new(JobDigest::of(&self.run_id), message.clone()).encode()];
        }
        keys.iter().take(limits::SEARCH_SECRETS).map(|key| self.close_with(key, message)).collect()
    }

    fn close_with(&self, key: &SearchKey, message: &SearchMessage) -> Vec<u8> {
        let content = Datagram::new(self.job(key), message.clone()).encode();
        let id = key.id.to_string();
        let code = code(key, &[id.as_bytes(), &content]).finalize().into_bytes();
        let code: String = code[..CODE_LEN].iter().map(|byte| format!("{byte:02x}")).collect();
        [format!("{PREFIX}{id} {code}\n").into_bytes(), content].concat()
    }

    /// Checks and decodes a datagram.
    pub(super) fn open(&self, bytes: &[u8]) -> Opened {
        let keys = self.credentials.search_keys();
        if self.credentials.has_certificate() && bytes.starts_with(PREFIX.as_bytes()) {
            return Opened::Foreign;
        }
        let Some(header) = bytes.strip_prefix(PREFIX.as_bytes()) else {
            let message = decode(bytes, &JobDigest::of(&self.run_id));
            return match message {
                Some(_) if !keys.is_empty() => Opened::NoSecret,
                Some(message) => Opened::Message(message),
                None => Opened::Foreign,
            };
        };
        if bytes.len() > limits::MAX_DATAGRAM || bytes.len() < HEADER_LEN {
            return Opened::Foreign;
        }
        let (id, rest) = header.split_at(ID_LEN);
        let (code_text, content) = rest.split_at(HEADER_LEN - PREFIX.len() - ID_LEN);
        let Some(named) = str::from_utf8(id).ok().and_then(SecretId::parse) else {
            return Opened::Foreign;
        };
        let Some(key) = keys.iter().find(|key| key.id == named) else {
            return Opened::OtherSecret(named);
        };
        let Some(theirs) = parse_code(code_text) else { return Opened::Foreign };
        let ours = code(key, &[id, content]);
        if ours.verify_truncated_left(&theirs).is_err() {
            return Opened::Foreign;
        }
        decode(content, &self.job(key)).map_or(Opened::Foreign, Opened::Message)
    }

    fn job(&self, key: &SearchKey) -> JobDigest {
        let digest = code(key, &[b"job ", self.run_id.as_str().as_bytes()]).finalize();
        JobDigest::of_bytes(&digest.into_bytes())
    }
}

fn decode(content: &[u8], job: &JobDigest) -> Option<SearchMessage> {
    let Datagram { job: theirs, message, .. } = Datagram::decode(content)?;
    (theirs == *job).then_some(message)
}

fn code(key: &SearchKey, parts: &[&[u8]]) -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(&*key.key).expect("a key may have any length");
    parts.iter().fold(mac, |mac, part| mac.chain_update(part))
}

/// Parses ` CODE\n`.
fn parse_code(text: &[u8]) -> Option<[u8; CODE_LEN]> {
    let digits = text.strip_prefix(b" ")?.strip_suffix(b"\n")?;
    // Only one form is accepted, so that no changed datagram is valid.
    let is_digit = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
    let digits = str::from_utf8(digits).ok().filter(|text| text.bytes().all(is_digit))?;
    let code = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2 * CODE_LEN)?;
    Some(code.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use ragent_base::secret::{Origin, Secret, Unsecured};

    use super::*;
    use crate::endpoint::search::datagram::Candidate;

    fn secret(character: &str) -> Secret {
        Secret::new(&character.repeat(43)).unwrap()
    }

    fn sealed(characters: &[&str]) -> Seal {
        let secrets = characters.iter().map(|character| secret(character)).collect();
        Seal::new(RunId::new("run7"), Credentials::new(secrets, Origin::Stdin))
    }

    fn open() -> Seal {
        let credentials = Credentials::unsecured(Unsecured::Chosen);
        Seal::new(RunId::new("run7"), credentials)
    }

    fn message() -> SearchMessage {
        let by = Candidate { rank: u32::MAX, number: u64::MAX };
        SearchMessage::Looking { by, may_host: false, lowest: Some(by) }
    }

    fn only(mut datagrams: Vec<Vec<u8>>) -> Vec<u8> {
        assert_eq!(datagrams.len(), 1);
        let datagram = datagrams.remove(0);
        assert!(datagram.len() <= limits::MAX_DATAGRAM);
        datagram
    }

    /// Agents with the same secret, or without any, receive each other's messages. Others learn the reason if they do not.
    #[test]
    fn datagrams_need_the_secret() {
        let (a, b) = (sealed(&["a"]), sealed(&["b"]));
        let received = Opened::Message(message());
        let (of_a, plain) = (only(a.close(&message())), only(open().close(&message())));
        assert_eq!(a.open(&of_a), received);
        assert_eq!(open().open(&plain), received);
        let id = secret("a").id();
        assert_eq!(b.open(&of_a), Opened::OtherSecret(id));
        assert_eq!(open().open(&of_a), Opened::OtherSecret(id));
        assert_eq!(a.open(&plain), Opened::NoSecret);
        let other = Seal::new(RunId::new("run8"), a.credentials.clone());
        assert_eq!(other.open(&of_a), Opened::Foreign);
        assert_eq!(other.open(&plain), Opened::Foreign);
        assert!(!String::from_utf8_lossy(&of_a).contains("run7"));
    }

    /// While a secret is replaced, agents with the old one, the new one, or both find each other.
    #[test]
    fn secrets_are_replaced() {
        let (old, both, new) = (sealed(&["a"]), sealed(&["b", "a"]), sealed(&["b"]));
        let received = |seal: &Seal, from: &Seal| {
            let datagrams = from.close(&message());
            datagrams.iter().filter(|one| seal.open(one) == Opened::Message(message())).count()
        };
        assert_eq!((received(&old, &both), received(&new, &both)), (1, 1));
        assert_eq!((received(&both, &old), received(&both, &new)), (1, 1));
        assert_eq!(received(&new, &old), 0);
        let many: Vec<String> = ('a'..='p').map(String::from).collect();
        let many = sealed(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(many.close(&message()).len(), limits::SEARCH_SECRETS);
    }

    /// A datagram has no effect if any byte was changed or removed.
    #[test]
    fn changed_datagrams_are_refused() {
        let a = sealed(&["a"]);
        let datagram = only(a.close(&message()));
        for at in 0..datagram.len() {
            // The second change swaps upper and lower case.
            for change in [1, 0x20] {
                let mut changed = datagram.clone();
                changed[at] ^= change;
                assert!(!matches!(a.open(&changed), Opened::Message(_)), "byte {at}");
            }
            assert!(!matches!(a.open(&datagram[..at]), Opened::Message(_)), "length {at}");
        }
        assert_eq!(a.open(&[&datagram[..], &[b' '; 2000]].concat()), Opened::Foreign);
    }
}
