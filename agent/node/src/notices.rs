//! Receives notices on this node from all of their sources: signals, `ragent notice` and `--notice-command`.

mod command;
mod line;
mod socket;

use std::time::Duration;

use ragent_core::agent::NotTaken;
use ragent_options::spec::RequestKind;
use ragent_rendezvous::message::NOTICE_TEXT_MAX;
use tokio::sync::mpsc;

pub use self::{
    command::run_command,
    socket::{Answer, NoticeSocket, Request, ask},
};

/// The most requests that wait for the agent. Sources wait if there are more.
pub const QUEUE: usize = 16;

/// A notice from one of its sources.
#[derive(Debug)]
pub struct NoticeRequest {
    /// What is about to happen, or what is wanted.
    pub kind: RequestKind,
    /// The time that the source gives; `None` if it gives none.
    pub within: Option<Duration>,
    /// The source, for people; at most [`NOTICE_TEXT_MAX`] bytes.
    pub text: String,
    /// The asker, if it waits for an answer.
    pub asker: Option<mpsc::Sender<NoticeAnswer>>,
}

impl NoticeRequest {
    /// Answers this on a node that has no coordinator yet. Returns true if the node leaves.
    pub fn answer_without_job(&self) -> bool {
        let leaves = matches!(self.kind, RequestKind::Leave | RequestKind::End);
        let answer =
            if leaves { NoticeAnswer::Taken } else { NoticeAnswer::NotTaken(NotTaken::NoRound) };
        // An asker that is gone needs no answer.
        let _ = self.asker.as_ref().map(|asker| asker.try_send(answer));
        leaves
    }
}

/// An answer to a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoticeAnswer {
    /// The notice counts.
    Taken,
    /// The notice does not count.
    NotTaken(NotTaken),
    /// All ranks have saved this step.
    Saved(u64),
    /// The round has ended, and not all ranks had saved.
    Over,
}

/// Returns `text` on one line, without control characters, up to the length limit.
pub fn fitted(text: &str) -> String {
    let mut fitted = String::new();
    let shown = text.chars().filter(|c| !c.is_control());
    for c in shown.skip_while(|c| c.is_whitespace()) {
        if fitted.len() + c.len_utf8() > NOTICE_TEXT_MAX {
            break;
        }
        fitted.push(c);
    }
    fitted.truncate(fitted.trim_end().len());
    fitted
}
