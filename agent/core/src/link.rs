//! Decides when to send keep-alives, when to dial, and when the lease is over.
//!
//! ```text
//!            attempt fails: back off           echo missing for 600 ms: dial a second stream
//! Dialing ─────────────────▶ Dialing      Registered ────────────▶ Registered + Dialing
//!    │  welcome                              ▲                          │ welcome on the newer one
//!    └───────────────────────────────────────┴──────────────────────────┘
//! ```
//!
//! The lease runs from the *sending* of the last keep-alive that was echoed, on any stream. When it is over,
//! the keeper kills the workers. [`Effect::LeaseLost`] reports it once.
//!
//! # Load
//!
//! A coordinator that is paused or overloaded must not get more work because of that:
//!
//! - There is one attempt at a time. A connected attempt is kept for a lease, because a welcome on it counts
//!   for that long.
//! - After failed attempts there are pauses that double, with jitter.
//! - A stream that replaced a suspect one is suspected later, until an echo was prompt. Otherwise, the queue
//!   caused by new streams would cause the next ones.
//! - All intervals are scaled with the lease, which grows with the size of the job.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    ids::StreamNumber,
    jitter::{Jitter, doubled},
    settings::Leases,
};

use crate::limits;

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Begin to open a stream under this number.
    Dial(StreamNumber),
    /// Send a keep-alive on this stream.
    KeepAlive {
        /// The stream.
        stream: StreamNumber,
        /// The number of the keep-alive.
        sequence: u64,
    },
    /// Close this stream, or abandon the attempt to open it.
    Drop(StreamNumber),
    /// Let the workers run until this moment.
    Lease(Instant),
    /// Report that the lease is over.
    LeaseLost,
}

/// The echo of a keep-alive, for statistics.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Echo {
    /// The time since the keep-alive was sent.
    pub round_trip: Duration,
    /// The time that was left of the lease when the echo arrived; `None` if there was no lease.
    pub lease_left: Option<Duration>,
}

/// One node's connection to its coordinator.
#[derive(Debug)]
pub struct Link {
    newest: StreamNumber,
    current: Option<StreamNumber>,
    attempt: Option<Attempt>,
    /// The start of the next attempt; `None` while an attempt is under way or none is wanted.
    next_dial: Option<Instant>,
    /// Attempts that have failed since the last welcome.
    failures: u32,
    /// The number of times that the stream became suspect since the last prompt echo.
    suspicions: u32,
    leases: Leases,
    /// True if another voter may be dialed when the coordinator does not answer.
    has_alternatives: bool,
    sequence: u64,
    next_keep_alive: Option<Instant>,
    /// Keep-alives that were not echoed yet: the time of sending, by number.
    unanswered: BTreeMap<u64, Instant>,
    /// The end of the lease; `None` while there is no lease.
    lease: Option<Instant>,
    /// The newest echo, until it is taken.
    echo: Option<Echo>,
    jitter: Jitter,
    effects: VecDeque<Effect>,
}

/// An attempt to open a stream.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    number: StreamNumber,
    begun: Instant,
    /// The time at which the registration was sent; `None` before the attempt is connected.
    registered: Option<Instant>,
    /// True if the other end has accepted the stream. Its welcome may take longer.
    is_accepted: bool,
}

impl Link {
    /// Creates a link that dials at once.
    ///
    /// - `leases` are the intervals until a welcome names others.
    /// - `seed` decides the jitter, and is different on each node of a job.
    /// - `has_alternatives` is true if another voter may be dialed when the coordinator does not answer. See
    ///   also [`Self::handle_alternatives`].
    pub fn new(now: Instant, leases: Leases, seed: u64, has_alternatives: bool) -> Self {
        Self {
            newest: StreamNumber(0),
            current: None,
            attempt: None,
            next_dial: Some(now),
            failures: 0,
            suspicions: 0,
            leases,
            has_alternatives,
            sequence: 0,
            next_keep_alive: None,
            unanswered: BTreeMap::new(),
            lease: None,
            echo: None,
            jitter: Jitter::new(seed),
            effects: VecDeque::new(),
        }
    }

    /// Returns the current stream, if any.
    pub fn current(&self) -> Option<StreamNumber> {
        self.current
    }

    /// Returns true if the node has a lease.
    pub fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Returns true if the stream is the current one, or is being opened.
    pub fn knows(&self, stream: StreamNumber) -> bool {
        self.current == Some(stream) || self.attempt.is_some_and(|attempt| attempt.number == stream)
    }

