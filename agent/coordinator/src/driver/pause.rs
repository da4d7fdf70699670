//! Detects that the process was paused, so that received messages are handled before any node times out.
//!
//! For example, the coordinator's process is stopped for 10 s. Keep-alives of all nodes wait in its queues, and all
//! deadlines have passed. A deadline that is long past is therefore postponed once, and the messages renew it.

use std::time::{Duration, Instant};

/// A deadline that is missed by more than this was missed because the whole process was paused.
const PAUSE: Duration = Duration::from_millis(500);

/// Postpones deadlines after a pause.
#[derive(Debug, Default)]
pub(super) struct PauseGuard {
    /// The time until which deadlines are postponed.
    until: Option<Instant>,
}

impl PauseGuard {
    /// Returns the time at which `deadline` should be applied. If it is in the future again, messages have renewed it since the pause, and
    /// it is postponed no longer.
    pub(super) fn due(&mut self, now: Instant, deadline: Option<Instant>) -> Option<Instant> {
        if deadline.is_none_or(|deadline| now < deadline) {
            self.until = None;
        }
        deadline.map(|deadline| self.until.map_or(deadline, |until| deadline.max(until)))
    }

    /// Returns true if a deadline that has passed may be applied. Returns false if it is postponed
    /// by `catch_up`, because of a pause.
    pub(super) fn may_apply(
        &mut self,
        now: Instant,
        deadline: Option<Instant>,
        catch_up: Duration,
    ) -> bool {
        let is_late = deadline.is_some_and(|deadline| deadline + PAUSE < now);
        let is_paused = is_late && self.until.is_none();
        self.until = is_paused.then(|| now + catch_up);
        !is_paused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A guard, and the time at which it was created.
    fn guard() -> (PauseGuard, Instant) {
        (PauseGuard::default(), ragent_base::sys::clock::now())
    }

    /// A deadline that is handled in time, or a little late on a busy machine, is applied.
    #[test]
    fn punctual_deadlines_are_applied() {
        let (mut guard, start) = guard();
        let deadline = Some(start + SECOND);
        assert_eq!(guard.due(start, deadline), deadline);
        assert!(guard.may_apply(start + SECOND, deadline, SECOND));
        assert!(guard.may_apply(start + SECOND + PAUSE, deadline, SECOND));
        assert_eq!(guard.due(start, None), None);
    }

    /// A deadline that was missed by far is postponed once. It is applied if no message has moved it.
    #[test]
    fn missed_deadline_is_postponed_once() {
        let (mut guard, start) = guard();
        let deadline = Some(start);
        let woken = start + 10 * SECOND;
        assert!(!guard.may_apply(woken, deadline, SECOND));
        assert_eq!(guard.due(woken, deadline), Some(woken + SECOND));
        // A later deadline that has passed, too, is not postponed further.
        assert_eq!(guard.due(woken, Some(start + SECOND)), Some(woken + SECOND));
        assert!(guard.may_apply(woken + SECOND, deadline, SECOND));
    }

    /// Once messages have moved the deadline, the next pause counts as a new one.
    #[test]
    fn each_pause_counts() {
        let (mut guard, start) = guard();
        assert!(!guard.may_apply(start + 10 * SECOND, Some(start), SECOND));
        let (now, moved) = (start + 10 * SECOND, start + 13 * SECOND);
        assert_eq!(guard.due(now, Some(moved)), Some(moved));
        assert!(!guard.may_apply(start + 30 * SECOND, Some(moved), SECOND));
    }
}
