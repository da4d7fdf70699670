//! Simulates a job with one endpoint. The process on the first host coordinates it, and continues with its state file after a restart.
//!
//! Its rules are in [`invariants`](crate::invariants). In half of these worlds, an agent runs in the coordinator's process.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::{Duration, Instant},
};

use ragent_election::election::NewLeadership;
use ragent_rendezvous::{
    event::{Event as JournalEvent, EventKind},
    ids::{GroupRank, JobUid, NodeId, Round, RoundId, Term},
    message::{
        Assignment, JobResult, KnownRound, NodeDescription, Registration, ToNode, WaitReason,
    },
    settings::{JobState, NodeRange, SharedSettings},
    snapshot::Snapshot,
};

use super::{
    Bug, Event, World,
    fault::{Fault, Victim},
    host::Host,
    port::Leader,
    rules::Stage,
};
use crate::{invariants::RULES, replay::Replay};

/// A job that has one endpoint.
#[derive(Debug)]
pub(super) struct Fixed {
    /// True if an agent runs in the coordinator's process.
    pub(super) has_agent: bool,
    /// True if a node that finds a running round waits for its standbys.
    pub(super) has_standbys: bool,
    /// The state file.
    job_state: JobState,
    /// The state file of another run that existed at the start.
    planted: Option<JobState>,
    /// The last round to which the agent in the coordinator's process was admitted.
    known_round: KnownRound,
    /// The ranks of the hosts, if ranks are fixed.
    node_ranks: BTreeMap<usize, u32>,
    min_nodes: u32,
    /// A deadline that has passed and was applied, but is still waited for.
    overdue: Option<Instant>,
    /// The state of the job, from the journal alone.
    replay: Replay,
    /// The start of the coordinator by its clock, and the time of the job that was accounted for at that moment.
    accounted_since: (Instant, u64),
    /// True if the job and its coordinator have ended.
    is_finished: bool,
}

/// The host of the coordinator.
const HOST: usize = 0;

/// The time within which a job runs or ends after the last fault: two join timeouts, a recovery, a grace period and the leases.
const HEALS_WITHIN: Duration = Duration::from_secs(110);

impl World {
    /// Gives the job one endpoint.
    pub(super) fn fix_coordinator(&mut self, seed: u64) {
        self.events.clear();
        (self.listed, self.forgets) = (1, false);
        let bound = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let fixed_ranks = seed % 5 == 4;
        let min = self.random.between(1, 3);
        let max = self.random.between(min.max(2), min + 3);
        let (min, max) = (bound(if fixed_ranks { max } else { min }), bound(max));
        let least = if self.bug == Bug::FewerThanMin { 1 } else { min };
        let unit = if seed % 5 == 3 { 2 } else { 1 };
        let nodes = NodeRange::in_units(least, max, unit).or_else(|| NodeRange::new(least, max));
        let nodes = nodes.expect("min is at most max");
        self.shared = SharedSettings { nodes, fixed_ranks, ..self.shared };
        self.shared.timeouts.last_call = self.random.millis(500, 4_000);
        self.shared.timeouts.shrink = self.random.millis(0, 5_000);
        let has_agent = self.random.chance(50);
        let others = self.random.between(u64::from(!has_agent), u64::from(max) + 1);
        self.hosts = (0..=others).map(|_| Host::new(self.start, &mut self.random)).collect();
        let planted = self.random.chance(10).then(|| self.job_state_of_another_run());
        self.fixed = Some(Box::new(Fixed {
            has_agent,
            has_standbys: seed % 3 == 1,
            job_state: planted.clone().unwrap_or_else(|| JobState::new(JobUid::new("job"))),
            planted,
            known_round: KnownRound::default(),
            node_ranks: BTreeMap::new(),
            min_nodes: if self.bug == Bug::FewerThanMin { min } else { nodes.min() },
            overdue: None,
            replay: Replay::default(),
            accounted_since: (self.start, 0),
            is_finished: false,
        }));
        self.schedule(Duration::ZERO, Event::Start(HOST));
        // If nothing else happens then, more nodes are still added.
        self.schedule(super::FAULTY, Event::Start(HOST));
        for host in 1..self.hosts.len() {
            let delay = self.random.millis(1, 2_000);
            self.schedule(delay, Event::Start(host));
        }
        for _ in 0..self.random.between(0, 12) {
            let at = self.random.millis(0, 30_000);
            let fault = self.roll_fixed();
            self.schedule(at, Event::Fault(fault));
        }
    }

