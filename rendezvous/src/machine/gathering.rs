//! Gathers nodes for the first round, and completes a round in any phase.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use tracing::info;

use crate::{
    event::EventKind,
    group::{Group, MemberState},
    ids::{GroupRank, NodeId, Round, RoundId},
    job::Availability,
    limits::after,
    machine::{Rendezvous, closing::Failures, is_enough},
    memory::Chosen,
    message::{DepartedNodes, Departure, JobResult, LINE_MAX, NodeDescription, Replaced},
    phase::{Gathering, Phase, Running},
    ranks::{assign_ranks, sort_newcomers},
    roster::RosterNode,
    settings::{HostMember, SharedSettings},
    stall::cut,
    table::{Past, Table},
};

/// A round that may be formed.
struct Draft {
    /// Its nodes by rank.
    placed: Vec<NodeId>,
    /// Those of them that were not in the last round.
    newcomers: Vec<NodeId>,
    /// The members that have lost their places to spares, each with its spare.
    replaced: Vec<(NodeId, NodeId)>,
    table: Table,
    checkpoint: Option<Chosen>,
}

impl Rendezvous {
    /// Returns true if this coordinator still forms rounds. Ends the job if it shuts down.
    pub(super) fn may_step(&mut self) -> bool {
        if self.job.availability == Availability::ShuttingDown {
            self.finish();
        }
        self.job.availability == Availability::Available
    }

    /// Starts, cancels or ends the last call. Gives up when nodes have waited for too long.
    pub(super) fn step_in_gathering(&mut self, now: Instant, shared: SharedSettings) -> bool {
        if !self.may_step() {
            return false;
        }
        if self.close_if_ending() {
            return true;
        }
        if !is_enough(self.candidates(shared), shared) && self.reaches_min(shared) {
            self.recall(shared);
        }
        let ready = self.candidates(shared);
        let is_empty = self.job.roster.is_empty();
        let Phase::Gathering(gathering) = &mut self.job.phase else { return false };
        gathering.since = if is_empty { None } else { gathering.since.or(Some(now)) };
        let is_first = self.job.state.round == Round(0);
        let may_begin = !is_first
            || self.job.other_jobs.is_empty()
                && self.job.settings.begins_at.is_none_or(|begins_at| begins_at <= now);
        if ready >= shared.nodes.max() as usize && may_begin {
            return self.complete(now, shared);
        }
        let young = self.job.roster.young().len();
        let Phase::Gathering(gathering) = &mut self.job.phase else { return false };
        // Nodes that are too young will be old enough soon, often before the last call is over.
        if is_enough(ready + young, shared) {
            // Set once and never moved, so that nodes that arrive one after the other do not delay
            // the rest.
            let until = *gathering.last_call_until.get_or_insert_with(|| {
                info!(nodes = ready, "last call");
                after(now, shared.timeouts.last_call)
            });
            if now < until {
                return false;
            }
            if is_enough(ready, shared) && may_begin {
                return self.complete(now, shared);
            }
            if self.job.other_jobs.is_empty() {
                return false;
            }
        } else {
            gathering.last_call_until = None;
        }
        let Some(since) = gathering.since else { return false };
        self.give_up_after(now, since, shared)
    }

    pub(super) fn gathering_deadline(
        &self,
        gathering: &Gathering,
        shared: SharedSettings,
    ) -> Option<Instant> {
        if self.job.availability != Availability::Available {
            return None;
        }
        let is_ahead = |at: &Instant| self.job.advanced < *at;
        let begins_at = self.job.settings.begins_at.filter(is_ahead);
        let last_call = gathering.last_call_until.filter(is_ahead);
        let join = gathering.since.map(|since| after(since, shared.timeouts.join));
        let is_called = gathering.last_call_until.is_some();
        let is_waiting = last_call.is_some() || is_called && self.job.other_jobs.is_empty();
        let join = join.filter(|_| !is_waiting);
        [last_call, begins_at, join].into_iter().flatten().min()
    }

