//! Chooses the checkpoint with which a round begins.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
};

use crate::{
    ids::{GlobalRank, GroupRank, NodeId},
    limits::NODES_MAX,
    message::{
        ALL_SOURCES_BYTES_MAX, CheckpointId, MemoryKind, MemoryPlan, MemoryReport, Part, PartPlace,
        PartSources, SOURCES_MAX,
    },
};

/// A node that may give its parts to others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) node: &'a NodeId,
    /// Its newest report.
    pub(crate) report: &'a MemoryReport,
}

/// The place of a node in the new round. Its index is the group rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) node: &'a NodeId,
    pub(crate) first_global_rank: GlobalRank,
    pub(crate) local_ranks: NonZeroU32,
}

/// The most checkpoints for which sources that did not answer are remembered. Fewer are held at once.
const GONE_MAX: usize = 8;

/// The addresses at which parts of a checkpoint could not be fetched.
#[derive(Debug, Default)]
pub(crate) struct Gone(BTreeMap<CheckpointId, BTreeSet<String>>);

impl Gone {
    /// Notes addresses that did not answer. The caller has checked that the round's plan has named them.
    pub(crate) fn add(
        &mut self,
        checkpoint: CheckpointId,
        addresses: impl IntoIterator<Item = String>,
    ) {
        self.0.entry(checkpoint).or_default().extend(addresses);
        if self.0.len() > GONE_MAX {
            self.0.pop_first();
        }
    }

    fn has(&self, checkpoint: CheckpointId, address: &str) -> bool {
        self.0.get(&checkpoint).is_some_and(|addresses| addresses.contains(address))
    }
}

/// The checkpoint with which a round begins.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Chosen {
    pub(crate) checkpoint: CheckpointId,
    pub(crate) kind: MemoryKind,
    /// The addresses of the nodes that hold a part, the best one first, for each node that does not hold its part
    /// itself.
    pub(crate) sources: BTreeMap<GroupRank, Vec<String>>,
    /// The holders of all parts by group rank, if it was saved with other ranks on the nodes; else empty.
    pub(crate) resharded: Vec<PartSources>,
    /// The size of all parts that are fetched. If it is resharded, all nodes read from all parts.
    pub(crate) bytes: u64,
}

impl Chosen {
    fn new(checkpoint: CheckpointId, kind: MemoryKind) -> Self {
        Self { checkpoint, kind, sources: BTreeMap::new(), resharded: Vec::new(), bytes: 0 }
    }

    /// Returns true if it was saved with other ranks on the nodes.
    pub(crate) fn is_resharded(&self) -> bool {
        !self.resharded.is_empty()
    }

    /// Returns the plan of the node at `rank`.
    pub(crate) fn plan(&self, rank: GroupRank) -> MemoryPlan {
        let all = Some(&self.resharded).filter(|_| rank == GroupRank(0));
        MemoryPlan {
            checkpoint: self.checkpoint,
            kind: self.kind,
            sources: self.sources.get(&rank).cloned().unwrap_or_default(),
            is_resharded: self.is_resharded(),
            all_sources: all.cloned().unwrap_or_default(),
        }
    }

    /// Returns true if the plan of the node at `rank` names an address.
    pub(crate) fn names(&self, rank: GroupRank, address: &str) -> bool {
        let of_node = self.sources.get(&rank).into_iter();
        let mut all = of_node.chain(self.resharded.iter().map(|part| &part.sources)).flatten();
        all.any(|source| source == address)
    }
}

/// A part, and the node that holds it.
type Held<'a> = (&'a Part, Source<'a>);

/// Returns the newest checkpoint that fits the new round, and where each node finds its part.
///
/// It fits if each part is held by at least one of the `sources`, and the new round has the same ranks on each
/// node. If it is replicated, one part is enough for any round. One that was written by DCP fits other ranks too, if
/// each part has an address. A part without an address can only be used by the node that holds it. A checkpoint whose
/// parts contradict each other never fits.
pub(crate) fn choose<'a>(
    sources: impl IntoIterator<Item = Source<'a>>,
    places: &[Place<'_>],
    is_void: impl Fn(CheckpointId) -> bool,
    gone: &Gone,
) -> Option<Chosen> {
    let mut by_checkpoint: BTreeMap<CheckpointId, Vec<Held<'a>>> = BTreeMap::new();
    for source in sources {
        for part in &source.report.parts {
            if !is_void(part.checkpoint) {
                by_checkpoint.entry(part.checkpoint).or_default().push((part, source));
            }
        }
    }
    let mut newest_first = by_checkpoint.into_iter().rev();
    newest_first.find_map(|(checkpoint, held)| fit(checkpoint, held, places, gone))
}

