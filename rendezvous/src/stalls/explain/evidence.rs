//! Merges the digests of a look: the last collective of each rank in each group, and what each worker does.

use std::collections::{BTreeMap, HashMap};

use super::{
    Own,
    group::{Group, Launch},
};
use crate::message::{Activity, Digest, LookPart, WorkerLook};

/// The most launches that count: eight groups for each of 80,000 workers, in both parts. Further ones are left out,
/// and no rank is blamed then.
const LAUNCHES_COUNTED: usize = 1_280_000;

/// The evidence of a look.
#[derive(Debug, Default)]
pub(super) struct Evidence<'a> {
    pub(super) groups: Vec<Group<'a>>,
    /// The workers by rank.
    pub(super) workers: BTreeMap<u32, Worker<'a>>,
    /// A group whose launches differ between the parts of the look, and the new launch.
    pub(super) moved: Option<(usize, Launch<'a>)>,
    /// True if a rank may wait in a group whose lists do not contain it.
    pub(super) has_hidden_waits: bool,
    /// The ranks that have launched a collective, in order.
    launched: Vec<u32>,
}

/// A worker in both parts of the look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worker<'a> {
    /// The newest state.
    pub(super) look: &'a WorkerLook,
    /// The digest that contains it.
    pub(super) digest: &'a Digest,
    first: Option<&'a WorkerLook>,
    second: Option<&'a WorkerLook>,
}

impl Worker<'_> {
    /// Returns true if it was stopped, according to its newest state.
    pub(super) fn is_stopped(&self) -> bool {
        is_stopped(self.look)
    }

    /// Returns true if it was stopped in both parts of the look.
    pub(super) fn stays_stopped(&self) -> bool {
        [self.first, self.second].iter().all(|look| look.is_some_and(is_stopped))
    }

    /// Returns true if a signal had stopped it in both parts of the look, and no debugger.
    pub(super) fn stays_stopped_by_a_signal(&self) -> bool {
        [self.first, self.second].iter().all(|look| look.is_some_and(|it| it.state == Some('T')))
    }

    /// Returns true if its stack is in `torch.distributed`.
    pub(super) fn is_in_torch(&self) -> bool {
        matches!(self.look.activity, Some(Activity::Collective | Activity::Wait))
    }

    /// Returns true if it had no connection to the store in both parts.
    pub(super) fn stays_without_store(&self) -> bool {
        let is_without = |look: &WorkerLook| look.has_reached_store == Some(false);
        [self.first, self.second].iter().all(|look| look.is_some_and(is_without))
    }
}

/// Returns true if a worker was stopped by a signal or a debugger.
fn is_stopped(look: &WorkerLook) -> bool {
    matches!(look.state, Some('T' | 't'))
}

impl<'a> Evidence<'a> {
    /// Merges the digests that belong to the look.
    pub(super) fn new(digests: &'a [Digest], own: &Own) -> Self {
        let mut evidence = Self::default();
        let world_size = own.world_size();
        let mut indices = HashMap::new();
        let mut left = LAUNCHES_COUNTED;
        let of_look = |digest: &&Digest| (digest.round, digest.look) == (own.round, own.look);
        for digest in digests.iter().filter(of_look) {
            evidence.has_hidden_waits |= digest.is_cut;
            evidence.add_workers(digest, world_size);
            for group in &digest.groups {
                let index = *indices.entry(group.name.as_str()).or_insert(evidence.groups.len());
                if index == evidence.groups.len() {
                    evidence.groups.push(Group::default());
                }
                let is_whole =
                    evidence.groups[index].add(digest.part, group, world_size, &mut left);
                evidence.has_hidden_waits |= !is_whole;
            }
        }
        evidence.merge_groups();
        evidence
    }

    fn add_workers(&mut self, digest: &'a Digest, world_size: u64) {
        for look in &digest.workers {
            if u64::from(look.rank.0) >= world_size {
                continue;
            }
            let new = Worker { look, digest, first: None, second: None };
            let worker = self.workers.entry(look.rank.0).or_insert(new);
            match digest.part {
                LookPart::First => worker.first = Some(look),
                LookPart::Second => worker.second = Some(look),
            }
            if digest.part == LookPart::Second || worker.second.is_none() {
                (worker.look, worker.digest) = (look, digest);
            }
        }
    }

    fn merge_groups(&mut self) {
        for (index, group) in self.groups.iter_mut().enumerate() {
            if let (Some(launch), None) = (group.merge(), self.moved) {
                self.moved = Some((index, launch));
            }
            let launched = group.members.iter().filter(|member| member.launch.number > 0);
            self.launched.extend(launched.map(|member| member.rank));
        }
        self.launched.sort_unstable();
        self.launched.dedup();
    }

    /// Returns true if a group shows a collective that the rank has launched.
    pub(super) fn has_launched(&self, rank: u32) -> bool {
        self.launched.binary_search(&rank).is_ok()
    }

    /// Returns true if the rank is stopped.
    pub(super) fn is_stopped(&self, rank: u32) -> bool {
        self.workers.get(&rank).is_some_and(Worker::is_stopped)
    }
}
