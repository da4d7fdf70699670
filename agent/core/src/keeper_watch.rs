//! Decides when a keeper that does not answer is reported, and when it is killed.
//!
//! A keeper may be stopped, or blocked while it starts a program from a dead file system. It then notices
//! neither the end of a worker nor the end of the lease. So:
//!
//! 1. It is pinged while it has workers, and silence is reported.
//! 2. It is killed if it has not reacted shortly after the end of the lease. This also kills the workers.

use std::{collections::VecDeque, time::Instant};

use crate::limits;

/// An action for the driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Ping the keeper, which answers at once.
    Ping,
    /// Report that the keeper does not answer.
    ReportSilence,
    /// Report that the keeper answers again.
    ReportAnswer,
    /// Kill the keeper: the lease is over, so its workers must not run any longer.
    Kill,
}

/// Watches the keeper of one worker group.
#[derive(Debug)]
pub struct KeeperWatch {
    next_ping: Instant,
    /// The time at which the oldest unanswered ping was sent.
    pinged: Option<Instant>,
    is_reported: bool,
    lease: WorkerLease,
    effects: VecDeque<Effect>,
}

/// The lease of the keeper's workers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum WorkerLease {
    /// Workers may run without a lease.
    Unlimited,
    Until(Instant),
    /// The lease is over, and the keeper has not reacted yet. The agent noticed it at this moment.
    Over(Instant),
    /// The lease is over, and the keeper has reacted or was killed.
    Settled,
}

impl KeeperWatch {
    /// Watches a keeper that starts workers at `now`. `lease` is the end of their lease, if they have one.
    pub fn new(now: Instant, lease: Option<Instant>) -> Self {
        Self {
            next_ping: now + limits::KEEPER_PING_INTERVAL,
            pinged: None,
            is_reported: false,
            lease: lease.map_or(WorkerLease::Unlimited, WorkerLease::Until),
            effects: VecDeque::new(),
        }
    }

    /// Notes that the lease now runs until `until`, which is sent to the keeper. A ping that is due soon is
    /// sent with it, so that both processes wake up only once.
    pub fn handle_renewed(&mut self, now: Instant, until: Instant) {
        self.lease = WorkerLease::Until(until);
        if self.next_ping <= now + limits::KEEPER_PING_EARLY {
            self.ping(now);
        }
    }

    /// Notes the answer to a ping.
    pub fn handle_pong(&mut self) {
        self.pinged = None;
        if std::mem::take(&mut self.is_reported) {
            self.effects.push_back(Effect::ReportAnswer);
        }
    }

    /// Notes any other report of the keeper. It sends one when it kills workers.
    ///
    /// A pong is not enough, because it may have been sent just before the keeper was stopped.
    pub fn handle_report(&mut self, now: Instant) {
        self.handle_pong();
        let is_over = match self.lease {
            WorkerLease::Until(until) => until <= now,
            WorkerLease::Over(_) => true,
            WorkerLease::Unlimited | WorkerLease::Settled => false,
        };
        if is_over {
            self.lease = WorkerLease::Settled;
        }
    }

