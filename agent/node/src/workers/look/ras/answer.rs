//! Reads the answer of NCCL RAS, and describes communicators whose ranks differ.
//!
//! 1. An answer without any worker of this node belongs to another job, and is dropped.
//! 2. In the communicator of all ranks, the rank is the global rank. So hosts and process ids give the global ranks in
//!    all other communicators. Without it, a few processes are listed by host and process id.
//! 3. A communicator is described if its ranks differ. The communicator of all ranks always is. For all others together,
//!    there is the sum of all counts: if it differs between the parts of a look, the job goes on.
//! 4. A digest has no room for many ranks. It shows that something is left out.
//!
//! NCCL counts collectives by kind. A rank's number is their sum, and its last kind is the one that it has launched more
//! often than another rank. The answer is not trusted.

use std::{cmp::Reverse, collections::BTreeMap, net::IpAddr};

use ragent_proto::printable_line;
use ragent_rendezvous::{
    ids::GlobalRank,
    message::{
        DIGEST_GROUPS_MAX, GROUP_NAME_MAX, GroupLook, LAUNCHES_MAX, LISTED_PROCESSES_MAX,
        LISTED_RANKS_MAX, LaunchSource, Launched,
    },
};
use serde::Deserialize;

use crate::workers::look::{Groups, records::shortened};

/// The workers of this node, by which its own job is recognized.
#[derive(Clone, Debug)]
pub(crate) struct OwnWorkers {
    /// The ranks of the workers by process id.
    pub(crate) pids: BTreeMap<u32, GlobalRank>,
    /// The addresses of this machine.
    pub(crate) addresses: Vec<IpAddr>,
    /// The number of all workers of the job.
    pub(crate) world_size: u32,
}

/// The kinds of collectives that NCCL counts, at most. It has five today.
const KINDS_MAX: usize = 16;

/// The ranks in all lists of the described groups, at most, so that a digest has room for workers.
const RANKS_MAX: usize = 256;

/// The processes in all lists of the described groups, at most, for the same reason.
const PROCESSES_MAX: usize = 8;

#[derive(Deserialize)]
struct Answer {
    communicators: Vec<Communicator>,
}

#[derive(Deserialize)]
struct Communicator {
    hash: String,
    #[serde(default)]
    secondary_hash: String,
    size: u32,
    #[serde(default)]
    ranks: Vec<Rank>,
    #[serde(default)]
    missing_ranks: Vec<MissingRank>,
}

#[derive(Deserialize)]
struct Rank {
    rank: u32,
    host: String,
    pid: i64,
    collective_counts: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct MissingRank {
    rank: u32,
    host: String,
    pid: i64,
}

/// A process of a communicator, and its rank in the job if that is known.
struct Process<'a> {
    host: &'a str,
    pid: i64,
    rank: Option<GlobalRank>,
}

impl Process<'_> {
    fn name(&self) -> String {
        printable_line(&format!("process {} on {}", self.pid, self.host))
    }
}

/// The processes of the job by host and process id.
type Ranks<'a> = BTreeMap<(&'a str, i64), GlobalRank>;

/// Reads an answer. Returns `None` if it has another form, or is that of another job.
pub(crate) fn groups(received: &[u8], own: &OwnWorkers) -> Option<Groups> {
    let json = received.strip_prefix(b"OK\n")?;
    let start = json.iter().position(|byte| *byte == b'{')?;
    let Answer { communicators: all } = serde_json::from_slice(&json[start..]).ok()?;
    if !all.iter().any(|communicator| communicator.has_worker_of(own)) {
        return None;
    }
    let whole = all.iter().filter(|communicator| communicator.size == own.world_size);
    let whole = whole.max_by_key(|communicator| communicator.ranks.len());
    let ranks = whole.map(Communicator::global_ranks).unwrap_or_default();
    let is_whole =
        |communicator: &Communicator| whole.is_some_and(|whole| std::ptr::eq(whole, communicator));
    let described =
        |communicator: &&Communicator| is_whole(communicator) || communicator.has_difference();
    let mut groups: Vec<_> = all
        .iter()
        .filter(described)
        .map(|communicator| (Reverse(is_whole(communicator)), communicator.describe(&ranks, own)))
        .collect();
    groups.sort_by_key(|(whole, (group, _))| (*whole, Reverse(group.size)));
    let (mut left, mut left_processes) = (RANKS_MAX, PROCESSES_MAX);
    let mut is_cut = groups.len() >= DIGEST_GROUPS_MAX;
    let mut described = vec![total(&all, own.world_size)];
    for (_, (mut group, is_list_cut)) in groups.into_iter().take(DIGEST_GROUPS_MAX - 1) {
        let listed: usize = group.launched.iter().map(|launched| launched.ranks.len()).sum();
        let Some(rest) = left.checked_sub(listed) else {
            is_cut = true;
            break;
        };
        left = rest;
        for launched in &mut group.launched {
            launched.processes.truncate(left_processes);
            left_processes -= launched.processes.len();
        }
        is_cut |= is_list_cut;
        described.push(group);
    }
    Some(Groups { groups: described, is_cut })
}