    /// Returns the state file of a run whose processes were all killed.
    fn job_state_of_another_run(&mut self) -> JobState {
        let bound = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let round = self.random.between(1, 9);
        JobState {
            term: Term(self.random.between(1, 5)),
            round: Round(round),
            round_size: bound(self.random.between(1, 4)),
            restarts_used: bound(self.random.between(0, u64::from(self.shared.max_restarts))),
            charged_through: Round(round - 1),
            ..JobState::new(JobUid::new("another"))
        }
    }

    fn roll_fixed(&mut self) -> Fault {
        let last = self.hosts.len() as u64 - 1;
        let host = usize::try_from(self.random.between(0, last)).unwrap_or_default();
        let (victim, coordinator) = (Victim::Host(host), Victim::Host(HOST));
        let down = self.random.millis(50, 5_000);
        let time = self.random.millis(100, 6_000);
        match self.random.between(1, 100) {
            1..=20 => Fault::WorkerFails,
            21..=42 => Fault::KillAgent { victim, down },
            43..=48 => Fault::KillHost { victim, down },
            49..=54 => Fault::Freeze { victim, time },
            55..=57 => Fault::Suspend { victim, time },
            58..=66 => Fault::StreamBreaks,
            67..=73 => Fault::Isolate { victim, receives: false, sends: false, time },
            74..=80 => Fault::KillAgent { victim: coordinator, down },
            81..=85 => Fault::DieHalfWay { victim: coordinator, after: self.random.between(0, 40) },
            86..=93 => Fault::Join,
            94..=97 => Fault::Leave { victim },
            _ => Fault::Succeeds,
        }
    }

    /// Starts a host that has never taken part.
    pub(super) fn join(&mut self) {
        self.hosts.push(Host::new(self.start, &mut self.random));
        let delay = self.random.millis(0, 1_000);
        self.schedule(delay, Event::Start(self.hosts.len() - 1));
    }

    /// Makes sure that there are enough nodes after the last fault.
    pub(super) fn complete_nodes(&mut self) {
        for _ in self.taking_part().count()..self.min_nodes() as usize {
            self.join();
        }
    }

    /// Returns the nodes that are not leaving.
    fn taking_part(&self) -> impl Iterator<Item = &NodeDescription> {
        let agents = self.processes.values().filter_map(|process| process.agent.as_ref());
        agents.filter(|agent| !agent.node.agent().is_leaving()).map(|agent| &agent.description)
    }

    /// Starts a killed process again. Workers of other nodes may fail because it was gone.
    pub(super) fn return_after(&mut self, host: usize, mut down: Duration) {
        if self.fixed.is_some() {
            let round = self.alive().map(|(_, round)| round).next();
            if let Some(round) = round {
                self.fail_others(round);
            }
            if host != HOST && !self.random.chance(70) {
                return;
            }
        }
        if self.bug == Bug::FalseDeathNotice {
            // The bug only matters while the host's old workers are alive.
            down = down.min(Duration::from_millis(100));
        }
        self.schedule(down, Event::Start(host));
    }

    /// Describes the agent that starts on a host, as far as only a world of this kind needs it.
    pub(super) fn describe(&mut self, host: usize, node: &mut NodeDescription) -> KnownRound {
        node.node_rank = self.node_rank(host);
        self.descriptions.insert(node.node_id.clone(), node.clone());
        let Some(fixed) = &self.fixed else { return KnownRound::default() };
        if host == HOST { fixed.known_round } else { KnownRound::default() }
    }

    /// Returns the rank of a host, if ranks are fixed. It never changes, and no other host has it while one is free. A surplus host has the
    /// rank of another host by mistake.
    fn node_rank(&mut self, host: usize) -> Option<u32> {
        if !self.shared.fixed_ranks {
            return None;
        }
        let taken: BTreeSet<u32> = self.taking_part().filter_map(|node| node.node_rank).collect();
        let size = self.shared.nodes.max();
        let free = (0..size).find(|rank| !taken.contains(rank));
        let ranks = &mut self.fixed.as_mut()?.node_ranks;
        Some(*ranks.entry(host).or_insert_with(|| free.unwrap_or(host as u32 % size)))
    }

