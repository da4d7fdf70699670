//! The checkpoints in memory in `ragent status`.

use std::time::Duration;

use ragent_rendezvous::snapshot::{MemoryStatus, size};

use super::progress::grouped;
use crate::report::time_text::short_time;

/// Returns the line about checkpoints in memory.
pub fn line(memory: &MemoryStatus) -> String {
    format!("memory: {}", sentence(memory))
}

/// Returns the same without the first word.
fn sentence(memory: &MemoryStatus) -> String {
    let MemoryStatus { step, is_copied, age_ms, cost_ms, needed, limit, text, .. } = memory;
    let text = text.as_deref();
    let Some(step) = *step else {
        // Nothing can be restored, so the reason is all that matters.
        return text.unwrap_or("no step is whole yet").to_owned();
    };
    let begin = format!("step {} whole", grouped(step));
    let copied = if *is_copied { " and copied" } else { "" };
    let age = age_ms.map_or_else(String::new, |ms| format!(", {} old", short_time(ms)));
    let mut sentence = format!("{begin}{copied}{age}");
    if let Some(text) = text {
        // A text about this step repeats the beginning.
        sentence += &match text.strip_prefix(&begin) {
            Some(why) => why.to_owned(),
            None => format!("; {text}"),
        };
    }
    if let Some(ms) = *cost_ms {
        sentence += &format!("; a save takes {}", cost(ms));
    }
    if *needed > 0 {
        sentence += &format!("; at most {} on a node", share(*needed, *limit));
    }
    sentence
}

/// Returns the time of a save, with the digits that differ between saves.
fn cost(ms: u64) -> String {
    match ms {
        0 => "less than 1 ms".to_owned(),
        1..10 => format!("{ms} ms"),
        10..10_000 => format!("{:.2} s", Duration::from_millis(ms).as_secs_f64()),
        _ => short_time(ms),
    }
}

/// Returns a part of an amount of memory, with one unit if both have the same.
fn share(part: u64, all: u64) -> String {
    let (part, all) = (size(part), size(all));
    match (part.split_once(' '), all.split_once(' ')) {
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} of {all}"),
        _ => format!("{part} of {all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> MemoryStatus {
        MemoryStatus {
            step: Some(48_210),
            is_copied: true,
            age_ms: Some(2_540),
            cost_ms: Some(20),
            needed: 245_000_000_000,
            limit: 667_000_000_000,
            text: None,
            ..MemoryStatus::default()
        }
    }

    fn with_text(memory: MemoryStatus, text: &str) -> String {
        line(&MemoryStatus { text: Some(text.to_owned()), ..memory })
    }

    /// The line names the newest step that is safe, its age, the cost of a save, and the memory.
    #[test]
    fn whole_step_is_described() {
        let expected = "memory: step 48,210 whole and copied, 2.5 s old; a save takes 0.02 s; at most 245 of 667 GB on a node";
        assert_eq!(line(&status()), expected);
        let alone = MemoryStatus {
            is_copied: false,
            age_ms: None,
            cost_ms: None,
            needed: 4_200_000,
            ..status()
        };
        let expected = "memory: step 48,210 whole; at most 4.2 MB of 667 GB on a node";
        assert_eq!(line(&alone), expected);
    }

    /// A reason why there is no copy, or no newer step, follows the step that can still be restored.
    #[test]
    fn obstacle_follows_the_step() {
        let memory = MemoryStatus { is_copied: false, cost_ms: None, needed: 0, ..status() };
        for (text, expected) in [
            (
                "step 48,210 whole, not copied: n2 does not answer n0",
                "memory: step 48,210 whole, 2.5 s old, not copied: n2 does not answer n0",
            ),
            (
                "no copies: the job has no secret (ragent secret --init)",
                "memory: step 48,210 whole, 2.5 s old; no copies: the job has no secret (ragent secret --init)",
            ),
            (
                "waits: the copy from n3 to n1 is slow",
                "memory: step 48,210 whole, 2.5 s old; waits: the copy from n3 to n1 is slow",
            ),
        ] {
            assert_eq!(with_text(memory.clone(), text), expected);
        }
    }

    /// Without a step that can be restored, the line is the reason alone.
    #[test]
    fn reason_is_alone_without_a_step() {
        let none = MemoryStatus { step: None, is_copied: false, age_ms: None, ..status() };
        for text in
            ["off: n17 has 40 GB and needs 84", "struck off: two failures after step 48,210"]
        {
            assert_eq!(with_text(none.clone(), text), format!("memory: {text}"));
        }
        assert_eq!(line(&none), "memory: no step is whole yet");
    }

    /// Costs and amounts have the digits that people compare.
    #[test]
    fn numbers_are_short() {
        let costs = [0, 3, 20, 1_250, 12_400].map(cost);
        assert_eq!(costs, ["less than 1 ms", "3 ms", "0.02 s", "1.25 s", "12.4 s"]);
        let amounts = [0, 4_200_000, 61_200_000_000, 3_240_000_000, 100_000_000].map(size);
        assert_eq!(amounts, ["0.0 MB", "4.2 MB", "61 GB", "3.2 GB", "0.1 GB"]);
        assert_eq!(share(700_000_000, 2_000_000_000), "0.7 of 2.0 GB");
    }
}
