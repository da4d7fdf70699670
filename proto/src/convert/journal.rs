//! Requests for the journal of a job, and the answers.

use ragent_rendezvous::{event::EventId, ids::Term};

use super::{NotHere, required, text};
use crate::{
    Malformed, limits,
    v1::{self, journal_reply},
};

/// A request for the journal of a job.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct JournalRequest {
    /// Only events after this one are requested; all if `None`.
    pub after: Option<EventId>,
    /// True if later events are requested, too, until the coordinator ends.
    pub follow: bool,
}

/// A part of the answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum JournalAnswer {
    /// The answering agent does not host the coordinator.
    NotHere(NotHere),
    /// Events as JSON lines.
    Lines(String),
}

impl From<JournalRequest> for v1::JournalRequest {
    fn from(JournalRequest { after, follow }: JournalRequest) -> Self {
        let after = after.map(|id| v1::EventId { term: id.term.0, number: id.number });
        Self { after, follow }
    }
}

impl From<v1::JournalRequest> for JournalRequest {
    fn from(request: v1::JournalRequest) -> Self {
        let id = |id: v1::EventId| EventId { term: Term(id.term), number: id.number };
        Self { after: request.after.map(id), follow: request.follow }
    }
}

impl From<JournalAnswer> for v1::JournalReply {
    fn from(answer: JournalAnswer) -> Self {
        use journal_reply::Answer;
        let answer = match answer {
            JournalAnswer::NotHere(not_here) => Answer::NotHere(not_here.into()),
            JournalAnswer::Lines(lines) => Answer::Part(v1::JournalPart { lines }),
        };
        Self { answer: Some(answer) }
    }
}

impl TryFrom<v1::JournalReply> for JournalAnswer {
    type Error = Malformed;

    fn try_from(reply: v1::JournalReply) -> Result<Self, Malformed> {
        use journal_reply::Answer;
        Ok(match required(reply.answer, "answer")? {
            Answer::NotHere(not_here) => Self::NotHere(not_here.try_into()?),
            Answer::Part(part) => {
                Self::Lines(text(part.lines, "journal.lines", limits::MAX_JOURNAL_PART)?)
            }
        })
    }
}
