//! Shows the state of the machine: its run and leases, a snapshot, and why the next round is not complete.

use std::{
    collections::BTreeSet,
    iter::Peekable,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    group::{Group, GroupMember, MemberState},
    heir::Successor,
    ids::{GlobalRank, JobUid, NodeId, Round, RoundId, RunId},
    incomplete::Incomplete,
    job::Availability,
    limits::{SUCCESSORS_MAX, after, millis},
    machine::Rendezvous,
    message::{EvictReason, NodeDescription, NodeState, WaitReason},
    phase::{Gathering, Phase, Recovering, RecoveryStage, Regathering, Running},
    roster::RosterNode,
    settings::{Leases, SharedSettings},
    snapshot::{
        Explanation, JobCounts, NodeCounts, NodeStateName, PhaseName, SharedNode, SharedSnapshot,
        Snapshot,
    },
    table::{MemberRanks, Table},
};

/// The most host names in an explanation.
const HOSTS_SHOWN: usize = 4;

/// The most departed nodes that are examined for an explanation: every node that waits asks for one every 5 s.
const DEPARTURES_EXAMINED: usize = 64;

/// The reason why a spare gets a place after other spares.
const FAILED_LATELY: &str =
    "a worker has failed on it in the last 24 h, so other spares come first";

impl Rendezvous {
    /// Returns true if the node has registered, and has neither been lost nor dismissed since.
    pub fn knows(&self, node: &NodeId) -> bool {
        self.job.roster.get(node).is_some()
    }

    /// Returns the description of a node that has registered, and has neither been lost nor dismissed since.
    pub fn description(&self, node: &NodeId) -> Option<&NodeDescription> {
        self.job.roster.get(node).map(|node| &*node.description)
    }

    /// Returns the name of the job.
    pub fn run_id(&self) -> &RunId {
        &self.job.settings.run_id
    }

    /// Returns the members with the lowest ranks of the newest round, except the node in the coordinator's
    /// own process. They succeed this coordinator if it is lost. Empty before the first round of this term.
    pub fn successors(&self) -> Vec<Successor> {
        let Some(group) = self.job.phase.group() else { return Vec::new() };
        let host = self.job.settings.host.as_ref();
        let mut members: Vec<_> = group
            .members()
            .filter(|(id, member)| Some(*id) != host && member.state.stays())
            .collect();
        members.sort_by_key(|(_, member)| member.rank);
        let described = |(id, _): (&NodeId, GroupMember)| {
            let NodeDescription { address, agent_port, .. } =
                &*self.job.roster.get(id)?.description;
            let address = match address.parse::<IpAddr>() {
                Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
                Ok(IpAddr::V4(_)) | Err(_) => address.clone(),
            };
            Some(Successor { process: id.clone(), endpoint: format!("{address}:{agent_port}") })
        };
        members.into_iter().filter_map(described).take(SUCCESSORS_MAX).collect()
    }

    /// Returns the uid of this coordinator's run.
    pub fn job_uid(&self) -> &JobUid {
        &self.job.state.job_uid
    }

    /// Returns the leases of this job, which are constant for its life.
    ///
    /// Until the shared settings are known, these are the leases of a small job. No node has been granted a
    /// lease before that, because none has registered.
    pub fn leases(&self) -> Leases {
        let given = self.job.settings.leases;
        self.job.settings.shared.map_or(given, |shared| given.for_nodes(shared.nodes))
    }

    /// Returns the newest round.
    pub fn newest_round(&self) -> RoundId {
        self.job.newest_round()
    }

    /// Returns the visible state of the job at `now`.
    pub fn snapshot(&self, now: Instant) -> Snapshot {
        self.shared_snapshot(now).into()
    }

    /// Returns the visible state of the job at `now`, as a value that shares the texts of the nodes with this
    /// machine.
    pub fn shared_snapshot(&self, now: Instant) -> SharedSnapshot {
        let mut nodes = Vec::with_capacity(self.job.roster.len());
        self.visit_nodes(now, |view| nodes.push(view.shared(now)));
        SharedSnapshot { job: self.snapshot_without_nodes(now), nodes }
    }