    /// Changes the registration of an agent as a bug does.
    pub(super) fn forge_registration(&self, registration: &mut Registration) {
        match self.bug {
            Bug::Amnesia => {
                registration.known_round = KnownRound::default();
                registration.report.round = RoundId::default();
            }
            Bug::ForgottenCharges => registration.restarts_used = 0,
            _ => {}
        }
    }

    /// Lets the process on the first host coordinate the job with the content of its state file.
    pub(super) fn lead_alone(&mut self, id: &NodeId) {
        let now = self.hosts[HOST].local(self.now);
        let is_marked = self.random.chance(70);
        let Some(fixed) = &mut self.fixed else { return };
        if self.bug == Bug::Amnesia {
            fixed.job_state = JobState::new(fixed.job_state.job_uid.clone());
        }
        let mut job_state = fixed.job_state.clone();
        if let Some(host) = &mut job_state.host {
            // A keeper leaves a mark when no process is left, unless the keeper was killed too.
            let keeper = self.keepers.get(&host.node);
            let is_gone = keeper.is_none_or(|keeper| keeper.workers.is_none());
            host.is_confirmed_dead |= is_gone && is_marked || self.bug == Bug::FalseDeathNotice;
        }
        let before = u64::try_from(job_state.time.age().as_millis()).unwrap_or(u64::MAX);
        fixed.accounted_since = (now, before);
        // Assignments of its predecessor may never have arrived, so they do not bind the new one.
        self.chronicle.running.clear();
        let leadership = NewLeadership {
            term: Term(0),
            until: now,
            workers_until: now,
            former: None,
            job_state: Some(job_state),
            voters: Vec::new(),
        };
        if let Some(port) = self.port(id) {
            port.leader = Leader::Here(Box::new(leadership));
        }
        self.follow_leader(id);
    }

    /// Returns true if charges in the state file belong to this job, as under a service manager.
    pub(super) fn keeps_charges(&self) -> bool {
        self.planted().is_none() || self.bug == Bug::OthersCharges
    }

    /// Writes the state file. Returns false if the job has none.
    pub(super) fn write_file(&mut self, job_state: &JobState) -> bool {
        let Some(fixed) = &mut self.fixed else { return false };
        self.chronicle.job_states.push(job_state.clone());
        self.chronicle.has_news = true;
        fixed.job_state = job_state.clone();
        if self.bug == Bug::ForgottenCharges {
            fixed.job_state.restarts_used = 0;
        }
        true
    }

    /// Ends the world because the coordinator has ended. Returns false if another one may follow.
    pub(super) fn finish(&mut self) -> bool {
        self.fixed.as_mut().is_some_and(|fixed| {
            fixed.is_finished = true;
            true
        })
    }

    /// Notes the next deadline of the coordinator, after it has applied all that have passed.
    pub(super) fn note_deadline(&mut self, now: Instant, next: Option<Instant>) {
        if let Some(fixed) = &mut self.fixed {
            fixed.overdue = next.filter(|at| *at <= now);
        }
    }

    /// Adds an event to the journal.
    pub(super) fn journal(&mut self, event: &JournalEvent) {
        let now = self.hosts[HOST].local(self.now);
        let Some(fixed) = &mut self.fixed else { return };
        if let EventKind::RunBegan { .. } = event.kind {
            fixed.accounted_since = (now, 0);
        }
        let is_start = matches!(event.kind, EventKind::CoordinatorStarted { .. });
        if self.bug == Bug::Amnesia && is_start {
            // Rule 3 is to notice this bug.
            fixed.replay = Replay::default();
        }
        let is_dropped = match self.bug {
            Bug::LostEvents => matches!(event.kind, EventKind::NodeLost { .. }),
            Bug::LostStallEnds => matches!(event.kind, EventKind::StallEnded { .. }),
            _ => false,
        };
        if !is_dropped {
            fixed.replay.apply(event);
        }
    }

    /// Notes an assignment that the coordinator sends, and changes it as a bug does.
    pub(super) fn note_assignment(&mut self, to: &NodeId, message: &mut ToNode) {
        let is_hosts = self.hosts[HOST].process.as_ref() == Some(to);
        let ToNode::Assignment(assignment) = message else { return };
        let Some(node) = self.descriptions.get(to) else { return };
        let Assignment::Admit(admission) = assignment else {
            return self.chronicle.note(node, assignment);
        };
        if self.bug == Bug::DoubleRank && admission.group_rank == GroupRank(1) {
            admission.group_rank = GroupRank(0);
        }
        let (round, size) = (admission.round, admission.group_world_size);
        if let Some(fixed) = self.fixed.as_mut().filter(|_| is_hosts) {
            let group_rank = Some(admission.group_rank);
            fixed.known_round = KnownRound { round, size, group_rank };
        }
        self.chronicle.note(node, assignment);
        if self.bug == Bug::WaitingMember {
            self.chronicle
                .note(node, &Assignment::Wait { round, reason: WaitReason::Spare, memory: None });
        }
    }