    /// Closes the job, if the join timeout has passed since `since`: it has too few nodes, or an elder job of its name may
    /// still run.
    pub(super) fn give_up_after(
        &mut self,
        now: Instant,
        since: Instant,
        shared: SharedSettings,
    ) -> bool {
        if now < after(since, shared.timeouts.join) {
            return false;
        }
        let present = self.candidates(shared) + self.job.roster.young().len();
        let quarantined = self.job.roster.quarantined().len();
        let result = if self.job.state.round == Round(0) && !self.job.other_jobs.is_empty() {
            let endpoint = cut(self.job.other_jobs.join("; "), LINE_MAX);
            JobResult::OtherJob { endpoint, born_ms: None }
        } else if quarantined > 0 && is_enough(present + quarantined, shared) {
            JobResult::AllQuarantined
        } else {
            JobResult::JoinTimeout {
                present: u32::try_from(present).unwrap_or(u32::MAX),
                min: shared.nodes.min(),
                waited: now.saturating_duration_since(since),
                after: self.job.phase.group().map_or(Round(0), |group| group.round.round),
                departed: Box::new(self.departed(now)),
            }
        };
        self.close(result, Failures::default());
        true
    }

    /// Returns the nodes that have departed since the last round was formed, and are still missing.
    fn departed(&self, now: Instant) -> DepartedNodes {
        let is_back = |id: &NodeId, how: Departure| match how {
            Departure::NotReady => self.job.roster.ready().contains(id),
            Departure::AgentEnded | Departure::Silent | Departure::Left => self.knows(id),
        };
        let group = self.job.phase.group();
        let is_newcomer = |id: &NodeId| group.is_none_or(|group| group.member(id).is_none());
        let nodes = self.job.roster.iter().filter(|(id, _)| is_newcomer(id)).map(|(_, node)| node);
        self.departures.departed(now, is_back, nodes)
    }

    /// Completes a round of the ready nodes.
    ///
    /// If other nodes could not reach the address of the master, the job is closed instead, because
    /// no node could change this by itself.
    pub(super) fn complete(&mut self, now: Instant, shared: SharedSettings) -> bool {
        let parts = self.memory.parts_awaited_until(now);
        if parts.is_some() || self.health.list_awaited_until(now).is_some() {
            return false;
        }
        let round = RoundId { term: self.job.state.term, round: self.job.state.round.next() };
        let Some(draft) = self.best_draft(now, round, shared) else { return false };
        if let Some(master) = draft.table.loopback_master() {
            let (address, host_name) = (master.address.clone(), master.host_name.clone());
            self.close(JobResult::LoopbackMaster { address, host_name }, Failures::default());
            return true;
        }
        if draft.checkpoint.is_none() && self.memory.waits_for_parts(&self.job) {
            return false;
        }
        if !self.count_free_round() {
            self.begin_round(now, round, draft);
        }
        true
    }

    /// Returns the next round; `None` if it is not complete. Spares take the places of suspected members, if the round is as good with them.
    fn best_draft(&self, now: Instant, round: RoundId, shared: SharedSettings) -> Option<Draft> {
        let room = shared.nodes.fit(self.candidates(shared));
        let survivors = self.survivors(room);
        let draft = self.draft(now, round, survivors.clone(), room, shared)?;
        let replaced = self.replaced(now, &survivors, room);
        if replaced.is_empty() {
            return Some(draft);
        }
        let kept = survivors.into_iter().filter(|(_, id)| !replaced.contains(id)).collect();
        let Some(other) = self.draft(now, round, kept, room, shared) else { return Some(draft) };
        let known: BTreeSet<&NodeId> = draft.placed.iter().collect();
        let spares = other.newcomers.iter().filter(|id| !known.contains(id));
        let replaced: Vec<_> = replaced.into_iter().zip(spares.cloned()).collect();
        Some(if self.is_as_good(&other, &draft, &replaced) {
            Draft { replaced, ..other }
        } else {
            draft
        })
    }