    /// Notes that the registration has been sent on a stream that was dialed.
    pub fn handle_opened(&mut self, now: Instant, stream: StreamNumber) {
        if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.number == stream) {
            attempt.registered = Some(now);
        }
    }

    /// Notes that the other end has accepted a stream. A voter may then wait for an election before it
    /// answers.
    pub fn handle_accepted(&mut self, stream: StreamNumber) {
        if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.number == stream) {
            attempt.is_accepted = true;
        }
    }

    /// Notes that the coordinator has welcomed a stream, which becomes the current one.
    ///
    /// `lease_left` is the time that was left of the coordinator's own lease, if it has one.
    pub fn handle_welcome(
        &mut self,
        now: Instant,
        stream: StreamNumber,
        leases: Leases,
        lease_left: Option<Duration>,
    ) {
        let Some(attempt) = self.attempt.take_if(|attempt| attempt.number == stream) else {
            return;
        };
        let lease = lease_left.map_or(leases.agent, |left| left.min(leases.agent));
        let Some(registered) = attempt.registered.filter(|registered| now < *registered + lease)
        else {
            // The answer took longer than a lease, so it proves nothing: the coordinator may have evicted the
            // node since.
            self.effects.push_back(Effect::Drop(stream));
            return self.back_off(now, limits::REDIAL_CONNECTED_MAX);
        };
        if let Some(old) = self.current.replace(stream) {
            self.effects.push_back(Effect::Drop(old));
        }
        self.leases = leases;
        self.next_dial = None;
        self.failures = 0;
        self.unanswered.clear();
        self.extend_lease(now, registered, lease_left);
        self.keep_alive(now, stream);
    }

    /// Notes that from now on another voter may be dialed when the coordinator does not answer.
    pub fn handle_alternatives(&mut self) {
        self.has_alternatives = true;
    }

    /// Notes the coordinator's echo of a keep-alive. `lease_left` is as in the welcome.
    pub fn handle_echo(&mut self, now: Instant, sequence: u64, lease_left: Option<Duration>) {
        let Some(sent) = self.unanswered.remove(&sequence) else { return };
        self.unanswered = self.unanswered.split_off(&sequence);
        self.echo = Some(Echo {
            round_trip: now.saturating_duration_since(sent),
            lease_left: self.lease.map(|lease| lease.saturating_duration_since(now)),
        });
        if now < sent + self.scaled(limits::PROMPT_ECHO) {
            self.suspicions = 0;
        }
        if self.current.is_some() {
            self.next_dial = None;
            // A registration that was sent replaces this stream whenever it is read, so the attempt waits for
            // its answer.
            if let Some(attempt) = self.attempt.take_if(|attempt| attempt.registered.is_none()) {
                self.effects.push_back(Effect::Drop(attempt.number));
            }
        }
        self.extend_lease(now, sent, lease_left);
    }

    /// Notes that a stream has ended, or could not be opened.
    pub fn handle_ended(&mut self, now: Instant, stream: StreamNumber) {
        if self.current == Some(stream) {
            self.current = None;
            self.next_keep_alive = None;
            self.dial_soon(now);
        } else if let Some(attempt) = self.attempt.take_if(|attempt| attempt.number == stream)
            && (self.current.is_none() || self.is_suspect(now))
        {
            let longest = match attempt.registered {
                Some(_) => limits::REDIAL_CONNECTED_MAX,
                None => limits::REDIAL_MAX,
            };
            self.back_off(now, longest);
        }
    }

    /// Notes that the voter at the other end of an attempt does not lead. If it names a new leader
    /// (`is_new`), that leader is dialed at once.
    pub fn handle_not_leading(&mut self, now: Instant, stream: StreamNumber, is_new: bool) {
        if self.attempt.take_if(|attempt| attempt.number == stream).is_none() {
            return self.handle_ended(now, stream);
        }
        if is_new {
            self.next_dial = Some(now);
        } else if self.current.is_none() || self.is_suspect(now) {
            // A redirect costs the voter no work, unlike a registration.
            self.back_off(now, limits::REDIAL_MAX);
        }
    }

    /// Notes that another leader is known. Dials it at once, unless answers still arrive on the current
    /// stream.
    pub fn handle_new_leader(&mut self, now: Instant) {
        if self.current.is_some() && !self.is_suspect(now) {
            return;
        }
        if let Some(attempt) = self.attempt.take() {
            self.effects.push_back(Effect::Drop(attempt.number));
        }
        self.next_dial = Some(now);
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadlines = [
            self.next_dial,
            self.next_keep_alive,
            self.lease,
            self.suspicion(),
            self.attempt_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Applies every deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.lease.is_some_and(|lease| lease <= now) {
            self.lose_lease(now);
        }
        if self.attempt_deadline().is_some_and(|at| at <= now) {
            self.abandon(now);
        }
        if self.suspicion().is_some_and(|at| at <= now) {
            self.next_dial = Some(now);
            self.suspicions = self.suspicions.saturating_add(1);
        }
        if self.next_dial.is_some_and(|at| at <= now) {
            self.dial(now);
        }
        if let Some(stream) = self.current
            && self.next_keep_alive.is_some_and(|at| at <= now)
        {
            self.keep_alive(now, stream);
        }
    }

    /// Takes the newest echo, if one has arrived since the last call.
    pub fn take_echo(&mut self) -> Option<Echo> {
        self.echo.take()
    }

    /// Returns the next effect; `None` if there are none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn lose_lease(&mut self, now: Instant) {
        self.lease = None;
        // Messages still queued on that stream were sent to a node that no longer counts. A new stream starts
        // from the current state.
        if let Some(current) = self.current.take() {
            self.effects.push_back(Effect::Drop(current));
            self.next_keep_alive = None;
            self.dial_soon(now);
        }
        self.effects.push_back(Effect::LeaseLost);
    }

    /// Returns the time at which the current stream becomes suspect because of its oldest unanswered
    /// keep-alive; `None` if an attempt is already under way or due.
    fn suspicion(&self) -> Option<Instant> {
        if self.next_dial.is_some() || self.attempt.is_some() {
            return None;
        }
        self.suspect_at()
    }

    fn is_suspect(&self, now: Instant) -> bool {
        self.suspect_at().is_some_and(|at| at <= now)
    }

    fn suspect_at(&self) -> Option<Instant> {
        let oldest = self.unanswered.values().next().filter(|_| self.current.is_some())?;
        let after = doubled(limits::SUSPECT_AFTER, self.suspicions, limits::SUSPECT_AFTER_MAX);
        Some(*oldest + self.scaled(after))
    }

    /// Returns the time at which the attempt under way is abandoned.
    ///
    /// A connected attempt has as long as its welcome can count. An unconnected one is replaced soon if a
    /// lease can be saved or another voter can be dialed: its packets may have been lost, and TCP sends them
    /// again only after a second.
    fn attempt_deadline(&self) -> Option<Instant> {
        let attempt = self.attempt.as_ref()?;
        Some(match attempt.registered {
            // A process that is stopped accepts connections, too.
            Some(registered) if self.has_alternatives && !attempt.is_accepted => {
                registered + self.scaled(limits::CONNECT_PATIENCE)
            }
            Some(registered) => registered + self.leases.agent,
            None if self.lease.is_some() => attempt.begun + self.scaled(limits::CONNECT_PATIENCE),
            // Longer after each failure, because the resolver may be slow.
            None if self.has_alternatives => {
                let patience =
                    doubled(limits::CONNECT_PATIENCE, self.failures, limits::CONNECT_LIMIT);
                attempt.begun + self.scaled(patience).min(limits::CONNECT_LIMIT)
            }
            None => attempt.begun + limits::CONNECT_LIMIT,
        })
    }

    fn abandon(&mut self, now: Instant) {
        let Some(attempt) = self.attempt.take() else { return };
        self.effects.push_back(Effect::Drop(attempt.number));
        if attempt.registered.is_some() {
            self.back_off(now, limits::REDIAL_CONNECTED_MAX);
        } else if self.lease.is_some() {
            self.next_dial = Some(now);
        } else {
            self.back_off(now, limits::REDIAL_MAX);
        }
    }

    /// Dials after a short pause, because all nodes of a large job may have lost their stream at once. The
    /// pause is zero in small jobs.
    fn dial_soon(&mut self, now: Instant) {
        if self.attempt.is_none() {
            let spread = self.scaled(limits::REDIAL_FIRST).saturating_sub(limits::REDIAL_FIRST);
            self.next_dial = Some(now + spread.mul_f64(self.jitter.fraction()));
        }
    }

    /// Dials after a pause that doubles with each failure, up to `longest`.
    fn back_off(&mut self, now: Instant, longest: Duration) {
        if self.has_alternatives && self.failures == 0 {
            // The leader is lost. Another voter may know the next one.
            self.failures = 1;
            return self.dial_soon(now);
        }
        let pause = self.scaled(doubled(limits::REDIAL_FIRST, self.failures, longest));
        self.failures = self.failures.saturating_add(1);
        self.next_dial = Some(now + self.jitter.spread(pause));
    }

    fn dial(&mut self, now: Instant) {
        self.newest = StreamNumber(self.newest.0 + 1);
        self.attempt =
            Some(Attempt { number: self.newest, begun: now, registered: None, is_accepted: false });
        self.next_dial = None;
        self.effects.push_back(Effect::Dial(self.newest));
    }

    fn keep_alive(&mut self, now: Instant, stream: StreamNumber) {
        self.sequence += 1;
        self.unanswered.insert(self.sequence, now);
        if self.unanswered.len() > MAX_UNANSWERED {
            self.unanswered.pop_first();
        }
        self.next_keep_alive = Some(now + self.leases.keep_alive_interval);
        self.effects.push_back(Effect::KeepAlive { stream, sequence: self.sequence });
    }

    /// Extends the lease, counted from the sending of what was answered. It is never longer than the
    /// coordinator's own lease, because another coordinator may start workers elsewhere afterwards.
    fn extend_lease(&mut self, now: Instant, sent: Instant, lease_left: Option<Duration>) {
        let until = sent + lease_left.map_or(self.leases.agent, |left| left.min(self.leases.agent));
        // An echo that arrives too late proves nothing.
        if until > now && self.lease.is_none_or(|lease| lease < until) {
            self.lease = Some(until);
            self.effects.push_back(Effect::Lease(until));
        }
    }

    /// Returns `time`, given for a small job, in proportion to this job's lease.
    fn scaled(&self, time: Duration) -> Duration {
        time.mul_f64(self.leases.factor().max(1.0))
    }
}

/// The maximum number of keep-alives without an echo: more than one lease has.
const MAX_UNANSWERED: usize = 64;

#[cfg(test)]
mod tests;
