//! Converts messages between voters.
//!
//! They are sent over plain connections, so this module also encodes and decodes their bytes.

use std::time::Duration;

use prost::Message;
use ragent_election::election::message::{
    Answer, Knowledge, Lists, Replica, Request, Version, VoterMessage, VoterSlot,
};
use ragent_rendezvous::{
    ids::{JobUid, NodeId, RunId, Term, VoterAddress, VoterId},
    known_job::KnownJob,
    limits::VOTERS_MAX,
    message::{ENDED_SHOWN_MAX, PROTOCOL_VERSION},
};

use super::{list, millis, nonempty, number, required};
use crate::{
    Malformed,
    v1::{self, voter_message},
};

/// The fields that are the same in all messages between the voters of a job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ElectionHeader {
    /// The job.
    pub run_id: RunId,
    /// The digest of the endpoints that the user gave; `None` if the sender is none of them, and may know others.
    pub listed: Option<[u8; 32]>,
    /// The lease of the voters. All leases of the election are scaled by it.
    pub voter_lease: Duration,
}

/// A message of another voter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FromVoter {
    /// A request.
    Request(VoterMessage<Request>),
    /// The answer to a request.
    Answer(VoterMessage<Answer>),
}

/// Encodes a message to another voter.
pub fn encode(header: &ElectionHeader, message: FromVoter) -> Vec<u8> {
    let encoded = match message {
        FromVoter::Request(message) => {
            let (message, request) = with_body(message, ());
            wire(header, message, request.into())
        }
        FromVoter::Answer(message) => {
            let (message, answer) = with_body(message, ());
            wire(header, message, voter_message::Body::Answer(answer.into()))
        }
    };
    encoded.encode_to_vec()
}

/// Decodes a message of another voter.
///
/// # Errors
///
/// Returns [`Malformed::ProtocolVersion`] if the other voter has another protocol version, and
/// another error if the message is not valid.
pub fn decode(bytes: &[u8]) -> Result<(ElectionHeader, FromVoter), Malformed> {
    let message = v1::VoterMessage::decode(bytes).map_err(|_| Malformed::Encoding)?;
    if message.protocol_version != PROTOCOL_VERSION {
        let theirs = message.protocol_version;
        return Err(Malformed::ProtocolVersion { ours: PROTOCOL_VERSION, theirs });
    }
    let header = ElectionHeader {
        run_id: RunId::new(nonempty(message.run_id, "voter.run_id")?),
        listed: match message.listed.len() {
            0 => None,
            _ => {
                Some(message.listed.try_into().map_err(|_| Malformed::OutOfRange("voter.listed"))?)
            }
        },
        voter_lease: millis(message.voter_lease_ms.into(), "voter.voter_lease_ms")?,
    };
    let version = required(message.version, "voter.version")?.try_into()?;
    let message_of = VoterMessage {
        voter: VoterId(message.voter),
        address: address(message.address, "voter.address")?,
        knows: Knowledge { has_round: message.has_round, version },
        process: NodeId::new(nonempty(message.process, "voter.process")?),
        has_just_started: message.has_just_started,
        highest: term(message.highest, "voter.highest")?,
        job: message.job.map(TryInto::try_into).transpose()?,
        ended: ended_jobs(message.ended, "voter.ended")?,
        sequence: message.sequence,
        body: (),
    };
    let message = match Body::try_from(required(message.body, "voter.body")?)? {
        Body::Request(request) => FromVoter::Request(with_body(message_of, request).0),
        Body::Answer(answer) => FromVoter::Answer(with_body(message_of, answer).0),
    };
    Ok((header, message))
}

enum Body {
    Request(Request),
    Answer(Answer),
}

/// Replaces the body of a message. Returns the old one, too.
fn with_body<Old, New>(message: VoterMessage<Old>, body: New) -> (VoterMessage<New>, Old) {
    let VoterMessage {
        voter,
        address,
        process,
        has_just_started,
        highest,
        knows,
        job,
        ended,
        sequence,
        body: old,
    } = message;
    let message = VoterMessage {
        voter,
        address,
        process,
        has_just_started,
        highest,
        knows,
        job,
        ended,
        sequence,
        body,
    };
    (message, old)
}

fn wire(
    header: &ElectionHeader,
    message: VoterMessage<()>,
    body: voter_message::Body,
) -> v1::VoterMessage {
    v1::VoterMessage {
        protocol_version: PROTOCOL_VERSION,
        run_id: header.run_id.to_string(),
        listed: header.listed.map(|digest| digest.to_vec()).unwrap_or_default(),
        voter_lease_ms: u32::try_from(header.voter_lease.as_millis()).unwrap_or(u32::MAX),
        voter: message.voter.0,
        address: message.address.to_string(),
        has_round: message.knows.has_round,
        version: Some(message.knows.version.into()),
        process: message.process.to_string(),
        has_just_started: message.has_just_started,
        highest: message.highest.0,
        job: message.job.map(Into::into),
        ended: message.ended.iter().map(ToString::to_string).collect(),
        sequence: message.sequence,
        body: Some(body),
    }
}

/// Converts the ended jobs in a message.
pub(super) fn ended_jobs(uids: Vec<String>, field: &'static str) -> Result<Vec<JobUid>, Malformed> {
    list(uids, field, ENDED_SHOWN_MAX, |uid| nonempty(uid, field).map(JobUid::new))
}

/// The first protocol version in which messages between voters name the sender's unfinished job.
const FIRST_TO_NAME_JOBS: u32 = 5;

