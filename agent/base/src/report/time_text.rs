//! Times and the time account of a job as text.

use std::{cmp::Reverse, time::Duration};

use ragent_rendezvous::snapshot::JobTime;

/// Returns a time in at most two units: `412 ms`, `12.4 s`, `7 min 18 s`, `3 h 12 min`.
pub fn short_time(ms: u64) -> String {
    let seconds = Duration::from_millis(ms).as_secs();
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", seconds, ms % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Returns the time account in one line.
pub fn of_account(time: &JobTime) -> String {
    if time.age_ms() == 0 {
        return "none yet".to_owned();
    }
    let productive = match time.productive_ratio() {
        Some(ratio) => format!("{:.1} % productive", ratio * 100.0),
        None => {
            "how much of it was productive is unknown: the workers report no progress".to_owned()
        }
    };
    let mut lost: Vec<(&str, u64)> = time
        .states
        .iter()
        .filter(|state| !["productive", "unknown"].contains(&state.state.as_str()))
        .map(|state| (state.state.as_str(), state.ms))
        .chain([("redone", time.redone_ms)])
        .filter(|(_, ms)| *ms >= 10)
        .collect();
    lost.sort_by_key(|(_, ms)| Reverse(*ms));
    let mut text = format!("{} in all, {productive}", short_time(time.age_ms()));
    if !lost.is_empty() {
        let list: Vec<String> =
            lost.iter().map(|(state, ms)| format!("{state} {}", short_time(*ms))).collect();
        text += &format!("; lost: {}", list.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times have as many digits as people need.
    #[test]
    fn times_are_short() {
        let texts = [0, 7, 999, 1_234, 12_449, 59_999, 60_000, 438_000, 11_520_000].map(short_time);
        let expected = [
            "0 ms",
            "7 ms",
            "999 ms",
            "1.2 s",
            "12.4 s",
            "59.9 s",
            "1 min 0 s",
            "7 min 18 s",
            "3 h 12 min",
        ];
        assert_eq!(texts, expected);
    }
}
