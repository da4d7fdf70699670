//! Carries out a candidacy: the pre-vote, the vote, and the pause after a failure.

use std::{
    mem,
    time::{Duration, Instant},
};

use ragent_rendezvous::jitter::doubled;
use tracing::debug;

use crate::{
    election::{
        Election, Role,
        leader::ElectionLeader,
        message::{Answer, Request},
        poll::{Poll, PollOutcome},
        timers::Timers,
    },
    limits::{PAUSE_DOUBLINGS_MAX, POLL_FACTOR_MAX},
};

impl Election {
    /// Waits as a follower after a failed candidacy.
    pub(super) fn pause(&mut self, now: Instant) {
        let Timers { pause, pause_max, .. } = self.settings.timers;
        let pause = doubled(pause, self.failures.min(PAUSE_DOUBLINGS_MAX), pause_max);
        self.failures = self.failures.saturating_add(1);
        self.stand_after(now, pause);
    }

    /// Becomes a candidate, and begins the pre-vote.
    pub(super) fn stand(&mut self, now: Instant) {
        if !self.voter.is_free_for(now, &self.settings.process) {
            self.follow(now);
            return;
        }
        let answer = self.voter.answer(now, true, self.voter.replica().knowledge());
        let poll = self.new_poll(now, answer);
        let sequence = poll.sequence;
        self.role = Role::PreCandidate(poll);
        for address in self.others() {
            self.send(now, address, sequence, Request::PreVote);
        }
        self.count(now);
    }

    /// Counts the answers to the poll, and takes the next step if they decide it.
    pub(super) fn count(&mut self, now: Instant) {
        let replica = self.voter.replica();
        match &self.role {
            Role::Follower { .. } | Role::Leader(_) => {}
            Role::PreCandidate(poll) => match poll.outcome(replica) {
                PollOutcome::Won => self.ask_for_votes(now),
                PollOutcome::Lost => self.pause(now),
                PollOutcome::Open => {}
            },
            Role::Candidate { poll, .. } => match poll.outcome(replica) {
                PollOutcome::Won => self.begin_to_lead(now),
                PollOutcome::Lost => self.pause(now),
                PollOutcome::Open => {}
            },
        }
    }

    fn ask_for_votes(&mut self, now: Instant) {
        let nonce = u16::try_from(self.jitter.bits() >> 48).unwrap_or(u16::MAX);
        let term = self.highest.proposed(nonce);
        let knows = self.voter.replica().knowledge();
        let is_granted = self.voter.vote(now, (&self.settings.process.clone(), knows), term);
        self.highest = self.highest.max(term);
        let answer = self.voter.answer(now, is_granted, knows);
        let poll = self.new_poll(now, answer);
        let sequence = poll.sequence;
        debug!(%term, "asking for votes");
        for address in self.others() {
            self.send(now, address, sequence, Request::Vote { term });
        }
        self.role = Role::Candidate { poll, term };
        self.count(now);
    }

    /// Begins to send renewals. This process leads when a majority has granted the first one.
    fn begin_to_lead(&mut self, now: Instant) {
        let role = mem::replace(&mut self.role, Role::Follower { stands_at: now });
        let Role::Candidate { poll, term } = role else {
            self.role = role;
            return;
        };
        let inheritance = poll.inheritance(now);
        let deadline = now + self.poll_time();
        let leader = ElectionLeader::new(now, deadline, term, inheritance);
        self.role = Role::Leader(Box::new(leader));
        self.write_in_own_term(now);
    }

    /// Begins a poll with the answer of this process itself.
    fn new_poll(&mut self, now: Instant, answer: Answer) -> Poll {
        self.sequence += 1;
        let mut poll = Poll::new(self.sequence, now + self.poll_time());
        let own = self.message(now, self.sequence, answer);
        poll.record(now, self.settings.timers, own);
        poll
    }

    /// Returns how long this candidate waits for answers: longer after failures, because the
    /// network may be slow.
    pub(super) fn poll_time(&self) -> Duration {
        doubled(self.settings.timers.poll, self.failures, self.longest_poll())
    }

    /// Returns the longest time for which any candidate waits for answers.
    pub(super) fn longest_poll(&self) -> Duration {
        self.settings.timers.poll * POLL_FACTOR_MAX
    }
}
