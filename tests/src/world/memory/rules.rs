//! Checks the rules of checkpoints in memory that concern whole rounds.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ragent_rendezvous::{
    event::{Event as JournalEvent, EventKind, StrikeReason},
    ids::{GroupRank, NodeId, Peer, Round, RoundId, StreamNumber},
    message::{
        Admission, CheckpointId, FromNode, MemoryKind, MemoryReport, Part, PartPlace, Registration,
        RestartReason, UnusableReason,
    },
    settings::JobState,
};

use super::{
    super::World,
    Memory, node_at,
    resharding::{Members, resharded_plan},
};

/// The report of a node on a stream.
type Report = (StreamNumber, Option<MemoryReport>);

/// What the rules know.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The newest report of each node that a coordinator has received, and its stream.
    reports: BTreeMap<(NodeId, NodeId), Report>,
    /// The state of the job of each coordinator.
    states: BTreeMap<NodeId, JobState>,
    /// What each node has registered that has not reported its state since, and the newest round that it knew.
    welcomed: BTreeMap<(NodeId, NodeId), (Round, Report)>,
    /// The admissions to each round.
    admitted: BTreeMap<RoundId, Members>,
    /// The newest checkpoint that a node of each round was told to be whole.
    told: BTreeMap<RoundId, CheckpointId>,
    floor: Option<Floor>,
    /// The nodes that were told that memory is off in a round.
    off: BTreeSet<(RoundId, NodeId)>,
    /// Charged rounds in which no newer checkpoint became whole than the one with which they began.
    stuck: BTreeSet<Round>,
    charged: BTreeSet<Round>,
    /// The nodes of which a worker has received the checkpoint of a round.
    pub(super) given: BTreeSet<(NodeId, Round)>,
    /// Charged rounds whose failed node had not received it.
    unread: BTreeSet<Round>,
    stored: BTreeSet<Round>,
    /// Checkpoints of which a node has not reached its sources.
    gone: BTreeSet<CheckpointId>,
}

/// A checkpoint that must survive.
#[derive(Clone, Debug)]
struct Floor {
    checkpoint: CheckpointId,
    round: RoundId,
    members: BTreeSet<NodeId>,
    /// True if each part is copied.
    is_copied: bool,
}

/// The time within which a restored checkpoint is on two nodes again.
const COPIED_WITHIN: Duration = Duration::from_secs(45);

/// The time for which a fault may explain that a transfer fails.
const EXPLAINS: Duration = Duration::from_secs(40);

impl Memory {
    /// Returns the parts that a coordinator knows of a node.
    pub(super) fn parts_known_to(&self, id: &NodeId, node: &NodeId) -> &[Part] {
        let newest = self.known.reports.get(&(id.clone(), node.clone()));
        let report = newest.and_then(|(_, report)| report.as_ref());
        report.map_or(&[], |report| &report.parts)
    }

    pub(super) fn members_of(&self, round: RoundId) -> Option<&Members> {
        self.known.admitted.get(&round)
    }
}

impl World {
    /// Notes what a node reports of its memory with a registration. With an elected coordinator, it counts once the node has reported its
    /// state on the same stream.
    pub(in crate::world) fn note_memory_registration(
        &mut self,
        id: &NodeId,
        registration: &Registration,
    ) {
        let is_fixed = self.fixed.is_some();
        let Some(memory) = &mut self.memory else { return };
        let peer = registration.peer();
        let new = (peer.stream, registration.memory.clone());
        let key = (id.clone(), peer.node);
        let known_round = registration.known_round.round.round;
        if is_fixed {
            if memory.known.reports.get(&key).is_none_or(|(stream, _)| *stream <= peer.stream) {
                memory.known.reports.insert(key, new);
            }
        } else if memory.known.welcomed.get(&key).is_none_or(|(_, (old, _))| *old <= peer.stream) {
            memory.known.welcomed.insert(key, (known_round, new));
        }
    }

