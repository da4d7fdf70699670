//! Asks the agents that this one waits for whether they are present.
//!
//! An agent that does not answer is passed over.

use std::{ops::Bound, time::Instant};

use ragent_base::spec::Eligible;

use super::{Effect, HostChoice, OtherSearcher};
use crate::endpoint::{
    limits,
    search::{
        challenges::ExpiredDeadlines,
        datagram::{Candidate, SearchMessage},
    },
};

impl HostChoice {
    /// Repeats questions, and passes over agents that have not answered.
    pub(super) fn handle_absence(&mut self, now: Instant) {
        let before = self.lowest();
        let timeouts = [&mut self.challenges, &mut self.claimants];
        for ExpiredDeadlines { repeated, has_ended } in
            timeouts.map(|asked| asked.handle_timeout(now))
        {
            for (number, nonce) in repeated {
                self.send_question(number, nonce);
            }
            if has_ended {
                self.doubt_at(now);
            }
        }
        if self.lowest() != before {
            // Others may wait for this agent's consent.
            self.hasten(now);
        }
    }

    /// Plans to ask agents at `at`, unless an earlier time is planned.
    pub(super) fn doubt_at(&mut self, at: Instant) {
        self.next_doubt = Some(self.next_doubt.map_or(at, |earlier| earlier.min(at)));
    }

    /// Asks the agents that this one waits for whether they are present.
    pub(super) fn doubt(&mut self, now: Instant) {
        self.next_doubt = None;
        for number in self.claims.keys().copied().collect::<Vec<_>>() {
            let nonce = self.claimants.ask(now, number);
            self.note_question(now, number, nonce, self.claimants.renewal(number));
        }
        for (number, since) in self.doubtful() {
            let due = since + self.pace.doubt;
            if now >= due {
                let nonce = self.challenges.ask(now, number);
                self.note_question(now, number, nonce, self.challenges.renewal(number));
            } else {
                self.doubt_at(due);
            }
        }
    }

    /// Sends a question, if there is one. Plans the next one for `renewal`.
    pub(super) fn note_question(
        &mut self,
        now: Instant,
        number: u64,
        nonce: Option<u64>,
        renewal: Option<Instant>,
    ) {
        if let Some(nonce) = nonce {
            self.send_question(number, nonce);
        }
        // If it is already due, it waits for the end of another question.
        if let Some(at) = renewal.filter(|at| *at > now) {
            self.doubt_at(at);
        }
    }

    pub(super) fn send_question(&mut self, to: u64, nonce: u64) {
        let claim = self.claims.get(&to).map(|claim| claim.sources);
        let other = || self.others.iter().find(|(other, _)| other.number == to);
        if let Some(sources) = claim.or_else(|| other().map(|(_, other)| other.sources)) {
            let question = SearchMessage::Ask { by: self.own.number, to, nonce };
            self.effects.push_back(Effect::Send(sources.iter().collect(), question));
        }
    }

    /// Returns the searching agents that this one waits for, each with the time of its first datagram.
    pub(super) fn doubtful(&self) -> Vec<(u64, Instant)> {
        let is_not_absent =
            |(by, _): &(&Candidate, &OtherSearcher)| !self.challenges.is_absent(by.number);
        let entry = |(by, other): (&Candidate, &OtherSearcher)| (by.number, other.since);
        let most = match self.eligible {
            Eligible::IfLowest => limits::MAX_CHALLENGES,
            // This agent waits for none itself, but others wait for the candidate that it reports.
            Eligible::Always | Eligible::Never => 1,
        };
        let mut lower = Vec::new();
        for candidate in self.lower().filter(is_not_absent) {
            // One present agent is enough to wait for: it waits for the lower ones, or it hosts.
            if self.challenges.is_present(candidate.0.number) {
                return vec![entry(candidate)];
            }
            if lower.len() < most {
                lower.push(entry(candidate));
            }
        }
        if lower.is_empty() && self.eligible == Eligible::IfLowest {
            lower.extend(self.disagreeing().filter(is_not_absent).map(entry).take(most));
        }
        lower
    }

    /// Returns the agents that do not agree that this one is the lowest candidate: they do not know it, or know a lower one, which is
    /// unknown here.
    pub(super) fn disagreeing(&self) -> impl Iterator<Item = (&Candidate, &OtherSearcher)> {
        self.others.iter().filter(|(_, other)| {
            let is_known = |lowest: Candidate| self.others.contains_key(&lowest);
            other
                .lowest
                .is_none_or(|lowest| lowest > self.own || (lowest < self.own && !is_known(lowest)))
        })
    }

    /// Returns the candidates below this agent, lowest first.
    pub(super) fn lower(&self) -> impl Iterator<Item = (&Candidate, &OtherSearcher)> {
        let may_host = self.eligible != Eligible::Never;
        let end = if may_host { Bound::Excluded(self.own) } else { Bound::Unbounded };
        self.others.range((Bound::Unbounded, end)).filter(|(_, other)| other.may_host)
    }
}
