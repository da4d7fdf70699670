//! The choice of a checkpoint, and the sources of its parts.

use super::*;
use crate::memory::fixture::{checkpoint, dcp, part, replicated, report};

const OWN: PartPlace = PartPlace::Own;
const COPY: PartPlace = PartPlace::Copy;
const LEFTOVER: PartPlace = PartPlace::Leftover;

/// The parts of each node. A node of the round has the name of its rank; others are spares.
struct World {
    held: Vec<(NodeId, MemoryReport)>,
    gone: Gone,
    void_below: CheckpointId,
}

/// Nodes `0`, `1`, …, with these parts. Each offers its parts at an address of its name.
fn world(held: &[&[Part]]) -> World {
    let node = |(number, parts): (usize, &&[Part])| {
        (NodeId::new(number.to_string()), report(Some(&format!("at-{number}")), parts))
    };
    World {
        held: held.iter().enumerate().map(node).collect(),
        gone: Gone::default(),
        void_below: CheckpointId::default(),
    }
}

impl World {
    /// Returns the step of the chosen checkpoint, and the sources of each node of the round.
    fn choose(&self, placed: &[&str]) -> Option<(u64, Vec<String>)> {
        self.choose_with(placed, 1)
    }

    fn choose_with(&self, placed: &[&str], workers: u32) -> Option<(u64, Vec<String>)> {
        let chosen = self.chosen(placed, workers)?;
        let plan = |rank| chosen.plan(GroupRank(rank));
        let ranks = 0..u32::try_from(placed.len()).expect("few");
        assert!(ranks.clone().map(plan).all(|plan| !plan.is_resharded));
        Some((chosen.checkpoint.step, ranks.map(|rank| plan(rank).sources.join(" ")).collect()))
    }

    fn chosen(&self, placed: &[&str], workers: u32) -> Option<Chosen> {
        let nodes: Vec<NodeId> = placed.iter().map(NodeId::new).collect();
        let place = |(node, rank)| Place {
            node,
            first_global_rank: GlobalRank(rank * workers),
            local_ranks: NonZeroU32::new(workers).expect("a worker"),
        };
        let places: Vec<Place<'_>> = nodes.iter().zip(0..).map(place).collect();
        let sources = self.held.iter().map(|(node, report)| Source { node, report });
        let is_void = |id| id < self.void_below;
        choose(sources, &places, is_void, &self.gone)
    }

    /// Returns the step of the chosen checkpoint, and the sources of each of its parts; `None` if none is chosen that
    /// was saved with other ranks.
    fn reshard(&self, placed: &[&str], workers: u32) -> Option<(u64, Vec<String>)> {
        let chosen = self.chosen(placed, workers)?;
        let plans = (0..).zip(placed).map(|(rank, _)| chosen.plan(GroupRank(rank)));
        let plans: Vec<MemoryPlan> = plans.collect();
        for (rank, plan) in plans.iter().enumerate() {
            assert!(plan.is_resharded && plan.sources.is_empty(), "{plan:?}");
            assert_eq!(plan.all_sources.is_empty(), rank > 0, "only rank 0 has them");
        }
        let all = &plans.first()?.all_sources;
        let in_order = all.iter().zip(0..).all(|(part, rank)| part.group_rank == GroupRank(rank));
        assert!(in_order, "{all:?}");
        assert_eq!(chosen.bytes, 10 * all.len() as u64);
        Some((chosen.checkpoint.step, all.iter().map(|part| part.sources.join(" ")).collect()))
    }
}

/// A job of four nodes whose script uses DCP. Nodes 0 and 2 hold each other's copies, and so do 1 and 3.
fn four_with_dcp(id: CheckpointId) -> World {
    let held = |rank| [dcp(part(id, rank, 4, OWN)), dcp(part(id, (rank + 2) % 4, 4, COPY))];
    world(&[&held(0), &held(1), &held(2), &held(3), &[]])
}

fn some(step: u64, sources: &[&str]) -> Option<(u64, Vec<String>)> {
    Some((step, sources.iter().map(|text| (*text).to_owned()).collect()))
}