fn fit(
    checkpoint: CheckpointId,
    mut held: Vec<Held<'_>>,
    places: &[Place<'_>],
    gone: &Gone,
) -> Option<Chosen> {
    let (first, _) = *held.first()?;
    let form = |part: &Part| (part.kind, part.is_replicated, part.nodes);
    if !held.iter().all(|(part, _)| form(part) == form(first)) {
        return None;
    }
    // A part's owner is the best source: the node with the copy may have to send its own part too.
    let is_other = |part: &Part| part.place != PartPlace::Own;
    held.sort_by_key(|(part, _)| (part.group_rank, is_other(part)));
    let chosen = Chosen::new(checkpoint, first.kind);
    if first.is_replicated {
        return fit_replicated(chosen, &held, places, gone);
    }
    let parts = all_parts(&held, first.nodes)?;
    if has_ranks_of(&parts, places) {
        fit_same_ranks(chosen, &parts, places, gone)
    } else if first.kind == MemoryKind::Dcp {
        fit_other_ranks(chosen, &parts, gone)
    } else {
        None
    }
}

/// Plans a replicated checkpoint: any part serves any node.
fn fit_replicated(
    mut chosen: Chosen,
    held: &[Held<'_>],
    places: &[Place<'_>],
    gone: &Gone,
) -> Option<Chosen> {
    let holders: BTreeSet<&NodeId> = held.iter().map(|(_, source)| source.node).collect();
    for (rank, place) in (0..).map(GroupRank).zip(places) {
        if !holders.contains(place.node) {
            // Nodes that fetch the same part begin at different holders.
            let (before, after) = held.split_at(rank.0 as usize % held.len());
            fetch(&mut chosen, rank, after.iter().chain(before), gone)?;
        }
    }
    Some(chosen)
}

/// Plans a checkpoint whose nodes have the same ranks again: each needs its own part.
fn fit_same_ranks(
    mut chosen: Chosen,
    parts: &[&[Held<'_>]],
    places: &[Place<'_>],
    gone: &Gone,
) -> Option<Chosen> {
    for ((rank, place), holders) in (0..).map(GroupRank).zip(places).zip(parts) {
        if !holders.iter().any(|(_, source)| source.node == place.node) {
            fetch(&mut chosen, rank, holders.iter(), gone)?;
        }
    }
    Some(chosen)
}

/// Plans a checkpoint that was saved with other ranks: workers read from all parts. They read from addresses only, also
/// what their own node holds.
fn fit_other_ranks(mut chosen: Chosen, parts: &[&[Held<'_>]], gone: &Gone) -> Option<Chosen> {
    let (mut next, mut length) = (GlobalRank(0), 0);
    for holders in parts {
        let (part, _) = *holders.first()?;
        let sources = addresses(chosen.checkpoint, holders.iter(), gone);
        if sources.is_empty() || part.first_global_rank != next {
            return None;
        }
        next = GlobalRank(next.0.checked_add(part.local_ranks.get())?);
        length += sources.iter().map(String::len).sum::<usize>();
        chosen.bytes = chosen.bytes.saturating_add(part.bytes);
        chosen.resharded.push(PartSources {
            group_rank: part.group_rank,
            first_global_rank: part.first_global_rank,
            local_ranks: part.local_ranks,
            sources,
        });
    }
    let fits = length <= ALL_SOURCES_BYTES_MAX && chosen.resharded.len() <= NODES_MAX;
    fits.then_some(chosen)
}

/// Returns the holders of each part by group rank, from what is held in this order. `None` if a part is missing, or if
/// its holders disagree on its ranks.
fn all_parts<'h, 'a>(held: &'h [Held<'a>], nodes: u32) -> Option<Vec<&'h [Held<'a>]>> {
    let rank = |(part, _): &Held<'_>| part.group_rank;
    let parts: Vec<&[Held<'_>]> = held.chunk_by(|one, other| rank(one) == rank(other)).collect();
    let agree = |holders: &[Held<'_>]| {
        let mut ranks = holders.iter().map(|(part, _)| (part.first_global_rank, part.local_ranks));
        ranks.next().is_some_and(|first| ranks.all(|other| other == first))
    };
    let mut in_order = (0..).map(GroupRank).zip(&parts);
    let are_all = usize::try_from(nodes).is_ok_and(|nodes| nodes == parts.len())
        && in_order.all(|(number, holders)| holders.first().map(rank) == Some(number));
    (are_all && parts.iter().all(|holders| agree(holders))).then_some(parts)
}

/// Returns true if the nodes of the new round have the ranks with which the parts were saved.
fn has_ranks_of(parts: &[&[Held<'_>]], places: &[Place<'_>]) -> bool {
    let is_alike = |(holders, place): (&&[Held<'_>], &Place<'_>)| {
        holders.first().is_some_and(|(part, _)| {
            part.first_global_rank == place.first_global_rank
                && part.local_ranks == place.local_ranks
        })
    };
    parts.len() == places.len() && parts.iter().zip(places).all(is_alike)
}

/// Lets the node at `rank` fetch a part from its holders. `None` if none of them can be reached.
fn fetch<'h>(
    chosen: &mut Chosen,
    rank: GroupRank,
    holders: impl Iterator<Item = &'h Held<'h>> + Clone,
    gone: &Gone,
) -> Option<()> {
    let (part, _) = holders.clone().next()?;
    let sources = addresses(chosen.checkpoint, holders, gone);
    if sources.is_empty() {
        return None;
    }
    chosen.bytes = chosen.bytes.saturating_add(part.bytes);
    chosen.sources.insert(rank, sources);
    Some(())
}

/// Returns the addresses of the first holders that others reach; at most [`SOURCES_MAX`].
fn addresses<'h>(
    checkpoint: CheckpointId,
    holders: impl Iterator<Item = &'h Held<'h>>,
    gone: &Gone,
) -> Vec<String> {
    let mut sources: Vec<String> = Vec::new();
    for (_, source) in holders {
        let address = source.report.address.as_ref();
        let is_new =
            |address: &&String| !gone.has(checkpoint, address) && !sources.contains(address);
        sources.extend(address.filter(is_new).cloned());
        if sources.len() == SOURCES_MAX {
            break;
        }
    }
    sources
}

#[cfg(test)]
mod tests;
