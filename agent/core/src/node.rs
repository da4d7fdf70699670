//! Joins [`Agent`] and [`Link`] to one node, as its driver sees it, with the streams between them.
//!
//! The driver passes in what happens on streams, in the supervisor and by the clock, and carries out
//! [`Effect`]s. This module decides on which stream a message counts, and if a lease ends before a message is
//! read. So `tests/simulation` runs the same rules as the program.
//!
//! An agent that was paused ends its lease before it reads any message that has arrived meanwhile. It drops
//! the stream, and sends its current state on a new one.

use std::{collections::VecDeque, time::Instant};

use ragent_rendezvous::{
    ids::{JobUid, Round, StreamNumber, Term},
    message::{FromNode, KnownRound, MemoryReport, NodeReport, ToNode, Welcome},
};

use crate::{
    agent::{self, Action, Agent, AgentSettings},
    link::{self, Echo, Link},
};

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Open a stream under this number.
    Dial(StreamNumber),
    /// Send a message on a stream.
    Send {
        /// The stream.
        stream: StreamNumber,
        /// The message.
        message: FromNode,
    },
    /// Close a stream, or abandon the attempt to open it.
    Drop(StreamNumber),
    /// Extend the keeper's lease to this moment. `None` has no end, for a node that needs no lease.
    Renew(Option<Instant>),
    /// Report that the lease is over. Its consequences have effects of their own.
    LeaseLost,
    /// Carry out this action on the node.
    Local(Action),
}

/// The claims of a node that registers on a new stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Claims {
    /// The run of the node, if it was in one.
    pub job_uid: Option<JobUid>,
    /// The newest round that the node knows.
    pub known_round: KnownRound,
    /// Failures charged to the job, as the node knows them.
    pub restarts_used: u32,
    /// The last round that was charged, as the node knows it.
    pub charged_through: Round,
    /// The present state of the node.
    pub report: NodeReport,
    /// The checkpoints in the memory of the node.
    pub memory: Option<MemoryReport>,
    /// The term of the leader whose lease has ended on this node; zero if there is none. The node needs a
    /// leader of a later term.
    pub lost_term: Term,
}

/// One node's registration and its part in a job.
#[derive(Debug)]
pub struct Node {
    agent: Agent,
    link: Link,
    runs_unleased: bool,
    /// The newest round that this node knew when it registered on the newest stream.
    claimed: Option<(StreamNumber, Round)>,
    effects: VecDeque<Effect>,
}

impl Node {
    /// Creates a node that has not registered yet. It dials at once.
    pub fn new(now: Instant, settings: AgentSettings) -> Self {
        let link = Link::new(now, settings.leases, settings.seed, settings.has_voters);
        let runs_unleased = settings.runs_unleased;
        let agent = Agent::new(now, settings);
        let effects = VecDeque::new();
        let mut node = Self { agent, link, runs_unleased, claimed: None, effects };
        node.collect(now);
        node
    }

    /// Returns the agent's state machine.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Returns true if there is a current stream.
    pub fn is_registered(&self) -> bool {
        self.link.current().is_some()
    }

    /// Takes the newest echo of a keep-alive, if one has arrived since the last call.
    pub fn take_echo(&mut self) -> Option<Echo> {
        self.link.take_echo()
    }

    /// Returns the current stream, if any.
    pub fn current(&self) -> Option<StreamNumber> {
        self.link.current()
    }

    /// Notes that a stream is connected. Returns the claims to send first on it; `None` if the attempt has
    /// been abandoned meanwhile.
    pub fn handle_connected(&mut self, now: Instant, stream: StreamNumber) -> Option<Claims> {
        self.begin(now);
        if !self.link.knows(stream) {
            return None;
        }
        self.link.handle_opened(now, stream);
        self.claimed = Some((stream, self.agent.known_round().round.round));
        let (restarts_used, charged_through) = self.agent.charges();
        let claims = Claims {
            job_uid: self.agent.job_uid().cloned(),
            known_round: self.agent.known_round(),
            restarts_used,
            charged_through,
            report: self.agent.report(now),
            memory: self.agent.memory_report(),
            lost_term: if self.link.has_lease() { Term(0) } else { self.agent.term() },
        };
        self.collect(now);
        Some(claims)
    }

    /// Notes that the other end has accepted a stream, and may answer later.
    pub fn handle_accepted(&mut self, now: Instant, stream: StreamNumber) {
        self.begin(now);
        self.link.handle_accepted(stream);
        self.collect(now);
    }

    /// Handles a welcome. Returns true if its stream is now the current one.
    ///
    /// A welcome is ignored, and its stream is dropped, in two cases:
    ///
    /// - The coordinator has a lower term than the node knows.
    /// - An elected coordinator welcomes a node that was admitted to a round on another stream after it had
    ///   registered. The welcome would extend the lease of workers that this coordinator does not know.
    pub fn handle_welcome(
        &mut self,
        now: Instant,
        stream: StreamNumber,
        welcome: &Welcome,
    ) -> bool {
        self.begin(now);
        if !self.link.knows(stream) {
            return false;
        }
        let claimed =
            self.claimed.filter(|(claimed, _)| *claimed == stream).map(|(_, round)| round);
        let is_outdated = welcome.lease_left.is_some()
            && claimed.is_some_and(|claimed| claimed < self.agent.known_round().round.round);
        if welcome.term < self.agent.term() || is_outdated {
            self.effects.push_back(Effect::Drop(stream));
            self.end_stream(now, stream);
            return false;
        }
        self.link.handle_welcome(now, stream, welcome.leases, welcome.lease_left);
        let counts = self.link.current() == Some(stream);
        if counts {
            if !welcome.voters.is_empty() {
                self.link.handle_alternatives();
            }
            self.agent.handle_welcome(now, welcome);
        }
        self.collect(now);
        counts
    }