    /// Notes what a coordinator learns of a node.
    pub(in crate::world) fn note_memory_message(
        &mut self,
        id: &NodeId,
        peer: &Peer,
        message: &FromNode,
    ) {
        let Some(memory) = &mut self.memory else { return };
        let key = (id.clone(), peer.node.clone());
        let known = &mut memory.known;
        if let FromNode::NodeReport(report) = message
            && let Some(unusable) = report.memory_unusable.as_deref()
            && matches!(&unusable.why, UnusableReason::SourceGone { sources } if !sources.is_empty())
        {
            // It counts even if the failure of a worker has ended the round before.
            known.gone.insert(unusable.checkpoint);
        }
        let is_it = |(_, (stream, _)): &(Round, Report)| *stream == peer.stream;
        let welcomed = known.welcomed.get(&key).filter(|welcomed| is_it(welcomed));
        match message {
            FromNode::NodeReport(report) if welcomed.is_some() => {
                let welcomed = known.welcomed.remove(&key);
                let is_newer = |known_round: &Round| report.round.round <= *known_round;
                if let Some((_, new)) = welcomed.filter(|(known_round, _)| is_newer(known_round)) {
                    known.reports.insert(key, new);
                }
            }
            FromNode::MemoryReport(report) => {
                // A registration may be older than what the node reports before its state.
                let old = match welcomed {
                    Some(_) => known.welcomed.get_mut(&key).map(|(_, newest)| newest),
                    None => known.reports.get_mut(&key),
                };
                if let Some(old) = old.filter(|(stream, _)| *stream == peer.stream) {
                    old.1 = Some(report.clone());
                }
            }
            _ => {}
        }
    }

    /// Forgets what a process has known as a coordinator.
    pub(in crate::world) fn begin_memory_of_coordinator(&mut self, id: &NodeId, state: &JobState) {
        let Some(memory) = &mut self.memory else { return };
        memory.known.reports.retain(|(coordinator, _), _| coordinator != id);
        memory.known.welcomed.retain(|(coordinator, _), _| coordinator != id);
        memory.known.states.insert(id.clone(), state.clone());
        if state.round == Round(0) {
            // Another job begins, whose rounds have the same numbers.
            let known = &mut memory.known;
            (known.floor, known.off) = (None, BTreeSet::new());
            (known.stuck, known.charged, known.stored) = Default::default();
            (known.given, known.unread) = Default::default();
        }
    }

    /// Notes the state of a job that a coordinator is about to store.
    pub(in crate::world) fn note_memory_state(&mut self, id: &NodeId, state: &JobState) {
        if let Some(memory) = &mut self.memory {
            memory.known.states.insert(id.clone(), state.clone());
        }
    }

    /// Checks rule ab for a state that is stored.
    pub(in crate::world) fn note_stored_memory(&mut self, state: &JobState) {
        let Some(memory) = &mut self.memory else { return };
        let known = &mut memory.known;
        known.stored.extend(state.training.charged_rounds.iter().map(|round| round.round));
        let mut tries: BTreeMap<CheckpointId, BTreeSet<Round>> = BTreeMap::new();
        let stored = |round: &Round| known.stored.contains(round) && known.stuck.contains(round);
        for (round, members) in known.admitted.iter().filter(|(round, _)| stored(&round.round)) {
            if let Some(plan) = members.values().find_map(plan_of) {
                // A coordinator that was lost may have begun another round of this number.
                tries.entry(plan).or_default().insert(round.round);
            }
        }
        let bad = tries.into_iter().find(|(_, rounds)| rounds.len() > 2);
        if let Some((id, rounds)) = bad {
            self.breaks_memory(|| format!("rule ab: {rounds:?} began with {id:?}"));
        }
    }

    pub(super) fn plan_of(&self, round: RoundId) -> Option<CheckpointId> {
        let members = self.memory.as_ref()?.known.admitted.get(&round)?;
        members.values().find_map(plan_of)
    }

    pub(super) fn size_of(&self, round: RoundId) -> Option<usize> {
        let members = self.memory.as_ref()?.known.admitted.get(&round)?;
        let size = members.values().next()?.group_world_size;
        usize::try_from(size).ok()
    }

    pub(super) fn is_off_on(&self, id: &NodeId, round: RoundId) -> bool {
        let off = self.memory.as_ref().map(|memory| &memory.known.off);
        off.is_some_and(|off| off.contains(&(round, id.clone())))
    }

    /// Notes that a node was told that memory is off in a round.
    pub(in crate::world) fn note_memory_off(&mut self, id: &NodeId, round: RoundId) {
        let now = self.now;
        let Some(memory) = &mut self.memory else { return };
        memory.faults.off = Some(now);
        memory.known.off.insert((round, id.clone()));
        memory.known.floor = None;
    }