/// After a worker's death, each node has its own part. The newest step whose parts are all held counts,
/// not the lowest of the nodes' newest steps: no node may hold that one.
#[test]
fn newest_of_which_all_parts_are_held() {
    let [id, newer, newest] = [10, 20, 30].map(|step| checkpoint(1, step));
    let world = world(&[
        &[part(id, 0, 2, OWN), part(newer, 0, 2, OWN)],
        &[part(id, 1, 2, OWN), part(newest, 1, 2, OWN)],
    ]);
    assert_eq!(world.choose(&["0", "1"]), some(10, &["", ""]));
    let lowest = self::world(&[&[part(newer, 0, 2, OWN)], &[part(newest, 1, 2, OWN)]]);
    assert_eq!(lowest.choose(&["0", "1"]), None);
}

/// A job that went back makes another step 120: the parts of two checkpoints are never mixed. The later round
/// counts, even if its step is lower.
#[test]
fn steps_of_different_rounds_are_different() {
    let (old, new) = (checkpoint(1, 120), checkpoint(2, 120));
    let mixed = world(&[&[part(old, 0, 2, OWN)], &[part(new, 1, 2, OWN)]]);
    assert_eq!(mixed.choose(&["0", "1"]), None);
    let new = checkpoint(2, 20);
    let both = world(&[
        &[part(old, 0, 2, OWN), part(new, 0, 2, OWN)],
        &[part(old, 1, 2, OWN), part(new, 1, 2, OWN)],
    ]);
    assert_eq!(both.choose(&["0", "1"]).map(|(step, _)| step), Some(20));
}

/// A new node fetches the part of the lost one from its buddy. Held once is enough, and any place counts.
#[test]
fn new_node_fetches_the_copy() {
    let id = checkpoint(1, 10);
    let world = world(&[&[part(id, 0, 3, OWN)], &[part(id, 2, 3, OWN), part(id, 1, 3, COPY)], &[]]);
    assert_eq!(world.choose(&["0", "2", "1"]), some(10, &["", "at-1", ""]));
    // If rank 0 is lost, node 1 takes it over and fetches its part too.
    let id = checkpoint(1, 10);
    let moved = self::world(&[
        &[part(id, 1, 3, OWN), part(id, 0, 3, LEFTOVER)],
        &[part(id, 2, 3, OWN), part(id, 1, 3, COPY)],
        &[],
    ]);
    assert_eq!(moved.choose(&["0", "2", "1"]), some(10, &["", "at-0 at-1", ""]));
}

/// Without an address, only the node itself can use a part.
#[test]
fn nothing_is_fetched_without_an_address() {
    let id = checkpoint(1, 10);
    let mut world = world(&[&[part(id, 0, 2, OWN)], &[part(id, 1, 2, OWN)]]);
    world.held.iter_mut().for_each(|(_, report)| report.address = None);
    assert_eq!(world.choose(&["0", "1"]), some(10, &["", ""]));
    assert_eq!(world.choose(&["1", "0"]), None);
    assert_eq!(world.choose(&["0", "2"]), None);
}

/// Parts of another layout do not fit: another number of nodes, or other ranks on a node.
#[test]
fn other_layout_does_not_fit() {
    let id = checkpoint(1, 10);
    let world = world(&[&[part(id, 0, 3, OWN)], &[part(id, 1, 3, OWN)], &[part(id, 2, 3, OWN)]]);
    assert!(world.choose(&["0", "1", "2"]).is_some());
    assert_eq!(world.choose(&["0", "1"]), None);
    assert_eq!(world.choose(&["0", "1", "2", "3"]), None);
    assert_eq!(world.choose_with(&["0", "1", "2"], 2), None);
}

/// A replicated checkpoint needs one holder, for any number of nodes. Nodes that fetch it begin at different
/// holders.
#[test]
fn replicated_needs_one_holder() {
    let id = checkpoint(1, 10);
    let of = |rank| replicated(part(id, rank, 3, OWN));
    let one = world(&[&[], &[of(1)], &[]]);
    assert_eq!(one.choose(&["0", "1"]), some(10, &["at-1", ""]));
    let two = world(&[&[of(0)], &[of(1)], &[], &[]]);
    assert_eq!(two.choose(&["2", "3"]), some(10, &["at-0 at-1", "at-1 at-0"]));
    assert_eq!(two.choose(&["0", "1"]), some(10, &["", ""]));
}

