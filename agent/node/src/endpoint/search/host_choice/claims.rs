//! Decides which of the hosts that other agents name are tried, continued, or asked to step down.

use std::{net::SocketAddr, time::Instant};

use super::{ChoiceState, Effect, HostChoice, NamedHost, Sources};
use crate::endpoint::{limits, search::places::PlaceChoice};

impl HostChoice {
    /// Continues the host of this machine, which may have been killed, if a present agent names it. Replayed datagrams are not enough.
    pub(super) fn judge_own_places(&mut self, now: Instant) {
        for at in self.own_places.iter().copied().collect::<Vec<_>>() {
            let named = self.claims.iter().filter(|(_, claim)| claim.host == at);
            let mut named = named.map(|(number, _)| *number);
            if named.clone().any(|number| self.claimants.is_present(number)) {
                self.own_places.clear();
                self.state = ChoiceState::Chosen;
                return self.effects.push_back(Effect::Continue(at));
            }
            if named.all(|number| self.claimants.is_absent(number)) {
                self.own_places.remove(&at);
                self.places.handle_failed(now, at);
                self.effects.push_back(Effect::Drop(at));
            }
        }
    }

    /// Notes that the agent `by` at `peer` names `host` as the host.
    pub(super) fn note_host(&mut self, now: Instant, by: u64, host: SocketAddr, peer: SocketAddr) {
        match &mut self.state {
            ChoiceState::Looking { .. } => {
                let before = self.claims.get(&by).map(|claim| claim.sources);
                let sources = Sources::after(peer, before);
                if self.note_claim(by, NamedHost { last: now, sources, host })
                    && let Some(nonce) = self.claimants.ask(now, by)
                {
                    self.send_question(by, nonce);
                }
                self.first_claim.get_or_insert(now);
                match self.places.handle_named(now, host, peer.ip()) {
                    PlaceChoice::Try => self.effects.push_back(Effect::Try(host)),
                    PlaceChoice::TryInsteadOf(replaced) => {
                        self.own_places.remove(&replaced);
                        self.effects.extend([Effect::Drop(replaced), Effect::Try(host)]);
                    }
                    PlaceChoice::Ignore => {}
                }
            }
            // This agent hosts in a moment. It learns of the other host after that.
            ChoiceState::Chosen => {}
            ChoiceState::Found { at, is_host, next_answer, .. } => {
                let (at, is_host) = (*at, *is_host);
                if !is_host {
                    // The host or another member has answered.
                    *next_answer = None;
                }
                if at != host && self.is_due(now, host) {
                    if is_host {
                        self.effects.push_back(Effect::AskRival(host));
                    }
                    // The sender and the other host may have no other way to learn of this host.
                    self.answer(peer);
                    if host.ip() != peer.ip() {
                        self.answer((host.ip(), peer.port()).into());
                    }
                }
            }
        }
    }

    /// Remembers a claim. If there are many, a claim of an absent agent makes room. Returns true if there was room.
    pub(super) fn note_claim(&mut self, by: u64, claim: NamedHost) -> bool {
        if !self.claims.contains_key(&by) && self.claims.len() >= limits::MAX_CLAIMS {
            let absent = |number: &&u64| self.claimants.is_absent(**number);
            let Some(&absent) = self.claims.keys().find(absent) else { return false };
            self.claims.remove(&absent);
            self.claimants.retain(|number| number != absent);
        }
        self.claims.insert(by, claim);
        self.silent_at.get_or_insert(claim.last + self.pace.patience);
        true
    }

    /// Ends the search if a place has refused this agent, no other host was found since, and a present agent names the place.
    pub(super) fn handle_refusal_end(&mut self, now: Instant) {
        let Some((at, _)) = self.refused.filter(|(_, since)| now >= *since + self.pace.refusal)
        else {
            return;
        };
        self.refused = None;
        let is_named = |(number, claim): (&u64, &NamedHost)| {
            claim.host == at && self.claimants.is_present(*number)
        };
        if self.claims.iter().any(is_named) {
            self.effects.push_back(Effect::GiveUp(at));
        }
    }

    /// Returns true if another host should be asked now. It is then not asked again for a while.
    pub(super) fn is_due(&mut self, now: Instant, host: SocketAddr) -> bool {
        self.rivals.retain(|_, until| now < *until);
        let is_due = !self.rivals.contains_key(&host) && self.rivals.len() < limits::MAX_RIVALS;
        if is_due {
            self.rivals.insert(host, now + self.pace.last_pause);
        }
        is_due
    }
}