/// Describes the number of all collectives of the job.
fn total(all: &[Communicator], world_size: u32) -> GroupLook {
    let ranks = all.iter().flat_map(|communicator| &communicator.ranks);
    let number = ranks.fold(0, |sum: u64, rank| sum.saturating_add(rank.number()));
    let operation = "collective".to_owned();
    let launched = Launched {
        operation,
        number,
        is_finished: true,
        count: world_size,
        ranks: Vec::new(),
        processes: Vec::new(),
    };
    GroupLook {
        name: String::new(),
        size: world_size,
        source: LaunchSource::Ras,
        launched: vec![launched],
        unanswered: Vec::new(),
    }
}

impl Communicator {
    fn has_worker_of(&self, own: &OwnWorkers) -> bool {
        let is_own = |host: &str, pid: i64| {
            let is_here = host.parse().is_ok_and(|address| own.addresses.contains(&address));
            is_here && u32::try_from(pid).is_ok_and(|pid| own.pids.contains_key(&pid))
        };
        self.ranks.iter().any(|rank| is_own(&rank.host, rank.pid))
            || self.missing_ranks.iter().any(|rank| is_own(&rank.host, rank.pid))
    }

    /// Returns the ranks of all processes, of the communicator of all ranks.
    fn global_ranks(&self) -> Ranks<'_> {
        let ranks = self.ranks.iter().map(|rank| ((rank.host.as_str(), rank.pid), rank.rank));
        let missing = self.missing_ranks.iter();
        let missing = missing.map(|rank| ((rank.host.as_str(), rank.pid), rank.rank));
        let is_known = |(process, rank): ((_, i64), u32)| {
            (process.1 > 0 && rank < self.size).then_some((process, GlobalRank(rank)))
        };
        ranks.chain(missing).filter_map(is_known).collect()
    }

    fn has_difference(&self) -> bool {
        let differs = |pair: &[Rank]| pair[0].collective_counts != pair[1].collective_counts;
        !self.missing_ranks.is_empty() || self.ranks.windows(2).any(differs)
    }

    /// Describes it. Returns also true if something is left out.
    fn describe(&self, ranks: &Ranks<'_>, own: &OwnWorkers) -> (GroupLook, bool) {
        let global = |host: &str, pid: i64| ranks.get(&(host, pid)).copied();
        let fewest = self.fewest();
        // A rank may be listed twice. It counts once.
        let mut launches: BTreeMap<(u64, String), Vec<Process<'_>>> = BTreeMap::new();
        let mut seen = std::collections::BTreeSet::new();
        for rank in self.ranks.iter().filter(|rank| seen.insert(rank.rank)) {
            let launch = (rank.number(), rank.operation(&fewest));
            let (host, pid) = (rank.host.as_str(), rank.pid);
            launches.entry(launch).or_default().push(Process {
                host,
                pid,
                rank: global(host, pid),
            });
        }
        let missing = self.missing_ranks.iter();
        let mut unanswered: Vec<_> =
            missing.filter_map(|rank| global(&rank.host, rank.pid)).collect();
        unanswered.sort_unstable();
        unanswered.dedup();
        let (launched, is_list_cut) = launched(launches, self.size == own.world_size);
        let is_cut = is_list_cut || unanswered.len() > LISTED_RANKS_MAX;
        unanswered.truncate(LISTED_RANKS_MAX);
        let known = u32::try_from(seen.len()).unwrap_or(u32::MAX);
        let group = GroupLook {
            name: group_name(&self.hash, &self.secondary_hash),
            size: self.size.max(known),
            source: LaunchSource::Ras,
            launched,
            unanswered,
        };
        (group, is_cut)
    }

    /// Returns for each kind the number that all ranks have launched.
    fn fewest(&self) -> BTreeMap<&str, u64> {
        let mut fewest: BTreeMap<&str, u64> = BTreeMap::new();
        let kinds = self.ranks.iter().flat_map(|rank| rank.collective_counts.keys());
        for kind in kinds {
            if fewest.len() < KINDS_MAX {
                fewest.entry(kind).or_insert(u64::MAX);
            }
        }
        for (kind, count) in &mut fewest {
            let counts = self.ranks.iter().map(|rank| rank.collective_counts.get(*kind));
            *count = counts.map(|count| count.copied().unwrap_or(0)).min().unwrap_or(0);
        }
        fewest
    }
}

