//! Prints lines for the user during a search that takes long.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use ragent_base::secret::SecretId;

use crate::endpoint::limits;

/// The line for the user, at most once per [`limits::SEARCH_NOTICE_INTERVAL`].
#[derive(Debug)]
pub(super) struct SearchNotice {
    due: Instant,
}

impl SearchNotice {
    /// Creates the notice. Its first line comes after [`limits::WAIT_WARNING`]: agents of a job
    /// rarely start in the same second.
    pub(super) fn new(now: Instant) -> Self {
        Self { due: now + limits::WAIT_WARNING }
    }

    /// Returns the time of the next line.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// Returns the line if it is due. It names the job `run_id` and the interfaces.
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
            SearchProgress::Alone(None) => "no other agent of this job found yet".to_owned(),
            SearchProgress::Alone(Some(other)) => {
                format!("no other agent of this job found yet, but {other}")
            }
            SearchProgress::NoCandidate => "none of the agents found may host; start one with \
                                      `--node-rank 0`, or without `is_host=0`"
                .to_owned(),
            SearchProgress::Candidates => "none of the agents found hosts it yet".to_owned(),
            SearchProgress::NoCoordinator(at) => format!("no coordinator answers at {at}"),
        };
        Some(format!("waiting for the host of job {run_id}: {progress}; searching on {interfaces}"))
    }
}

/// An agent that searches with another secret, perhaps for the same job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct OtherSecret {
    /// Its address.
    at: IpAddr,
    /// Its secret.
    secret: SecretId,
}

impl fmt::Display for OtherSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, secret } = self;
        write!(
            f,
            "an agent at {at} searches with the secret {secret}, which this one does not have (if both are of the same \
             job, give them the same `--secret-file`)"
        )
    }
}

/// The agents with another secret, one for each of the first few secrets. Datagrams do not show the job of these agents. So an agent
/// reports them only if it hosts without another agent of its job. Other agents print the first one while they wait.
#[derive(Debug, Default)]
pub(super) struct OtherSecrets {
    known: Vec<OtherSecret>,
    is_host_alone: bool,
}

impl OtherSecrets {
    /// Returns the first agent.
    pub(super) fn first(&self) -> Option<OtherSecret> {
        self.known.first().copied()
    }

    /// Notes that this agent hosts, and that it has found no other agent of the job. Returns the agents to report.
    pub(super) fn handle_hosting_alone(&mut self) -> Vec<OtherSecret> {
        self.is_host_alone = true;
        self.known.clone()
    }

    /// Notes that an agent of the job was found.
    pub(super) fn handle_agent_found(&mut self) {
        self.is_host_alone = false;
    }

    /// Notes a datagram from `at` with the secret `secret`. Returns the agent if it should be reported.
    pub(super) fn handle_datagram(&mut self, at: IpAddr, secret: SecretId) -> Option<OtherSecret> {
        let is_known = self.known.iter().any(|other| other.secret == secret);
        if is_known || self.known.len() >= limits::MAX_OTHER_SECRETS {
            return None;
        }
        let other = OtherSecret { at, secret };
        self.known.push(other);
        self.is_host_alone.then_some(other)
    }
}

/// The progress of a search that has found no coordinator yet.
#[derive(Clone, Copy, Debug)]
pub(super) enum SearchProgress {
    /// No other agent was found, except perhaps one with another secret.
    Alone(Option<OtherSecret>),
    /// Other agents were found, but none may host.
    NoCandidate,
    /// Agents that may host were found.
    Candidates,
    /// No coordinator answered at this address, which the search had found.
    NoCoordinator(SocketAddr),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn secret(number: usize) -> SecretId {
        SecretId::parse(&format!("{number:08x}")).unwrap()
    }

    /// An agent that hosts alone reports each other secret once, whether the datagram arrives before or after that.
    #[test]
    fn other_secrets_are_reported_once() {
        let at = IpAddr::from([10, 0, 0, 1]);
        let mut others = OtherSecrets::default();
        assert_eq!(others.handle_datagram(at, secret(1)), None);
        let first = OtherSecret { at, secret: secret(1) };
        assert_eq!((others.first(), others.handle_hosting_alone()), (Some(first), vec![first]));
        assert_eq!(others.handle_datagram(at, secret(1)), None);
        let second = OtherSecret { at, secret: secret(2) };
        assert_eq!(others.handle_datagram(at, secret(2)), Some(second));
        assert_eq!(others.handle_datagram(at, secret(2)), None);
    }

    /// The number of reports is limited. There are none once an agent of the job was found.
    #[test]
    fn reports_of_other_secrets_are_bounded() {
        let at = IpAddr::from([10, 0, 0, 1]);
        let mut others = OtherSecrets::default();
        others.handle_hosting_alone();
        let reported = (0..100).filter_map(|number| others.handle_datagram(at, secret(number)));
        assert_eq!(reported.count(), limits::MAX_OTHER_SECRETS);
        let mut others = OtherSecrets::default();
        others.handle_hosting_alone();
        others.handle_agent_found();
        assert_eq!(others.handle_datagram(at, secret(1)), None);
    }

    /// A search prints a line after a few seconds, and then one a minute.
    #[test]
    fn long_search_has_a_line_a_minute() {
        let start = ragent_base::sys::clock::now();
        let mut notice = SearchNotice::new(start);
        let mut lines = Vec::new();
        for second in 0..200 {
            let now = start + Duration::from_secs(second);
            let progress = match second {
                0..60 => SearchProgress::Alone(None),
                60..120 => SearchProgress::NoCandidate,
                120..180 => SearchProgress::Candidates,
                _ => SearchProgress::NoCoordinator(([10, 0, 0, 1], 29400).into()),
            };
            let line = notice.handle_timeout(now, "run7", "eth0,eth1", progress);
            lines.extend(line.map(|line| (second, line)));
        }
        let seconds: Vec<u64> = lines.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [5, 65, 125, 185]);
        assert_eq!(
            lines[0].1,
            "waiting for the host of job run7: no other agent of this job found yet; searching on \
             eth0,eth1"
        );
        assert!(lines[1].1.contains("none of the agents found may host"), "{}", lines[1].1);
        assert!(lines[2].1.contains("none of the agents found hosts it yet"), "{}", lines[2].1);
        assert!(lines[3].1.contains("no coordinator answers at 10.0.0.1:29400"), "{}", lines[3].1);
    }
}