    /// Handles a message of the coordinator.
    pub fn handle_message(&mut self, now: Instant, stream: StreamNumber, message: ToNode) {
        // The end of the lease takes effect before any message that arrived later.
        self.begin(now);
        if !self.link.knows(stream) {
            return;
        }
        match message {
            ToNode::Refuse(reason) => self.agent.handle_refused(reason),
            ToNode::Echo { sequence, reason, lease_left, memory_whole } => {
                self.link.handle_echo(now, sequence, lease_left);
                self.agent.handle_echo(now, sequence, reason);
                if self.link.current() == Some(stream) {
                    self.agent.handle_memory_whole(now, memory_whole);
                }
            }
            // A welcome comes with its proof, through `handle_welcome`.
            ToNode::Welcome(_) => {}
            ToNode::Voters(voters) if voters.is_empty() => {}
            // The driver dials them.
            ToNode::Voters(_) => self.link.handle_alternatives(),
            // A newer stream has taken over since, and repeats the current state.
            _ if self.link.current() != Some(stream) => {}
            message => self.agent.handle_message(now, message),
        }
        self.collect(now);
    }

    /// Notes that a stream has ended, or could not be opened.
    pub fn handle_ended(&mut self, now: Instant, stream: StreamNumber) {
        self.begin(now);
        self.end_stream(now, stream);
        self.collect(now);
    }

    /// Handles that the answering process does not coordinate. `term` is the newest term that it knows.
    /// `is_new` is true if it names another endpoint than the one dialed. Returns true if the node follows
    /// it.
    pub fn handle_sent_elsewhere(
        &mut self,
        now: Instant,
        stream: StreamNumber,
        term: Term,
        is_new: bool,
    ) -> bool {
        self.begin(now);
        if !self.link.knows(stream) {
            return false;
        }
        let follows = is_new && self.agent.handle_sent_elsewhere(now, term);
        self.effects.push_back(Effect::Drop(stream));
        self.end_stream(now, stream);
        self.collect(now);
        follows
    }

    /// Notes that the voter at the other end does not lead. `is_new` is true if it names a leader that this
    /// node did not know. That leader is dialed at once.
    pub fn handle_not_leading(&mut self, now: Instant, stream: StreamNumber, is_new: bool) {
        self.begin(now);
        if !self.link.knows(stream) {
            return;
        }
        self.effects.push_back(Effect::Drop(stream));
        self.link.handle_not_leading(now, stream, is_new);
        if self.link.current().is_none() {
            self.agent.handle_disconnected(now);
        }
        self.collect(now);
    }

    /// Passes an input to the agent's state machine.
    pub fn tell<T>(&mut self, now: Instant, input: impl FnOnce(&mut Agent) -> T) -> T {
        self.begin(now);
        let answer = input(&mut self.agent);
        self.collect(now);
        answer
    }

    /// Notes that another leader is known.
    pub fn handle_new_leader(&mut self, now: Instant) {
        self.begin(now);
        self.link.handle_new_leader(now);
        self.collect(now);
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.agent.poll_timeout(), self.link.poll_timeout()].into_iter().flatten().min()
    }

    /// Applies every deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.tell(now, |agent| agent.handle_timeout(now));
    }

    /// Returns the next effect; `None` if there are none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Applies the link's deadlines before an input, so that late input has no effect.
    fn begin(&mut self, now: Instant) {
        self.link.handle_timeout(now);
        self.collect(now);
    }

    fn end_stream(&mut self, now: Instant, stream: StreamNumber) {
        self.link.handle_ended(now, stream);
        if self.link.current().is_none() {
            self.agent.handle_disconnected(now);
        }
    }

    /// Moves the effects of both machines into one queue, the link's first.
    fn collect(&mut self, now: Instant) {
        loop {
            if let Some(effect) = self.link.poll_effect() {
                self.take_link(now, effect);
            } else if let Some(effect) = self.agent.poll_effect() {
                self.take_agent(effect);
            } else {
                return;
            }
        }
    }

    fn take_link(&mut self, now: Instant, effect: link::Effect) {
        self.effects.push_back(match effect {
            link::Effect::Dial(stream) => Effect::Dial(stream),
            link::Effect::KeepAlive { stream, sequence } => {
                let asks_reason = self.agent.asks_reason(now, sequence);
                let message = self.agent.keep_alive(now, sequence, asks_reason);
                Effect::Send { stream, message }
            }
            link::Effect::Drop(stream) => Effect::Drop(stream),
            link::Effect::Lease(_) if self.runs_unleased => Effect::Renew(None),
            link::Effect::Lease(until) => Effect::Renew(Some(until)),
            link::Effect::LeaseLost => {
                self.agent.handle_disconnected(now);
                self.agent.handle_lease_lost();
                Effect::LeaseLost
            }
        });
    }

    fn take_agent(&mut self, effect: agent::Effect) {
        self.effects.push_back(match effect {
            agent::Effect::Send(message) => match self.link.current() {
                Some(stream) => Effect::Send { stream, message },
                // The next stream starts with the state at that time.
                None => return,
            },
            agent::Effect::Local(action) => Effect::Local(action),
        });
    }
}

#[cfg(test)]
mod tests;