    /// Begins a round. Its events have the order of these calls.
    fn begin_round(&mut self, now: Instant, round: RoundId, draft: Draft) {
        let Draft { placed, newcomers, replaced, mut table, checkpoint } = draft;
        let (nodes, workers) = (placed.len(), table.world_size());
        info!(%round, nodes, workers, "round admitted");
        self.departures.clear();
        self.job.roster.grow_up(None);
        self.job.state.round = round.round;
        self.job.state.is_adopted = false;
        self.job.state.is_early = true;
        self.job.state.round_size = u32::try_from(nodes).unwrap_or(u32::MAX);
        let host = placed.iter().zip(0..).find(|(id, _)| self.job.is_host(id));
        self.job.state.host = host.map(|(id, rank)| HostMember {
            rank: GroupRank(rank),
            node: id.clone(),
            host_name: self.job.host_name(id),
            is_confirmed_dead: false,
        });
        self.health.begin_round(&self.job, &placed, &mut self.out);
        self.progress.begin_round(now, workers);
        self.record_admission(now, workers, newcomers.len());
        for (id, by) in &replaced {
            let (host, by) = (self.job.host_name(id), self.job.host_name(by));
            info!(node = %id, %by, "node replaced: its worker has failed");
            table.replaced.get_or_insert_with(|| Replaced { host, by: by.clone() });
            self.out.event_of(&self.job, None, id, EventKind::NodeReplaced { by });
        }
        self.memory.begin_round(&self.job, round, &table, checkpoint, &mut self.out);
        self.out.remember();
        let has_group = newcomers.len() < nodes;
        // A node that takes the place of a failed one is no new node, so its failure counts.
        let is_new = |id: &NodeId| has_group && !replaced.iter().any(|(_, spare)| spare == id);
        let newcomers = newcomers.into_iter().filter(is_new).collect();
        let group = Group::new(now, round, table, newcomers);
        self.enter(Phase::Running(Running { group, waiting_since: None }));
        for id in &placed {
            if let Some(node) = self.job.roster.get_mut(id) {
                node.floor = round;
                node.missed_its_admission = false;
            }
            self.index_readiness(id);
        }
    }

    /// Returns the ready members of the last round, by their rank in it. If there are more than
    /// `room`, those with the highest ranks are left out.
    fn survivors(&self, room: usize) -> BTreeMap<GroupRank, NodeId> {
        let members = self.job.phase.group().into_iter().flat_map(Group::members);
        let mut survivors: BTreeMap<GroupRank, NodeId> = members
            .filter(|(id, member)| {
                member.state == MemberState::Back && self.job.roster.ready().contains(*id)
            })
            .map(|(id, member)| (member.rank, id.clone()))
            .collect();
        while survivors.len() > room {
            survivors.pop_last();
        }
        survivors
    }

    /// Returns a round of these survivors and of nodes that wait; `None` if it is not complete.
    fn draft(
        &self,
        now: Instant,
        round: RoundId,
        survivors: BTreeMap<GroupRank, NodeId>,
        room: usize,
        shared: SharedSettings,
    ) -> Option<Draft> {
        let newcomers = self.newcomers(now, &survivors, room);
        let placed = if shared.fixed_ranks {
            self.by_node_rank(survivors, shared)?
        } else {
            assign_ranks(survivors, newcomers.clone())
        };
        let table = self.lay_out(round, &placed)?;
        let checkpoint = self.memory.choose(&self.job, &table);
        Some(Draft { placed, newcomers, replaced: Vec::new(), table, checkpoint })
    }

    /// Returns the survivors that lose their place to spares. They are in this order: the most suspected first, and of equal ones the
    /// last to fail. A spare must have fewer suspicions than the survivor, and spares fill free places first.
    fn replaced(
        &self,
        now: Instant,
        survivors: &BTreeMap<GroupRank, NodeId>,
        room: usize,
    ) -> Vec<NodeId> {
        let suspected = |id: &NodeId| self.job.roster.get(id)?.tally.suspected(now);
        let mut suspects: Vec<_> =
            survivors.values().filter_map(|id| Some((suspected(id)?, id))).collect();
        if suspects.is_empty() {
            return Vec::new();
        }
        suspects.sort_by_key(|(suspected, _)| Reverse(*suspected));
        let waiting = self.waiting(now, survivors).into_iter().filter(|node| !node.is_unfit());
        let spares = waiting.skip(room.saturating_sub(survivors.len()));
        let pairs = suspects.into_iter().zip(spares);
        let replaced: BTreeSet<&NodeId> = pairs
            .take_while(|(((count, _), _), spare)| spare.tally.suspicions(now) < *count)
            .map(|((_, id), _)| id)
            .collect();
        // By rank, as newcomers fill gaps.
        survivors.values().filter(|id| replaced.contains(id)).cloned().collect()
    }

