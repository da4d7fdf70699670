//! Simulates the connections between voters, as the program keeps them.
//!
//! 1. A voter opens one connection to each other voter, and sends its requests there.
//! 2. Requests wait in a queue while a connection is being opened. They are dropped when it is open, because they are outdated then.
//! 3. A connection that is lost is opened again after a pause.
//! 4. When the voter no longer needs a connection, it still sends what is queued.

use std::{mem, time::Duration, time::Instant};

use ragent_election::election::message::{Answer, Request, VoterMessage};
use ragent_rendezvous::ids::{NodeId, VoterAddress};

use super::{Bug, Input, World};
use crate::addresses::{Place, host_of};

/// A connection of a voter to another one.
#[derive(Debug)]
pub(super) struct Link {
    /// Distinguishes it from earlier connections to the same voter.
    number: u64,
    state: State,
    queue: Vec<VoterMessage<Request>>,
    /// The number of successive failures.
    failures: u32,
    has_answered: bool,
    /// The time since which a request has no answer.
    unanswered: Option<Instant>,
    /// The arrival of the newest message, so that messages arrive in order.
    free_at: Instant,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum State {
    Opening,
    /// It leads to this process.
    Open(NodeId),
    /// It will be opened again.
    Waiting,
}

/// An event on a connection.
#[derive(Clone, Debug)]
pub(super) enum LinkEvent {
    /// A process has accepted it.
    Opened(NodeId),
    /// It could not be opened, or is lost.
    Lost,
    /// It is to be opened again.
    Redial,
    /// The answer to a request may be overdue.
    Silent,
}

/// A request that has arrived, with what its answer needs.
#[derive(Debug)]
pub(super) struct Incoming {
    from: NodeId,
    link: u64,
    sent: Instant,
    pub(super) message: VoterMessage<Request>,
}

/// The limits of the program (`agent/leadership/src/voters/limits.rs`).
const CONNECT_TIMEOUT: Duration = Duration::from_millis(600);
const SILENCE: Duration = Duration::from_millis(600);
const REDIAL_FIRST: Duration = Duration::from_millis(100);
const REDIAL_MAX: Duration = Duration::from_secs(1);
const FRAMES: usize = 8;
/// The time after which the system notices that a host has no power.
const KEEPALIVE: Duration = Duration::from_secs(8);

impl World {
    /// Opens the connections that a voter needs, ends the others, and sends what is queued.
    pub(super) fn settle_links(&mut self, id: &NodeId) {
        let Some(voter) = self.voter(id) else { return };
        let needed = voter.election.connections();
        let unneeded: Vec<_> =
            voter.links.keys().filter(|address| !needed.contains(*address)).cloned().collect();
        for address in unneeded {
            self.flush_link(id, &address);
            if let Some(voter) = self.voter(id) {
                voter.links.remove(&address);
            }
        }
        let Some(voter) = self.voter(id) else { return };
        let known = voter.links.keys().cloned().collect();
        let new: Vec<_> = needed.difference(&known).cloned().collect();
        for to in new {
            self.events_scheduled += 1;
            let (number, free_at) = (self.events_scheduled, self.now);
            let link = Link {
                number,
                state: State::Opening,
                queue: Vec::new(),
                failures: 0,
                has_answered: false,
                unanswered: None,
                free_at,
            };
            let Some(voter) = self.voter(id) else { return };
            voter.links.insert(to.clone(), link);
            self.open_link(id, to, number);
        }
        for to in needed {
            self.flush_link(id, &to);
        }
    }

    /// Queues a request.
    pub(super) fn queue_request(
        &mut self,
        id: &NodeId,
        to: &VoterAddress,
        mut message: VoterMessage<Request>,
    ) {
        if self.bug == Bug::OnlyLeadersShow {
            message.job.take_if(|job| job.leads.is_none());
        }
        let Some(link) = self.voter(id).and_then(|voter| voter.links.get_mut(to)) else { return };
        if link.queue.len() < FRAMES {
            link.queue.push(message);
        }
    }

    /// Sends what is queued on an open connection.
    fn flush_link(&mut self, id: &NodeId, to: &VoterAddress) {
        let Some(from) = self.processes.get(id).map(|process| process.host) else { return };
        let Some(host) = host_of(to) else { return };
        let Some(link) = self.voter(id).and_then(|voter| voter.links.get_mut(to)) else { return };
        let State::Open(process) = link.state.clone() else { return };
        let (number, queue) = (link.number, mem::take(&mut link.queue));
        for message in queue {
            let is_answered = !matches!(message.body, Request::Release { .. });
            let arrival = self.arrival(from, host);
            let now = self.now;
            let Some(link) = self.voter(id).and_then(|voter| voter.links.get_mut(to)) else {
                return;
            };
            link.free_at = link.free_at.max(arrival) + Duration::from_nanos(1);
            let (at, is_first) = (link.free_at, link.unanswered.is_none());
            if is_answered && is_first {
                link.unanswered = Some(now);
                self.wake(id, SILENCE, Input::Link(to.clone(), number, LinkEvent::Silent));
            }
            let incoming = Incoming { from: id.clone(), link: number, sent: now, message };
            self.schedule_at(
                at,
                super::Event::Process(process.clone(), Input::Request(Box::new(incoming))),
            );
        }
    }

    /// Begins to open a connection.
    fn open_link(&mut self, id: &NodeId, to: VoterAddress, number: u64) {
        let Some(from) = self.processes.get(id).map(|process| process.host) else { return };
        let Some(host) = host_of(&to) else { return };
        let Some(there) = self.hosts.get(host) else { return };
        let is_silent = there.is_off || there.is_suspended(self.now);
        let process = Place::of(&to).and_then(|place| self.process_at(place));
        // The request, and its answer.
        let (delay, event) = match (self.transit(from, host), self.transit(host, from), process) {
            (Some(one), Some(other), Some(process)) if !is_silent => {
                (one + other, LinkEvent::Opened(process))
            }
            (Some(one), Some(other), None) if !is_silent => (one + other, LinkEvent::Lost),
            _ => (CONNECT_TIMEOUT, LinkEvent::Lost),
        };
        self.wake(id, delay.min(CONNECT_TIMEOUT), Input::Link(to, number, event));
    }

