//! Decides when a local worker group has failed, has ended, or must be killed.
//!
//! ```text
//!          a worker fails | stop             groups quiet | grace over
//! Running ─────────────────────▶ Stopping ────────────────────────────▶ CleaningUp ──▶ Ended
//!    │                                                                     ▲
//!    └── all exited 0 ─────────────────────────────────────────────────────┤
//!    └── kill, hung ───────────────────────────────────────────────────────┘
//! ```
//!
//! A group stops in three steps:
//!
//! 1. Every worker gets the signal. What its main process has started follows when that has ended, or after half of the time.
//! 2. The processes of these groups have the grace period.
//! 3. The keeper kills and reaps the whole tree, including processes that called `setsid`.
//!
//! After that, no process of the group is left. [`Effect::Finish`] is the last effect, once. The machine has
//! no process and no clock.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use ragent_rendezvous::{ids::LocalRank, message::WorkerEnd};

use crate::{limits, signal::Signal};

/// An event in a worker group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Input {
    /// A worker ended, or could not be started.
    Ended(LocalRank, WorkerEnd),
    /// All workers have ended, and their process groups are empty.
    Quiet,
    /// The whole process tree is empty.
    Reaped,
    /// A request to end the group.
    Stop {
        /// The signal to send to its workers.
        signal: Signal,
        /// The time that they have to end.
        grace: Duration,
    },
    /// A request to kill the group.
    Kill,
    /// The group has made no progress for this time, and this worker for the longest time.
    Hung(LocalRank, Duration),
    /// The keeper is gone, and its descendants have been killed and reaped.
    KeeperLost,
}

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Report the group's first failure to the agent.
    Failed(LocalRank, WorkerEnd),
    /// Signal every worker.
    Signal(Signal),
    /// Signal the processes of workers that have not received the signal yet.
    SignalRest,
    /// Kill all remaining processes.
    CleanUp,
    /// Kill the keeper, which does not finish the cleanup. The kernel and the agent kill its descendants.
    KillKeeper,
    /// Report that the group has ended in this way, and nothing is left of it.
    Finish(GroupEnd),
}

/// The way in which a worker group ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GroupEnd {
    /// All workers exited with 0.
    Succeeded,
    /// The group was stopped, or a worker failed.
    Stopped,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Running,
    /// Workers were sent a signal to end.
    Stopping {
        deadline: Instant,
        /// The time at which all processes of the workers get the signal, unless they have it.
        rest_at: Option<Instant>,
    },
    /// The remaining processes are being killed. A keeper that exceeds the deadline, if any, is killed.
    CleaningUp {
        end: GroupEnd,
        deadline: Option<Instant>,
    },
    Ended,
}

/// One worker group, from its start to its end.
#[derive(Debug)]
pub struct Supervisor {
    alive: BTreeSet<LocalRank>,
    state: State,
    /// The time that workers have to end after one of them failed.
    grace: Duration,
    effects: VecDeque<Effect>,
}

impl Supervisor {
    /// Creates a group of `local_world_size` workers that are being started.
    pub fn new(local_world_size: u32, grace: Duration) -> Self {
        let alive = (0..local_world_size).map(LocalRank).collect();
        Self { alive, state: State::Running, grace, effects: VecDeque::new() }
    }

