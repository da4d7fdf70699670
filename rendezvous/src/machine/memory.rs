//! Keeps checkpoints in the memory of the nodes, so that a restart need not read them from disk.
//!
//! 1. Each node reports the parts that it holds. Only the newest report on its newest stream counts.
//! 2. When a round is formed, the newest checkpoint is chosen that fits it (`memory/choose.rs`). Each admission
//!    names the nodes that hold the member's part, and the *buddy* that keeps the copies of its next ones. If ranks
//!    differ from those of the checkpoint, it is *resharded*: group rank 0 gets the holders of all parts.
//! 3. While the round runs, each echo names the newest checkpoint that is whole. Nodes free older ones.
//! 4. A checkpoint, and all older ones, are not used again in these cases (`memory_striking.rs`):
//!    - Two charged rounds began with it, and no newer one became whole in them.
//!    - A checksum is wrong, or the script has refused it. A source that does not answer is no such case.
//!    - Memory went off in its round.
//!
//! A job whose nodes report nothing about memory is not affected.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::OnceLock,
    time::{Duration, Instant},
};

use crate::{
    event::{EventKind, FETCHERS_MAX, StrikeReason},
    ids::{GlobalRank, GroupRank, NodeId, RoundId},
    limits::{MEMORY_IS_ENOUGH_AFTER, TAKEOVER_COURTESY, after, millis},
    machine::{Rendezvous, memory_status::Reported},
    memory::{Chosen, Gone, Holdings, Place, Site, Source, Tried, buddies, choose},
    message::{
        ALL_SOURCES_BYTES_MAX, Admission, CheckpointId, DIFFERENT_STEPS, MemoryKind, MemoryReport,
        NoticeKind, PartPlace,
    },
    phase::Running,
    roster::{RosterNode, SentAssignment},
    snapshot::grouped,
    table::{MemberRanks, Table},
};

/// The checkpoints in memory of one round, and what matters across rounds.
#[derive(Debug, Default)]
pub(super) struct JobMemory {
    /// The round. After a takeover, it is none: the plan of the last round is not known.
    pub(super) round: RoundId,
    /// The checkpoint with which it has begun.
    pub(super) plan: Option<Chosen>,
    /// The nodes of the round that have fetched their part, with the time that it took.
    fetched: BTreeMap<GroupRank, Duration>,
    /// The buddy and the ward of each node, by group rank; empty if there are no copies.
    pairs: Vec<Pair>,
    pub(super) holdings: Holdings,
    pub(super) tried: Tried,
    /// The newest checkpoint that was whole at some time in the round, by reports made in it. It never goes back:
    /// nodes may have freed older ones.
    pub(super) whole: Option<CheckpointId>,
    /// The newest checkpoint that was whole in any round, and the time since then, for the status.
    pub(super) whole_since: Option<(CheckpointId, Instant)>,
    /// The newest checkpoint that has raised the step of the job.
    reached: Option<CheckpointId>,
    /// The number of workers of each node, if it is the same.
    workers: Option<NonZeroU32>,
    /// True if others can reach all nodes of the round, so that another number of ranks can read what they hold.
    can_be_resharded: bool,
    /// The reason why memory is off in the round.
    pub(super) off: Option<String>,
    /// The nodes on which the kernel has killed a worker of the round for lack of memory.
    pub(super) killed: BTreeSet<NodeId>,
    /// The sources that have not answered, across rounds.
    pub(super) gone: Gone,
    /// The reason why a checkpoint was last struck off; `None` if an earlier coordinator did it.
    pub(super) struck: Option<StrikeReason>,
    /// The number of processes that the kernel has killed for lack of memory on nodes with parts, as far as this
    /// coordinator knows.
    pub(super) kills: u32,
    /// The number of processes that the kernel had killed on each host whose node with parts was lost, by host name.
    pub(super) lost_hosts: BTreeMap<String, u64>,
    /// True after a takeover, until the first round is formed: parts may still be reported.
    pub(super) may_wait: bool,
    /// The time until which the next round is not formed, because parts may still be reported.
    waits_until: Option<Instant>,
    /// The merged reports of the nodes, for the status; cleared when one changes.
    pub(super) reported: OnceLock<Reported>,
    /// True if any node has reported anything about memory.
    pub(super) has_reports: bool,
    /// The members of the round whose `save` waits for a buffer, with the lowest waiting rank of each.
    waits_for_buffer: BTreeMap<NodeId, GlobalRank>,
    /// The time for which any `save` has waited for a buffer, in all rounds.
    pub(super) waited: Waited,
    /// The time from the first report of a part until the checkpoint was whole, of the newest one with copies.
    pub(super) copy_time: Option<Duration>,
}

