//! Prints lines for the user during a search that takes long.

use std::{net::SocketAddr, time::Instant};

use crate::endpoint::limits;

/// The lines for the user, at most one per [`limits::SEARCH_NOTICE_INTERVAL`].
#[derive(Debug)]
pub(super) struct SearchNotice {
    due: Instant,
    /// True if agents of other jobs search on this port.
    others: bool,
    /// True once a host was warned of them.
    has_warned: bool,
}

/// The progress of a search that has found no coordinator yet.
#[derive(Clone, Copy, Debug)]
pub(super) enum SearchProgress {
    /// No other agent of the job was found.
    Alone,
    /// Other agents were found, but none may host.
    NoCandidate,
    /// Agents that may host were found.
    Candidates,
    /// No coordinator answered at this address, which the search had found.
    NoCoordinator(SocketAddr),
}

/// The advice if all other agents belong to unknown jobs.
const OTHERS: &str = "agents of other jobs search on this port: check that all nodes have the same `--rdzv-id` and the same secret";

impl SearchNotice {
    /// Creates the notice. Its first line comes after [`limits::WAIT_WARNING`]: agents of a job
    /// rarely start in the same second.
    pub(super) fn new(now: Instant) -> Self {
        Self { due: now + limits::WAIT_WARNING, others: false, has_warned: false }
    }

    /// Returns the time of the next line.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// Notes a datagram of another job, or of an agent with another secret.
    pub(super) fn handle_other_job(&mut self) {
        self.others = true;
    }

    /// Returns the line of a searching agent if it is due. It names the job `run_id` and the interfaces.
    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        run_id: &str,
        interfaces: &str,
        progress: SearchProgress,
    ) -> Option<String> {
        if now < self.due {
            return None;
        }
        self.due = now + limits::SEARCH_NOTICE_INTERVAL;
        let progress = match progress {
            SearchProgress::Alone if self.others => {
                format!("no other agent of this job found yet, but {OTHERS}")
            }
            SearchProgress::Alone => "no other agent of this job found yet".to_owned(),
            SearchProgress::NoCandidate => "none of the agents found may host; start one with \
                                      `--node-rank 0`, or without `is_host=0`"
                .to_owned(),
            SearchProgress::Candidates => "none of the agents found hosts it yet".to_owned(),
            SearchProgress::NoCoordinator(at) => format!("no coordinator answers at {at}"),
        };
        Some(format!("waiting for the host of job {run_id}: {progress}; searching on {interfaces}"))
    }

    /// Returns the warning of an agent that hosts alone, once, if it is due.
    pub(super) fn lonely_host(&mut self, now: Instant) -> Option<&'static str> {
        let is_due = now >= self.due && self.others && !self.has_warned;
        self.has_warned |= is_due;
        is_due.then_some(OTHERS)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A search prints a line after a few seconds, and then one a minute.
    #[test]
    fn long_search_has_a_line_a_minute() {
        let start = ragent_base::sys::clock::now();
        let mut notice = SearchNotice::new(start);
        let mut lines = Vec::new();
        for second in 0..260 {
            let now = start + Duration::from_secs(second);
            let progress = match second {
                0..120 => SearchProgress::Alone,
                120..180 => SearchProgress::NoCandidate,
                180..240 => SearchProgress::Candidates,
                _ => SearchProgress::NoCoordinator(([10, 0, 0, 1], 29400).into()),
            };
            if second == 60 {
                notice.handle_other_job();
            }
            let line = notice.handle_timeout(now, "run7", "eth0,eth1", progress);
            lines.extend(line.map(|line| (second, line)));
        }
        let seconds: Vec<u64> = lines.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [5, 65, 125, 185, 245]);
        assert_eq!(
            lines[0].1,
            "waiting for the host of job run7: no other agent of this job found yet; searching on \
             eth0,eth1"
        );
        assert!(lines[1].1.contains("found yet, but agents of other jobs"), "{}", lines[1].1);
        assert!(lines[2].1.contains("none of the agents found may host"), "{}", lines[2].1);
        assert!(lines[3].1.contains("none of the agents found hosts it yet"), "{}", lines[3].1);
        assert!(lines[4].1.contains("no coordinator answers at 10.0.0.1:29400"), "{}", lines[4].1);
    }

    /// A host that receives only datagrams of other jobs warns of them once, after a few seconds.
    #[test]
    fn lonely_host_warns_once() {
        let start = ragent_base::sys::clock::now();
        let mut notice = SearchNotice::new(start);
        let later = start + limits::WAIT_WARNING;
        assert_eq!(notice.lonely_host(later), None);
        notice.handle_other_job();
        assert_eq!(notice.lonely_host(start), None);
        assert!(notice.lonely_host(later).is_some_and(|line| line.contains("`--rdzv-id`")));
        notice.handle_other_job();
        assert_eq!(notice.lonely_host(later), None);
    }
}
