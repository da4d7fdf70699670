//! The stall of a job as text.

use std::time::Duration;

use ragent_rendezvous::snapshot::Stall;

use super::progress::{grouped, short};
use crate::report::time_text::short_time;

/// Returns what is known about a stall, a line each: first the stall itself. `usual` is the usual time of a step.
pub fn lines(stall: &Stall, usual: Option<Duration>) -> Vec<String> {
    let Stall { step, for_ms, text, facts, .. } = stall;
    let usual = usual.filter(|_| step.is_some());
    let usual = usual.map_or_else(String::new, |time| format!(" (usually {})", short(time)));
    let first = format!("{}{usual}", stalled(*step, *for_ms));
    [first].into_iter().chain(text.clone()).chain(facts.iter().cloned()).collect()
}

/// Returns the sentence that workers are stalled since a step, for a time in milliseconds.
pub(crate) fn stalled(step: Option<u64>, ms: u64) -> String {
    let time = short_time(ms);
    match step {
        Some(step) => {
            format!("the workers are stalled: no step after {} for {time}", grouped(step))
        }
        None => format!("the workers are stalled: no first step for {time}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stall names the last step, the time since then, and what the nodes have found.
    #[test]
    fn stall_is_described() {
        let stall = Stall { step: Some(48_210), for_ms: 250_000, ..Stall::default() };
        let usual = Some(Duration::from_millis(410));
        let first = "the workers are stalled: no step after 48,210 for 4 min 10 s (usually 0.41 s)";
        assert_eq!(lines(&stall, usual), [first]);
        let text = "rank 3 on n1 has not launched barrier 7".to_owned();
        let facts = vec!["it is in load_batch at data.py:88".to_owned()];
        let explained = Stall { text: Some(text.clone()), facts: facts.clone(), ..stall };
        assert_eq!(lines(&explained, usual), [first, &text, &facts[0]]);
        let start = Stall { for_ms: 723_000, ..Stall::default() };
        assert_eq!(lines(&start, usual), ["the workers are stalled: no first step for 12 min 3 s"]);
    }
}