    /// Handles `input`, received at `now`.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match (input, self.state) {
            (_, State::Ended) => {}
            (Input::KeeperLost, state) => self.keeper_lost(state),
            (Input::Ended(rank, WorkerEnd::Exited(0)), State::Running) => {
                self.alive.remove(&rank);
                if self.alive.is_empty() {
                    self.clean_up(now, GroupEnd::Succeeded);
                }
            }
            (Input::Ended(rank, end), State::Running) => {
                self.alive.remove(&rank);
                self.effects.push_back(Effect::Failed(rank, end));
                self.stop(now, Signal::TERM, self.grace);
            }
            (Input::Ended(rank, _), State::Stopping { .. } | State::CleaningUp { .. }) => {
                self.alive.remove(&rank);
            }
            (Input::Stop { signal, grace }, State::Running) => self.stop(now, signal, grace),
            // A second request never extends the deadline of the first.
            (Input::Stop { grace, .. }, State::Stopping { deadline, rest_at }) => {
                let rest_at = rest_at.map(|at| at.min(now + grace / 2));
                self.state = State::Stopping { deadline: deadline.min(now + grace), rest_at };
            }
            (Input::Kill, State::Running | State::Stopping { .. })
            | (Input::Quiet, State::Stopping { .. }) => self.clean_up(now, GroupEnd::Stopped),
            (Input::Reaped, State::CleaningUp { end, .. }) => self.finish(end),
            // A hung worker does not handle signals, so it is killed.
            (Input::Hung(rank, time), State::Running) => {
                self.effects.push_back(Effect::Failed(rank, WorkerEnd::Hung(time)));
                self.clean_up(now, GroupEnd::Stopped);
            }
            (Input::Stop { .. } | Input::Kill | Input::Quiet, State::CleaningUp { .. })
            | (Input::Hung(..), State::Stopping { .. } | State::CleaningUp { .. })
            | (Input::Quiet | Input::Reaped, State::Running)
            | (Input::Reaped, State::Stopping { .. }) => {}
        }
    }

    /// Returns the deadline for stopping workers, or for the keeper's cleanup, if any.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Stopping { deadline, rest_at } => {
                Some(rest_at.map_or(deadline, |at| at.min(deadline)))
            }
            State::CleaningUp { deadline, .. } => deadline,
            State::Running | State::Ended => None,
        }
    }

    /// Applies the deadline if it has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.state {
            State::Stopping { deadline, .. } if now < deadline => {
                self.effects.push_back(Effect::SignalRest);
                self.state = State::Stopping { deadline, rest_at: None };
            }
            State::Stopping { .. } => self.clean_up(now, GroupEnd::Stopped),
            State::CleaningUp { end, .. } => {
                self.effects.push_back(Effect::KillKeeper);
                self.state = State::CleaningUp { end, deadline: None };
            }
            State::Running | State::Ended => {}
        }
    }

    /// Returns the next effect; `None` if there are none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns true if the workers should continue to run.
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Returns true if the workers were asked to end, and may still do so.
    pub fn is_stopping(&self) -> bool {
        matches!(self.state, State::Stopping { .. })
    }

    fn stop(&mut self, now: Instant, signal: Signal, grace: Duration) {
        self.effects.push_back(Effect::Signal(signal));
        self.state = State::Stopping { deadline: now + grace, rest_at: Some(now + grace / 2) };
    }

    fn clean_up(&mut self, now: Instant, end: GroupEnd) {
        self.effects.push_back(Effect::CleanUp);
        self.state = State::CleaningUp { end, deadline: Some(now + limits::CLEANUP_TIMEOUT) };
    }

    fn keeper_lost(&mut self, state: State) {
        match state {
            State::Running => {
                let first = self.alive.first().copied().unwrap_or_default();
                self.effects.push_back(Effect::Failed(first, WorkerEnd::KeeperLost));
                self.finish(GroupEnd::Stopped);
            }
            State::Stopping { .. } => self.finish(GroupEnd::Stopped),
            State::CleaningUp { end, .. } => self.finish(end),
            State::Ended => {}
        }
    }

    fn finish(&mut self, end: GroupEnd) {
        self.state = State::Ended;
        self.effects.push_back(Effect::Finish(end));
    }
}