    /// Notes that a node was told that a checkpoint is whole.
    pub(in crate::world) fn note_whole(&mut self, id: &NodeId, whole: CheckpointId) {
        let Some(agent) = self.agent(id) else { return };
        // A node that is not admitted yet may learn it first.
        let round = agent.node.agent().known_round().round.max(whole.round);
        let Some(memory) = &self.memory else { return };
        let Some(members) = memory.known.admitted.get(&round) else { return };
        if !members.contains_key(id) || memory.known.told.get(&round) >= Some(&whole) {
            return;
        }
        let members: BTreeSet<NodeId> = members.keys().cloned().collect();
        let is_alone = |id: &NodeId| {
            let agent = self.processes.get(id).and_then(|process| process.agent.as_ref());
            let report = agent.and_then(|agent| agent.node.agent().memory_report());
            let parts = report.into_iter().flat_map(|report| report.parts);
            let own = parts.into_iter().find(|part| {
                part.checkpoint == whole && part.place == PartPlace::Own && !part.is_alone
            });
            own.is_none()
        };
        let is_copied = members.len() > 1 && !members.iter().any(is_alone);
        let Some(memory) = &mut self.memory else { return };
        memory.known.told.insert(round, whole);
        memory.totals.whole += 1;
        let is_newer = memory.known.floor.as_ref().is_none_or(|floor| floor.round <= round);
        if is_newer && memory.known.off.iter().all(|(off, _)| *off < whole.round) {
            let floor = Floor { checkpoint: whole, round, members, is_copied };
            memory.known.floor = Some(floor);
        }
    }

    /// Checks rules x, y and ac for a round that begins.
    pub(in crate::world) fn check_plan(&mut self, id: &NodeId, to: &NodeId, admission: &Admission) {
        let Some(memory) = &mut self.memory else { return };
        let round = admission.round;
        let members = memory.known.admitted.entry(round).or_default();
        if members.insert(to.clone(), admission.clone()).is_some() {
            return;
        }
        let members = members.clone();
        if members.len() != admission.group_world_size as usize {
            return;
        }
        let plan = plan_of(admission);
        if members.values().any(|other| plan_of(other) != plan) {
            return self.breaks_memory(|| format!("rule x: the plans of {round} differ"));
        }
        if let Some(why) = self.check_choice(id, &members, plan) {
            return self.breaks_memory(|| format!("rule x: {round}: {why}"));
        }
        let Some(memory) = &self.memory else { return };
        let newest_off = memory.known.off.iter().map(|(round, _)| *round).max();
        if let Some(plan) = plan.filter(|plan| Some(plan.round) <= newest_off) {
            return self.breaks_memory(|| {
                format!("rule ac: {round} begins with {plan:?}, off was {newest_off:?}")
            });
        }
        if let Some(why) = self.check_floor(id, round, &members, plan) {
            return self.breaks_memory(|| format!("rule y: {round}: {why}"));
        }
        let Some(memory) = &mut self.memory else { return };
        // If the plan is newer, its copies may not be made yet.
        let is_lower = |floor: &mut Floor| plan < Some(floor.checkpoint);
        memory.known.floor.take_if(is_lower);
    }

