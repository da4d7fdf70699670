//! Simulates workers that make pauses, and nodes that answer looks. Its rules:
//!
//! - ae: no stall begins unless the workers of a round make no step for a minute, and for twice the longest pause that their coordinator
//!   knows.
//! - af: the first long pause of a job is a stall.
//! - ag: a stall ends when the workers make steps again.
//! - ah: a stall is explained within half a minute.
//! - ai: no explanation names a rank for which the others do not wait. Nodes also send what they cannot know.
//!
//! These worlds have random numbers of their own, so that the other worlds of a seed stay the same.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    event::{Event as JournalEvent, EventKind},
    ids::{GlobalRank, NodeId, Peer, RoundId},
    message::{
        Digest, FromNode, GroupLook, Guidance, Launched, Look, MemoryReport, NoticeKind, ToNode,
        WorkerLook,
    },
    settings::JobState,
    snapshot::PhaseName,
};

use super::{
    Bug, Event, FAULTY, World,
    fault::{Fault, Victim},
    port::Up,
};
use crate::{chronicle::Member, random::Random};

/// The pauses of a job, and the answers to looks.
#[derive(Debug)]
pub(super) struct Stalls {
    random: Random,
    pauses: Vec<Pause>,
    /// The longest pause that each coordinator knows.
    known: BTreeMap<NodeId, KnownPause>,
    /// The last time at which a pause might have had a reason, such as a notice.
    excused: Option<Instant>,
    /// The first answer of each node, for a bug.
    answers: BTreeMap<NodeId, Digest>,
    totals: StallTotals,
}

/// The numbers of a world with pauses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StallTotals {
    /// Stalls that have begun.
    pub began: u64,
    /// Stalls that have ended with a step.
    pub ended: u64,
    /// Stalls for which a rank was named.
    pub named: u64,
}

/// A pause of the workers, in which all wait for one.
#[derive(Clone, Copy, Debug)]
struct Pause {
    from: Instant,
    to: Instant,
    /// The place of the node with the worker for which the others wait.
    culprit: usize,
}

/// The longest pause that a coordinator knows, at least and at most. It may have had a reason, and does not count then.
#[derive(Clone, Copy, Debug, Default)]
struct KnownPause {
    least: Duration,
    most: Duration,
}

/// An event of a job with pauses.
#[derive(Debug)]
pub(super) enum StallEvent {
    /// A node answers a look.
    Answer(Peer, RoundId, Look),
    /// A pause is about to end.
    PauseEnds,
    /// The workers make steps since a while.
    Resumed,
}

/// The least time without a step that may be a stall: a minute, by clocks that drift.
const STALL_MIN: Duration = Duration::from_secs(58);

/// The time by which a coordinator may measure a pause shorter or longer than the workers: messages and processes are late.
const LATE: Duration = Duration::from_secs(8);

/// The time after which a stall is explained.
const EXPLAINED_AFTER: Duration = Duration::from_secs(33);

impl World {
    /// Creates a world whose workers make long pauses, apart from the faults and notices of other worlds.
    pub fn with_stalls(seed: u64, bug: Bug) -> Self {
        let mut world = Self::with_notices(seed, bug);
        world.add_pauses(seed);
        world
    }

