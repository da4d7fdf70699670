//! The events of a page, on their way to an agent that relays them.

use super::{NotHere, required, text};
use crate::{
    Malformed, limits,
    v1::{self, page_reply},
};

/// A part of the answer to a request for the events of the page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PageAnswer {
    /// The answering agent does not host the coordinator.
    NotHere(NotHere),
    /// Server-sent events, each of them complete.
    Events(String),
}

impl From<PageAnswer> for v1::PageReply {
    fn from(answer: PageAnswer) -> Self {
        use page_reply::Answer;
        let answer = match answer {
            PageAnswer::NotHere(not_here) => Answer::NotHere(not_here.into()),
            PageAnswer::Events(events) => Answer::Part(v1::PageEvents { events }),
        };
        Self { answer: Some(answer) }
    }
}

impl TryFrom<v1::PageReply> for PageAnswer {
    type Error = Malformed;

    fn try_from(reply: v1::PageReply) -> Result<Self, Malformed> {
        use page_reply::Answer;
        Ok(match required(reply.answer, "answer")? {
            Answer::NotHere(not_here) => Self::NotHere(not_here.try_into()?),
            Answer::Part(part) => {
                Self::Events(text(part.events, "page.events", limits::MAX_PAGE_PART)?)
            }
        })
    }
}
