//! Decides when to report that etcd does not answer, or that no leader is found through it.

use std::{
    fmt,
    time::{Duration, Instant},
};

use super::{error::EtcdError, limits};

/// The current error of etcd, and the time without a leader.
#[derive(Debug)]
pub(super) struct EtcdOutage {
    /// The last error, unless a request has succeeded since.
    cause: Option<String>,
    /// The start of the time without a leader; `None` while a leader is known.
    leaderless: Option<Instant>,
    is_reported: bool,
    /// The lease of a leader.
    lease: Duration,
}

/// The end of a leadership during an outage.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct LeaseLost {
    cause: String,
    lease: Duration,
}

impl fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cause, lease } = self;
        write!(
            f,
            "etcd has confirmed no change for {:.1} s, so this agent no longer coordinates the job; the workers \
             of all nodes are stopped, and start again when etcd answers: {cause}",
            lease.as_secs_f64()
        )
    }
}

impl EtcdOutage {
    pub(super) fn new(now: Instant, lease: Duration) -> Self {
        Self { cause: None, leaderless: Some(now), is_reported: false, lease }
    }

    /// Notes that a request has succeeded.
    pub(super) fn handle_answer(&mut self) {
        self.cause = None;
    }

    /// Notes that a request has failed.
    pub(super) fn handle_error(&mut self, error: &EtcdError) {
        self.cause = Some(error.to_string());
    }

    /// Notes whether a leader is known. Returns a report if this process led until now and etcd does not answer.
    pub(super) fn handle_leader(
        &mut self,
        now: Instant,
        is_known: bool,
        has_led: bool,
    ) -> Option<LeaseLost> {
        if is_known {
            (self.leaderless, self.is_reported) = (None, false);
            return None;
        }
        self.leaderless.get_or_insert(now);
        let cause = self.cause.clone().filter(|_| has_led)?;
        self.is_reported = true;
        Some(LeaseLost { cause, lease: self.lease })
    }

    /// Returns the time of the next report.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.leaderless.filter(|_| !self.is_reported).map(|since| since + limits::WAIT_WARNING)
    }

    /// Returns the report that is due, if there is one.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<String> {
        let since = self.leaderless?;
        if self.poll_timeout().is_none_or(|due| now < due) {
            return None;
        }
        self.is_reported = true;
        let waited = now.saturating_duration_since(since).as_secs();
        let cause = self
            .cause
            .as_deref()
            .unwrap_or("etcd answers, but no agent has become the coordinator");
        Some(format!("no coordinator was found through etcd for {waited} s: {cause}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silent() -> EtcdError {
        let waited = Duration::from_secs(1);
        EtcdError::Silent { member: "e1:2379".parse().unwrap(), waited }
    }

    /// A missing leader is reported once, with the error of etcd.
    #[test]
    fn lack_of_a_leader_is_reported_once() {
        let start = ragent_base::sys::clock::now_blocking();
        let mut outage = EtcdOutage::new(start, Duration::from_millis(4800));
        let due = start + limits::WAIT_WARNING;
        assert_eq!(outage.poll_timeout(), Some(due));
        assert_eq!(outage.handle_timeout(start), None);
        outage.handle_error(&silent());
        let expected = "no coordinator was found through etcd for 10 s: etcd at e1:2379 did not answer \
                        within 1.0 s";
        assert_eq!(outage.handle_timeout(due).as_deref(), Some(expected));
        assert_eq!((outage.poll_timeout(), outage.handle_timeout(due)), (None, None));
        assert_eq!(outage.handle_leader(due, true, false), None);
        assert_eq!(outage.poll_timeout(), None);
        assert_eq!(outage.handle_leader(due, false, false), None);
        assert_eq!(outage.poll_timeout(), Some(due + limits::WAIT_WARNING));
    }

    /// The end of a leadership is reported if etcd does not answer, but not if another process leads.
    #[test]
    fn lost_lease_is_reported() {
        let start = ragent_base::sys::clock::now_blocking();
        let mut outage = EtcdOutage::new(start, Duration::from_millis(4800));
        outage.handle_leader(start, true, false);
        assert_eq!(outage.handle_leader(start, false, true), None);
        outage.handle_leader(start, true, false);
        outage.handle_error(&silent());
        let lost = outage.handle_leader(start, false, true).unwrap();
        assert!(lost.to_string().starts_with("etcd has confirmed no change for 4.8 s"), "{lost}");
        assert_eq!(outage.poll_timeout(), None, "one line for each outage");
        outage.handle_answer();
        outage.handle_leader(start, true, false);
        assert_eq!(outage.handle_leader(start, false, true), None);
    }
}
