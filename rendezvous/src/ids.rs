//! Identities and ranks, as types that cannot be mixed up.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps `text`, which the caller has checked (see `ragent-proto`).
            pub fn new(text: impl AsRef<str>) -> Self {
                Self(Arc::from(text.as_ref()))
            }

            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone,
            Copy,
            Debug,
            Default,
            Deserialize,
            Eq,
            Hash,
            Ord,
            PartialEq,
            PartialOrd,
            Serialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

text_id! {
    /// Names a job, as `--rdzv-id` gives it; two runs may share it.
    RunId
}
text_id! {
    /// Names one run of a job; minted by its first coordinator, so two runs never share it.
    JobUid
}
text_id! {
    /// Names one agent process for as long as it lives; a restarted agent gets a new one.
    NodeId
}

number_id! {
    /// Counts the starts of a job's coordinator, from one; zero is before the first.
    Term(u64)
}
number_id! {
    /// Counts agreements on membership, from one; zero is before the first. Only grows.
    Round(u64)
}
number_id! {
    /// Rank of a node within its worker group, counted from zero.
    GroupRank(u32)
}
number_id! {
    /// Rank of a worker within the job, counted from zero: `RANK`.
    GlobalRank(u32)
}
number_id! {
    /// Rank of a worker among the workers of its role, counted from zero: `ROLE_RANK`.
    RoleRank(u32)
}
number_id! {
    /// Rank of a worker on its node, counted from zero: `LOCAL_RANK`.
    LocalRank(u32)
}
number_id! {
    /// Numbers the attend streams of one node; the highest is the one that counts.
    AttendNumber(u64)
}

impl Term {
    /// The term of the next coordinator.
    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl Round {
    /// The round that follows.
    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// A round as one coordinator names it; compared term first.
///
/// Every message carries one, so that whatever is older than what its reader knows can be dropped.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct RoundId {
    /// The coordinator's term.
    pub term: Term,
    /// The round itself, which grows across terms too.
    pub round: Round,
}

impl fmt::Display for RoundId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.round)
    }
}

/// One attend stream: which node, and its how-many-eth.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Peer {
    /// The node that attends.
    pub node: NodeId,
    /// Which of its streams.
    pub attend: AttendNumber,
}