    /// Returns the visible state of the job at `now`, with the numbers of nodes instead of the nodes.
    pub fn counts(&self, now: Instant) -> JobCounts {
        JobCounts {
            job: self.snapshot_without_nodes(now),
            nodes: self.counted.get_or_init(|| self.count_nodes(now)).clone(),
            longest_silence: self.job.roster.longest_silence(now),
        }
    }

    pub(super) fn count_nodes(&self, now: Instant) -> NodeCounts {
        let mut counts = NodeCounts::default();
        self.visit_nodes(now, |view| {
            counts.add(view.state, view.node.and_then(|node| node.standbys.as_deref()));
        });
        counts
    }

    fn snapshot_without_nodes(&self, now: Instant) -> Snapshot {
        let shared = self.job.settings.shared;
        let table = self.job.phase.group().and_then(|group| group.table.as_ref());
        Snapshot {
            run_id: self.job.settings.run_id.clone(),
            job_uid: self.job.state.job_uid.clone(),
            term: self.job.state.term,
            round: self.job.state.round,
            phase: self.phase_name(),
            min_nodes: shared.map_or(0, |shared| shared.nodes.min()),
            phase_ms: millis(now.saturating_duration_since(self.job.shown.1)),
            time: self.progress.job_time(now),
            last_restart: self.progress.last_restart(),
            restarts: self.progress.restarts_by_cause(),
            max_nodes: shared.map_or(0, |shared| shared.nodes.max()),
            restarts_used: self.job.state.restarts_used,
            restarts_forgiven: self.progress.training().restarts_forgiven,
            max_restarts: shared.map_or(0, |shared| shared.max_restarts),
            world_size: table.map_or(0, |table| table.world_size()),
            nodes: Vec::new(),
            incomplete: self.incomplete(now).as_ref().map(Explanation::from),
            refused_peers: Vec::new(),
            unreached: Vec::new(),
            progress: self.progress.newest(now, &self.job),
            saving: self.notices.saving(now, &self.job),
            checkpoints: self.progress.checkpoint_times(&self.job),
            saved_step: self.progress.training().saved_step,
            save_failed: self.progress.failed_save(),
            stall: self.stalls.stall(now),
            look: self.stalls.shown_look(now),
            memory: self.memory.status(now, &self.job),
            refused_clients: self
                .job
                .phase
                .group()
                .map_or_else(Vec::new, |group| group.refused_clients().to_vec()),
            outcome: match &self.job.phase {
                Phase::Closed(closed) => Some(closed.outcome.clone()),
                Phase::Recovering(_)
                | Phase::Gathering(_)
                | Phase::Running(_)
                | Phase::Regathering(_) => None,
            },
            // The driver adds them.
            leader: None,
            voters: Vec::new(),
        }
    }

    /// Returns the reason why the next round is not complete yet; `None` while a round runs undisturbed, or
    /// when the job is over.
    pub fn incomplete(&self, now: Instant) -> Option<Incomplete> {
        if self.job.availability != Availability::Available
            && !matches!(self.job.phase, Phase::Closed(_))
        {
            return Some(Incomplete::HostLeaving);
        }
        let Some(shared) = self.job.settings.shared else {
            let lost = Vec::new();
            return Some(Incomplete::TooFewNodes {
                ready: 0,
                min: 1,
                kept_out: 0,
                left: None,
                lost,
            });
        };
        match &self.job.phase {
            Phase::Recovering(recovering) => Some(self.why_recovering(now, recovering, shared)),
            Phase::Gathering(gathering) => Some(self.why_gathering(now, gathering, shared)),
            Phase::Running(running) => self.why_running(now, running, shared),
            Phase::Regathering(regathering) => Some(self.why_regathering(now, regathering, shared)),
            Phase::Closed(_) => None,
        }
    }

    fn why_recovering(
        &self,
        now: Instant,
        recovering: &Recovering,
        shared: SharedSettings,
    ) -> Incomplete {
        let (back, size) = (count(recovering.members.len()), recovering.size);
        match recovering.stage {
            RecoveryStage::Listening => {
                let left = self.recovery_left(now, recovering);
                Incomplete::Recovering { back, size, left }
            }
            RecoveryStage::Outnumbered => {
                let left = left(now, recovering.since, shared.timeouts.join);
                let (present, needed) =
                    (self.present_in_recovery(), self.needed_in_recovery(shared));
                Incomplete::RecoveringMinority { present, needed, left }
            }
        }
    }