    /// Returns the earliest deadline.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let silence = self.pinged.filter(|_| !self.is_reported);
        let silence = silence.map(|at| at + limits::KEEPER_PATIENCE);
        let lease = match self.lease {
            WorkerLease::Until(until) => Some(until),
            WorkerLease::Over(since) => Some(since + limits::KEEPER_LEASE_MARGIN),
            WorkerLease::Unlimited | WorkerLease::Settled => None,
        };
        [Some(self.next_ping), silence, lease].into_iter().flatten().min()
    }

    /// Applies every deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.next_ping <= now {
            self.ping(now);
        }
        if self.pinged.is_some_and(|at| at + limits::KEEPER_PATIENCE <= now) && !self.is_reported {
            self.is_reported = true;
            self.effects.push_back(Effect::ReportSilence);
        }
        match self.lease {
            // The margin begins when the agent itself notices the end, because a paused agent has not waited.
            WorkerLease::Until(until) if until <= now => self.lease = WorkerLease::Over(now),
            WorkerLease::Over(since) if since + limits::KEEPER_LEASE_MARGIN <= now => {
                self.lease = WorkerLease::Settled;
                self.effects.push_back(Effect::Kill);
            }
            WorkerLease::Until(_)
            | WorkerLease::Over(_)
            | WorkerLease::Unlimited
            | WorkerLease::Settled => {}
        }
    }

    /// Returns the next effect; `None` if there are none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    fn ping(&mut self, now: Instant) {
        self.next_ping = now + limits::KEEPER_PING_INTERVAL;
        // An unanswered ping is not repeated.
        if self.pinged.is_none() {
            self.pinged = Some(now);
            self.effects.push_back(Effect::Ping);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    struct Fixture {
        watch: KeeperWatch,
        start: Instant,
        now: Instant,
    }

    impl Fixture {
        /// A keeper whose lease ends after `ms`.
        fn new(ms: Option<u32>) -> Self {
            let now = crate::some_instant();
            Self { watch: KeeperWatch::new(now, ms.map(|ms| now + ms * MS)), start: now, now }
        }

        /// Answers the pings that are sent at `now`, and returns their number. The last one was sent at
        /// `pinged`.
        fn answer(&mut self, pinged: &mut Instant, now: Instant) -> usize {
            let pings = std::iter::from_fn(|| self.watch.poll_effect()).count();
            if pings > 0 {
                assert!(now <= *pinged + limits::KEEPER_PING_INTERVAL);
                *pinged = now;
                self.watch.handle_pong();
            }
            pings
        }

        /// Advances the clock by `ms`. The keeper answers pings if it `runs`.
        fn advance(&mut self, ms: u32, runs: bool) -> Vec<Effect> {
            let end = self.now + ms * MS;
            let mut effects = Vec::new();
            while let Some(next) = self.watch.poll_timeout().filter(|next| *next <= end) {
                self.now = next.max(self.now);
                self.watch.handle_timeout(self.now);
                while let Some(effect) = self.watch.poll_effect() {
                    if effect == Effect::Ping && runs {
                        self.watch.handle_pong();
                    }
                    effects.push(effect);
                }
            }
            self.now = end;
            effects.retain(|effect| *effect != Effect::Ping);
            effects
        }
    }

    /// After the end of a lease, the keeper has 300 ms to kill the workers. Then the agent kills them, even if it has sent a ping meanwhile.
    #[test]
    fn keeper_has_a_margin_after_its_lease() {
        let mut t = Fixture::new(Some(900));
        assert_eq!(t.advance(1_199, true), []);
        assert_eq!(t.advance(1, true), [Effect::Kill]);
    }

    /// A keeper that answers is pinged forever, and nothing is reported.
    #[test]
    fn answers_are_no_news() {
        let mut t = Fixture::new(None);
        assert_eq!(t.advance(60_000, true), []);
    }

    /// A silent keeper is reported within two seconds, once, and so is its answer.
    #[test]
    fn silence_is_reported_once() {
        let mut t = Fixture::new(None);
        t.advance(10_000, true);
        assert_eq!(t.advance(2_000, false), [Effect::ReportSilence]);
        assert_eq!(t.advance(60_000, false), []);
        t.watch.handle_pong();
        assert_eq!(t.watch.poll_effect(), Some(Effect::ReportAnswer));
    }

    /// A keeper that does not react to the end of the lease is killed 300 ms later, once.
    #[test]
    fn silent_keeper_is_killed_after_the_lease() {
        let mut t = Fixture::new(Some(700));
        assert_eq!(t.advance(999, false), []);
        assert_eq!(t.advance(1, false), [Effect::Kill]);
        assert_eq!(t.advance(800, false), []);
        // Pings have deadlines of their own in between.
        let mut t = Fixture::new(Some(700));
        assert_eq!(t.advance(800, true), []);
        t.watch.handle_timeout(t.now);
        assert_eq!(t.advance(199, true), []);
        assert_eq!(t.advance(1, true), [Effect::Kill]);
    }

    /// A keeper that reports kills after the end of the lease works, even if the report is read before the
    /// timer fires. A pong proves nothing.
    #[test]
    fn reacting_keeper_is_not_killed() {
        let mut t = Fixture::new(Some(700));
        t.now += 700 * MS;
        t.watch.handle_report(t.now);
        assert_eq!(t.advance(60_000, true), []);
        let mut t = Fixture::new(Some(700));
        t.advance(800, true);
        t.watch.handle_pong();
        assert_eq!(t.advance(300, true), [Effect::Kill]);
        let mut t = Fixture::new(Some(700));
        t.advance(800, false);
        t.watch.handle_report(t.now);
        assert_eq!(t.advance(60_000, true), []);
    }

    /// Reports before the end of the lease do not count. A renewal moves the end.
    #[test]
    fn renewal_moves_the_end() {
        let mut t = Fixture::new(Some(700));
        t.watch.handle_report(t.now);
        t.advance(600, false);
        t.watch.handle_renewed(t.now, t.now + 700 * MS);
        assert_eq!(t.advance(999, false), []);
        assert_eq!(t.advance(1, false), [Effect::Kill]);
    }

    /// While the lease is renewed, pings are sent with renewals, and never later than their interval.
    #[test]
    fn pings_are_sent_with_renewals() {
        for interval in [300, 450, 5_000] {
            let mut t = Fixture::new(Some(10_000));
            let (mut pinged, mut alone) = (t.now, 0);
            while t.now < t.start + 20_000 * MS {
                let renewed_at = t.now + interval * MS;
                while let Some(due) = t.watch.poll_timeout().filter(|due| *due < renewed_at) {
                    t.watch.handle_timeout(due);
                    alone += t.answer(&mut pinged, due);
                }
                t.now = renewed_at;
                t.watch.handle_renewed(t.now, t.now + 10_000 * MS);
                t.answer(&mut pinged, renewed_at);
            }
            assert_eq!(alone > 0, interval == 5_000, "renewals every {interval} ms");
        }
    }

    /// An agent that was paused grants the keeper the margin from the moment at which it resumes.
    #[test]
    fn paused_agent_does_not_kill_its_keeper() {
        let mut t = Fixture::new(Some(700));
        t.now += 10_000 * MS;
        t.watch.handle_timeout(t.now);
        assert_eq!(t.advance(299, true), []);
        t.watch.handle_report(t.now);
        assert_eq!(t.advance(5_000, true), []);
    }
}