impl Rank {
    /// Returns the number of all its collectives.
    fn number(&self) -> u64 {
        self.collective_counts.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the kind of its last collective, as torch writes it: the kind that it has launched more often than another
    /// rank, or its only one.
    fn operation(&self, fewest: &BTreeMap<&str, u64>) -> String {
        let more = |kind: &str, count: u64| {
            count.saturating_sub(fewest.get(kind).copied().unwrap_or_default())
        };
        let counts = self.collective_counts.iter().filter(|(_, count)| **count > 0);
        let most = counts.clone().max_by_key(|(kind, count)| more(kind, **count));
        match most {
            Some((kind, count)) if more(kind, *count) > 0 || counts.count() == 1 => name(kind),
            Some(_) => "collective".to_owned(),
            None => String::new(),
        }
    }
}

/// Returns the name of a kind as torch writes it: `all_reduce` for `AllReduce`.
fn name(kind: &str) -> String {
    let mut name = String::new();
    for c in printable_line(kind).chars().take(GROUP_NAME_MAX / 4) {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

/// Returns the name of a communicator, which is the same in both parts of a look.
fn group_name(hash: &str, secondary_hash: &str) -> String {
    shortened(&format!("{hash}:{secondary_hash}"))
}

/// Lists launches with their ranks, the last launches first. Most ranks of the job need no list: all others are listed.
/// Returns also true if there are too many lists, or ranks in a list.
fn launched(
    launches: BTreeMap<(u64, String), Vec<Process<'_>>>,
    is_of_all: bool,
) -> (Vec<Launched>, bool) {
    let largest = launches.values().map(Vec::len).max().unwrap_or(0);
    let highest = launches.keys().next_back().map_or(0, |(number, _)| *number);
    let (mut has_most, mut is_cut) = (false, false);
    let mut lists = Vec::new();
    for ((number, operation), ranks) in launches.into_iter().rev() {
        let of = |count: usize, ranks: Vec<GlobalRank>, processes: Vec<String>| Launched {
            operation: operation.clone(),
            number,
            is_finished: false,
            count: u32::try_from(count).unwrap_or(u32::MAX),
            ranks,
            processes,
        };
        let known: Vec<GlobalRank> = ranks.iter().filter_map(|process| process.rank).collect();
        let is_most = is_of_all && ranks.len() == largest && !has_most;
        if is_most || known.len() < ranks.len() {
            has_most |= is_most;
            let listed = if is_most { Vec::new() } else { known };
            is_cut |= listed.len() > LISTED_RANKS_MAX;
            let listed = listed.into_iter().take(LISTED_RANKS_MAX).collect();
            let unknown = ranks.iter().filter(|process| process.rank.is_none());
            // Others wait for these.
            let unknown = unknown.filter(|_| number < highest);
            let processes = unknown.take(LISTED_PROCESSES_MAX).map(Process::name).collect();
            lists.push(of(ranks.len(), listed, processes));
        } else {
            lists.extend(
                (known.chunks(LISTED_RANKS_MAX))
                    .map(|ranks| of(ranks.len(), ranks.to_vec(), Vec::new())),
            );
        }
    }
    is_cut |= lists.len() > LAUNCHES_MAX;
    lists.truncate(LAUNCHES_MAX);
    (lists, is_cut)
}

#[cfg(test)]
mod tests;