    /// Returns the reason why the plan of a round is not the newest checkpoint that fits.
    fn check_choice(
        &self,
        id: &NodeId,
        members: &Members,
        plan: Option<CheckpointId>,
    ) -> Option<String> {
        let memory = self.memory.as_ref()?;
        let parts = |node: &NodeId| memory.parts_known_to(id, node);
        let tried = memory.known.states.get(id).and_then(|state| state.training.memory);
        let is_void = |checkpoint: CheckpointId| {
            tried.is_some_and(|tried| {
                tried.tries > 2
                    || checkpoint < tried.checkpoint
                    || checkpoint == tried.checkpoint && tried.tries == 2
            })
        };
        if let Some(plan) = plan {
            if is_void(plan) {
                return Some(format!("{plan:?} is void: {tried:?}"));
            }
            if resharded_plan(members).is_some() {
                return self.check_resharded(id, members);
            }
            for (node, admission) in members {
                let is_it = |part: &Part| {
                    let fits = part.group_rank == admission.group_rank
                        && part.first_global_rank == admission.first_global_rank
                        && part.nodes as usize == members.len();
                    part.checkpoint == plan && (fits || part.is_replicated)
                };
                let sources = &admission.memory.as_ref()?.sources;
                let holders: Vec<NodeId> = match sources.is_empty() {
                    true => vec![node.clone()],
                    false => sources.iter().filter_map(|source| node_at(source)).collect(),
                };
                if let Some(other) = holders.iter().find(|holder| !parts(holder).iter().any(is_it))
                {
                    return Some(format!("{other} does not hold the part of {node} of {plan:?}"));
                }
            }
        }
        // What the members hold themselves is a lower bound.
        let mut ids: BTreeSet<CheckpointId> =
            members.keys().flat_map(parts).map(|part| part.checkpoint).collect();
        ids.retain(|id| !is_void(*id) && !memory.known.gone.contains(id) && plan < Some(*id));
        let has_transport = memory.hosts.has_secret;
        ids.into_iter().rev().find_map(|checkpoint| {
            let held: Vec<(&NodeId, &Part)> = members
                .keys()
                .flat_map(|node| parts(node).iter().map(move |part| (node, part)))
                .filter(|(_, part)| part.checkpoint == checkpoint)
                .collect();
            let (_, first) = *held.first()?;
            let is_alike = held.iter().all(|(_, part)| {
                (part.kind, part.is_replicated, part.nodes)
                    == (first.kind, first.is_replicated, first.nodes)
            });
            let is_held = members.iter().all(|(node, admission)| {
                let mut holders = held.iter().filter(|(holder, part)| {
                    let fits = part.group_rank == admission.group_rank
                        && part.first_global_rank == admission.first_global_rank
                        && part.nodes as usize == members.len()
                        && self.workers_of(node) == Some(part.local_ranks.get());
                    (fits || part.is_replicated) && (has_transport || *holder == node)
                });
                holders.next().is_some()
            });
            let has_part = |rank| held.iter().any(|(_, part)| part.group_rank == rank);
            let may_reshard = first.kind == MemoryKind::Dcp && !first.is_replicated;
            let is_whole = (0..first.nodes).map(GroupRank).all(has_part);
            let has_ranks = is_held && memory.hosts.workers.is_some();
            let fits = is_alike && (has_ranks || may_reshard && is_whole && has_transport);
            fits.then(|| format!("begins with {plan:?}, but {checkpoint:?} fits"))
        })
    }

    fn workers_of(&self, id: &NodeId) -> Option<u32> {
        Some(self.descriptions.get(id)?.local_world_size.get())
    }

    /// Returns the reason why a checkpoint is lost that had to survive.
    fn check_floor(
        &self,
        id: &NodeId,
        round: RoundId,
        members: &Members,
        plan: Option<CheckpointId>,
    ) -> Option<String> {
        let memory = self.memory.as_ref()?;
        let floor = memory.known.floor.as_ref()?;
        let checkpoint = floor.checkpoint;
        if plan >= Some(checkpoint) || floor.round >= round {
            return None;
        }
        let tried = memory.known.states.get(id).and_then(|state| state.training.memory);
        let is_void = tried.is_some_and(|tried| {
            tried.tries > 2
                || tried.tries == 2 && checkpoint <= tried.checkpoint
                || checkpoint < tried.checkpoint
        });
        let is_alike = members.len() == floor.members.len() && memory.hosts.workers.is_some()
            || memory.script.is_replicated
            || memory.script.kind == MemoryKind::Dcp && memory.hosts.has_secret;
        let lost: Vec<&NodeId> =
            floor.members.iter().filter(|member| !members.contains_key(*member)).collect();
        let may_lose = usize::from(floor.is_copied && memory.hosts.has_secret);
        let moves = members.iter().any(|(node, admission)| {
            let before = memory.known.admitted.get(&floor.round).and_then(|all| all.get(node));
            before.map(|before| before.group_rank) != Some(admission.group_rank)
        });
        let is_faulty = memory.faults.changed.contains(&checkpoint)
            || memory.faults.refused.contains(&checkpoint)
            || memory.known.gone.contains(&checkpoint)
            || memory.faults.short.is_some();
        if is_void || !is_alike || lost.len() > may_lose || is_faulty {
            return None;
        }
        if moves && !memory.hosts.has_secret {
            return None;
        }
        Some(format!(
            "{checkpoint:?} was whole in {}, lost are {lost:?}, but the plan is {plan:?}",
            floor.round
        ))
    }

