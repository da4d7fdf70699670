//! Looks at the workers of a round that makes no progress, when the coordinator asks for it.
//!
//! 1. The request is a level: the coordinator repeats it. The node looks once for each new number and part.
//! 2. The nodes of a large round look at different moments within two seconds, so that their answers do not
//!    arrive at once.
//! 3. The answers are kept until the round ends, and sent again on each new stream.
//! 4. The worker that counts as hung is a level too. Its node kills it.

use std::time::{Duration, Instant};

use ragent_rendezvous::{
    ids::RoundId,
    message::{Admission, Digest, FromNode, Hung, Look, LookPart},
};

use super::{Action, Agent, AgentState, Effect};
use crate::limits;

/// A look at the workers of this node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LookOrder {
    /// The round.
    pub round: RoundId,
    /// The number of the look.
    pub number: u64,
    /// The part of the look.
    pub part: LookPart,
    /// True if the answer may contain lines of Python. They are content, which crosses a network only if it is
    /// encrypted.
    pub shows_lines: bool,
}

/// The newest look of the round.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// True if answers may contain lines of Python.
    shows_lines: bool,
    newest: Option<LookOrder>,
    /// The time at which this node looks; `None` if it has.
    due: Option<Instant>,
    /// The answers, at most one for each part.
    answers: Vec<Digest>,
    /// The worker of the round that counts as hung, if any.
    hung: Option<Hung>,
}

impl Looks {
    /// Returns the state at the beginning of a round.
    pub(super) fn new(admission: &Admission, is_secured: bool) -> Self {
        Self { shows_lines: is_secured || is_on_one_machine(admission), ..Self::default() }
    }
}

/// Returns true if all members of the round are certainly on this machine: the workers reach the store by a loopback
/// address. A single node on a network may send its answers to a coordinator elsewhere, and `ragent explain` may read them
/// from elsewhere.
fn is_on_one_machine(admission: &Admission) -> bool {
    let is_loopback = |address: std::net::IpAddr| address.is_loopback();
    let address = &admission.master_address;
    address == "localhost" || address.parse().is_ok_and(is_loopback)
}

impl Agent {
    /// Looks at the workers, if the coordinator asks for a look that is new.
    pub(super) fn handle_look(&mut self, now: Instant, look: Option<Look>) {
        if self.state != AgentState::Running {
            return;
        }
        let Some(Look { number, part }) = look else {
            self.round.looks.due = None;
            return;
        };
        let (round, shows_lines) = (self.round.id, self.round.looks.shows_lines);
        let newest = self.round.looks.newest.map(|newest| (newest.number, newest.part));
        if newest == Some((number, part)) {
            return;
        }
        if self.round.looks.newest.is_some_and(|newest| newest.number != number) {
            self.round.looks.answers.clear();
        }
        self.round.looks.newest = Some(LookOrder { round, number, part, shows_lines });
        self.round.looks.due = Some(now + self.look_delay());
        self.handle_look_timeout(now);
    }

    /// Passes on which worker of the round counts as hung. A longer time without progress
    /// does not count as a change.
    pub(super) fn handle_hung(&mut self, hung: Option<Hung>) {
        let key = |hung: Hung| (hung.rank, hung.if_stopped);
        if self.state == AgentState::Running && self.round.looks.hung.map(key) != hung.map(key) {
            self.round.looks.hung = hung;
            self.act(Action::Hung(hung));
        }
    }

    /// Returns the time for which this node waits, so that not all nodes of a large round answer at once.
    fn look_delay(&self) -> Duration {
        if self.known_round.size <= limits::LOOKS_AT_ONCE {
            return Duration::ZERO;
        }
        let places = u64::try_from(limits::LOOK_SPREAD.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.settings.seed % places)
    }

    /// Notes the answer to a look. An answer to an earlier look is dropped.
    pub fn handle_digest(&mut self, digest: Digest) {
        let is_of = |order: LookOrder| (order.round, order.number) == (digest.round, digest.look);
        if self.state == AgentState::Running && self.round.looks.newest.is_some_and(is_of) {
            self.round.looks.answers.retain(|answer| answer.part != digest.part);
            self.round.looks.answers.push(digest.clone());
            self.effects.push_back(Effect::Send(FromNode::Digest(digest)));
        }
    }

    /// Sends the answers again, on a new stream.
    pub(super) fn send_digests(&mut self) {
        if self.state == AgentState::Running {
            let answers = self.round.looks.answers.iter().cloned();
            self.effects.extend(answers.map(|digest| Effect::Send(FromNode::Digest(digest))));
        }
    }

    /// Returns the time of a look that is due.
    pub(super) fn look_deadline(&self) -> Option<Instant> {
        self.round.looks.due.filter(|_| self.state == AgentState::Running)
    }

    pub(super) fn handle_look_timeout(&mut self, now: Instant) {
        if self.look_deadline().is_some_and(|due| due <= now) {
            self.round.looks.due = None;
            if let Some(order) = self.round.looks.newest {
                self.act(Action::Look(order));
            }
        }
    }
}
