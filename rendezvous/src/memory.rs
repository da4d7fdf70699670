//! Keeps checkpoints in the memory of the nodes, so that a restart need not read them from disk.
//!
//! 1. Each node reports the parts that it holds. Only the newest report on its newest stream counts.
//! 2. When a round is formed, the newest checkpoint is chosen that fits it ([`choose()`]). Each admission
//!    names the nodes that hold the member's part, and the *buddy* that keeps the copies of its next ones. If ranks
//!    differ from those of the checkpoint, it is *resharded*: group rank 0 gets the holders of all parts.
//! 3. While the round runs, each echo names the newest checkpoint that is whole. Nodes free older ones.
//! 4. A checkpoint, and all older ones, are not used again in these cases (`striking.rs`):
//!    - Two charged rounds began with it, and no newer one became whole in them.
//!    - A checksum is wrong, or the script has refused it. A source that does not answer is no such case.
//!    - Memory went off in its round.
//!
//! A job whose nodes report nothing about memory is not affected.

mod buddies;
mod choose;
#[cfg(test)]
pub(crate) mod fixture;
mod holdings;
mod status;
mod striking;
#[cfg(test)]
mod tests;
mod tried;

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::OnceLock,
    time::{Duration, Instant},
};

use buddies::{Site, buddies};
pub(crate) use choose::Chosen;
use choose::{Gone, Place, Source, choose};
use holdings::Holdings;
use status::Reported;
pub(crate) use tried::Tried;

use crate::{
    effects::Effects,
    event::{EventKind, FETCHERS_MAX, StrikeReason},
    ids::{GlobalRank, GroupRank, NodeId, RoundId},
    job::Job,
    limits::{TAKEOVER_COURTESY, after, millis},
    message::{
        ALL_SOURCES_BYTES_MAX, Admission, CheckpointId, DIFFERENT_STEPS, MemoryKind, MemoryReport,
        PartPlace,
    },
    roster::{RosterNode, SentAssignment},
    settings::JobState,
    snapshot::grouped,
    table::{MemberRanks, Table},
};

/// The checkpoints in memory of one round, and what matters across rounds.
#[derive(Debug, Default)]
pub(crate) struct JobMemory {
    /// The round. After a takeover, it is none: the plan of the last round is not known.
    round: RoundId,
    /// The checkpoint with which it has begun.
    plan: Option<Chosen>,
    /// The nodes of the round that have fetched their part, with the time that it took.
    fetched: BTreeMap<GroupRank, Duration>,
    /// The buddy and the ward of each node, by group rank; empty if there are no copies.
    pairs: Vec<Pair>,
    holdings: Holdings,
    tried: Tried,
    /// The newest checkpoint that was whole at some time in the round, by reports made in it. It never goes back:
    /// nodes may have freed older ones.
    whole: Option<CheckpointId>,
    /// The newest checkpoint that was whole in any round, and the time since then, for the status.
    whole_since: Option<(CheckpointId, Instant)>,
    /// The newest checkpoint that has raised the step of the job.
    reached: Option<CheckpointId>,
    /// The number of workers of each node, if it is the same.
    workers: Option<NonZeroU32>,
    /// True if others can reach all nodes of the round, so that another number of ranks can read what they hold.
    can_be_resharded: bool,
    /// The reason why memory is off in the round.
    off: Option<String>,
    /// The nodes on which the kernel has killed a worker of the round for lack of memory.
    killed: BTreeSet<NodeId>,
    /// The sources that have not answered, across rounds.
    gone: Gone,
    /// The reason why a checkpoint was last struck off; `None` if an earlier coordinator did it.
    struck: Option<StrikeReason>,
    /// The number of processes that the kernel has killed for lack of memory on nodes with parts, as far as this
    /// coordinator knows.
    kills: u32,
    /// The number of processes that the kernel had killed on each host whose node with parts was lost, by host name.
    lost_hosts: BTreeMap<String, u64>,
    /// True after a takeover, until the first round is formed: parts may still be reported.
    may_wait: bool,
    /// The time until which the next round is not formed, because parts may still be reported.
    waits_until: Option<Instant>,
    /// The merged reports of the nodes, for the status; cleared when one changes.
    reported: OnceLock<Reported>,
    /// True if any node has reported anything about memory.
    has_reports: bool,
    /// The members of the round whose `save` waits for a buffer, with the lowest waiting rank of each.
    waits_for_buffer: BTreeMap<NodeId, GlobalRank>,
    /// The time for which any `save` has waited for a buffer, in all rounds.
    waited: Waited,
    /// The time from the first report of a part until the checkpoint was whole, of the newest one with copies.
    copy_time: Option<Duration>,
}