/// Returns true if an error file of this age was written before its group began to stop, `stop_age` ago.
/// Later files are consequences of the stop.
pub fn is_before_stop(file_age: Duration, stop_age: Duration) -> bool {
    file_age >= stop_age.saturating_add(limits::FILE_TIME_GRANULARITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);
    const OK: WorkerEnd = WorkerEnd::Exited(0);

    /// A group of two, and its clock.
    struct Fixture {
        machine: Supervisor,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            Self { machine: Supervisor::new(2, GRACE), now: crate::some_instant() }
        }

        fn effects(&mut self) -> Vec<Effect> {
            std::iter::from_fn(|| self.machine.poll_effect()).collect()
        }

        fn handle(&mut self, input: Input) -> Vec<Effect> {
            self.machine.handle(self.now, input);
            self.effects()
        }

        fn ended(&mut self, rank: u32, end: WorkerEnd) -> Vec<Effect> {
            self.handle(Input::Ended(LocalRank(rank), end))
        }

        fn advance(&mut self, by: Duration) -> Vec<Effect> {
            self.now += by;
            self.machine.handle_timeout(self.now);
            self.effects()
        }
    }

    fn stop(grace: Duration) -> Input {
        Input::Stop { signal: Signal::INT, grace }
    }

    /// A group whose workers all exit with 0 has succeeded once none of its processes is left.
    #[test]
    fn success_is_all_zero_and_nothing_left() {
        let mut t = Fixture::new();
        assert_eq!(t.ended(0, OK), []);
        assert!(t.machine.is_running());
        assert_eq!(t.ended(1, OK), [Effect::CleanUp]);
        assert_eq!(t.handle(Input::Quiet), []);
        assert_eq!(t.handle(Input::Reaped), [Effect::Finish(GroupEnd::Succeeded)]);
        assert!(!t.machine.is_running());
    }

    /// The first failure is reported at once, and the other workers are stopped. Their ends are not failures.
    #[test]
    fn first_failure_stops_the_others() {
        let mut t = Fixture::new();
        let failed = Effect::Failed(LocalRank(1), WorkerEnd::Exited(3));
        assert_eq!(t.ended(1, WorkerEnd::Exited(3)), [failed, Effect::Signal(Signal::TERM)]);
        assert_eq!(t.ended(0, WorkerEnd::Signaled(15)), []);
        assert_eq!(t.handle(Input::Quiet), [Effect::CleanUp]);
        assert_eq!(t.handle(Input::Reaped), [Effect::Finish(GroupEnd::Stopped)]);
    }

    /// A worker that ignores its signal is killed after its grace period, not before. After half of it, all its processes get the signal.
    #[test]
    fn stubborn_worker_is_killed() {
        let mut t = Fixture::new();
        assert_eq!(t.handle(stop(3 * SECOND)), [Effect::Signal(Signal::INT)]);
        assert_eq!(t.advance(SECOND), []);
        assert_eq!(t.advance(SECOND), [Effect::SignalRest]);
        assert!(t.machine.is_stopping());
        assert_eq!(t.advance(SECOND), [Effect::CleanUp]);
        assert!(!t.machine.is_stopping());
        assert_eq!(t.advance(SECOND), []);
        assert_eq!(t.handle(Input::Reaped), [Effect::Finish(GroupEnd::Stopped)]);
    }

    /// A keeper that does not finish the cleanup in time is killed, once. The group ends when the keeper is
    /// gone.
    #[test]
    fn stuck_keeper_is_killed() {
        let mut t = Fixture::new();
        t.handle(Input::Kill);
        assert_eq!(t.advance(limits::CLEANUP_TIMEOUT), [Effect::KillKeeper]);
        assert_eq!(t.advance(limits::CLEANUP_TIMEOUT), []);
        assert_eq!(t.handle(Input::KeeperLost), [Effect::Finish(GroupEnd::Stopped)]);
    }

    /// Children that a worker left in its process group may use up the grace period, as the worker
    /// may.
    #[test]
    fn children_of_workers_have_the_grace_too() {
        let mut t = Fixture::new();
        t.handle(stop(GRACE));
        t.ended(0, OK);
        assert_eq!(t.ended(1, OK), []);
        assert_eq!(t.handle(Input::Quiet), [Effect::CleanUp]);
    }

    /// A second stop shortens the grace period, and never extends it.
    #[test]
    fn second_stop_never_gives_more_time() {
        let mut t = Fixture::new();
        t.handle(stop(5 * SECOND));
        assert_eq!(t.handle(stop(GRACE)), []);
        assert_eq!(t.machine.poll_timeout(), Some(t.now + 5 * SECOND / 2));
        assert_eq!(t.handle(stop(SECOND)), []);
        assert_eq!(t.machine.poll_timeout(), Some(t.now + SECOND / 2));
        assert_eq!(t.advance(SECOND), [Effect::CleanUp]);
    }

    /// A kill has no grace period.
    #[test]
    fn kill_is_at_once() {
        let mut t = Fixture::new();
        t.handle(stop(GRACE));
        assert_eq!(t.handle(Input::Kill), [Effect::CleanUp]);
        assert_eq!(t.handle(Input::Kill), []);
    }

    /// A group that hangs has failed, and is killed without a signal to end, unless it is being
    /// stopped.
    #[test]
    fn hung_group_is_killed() {
        let mut t = Fixture::new();
        let failed = Effect::Failed(LocalRank(1), WorkerEnd::Hung(SECOND));
        assert_eq!(t.handle(Input::Hung(LocalRank(1), SECOND)), [failed, Effect::CleanUp]);
        assert_eq!(t.handle(Input::Hung(LocalRank(1), SECOND)), []);
        let mut t = Fixture::new();
        t.handle(stop(GRACE));
        assert_eq!(t.handle(Input::Hung(LocalRank(1), SECOND)), []);
    }

    /// A lost keeper is a failure of a running group, and ends a stopping one.
    #[test]
    fn lost_keeper_ends_the_group() {
        let mut t = Fixture::new();
        let failed = Effect::Failed(LocalRank(0), WorkerEnd::KeeperLost);
        assert_eq!(t.handle(Input::KeeperLost), [failed, Effect::Finish(GroupEnd::Stopped)]);
        let mut t = Fixture::new();
        t.handle(stop(GRACE));
        assert_eq!(t.handle(Input::KeeperLost), [Effect::Finish(GroupEnd::Stopped)]);
        assert_eq!(t.handle(Input::KeeperLost), []);
    }

    /// An error file is a cause only if it is older than the stop by more than the granularity of its
    /// time.
    #[test]
    fn later_error_files_are_no_causes() {
        assert!(is_before_stop(SECOND + limits::FILE_TIME_GRANULARITY, SECOND));
        assert!(!is_before_stop(SECOND, SECOND));
        assert!(!is_before_stop(Duration::ZERO, SECOND));
        assert!(!is_before_stop(Duration::MAX - SECOND, Duration::MAX));
    }
}
