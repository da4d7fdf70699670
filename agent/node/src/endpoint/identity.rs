//! Identifies the program that answers at an address: ragent, another one, or none.

use std::net::SocketAddr;

use ragent_base::{
    net::{
        authentication,
        http_client::{self, Exchange, ExchangeEnd, HttpPage},
    },
    secret::{Credentials, Mismatch},
};
use ragent_coordinator::pages::identity::{
    Candidate, IDENTITY_PATH, Identity, SearchStage, SearchStanding,
};
use ragent_rendezvous::ids::RunId;
use tokio::task::JoinSet;
use tracing::warn;

use crate::endpoint::limits;

/// The kind of answer at an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum IdentityAnswer {
    /// ragent answers.
    Ragent,
    /// ragent answers, but with another secret, or a certificate is not accepted.
    Mismatch(Mismatch),
    /// Connections are accepted, but nothing is sent.
    Silent,
    /// A connection is accepted and closed, and nothing is sent. An agent that is killed after it has read the request does
    /// this, and so do other programs.
    Closed,
    /// Another program answers, as described.
    Other(String),
    /// No program answers.
    None(String),
}

/// Asks all addresses at once, and returns the answers in the order of the addresses.
pub(super) async fn ask_all(
    addresses: &[SocketAddr],
    credentials: &Credentials,
) -> Vec<(SocketAddr, IdentityAnswer)> {
    let ask_one = |&address| {
        let credentials = credentials.clone();
        async move { (address, ask(address, Some(&credentials)).await) }
    };
    let asked: JoinSet<_> = addresses.iter().map(ask_one).collect();
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(address, _)| *address);
    answers
}

/// Returns a description of the program at `address`, if it answers and is not ragent.
pub async fn describe_other_program(address: SocketAddr) -> Option<String> {
    match ask(address, None).await {
        IdentityAnswer::Other(what) => Some(what),
        IdentityAnswer::Closed => Some(looks_like(&[])),
        // A paused coordinator is silent, too.
        IdentityAnswer::Ragent
        | IdentityAnswer::Mismatch(_)
        | IdentityAnswer::Silent
        | IdentityAnswer::None(_) => None,
    }
}

/// Returns the part of the agent at `address` in the job `run_id`. With `credentials`, that agent must authenticate itself.
///
/// # Errors
///
/// Returns the reason why it is not known.
pub(super) async fn standing_at(
    address: SocketAddr,
    run_id: &RunId,
    credentials: &Credentials,
) -> Result<SearchStanding, String> {
    let (len_max, limit) = (limits::MAX_IDENTITY_LEN, limits::IDENTIFY_TIMEOUT);
    let path = IDENTITY_PATH;
    let exchange = http_client::get_as_member(address, credentials, path, len_max, limit).await;
    match (identity(&exchange.received), exchange.end) {
        (Some(Identity { run_id: theirs, .. }), _) if theirs != run_id.as_str() => {
            Err(format!("{address} serves another job, {}", theirs.escape_default()))
        }
        // An agent of the job that shows no part has just begun it.
        (Some(Identity { search, .. }), _) => Ok(search.unwrap_or(SearchStanding {
            by: Candidate { rank: u32::MAX, number: u64::MAX },
            stage: SearchStage::Member,
        })),
        (None, ExchangeEnd::Failed(error)) => Err(format!("{address}: {error}")),
        (None, ExchangeEnd::TimedOut) => Err(format!("{address} did not answer in time")),
        (None, ExchangeEnd::Complete) => {
            Err(format!("{address}: {}", looks_like(&exchange.received)))
        }
    }
}

/// Asks one address, and compares its credentials with `credentials` if given. If the secrets differ, asks again: one of the two may have
/// been replaced a moment ago.
pub(super) async fn ask(address: SocketAddr, credentials: Option<&Credentials>) -> IdentityAnswer {
    let answer = ask_once(address, credentials).await;
    match (&answer, credentials) {
        (IdentityAnswer::Mismatch(mismatch), Some(own)) if mismatch.is_of_secrets() => {
            authentication::await_newer_secrets(own).await;
            ask_once(address, credentials).await
        }
        _ => answer,
    }
}

async fn ask_once(address: SocketAddr, credentials: Option<&Credentials>) -> IdentityAnswer {
    let (len_max, limit) = (limits::MAX_IDENTITY_LEN, limits::IDENTIFY_TIMEOUT);
    let exchange = http_client::get(address, IDENTITY_PATH, len_max, limit).await;
    let ours = env!("CARGO_PKG_VERSION");
    if let Some(Identity { ragent: theirs, auth, .. }) = identity(&exchange.received) {
        if theirs != ours {
            warn!(theirs, ours, "the coordinator runs another version of ragent");
        }
        if let Some(own) = credentials
            && let Err(mismatch) =
                authentication::compare(address, &address.to_string(), &auth, own).await
        {
            return IdentityAnswer::Mismatch(mismatch);
        }
    }
    answer_of(exchange)
}