    /// Checks rules ab and ad for an event of a coordinator.
    pub(in crate::world) fn check_memory_event(&mut self, id: &NodeId, event: &JournalEvent) {
        let Some(local) = self.local(id) else { return };
        let now = self.now;
        if self.memory.is_none() {
            return;
        }
        match &event.kind {
            EventKind::MemoryRestored { .. }
            | EventKind::MemoryStruck { .. }
            | EventKind::MemoryOff { .. }
            | EventKind::FailureCharged { .. }
            | EventKind::NodeReplaced { .. }
            | EventKind::RoundEnded { .. } => {
                self.tell(|| format!("{id}: {} {:?}", event.round, event.kind));
            }
            _ => {}
        }
        let snapshot = match &event.kind {
            EventKind::FailureCharged { .. } => self
                .port(id)
                .and_then(|port| Some(port.coordination.coordinator()?.rendezvous.snapshot(local))),
            _ => None,
        };
        let newest = snapshot.and_then(|snapshot| snapshot.memory?.step);
        let Some(memory) = &mut self.memory else { return };
        let of_round = memory.known.admitted.iter().find(|(of, _)| of.round == event.round);
        let plan = of_round.and_then(|(_, members)| members.values().find_map(plan_of));
        match &event.kind {
            EventKind::NodeReplaced { .. } => {
                let node = event.node.as_ref().and_then(|node| self.processes.get(&node.node_id));
                let agent = node.and_then(|process| process.agent.as_ref());
                let report = agent.and_then(|agent| agent.node.agent().memory_report());
                let needed = report.map_or(0, |report| report.needed);
                let limit = if memory.hosts.has_secret { memory.hosts.limit } else { 0 };
                if needed > limit {
                    self.breaks_memory(|| format!("rule aq: {needed} of {limit}: {event:?}"));
                }
            }
            EventKind::FailureCharged { .. } => {
                memory.known.charged.insert(event.round);
                let told = of_round.and_then(|(of, _)| memory.known.told.get(of)).copied();
                let has_read = event.node.as_ref().is_none_or(|node| {
                    memory.known.given.contains(&(node.node_id.clone(), event.round))
                });
                if !has_read {
                    memory.known.unread.insert(event.round);
                }
                let is_stuck = plan.is_some_and(|plan| newest == Some(plan.step)) && told <= plan;
                if has_read && is_stuck {
                    memory.known.stuck.insert(event.round);
                }
            }
            EventKind::MemoryStruck { step, reason } => {
                memory.totals.struck += 1;
                let (step, reason) = (*step, *reason);
                let has = |ids: &BTreeSet<CheckpointId>| ids.iter().any(|id| id.step == step);
                let charged = memory.known.admitted.iter().filter(|(of, members)| {
                    let plan = members.values().find_map(plan_of);
                    let is_charged =
                        of.round == event.round || memory.known.charged.contains(&of.round);
                    // The event of the round that is being charged comes later.
                    let is_read = !memory.known.unread.contains(&of.round);
                    is_charged && is_read && plan.is_some_and(|plan| plan.step == step)
                });
                let is_right = match reason {
                    StrikeReason::Failures => charged.count() >= 2,
                    StrikeReason::Sum => has(&memory.faults.changed),
                    StrikeReason::Script => has(&memory.faults.refused),
                    StrikeReason::Unread => !memory.known.unread.is_empty(),
                };
                if !is_right {
                    self.breaks_memory(|| format!("rule ab: step {step} is struck: {reason:?}"));
                }
            }
            EventKind::MemoryOff { .. } => {
                memory.totals.off += 1;
                memory.faults.off = Some(now);
            }
            EventKind::RoundEnded { reason: RestartReason::MemoryUnusable { unusable, .. } } => {
                let is_recent =
                    |at: Option<std::time::Instant>| at.is_some_and(|at| now < at + EXPLAINS);
                let is_short = is_recent(memory.faults.short) || is_recent(memory.faults.off);
                let checkpoint = unusable.checkpoint;
                let is_explained = match &unusable.why {
                    UnusableReason::Sum => memory.faults.changed.contains(&checkpoint) || is_short,
                    UnusableReason::Script => {
                        memory.faults.refused.contains(&checkpoint) || is_short
                    }
                    UnusableReason::SourceGone { .. } => {
                        let is_apart = !memory.hosts.walls.is_empty();
                        // A holder drops a block that has changed before it sends a range of it.
                        let members = of_round.map(|(_, members)| members);
                        let has_changed = members.and_then(resharded_plan).is_some()
                            && memory.faults.changed.contains(&checkpoint);
                        let has_failed = is_recent(memory.faults.failed);
                        is_short || is_apart || has_changed || has_failed
                    }
                };
                if !is_explained {
                    let unusable = unusable.clone();
                    self.breaks_memory(|| format!("rule ad: {} ends: {unusable:?}", event.round));
                }
            }
            _ => {}
        }
    }