    /// Returns the time at which enough nodes are old enough for the first round, and the coordinator as
    /// well.
    fn listens_until(&self, shared: SharedSettings) -> Option<Instant> {
        let missing = (shared.nodes.min() as usize).saturating_sub(self.candidates(shared));
        let young = self.job.roster.young();
        // Usually few or none are more than the job needs, so this counts from the end.
        let surplus = young.len().checked_sub(missing);
        let grown_up = surplus.and_then(|surplus| young.iter().nth_back(surplus));
        let begins_at = self.job.settings.begins_at.filter(|_| self.job.state.round == Round(0));
        grown_up.map(|(at, _)| *at).max(begins_at)
    }

    fn why_gathering(
        &self,
        now: Instant,
        gathering: &Gathering,
        shared: SharedSettings,
    ) -> Incomplete {
        let is_first = self.job.state.round == Round(0);
        if is_first && !self.job.other_jobs.is_empty() {
            return Incomplete::OtherJob { jobs: self.job.other_jobs.clone() };
        }
        let ready = count(self.candidates(shared) + self.job.roster.young().len());
        if let Some(listening) = self.listens_until(shared).filter(|until| {
            let last_call = gathering.last_call_until.unwrap_or(*until);
            ready >= shared.nodes.min() && now < *until && last_call <= *until
        }) {
            return Incomplete::Listening { left: listening.saturating_duration_since(now) };
        }
        match gathering.last_call_until {
            Some(until) => Incomplete::LastCall {
                left: until.saturating_duration_since(now),
                room: shared.nodes.max().saturating_sub(ready),
            },
            None => Incomplete::TooFewNodes {
                ready,
                min: shared.nodes.min(),
                kept_out: self.kept_out(),
                left: gathering.since.map(|since| left(now, since, shared.timeouts.join)),
                lost: self.lost(),
            },
        }
    }

    fn why_running(
        &self,
        now: Instant,
        running: &Running,
        shared: SharedSettings,
    ) -> Option<Incomplete> {
        let at = self.voluntary_at(running, shared)?;
        let waiting = count(self.job.roster.ready().len());
        Some(Incomplete::Settling { waiting, left: at.saturating_duration_since(now) })
    }

    fn why_regathering(
        &self,
        now: Instant,
        regathering: &Regathering,
        shared: SharedSettings,
    ) -> Incomplete {
        if let Some(verdict) = regathering.verdict.as_ref().filter(|v| !v.awaited.is_empty()) {
            let (hosts, more) = self.host_names(&verdict.awaited);
            return Incomplete::Verdict { hosts, more };
        }
        let pending = regathering.group.pending();
        if !pending.is_empty() {
            let (hosts, more) = self.host_names(pending);
            let overdue_at = regathering.overdue_at(shared, self.leases());
            let left = overdue_at.saturating_duration_since(now);
            return Incomplete::Stopping { hosts, more, left };
        }
        let ready = self.candidates(shared);
        // Quarantined nodes are taken back before the job is given up.
        if self.reaches_min(shared) {
            let left = regathering.shrinks_at(shared).saturating_duration_since(now);
            let to = count(shared.nodes.fit(ready));
            return Incomplete::Shrinking { from: regathering.group.size, to, left };
        }
        let left = left(now, regathering.last_loss, shared.timeouts.join);
        let (min, kept_out) = (shared.nodes.min(), self.kept_out());
        let lost = self.lost();
        Incomplete::TooFewNodes { ready: count(ready), min, kept_out, left: Some(left), lost }
    }

    /// Returns the host names of the first few nodes that were lost or have left, and are not back.
    fn lost(&self) -> Vec<String> {
        let departed = self.departures.host_names().take(DEPARTURES_EXAMINED);
        let lost = departed.filter(|(id, _)| !self.knows(id)).take(HOSTS_SHOWN);
        lost.map(|(_, host)| host.to_owned()).collect()
    }

    /// Returns the number of ready nodes that get no place, because they are unhealthy or excluded.
    fn kept_out(&self) -> u32 {
        let nodes = self.job.roster.unfit().iter().filter_map(|id| self.job.roster.get(id));
        count(nodes.filter(|node| node.is_aside).count())
    }

