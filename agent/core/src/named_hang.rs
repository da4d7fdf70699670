//! Decides whether a worker that the coordinator names as hung is killed.
//!
//! 1. The coordinator names a worker. If others wait for it because a signal has stopped it, it is watched first.
//! 2. Its stack is taken, which may last many seconds.
//! 3. It is killed if the coordinator still names it. A worker that was stopped must still be stopped. If it has gone on,
//!    the watch begins again.
//!
//! The machine has no process and no clock.

use std::time::Instant;

use ragent_rendezvous::ids::LocalRank;

use crate::{hang::Hang, stopped_watch::StoppedWatch};

/// The worker of this node that the coordinator names as hung, if any.
#[derive(Debug, Default)]
pub struct NamedHang(Option<Named>);

#[derive(Debug)]
enum Named {
    /// It is to be killed in any case.
    Hung(LocalRank),
    /// It is to be killed if it stays stopped.
    Stopped(StoppedWatch),
}

impl NamedHang {
    /// Notes that the coordinator names this worker; `None` if it names none, or one of another node. Returns the hang
    /// if its stack is to be taken now.
    pub fn handle_named(
        &mut self,
        now: Instant,
        hang: Option<Hang>,
        if_stopped: bool,
    ) -> Option<Hang> {
        let watch = |Hang { local_rank, time }| StoppedWatch::new(now, local_rank, time);
        self.0 = hang.map(|hang| {
            if if_stopped { Named::Stopped(watch(hang)) } else { Named::Hung(hang.local_rank) }
        });
        hang.filter(|_| !if_stopped)
    }

    /// Returns the worker that is watched.
    pub fn watched(&self) -> Option<LocalRank> {
        match &self.0 {
            Some(Named::Stopped(watch)) => Some(watch.local_rank()),
            Some(Named::Hung(_)) | None => None,
        }
    }

    /// Returns the time of the next examination of the watched worker; `None` if there is none.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.0 {
            Some(Named::Stopped(watch)) => watch.poll_timeout(),
            Some(Named::Hung(_)) | None => None,
        }
    }

    /// Notes whether a worker is stopped at `now`. Returns the hang if its stack is to be taken now.
    pub fn handle_look(
        &mut self,
        now: Instant,
        local_rank: LocalRank,
        is_stopped: bool,
    ) -> Option<Hang> {
        match &mut self.0 {
            Some(Named::Stopped(watch)) if watch.local_rank() == local_rank => {
                watch.handle_look(now, is_stopped)
            }
            Some(Named::Stopped(_) | Named::Hung(_)) | None => None,
        }
    }

    /// Notes that the stack of a worker was taken, and whether the worker is stopped after that. Returns true if it is
    /// to be killed.
    pub fn handle_stacks(&mut self, now: Instant, local_rank: LocalRank, is_stopped: bool) -> bool {
        match &mut self.0 {
            Some(Named::Hung(named)) => *named == local_rank,
            // A watch that is not over is a new one: the coordinator has named the worker again meanwhile.
            Some(Named::Stopped(watch)) => {
                let is_over = watch.poll_timeout().is_none() && watch.local_rank() == local_rank;
                if is_over && !is_stopped {
                    watch.begin_again(now);
                }
                is_over && is_stopped
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    const RANK: LocalRank = LocalRank(1);

    /// Names worker 1 as hung.
    fn named(if_stopped: bool) -> (NamedHang, Instant, Option<Hang>) {
        let now = crate::some_instant() + 1_000 * SECOND;
        let mut hang = NamedHang::default();
        let named = Hang { local_rank: RANK, time: 100 * SECOND };
        let taken = hang.handle_named(now, Some(named), if_stopped);
        (hang, now, taken)
    }

    /// Finds the worker stopped once a second, until its stack is taken.
    fn stay_stopped(hang: &mut NamedHang, now: &mut Instant) {
        let mut taken = None;
        while taken.is_none() {
            *now = hang.poll_timeout().unwrap();
            taken = hang.handle_look(*now, RANK, true);
        }
    }

    /// A worker that the coordinator still names after its stack was taken is killed, and no other one.
    #[test]
    fn named_worker_is_killed() {
        let (mut hang, now, taken) = named(false);
        assert_eq!(taken.map(|hang| hang.local_rank), Some(RANK));
        assert_eq!((hang.watched(), hang.poll_timeout()), (None, None));
        assert!(!hang.handle_stacks(now, LocalRank(0), false));
        assert!(hang.handle_stacks(now, RANK, false));
    }

    /// A worker that the coordinator no longer names lives, also if its stack was being taken.
    #[test]
    fn worker_that_is_no_longer_named_lives() {
        let (mut hang, now, _) = named(false);
        assert_eq!(hang.handle_named(now, None, false), None);
        assert!(!hang.handle_stacks(now, RANK, false));
        let (mut hang, mut now, _) = named(true);
        stay_stopped(&mut hang, &mut now);
        hang.handle_named(now, None, false);
        assert!(!hang.handle_stacks(now, RANK, true));
    }

    /// A worker that stays stopped is killed. If it goes on while its stack is taken, it lives, and is watched again.
    #[test]
    fn worker_that_goes_on_lives() {
        let (mut hang, mut now, taken) = named(true);
        assert_eq!((taken, hang.watched()), (None, Some(RANK)));
        assert_eq!(hang.handle_look(now, LocalRank(0), true), None);
        stay_stopped(&mut hang, &mut now);
        assert_eq!(hang.poll_timeout(), None);
        now += 15 * SECOND;
        assert!(!hang.handle_stacks(now, RANK, false));
        let begin = now;
        stay_stopped(&mut hang, &mut now);
        assert!(now - begin > 30 * SECOND);
        assert!(hang.handle_stacks(now, RANK, true));
    }

    /// A stack that was being taken when the coordinator names the stopped worker again does not shorten its watch.
    #[test]
    fn watch_of_another_order_is_not_shortened() {
        let (mut hang, mut now, _) = named(true);
        stay_stopped(&mut hang, &mut now);
        hang.handle_named(now, None, false);
        hang.handle_named(now, Some(Hang { local_rank: RANK, time: SECOND }), true);
        assert!(!hang.handle_stacks(now, RANK, true));
        stay_stopped(&mut hang, &mut now);
        assert!(hang.handle_stacks(now, RANK, true));
    }

    /// Neither the state of another worker nor its stack changes the watch.
    #[test]
    fn other_workers_do_not_count() {
        let (mut hang, mut now, _) = named(true);
        let begin = now;
        for _ in 0..20 {
            now = hang.poll_timeout().unwrap();
            assert_eq!(hang.handle_look(now, RANK, true), None);
            assert_eq!(hang.handle_look(now, LocalRank(0), false), None);
        }
        stay_stopped(&mut hang, &mut now);
        assert_eq!(now - begin, 31 * SECOND);
        assert!(!hang.handle_stacks(now, LocalRank(0), true));
        assert!(!hang.handle_stacks(now, LocalRank(0), false));
        assert_eq!(hang.poll_timeout(), None);
        assert!(hang.handle_stacks(now, RANK, true));
    }
}