/// The sum of the times for which something has waited.
#[derive(Clone, Copy, Debug, Default)]
struct Waited {
    before: Duration,
    since: Option<Instant>,
}

impl Waited {
    fn set(&mut self, now: Instant, waits: bool) {
        if waits != self.since.is_some() {
            self.before = self.until(now);
            self.since = waits.then_some(now);
        }
    }

    /// Returns the sum at this time.
    pub(crate) fn until(self, now: Instant) -> Duration {
        let newest = self.since.map(|since| now.saturating_duration_since(since));
        self.before.saturating_add(newest.unwrap_or_default())
    }
}

/// The nodes with which one node exchanges copies.
#[derive(Clone, Debug, Default)]
struct Pair {
    /// The node that keeps its copies, with its address.
    buddy: Option<(GroupRank, String)>,
    /// The node whose copies it keeps.
    ward: Option<GroupRank>,
}

impl JobMemory {
    /// Goes on from what an earlier coordinator has kept.
    pub(crate) fn new(kept: &JobState) -> Self {
        Self { tried: Tried(kept.training.memory), ..Self::default() }
    }

    /// Writes to the state of the job what the next coordinator goes on from.
    pub(crate) fn keep(&self, state: &mut JobState) {
        state.training.memory = self.tried.0;
    }

    /// Adds the plan and the nodes for copies to an admission to the round.
    pub(crate) fn complete(&self, admission: Admission) -> Admission {
        if admission.round != self.round {
            return admission;
        }
        let rank = admission.group_rank;
        let Pair { buddy, ward } = self.pairs.get(rank.0 as usize).cloned().unwrap_or_default();
        let memory = self.plan.as_ref().map(|chosen| Box::new(chosen.plan(rank)));
        Admission { memory, buddy: buddy.map(|(_, address)| address), ward, ..admission }
    }

    /// Lets the next round wait once for parts, because this coordinator has taken over.
    pub(crate) fn await_parts(&mut self) {
        self.may_wait = true;
    }

    /// Returns the time until which the next round is not formed, because parts may still be reported.
    pub(crate) fn parts_awaited_until(&self, now: Instant) -> Option<Instant> {
        self.waits_until.filter(|until| now < *until)
    }

    /// Returns a rank of the round whose `save` waits for a buffer, with its node.
    pub(crate) fn waits_for_buffer(&self) -> Option<(&NodeId, GlobalRank)> {
        self.waits_for_buffer.first_key_value().map(|(id, rank)| (id, *rank))
    }

    /// Returns the newest step that was whole in any round. A coordinator that has taken over has seen none become whole, so the step with
    /// which the round began counts too.
    pub(crate) fn newest_whole_step(&self) -> Option<u64> {
        let whole = self.whole_since.map(|(checkpoint, _)| checkpoint.step);
        whole.max(self.plan.as_ref().map(|plan| plan.checkpoint.step))
    }