    fn host_names(&self, nodes: &BTreeSet<NodeId>) -> (Vec<String>, u32) {
        let hosts: Vec<String> = nodes
            .iter()
            .filter_map(|id| self.job.roster.get(id))
            .map(|node| node.description.host_name.clone())
            .take(HOSTS_SHOWN)
            .collect();
        let more = count(nodes.len() - hosts.len().min(nodes.len()));
        (hosts, more)
    }

    pub(super) fn phase_name(&self) -> PhaseName {
        match &self.job.phase {
            Phase::Recovering(_) => PhaseName::Recovering,
            Phase::Gathering(_) => PhaseName::Gathering,
            Phase::Running(_) => PhaseName::Running,
            Phase::Regathering(regathering) if regathering.group.unstopped().is_empty() => {
                PhaseName::Gathering
            }
            Phase::Regathering(_) => PhaseName::Stopping,
            Phase::Closed(_) => PhaseName::Closed,
        }
    }

    /// Visits all nodes by id, including members that are gone.
    ///
    /// Members, nodes and steps are all ordered by id, so one pass suffices, without a search for each node.
    fn visit_nodes<'a>(&'a self, now: Instant, mut visit: impl FnMut(NodeView<'a>)) {
        let group = self.job.phase.group();
        // Without a table, an earlier coordinator has completed the round. Its members are then listed with
        // the others.
        let table = group.and_then(|group| group.table.as_ref());
        let member_ranks = table.map_or(&[][..], Table::member_ranks);
        let ranks_of = |member: GroupMember| member_ranks.get(usize::try_from(member.rank.0).ok()?);
        let mut members = InOrder::new(group.into_iter().flat_map(Group::members));
        let mut ages = InOrder::new(self.progress.ages(now, &self.job));
        for (id, node) in self.job.roster.iter() {
            let member = members.find(id, |gone, member| {
                let age = ages.find(gone, |_, _| {});
                ranks_of(member)
                    .into_iter()
                    .for_each(|ranks| visit(gone_member(member, ranks, age)));
            });
            let (state, reason) = self.state_of(node, member.filter(GroupMember::is_held));
            visit(NodeView {
                description: &node.description,
                node: Some(node),
                member: member
                    .and_then(|member| Some((member, ranks_of(member)?.first_global_rank))),
                state,
                reason: reason.or_else(|| (!node.attached).then_some("its stream has ended")),
                progress_age_ms: ages.find(id, |_, _| {}),
            });
        }
        for (gone, member) in members.rest() {
            let age = ages.find(gone, |_, _| {});
            ranks_of(member).into_iter().for_each(|ranks| visit(gone_member(member, ranks, age)));
        }
    }

    fn state_of(
        &self,
        node: &RosterNode,
        member: Option<GroupMember>,
    ) -> (NodeStateName, Option<&'static str>) {
        if let (Some(member), Some(group)) = (member, self.job.phase.group()) {
            return (member_state(group, member, node), None);
        }
        match node.report.state {
            NodeState::Leaving { .. } => (NodeStateName::Leaving, None),
            NodeState::Running | NodeState::Stopping | NodeState::Succeeded => {
                (NodeStateName::Stopping, None)
            }
            NodeState::Preparing => (NodeStateName::Preparing, None),
            // It must open another store first.
            NodeState::Ready { .. } if node.missed_round.is_some() => {
                (NodeStateName::Preparing, None)
            }
            NodeState::Ready { .. } => match self.why_waiting(node) {
                WaitReason::Gathering | WaitReason::Recovering | WaitReason::Ending => {
                    (NodeStateName::Joined, None)
                }
                WaitReason::NextRound => (NodeStateName::Waiting, None),
                WaitReason::Unhealthy => (NodeStateName::Unhealthy, None),
                WaitReason::Excluded => (NodeStateName::Excluded, None),
                WaitReason::Spare => {
                    let is_suspected = node.tally.suspicions(self.job.clock) > 0;
                    (NodeStateName::Spare, is_suspected.then_some(FAILED_LATELY))
                }
                WaitReason::Quarantined => {
                    (NodeStateName::Quarantined, Some(lost_because(EvictReason::Quarantined)))
                }
            },
        }
    }
}

/// Finds entries of a map by ascending id, in one pass.
struct InOrder<'a, V, I: Iterator<Item = (&'a NodeId, V)>>(Peekable<I>);