/// Returns the run and the job that a message of another protocol version shows. Every version keeps the
/// meaning of the fields that name its sender. If the message does not name the job, the uid consists of the
/// version.
pub fn shown_by_other_version(bytes: &[u8]) -> Option<(RunId, KnownJob)> {
    let message = v1::VoterMessage::decode(bytes).ok()?;
    let theirs = message.protocol_version;
    if theirs == PROTOCOL_VERSION || !message.has_round {
        return None;
    }
    let run_id = RunId::new(nonempty(message.run_id, "voter.run_id").ok()?);
    let address = address(message.address, "voter.address").ok()?;
    let job = match message.job {
        Some(job) => KnownJob::try_from(job).ok()?,
        None if theirs < FIRST_TO_NAME_JOBS => KnownJob {
            uid: JobUid::new(format!("a job of protocol version {theirs}")),
            voters: vec![address],
            leads: None,
        },
        // Its job has ended, or its first round is not known by a majority.
        None => return None,
    };
    Some((run_id, job))
}

fn term(value: u64, field: &'static str) -> Result<Term, Malformed> {
    number(value, field).map(Term)
}

impl From<Request> for voter_message::Body {
    fn from(request: Request) -> Self {
        match request {
            Request::PreVote => Self::PreVote(voter_message::PreVote {}),
            Request::Vote { term } => Self::Vote(voter_message::Vote { term: term.0 }),
            Request::Renew { term, replica, is_copied } => Self::Renew(voter_message::Renew {
                term: term.0,
                replica: Some((*replica).into()),
                is_copied,
            }),
            Request::Release { term } => Self::Release(voter_message::Release { term: term.0 }),
            Request::Leave => Self::Leave(voter_message::Leave {}),
            Request::Hello => Self::Hello(voter_message::Hello {}),
        }
    }
}

impl TryFrom<voter_message::Body> for Body {
    type Error = Malformed;

    fn try_from(body: voter_message::Body) -> Result<Self, Malformed> {
        use voter_message::Body as Wire;
        Ok(Self::Request(match body {
            Wire::PreVote(voter_message::PreVote {}) => Request::PreVote,
            Wire::Vote(vote) => Request::Vote { term: term(vote.term, "vote.term")? },
            Wire::Renew(renew) => Request::Renew {
                term: term(renew.term, "renew.term")?,
                replica: Box::new(required(renew.replica, "renew.replica")?.try_into()?),
                is_copied: renew.is_copied,
            },
            Wire::Release(release) => {
                Request::Release { term: term(release.term, "release.term")? }
            }
            Wire::Leave(voter_message::Leave {}) => Request::Leave,
            Wire::Hello(voter_message::Hello {}) => Request::Hello,
            Wire::Answer(answer) => return Ok(Self::Answer(answer.try_into()?)),
        }))
    }
}

message!(Answer, voter_message::Answer, "answer", {
    is_granted: Same,
    // The time for which workers may run.
    workers_for_ms as workers_for: MillisUp,
    former: Optional(Inner),
    replica: Optional(Boxed(Inner)),
    is_connected: Same,
});

impl From<(Term, NodeId)> for v1::FormerLeader {
    fn from((term, process): (Term, NodeId)) -> Self {
        Self { term: term.0, process: process.to_string() }
    }
}

impl TryFrom<v1::FormerLeader> for (Term, NodeId) {
    type Error = Malformed;

    fn try_from(former: v1::FormerLeader) -> Result<Self, Malformed> {
        let process = NodeId::new(nonempty(former.process, "answer.former")?);
        Ok((term(former.term, "answer.former")?, process))
    }
}

message!(Version, v1::Version, "version", { term: Number, number: Number });

impl From<Replica> for v1::Replica {
    fn from(replica: Replica) -> Self {
        let Replica { version, lists: Lists { before, last }, job_state } = replica;
        let to_wire = |list: Vec<VoterSlot>| list.into_iter().map(Into::into).collect();
        Self {
            version: Some(version.into()),
            job_state: job_state.map(Into::into),
            last: to_wire(last),
            before: before.map(to_wire).unwrap_or_default(),
        }
    }
}

impl TryFrom<v1::Replica> for Replica {
    type Error = Malformed;

    fn try_from(replica: v1::Replica) -> Result<Self, Malformed> {
        Ok(Self {
            version: required(replica.version, "replica.version")?.try_into()?,
            lists: Lists {
                last: slots(replica.last, "replica.last")?,
                before: Some(slots(replica.before, "replica.before")?)
                    .filter(|before| !before.is_empty()),
            },
            job_state: replica.job_state.map(TryInto::try_into).transpose()?,
        })
    }
}

message!(VoterSlot, v1::VoterSlot, "slot", { address: Nonempty, voter: Optional(Same) });

fn slots(slots: Vec<v1::VoterSlot>, field: &'static str) -> Result<Vec<VoterSlot>, Malformed> {
    list(slots, field, VOTERS_MAX, TryInto::try_into)
}

/// Checks the addresses of the voters of a job. There are two lists while they change.
pub(super) fn addresses(
    addresses: Vec<String>,
    field: &'static str,
) -> Result<Vec<VoterAddress>, Malformed> {
    list(addresses, field, 2 * VOTERS_MAX, |text| address(text, field))
}

/// Checks the address of a voter.
pub(super) fn address(text: String, field: &'static str) -> Result<VoterAddress, Malformed> {
    nonempty(text, field).map(VoterAddress::new)
}

#[cfg(test)]
pub(super) mod tests;