    /// Returns the checkpoint with which a round of this table would begin.
    pub(crate) fn choose(&self, job: &Job, table: &Table) -> Option<Chosen> {
        if !self.has_reports {
            return None;
        }
        let places: Vec<Place<'_>> = table
            .member_ranks()
            .iter()
            .map(|ranks| Place {
                node: &ranks.node.node_id,
                first_global_rank: ranks.first_global_rank,
                local_ranks: ranks.node.local_world_size,
            })
            .collect();
        let placed: BTreeSet<&NodeId> = places.iter().map(|place| place.node).collect();
        let sources = job.roster.iter().filter_map(|(node, known)| {
            // A node of the round may have been evicted before, and has come back.
            let may_give = placed.contains(node) || known.attached && may_give(known);
            let report = known.memory.as_deref().filter(|_| may_give)?;
            Some(Source { node, report })
        });
        let is_void = |checkpoint| self.tried.is_void(checkpoint);
        choose(sources, &places, is_void, &self.gone)
    }

    /// Returns true if the next round should wait once, because no checkpoint fits it: after a takeover, spares with
    /// parts may register late.
    pub(crate) fn waits_for_parts(&mut self, job: &Job) -> bool {
        let holds_any = |node: &RosterNode| {
            node.memory.as_ref().is_some_and(|report| {
                let is_void = |id| self.tried.is_void(id);
                report.parts.iter().any(|part| !is_void(part.checkpoint))
            })
        };
        let waits = self.may_wait && job.roster.iter().any(|(_, node)| holds_any(node));
        self.may_wait = false;
        if waits {
            self.waits_until = Some(after(job.clock, TAKEOVER_COURTESY));
        }
        waits
    }

    /// Begins a round with a checkpoint that was chosen for its table.
    pub(crate) fn begin_round(
        &mut self,
        job: &Job,
        round: RoundId,
        table: &Table,
        plan: Option<Chosen>,
        out: &mut Effects,
    ) {
        let members = table.member_ranks();
        let layout =
            members.iter().map(|ranks| (ranks.first_global_rank, ranks.node.local_world_size));
        let workers = members.first().map(|ranks| ranks.node.local_world_size);
        let workers = workers
            .filter(|workers| members.iter().all(|ranks| ranks.node.local_world_size == *workers));
        if let Some(chosen) = &plan {
            let is_resharded = chosen.is_resharded();
            let fetching = if is_resharded { members.len() } else { chosen.sources.len() };
            let kind = EventKind::MemoryRestored {
                step: chosen.checkpoint.step,
                fetching: u32::try_from(fetching).unwrap_or(u32::MAX),
                bytes: chosen.bytes,
                is_resharded,
            };
            out.event_of_round(job, kind);
        }
        let length_of_address = |ranks: &MemberRanks| {
            let memory = job.roster.get(&ranks.node.node_id)?.memory.as_ref()?;
            Some(memory.address.as_ref()?.len())
        };
        let lengths: Option<Vec<usize>> = members.iter().map(length_of_address).collect();
        let may_fetch = lengths.is_some();
        // Each node is named for its own part, and at most for one copy.
        let can_be_resharded = lengths
            .is_some_and(|lengths| lengths.iter().sum::<usize>() * 2 <= ALL_SOURCES_BYTES_MAX);
        let pairs = self.pairs(job, table);
        let before = std::mem::take(self);
        let is_off = before.tried.is_off();
        *self = Self {
            round,
            pairs,
            holdings: Holdings::new(round, layout.collect(), may_fetch),
            whole_since: before.whole_since,
            plan,
            workers,
            can_be_resharded,
            off: before.off.filter(|_| is_off),
            gone: before.gone,
            tried: before.tried,
            struck: before.struck,
            kills: before.kills,
            lost_hosts: before.lost_hosts,
            has_reports: before.has_reports,
            waited: Waited { before: before.waited.until(job.clock), since: None },
            copy_time: before.copy_time,
            ..Self::default()
        };
        // Members of a round learn in each round that memory is off for the rest of the job.
        out.has_guidance |= is_off;
    }