impl<'a, V, I: Iterator<Item = (&'a NodeId, V)>> InOrder<'a, V, I> {
    fn new(entries: I) -> Self {
        Self(entries.peekable())
    }

    /// Returns the value of `id`. Passes the entries of lower ids to `skipped`.
    fn find(&mut self, id: &NodeId, mut skipped: impl FnMut(&'a NodeId, V)) -> Option<V> {
        loop {
            let (other, _) = self.0.peek()?;
            // Usually they are the same text in memory. Reading it for each node would take longer than all
            // the rest.
            let is_it = other.is(id) || *other == id;
            if !is_it && *other > id {
                return None;
            }
            let (other, value) = self.0.next()?;
            if is_it {
                return Some(value);
            }
            skipped(other, value);
        }
    }

    /// Returns the remaining entries.
    fn rest(self) -> impl Iterator<Item = (&'a NodeId, V)> {
        self.0
    }
}

/// Returns the state of a member. A report about an older round does not count.
fn member_state(group: &Group, member: GroupMember, node: &RosterNode) -> NodeStateName {
    if node.report.round < group.round && group.started.is_some() {
        return NodeStateName::Running;
    }
    match node.report.state {
        NodeState::Preparing => NodeStateName::Preparing,
        NodeState::Ready { .. } if member.state == MemberState::Back => NodeStateName::Joined,
        NodeState::Ready { .. } => NodeStateName::Preparing,
        NodeState::Running => NodeStateName::Running,
        NodeState::Stopping if node.report.failure.is_some() => NodeStateName::Failed,
        NodeState::Stopping => NodeStateName::Stopping,
        NodeState::Succeeded => NodeStateName::Succeeded,
        NodeState::Leaving { .. } => NodeStateName::Leaving,
    }
}

/// A node, or a member that is gone.
struct NodeView<'a> {
    description: &'a Arc<NodeDescription>,
    /// The node; `None` if it is gone.
    node: Option<&'a RosterNode>,
    /// Its state as a member, and the `RANK` of its first worker, if it was a member when the round began.
    member: Option<(GroupMember, GlobalRank)>,
    state: NodeStateName,
    reason: Option<&'static str>,
    progress_age_ms: Option<u64>,
}

impl NodeView<'_> {
    fn silence_ms(&self, now: Instant) -> u64 {
        let silence = self.node.map(|node| now.saturating_duration_since(node.last_seen));
        silence.map_or(0, millis)
    }

    fn shared(&self, now: Instant) -> SharedNode {
        SharedNode {
            description: Arc::clone(self.description),
            is_attached: self.node.is_some_and(|node| node.attached),
            ranks: self.member.map(|(member, first_global_rank)| (member.rank, first_global_rank)),
            is_member: self.member.is_some_and(|(member, _)| member.is_held()),
            state: self.state,
            last_seen_ms: self.silence_ms(now),
            reason: self.reason,
            progress: self.node.and_then(|node| node.progress.clone()),
            progress_age_ms: self.progress_age_ms,
            standbys: self.node.and_then(|node| node.standbys.clone()),
            unhealthy: self
                .node
                .and_then(|node| Some(node.report.unhealthy.as_deref()?.reason.clone())),
            excluded: self.node.and_then(|node| node.excluded.clone()),
        }
    }
}

/// Returns a member that is gone.
fn gone_member(
    member: GroupMember,
    ranks: &MemberRanks,
    progress_age_ms: Option<u64>,
) -> NodeView<'_> {
    let reason = match member.state {
        MemberState::Lost(how) => lost_because(how),
        MemberState::Left
        | MemberState::Leaving
        | MemberState::Active
        | MemberState::Stopped
        | MemberState::Back => "it has left the job",
    };
    NodeView {
        description: &ranks.node,
        node: None,
        member: Some((member, ranks.first_global_rank)),
        state: NodeStateName::Lost,
        reason: Some(reason),
        progress_age_ms,
    }
}

fn lost_because(how: EvictReason) -> &'static str {
    match how {
        EvictReason::DeathNotice => "its agent has ended",
        EvictReason::Silent => "it sent no message within its lease",
        EvictReason::NotBack => "it was not ready for the next round in time",
        EvictReason::Quarantined => "it failed soon after it joined, or repeatedly",
    }
}

fn left(now: Instant, since: Instant, wait: Duration) -> Duration {
    after(since, wait).saturating_duration_since(now)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