    fn add_pauses(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x7374_616c_6c73);
        // The job should last.
        self.events.retain(|_, event| match event {
            Event::Fault(Fault::Notice { kind }) => *kind == NoticeKind::Save,
            Event::Fault(fault) => !matches!(
                fault,
                Fault::NoticeAt { .. }
                    | Fault::Succeeds
                    | Fault::Leave { .. }
                    | Fault::LoseHost { .. }
            ),
            _ => true,
        });
        self.faulty = FAULTY + Duration::from_secs(280);
        let mut pauses = Vec::new();
        let mut at = self.start + random.millis(50_000, 75_000);
        let end = self.start + self.faulty;
        while at < end {
            let lengths: &[u64] = match pauses.is_empty() && random.chance(60) {
                true => &[80, 100],
                false => &[10, 25, 80, 100, 130, 180],
            };
            let seconds = random.pick(lengths).unwrap_or(80);
            let to = at + Duration::from_secs(seconds);
            let culprit = usize::try_from(random.between(0, 99)).unwrap_or(0);
            pauses.push(Pause { from: at, to, culprit });
            self.schedule_at(to, Event::Stall(StallEvent::PauseEnds));
            self.schedule_at(to + Duration::from_secs(14), Event::Stall(StallEvent::Resumed));
            at = to + random.millis(18_000, 40_000);
        }
        for _ in 0..random.between(0, 2) {
            let at = random.millis(60_000, 300_000);
            self.schedule(at, Event::Fault(Fault::WorkerFails));
        }
        if self.fixed.is_some() && random.chance(60) {
            let at = random.millis(150_000, 250_000);
            let (victim, down) = (Victim::Host(0), random.millis(50, 2_000));
            self.schedule(at, Event::Fault(Fault::KillAgent { victim, down }));
        }
        self.train_steadily();
        self.stalls = Some(Box::new(Stalls {
            random,
            pauses,
            known: BTreeMap::new(),
            excused: None,
            answers: BTreeMap::new(),
            totals: StallTotals::default(),
        }));
    }

    /// Returns the numbers of stalls so far.
    pub fn stall_totals(&self) -> StallTotals {
        self.stalls.as_ref().map(|stalls| stalls.totals).unwrap_or_default()
    }

    /// Returns true while the workers make a pause.
    pub(super) fn is_in_pause(&self) -> bool {
        let is_in = |pause: &Pause| pause.from <= self.now && self.now < pause.to;
        self.stalls.as_ref().is_some_and(|stalls| stalls.pauses.iter().any(is_in))
    }

    /// Returns the rank that the others wait for, in the newest pause of a round.
    fn culprit(&self, round: RoundId) -> Option<GlobalRank> {
        let pauses = &self.stalls.as_ref()?.pauses;
        let pause = pauses.iter().rev().find(|pause| pause.from <= self.now)?;
        let members = self.chronicle.rounds.get(&round)?;
        let member = members.get(pause.culprit % members.len().max(1))?;
        Some(member.admission.first_global_rank)
    }

    /// Notes what a new coordinator knows about pauses.
    pub(super) fn begin_stalls_of_coordinator(&mut self, id: &NodeId, job_state: &mut JobState) {
        let Some(stalls) = &mut self.stalls else { return };
        let longest = job_state.training.longest_pause;
        stalls.known.insert(id.clone(), KnownPause { least: longest, most: longest });
        if self.bug == Bug::ForgottenPauses {
            job_state.training.longest_pause = Duration::ZERO;
        }
    }

    /// Notes that the pause of the workers may have a reason.
    pub(super) fn note_excuse(&mut self) {
        let now = self.now;
        if let Some(stalls) = &mut self.stalls {
            stalls.excused = Some(now);
        }
    }

    /// Notes a step of a round, after a pause.
    pub(super) fn note_pause(&mut self, round: RoundId, pause: Duration) {
        let Some(stalls) = &self.stalls else { return };
        let is_excused = stalls.excused.is_some_and(|at| self.now <= at + pause + LATE);
        if pause < LATE {
            return;
        }
        let leads = |(id, process): (&NodeId, &super::host::Process)| {
            let coordinator = process.port.coordination.running()?;
            (coordinator.rendezvous.newest_round() == round).then(|| id.clone())
        };
        let leading: Vec<NodeId> = self.processes.iter().filter_map(leads).collect();
        let Some(stalls) = &mut self.stalls else { return };
        for id in leading {
            let known = stalls.known.entry(id).or_default();
            known.most = pause.max(known.most);
            if !is_excused {
                known.least = pause.max(known.least);
            }
        }
    }

    /// Receives a look at an agent, which answers later. The bug changes it.
    pub(super) fn receive_look(&mut self, peer: &Peer, message: &mut ToNode) {
        let is_lost = self.bug == Bug::LostLook;
        let Some(stalls) = &mut self.stalls else { return };
        let ToNode::Guidance(Guidance { round, look, .. }) = message else { return };
        let Some(asked) = *look else { return };
        if is_lost {
            *look = None;
            return;
        }
        let takes = stalls.random.millis(10, 1_500);
        let answer = StallEvent::Answer(peer.clone(), *round, asked);
        self.schedule(takes, Event::Stall(answer));
    }

    /// Changes a message of an agent as a bug does.
    pub(super) fn forge_stalls_up(&mut self, peer: &Peer, message: &mut FromNode) {
        let host = self.processes.get(&peer.node).map(|process| process.host);
        if self.stalls.is_none() || host != Some(1) || self.elapsed() < FAULTY {
            return;
        }
        match (self.bug, message) {
            (Bug::HiddenSteps, FromNode::KeepAlive { progress, .. }) => *progress = None,
            (Bug::EternalWait, FromNode::KeepAlive { .. }) => {
                let agent = self.agent(&peer.node);
                let round = agent.map(|agent| agent.node.agent().known_round().round);
                let report = MemoryReport {
                    round: round.unwrap_or_default(),
                    waits_for_buffer: Some(GlobalRank(0)),
                    ..MemoryReport::default()
                };
                self.send_up(peer, Up::Message(Box::new(FromNode::MemoryReport(report))));
            }
            _ => {}
        }
    }

    pub(super) fn happen_in_stalls(&mut self, event: StallEvent) {
        match event {
            StallEvent::Answer(peer, round, look) => self.answer_look(&peer, round, look),
            StallEvent::PauseEnds => self.check_pause(),
            StallEvent::Resumed => self.check_resumed(),
        }
    }

    /// Lets a node answer a look. It also claims what it cannot know.
    fn answer_look(&mut self, peer: &Peer, round: RoundId, look: Look) {
        let id = &peer.node;
        if !self.runs_workers_of(id, round) {
            return;
        }
        let members = self.chronicle.rounds.get(&round).cloned().unwrap_or_default();
        let Some(own) = members.iter().find(|member| member.node == *id) else { return };
        let (culprit, is_paused) = (self.culprit(round), self.is_in_pause());
        let world_size = own.admission.world_size;
        // Collectives go on while there is no pause.
        let second = self.elapsed().as_secs();
        let number = if is_paused { 1_000 } else { 2_000 + second };
        let ranks = ranks_of(own);
        let launched = |ranks: Vec<GlobalRank>, number, is_finished| Launched {
            operation: "all_reduce".to_owned(),
            number,
            is_finished,
            count: u32::try_from(ranks.len()).unwrap_or(0),
            ranks,
        };
        let is_late = |rank: &GlobalRank| is_paused && Some(*rank) == culprit;
        let (late, waiting): (Vec<_>, Vec<_>) = ranks.iter().copied().partition(is_late);
        let mut lists = Vec::new();
        if !waiting.is_empty() {
            lists.push(launched(waiting, number, false));
        }
        if !late.is_empty() {
            lists.push(launched(late, number - 1, true));
        }
        // Ranks of other nodes are forged.
        let all = (0..world_size).map(GlobalRank);
        let forged = all.clone().filter(|rank| !ranks.contains(rank));
        lists.push(launched(forged.collect(), 6, true));
        let name = "world".to_owned();
        let groups = vec![GroupLook { name, size: world_size, launched: lists }];
        let stopped = |rank| WorkerLook { rank, state: Some('T'), ..WorkerLook::default() };
        let is_other = |rank: &GlobalRank| !ranks.contains(rank);
        let workers = all.filter(is_other).take(8).map(stopped).collect();
        let (facts, logs) = (Vec::new(), None);
        let part = look.part;
        let digest =
            Digest { round, look: look.number, part, workers, groups, facts, logs, is_cut: false };
        let Some(stalls) = &mut self.stalls else { return };
        let first = stalls.answers.entry(id.clone()).or_insert_with(|| digest.clone()).clone();
        let digest = match self.bug {
            Bug::OldDigest => Digest { round, look: look.number, part: look.part, ..first },
            _ => digest,
        };
        self.send_up(peer, Up::Message(Box::new(FromNode::Digest(digest))));
    }

    /// Returns the coordinators that lead a running round and were not paused lately, with the round.
    fn leaders_of_rounds(&self) -> Vec<(NodeId, RoundId)> {
        let leading: Vec<usize> = self.leading_hosts().collect();
        let now = self.now;
        let leads = |(id, process): (&NodeId, &super::host::Process)| {
            let coordinator = process.port.coordination.running()?;
            let host = self.hosts.get(process.host)?;
            let was_paused = host.thawed.is_some_and(|thawed| now < thawed + LATE);
            let is_leader = self.fixed.is_some() || leading.contains(&process.host);
            let is_awake = !was_paused && !host.is_suspended(now);
            (is_leader && is_awake).then(|| (id.clone(), coordinator.rendezvous.newest_round()))
        };
        self.processes.iter().filter_map(leads).collect()
    }

    /// Checks rules af and ah at the end of a pause.
    fn check_pause(&mut self) {
        for (id, round) in self.leaders_of_rounds() {
            let Some((first, last)) = self.steps_at(round) else { continue };
            let Some(stalls) = &self.stalls else { return };
            let known = stalls.known.get(&id).copied().unwrap_or_default();
            let is_excused = stalls.excused.is_some_and(|at| last <= at + LATE);
            let quiet = self.now.saturating_duration_since(last);
            let snapshot = self.snapshot_of(&id);
            let Some(snapshot) = snapshot.filter(|one| one.phase == PhaseName::Running) else {
                continue;
            };
            let members = self.chronicle.rounds.get(&round).cloned().unwrap_or_default();
            let all_run = members.iter().all(|member| self.runs_workers_of(&member.node, round));
            let is_long = quiet > STALL_MIN + 2 * LATE && known.most < STALL_MIN / 2 - LATE;
            // The coordinator must have learned the usual time between two steps.
            let is_long = is_long && last > first + 2 * LATE;
            match snapshot.stall {
                None if is_long && !is_excused && all_run => {
                    self.break_rule(|| {
                        format!("rule af: {round} at {id} is not stalled after {quiet:?}")
                    });
                }
                Some(stall) if stall.text.is_none() && all_run => {
                    let for_ms = stall.for_ms.saturating_sub(stall.limit_ms);
                    if Duration::from_millis(for_ms) > EXPLAINED_AFTER {
                        self.break_rule(|| format!("rule ah: {round} at {id}: {stall:?}"));
                    }
                }
                None | Some(_) => {}
            }
        }
    }

    /// Checks rule ag.
    fn check_resumed(&mut self) {
        if self.is_in_pause() {
            return;
        }
        for (id, round) in self.leaders_of_rounds() {
            let Some((_, last)) = self.steps_at(round) else { continue };
            let makes_steps = self.now < last + Duration::from_secs(2);
            let snapshot = self.snapshot_of(&id).filter(|_| makes_steps);
            if let Some(stall) = snapshot.and_then(|snapshot| snapshot.stall) {
                self.break_rule(|| format!("rule ag: {round} at {id} makes steps: {stall:?}"));
            }
        }
    }

    /// Checks rules ae and ai for an event of a coordinator.
    pub(super) fn check_stall_event(&mut self, id: &NodeId, event: &JournalEvent) {
        if self.stalls.is_none() {
            return;
        }
        let round = RoundId { term: event.id.term, round: event.round };
        match &event.kind {
            EventKind::StallBegan { step, .. } => {
                self.tell(|| format!("{id}: {:?}", event.kind));
                let last = self.steps_at(round).filter(|_| step.is_some());
                let quiet = last.map(|(_, last)| self.now.saturating_duration_since(last));
                let Some(stalls) = &mut self.stalls else { return };
                stalls.totals.began += 1;
                let known = stalls.known.get(id).copied().unwrap_or_default();
                let least = (known.least.saturating_sub(LATE) * 2).mul_f64(0.97).max(STALL_MIN);
                if quiet.is_none_or(|quiet| quiet < least) {
                    self.break_rule(|| {
                        format!(
                            "rule ae: {round} at {id} is stalled after {quiet:?}, knows {known:?}"
                        )
                    });
                }
            }
            EventKind::StallExplained { text, rank: Some(rank) } => {
                let culprit = self.culprit(round);
                if culprit != Some(*rank) {
                    let text = text.clone();
                    self.break_rule(|| {
                        format!("rule ai: {round} waits for {culprit:?}, not {text}")
                    });
                }
                if let Some(stalls) = &mut self.stalls {
                    stalls.totals.named += 1;
                }
            }
            EventKind::StallEnded { step: Some(_), .. } => {
                self.tell(|| format!("{id}: {:?}", event.kind));
                if let Some(stalls) = &mut self.stalls {
                    stalls.totals.ended += 1;
                }
            }
            EventKind::NoticeGiven { left_ms: Some(_), .. } | EventKind::NoticeOver { .. } => {
                self.note_excuse();
            }
            _ => {}
        }
    }
}

/// Returns the ranks of a member's workers.
fn ranks_of(member: &Member) -> Vec<GlobalRank> {
    let first = member.admission.first_global_rank.0;
    (first..first + member.local_world_size).map(GlobalRank).collect()
}
