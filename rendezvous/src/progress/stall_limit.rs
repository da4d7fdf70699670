//! Decides from which time on workers are stalled.

use std::time::Duration;

/// Steps that take this many times as long as usual are a stall.
const STALL_FACTOR: u32 = 10;

/// A pause is a stall if it is this many times as long as all earlier ones.
const PAUSE_FACTOR: u32 = 2;

/// No stall is shorter: agents report with their keep-alives, and checkpoints of a minute are common.
const STALL_MIN: Duration = Duration::from_secs(60);

/// No stall before the first step is shorter: workers import modules, load a checkpoint and compile.
const FIRST_STALL_MIN: Duration = Duration::from_secs(600);

/// Returns the time without a sign of progress from which on the workers are stalled.
///
/// 1. `usual` is the usual time between two signs; `None` until the round has had its first one, and while no
///    usual time is known.
/// 2. `longest_pause` is the longest time between two signs in this job, also in earlier rounds; zero if there
///    was none. For example, the limit is 40 minutes after an evaluation of 20 minutes.
/// 3. `first` is the longest time until the first sign of a round of this job; zero if there was none. It decides
///    if there is no usual time.
pub fn stall_limit(usual: Option<Duration>, longest_pause: Duration, first: Duration) -> Duration {
    match usual {
        Some(usual) => usual
            .saturating_mul(STALL_FACTOR)
            .max(longest_pause.saturating_mul(PAUSE_FACTOR))
            .max(STALL_MIN),
        None => first.saturating_mul(PAUSE_FACTOR).max(FIRST_STALL_MIN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stall is far longer than the usual time of a step, than every pause so far, and than a minute. Before the
    /// first step, the longest first step of the job decides.
    #[test]
    fn stall_is_longer_than_what_came_before() {
        let limit = |usual: Option<f64>, longest_pause, first| {
            let usual = usual.map(Duration::from_secs_f64);
            let [longest_pause, first] = [longest_pause, first].map(Duration::from_secs);
            stall_limit(usual, longest_pause, first).as_secs()
        };
        assert_eq!(limit(Some(0.41), 0, 0), 60, "at least a minute");
        assert_eq!(limit(Some(0.41), 1_200, 0), 2_400, "an evaluation of 20 minutes");
        assert_eq!(limit(Some(0.41), 25, 3_600), 60, "the first step does not count after it");
        assert_eq!(limit(Some(30.0), 40, 0), 300, "ten steps");
        assert_eq!(limit(None, 0, 0), 600, "at least ten minutes for the first step");
        assert_eq!(limit(None, 1_200, 200), 600, "pauses do not count before it");
        assert_eq!(limit(None, 0, 900), 1_800, "a long first step of an earlier round");
        assert_eq!(stall_limit(Some(Duration::MAX), Duration::MAX, Duration::ZERO), Duration::MAX);
    }
}
