//! Merges the digests of a look: the last collective of each rank in each group, and what each worker does.

use std::collections::{BTreeMap, HashMap};

use super::{
    Own,
    group::{Group, Launch},
};
use crate::message::{Activity, Digest, LaunchSource, LookPart, WorkerLook};

/// The most launches that count: eight groups for each of 80,000 workers, in both parts. Further ones are left out,
/// and no rank is blamed then.
const LAUNCHES_COUNTED: usize = 1_280_000;

/// The most groups of all ranks whose lists are completed. A job has one or two.
const COMPLETED_GROUPS: usize = 4;

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
                let key = (group.source == LaunchSource::Ras, group.name.as_str());
                let index = *indices.entry(key).or_insert(evidence.groups.len());
                if index == evidence.groups.len() {
                    evidence.groups.push(Group::new(group.source));
                }
                let is_whole =
                    evidence.groups[index].add(digest.part, group, world_size, &mut left);
                evidence.has_hidden_waits |= !is_whole;
            }
        }
        evidence.merge_groups(world_size);
        evidence.compare_ras();
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

    fn merge_groups(&mut self, world_size: u64) {
        let mut completed = 0;
        for (index, group) in self.groups.iter_mut().enumerate() {
            if let (Some(launch), None) = (group.merge(), self.moved) {
                self.moved = Some((index, launch));
            }
            let is_all = u64::from(group.size) == world_size;
            if is_all && completed < COMPLETED_GROUPS && group.complete() {
                completed += 1;
            }
            self.has_hidden_waits |= group.has_hidden_waits();
            let launched = group.members.iter().filter(|member| member.launch.number > 0);
            self.launched.extend(launched.map(|member| member.rank));
        }
        self.launched.sort_unstable();
        self.launched.dedup();
    }

    /// Compares the groups that NCCL describes. It describes only groups with a difference. So if it has answered
    /// in both parts, a group in one of them has gone on.
    fn compare_ras(&mut self) {
        let of_ras = |group: &Group<'_>| group.source == LaunchSource::Ras;
        let is_in =
            |part: usize| self.groups.iter().any(|g| of_ras(g) && g.highest[part].is_some());
        if self.moved.is_some() || !is_in(0) || !is_in(1) {
            return;
        }
        let is_in_one = |g: &Group<'_>| g.highest.iter().any(Option::is_none);
        let changed = self.groups.iter().position(|g| of_ras(g) && is_in_one(g));
        self.moved = changed.and_then(|index| {
            let (launch, _) = self.groups[index].counts.last_key_value()?;
            Some((index, *launch))
        });
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