    /// Checks that what a round has restored is on two nodes again.
    pub(super) fn check_copied(&mut self, round: RoundId) {
        let now = self.now;
        let Some(memory) = &self.memory else { return };
        let copies = self.shared.memory_copies > 0 && memory.hosts.has_secret;
        let is_clear = memory.hosts.walls.is_empty()
            && memory.hosts.limit >= memory.script.bytes * 20
            && memory.faults.short.is_none()
            && memory.script.odd.is_none();
        let (Some(plan), Some(quiet)) = (self.plan_of(round), self.quiet_since()) else { return };
        let began = memory.rounds.get(&round).and_then(|work| work.began);
        let Some(began) = began.filter(|_| copies && is_clear) else { return };
        let Some(members) = memory.known.admitted.get(&round) else { return };
        if resharded_plan(members).is_some() {
            // Its parts have no place in the round.
            return;
        }
        let have_buddies = members.values().all(|admission| admission.buddy.is_some());
        // A slow transfer that began before may last for 100 s.
        let is_over = now > began.max(quiet + COPIED_WITHIN * 2) + COPIED_WITHIN;
        let all_run = members.keys().all(|id| self.runs_workers_of(id, round));
        let is_off = members.keys().any(|id| self.is_off_on(id, round));
        let told = memory.known.told.get(&round).copied();
        if is_over && have_buddies && all_run && !is_off && told < Some(plan) {
            self.breaks_memory(|| format!("rule aa: {plan:?} is not copied again in {round}"));
        }
    }

    /// Checks rule z for a node.
    pub(in crate::world) fn check_parts(&mut self, id: &NodeId) {
        let Some(memory) = &self.memory else { return };
        let limit = memory.hosts.limit;
        let Some(driver) = memory.drivers.get(id) else { return };
        let used: u64 = driver.buffers.values().map(|file| file.size).sum();
        let agent = self.processes.get(id).and_then(|process| process.agent.as_ref());
        let Some(report) = agent.and_then(|agent| agent.node.agent().memory_report()) else {
            return;
        };
        let own = report.parts.iter().filter(|part| part.place == PartPlace::Own).count();
        // Other nodes may need what is left of a plan and of its fallback, until a newer checkpoint is whole.
        let was_planned = |checkpoint| {
            let mut plans = memory.known.admitted.values();
            plans.any(|members| members.values().find_map(plan_of) >= Some(checkpoint))
        };
        let is_other = |part: &&Part| match part.place {
            PartPlace::Own => false,
            PartPlace::Copy => true,
            PartPlace::Leftover => !was_planned(part.checkpoint),
        };
        let others = report.parts.iter().filter(is_other).count();
        if own > 2 || others > 3 {
            let parts: Vec<(CheckpointId, GroupRank, PartPlace)> =
                report.parts.iter().map(|p| (p.checkpoint, p.group_rank, p.place)).collect();
            return self.breaks_memory(|| format!("rule z: {id} holds {parts:?}"));
        }
        if used > limit {
            self.breaks_memory(|| format!("rule z: {id} uses {used} of {limit}"));
        }
    }

    /// Returns the rule of the memory that is broken.
    pub(in crate::world) fn check_memory(&mut self) -> Result<(), String> {
        match self.memory.as_mut().and_then(|memory| memory.broken.take()) {
            Some(broken) => Err(format!("{broken}, at {:?}", self.elapsed())),
            None => Ok(()),
        }
    }
}

fn plan_of(admission: &Admission) -> Option<CheckpointId> {
    Some(admission.memory.as_ref()?.checkpoint)
}
