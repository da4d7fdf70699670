//! Why the next round is not complete yet, for people and programs.

use std::{fmt, time::Duration};

use crate::snapshot::Explanation;

/// Why the next round is not complete yet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Incomplete {
    /// The coordinator's host leaves, and no round follows here.
    HostLeaving,
    /// Enough nodes are ready for the first round; more may come.
    LastCall {
        /// How long the last call runs on.
        left: Duration,
        /// How many more nodes there is room for.
        room: u32,
    },
    /// The coordinator was started anew, and workers of members that are not back may live.
    Recovering {
        /// Members that are back.
        back: u32,
        /// Members that the last round had.
        size: u32,
        /// How long it waits for the others.
        left: Duration,
    },
    /// The coordinator was started without the state of the last round, and too few nodes are present to
    /// continue without the others.
    RecoveringMinority {
        /// Members that are back, and nodes that came in the place of others.
        present: u32,
        /// How many of them are needed.
        needed: u32,
        /// How long until the job fails.
        left: Duration,
    },
    /// A round runs, and will be interrupted for nodes that wait.
    Settling {
        /// How many nodes wait.
        waiting: u32,
        /// How long until the round is interrupted.
        left: Duration,
    },
    /// The group would be smaller than it was.
    Shrinking {
        /// How many members it had.
        from: u32,
        /// How many it would have.
        to: u32,
        /// How long it waits for a replacement.
        left: Duration,
    },
    /// Members have not stopped their workers, or are not ready again.
    Stopping {
        /// Their host names, the first few.
        hosts: Vec<String>,
        /// How many more there are.
        more: u32,
        /// How long they are waited for.
        left: Duration,
    },
    /// There are fewer nodes than a round needs.
    TooFewNodes {
        /// Nodes that are ready.
        ready: u32,
        /// Nodes that a round needs.
        min: u32,
        /// How long until the job fails; none before the first node has come.
        left: Option<Duration>,
    },
    /// Something failed, and members have not yet shown that they live.
    Verdict {
        /// Their host names, the first few.
        hosts: Vec<String>,
        /// How many more there are.
        more: u32,
    },
}

impl Incomplete {
    /// A stable word for it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::HostLeaving => "host_leaving",
            Self::LastCall { .. } => "last_call",
            Self::Recovering { .. } => "recovering",
            Self::RecoveringMinority { .. } => "recovering_minority",
            Self::Settling { .. } => "settling",
            Self::Shrinking { .. } => "shrinking",
            Self::Stopping { .. } => "stopping",
            Self::TooFewNodes { .. } => "too_few_nodes",
            Self::Verdict { .. } => "verdict",
        }
    }
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostLeaving => f.write_str("the host of the rendezvous leaves: no round follows"),
            Self::LastCall { left, room } => {
                write!(f, "last call, {} left for up to {}", Seconds(*left), MoreNodes(*room))
            }
            Self::Recovering { back, size, left } => write!(
                f,
                "recovering: {back} of {size} members of the last round are back, {} left",
                Seconds(*left)
            ),
            Self::RecoveringMinority { present, needed, left } => write!(
                f,
                "recovering a round that this coordinator has no state of: {present} of at least \
                 {needed} nodes are there, {} left",
                Seconds(*left)
            ),
            Self::Settling { waiting, left } => {
                let nodes = if *waiting == 1 { "node waits" } else { "nodes wait" };
                write!(f, "{waiting} {nodes}: a new round begins in {}", Seconds(*left))
            }
            Self::Shrinking { from, to, left } => write!(
                f,
                "the group would shrink from {from} to {to}: waiting {} for a replacement",
                Seconds(*left)
            ),
            Self::Stopping { hosts, more, left } => write!(
                f,
                "waiting for {} to stop and be ready again, {} left",
                Hosts(hosts, *more),
                Seconds(*left)
            ),
            Self::TooFewNodes { ready, min, left } => {
                let missing = MoreNodes(min.saturating_sub(*ready));
                write!(f, "waiting for {missing} ({ready} of at least {min} are ready)")?;
                left.map_or(Ok(()), |left| write!(f, ", {} left", Seconds(left)))
            }
            Self::Verdict { hosts, more } => {
                write!(f, "a worker failed: waiting for a sign of life of {}", Hosts(hosts, *more))
            }
        }
    }
}

impl From<&Incomplete> for Explanation {
    fn from(incomplete: &Incomplete) -> Self {
        Self { kind: incomplete.kind().to_owned(), text: incomplete.to_string() }
    }
}

/// A wait in whole seconds, rounded up: what is shown as over, is over.
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

struct Hosts<'a>(&'a [String], u32);

impl fmt::Display for Hosts<'_> {
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

    /// A reason is a sentence with its numbers in it.
    #[test]
    fn reasons_read_well() {
        let texts = [
            Incomplete::TooFewNodes { ready: 2, min: 3, left: Some(581 * SECOND) },
            Incomplete::TooFewNodes { ready: 0, min: 2, left: None },
            Incomplete::LastCall { left: 12 * SECOND, room: 1 },
            Incomplete::Shrinking { from: 3, to: 2, left: SECOND / 2 },
            Incomplete::Stopping { hosts: vec!["a".into(), "b".into()], more: 3, left: SECOND },
        ]
        .map(|incomplete| incomplete.to_string());
        assert_eq!(
            texts,
            [
                "waiting for 1 more node (2 of at least 3 are ready), 581 s left",
                "waiting for 2 more nodes (0 of at least 2 are ready)",
                "last call, 12 s left for up to 1 more node",
                "the group would shrink from 3 to 2: waiting 1 s for a replacement",
                "waiting for a, b and 3 more to stop and be ready again, 1 s left",
            ]
        );
    }
}
