//! Explains to people and programs why the next round is not complete yet.

use std::{fmt, time::Duration};

use crate::snapshot::Explanation;

/// The reason why the next round is not complete yet.
#[derive(Clone, Debug, Eq, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Incomplete {
    /// The coordinator's host is leaving, and no round follows on this coordinator.
    HostLeaving,
    /// Enough nodes are ready for the first round, and the coordinator waits for more.
    LastCall {
        /// The remaining time of the last call.
        left: Duration,
        /// The number of further nodes that the round has room for.
        room: u32,
    },
    /// Enough nodes are ready for the first round, but a job of this name may exist without having
    /// been shown yet.
    Listening {
        /// The remaining time of the wait.
        left: Duration,
    },
    /// Other processes know a job of this name that may still run.
    OtherJob {
        /// The jobs, as text.
        jobs: Vec<String>,
    },
    /// The coordinator was restarted, and workers of members that are not back may still run.
    Recovering {
        /// The number of members that are back.
        back: u32,
        /// The number of members of the last round.
        size: u32,
        /// The remaining time of the wait for the others.
        left: Duration,
    },
    /// The coordinator was started without the state of the last round, and too few nodes are
    /// present to continue without the others.
    RecoveringMinority {
        /// The number of members that are back, plus the nodes that replace others.
        present: u32,
        /// The number of nodes that must be present.
        needed: u32,
        /// The remaining time until the job fails.
        left: Duration,
    },
    /// A round runs, and will be interrupted for the waiting nodes.
    Settling {
        /// The number of waiting nodes.
        waiting: u32,
        /// The remaining time until the round is interrupted.
        left: Duration,
    },
    /// The group would be smaller than before.
    Shrinking {
        /// The previous number of members.
        from: u32,
        /// The new number of members.
        to: u32,
        /// The remaining time of the wait for a replacement.
        left: Duration,
    },
    /// Members have not stopped their workers, or are not ready again.
    Stopping {
        /// The host names of the first few of them.
        hosts: Vec<String>,
        /// The number of the others.
        more: u32,
        /// The remaining time until they are evicted.
        left: Duration,
    },
    /// There are fewer nodes than a round needs.
    TooFewNodes {
        /// The number of ready nodes.
        ready: u32,
        /// The number of nodes that a round needs.
        min: u32,
        /// The number of ready nodes that get no place, because they are unhealthy or excluded.
        kept_out: u32,
        /// The remaining time until the job fails; `None` before the first node has registered.
        left: Option<Duration>,
        /// The host names of the first few nodes that were lost or have left, and are not back.
        lost: Vec<String>,
    },
    /// A failure occurred, and some members have not given a sign of life since.
    Verdict {
        /// The host names of the first few of them.
        hosts: Vec<String>,
        /// The number of the others.
        more: u32,
    },
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostLeaving => f.write_str("the coordinator's host is leaving: no round follows"),
            Self::LastCall { left, room } => {
                write!(f, "last call, {} left for up to {}", Seconds(*left), MoreNodes(*room))
            }
            Self::Listening { left } => write!(
                f,
                "making sure that no earlier job of this name still runs, {} left",
                Seconds(*left)
            ),
            Self::OtherJob { jobs } => f.write_str(&jobs.join("; ")),
            Self::Recovering { back, size, left } => write!(
                f,
                "recovering: {back} of {size} members of the last round have registered, {} left",
                Seconds(*left)
            ),
            Self::RecoveringMinority { present, needed, left } => write!(
                f,
                "recovering a round that this coordinator has no state of: {present} of at \
                 least {needed} nodes have registered, {} left",
                Seconds(*left)
            ),
            Self::Settling { waiting, left } => {
                let nodes = if *waiting == 1 { "node is waiting" } else { "nodes are waiting" };
                write!(f, "{waiting} {nodes}: a new round begins in {}", Seconds(*left))
            }
            Self::Shrinking { from, to, left } => write!(
                f,
                "the group would shrink from {from} to {to}: waiting {} for a replacement",
                Seconds(*left)
            ),
            Self::Stopping { hosts, more, left } => write!(
                f,
                "waiting for {} to stop and be ready for the next round, {} left",
                NamedHosts(hosts, *more),
                Seconds(*left)
            ),
            Self::TooFewNodes { ready, min, kept_out, left, lost } => {
                let missing = MoreNodes(min.saturating_sub(*ready));
                let kept_out = KeptOut(*kept_out);
                write!(f, "waiting for {missing} ({ready} of at least {min} are ready{kept_out})")?;
                if let Some(left) = left {
                    write!(f, ", join timeout in {}", Seconds(*left))?;
                }
                let end = if lost.is_empty() { "" } else { "; lost or left: " };
                write!(f, "{end}{}", lost.join(", "))
            }
            Self::Verdict { hosts, more } => {
                write!(
                    f,
                    "a worker failed: waiting for a response from {}",
                    NamedHosts(hosts, *more)
                )
            }
        }
    }
}

impl From<&Incomplete> for Explanation {
    fn from(incomplete: &Incomplete) -> Self {
        Self { kind: incomplete.name().to_owned(), text: incomplete.to_string() }
    }
}

/// A wait in whole seconds, rounded up, so that 0 s is shown only when it is over.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0.as_millis().div_ceil(1000))
    }
}

struct MoreNodes(u32);

impl fmt::Display for MoreNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} more node{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

/// The number of ready nodes that get no place, after a semicolon; nothing if there are none.
struct KeptOut(u32);

impl fmt::Display for KeptOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str("; 1 node is unhealthy or excluded"),
            more => write!(f, "; {more} nodes are unhealthy or excluded"),
        }
    }
}

struct NamedHosts<'a>(&'a [String], u32);

impl fmt::Display for NamedHosts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))?;
        if self.1 > 0 {
            write!(f, " and {} more", self.1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The text of a reason has its numbers, with the matching plural.
    #[test]
    fn reasons_read_well() {
        let texts = [
            Incomplete::TooFewNodes {
                ready: 2,
                min: 3,
                kept_out: 0,
                left: Some(581 * SECOND),
                lost: vec!["a".into(), "b".into()],
            },
            Incomplete::TooFewNodes { ready: 0, min: 2, kept_out: 3, left: None, lost: Vec::new() },
            Incomplete::LastCall { left: 12 * SECOND, room: 1 },
            Incomplete::Listening { left: 3 * SECOND },
            Incomplete::Shrinking { from: 3, to: 2, left: SECOND / 2 },
            Incomplete::Stopping { hosts: vec!["a".into(), "b".into()], more: 3, left: SECOND },
        ]
        .map(|incomplete| incomplete.to_string());
        assert_eq!(
            texts,
            [
                "waiting for 1 more node (2 of at least 3 are ready), join timeout in 581 s; lost or left: a, b",
                "waiting for 2 more nodes (0 of at least 2 are ready; 3 nodes are unhealthy or excluded)",
                "last call, 12 s left for up to 1 more node",
                "making sure that no earlier job of this name still runs, 3 s left",
                "the group would shrink from 3 to 2: waiting 1 s for a replacement",
                "waiting for a, b and 3 more to stop and be ready for the next round, 1 s left",
            ]
        );
    }
}