/// Parts that contradict each other are not of one checkpoint.
#[test]
fn contradicting_parts_never_fit() {
    let id = checkpoint(1, 10);
    let dcp = Part { kind: MemoryKind::Dcp, ..part(id, 1, 2, OWN) };
    let others = [dcp, replicated(part(id, 1, 2, OWN)), part(id, 1, 3, OWN)];
    for other in others {
        let world = world(&[&[part(id, 0, 2, OWN)], &[other]]);
        assert_eq!(world.choose(&["0", "1"]), None, "{other:?}");
    }
    let wider = Part { local_ranks: NonZeroU32::new(2).expect("two"), ..part(id, 1, 2, COPY) };
    let world = world(&[&[part(id, 0, 2, OWN), wider], &[part(id, 1, 2, OWN)]]);
    assert_eq!(world.choose(&["0", "1"]), None);
}

/// Void checkpoints are not chosen, and neither are addresses that did not answer. They matter only for this
/// checkpoint, and not to the node itself.
#[test]
fn void_and_gone_do_not_count() {
    let (old, id) = (checkpoint(1, 10), checkpoint(1, 20));
    let all = |rank| [part(old, rank, 2, OWN), part(id, rank, 2, OWN)];
    let mut world = world(&[&all(0), &all(1)]);
    world.gone.add(id, ["at-1".to_owned()]);
    assert_eq!(world.choose(&["0", "1"]), some(20, &["", ""]), "both hold their parts");
    assert_eq!(world.choose(&["0", "2"]), some(10, &["", "at-1"]));
    world.void_below = id;
    assert_eq!(world.choose(&["0", "2"]), None);
}

/// A checkpoint of DCP fits fewer and more nodes, and other ranks on a node. Only rank 0 gets the holders of all parts,
/// first the owner of each. With the same ranks, each node begins with its own part.
#[test]
fn dcp_fits_other_ranks() {
    let mut world = four_with_dcp(checkpoint(1, 10));
    let all = ["at-0 at-2", "at-1 at-3", "at-2 at-0", "at-3 at-1"];
    assert_eq!(world.choose(&["0", "1", "2", "3"]), some(10, &["", "", "", ""]));
    assert_eq!(world.choose(&["0", "1", "4", "3"]), some(10, &["", "", "at-2 at-0", ""]));
    for (placed, workers) in
        [(&["0", "1", "2", "3"][..], 2), (&["0", "1", "2", "3", "4"], 1), (&["3", "4"], 1)]
    {
        assert_eq!(world.reshard(placed, workers), some(10, &all), "{placed:?}");
    }
    // Node 1 is lost. A replicated one is given to each node, as before.
    world.held[1].1.parts.clear();
    let lost = some(10, &["at-0 at-2", "at-3", "at-2 at-0", "at-3"]);
    assert_eq!(world.reshard(&["0", "2", "3"], 1), lost);
    let of = |rank| replicated(dcp(part(checkpoint(1, 10), rank, 4, OWN)));
    let world = self::world(&[&[of(0)], &[of(1)], &[]]);
    assert_eq!(world.choose(&["0", "1", "2"]), some(10, &["", "", "at-0 at-1"]));
}

/// The ranks of the parts are in the plan. They may differ between nodes.
#[test]
fn plan_has_the_ranks_of_all_parts() {
    let id = checkpoint(1, 10);
    let wide = |first, workers, rank| Part {
        first_global_rank: GlobalRank(first),
        local_ranks: NonZeroU32::new(workers).expect("a worker"),
        ..dcp(part(id, rank, 2, OWN))
    };
    let world = world(&[&[wide(0, 3, 0)], &[wide(3, 1, 1)]]);
    let chosen = world.chosen(&["0", "1"], 2).expect("it fits");
    let of = |part: &PartSources| (part.first_global_rank.0, part.local_ranks.get());
    let ranks: Vec<(u32, u32)> = chosen.resharded.iter().map(of).collect();
    assert_eq!(ranks, [(0, 3), (3, 1)]);
    assert!(chosen.names(GroupRank(1), "at-0"), "each node reads from all");
    // The ranks of the second part do not follow on those of the first.
    for (first, workers) in [(0, 2), (0, 4), (1, 3)] {
        let world = self::world(&[&[wide(first, workers, 0)], &[wide(3, 1, 1)]]);
        assert_eq!(world.reshard(&["0"], 1), None, "{first} {workers}");
    }
}

