//! Explains why the workers of a job make no progress.
//!
//! It is a search in a wait-for graph, as databases search for deadlocks:
//!
//! 1. The digests of a look become evidence: the last collective of each rank in each group. If another part of
//!    the look shows other collectives, the job is slow, and no rank is blamed.
//! 2. A rank that has launched a collective, and not finished it, waits for the ranks of its group that have not
//!    launched it. These may wait in other groups.
//! 3. Ranks at the end of such a chain wait for no other rank: they are named.
//! 4. Without collectives, the stacks of most ranks are compared with those of the others.
//!
//! Digests are not trusted. All steps take time in proportion to their number, apart from sorting.

mod causes;
mod evidence;
mod facts;
mod graph;
mod group;
mod names;
mod places;
mod sentence;
mod stacks;

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use self::{evidence::Evidence, graph::Graph};
pub(crate) use self::{names::cut, places::places};
use crate::{
    ids::{GlobalRank, RoundId},
    message::Digest,
};

/// The facts that the coordinator itself knows about a stalled round.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Own {
    /// The round. Digests of another round do not count.
    pub round: RoundId,
    /// The number of the look. Digests of another look do not count.
    pub look: u64,
    /// The members, by their first rank.
    pub nodes: Vec<RankedNode>,
    /// The address and port of the round's store.
    pub store: Option<String>,
    /// A client that the store has refused, if any.
    pub refused: Option<IpAddr>,
    /// The reason for which ragent itself makes the workers wait, if any.
    pub wait: Option<OwnWait>,
}

/// A member of the round, and the ranks of its workers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RankedNode {
    /// Its host name.
    pub host: String,
    /// The rank of its first worker.
    pub first: GlobalRank,
    /// The number of its workers.
    pub workers: u32,
}

/// A reason for which ragent itself makes the workers wait.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OwnWait {
    /// A `save` of a checkpoint in memory waits until an earlier copy is complete.
    Memory {
        /// The waiting worker.
        rank: GlobalRank,
        /// The host that receives the copy, if known.
        to: Option<String>,
    },
    /// A notice has been sent, and the ranks may save.
    Notice,
}

/// The sentence without any evidence.
pub(crate) const NOTHING_KNOWN: &str = "nothing is known of the workers, except that they run";

/// The reason for which the workers of a job make no progress.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Explanation {
    /// A sentence, at most [`STALL_TEXT_MAX`](crate::snapshot::STALL_TEXT_MAX) bytes.
    pub text: String,
    /// Further facts, at most [`STALL_FACTS_MAX`](crate::snapshot::STALL_FACTS_MAX) lines.
    pub facts: Vec<String>,
    /// The rank to blame. It is the lowest one if there are several. `None` unless both parts of the look agree,
    /// and numbers of collectives, or connections to the store, show it.
    pub rank: Option<GlobalRank>,
    /// The lowest rank that is stopped (state `T`) in both parts of the look, while others wait. Stacks are
    /// enough to show it, so it may differ from `rank`.
    pub stopped: Option<GlobalRank>,
}

/// Explains a stall by the digests of a look. They may belong to both parts, in any order. A later digest of a
/// node replaces an earlier one of the same part.
///
/// A caller passes digests of members only. A node describes its own workers. [`restrict`] removes the rest.
pub fn explain_stall(digests: &[Digest], own: &Own) -> Explanation {
    let evidence = Evidence::new(digests, own);
    let graph = Graph::new(&evidence);
    let (cause, rank) = causes::find(&evidence, &graph, own);
    let mut stopped =
        evidence.workers.iter().filter(|(_, worker)| worker.stays_stopped_by_a_signal());
    let is_running = |rank: u32| !evidence.is_stopped(rank);
    let in_torch = evidence.workers.iter().filter(|(_, worker)| worker.is_in_torch());
    let others_wait = in_torch.map(|(rank, _)| *rank).chain(graph.waiting()).any(is_running);
    Explanation {
        text: sentence::of(&cause, &evidence, own),
        facts: facts::of(&cause, &evidence, own),
        rank: rank.map(GlobalRank),
        stopped: stopped.next().filter(|_| others_wait).map(|(rank, _)| GlobalRank(*rank)),
    }
}

/// Removes the workers of other nodes from a digest of `node`.
pub fn restrict(digest: &mut Digest, node: &RankedNode) {
    let is_own = |rank: &GlobalRank| node.has(rank.0);
    digest.workers.retain(|worker| is_own(&worker.rank));
    for group in &mut digest.groups {
        for launched in &mut group.launched {
            launched.ranks.retain(is_own);
            launched.count = launched.count.min(node.workers);
        }
        group.launched.retain(|launched| !launched.ranks.is_empty());
    }
}

impl Own {
    /// Returns the number of workers.
    fn world_size(&self) -> u64 {
        self.nodes.iter().map(|node| u64::from(node.workers)).sum()
    }

    /// Returns the node of a rank.
    fn node_of(&self, rank: u32) -> Option<&RankedNode> {
        let after = self.nodes.partition_point(|node| node.first.0 <= rank);
        self.nodes.get(after.checked_sub(1)?).filter(|node| node.has(rank))
    }
}

impl RankedNode {
    fn has(&self, rank: u32) -> bool {
        rank.checked_sub(self.first.0).is_some_and(|place| place < self.workers)
    }
}
