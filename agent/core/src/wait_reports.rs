//! Decides when a node that waits reports the reason to the user.
//!
//! Only the coordinator knows the reason. The node requests it with a keep-alive, and receives it with the
//! echo. So a report costs no message, and a node of a large job costs no more than a node of a small one.

use std::time::Instant;

use ragent_rendezvous::ids::RoundId;

use crate::limits;

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

#[derive(Clone, Copy, Debug)]
struct Schedule {
    wait: NodeWait,
    /// The next keep-alive from this time on requests the reason.
    due: Instant,
    /// The number of requests so far.
    requests: usize,
    /// The keep-alive that requests the reason, until its echo.
    requested_by: Option<u64>,
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
        self.0 = wait.map(|wait| match self.0 {
            Some(schedule) if schedule.wait == wait => schedule,
            Some(_) | None => {
                let due = now + limits::WAIT_REPORTS[0];
                Schedule { wait, due, requests: 0, requested_by: None }
            }
        });
        let Some(schedule) = self.0.as_mut().filter(|schedule| schedule.due <= now) else {
            return false;
        };
        schedule.requests += 1;
        let last = limits::WAIT_REPORTS.len() - 1;
        schedule.due = now + limits::WAIT_REPORTS[schedule.requests.min(last)];
        schedule.requested_by = Some(sequence);
        true
    }

    /// Returns the wait to report, if the echo `sequence` answers a request.
    pub(crate) fn handle_echo(&mut self, sequence: u64) -> Option<NodeWait> {
        let schedule = self.0.as_mut()?;
        schedule.requested_by.take_if(|requested_by| *requested_by == sequence)?;
        Some(schedule.wait)
    }
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

    /// A long wait is reported after 5 seconds, and then at growing intervals of at most half an hour.
    #[test]
    fn intervals_grow() {
        let mut reports = WaitReports::default();
        let due = requests(&mut reports, crate::some_instant(), 6000);
        assert_eq!(due, [5, 65, 365, 2165, 3965, 5765]);
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
        assert!(!reports.handle_keep_alive(now, 1, wait(0)));
        assert!(reports.handle_keep_alive(now + 5 * SECOND, 2, wait(0)));
        assert_eq!(reports.handle_echo(1), None);
        assert_eq!(reports.handle_echo(2), wait(0));
        assert_eq!(reports.handle_echo(2), None);
        assert!(reports.handle_keep_alive(now + 65 * SECOND, 70, wait(0)));
        assert!(!reports.handle_keep_alive(now + 66 * SECOND, 71, wait(0)));
        assert!(reports.handle_keep_alive(now + 365 * SECOND, 400, wait(0)));
        assert_eq!(reports.handle_echo(70), None);
        assert!(!reports.handle_keep_alive(now + 366 * SECOND, 401, None));
        assert_eq!(reports.handle_echo(400), None, "the wait has ended");
    }
}