/// The sum of the times for which something has waited.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waited {
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
    pub(super) fn until(self, now: Instant) -> Duration {
        let newest = self.since.map(|since| now.saturating_duration_since(since));
        self.before.saturating_add(newest.unwrap_or_default())
    }
}

/// The nodes with which one node exchanges copies.
#[derive(Clone, Debug, Default)]
struct Pair {
    /// The address of the node that keeps its copies.
    buddy: Option<String>,
    /// The node whose copies it keeps.
    ward: Option<GroupRank>,
}

impl JobMemory {
    pub(super) fn new(tried: Tried) -> Self {
        Self { tried, ..Self::default() }
    }

    /// Returns the state at the beginning of another run.
    pub(super) fn of_new_run(&self) -> Self {
        Self { has_reports: self.has_reports, ..Self::default() }
    }

    /// Adds the plan and the nodes for copies to an admission to the round.
    pub(super) fn complete(&self, admission: Admission) -> Admission {
        if admission.round != self.round {
            return admission;
        }
        let rank = admission.group_rank;
        let Pair { buddy, ward } = self.pairs.get(rank.0 as usize).cloned().unwrap_or_default();
        let memory = self.plan.as_ref().map(|chosen| Box::new(chosen.plan(rank)));
        Admission { memory, buddy, ward, ..admission }
    }

    /// Returns true if the next round is not formed yet, because parts may still be reported.
    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        self.waits_until.is_some_and(|until| now < until)
    }

    /// Returns the end of this wait, if it is after `advanced`.
    pub(super) fn deadline(&self, advanced: Instant) -> Option<Instant> {
        self.waits_until.filter(|until| advanced < *until)
    }

    /// Returns a rank of the round whose `save` waits for a buffer, with its node.
    pub(super) fn waits_for_buffer(&self) -> Option<(&NodeId, GlobalRank)> {
        self.waits_for_buffer.first_key_value().map(|(id, rank)| (id, *rank))
    }

    /// Returns true if a checkpoint that is newer than the plan was whole in the round.
    pub(super) fn is_past_plan(&self) -> bool {
        let planned = self.plan.as_ref().map(|chosen| chosen.checkpoint);
        self.whole > planned
    }
}

impl Rendezvous {
    /// Returns the checkpoint with which a round of this table would begin.
    pub(super) fn choose_checkpoint(&self, table: &Table) -> Option<Chosen> {
        if !self.memory.has_reports {
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
        let sources = self.job.roster.iter().filter_map(|(node, known)| {
            // A node of the round may have been evicted before, and has come back.
            let may_give = placed.contains(node) || known.attached && may_give(known);
            let report = known.memory.as_deref().filter(|_| may_give)?;
            Some(Source { node, report })
        });
        let is_void = |checkpoint| self.memory.tried.is_void(checkpoint);
        choose(sources, &places, is_void, &self.memory.gone)
    }

    /// Returns true if the next round should wait once, because no checkpoint fits it: after a takeover, spares with
    /// parts may register late.
    pub(super) fn waits_for_parts(&mut self, now: Instant) -> bool {
        let holds_any = |node: &RosterNode| {
            node.memory.as_ref().is_some_and(|report| {
                let is_void = |id| self.memory.tried.is_void(id);
                report.parts.iter().any(|part| !is_void(part.checkpoint))
            })
        };
        let waits = self.memory.may_wait && self.job.roster.iter().any(|(_, node)| holds_any(node));
        self.memory.may_wait = false;
        if waits {
            self.memory.waits_until = Some(after(now, TAKEOVER_COURTESY));
        }
        waits
    }

    /// Begins a round with a checkpoint that was chosen for its table.
    pub(super) fn begin_memory(
        &mut self,
        now: Instant,
        round: RoundId,
        table: &Table,
        plan: Option<Chosen>,
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
            self.out.event_of_round(&self.job, kind);
        }
        let length_of_address = |ranks: &MemberRanks| {
            let memory = self.job.roster.get(&ranks.node.node_id)?.memory.as_ref()?;
            Some(memory.address.as_ref()?.len())
        };
        let lengths: Option<Vec<usize>> = members.iter().map(length_of_address).collect();
        let may_fetch = lengths.is_some();
        // Each node is named for its own part, and at most for one copy.
        let can_be_resharded = lengths
            .is_some_and(|lengths| lengths.iter().sum::<usize>() * 2 <= ALL_SOURCES_BYTES_MAX);
        let before = std::mem::take(&mut self.memory);
        let is_off = before.tried.is_off();
        self.memory = JobMemory {
            round,
            pairs: self.pairs(table, before.has_reports),
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
            waited: Waited { before: before.waited.until(now), since: None },
            copy_time: before.copy_time,
            ..JobMemory::default()
        };
        // Members of a round learn in each round that memory is off for the rest of the job.
        self.out.has_guidance |= is_off;
    }

