//! Votes and grants leases as a follower, and decides when to become a candidate.

use std::time::{Duration, Instant};

use ragent_rendezvous::{
    ids::{NodeId, Term, VoterAddress},
    limits::{NUMBER_MAX, VOTERS_MAX},
};
use tracing::debug;

use crate::election::{
    Election, Role,
    message::{Answer, Knowledge, Replica},
};

impl Election {
    pub(super) fn handle_vote(
        &mut self,
        now: Instant,
        (process, knows): (&NodeId, Knowledge),
        term: Term,
    ) -> Answer {
        let is_granted = !self.is_leading()
            && term.0 <= NUMBER_MAX
            && self.voter.vote(now, (process, knows), term);
        if is_granted {
            self.highest = self.highest.max(term);
            debug!(%process, %term, "voted");
            // The candidate is elected within its poll, or not at all. Its poll may be longer than
            // this voter's, because it may have failed more often.
            self.stand_after(now, self.longest_poll() + self.settings.timers.pause);
        }
        self.voter.answer(now, is_granted, knows)
    }

    pub(super) fn handle_renewal(
        &mut self,
        now: Instant,
        address: &VoterAddress,
        (process, term): (&NodeId, Term),
        replica: &Replica,
    ) -> Answer {
        let may_grant = !self.is_leading() && !self.has_just_started(now);
        let timers = self.settings.timers;
        let is_granted = may_grant
            && term.0 <= NUMBER_MAX
            && self.voter.renew(now, timers, (process, term), replica);
        if is_granted {
            self.highest = self.highest.max(term);
            self.failures = 0;
            self.note_process(address, process);
            self.announce(Some((address.clone(), term)));
            self.follow(now);
        }
        self.voter.answer(now, is_granted, replica.knowledge())
    }

    /// Waits as a follower until the lease that this voter has granted ends.
    pub(super) fn follow(&mut self, now: Instant) {
        let lease = self.voter.lease(now).map(|lease| lease.until.saturating_duration_since(now));
        if lease.is_none() {
            self.announce(None);
        }
        self.stand_after(now, lease.unwrap_or_default());
    }

    /// Waits as a follower for `delay`, and for a stagger that depends on its position in the
    /// newest list. A single voter has no stagger.
    pub(super) fn stand_after(&mut self, now: Instant, delay: Duration) {
        let is_own = |address: &VoterAddress| *address == self.settings.address;
        let slots = &self.voter.replica().lists.last;
        let turn = slots.iter().position(|slot| is_own(&slot.address)).unwrap_or(VOTERS_MAX);
        let turn = u32::try_from(turn).unwrap_or(u32::MAX);
        // A single voter has no rival.
        let is_alone = slots.len() == 1 && turn == 0;
        let stagger = if is_alone { Duration::ZERO } else { self.settings.timers.stagger };
        let random = stagger.mul_f64(self.jitter.fraction());
        // A voter that has just started may have forgotten a lease, so it waits until that has
        // ended.
        let free_at = if self.has_just_started(now) { self.voter.silent_until() } else { now };
        let stands_at = free_at.max(now + delay) + stagger.saturating_mul(turn) + random;
        self.role = Role::Follower { stands_at };
    }
}