    pub(super) fn handle_link(
        &mut self,
        id: &NodeId,
        to: &VoterAddress,
        number: u64,
        event: LinkEvent,
    ) {
        let now = self.now;
        let Some(voter) = self.voter(id) else { return };
        let Some(link) = voter.links.get_mut(to).filter(|link| link.number == number) else {
            return;
        };
        match event {
            LinkEvent::Opened(process) if link.state == State::Opening => {
                self.accept_link(id, to, number, process)
            }
            LinkEvent::Lost if link.state != State::Waiting => {
                link.state = State::Waiting;
                link.unanswered = None;
                let pause = if mem::take(&mut link.has_answered) {
                    link.failures = 0;
                    Duration::ZERO
                } else {
                    let doubled = REDIAL_FIRST * (1 << link.failures.min(16));
                    link.failures += 1;
                    doubled.min(REDIAL_MAX)
                };
                let pause = pause.mul_f64(0.5 + self.random.millis(0, 500).as_secs_f64());
                self.wake(id, pause, Input::Link(to.clone(), number, LinkEvent::Redial));
                if let Some(voter) = self.voter(id) {
                    voter.election.handle_disconnected(to);
                }
            }
            LinkEvent::Redial if link.state == State::Waiting => {
                link.state = State::Opening;
                self.open_link(id, to.clone(), number);
            }
            LinkEvent::Silent => match link.unanswered {
                Some(since) if since + SILENCE <= now => {
                    self.handle_link(id, to, number, LinkEvent::Lost);
                }
                Some(since) => {
                    let left = (since + SILENCE).saturating_duration_since(now);
                    self.wake(id, left, Input::Link(to.clone(), number, LinkEvent::Silent));
                }
                None => {}
            },
            LinkEvent::Opened(_) | LinkEvent::Lost | LinkEvent::Redial => {}
        }
    }

    /// Records that a process has accepted a connection, if it still runs.
    fn accept_link(&mut self, id: &NodeId, to: &VoterAddress, number: u64, process: NodeId) {
        let Some(from) = self.processes.get(id).map(|process| process.host) else { return };
        if self.voter(&process).is_none() {
            return self.handle_link(id, to, number, LinkEvent::Lost);
        }
        let now = self.now;
        let Some(link) = self.voter(id).and_then(|voter| voter.links.get_mut(to)) else { return };
        link.state = State::Open(process.clone());
        // Data that was sent on the connection before this one may still be on its way.
        link.free_at = now;
        link.queue.clear();
        // The other voter runs now. So the process that it has reached does not wait before its next attempt.
        let back = self.place(from).address();
        let waiting = self.voter(&process).and_then(|voter| voter.links.get(&back));
        if let Some(link) = waiting.filter(|link| link.state == State::Waiting) {
            let redial = Input::Link(back, link.number, LinkEvent::Redial);
            self.wake(&process, Duration::ZERO, redial);
        }
        self.with_election(id, |election, now| election.handle_connected(now, to));
    }

    /// Ends the connections that lead to a process that has ended.
    pub(super) fn end_links(&mut self, ended: &NodeId, host: usize) {
        let is_off = self.hosts[host].is_off;
        let to = self.place(host).address();
        let mut lost = Vec::new();
        for (id, process) in &self.processes {
            let link = process.voter.as_ref().and_then(|voter| voter.links.get(&to));
            if let Some(link) = link
                && matches!(&link.state, State::Open(process) if process == ended)
            {
                lost.push((id.clone(), process.host, link.number));
            }
        }
        for (id, at, number) in lost {
            let notices = if is_off { self.now + KEEPALIVE } else { self.arrival(host, at) };
            let input = Input::Link(to.clone(), number, LinkEvent::Lost);
            self.schedule_at(notices, super::Event::Process(id, input));
        }
    }

    pub(super) fn arrive_incoming(&mut self, id: &NodeId, incoming: Incoming) {
        let Incoming { from, link, sent, message } = incoming;
        let Some(own) = self.processes.get(id).map(|process| process.host) else { return };
        let Some(there) = host_of(&message.address) else { return };
        let is_known = self.voter(id).is_some_and(|voter| voter.knows(there));
        let answer = match is_known {
            true => self.arrive_request(id, sent, message),
            false if self.bug == Bug::StrangersDropped => None,
            false => self
                .with_election(id, |election, now| election.handle_stranger(now, message))
                .flatten(),
        };
        let Some(answer) = answer else { return };
        let Some(to) = self.processes.get(&from).map(|process| process.host) else { return };
        let at = self.arrival(own, to);
        let answer = Input::Answer(self.place(own).address(), link, Box::new(answer));
        self.schedule_at(at, super::Event::Process(from, answer));
    }

    /// Gives an answer to the voter that waits for it, unless its connection was lost.
    pub(super) fn arrive_linked_answer(
        &mut self,
        id: &NodeId,
        from: &VoterAddress,
        number: u64,
        answer: VoterMessage<Answer>,
    ) {
        let Some(voter) = self.voter(id) else { return };
        let link = voter.links.get_mut(from);
        let is_open = |link: &&mut Link| link.number == number && link.state != State::Waiting;
        let Some(link) = link.filter(is_open) else { return };
        link.unanswered = None;
        link.has_answered = true;
        self.arrive_answer(id, answer);
    }
}