    /// Returns the buddy and the ward of each node. A buddy without an address can keep nothing, and one whose machine
    /// is unhealthy should not.
    fn pairs(&self, table: &Table, has_reports: bool) -> Vec<Pair> {
        let copies = self.job.settings.shared.map_or(0, |shared| shared.memory_copies);
        if copies == 0 || !has_reports {
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
            let Some(buddy) = buddy.map(|buddy| buddy.0 as usize) else { continue };
            let keeper =
                members.get(buddy).and_then(|ranks| self.job.roster.get(&ranks.node.node_id));
            let keeper = keeper.filter(|node| !node.is_unfit());
            let address = keeper.and_then(|node| node.memory.as_ref()?.address.clone());
            if address.is_none() {
                continue;
            }
            if let Some(pair) = pairs.get_mut(buddy) {
                pair.ward = Some(rank);
            }
            if let Some(pair) = pairs.get_mut(rank.0 as usize) {
                pair.buddy = address;
            }
        }
        pairs
    }

    /// Handles a report of a node about its memory.
    pub(super) fn handle_memory_report(&mut self, now: Instant, id: &NodeId, report: MemoryReport) {
        let Some(node) = self.job.roster.get_mut(id) else { return };
        node.memory = Some(Box::new(report));
        self.follow_memory(now, id);
        self.follow_stall(now);
        if self.out.has_guidance || self.saved_in_memory(now).is_some() {
            // The round may end with this.
            self.counted.take();
            self.advance(now);
        }
    }

    /// Applies what a node has last reported about its memory, also with a registration.
    pub(super) fn follow_memory(&mut self, now: Instant, id: &NodeId) {
        let Some(node) = self.job.roster.get(id) else { return };
        let Some(report) = node.memory.as_deref() else {
            if self.memory.has_reports {
                self.hold(now, id);
            }
            return;
        };
        let (round, obstacle) = (report.round, report.obstacle.clone());
        self.memory.has_reports = true;
        let why_off = obstacle.as_deref().and_then(|text| text.strip_prefix(OFF));
        // The report has no parts any more.
        let steps = why_off.filter(|why| why.ends_with(DIFFERENT_STEPS));
        let steps = steps.and_then(|_| self.different_steps(round, id));
        self.hold(now, id);
        if let Some(why) = why_off {
            self.turn_memory_off_in(round, id, steps.as_deref().unwrap_or(why));
        }
    }

