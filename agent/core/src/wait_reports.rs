//! Decides when a node that waits reports the reason to the user: when the reason has changed, and every 30 s.
//!
//! Only the coordinator knows the reason. The node requests it with a keep-alive, and receives it with the
//! echo. So a report costs no message, and a node of a large job costs no more than a node of a small one.

use std::time::Instant;

use ragent_rendezvous::{ids::RoundId, snapshot::Explanation};

use crate::limits;

/// The reason why a node has waited for a while.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum WaitReport {
    /// The next round is not complete, for this reason.
    NextRound(Explanation),
    /// All workers of this node have succeeded, and workers of other nodes still run.
    OtherNodes,
}

/// A wait of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct NodeWait {
    /// The newest round in which the node was a member.
    pub(crate) round: RoundId,
    /// True if its workers have succeeded in that round, which others still run.
    pub(crate) has_succeeded: bool,
}

/// The reports of one node.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitReports(Option<Schedule>);

#[derive(Clone, Debug)]
struct Schedule {
    wait: NodeWait,
    /// The next keep-alive from this time on requests the reason.
    due: Instant,
    /// The keep-alive that requests the reason, until its echo.
    requested_by: Option<u64>,
    /// The last report without its times, and the time of it.
    reported: Option<(String, Instant)>,
}

impl WaitReports {
    /// Returns true if the keep-alive `sequence`, sent at `now`, should request the reason for `wait`. `wait`
    /// is `None` if the node does not wait.
    pub(crate) fn handle_keep_alive(
        &mut self,
        now: Instant,
        sequence: u64,
        wait: Option<NodeWait>,
    ) -> bool {
        self.0 = wait.map(|wait| match self.0.take() {
            Some(schedule) if schedule.wait == wait => schedule,
            Some(_) | None => {
                let due = now + limits::WAIT_QUESTION;
                Schedule { wait, due, requested_by: None, reported: None }
            }
        });
        let Some(schedule) = self.0.as_mut().filter(|schedule| schedule.due <= now) else {
            return false;
        };
        schedule.due = now + limits::WAIT_QUESTION;
        schedule.requested_by = Some(sequence);
        true
    }

    /// Returns what to report, if the echo `sequence` answers a request. A spare receives no reason. It has been reported
    /// as a spare already.
    pub(crate) fn handle_echo(
        &mut self,
        now: Instant,
        sequence: u64,
        reason: Option<Explanation>,
    ) -> Option<WaitReport> {
        let schedule = self.0.as_mut()?;
        schedule.requested_by.take_if(|requested_by| *requested_by == sequence)?;
        let (text, report) = if schedule.wait.has_succeeded {
            (String::new(), WaitReport::OtherNodes)
        } else {
            let reason = reason?;
            (without_times(&reason.text), WaitReport::NextRound(reason))
        };
        let is_due = schedule.reported.as_ref().is_none_or(|(reported, at)| {
            // Nothing changes in a wait for other nodes, and it has no end that is known.
            !schedule.wait.has_succeeded && (*reported != text || *at + limits::WAIT_REPEAT <= now)
        });
        is_due.then(|| {
            schedule.reported = Some((text, now));
            report
        })
    }
}

/// Returns a reason without the numbers of seconds, which differ each time.
fn without_times(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let is_unit = |word: &&str| word.trim_end_matches([',', ';', ')']) == "s";
    let is_time = |index: usize| words.get(index + 1).is_some_and(is_unit);
    let kept = words.iter().enumerate().filter(|(index, _)| !is_time(*index));
    kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ragent_rendezvous::ids::{Round, Term};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn wait(round: u64) -> Option<NodeWait> {
        let round = RoundId { term: Term(1), round: Round(round) };
        Some(NodeWait { round, has_succeeded: false })
    }

    /// Returns the seconds at which keep-alives request the reason, one keep-alive a second.
    fn requests(reports: &mut WaitReports, begun: Instant, seconds: u32) -> Vec<u32> {
        let requests = |second: &u32| {
            reports.handle_keep_alive(begun + SECOND * *second, u64::from(*second), wait(0))
        };
        (0..seconds).filter(requests).collect()
    }

    /// Returns the seconds at which a wait is reported whose reason is `text`, in a wait of a minute and a half.
    fn reported(wait: NodeWait, text: impl Fn(u64) -> Option<String>) -> Vec<u64> {
        let (mut reports, begun) = (WaitReports::default(), crate::some_instant());
        let is_reported = |second: &u64| {
            let now = begun + Duration::from_secs(*second);
            reports.handle_keep_alive(now, *second, Some(wait));
            let reason = text(*second).map(|text| Explanation { kind: "k".to_owned(), text });
            reports.handle_echo(now, *second, reason).is_some()
        };
        (0..90).filter(is_reported).collect()
    }

    /// The reason is requested every 5 s. It is reported when more than its times has changed, and every 30 s.
    #[test]
    fn changes_are_reported() {
        let waits = wait(0).unwrap();
        let due = requests(&mut WaitReports::default(), crate::some_instant(), 18);
        assert_eq!(due, [5, 10, 15]);
        let same = |second| Some(format!("1 of 2 are ready, {} s; lost: n", 600 - second));
        assert_eq!(reported(waits, same), [5, 35, 65]);
        let more = |second| Some(format!("{} of 2 are ready, {} s", second / 12, 600 - second));
        assert_eq!(reported(waits, more)[..4], [5, 15, 25, 40]);
        assert_eq!(reported(waits, |_| None), [0; 0], "it is a spare");
        let succeeded = NodeWait { has_succeeded: true, ..waits };
        assert_eq!(reported(succeeded, |_| None), [5]);
    }

    /// A node that does not wait, or waits briefly each time, reports nothing.
    #[test]
    fn short_waits_are_not_reported() {
        let (mut reports, now) = (WaitReports::default(), crate::some_instant());
        for second in 0..100 {
            let round = wait(u64::from(second / 4));
            assert!(!reports.handle_keep_alive(now + SECOND * second, 1, round));
        }
        for second in 100..200 {
            assert!(!reports.handle_keep_alive(now + SECOND * second, 1, None));
        }
    }

    /// Only the echo of the request is the answer, once. A request without an answer is repeated at the next
    /// interval.
    #[test]
    fn answer_belongs_to_its_request() {
        let (mut reports, now) = (WaitReports::default(), crate::some_instant());
        let reason = || Some(Explanation { kind: "k".to_owned(), text: "t".to_owned() });
        assert!(!reports.handle_keep_alive(now, 1, wait(0)));
        assert!(reports.handle_keep_alive(now + 5 * SECOND, 2, wait(0)));
        assert_eq!(reports.handle_echo(now, 1, reason()), None);
        let report = WaitReport::NextRound(reason().unwrap());
        assert_eq!(reports.handle_echo(now, 2, reason()), Some(report));
        assert_eq!(reports.handle_echo(now, 2, reason()), None);
        assert!(reports.handle_keep_alive(now + 10 * SECOND, 70, wait(0)));
        assert!(!reports.handle_keep_alive(now + 11 * SECOND, 71, wait(0)));
        assert!(reports.handle_keep_alive(now + 15 * SECOND, 400, wait(0)));
        assert_eq!(reports.handle_echo(now + 60 * SECOND, 70, reason()), None);
        assert!(!reports.handle_keep_alive(now + 16 * SECOND, 401, None));
        assert_eq!(
            reports.handle_echo(now + 60 * SECOND, 400, reason()),
            None,
            "the wait has ended"
        );
    }
}