    /// Returns true if a round without these suspects begins with the same checkpoint as one with them, has as many workers, and
    /// has room for its copies.
    fn is_as_good(&self, other: &Draft, draft: &Draft, replaced: &[(NodeId, NodeId)]) -> bool {
        let checkpoint = |draft: &Draft| {
            draft.checkpoint.as_ref().map(|chosen| (chosen.checkpoint, chosen.is_resharded()))
        };
        let memory = |id: &NodeId| self.job.roster.get(id)?.memory.as_deref();
        let needed =
            replaced.iter().filter_map(|(id, _)| memory(id)).map(|memory| memory.needed).max();
        let needed = needed.filter(|needed| *needed > 0);
        let has_room = |id: &NodeId| {
            let memory = memory(id).filter(|memory| memory.address.is_some());
            needed.is_none_or(|needed| memory.is_some_and(|memory| memory.limit >= needed))
        };
        other.table.world_size() == draft.table.world_size()
            && other.table.loopback_master().is_none()
            && checkpoint(other) == checkpoint(draft)
            && replaced.iter().all(|(_, spare)| has_room(spare))
    }

    /// Returns the nodes that wait for a place in the order in which they get one: the unhealthy and excluded last, and before them the
    /// suspected, and those on a host with a suspected member. Of equal ones, the first to arrive is the first.
    fn waiting(&self, now: Instant, survivors: &BTreeMap<GroupRank, NodeId>) -> Vec<&RosterNode> {
        let known: BTreeSet<&NodeId> = survivors.values().collect();
        let ready = self.job.roster.ready().iter().filter(|id| !known.contains(*id));
        let mut waiting: Vec<_> = ready.filter_map(|id| self.job.roster.get(id)).collect();
        let members = self.job.phase.group().into_iter().flat_map(Group::members);
        let suspects = members
            .filter_map(|(id, _)| self.job.roster.get(id))
            .filter(|node| node.tally.suspicions(now) > 0);
        let hosts: BTreeSet<&str> =
            suspects.map(|node| node.description.host_name.as_str()).collect();
        waiting.sort_by_key(|node| {
            let shares_host = hosts.contains(node.description.host_name.as_str());
            (node.is_unfit(), node.tally.suspicions(now), shares_host, node.arrival)
        });
        waiting
    }

    /// Returns the nodes that join the survivors, in the order of their ranks.
    fn newcomers(
        &self,
        now: Instant,
        survivors: &BTreeMap<GroupRank, NodeId>,
        room: usize,
    ) -> Vec<NodeId> {
        let mut waiting = self.waiting(now, survivors);
        waiting.truncate(room.saturating_sub(survivors.len()));
        let mut newcomers: Vec<&NodeDescription> =
            waiting.into_iter().map(|node| &*node.description).collect();
        sort_newcomers(&mut newcomers);
        newcomers.into_iter().map(|node| node.node_id.clone()).collect()
    }

    /// Returns one node for each possible `--node-rank`: the node that had the rank, else the first
    /// to arrive; `None` if a rank has no node.
    fn by_node_rank(
        &self,
        survivors: BTreeMap<GroupRank, NodeId>,
        shared: SharedSettings,
    ) -> Option<Vec<NodeId>> {
        let mut ready: Vec<_> =
            self.job.roster.ready().iter().filter_map(|id| self.job.roster.get(id)).collect();
        ready.sort_by_key(|node| Reverse(node.arrival));
        let ready = ready.into_iter().filter_map(|node| {
            let description = &node.description;
            Some((GroupRank(description.node_rank?), description.node_id.clone()))
        });
        let mut by_rank: BTreeMap<GroupRank, NodeId> = ready.chain(survivors).collect();
        (0..shared.nodes.max()).map(|rank| by_rank.remove(&GroupRank(rank))).collect()
    }

    /// Returns the number of ranks of the next round that could be filled now.
    pub(super) fn candidates(&self, shared: SharedSettings) -> usize {
        if shared.fixed_ranks {
            self.job.roster.node_ranks_ready()
        } else {
            self.job.roster.ready().len()
        }
    }

    fn lay_out(&self, round: RoundId, placed: &[NodeId]) -> Option<Table> {
        let nodes: Vec<_> = placed.iter().filter_map(|id| self.job.roster.get(id)).collect();
        debug_assert_eq!(nodes.len(), placed.len(), "who is ready is known");
        let master_port = nodes.first()?.store_port()?;
        let members = nodes.iter().map(|node| Arc::clone(&node.description)).collect();
        let past = Past {
            restart_count: self.job.state.restarts_used,
            restarts_forgiven: self.progress.training().restarts_forgiven,
            charged_through: self.job.state.charged_through,
            rounds_without_progress: self.progress.training().rounds_without_progress,
            saved_step: self.progress.training().saved_step,
        };
        Table::new(round, members, master_port, past)
    }
}