    /// Returns the buddy and the ward of each node. A buddy without an address can keep nothing, and one whose machine
    /// is unhealthy should not.
    fn pairs(&self, job: &Job, table: &Table) -> Vec<Pair> {
        let copies = job.settings.shared.map_or(0, |shared| shared.memory_copies);
        if copies == 0 || !self.has_reports {
            return Vec::new();
        }
        let members = table.member_ranks();
        let sites: Vec<Site<'_>> = members
            .iter()
            .map(|ranks| Site {
                host_name: &ranks.node.host_name,
                failure_domain: &ranks.node.failure_domain,
            })
            .collect();
        let buddies = buddies(&sites);
        let mut pairs = vec![Pair::default(); members.len()];
        for (rank, buddy) in (0..).map(GroupRank).zip(buddies) {
            let keeper = buddy.and_then(|rank| members.get(rank.0 as usize));
            let keeper = keeper.and_then(|ranks| job.roster.get(&ranks.node.node_id));
            let keeper = keeper.filter(|node| !node.is_unfit());
            let address = keeper.and_then(|node| node.memory.as_ref()?.address.clone());
            let (Some(buddy), Some(address)) = (buddy, address) else { continue };
            if let Some(pair) = pairs.get_mut(buddy.0 as usize) {
                pair.ward = Some(rank);
            }
            if let Some(pair) = pairs.get_mut(rank.0 as usize) {
                pair.buddy = Some((buddy, address));
            }
        }
        pairs
    }

    /// Applies what a node has last reported about its memory. Returns the checkpoint that all ranks have saved, if that is new.
    pub(crate) fn follow(
        &mut self,
        job: &Job,
        id: &NodeId,
        out: &mut Effects,
    ) -> Option<CheckpointId> {
        let node = job.roster.get(id)?;
        let Some(report) = node.memory.as_deref() else {
            return if self.has_reports { self.hold(job, id, out) } else { None };
        };
        let (round, obstacle) = (report.round, report.obstacle.clone());
        self.has_reports = true;
        let why_off = obstacle.as_deref().and_then(|text| text.strip_prefix(OFF));
        // The report has no parts any more.
        let steps = why_off.filter(|why| why.ends_with(DIFFERENT_STEPS));
        let steps = steps.and_then(|_| self.different_steps(job, round, id));
        let reached = self.hold(job, id, out);
        if let Some(why) = why_off {
            self.turn_off_in(job, round, id, steps.as_deref().unwrap_or(why), out);
        }
        reached
    }

    /// Returns a sentence that names two nodes whose newest steps differ, a node and the first other one; `None` if all
    /// nodes have saved the same step.
    fn different_steps(&self, job: &Job, round: RoundId, id: &NodeId) -> Option<String> {
        let group = job.phase.group().filter(|group| group.round == round)?;
        let rank = group.member(id)?.rank;
        let newest = |rank| self.holdings.newest_own(rank);
        let members = group.table.as_ref()?.member_ranks();
        let ranks = || (0..).map(GroupRank).zip(members);
        let own = newest(rank);
        let (other, with) = ranks().find(|(rank, _)| newest(*rank) != own)?;
        let (_, host) = ranks().find(|(member, _)| *member == rank)?;
        let text = |step: Option<CheckpointId>, ranks: &MemberRanks| {
            let step = step.map_or_else(|| "none".to_owned(), |id| grouped(id.step));
            format!("{step} on {}", ranks.node.host_name)
        };
        let (own, other) = (text(own, host), text(newest(other), with));
        Some(format!("ranks save different steps: {own}, {other}"))
    }