    /// Returns a sentence that names two nodes whose newest steps differ, a node and the first other one; `None` if all
    /// nodes have saved the same step.
    fn different_steps(&self, round: RoundId, id: &NodeId) -> Option<String> {
        let group = self.job.phase.group().filter(|group| group.round == round)?;
        let rank = group.member(id)?.rank;
        let newest = |rank| self.memory.holdings.newest_own(rank);
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
    fn note_fetched(&mut self, rank: GroupRank, time: Duration) {
        let Some(plan) = &self.memory.plan else { return };
        let is_first =
            plan.sources.contains_key(&rank) && self.memory.fetched.insert(rank, time).is_none();
        if !is_first || self.memory.fetched.len() < plan.sources.len() {
            return;
        }
        let (bytes, fetched) = (plan.bytes, &self.memory.fetched);
        let table = self.job.phase.group().and_then(|group| group.table.as_ref());
        let members = table.map_or(&[][..], Table::member_ranks);
        let host = |rank: &GroupRank| Some(members.get(rank.0 as usize)?.node.host_name.clone());
        let event = EventKind::MemoryFetched {
            nodes: fetched.keys().filter_map(host).take(FETCHERS_MAX).collect(),
            fetching: u32::try_from(fetched.len()).unwrap_or(u32::MAX),
            bytes,
            longest_ms: fetched.values().max().copied().map_or(0, millis),
        };
        self.out.event_of_round(&self.job, event);
    }

    /// Counts the parts of a member. A member that is gone has none.
    fn hold(&mut self, now: Instant, id: &NodeId) {
        self.memory.reported.take();
        let Some(group) = self.job.phase.group().filter(|group| group.round == self.memory.round)
        else {
            return;
        };
        let Some(member) = group.member(id) else { return };
        let round = group.round;
        let node = self.job.roster.get(id).filter(|_| member.is_held());
        // What was reported before the admission may be freed by now.
        let report = node.and_then(|node| node.memory.as_deref());
        let report = report.filter(|report| report.round == round);
        let parts = report.map_or(&[][..], |report| &report.parts);
        self.memory.holdings.record(now, member.rank, parts);
        let (rank, fetch_time) = (member.rank, report.and_then(|report| report.fetch_time));
        match report.and_then(|report| report.waits_for_buffer) {
            Some(rank) => drop(self.memory.waits_for_buffer.insert(id.clone(), rank)),
            None => drop(self.memory.waits_for_buffer.remove(id)),
        }
        self.memory.waited.set(now, !self.memory.waits_for_buffer.is_empty());
        let newest = self.memory.holdings.newest_whole();
        if newest > self.memory.whole {
            self.memory.whole = newest;
            let copied = newest.and_then(|id| self.memory.holdings.copied_after(now, id));
            self.memory.copy_time = copied.or(self.memory.copy_time);
            let known = self.memory.whole_since.map(|(checkpoint, _)| checkpoint);
            if known != newest {
                self.memory.whole_since = newest.map(|checkpoint| (checkpoint, now));
            }
        }
        let complete = self.memory.holdings.newest_complete();
        if complete > self.memory.reached && self.job.phase.running().is_some() {
            self.memory.reached = complete;
            if complete.is_some_and(|checkpoint| self.progress.reach_in_memory(checkpoint)) {
                self.remember();
            }
        }
        if let Some(time) = fetch_time {
            self.note_fetched(rank, time);
        }
    }

    /// Forgets the parts of a node that was just removed. Remembers how many processes the kernel had killed on it.
    pub(super) fn forget_memory(&mut self, now: Instant, node: &RosterNode) {
        let Some(report) = node.memory.as_deref() else { return };
        self.hold(now, &node.description.node_id);
        self.remember_kills(&node.description.host_name, report);
    }

    /// Adds the buddy's host name to a line. The node that reports it knows only the buddy's address.
    pub(super) fn with_buddy_host(&self, rank: GroupRank, line: &str) -> String {
        let pair = usize::try_from(rank.0).ok().and_then(|rank| self.memory.pairs.get(rank));
        let address = pair.and_then(|pair| pair.buddy.as_deref());
        match address.filter(|address| line.contains(*address)).zip(self.buddy_host(rank)) {
            Some((address, host)) => line.replacen(address, &format!("{host} ({address})"), 1),
            None => line.to_owned(),
        }
    }

    /// Returns the host name of the node that keeps the copies of the node with this rank, if it has one.
    pub(super) fn buddy_host(&self, rank: GroupRank) -> Option<String> {
        let pairs = &self.memory.pairs;
        pairs.get(usize::try_from(rank.0).ok()?)?.buddy.as_ref()?;
        let buddy = pairs.iter().position(|pair| pair.ward == Some(rank))?;
        let table = self.job.phase.group()?.table.as_ref()?;
        table.member_ranks().get(buddy).map(|ranks| ranks.node.host_name.clone())
    }

    /// Returns the checkpoint that echoes name: the newest one of the running round that is whole.
    pub(super) fn whole_in_memory(&self) -> Option<CheckpointId> {
        self.job.phase.running().and(self.memory.whole)
    }

    /// Returns the checkpoint whose parts a node without a place keeps: that of the newest round, or an id that no
    /// checkpoint has if that round began from disk. `None` if the plan is not known: an earlier coordinator has chosen it.
    pub(super) fn kept_for_round(&self) -> Option<CheckpointId> {
        let group = self.job.phase.group().filter(|group| group.round == self.memory.round);
        group.filter(|_| self.memory.has_reports)?;
        let plan = self.memory.plan.as_ref().map(|plan| plan.checkpoint);
        let is_usable = |checkpoint: &CheckpointId| !self.memory.tried.is_void(*checkpoint);
        Some(plan.filter(is_usable).unwrap_or_default())
    }

    /// Returns the step of a checkpoint in memory that makes it useless to wait for one on disk, before nodes leave
    /// or join. It was saved since the notice, the other nodes hold all of its parts, it fits the next round, and other nodes
    /// had time to receive a notice too.
    ///
    /// Called for each report while a phase lasts, so it visits only the leavers and the spares. If it is not certain
    /// that the next round has the same ranks, or that other ranks can read it, this returns `None`, and the phase goes on
    /// as it would without memory.
    pub(super) fn saved_in_memory(&self, now: Instant) -> Option<u64> {
        let Some(Running { group, notice: Some(phase), .. }) = self.job.phase.running() else {
            return None;
        };
        let is_suitable = matches!(phase.kind, NoticeKind::Leave | NoticeKind::Members);
        let is_usable = group.round == self.memory.round && self.memory_off().is_none();
        let is_over = phase.until.is_some_and(|until| until <= now);
        let may_be_enough = is_over || after(phase.since, MEMORY_IS_ENOUGH_AFTER) <= now;
        if !is_suitable || !is_usable || !phase.ends_round() || !may_be_enough {
            return None;
        }
        let shared = self.job.settings.shared?;
        let noticed = self.job.roster.noticed().keys().chain(group.leavers());
        let leavers = noticed.chain(phase.leavers.iter().map(|(_, id)| id));
        let leavers: BTreeSet<GroupRank> =
            leavers.filter_map(|id| Some(group.member(id)?.rank)).collect();
        let (checkpoint, kind, is_replicated) =
            self.memory.holdings.held_without(&leavers, phase.since)?;
        let size = group.size as usize;
        let (staying, ready) = (size.saturating_sub(leavers.len()), self.job.roster.ready());
        let next = shared.nodes.fit(staying + ready.len());
        let is_enough = next >= shared.nodes.min() as usize;
        if kind == MemoryKind::Dcp && !is_replicated && self.memory.can_be_resharded {
            return is_enough.then_some(checkpoint.step);
        }
        let may_fetch = self.memory.pairs.iter().any(|pair| pair.buddy.is_some());
        let is_alike = |id: &NodeId| {
            let workers = self.job.roster.get(id).map(|node| node.description.local_world_size);
            workers == self.memory.workers
        };
        let fits = if is_replicated {
            is_enough
        } else {
            let keeps_ranks = next == size && !shared.fixed_ranks;
            keeps_ranks && self.memory.workers.is_some() && ready.iter().all(is_alike)
        };
        (fits && (may_fetch || next <= staying)).then_some(checkpoint.step)
    }

    /// Returns true if a node holds any part for itself or another one.
    pub(super) fn has_parts(report: &MemoryReport) -> bool {
        report.parts.iter().any(|part| part.place != PartPlace::Leftover)
    }
}

/// The beginning of an obstacle because of which memory must be off on all nodes.
pub(super) const OFF: &str = "off: ";

/// Returns true if other nodes may fetch parts from a node: it is not about to leave, and was not evicted. A
/// quarantined node gives its parts.
fn may_give(node: &RosterNode) -> bool {
    let is_evicted = matches!(node.sent, Some(SentAssignment::Evict(_)));
    !node.is_leaving() && node.report.notice.is_none() && !is_evicted
}