    /// Checks the rules when nothing happens any more.
    pub(super) fn check_fixed_end(&mut self) -> Result<bool, String> {
        self.now += HEALS_WITHIN;
        self.check_fixed()
    }

    /// Checks the rules. Returns false at the end of the world: the job runs after the last fault, or has ended.
    pub(super) fn check_fixed(&mut self) -> Result<bool, String> {
        self.check_invariants()?;
        let is_finished = self.fixed.as_ref().is_some_and(|fixed| fixed.is_finished);
        let is_quiet = matches!(self.stage, Stage::Quiet(_));
        let has_healed = self.has_healed_with_memory() || is_quiet && self.runs();
        let goes_on = has_healed && self.heal_with_memory();
        Ok(!is_finished && (goes_on || !(has_healed || self.is_stuck())))
    }

    /// Checks the rules that have numbers. If other processes may coordinate, checks only those for the members of a round.
    pub(super) fn check_invariants(&mut self) -> Result<(), String> {
        let has_news = mem::take(&mut self.chronicle.has_news);
        let is_fixed = self.fixed.is_some();
        for (name, check) in RULES {
            // Most steps are keep-alives. Rules that these cannot break are not checked.
            let is_checked = match name.split(':').next() {
                Some("5" | "8" | "12") => is_fixed,
                Some("1" | "4" | "13") => has_news,
                _ => has_news && is_fixed,
            };
            if is_checked {
                check(self)
                    .map_err(|why| format!("rule {name}: {why}, at {:?}", self.elapsed()))?;
            }
        }
        Ok(())
    }

    /// Returns true if the job should have run or ended by now.
    pub fn is_stuck(&self) -> bool {
        let is_late = matches!(self.stage, Stage::Quiet(since) if self.now > since + HEALS_WITHIN);
        is_late && !self.has_healed_with_memory()
    }

    /// Returns true if the job has succeeded.
    pub fn has_succeeded(&self) -> bool {
        let outcome = self.chronicle.outcome.as_ref();
        outcome.is_some_and(|outcome| outcome.result == JobResult::Succeeded)
    }

    /// Returns the deadline that has passed and was applied, but is still waited for. `None` without one.
    pub fn overdue(&self) -> Option<Duration> {
        let at = self.fixed.as_ref()?.overdue?;
        Some(at.saturating_duration_since(self.start))
    }

    /// Returns the snapshot of the coordinator, if it runs.
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.snapshot_of(self.hosts[HOST].process.as_ref()?)
    }

    /// Returns the snapshot of the coordinator in a process, if it runs.
    pub(super) fn snapshot_of(&self, id: &NodeId) -> Option<Snapshot> {
        let process = self.processes.get(id)?;
        let coordinator = process.port.coordination.running()?;
        Some(coordinator.rendezvous.snapshot(self.hosts[process.host].local(self.now)))
    }

    /// Returns the settings that the job was started with.
    pub fn shared(&self) -> SharedSettings {
        self.shared
    }

    /// Returns the fewest nodes that a round may have.
    pub fn min_nodes(&self) -> u32 {
        self.fixed.as_ref().map_or_else(|| self.shared.nodes.min(), |fixed| fixed.min_nodes)
    }

    /// Returns the state file of another run that existed at the start, if one did.
    pub fn planted(&self) -> Option<&JobState> {
        self.fixed.as_ref()?.planted.as_ref()
    }

    /// Returns the state of the job, from the journal alone.
    pub fn replay_of_journal(&self) -> Option<&Replay> {
        self.fixed.as_ref().map(|fixed| &fixed.replay)
    }

    /// Returns the time in milliseconds that the coordinator has to account for.
    pub fn accounted_ms(&self) -> u64 {
        let now = self.hosts[HOST].local(self.now);
        let (since, before) = self.fixed.as_ref().map_or((now, 0), |fixed| fixed.accounted_since);
        let term = now.saturating_duration_since(since).as_millis();
        before.saturating_add(u64::try_from(term).unwrap_or(u64::MAX))
    }
}