    /// Notes that a node has fetched its part. Once all have, an event names them.
    fn note_fetched(&mut self, job: &Job, rank: GroupRank, time: Duration, out: &mut Effects) {
        let Some(plan) = &self.plan else { return };
        let is_first =
            plan.sources.contains_key(&rank) && self.fetched.insert(rank, time).is_none();
        if !is_first || self.fetched.len() < plan.sources.len() {
            return;
        }
        let (bytes, fetched) = (plan.bytes, &self.fetched);
        let table = job.phase.group().and_then(|group| group.table.as_ref());
        let members = table.map_or(&[][..], Table::member_ranks);
        let host = |rank: &GroupRank| Some(members.get(rank.0 as usize)?.node.host_name.clone());
        let event = EventKind::MemoryFetched {
            nodes: fetched.keys().filter_map(host).take(FETCHERS_MAX).collect(),
            fetching: u32::try_from(fetched.len()).unwrap_or(u32::MAX),
            bytes,
            longest_ms: fetched.values().max().copied().map_or(0, millis),
        };
        out.event_of_round(job, event);
    }

    /// Counts the parts of a member. A member that is gone has none. Returns the checkpoint that all ranks have saved, if that is new.
    fn hold(&mut self, job: &Job, id: &NodeId, out: &mut Effects) -> Option<CheckpointId> {
        let now = job.clock;
        self.reported.take();
        let group = job.phase.group().filter(|group| group.round == self.round)?;
        let member = group.member(id)?;
        let round = group.round;
        let node = job.roster.get(id).filter(|_| member.is_held());
        // What was reported before the admission may be freed by now.
        let report = node.and_then(|node| node.memory.as_deref());
        let report = report.filter(|report| report.round == round);
        let parts = report.map_or(&[][..], |report| &report.parts);
        self.holdings.record(now, member.rank, parts);
        let (rank, fetch_time) = (member.rank, report.and_then(|report| report.fetch_time));
        match report.and_then(|report| report.waits_for_buffer) {
            Some(rank) => drop(self.waits_for_buffer.insert(id.clone(), rank)),
            None => drop(self.waits_for_buffer.remove(id)),
        }
        self.waited.set(now, !self.waits_for_buffer.is_empty());
        let newest = self.holdings.newest_whole();
        if newest > self.whole {
            self.whole = newest;
            let copied = newest.and_then(|id| self.holdings.copied_after(now, id));
            self.copy_time = copied.or(self.copy_time);
            let known = self.whole_since.map(|(checkpoint, _)| checkpoint);
            if known != newest {
                self.whole_since = newest.map(|checkpoint| (checkpoint, now));
            }
        }
        if let Some(time) = fetch_time {
            self.note_fetched(job, rank, time, out);
        }
        let complete = self.holdings.newest_complete();
        if complete <= self.reached || job.phase.running().is_none() {
            return None;
        }
        self.reached = complete;
        complete
    }

    /// Forgets the parts of a node that was just removed. Remembers how many processes the kernel had killed on it.
    pub(crate) fn forget(
        &mut self,
        job: &Job,
        node: &RosterNode,
        out: &mut Effects,
    ) -> Option<CheckpointId> {
        let report = node.memory.as_deref()?;
        let reached = self.hold(job, &node.description.node_id, out);
        self.remember_kills(&node.description.host_name, report);
        reached
    }

    /// Adds the buddy's host name to a line. The node that reports it knows only the buddy's address.
    fn with_buddy_host(&self, job: &Job, rank: GroupRank, line: &str) -> String {
        let pair = usize::try_from(rank.0).ok().and_then(|rank| self.pairs.get(rank));
        let address = pair.and_then(|pair| Some(&*pair.buddy.as_ref()?.1));
        match address.filter(|address| line.contains(*address)).zip(self.buddy_host(job, rank)) {
            Some((address, host)) => line.replacen(address, &format!("{host} ({address})"), 1),
            None => line.to_owned(),
        }
    }