/// For other ranks each part needs an address, also one that its reader holds.
#[test]
fn other_ranks_need_all_addresses() {
    let id = checkpoint(1, 10);
    let own = |rank| [dcp(part(id, rank, 2, OWN))];
    let mut world = world(&[&own(0), &own(1)]);
    assert_eq!(world.reshard(&["0"], 1), some(10, &["at-0", "at-1"]));
    world.gone.add(checkpoint(1, 20), ["at-0".to_owned()]);
    assert!(world.reshard(&["0"], 1).is_some(), "another checkpoint");
    world.gone.add(id, ["at-0".to_owned()]);
    assert_eq!(world.reshard(&["0"], 1), None);
    world.gone = Gone::default();
    world.held[0].1.address = None;
    assert_eq!(world.reshard(&["0"], 1), None);
    world.held[0].1.address = Some("x".repeat(ALL_SOURCES_BYTES_MAX - 4));
    assert!(world.reshard(&["0"], 1).is_some());
    world.held[0].1.address = Some("x".repeat(ALL_SOURCES_BYTES_MAX - 3));
    assert_eq!(world.reshard(&["0"], 1), None, "the addresses are too long");
    // Only one holder of each part is gone.
    let mut world = four_with_dcp(id);
    world.gone.add(id, ["at-1".to_owned(), "at-2".to_owned()]);
    let left = some(10, &["at-0", "at-3", "at-0", "at-3"]);
    assert_eq!(world.reshard(&["0", "1", "2"], 1), left);
}

/// The newest checkpoint is chosen, also if an older one has the ranks of the new round. Void ones are not.
#[test]
fn newest_counts_with_other_ranks() {
    let (old, id) = (checkpoint(1, 10), checkpoint(2, 20));
    let held = |rank| [dcp(part(old, rank, 2, OWN)), dcp(part(id, rank, 3, OWN))];
    let mut world = world(&[&held(0), &held(1), &[dcp(part(id, 2, 3, OWN))]]);
    assert_eq!(world.reshard(&["0", "1"], 1), some(20, &["at-0", "at-1", "at-2"]));
    // The last part is missing, or contradicts the others.
    let last = world.held[2].1.parts.pop().expect("a part");
    assert_eq!(world.choose(&["0", "1"]), some(10, &["", ""]));
    world.held[2].1.parts.push(Part { kind: MemoryKind::State, ..last });
    assert_eq!(world.choose(&["0", "1"]), some(10, &["", ""]));
    world.held[2].1.parts = vec![last, Part { first_global_rank: GlobalRank(3), ..last }];
    assert_eq!(world.choose(&["0", "1"]), some(10, &["", ""]));
    world.void_below = id;
    assert_eq!(world.choose(&["0", "1"]), None);
    world.held[2].1.parts = vec![last];
    assert!(world.reshard(&["0", "1"], 1).is_some());
    world.void_below = checkpoint(2, 21);
    assert_eq!(world.reshard(&["0", "1"], 1), None);
}

/// No part, no plan.
#[test]
fn missing_part_is_not_chosen() {
    let id = checkpoint(1, 10);
    assert_eq!(world(&[&[part(id, 0, 2, OWN)], &[]]).choose(&["0", "1"]), None);
    assert_eq!(world(&[&[], &[]]).choose(&["0", "1"]), None);
}

/// Addresses that did not answer are remembered for the newest few checkpoints.
#[test]
fn addresses_that_are_gone_are_bounded() {
    let (mut gone, at) = (Gone::default(), || ["at-1".to_owned()]);
    for step in 1..=GONE_MAX as u64 {
        gone.add(checkpoint(1, step), at());
    }
    assert!(gone.has(checkpoint(1, 1), "at-1"));
    gone.add(checkpoint(1, 99), at());
    assert!(!gone.has(checkpoint(1, 1), "at-1") && gone.has(checkpoint(1, 2), "at-1"));
}

/// A plan names the sources of its node, and no other address.
#[test]
fn plan_names_its_sources() {
    let mut chosen = Chosen::new(checkpoint(1, 10), MemoryKind::State);
    chosen.sources.insert(GroupRank(1), vec!["at-0".to_owned()]);
    assert!(chosen.names(GroupRank(1), "at-0") && !chosen.names(GroupRank(1), "at-2"));
    assert!(!chosen.names(GroupRank(0), "at-0"));
}
