//! The training step in `ragent status`.

use std::{fmt::Write as _, time::Duration};

pub use ragent_rendezvous::snapshot::grouped;
use ragent_rendezvous::{message::StepSource, snapshot::JobProgress};

/// Returns the line about the training step.
pub(crate) fn line(progress: &JobProgress) -> String {
    let JobProgress { source, step, highest, steps_left, step_time, age } = progress;
    let mut line = format!("step {}", grouped(*step));
    // Writing to a string does not fail.
    if let Some(left) = steps_left {
        let _ = write!(line, " of {}", grouped(step.saturating_add(*left)));
    }
    if highest > step {
        let _ = write!(line, ", highest {}", grouped(*highest));
    }
    let _ = write!(line, " ({})", origin(*source));
    if let Some(time) = step_time {
        let _ = write!(line, "  {} a step,", short(*time));
        let _ = write!(line, " the last {:.1} s ago", age.as_secs_f64());
    } else {
        let _ = write!(line, "  {:.1} s ago", age.as_secs_f64());
    }
    line
}

/// Returns the origin of steps.
pub fn origin(source: StepSource) -> &'static str {
    match source {
        StepSource::Reported => "reported by the workers",
        StepSource::Read => "read from output",
        StepSource::Saved => "of the newest checkpoint",
    }
}

/// Returns a time with two or three significant digits.
pub fn short(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        _ if seconds < 0.01 => format!("{:.2} ms", seconds * 1000.0),
        _ if seconds < 0.1 => format!("{:.0} ms", seconds * 1000.0),
        _ if seconds < 10.0 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> JobProgress {
        JobProgress {
            source: StepSource::Read,
            step: 48_210,
            highest: 48_210,
            steps_left: None,
            step_time: Some(Duration::from_millis(412)),
            age: Duration::from_millis(300),
        }
    }

    /// The step is shown with its source, the usual time of a step and the age of the last one.
    #[test]
    fn step_is_shown_with_its_source() {
        let expected = "step 48,210 (read from output)  0.41 s a step, the last 0.3 s ago";
        assert_eq!(line(&progress()), expected);
        let first = JobProgress {
            source: StepSource::Reported,
            step: 7,
            highest: 9,
            steps_left: Some(999_993),
            step_time: None,
            ..progress()
        };
        let expected = "step 7 of 1,000,000, highest 9 (reported by the workers)  0.3 s ago";
        assert_eq!(line(&first), expected);
    }

    /// Times keep their significant digits.
    #[test]
    fn times_are_short() {
        let times = [0.000_31, 0.031, 0.31, 3.1, 31.4].map(Duration::from_secs_f64).map(short);
        assert_eq!(times, ["0.31 ms", "31 ms", "0.31 s", "3.10 s", "31 s"]);
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    /// Programs read the time of a step as milliseconds with a fraction.
    #[test]
    fn step_for_programs() {
        let json = serde_json::to_value(progress()).unwrap();
        let expected = serde_json::json!({
            "source": "read", "step": 48_210, "highest": 48_210, "steps_left": null,
            "step_ms": 412.0, "age_ms": 300,
        });
        assert_eq!(json, expected);
    }
}
