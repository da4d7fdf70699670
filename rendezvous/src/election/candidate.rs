//! The steps of a candidacy: who would vote, who has voted, and the pause after a failure.

use std::{mem, time::Instant};

use tracing::debug;

use crate::{
    election::{
        Election, Role,
        leader::Leader,
        message::{Answer, Replica, Request, Version},
        poll::{Ballot, Poll, Tally},
        timers::Timers,
    },
    ids::NodeId,
    limits::PAUSE_DOUBLINGS_MAX,
};

impl Election {
    /// Becomes a follower for a while, after a candidacy without success.
    pub(super) fn pause(&mut self, now: Instant) {
        let Timers { pause, pause_max, .. } = self.settings.timers;
        let doubled = pause * (1 << self.failures.min(PAUSE_DOUBLINGS_MAX));
        self.failures = self.failures.saturating_add(1);
        let mut delay = doubled.min(pause_max);
        if self.voter.is_fresh(now) {
            delay = delay.min(self.voter.mute_until().saturating_duration_since(now));
        }
        self.stand_after(now, delay);
    }

    /// Stands for election: asks first who would vote.
    pub(super) fn stand(&mut self, now: Instant) {
        if !self.voter.is_free_for(now, &self.settings.process) {
            self.follow(now);
            return;
        }
        let mut poll = self.new_poll(now);
        let answer = self.voter.answer(now, true, false);
        poll.record_own(self.settings.place, self.own_ballot(now, answer));
        let sequence = poll.sequence;
        self.role = Role::Asking(poll);
        for place in self.others() {
            self.send(now, place, sequence, Request::Ask);
        }
        self.count(now);
    }

    /// Counts the answers of the poll, and goes on if they suffice.
    pub(super) fn count(&mut self, now: Instant) {
        match &self.role {
            Role::Follower { .. } | Role::Leading(_) => {}
            Role::Asking(poll) => match poll.tally() {
                Tally::AllFresh => self.ask_for_votes(now, poll.processes()),
                // Its own voter may have forgotten a lease.
                Tally::Won if self.voter.is_fresh(now) => self.pause(now),
                Tally::Won => self.ask_for_votes(now, Vec::new()),
                Tally::Lost => self.pause(now),
                Tally::Open => {}
            },
            Role::Voting { poll, cold, .. } => {
                let tally = if cold.is_empty() { poll.tally() } else { poll.tally_of(cold) };
                match tally {
                    Tally::Won => self.begin_to_lead(now),
                    Tally::Lost | Tally::AllFresh => self.pause(now),
                    Tally::Open => {}
                }
            }
        }
    }

    fn ask_for_votes(&mut self, now: Instant, cold: Vec<Option<NodeId>>) {
        let nonce = u16::try_from(self.jitter.bits() >> 48).unwrap_or(u16::MAX);
        let term = self.highest.proposed(nonce);
        let process = self.settings.process.clone();
        let is_granted = self.voter.vote(now, &process, term);
        self.highest = self.highest.max(term);
        let mut poll = self.new_poll(now);
        let answer = self.voter.answer(now, is_granted, true);
        poll.record_own(self.settings.place, self.own_ballot(now, answer));
        let sequence = poll.sequence;
        debug!(%term, is_cold = !cold.is_empty(), "asking for votes");
        for place in self.others() {
            let cold = cold.get(place.0).cloned().flatten();
            self.send(now, place, sequence, Request::Vote { term, cold });
        }
        self.role = Role::Voting { poll, term, cold };
        self.count(now);
    }

    /// Begins to send renewals, the first of which must be granted before this process leads.
    fn begin_to_lead(&mut self, now: Instant) {
        let role = mem::replace(&mut self.role, Role::Follower { stands_at: now });
        let Role::Voting { poll, term, cold } = role else {
            self.role = role;
            return;
        };
        let inheritance = poll.inheritance(now);
        let memory = inheritance.replica.as_ref().and_then(|replica| replica.memory.clone());
        let (timers, voters) = (self.settings.timers, self.settings.voters);
        if !cold.is_empty() {
            self.voter.end_silence(now);
        }
        let leader = Leader::new(now, timers, term, cold, inheritance, voters);
        self.role = Role::Leading(Box::new(leader));
        let version = Version { term, number: 0 };
        self.grant_own(now, &Replica { version, memory });
        self.renew(now);
        self.extend();
    }

    fn new_poll(&mut self, now: Instant) -> Poll {
        self.sequence += 1;
        Poll::new(self.sequence, now + self.settings.timers.poll, self.settings.voters)
    }

    fn own_ballot(&self, now: Instant, answer: Answer) -> Ballot {
        Ballot::new(now, self.settings.process.clone(), self.voter.is_fresh(now), answer)
    }
}
