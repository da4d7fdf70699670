//! Checkpoints in the status of a job: the phase of a notice, how often the job saves, and how often it should.

use ragent_rendezvous::{
    message::NoticeKind,
    snapshot::{CheckpointTimes, Saving},
};

use super::progress::grouped;
use crate::report::time_text::short_time;

/// Describes the phase of a notice.
pub fn phase(saving: &Saving) -> String {
    let Saving { kind, hosts, source, saved_ranks, ranks, missing, left_ms, .. } = saving;
    let after = match (kind, &hosts[..]) {
        (NoticeKind::End, _) => "then the job ends".to_owned(),
        (NoticeKind::Members, _) => "then nodes join".to_owned(),
        (NoticeKind::Leave | NoticeKind::Save, [host]) => format!("then {host} leaves"),
        (NoticeKind::Leave | NoticeKind::Save, hosts) => format!("then {} leave", hosts.join(", ")),
    };
    let source = if source.is_empty() { String::new() } else { format!(" ({source})") };
    let missing = if missing.is_empty() { String::new() } else { format!("; not yet: {missing}") };
    let left = left_ms.div_ceil(1000);
    format!("saving: {saved_ranks} of {ranks} ranks, {left} s left, {after}{source}{missing}")
}

/// Returns a line about how often the job saves, and one about a better interval if there is one.
pub fn times(times: &CheckpointTimes) -> Vec<String> {
    let CheckpointTimes { every_steps, every_ms, cost_ms, failure_every_ms, .. } = times;
    let cost = match cost_ms {
        Some(ms) => format!("each costs {}", short_time(*ms)),
        None => "cost unknown (`ragent.saved(step, seconds=…)` reports it)".to_owned(),
    };
    let failures = short_time(*failure_every_ms);
    let failures = match times.is_rate_measured {
        true => format!("a failure every {failures}"),
        false => format!("a failure every {failures} (assumed)"),
    };
    let mut lines = vec![format!(
        "checkpoints: every {} steps ({}), {cost}; {failures}",
        grouped(*every_steps),
        short_time(*every_ms)
    )];
    if let (Some(steps), Some(ms), Some(best), Some(now)) =
        (times.best_steps, times.best_ms, times.best_lost, times.lost)
    {
        lines.push(format!(
            "best: every {} steps ({}), which loses {:.1} % of the time, now {:.1} %",
            grouped(rounded(steps)),
            short_time(ms),
            best * 100.0,
            now * 100.0
        ));
    }
    lines
}

/// Rounds a number of steps to two digits: the formula is not more exact.
fn rounded(steps: u64) -> u64 {
    let unit = 10_u64.pow(steps.checked_ilog10().unwrap_or(0).saturating_sub(1));
    steps.saturating_add(unit / 2) / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The phase names what is missing and what follows.
    #[test]
    fn phase_is_described() {
        let saving = Saving {
            notice: 1,
            kind: NoticeKind::Leave,
            hosts: vec!["node4".to_owned()],
            source: "SIGTERM".to_owned(),
            saved_ranks: 12,
            ranks: 32,
            missing: "12-31".to_owned(),
            left_ms: 52_400,
        };
        let expected =
            "saving: 12 of 32 ranks, 53 s left, then node4 leaves (SIGTERM); not yet: 12-31";
        assert_eq!(phase(&saving), expected);
        let end = Saving { kind: NoticeKind::End, missing: String::new(), ..saving };
        assert_eq!(phase(&end), "saving: 12 of 32 ranks, 53 s left, then the job ends (SIGTERM)");
    }

    /// The interval, the cost, the failures and the best interval are one line each at most.
    #[test]
    fn best_interval_is_named() {
        let known = CheckpointTimes {
            every_steps: 5_000,
            every_ms: 2_050_000,
            cost_ms: Some(9_800),
            failure_every_ms: 10_080_000,
            is_rate_measured: true,
            lost: Some(0.1064),
            best_ms: Some(434_700),
            best_steps: Some(1_060),
            best_lost: Some(0.0441),
        };
        let lines = [
            "checkpoints: every 5,000 steps (34 min 10 s), each costs 9.8 s; a failure every 2 h 48 min",
            "best: every 1,100 steps (7 min 14 s), which loses 4.4 % of the time, now 10.6 %",
        ];
        assert_eq!(times(&known), lines);
        let unknown = CheckpointTimes {
            cost_ms: None,
            best_ms: None,
            lost: None,
            is_rate_measured: false,
            ..known
        };
        let [line] = &times(&unknown)[..] else { panic!("one line is expected") };
        assert!(line.contains("cost unknown") && line.ends_with("(assumed)"), "{line}");
    }

    /// Steps are rounded to two digits.
    #[test]
    fn steps_are_rounded() {
        let numbers = [0, 7, 42, 144, 145, 1_060, 99_999];
        assert_eq!(numbers.map(rounded), [0, 7, 42, 140, 150, 1_100, 100_000]);
    }
}