fn answer_of(Exchange { received, end }: Exchange) -> IdentityAnswer {
    match (identity(&received), end) {
        (Some(_), _) => IdentityAnswer::Ragent,
        // An agent that is just ending counts as absent. A process that sent anything else counts as present, even if a
        // reset follows. For example, an sshd that receives an HTTP request sends a reset.
        (None, ExchangeEnd::Failed(error)) if may_be_cut(&received) => {
            IdentityAnswer::None(error.to_string())
        }
        (None, ExchangeEnd::TimedOut) if received.is_empty() => IdentityAnswer::Silent,
        (None, ExchangeEnd::Complete) if received.is_empty() => IdentityAnswer::Closed,
        (None, ExchangeEnd::Complete | ExchangeEnd::Failed(_) | ExchangeEnd::TimedOut) => {
            IdentityAnswer::Other(looks_like(&received))
        }
    }
}

/// Returns true if `received` may be the start of an answer with our identity.
fn may_be_cut(received: &[u8]) -> bool {
    received.iter().zip(b"HTTP/1.1 200").all(|(one, other)| one == other)
}

/// Returns the identity in an HTTP answer, if there is one.
pub fn identity(received: &[u8]) -> Option<Identity> {
    let page = HttpPage::parse(received).filter(|page| page.status == 200)?;
    serde_json::from_str(page.body).ok()
}

/// Describes an answer that is not ragent's.
pub fn looks_like(received: &[u8]) -> String {
    let line = received.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(&line[..line.len().min(60)]);
    let line = line.trim();
    if line.is_empty() {
        "it accepts connections but sends nothing (as a TCPStore of torchrun does)".to_owned()
    } else {
        format!("it answers `{}`", line.escape_default())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    const OURS: &[u8] =
        b"HTTP/1.1 200 OK\r\na: b\r\n\r\n{\"ragent\":\"1\",\"protocol\":1,\"run_id\":\"x\"}";

    /// Only an answer with our identity counts as ragent's.
    #[test]
    fn identity_is_recognised() {
        assert_eq!(identity(OURS).unwrap().run_id, "x");
        assert_eq!(identity(b"HTTP/1.1 200 OK\r\n\r\n<html>"), None);
        assert_eq!(identity(b"HTTP/1.1 404 Not Found\r\n\r\n{}"), None);
        assert_eq!(identity(b"SSH-2.0-OpenSSH\r\n"), None);
        assert_eq!(identity(b""), None);
    }

    /// A connection that breaks at the start of ragent's answer counts as no answer. Any other
    /// bytes identify another program, however the exchange ends.
    #[test]
    fn exchanges_are_judged() {
        let answer = |received: &[u8], end| answer_of(Exchange { received: received.into(), end });
        let failed = || ExchangeEnd::Failed(io::Error::other("reset"));
        let other = |received: &[u8]| IdentityAnswer::Other(looks_like(received));
        let truncated: [&[u8]; 3] = [b"", b"HTTP/1.1", b"HTTP/1.1 200 OK\r\n\r\n{\"rag"];
        for received in truncated {
            assert_eq!(answer(received, failed()), IdentityAnswer::None("reset".to_owned()));
        }
        for received in &truncated[1..] {
            assert_eq!(answer(received, ExchangeEnd::Complete), other(received));
        }
        assert_eq!(answer(b"", ExchangeEnd::Complete), IdentityAnswer::Closed);
        let foreign: [&[u8]; 2] = [b"SSH-2.0-X\r\n", b"HTTP/1.1 404 Not Found\r\n"];
        for received in foreign {
            for end in [failed(), ExchangeEnd::Complete, ExchangeEnd::TimedOut] {
                assert_eq!(answer(received, end), other(received));
            }
        }
        assert_eq!(answer(b"", ExchangeEnd::TimedOut), IdentityAnswer::Silent);
        assert_eq!(answer(b"HTTP/1.1", ExchangeEnd::TimedOut), other(b"HTTP/1.1"));
        for end in [failed(), ExchangeEnd::Complete, ExchangeEnd::TimedOut] {
            assert_eq!(answer(OURS, end), IdentityAnswer::Ragent);
        }
    }

    /// The answer of another program is shown, shortened and without control characters.
    #[test]
    fn other_programs_are_described() {
        assert_eq!(looks_like(b"SSH-2.0-X\r\nmore"), "it answers `SSH-2.0-X`");
        assert!(looks_like(b"").contains("sends nothing"));
        assert!(looks_like(&[0x1b; 500]).len() < 500);
    }
}