    /// Returns the host name of the node that keeps the copies of the node with this rank, if it has one.
    pub(crate) fn buddy_host(&self, job: &Job, rank: GroupRank) -> Option<String> {
        let (buddy, _) = self.pairs.get(usize::try_from(rank.0).ok()?)?.buddy.as_ref()?;
        let table = job.phase.group()?.table.as_ref()?;
        table.member_ranks().get(buddy.0 as usize).map(|ranks| ranks.node.host_name.clone())
    }

    /// Returns the checkpoint that echoes name: the newest one of the running round that is whole.
    pub(crate) fn whole(&self, job: &Job) -> Option<CheckpointId> {
        job.phase.running().and(self.whole)
    }

    /// Returns the checkpoint whose parts a node without a place keeps: that of the newest round, or an id that no
    /// checkpoint has if that round began from disk. `None` if the plan is not known: an earlier coordinator has chosen it.
    pub(crate) fn kept_for_round(&self, job: &Job) -> Option<CheckpointId> {
        let group = job.phase.group().filter(|group| group.round == self.round);
        group.filter(|_| self.has_reports)?;
        let plan = self.plan.as_ref().map(|plan| plan.checkpoint);
        let is_usable = |checkpoint: &CheckpointId| !self.tried.is_void(*checkpoint);
        Some(plan.filter(is_usable).unwrap_or_default())
    }

    /// Returns the step of a checkpoint in memory that makes it useless to wait for one on disk, before nodes leave
    /// or join. It was saved since the notice, the other nodes hold all of its parts, and it fits the next round.
    ///
    /// Called for each report while a phase lasts, so it visits only the leavers and the spares. If it is not certain
    /// that the next round has the same ranks, or that other ranks can read it, this returns `None`, and the phase goes on
    /// as it would without memory.
    pub(crate) fn enough_for_notice<'a>(
        &self,
        job: &'a Job,
        since: Instant,
        leavers: impl Iterator<Item = &'a NodeId>,
    ) -> Option<u64> {
        let group = &job.phase.running()?.group;
        if group.round != self.round || self.why_off().is_some() {
            return None;
        }
        let shared = job.settings.shared?;
        let leavers = leavers.chain(job.roster.noticed().keys()).chain(group.leavers());
        let leavers: BTreeSet<GroupRank> =
            leavers.filter_map(|id| Some(group.member(id)?.rank)).collect();
        let (checkpoint, kind, is_replicated) = self.holdings.held_without(&leavers, since)?;
        let size = group.size as usize;
        let (staying, ready) = (size.saturating_sub(leavers.len()), job.roster.ready());
        let next = shared.nodes.fit(staying + ready.len());
        let is_enough = next >= shared.nodes.min() as usize;
        if kind == MemoryKind::Dcp && !is_replicated && self.can_be_resharded {
            return is_enough.then_some(checkpoint.step);
        }
        let may_fetch = self.pairs.iter().any(|pair| pair.buddy.is_some());
        let is_alike = |id: &NodeId| {
            let workers = job.roster.get(id).map(|node| node.description.local_world_size);
            workers == self.workers
        };
        let fits = if is_replicated {
            is_enough
        } else {
            let keeps_ranks = next == size && !shared.fixed_ranks;
            keeps_ranks && self.workers.is_some() && ready.iter().all(is_alike)
        };
        (fits && (may_fetch || next <= staying)).then_some(checkpoint.step)
    }

    /// Returns true if a node holds any part for itself or another one.
    pub(crate) fn has_parts(report: &MemoryReport) -> bool {
        report.parts.iter().any(|part| part.place != PartPlace::Leftover)
    }
}

/// The beginning of an obstacle because of which memory must be off on all nodes.
const OFF: &str = "off: ";

/// Returns true if other nodes may fetch parts from a node: it is not about to leave, and was not evicted. A
/// quarantined node gives its parts.
fn may_give(node: &RosterNode) -> bool {
    let is_evicted = matches!(node.sent, Some(SentAssignment::Evict(_)));
    !node.is_leaving() && node.report.notice.is_none() && !is_evicted
}
