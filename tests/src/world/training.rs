//! Simulates workers that train, save and fail, and the notices of their job. Its rules:
//!
//! - p: a phase ends at most a lease after its time, and at once when a member is lost.
//! - q: exit code 5 is given only if all ranks have saved one step for a notice, and no later round has worked. A leader that has lost its
//!   majority may have learned of work that its successor does not know, so a few seconds of work are allowed.
//! - r: no round begins with a node that has reported that it leaves, or while a node has reported that the job ends.
//! - s: a job without progress is closed only after as many charged rounds as its limit, which ended near one step. Their last steps
//!   may not have reached the coordinator.
//! - t: a job that all ranks have saved because it ends has not succeeded.
//! - u: a node that has received a notice does not end its round before the time is over, unless it receives a signal.
//! - v: a phase keeps its number.
//!
//! These worlds have random numbers of their own, so that the other worlds of a seed stay the same.

mod budget;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use ragent_core::{
    agent::{Ending, Received, SAVED, ShownNotice, Wanted},
    saves::SaveReport,
    signal::Signal,
    steps::NodeSteps,
};
use ragent_rendezvous::{
    event::{Event as JournalEvent, EventKind},
    ids::{JobUid, LocalRank, NodeId, Peer, Round, RoundId},
    message::{
        Checkpoint, FromNode, JobResult, NodeReport, NodeState, NoticeKind, RestartReason,
        StepSource, ToNode,
    },
    settings::{JobState, Leases},
    training::ChargedRound,
};

use self::budget::Budget;
use super::{Bug, Event, World, fault::Fault, node::AgentInput, rules::Stage};
use crate::random::Random;

/// The training of a job, and its notices.
#[derive(Debug)]
pub(super) struct Training {
    random: Random,
    /// True if the script reports its steps.
    reports_steps: bool,
    /// True if the script saves at intervals, without a notice.
    saves_at_intervals: bool,
    /// The step at which a worker fails, if one does, and by how much it grows after each failure.
    fails_at: Option<(u64, u64)>,
    /// The step from which the next round goes on.
    checkpoint: u64,
    rounds: BTreeMap<RoundId, RoundTraining>,
    plans: BTreeMap<(RoundId, u64), Plan>,
    /// The notice that the workers of each node see.
    shown: BTreeMap<NodeId, Shown>,
    /// The ranks that have saved a step for a notice; notice 0 is none.
    saved: BTreeMap<(RoundId, u64, u64), BTreeSet<(NodeId, LocalRank)>>,
    /// The steps that one rank has saved for all.
    whole: BTreeSet<(RoundId, u64, u64)>,
    /// The time by which each node that has received a notice must have time to save.
    noticed: BTreeMap<NodeId, Instant>,
    /// Nodes whose round ends for another reason: a signal, or the end of a lease.
    disturbed: BTreeSet<NodeId>,
    /// The first coordinator that has learned of each node's notice.
    learned: BTreeMap<NodeId, NodeId>,
    charged: BTreeSet<Round>,
    /// The phases that are over, by round and number.
    over: BTreeSet<(Round, u64)>,
    /// The phase of each coordinator, with the time by which it must be over.
    phases: BTreeMap<NodeId, (Round, Instant)>,
    /// Nodes whose workers have exited with 0 in a round.
    exited: BTreeSet<(Round, NodeId)>,
    /// The round in whose phase a member was lost, until the round ends.
    lost_in_phase: Option<Round>,
    /// The members that were admitted to each round.
    admitted: BTreeSet<(RoundId, NodeId)>,
    /// The jobs that a coordinator has closed.
    closed: BTreeSet<JobUid>,
    /// True if another job has begun since, whose hosts no longer know the first one. The world ends then.
    is_another_job: bool,
    /// The charges. `None` for jobs whose rules do not count them.
    budget: Option<Box<Budget>>,
    broken: Option<String>,
    totals: NoticeTotals,
}

/// The numbers of a world with notices.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NoticeTotals {
    /// Phases that were complete.
    pub complete: u64,
    /// Phases whose time was over.
    pub incomplete: u64,
    /// Agents that ended with exit code 5.
    pub saved: u64,
    /// Jobs that were closed without progress.
    pub stuck: u64,
    /// Rounds that have forgiven failures.
    pub forgiven: u64,
    /// Jobs that were closed because their budget was spent, if the world knows what is forgiven.
    pub spent: u64,
}

#[derive(Debug)]
struct RoundTraining {
    /// The step before its first one.
    first: u64,
    /// The time since which the workers of all members run.
    since: Option<Instant>,
    /// True if a worker has failed, so that the others wait for it.
    has_failed: bool,
    /// The highest step that was reported.
    highest: Option<u64>,
    /// The times of the first and the last report.
    worked: Option<(Instant, Instant)>,
}

/// The answer of the workers to a notice.
#[derive(Clone, Debug)]
struct Plan {
    way: Way,
    at: Instant,
    /// The step that they save. It is chosen when the first of them saves.
    step: Option<u64>,
    /// True if they exit with 0 after it.
    exits: bool,
    /// The host that is the exception.
    exception: usize,
    kind: NoticeKind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// All ranks save the same step.
    Same,
    /// Each node saves another step, and then all the same one.
    Different,
    /// One node never saves.
    OneNever,
    /// One rank saves the parts of all.
    Whole,
}

#[derive(Clone, Copy, Debug)]
struct Shown {
    round: RoundId,
    number: u64,
    ends_round: bool,
}

/// An event of the training.
#[derive(Debug)]
pub(super) enum TrainingEvent {
    /// The workers of a round on a node make steps.
    Step(NodeId, RoundId),
    /// The workers of a node answer a notice. True if it is their last answer.
    Answer(NodeId, RoundId, u64, bool),
    /// A rank saves a step, for a notice or none. True if it saves the parts of all ranks.
    Save(NodeId, RoundId, LocalRank, u64, u64, bool),
}

const STEP: Duration = Duration::from_millis(400);

/// The steps between two checkpoints without a notice.
const INTERVAL: u64 = 10;

/// The highest difference between the steps at which rounds without progress have ended.
const END_GAP: u64 = 4;

/// The time after the last fault in which a job that was closed may still inform an agent.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(50);

/// The work of a later round that may be unknown to the coordinator that closes the job.
const UNKNOWN_WORK: Duration = Duration::from_secs(6);

/// The time by which a deadline may be applied late: a process that was paused postpones it.
const LATE: Duration = Duration::from_secs(5);

impl World {
    /// Creates a world whose workers train and save, and whose job receives notices. It has one endpoint, or voters.
    pub fn with_notices(seed: u64, bug: Bug) -> Self {
        let mut world = if seed.is_multiple_of(2) {
            Self::with_fixed_coordinator(seed, bug)
        } else {
            Self::new(seed, bug)
        };
        world.train(seed);
        world
    }

    fn train(&mut self, seed: u64) {
        let mut random = Random::new(seed ^ 0x6e6f_7469_6365);
        self.shared.notice =
            if random.chance(10) { Duration::ZERO } else { random.millis(2_000, 10_000) };
        self.shared.no_progress_limit = random.pick(&[0, 2, 3, 3]).unwrap_or(3);
        // A state file of another run may have as many charges as before.
        let restarts = random.pick(&[0, 2, 6, 9]).unwrap_or(6);
        self.shared.max_restarts = self.shared.max_restarts.max(restarts);
        let fails_at = random.chance(35).then(|| {
            let growth = random.pick(&[0, 0, 0, 1, 3]).unwrap_or(0);
            (random.between(2, 12), growth)
        });
        for _ in 0..random.between(1, 3) {
            let at = random.millis(4_000, 22_000);
            let kind = random.pick(&[NoticeKind::Leave, NoticeKind::Leave, NoticeKind::End]);
            self.schedule(
                at,
                Event::Fault(Fault::Notice { kind: kind.unwrap_or(NoticeKind::End) }),
            );
        }
        if random.chance(40) {
            let at = random.millis(3_000, 20_000);
            self.schedule(at, Event::Fault(Fault::Notice { kind: NoticeKind::Save }));
        }
        let all_leave = random.millis(6_000, 20_000);
        if random.chance(25) {
            for host in 0..self.hosts.len() {
                let at = all_leave + random.millis(0, 3_000);
                self.schedule(at, Event::Fault(Fault::NoticeAt { host }));
            }
        }
        self.training = Some(Box::new(Training {
            reports_steps: random.chance(80),
            saves_at_intervals: random.chance(60),
            fails_at,
            checkpoint: 0,
            rounds: BTreeMap::new(),
            plans: BTreeMap::new(),
            shown: BTreeMap::new(),
            saved: BTreeMap::new(),
            whole: BTreeSet::new(),
            noticed: BTreeMap::new(),
            disturbed: BTreeSet::new(),
            learned: BTreeMap::new(),
            charged: BTreeSet::new(),
            over: BTreeSet::new(),
            phases: BTreeMap::new(),
            exited: BTreeSet::new(),
            lost_in_phase: None,
            admitted: BTreeSet::new(),
            closed: BTreeSet::new(),
            is_another_job: false,
            budget: None,
            broken: None,
            totals: NoticeTotals::default(),
            random,
        }));
    }

    /// Returns true if a bug keeps the coordinator of a process from applying its deadlines.
    pub(super) fn ignores_deadlines(&self, id: &NodeId) -> bool {
        let is_in_phase =
            || self.training.as_ref().is_some_and(|training| training.phases.contains_key(id));
        self.bug == Bug::NoTimeouts || self.bug == Bug::EndlessPhase && is_in_phase()
    }

    /// Returns the numbers of notices so far.
    pub fn notice_totals(&self) -> NoticeTotals {
        self.training.as_ref().map(|training| training.totals).unwrap_or_default()
    }

    /// Gives a notice to a random node.
    pub(super) fn give_notice(&mut self, kind: NoticeKind) {
        let ids: Vec<NodeId> = self.processes.keys().cloned().collect();
        let Some(training) = &mut self.training else { return };
        let Some(id) = training.random.pick(&ids) else { return };
        self.give_notice_to(&id, kind);
    }

    /// Gives a node the notice that it leaves.
    pub(super) fn give_notice_at(&mut self, host: usize) {
        if let Some(id) = self.hosts.get(host).and_then(|host| host.process.clone()) {
            self.give_notice_to(&id, NoticeKind::Leave);
        }
    }

    fn give_notice_to(&mut self, id: &NodeId, kind: NoticeKind) {
        self.tell(|| format!("{id} receives a notice: {}", kind.name()));
        let Some(training) = &mut self.training else { return };
        let within = match training.random.chance(50) {
            true => Some(training.random.millis(1_000, 12_000)),
            false => None,
        };
        self.wake_agent(id, Duration::ZERO, AgentInput::Notice(kind, within));
    }

    /// Gives the agent of a node a notice.
    pub(super) fn notify(
        &mut self,
        id: &NodeId,
        now: Instant,
        kind: NoticeKind,
        within: Option<Duration>,
    ) {
        let longest = self.shared.notice;
        let left = within.map_or(longest, |within| within.min(longest));
        let is_early = self.bug == Bug::EarlyLeaver;
        let until = self.now + left.mul_f64(0.97);
        let Some(agent) = self.agent(id) else { return };
        if kind == NoticeKind::Save {
            // It does not count without a round.
            let _ = agent.node.tell(now, |agent| agent.handle_request(now, Wanted::Save));
            return;
        }
        let ends_job = kind == NoticeKind::End;
        let received = Received { ends_job, within, text: "SIGTERM".to_owned() };
        let taken = agent.node.tell(now, |agent| agent.handle_notice(now, received)).is_ok();
        // A node whose workers are being stopped has nothing to wait for.
        let report = agent.node.agent().report(now);
        let waits = report.notice.is_some() && report.state != NodeState::Stopping;
        if is_early && !ends_job {
            agent.node.tell(now, |agent| agent.handle_signal(now, Signal::TERM));
        }
        let Some(training) = self.training.as_mut().filter(|_| taken && waits) else { return };
        let known = training.noticed.entry(id.clone()).or_insert(until);
        *known = until.min(*known);
    }

    /// Notes that the round of a node ends for another reason than a notice.
    pub(super) fn note_disturbed(&mut self, id: &NodeId) {
        if let Some(training) = &mut self.training {
            training.disturbed.insert(id.clone());
        }
    }

    /// Notes that a worker of a round has failed.
    pub(super) fn note_failed(&mut self, round: RoundId) {
        let of_round = self.training.as_mut().and_then(|training| training.rounds.get_mut(&round));
        if let Some(of_round) = of_round {
            of_round.has_failed = true;
        }
    }

    /// Lets the script report its steps. No worker fails by itself.
    pub(super) fn train_steadily(&mut self) {
        if let Some(training) = &mut self.training {
            (training.fails_at, training.reports_steps) = (None, true);
        }
    }

    /// Returns the times of the first and the last step of a round, if it has made one.
    pub(super) fn steps_at(&self, round: RoundId) -> Option<(Instant, Instant)> {
        self.training.as_ref()?.rounds.get(&round)?.worked
    }

    /// Notes that the workers of a round on a node have exited with 0.
    pub(super) fn note_exited(&mut self, id: &NodeId, round: RoundId) {
        self.note_excuse();
        if let Some(training) = &mut self.training {
            training.exited.insert((round.round, id.clone()));
        }
    }

    /// Begins the training of workers that have started.
    pub(super) fn begin_training(&mut self, id: &NodeId, round: RoundId) {
        let Some(training) = &mut self.training else { return };
        let first = training.checkpoint;
        let new =
            RoundTraining { first, since: None, has_failed: false, highest: None, worked: None };
        training.rounds.entry(round).or_insert(new);
        let pause = training.random.millis(200, 1_200);
        self.schedule(pause, Event::Training(TrainingEvent::Step(id.clone(), round)));
    }

    pub(super) fn happen_in_training(&mut self, event: TrainingEvent) {
        match event {
            TrainingEvent::Step(id, round) => self.make_steps(&id, round),
            TrainingEvent::Answer(id, round, number, is_last) => {
                self.answer_notice(&id, round, number, is_last);
            }
            TrainingEvent::Save(id, round, rank, notice, step, is_whole) => {
                self.save(&id, round, rank, notice, step, is_whole);
            }
        }
    }

    /// Returns the members of a round with the numbers of their workers.
    fn members_of(&self, round: RoundId) -> Vec<(NodeId, u32)> {
        let members = self.chronicle.rounds.get(&round).into_iter().flatten();
        members.map(|member| (member.node.clone(), member.local_world_size)).collect()
    }

    /// Returns the step that the workers of a round have reached. It grows while all run.
    fn step_of(&mut self, round: RoundId) -> Option<u64> {
        let all_run = self.members_of(round).iter().all(|(id, _)| self.runs_workers_of(id, round));
        let now = self.now;
        let of_round = self.training.as_mut()?.rounds.get_mut(&round)?;
        if !all_run || of_round.has_failed {
            return of_round.highest;
        }
        let since = *of_round.since.get_or_insert(now);
        let made = now.saturating_duration_since(since).as_millis() / STEP.as_millis();
        Some(of_round.first + u64::try_from(made).unwrap_or(0))
    }

    fn make_steps(&mut self, id: &NodeId, round: RoundId) {
        if !self.runs_workers_of(id, round) {
            return;
        }
        let step = self.step_of(round);
        let members = self.members_of(round);
        let Some(training) = &mut self.training else { return };
        let pause = training.random.millis(300, 600);
        self.schedule(pause, Event::Training(TrainingEvent::Step(id.clone(), round)));
        let Some(step) = step.filter(|_| !self.is_in_pause()) else { return };
        self.report_step(id, round, step);
        let Some(training) = &mut self.training else { return };
        let is_due = training.saves_at_intervals && step.is_multiple_of(INTERVAL) && step > 0;
        let is_first = members.first().is_some_and(|(first, _)| first == id);
        let fails = training.reports_steps
            && training.fails_at.is_some_and(|(at, _)| at <= step)
            && is_first;
        if fails && let Some((at, growth)) = &mut training.fails_at {
            *at += *growth;
            self.schedule(Duration::ZERO, Event::WorkerFails(id.clone(), round));
            return self.fail_others(round);
        }
        if is_due && let Some((_, workers)) = members.iter().find(|(member, _)| member == id) {
            for rank in (0..*workers).map(LocalRank) {
                self.save(id, round, rank, 0, step, false);
            }
        }
    }

    fn report_step(&mut self, id: &NodeId, round: RoundId, step: u64) {
        let now = self.now;
        let Some(local) = self.local(id) else { return };
        let Some(training) = &mut self.training else { return };
        let (source, reports) = (StepSource::Reported, training.reports_steps);
        let mut pause = None;
        if let Some(of_round) = training.rounds.get_mut(&round) {
            if of_round.highest.is_none_or(|highest| highest < step) {
                let (first, last) = of_round.worked.unwrap_or((now, now));
                of_round.worked = Some((first, now));
                pause = Some(now.saturating_duration_since(last));
            }
            of_round.highest = of_round.highest.max(Some(step));
        }
        if let Some(pause) = pause {
            self.note_pause(round, pause);
        }
        let Some(agent) = self.agent(id) else { return };
        let Some(group) = agent.group.as_mut().filter(|group| group.round == round) else { return };
        if !reports {
            return;
        }
        for rank in (0..agent.description.local_world_size.get()).map(LocalRank) {
            group.saves.handle_step(rank, step);
        }
        let steps = NodeSteps { source, lowest: step, highest: step, total: None, at: local };
        agent.node.tell(local, |agent| agent.handle_steps(steps));
    }

    /// Shows a notice to the workers of a node, which answer it.
    pub(super) fn show_notice(&mut self, id: &NodeId, notice: Option<Box<ShownNotice>>) {
        let now = self.now;
        let hosts = self.hosts.len() as u64;
        let Some(round) = self.agent(id).map(|agent| agent.node.agent().known_round().round) else {
            return;
        };
        let Some(training) = &mut self.training else { return };
        let Some(notice) = notice else {
            training.shown.remove(id);
            return;
        };
        let (number, kind) = (notice.notice.number, notice.notice.kind);
        let shown = Shown { round, number, ends_round: notice.until.is_some() };
        let before = training.shown.insert(id.clone(), shown);
        if let Some(before) = before.filter(|before| before.number != number && before.ends_round)
            && before.round == round
            && !training.over.contains(&(round.round, before.number))
        {
            self.break_rule(|| {
                format!("rule v: {id} sees notice {number} instead of {}", before.number)
            });
        }
        let Some(training) = &mut self.training else { return };
        let random = &mut training.random;
        let plan = training.plans.entry((round, number)).or_insert_with(|| {
            let way = match random.between(1, 100) {
                1..=60 => Way::Same,
                61..=75 => Way::Different,
                76..=85 => Way::OneNever,
                _ => Way::Whole,
            };
            let at = now + random.millis(100, 2_500);
            let exits = random.chance(30);
            let exception = usize::try_from(random.between(0, hosts - 1)).unwrap_or(0);
            Plan { way, at, step: None, exits, exception, kind }
        });
        plan.kind = plan.kind.max(kind);
        let at = plan.at.max(now) + random.millis(0, 1_000);
        let is_new = before.is_none_or(|before| (before.round, before.number) != (round, number));
        if is_new {
            let answer = TrainingEvent::Answer(id.clone(), round, number, false);
            self.schedule_at(at, Event::Training(answer));
        }
        if self.bug == Bug::OldAnswer && is_new {
            self.answer_with_old_checkpoint(id, round, number);
        }
    }

    /// Reports the newest checkpoint of a node as the answer to a notice.
    fn answer_with_old_checkpoint(&mut self, id: &NodeId, round: RoundId, number: u64) {
        let Some(training) = &self.training else { return };
        let is_old = |(of, notice, _): &&(RoundId, u64, u64)| *of == round && *notice < number;
        let old = training.saved.keys().filter(is_old).max_by_key(|(_, _, step)| *step);
        let Some(step) = old.map(|(_, _, step)| *step) else { return };
        let Some(now) = self.local(id) else { return };
        let Some(agent) = self.agent(id) else { return };
        let Some(group) = agent.group.as_mut().filter(|group| group.round == round) else { return };
        for rank in (0..agent.description.local_world_size.get()).map(LocalRank) {
            let step = Some(step);
            group
                .saves
                .handle_report(rank, SaveReport { step, notice: number, ..SaveReport::default() });
        }
        let saves = group.saves.saves();
        agent.node.tell(now, |agent| agent.handle_saves(now, saves));
        self.settle_agent(id);
    }

    /// Lets the workers of a node answer a notice.
    fn answer_notice(&mut self, id: &NodeId, round: RoundId, number: u64, is_last: bool) {
        if !self.runs_workers_of(id, round) {
            return;
        }
        let Some(host) = self.keepers.get(id).map(|keeper| keeper.host) else { return };
        let Some(reached) = self.step_of(round) else { return };
        let workers = self.agent(id).map_or(0, |agent| agent.description.local_world_size.get());
        let Some(training) = &mut self.training else { return };
        let Some(plan) = training.plans.get_mut(&(round, number)) else { return };
        let step = *plan.step.get_or_insert(reached);
        let plan = plan.clone();
        let is_exception = plan.exception == host;
        let other_step = step.saturating_sub(host as u64);
        let (step, ranks, is_whole) = match plan.way {
            Way::Same => (step, workers, false),
            Way::Different if is_last => (step + 2, workers, false),
            Way::Different => (other_step, workers, false),
            Way::OneNever => (step, if is_exception { 0 } else { workers }, false),
            Way::Whole => (step, u32::from(is_exception), true),
        };
        let spread = training.random.chance(30);
        let mut last = Duration::ZERO;
        for rank in (0..ranks).map(LocalRank) {
            let Some(training) = &mut self.training else { return };
            last = if spread { training.random.millis(0, 600) } else { Duration::ZERO };
            let save = TrainingEvent::Save(id.clone(), round, rank, number, step, is_whole);
            self.schedule(last, Event::Training(save));
        }
        let Some(training) = &mut self.training else { return };
        if plan.way == Way::Different && !is_last {
            let pause = STEP * 3 + training.random.millis(0, 300);
            let answer = TrainingEvent::Answer(id.clone(), round, number, true);
            return self.schedule(pause, Event::Training(answer));
        }
        let ends_round = plan.kind > NoticeKind::Save;
        if plan.exits && ends_round && (ranks > 0 || plan.way == Way::Whole) {
            let pause = last.max(Duration::from_millis(600)) + training.random.millis(1, 500);
            self.schedule(pause, Event::Succeeds(id.clone(), round));
        }
    }

    /// Lets a rank save a step.
    fn save(
        &mut self,
        id: &NodeId,
        round: RoundId,
        rank: LocalRank,
        notice: u64,
        step: u64,
        is_whole: bool,
    ) {
        if !self.runs_workers_of(id, round) {
            return;
        }
        self.report_step(id, round, step);
        let members = self.members_of(round);
        let Some(training) = &mut self.training else { return };
        let key = (round, notice, step);
        training.saved.entry(key).or_default().insert((id.clone(), rank));
        if is_whole {
            training.whole.insert(key);
        }
        if training.have_all_saved(key, &members) {
            training.checkpoint = training.checkpoint.max(step);
        }
        let plan = training.plans.get(&(round, notice)).filter(|plan| plan.way == Way::Different);
        let lowest = plan.and_then(|plan| plan.step).filter(|_| self.bug == Bug::LowestStep);
        // The nodes differ by the numbers of their hosts.
        let lowest = lowest.map(|lowest| (lowest + 1).saturating_sub(self.hosts.len() as u64));
        let reported = lowest.unwrap_or(step);
        let reports_steps = training.reports_steps;
        let Some(now) = self.local(id) else { return };
        let Some(agent) = self.agent(id) else { return };
        let Some(group) = agent.group.as_mut().filter(|group| group.round == round) else { return };
        let report = SaveReport { step: Some(reported), is_whole, notice, ..SaveReport::default() };
        group.saves.handle_report(rank, report);
        let saves = group.saves.saves();
        if !reports_steps {
            let source = StepSource::Saved;
            let steps = NodeSteps { source, lowest: step, highest: step, total: None, at: now };
            agent.node.tell(now, |agent| agent.handle_steps(steps));
        }
        agent.node.tell(now, |agent| agent.handle_saves(now, saves));
        self.settle_agent(id);
    }

    /// Notes what a node has reported to a coordinator, and changes it as a bug does. A report on an earlier stream
    /// than the newest is repeated on that one.
    pub(super) fn note_report(&mut self, id: &NodeId, peer: &Peer, report: &mut NodeReport) {
        let from = &peer.node;
        let bug = self.bug;
        let Some(training) = &mut self.training else { return };
        let is_known_before = report.notice.is_some()
            && training.learned.entry(from.clone()).or_insert_with(|| id.clone()) != id;
        let ends_job = report.notice.as_ref().map(|notice| notice.ends_job);
        let coordinator = self.port(id).and_then(|port| port.coordination.coordinator());
        let is_newer = |other: &&Peer| other.node == *from && other.stream > peer.stream;
        if let Some(coordinator) = coordinator
            && !coordinator.open.iter().any(|open| is_newer(&open))
        {
            match ends_job {
                Some(ends_job) => drop(coordinator.noticed.insert(from.clone(), ends_job)),
                None => drop(coordinator.noticed.remove(from)),
            }
        }
        if bug == Bug::ForgottenNotice && is_known_before {
            report.notice = None;
        }
        if bug == Bug::ExitIsSuccess && report.state == NodeState::Succeeded {
            report.saved = None;
        }
    }

    /// Changes a message of an agent as a bug does.
    pub(super) fn forge_message(&self, message: &mut FromNode) {
        let Some(training) = &self.training else { return };
        let seconds = self.elapsed().as_secs();
        match (self.bug, message) {
            (Bug::UnnoticedWork, FromNode::KeepAlive { progress, checkpoint, .. })
                if training.totals.complete > 0 =>
            {
                (*progress, *checkpoint) = (None, None);
            }
            (Bug::ExitIsSuccess, FromNode::NodeReport(report)) => report.saved = None,
            (Bug::FalseProgress, FromNode::KeepAlive { checkpoint, .. }) => {
                *checkpoint = Some(Checkpoint { step: seconds, is_whole: true, cost: None });
            }
            _ => {}
        }
    }

    /// Changes a message of the coordinator as a bug does.
    pub(super) fn forge_guidance(&self, message: &mut ToNode) {
        if let (Bug::NewNumber, ToNode::Guidance(guidance)) = (self.bug, message)
            && let Some(notice) = &mut guidance.notice
        {
            notice.number = notice.number * 10 + notice.kind as u64;
        }
    }

    /// Notes the state of the job that a new leader has found. Without one, it begins another job.
    pub(super) fn note_leadership(&mut self, job_state: Option<&JobState>) {
        if let Some(training) = &mut self.training {
            let is_known = job_state.is_some_and(|job| training.closed.contains(&job.job_uid));
            training.is_another_job |= !training.closed.is_empty() && !is_known;
        }
    }

    /// Changes the state of a job with which a coordinator begins, as a bug does.
    pub(super) fn forge_charges(&self, job_state: &mut JobState) {
        let charged = &mut job_state.training.charged_rounds;
        if self.bug == Bug::FreeRoundsCount
            && let Some(last) = charged.last().cloned()
        {
            charged.push(ChargedRound { round: job_state.round, ..last });
        }
    }

    /// Checks rules p, s, u, ao and ap for an event of a coordinator.
    pub(super) fn check_event(&mut self, id: &NodeId, event: &JournalEvent) {
        self.check_budget(id, event);
        let is_told = matches!(
            event.kind,
            EventKind::FailureCharged { .. }
                | EventKind::NoticeGiven { .. }
                | EventKind::NoticeOver { .. }
                | EventKind::RoundEnded { .. }
                | EventKind::JobClosed { .. }
        );
        if is_told && self.training.is_some() {
            self.tell(|| format!("{id}: {:?}", event.kind));
        }
        let (now, round) = (self.now, event.round);
        let lease = Leases::default().coordinator;
        let is_end = matches!(event.kind, EventKind::JobClosed { .. });
        let coordinator = self.port(id).and_then(|port| port.coordination.coordinator());
        let closed = coordinator.filter(|_| is_end).map(|one| one.rendezvous.job_uid().clone());
        let Some(training) = &mut self.training else { return };
        training.closed.extend(closed);
        match &event.kind {
            EventKind::NoticeGiven { left_ms: Some(left_ms), .. } => {
                let until = now + Duration::from_millis(*left_ms).mul_f64(1.02) + lease + LATE;
                let known = training.phases.entry(id.clone()).or_insert((round, until));
                *known = (round, until.min(known.1));
            }
            EventKind::NoticeOver { notice, step, is_withdrawn, memory_step: _, .. } => {
                training.over.insert((round, *notice));
                training.phases.remove(id);
                match (step, is_withdrawn) {
                    (Some(_), _) => training.totals.complete += 1,
                    (None, false) => training.totals.incomplete += 1,
                    (None, true) => {}
                }
            }
            EventKind::NodeLost { was_member: true, .. } if training.phases.contains_key(id) => {
                let node = event.node.as_ref().map(|node| (round, node.node_id.clone()));
                if node.is_some_and(|node| !training.exited.contains(&node)) {
                    training.lost_in_phase = Some(round);
                }
            }
            EventKind::RoundEnded { reason } => {
                training.phases.remove(id);
                training.lost_in_phase = None;
                if let RestartReason::NodeLeft { host_name } = reason {
                    self.check_leaver(host_name);
                }
            }
            EventKind::JobClosed { result } => {
                training.phases.remove(id);
                training.lost_in_phase = None;
                if let JobResult::NoProgress { rounds, .. } = result {
                    let limit = self.shared.no_progress_limit as usize;
                    // The failure of the last one closes the job, so it uses no restart.
                    let mut before = rounds.iter().take(limit.saturating_sub(1));
                    let uncharged = before.find(|round| !training.charged.contains(round));
                    let ends = training.rounds.iter().filter(|(id, _)| rounds.contains(&id.round));
                    let ends: Vec<u64> = ends.filter_map(|(_, round)| round.highest).collect();
                    let (lowest, highest) = (ends.iter().min(), ends.iter().max());
                    let gap = lowest.zip(highest).map_or(0, |(lowest, highest)| highest - lowest);
                    if gap > END_GAP {
                        let rounds = rounds.clone();
                        self.break_rule(|| format!("rule s: closed after {rounds:?} at {ends:?}"));
                    } else if uncharged.is_some() || rounds.len() != limit || limit == 0 {
                        let rounds = rounds.clone();
                        self.break_rule(|| {
                            format!(
                                "rule s: closed after {rounds:?}, of which {uncharged:?} was free"
                            )
                        });
                    } else {
                        training.totals.stuck += 1;
                    }
                }
            }
            EventKind::CoordinatorStarted { .. } | EventKind::CoordinatorTookOver { .. } => {
                training.phases.remove(id);
            }
            EventKind::FailureCharged { .. } => {
                training.charged.insert(round);
            }
            _ => {}
        }
    }

    /// Checks rule u for a node that has left during a round.
    fn check_leaver(&mut self, host_name: &str) {
        let Some(training) = &self.training else { return };
        let is_it = |id: &NodeId| {
            let node = self.descriptions.get(id).filter(|_| self.processes.contains_key(id));
            node.is_some_and(|node| node.host_name == host_name)
        };
        let early = training.noticed.iter().find(|(id, until)| {
            self.now < **until && is_it(id) && !training.disturbed.contains(*id)
        });
        if let Some(id) = early.map(|(id, _)| id.clone()) {
            self.break_rule(|| format!("rule u: {id} has left before its time was over"));
        }
    }

    /// Checks rule p for all coordinators.
    fn check_phases(&mut self) {
        let Some(training) = &self.training else { return };
        let now = self.now;
        let is_over = |(id, (_, until)): &(&NodeId, &(Round, Instant))| {
            let Some(process) = self.processes.get(*id) else { return false };
            let host = &self.hosts[process.host];
            let runs = process.port.coordination.running().is_some();
            let was_paused = host.thawed.is_some_and(|thawed| now < thawed + LATE);
            runs && *until < now && !was_paused && !host.is_suspended(now)
        };
        let late = training.phases.iter().find(is_over);
        if let Some((id, round)) = late.map(|(id, (round, _))| (id.clone(), *round)) {
            self.break_rule(|| format!("rule p: the phase of {round} at {id} is not over"));
        }
    }

    /// Checks rule r for a member of a round that begins.
    pub(super) fn check_admission(&mut self, id: &NodeId, to: &NodeId, round: RoundId) {
        let Some(training) = &mut self.training else { return };
        let is_new = training.admitted.insert((round, to.clone()));
        let Some(now) = self.local(id).filter(|_| is_new) else { return };
        let Some(coordinator) = self.port(id).and_then(|port| port.coordination.coordinator())
        else {
            return;
        };
        let counts = |(node, ends_job): &(&NodeId, &bool)| **ends_job || *node == to;
        let noticed: Vec<_> = coordinator.noticed.iter().filter(counts).collect();
        if noticed.is_empty() {
            return;
        }
        let nodes = coordinator.rendezvous.snapshot(now).nodes;
        let is_known = |node: &NodeId| nodes.iter().any(|known| known.node_id == *node);
        let noticed = noticed.into_iter().find(|(node, _)| is_known(node));
        if let Some(node) = noticed.map(|(node, _)| node.clone()) {
            self.break_rule(|| format!("rule r: {round} begins with {to}, {node} has a notice"));
        }
    }

    /// Notes that a rule is broken; the first one counts.
    pub(super) fn break_rule(&mut self, why: impl FnOnce() -> String) {
        if let Some(training) = &mut self.training {
            training.broken.get_or_insert_with(why);
        }
    }

    /// Checks the rules of the training. Returns false at the end of the world.
    pub(super) fn check_training(&mut self) -> Result<bool, String> {
        self.check_phases();
        let lost = self.training.as_ref().and_then(|training| training.lost_in_phase);
        if let Some(round) = lost {
            self.break_rule(|| format!("rule p: {round} goes on in its phase without a member"));
        }
        let broken = self.training.as_mut().and_then(|training| training.broken.take());
        if let Some(broken) = broken {
            return Err(format!("{broken}, at {:?}", self.elapsed()));
        }
        let Some(training) = &self.training else { return Ok(true) };
        // A job was closed, but no agent has received the outcome. The hosts that are left may be too few for another one.
        let is_forgotten = !training.closed.is_empty()
            && matches!(self.stage, Stage::Quiet(since) if self.now > since + FORGOTTEN_AFTER);
        Ok(!training.is_another_job && (self.fixed.is_some() || !is_forgotten))
    }

    /// Checks rules q and t for an agent that has ended.
    pub(super) fn check_ending(&mut self, id: &NodeId, ending: &Ending) {
        if self.training.is_none() {
            return;
        }
        if ending.exit_code() == SAVED
            && let Err(why) = self.check_saved(ending)
        {
            self.break_rule(|| format!("rule q: {id} ends with 5, but {why}"));
        }
        let is_success =
            matches!(ending, Ending::Closed(outcome) if outcome.result == JobResult::Succeeded);
        let Some(training) = &self.training else { return };
        let newest = training.rounds.keys().max_by_key(|round| round.round).copied();
        let saved = training.saved.keys().chain(&training.whole).find(|key| {
            let (round, notice, _) = **key;
            let plan = training.plans.get(&(round, notice));
            Some(round) == newest
                && plan.is_some_and(|plan| plan.kind == NoticeKind::End)
                && training.have_all_saved(**key, &self.members_of(round))
        });
        if let Some(key) = saved.copied().filter(|_| is_success) {
            self.break_rule(|| format!("rule t: {id} ends with 0, but all have saved {key:?}"));
        }
        if ending.exit_code() == SAVED
            && let Some(training) = &mut self.training
        {
            training.totals.saved += 1;
        }
    }

    fn check_saved(&self, ending: &Ending) -> Result<(), String> {
        let Some(training) = &self.training else { return Ok(()) };
        let step = match ending {
            Ending::Closed(outcome) => match outcome.result {
                JobResult::Saved { step } => Some(step),
                _ => outcome.complete_step,
            },
            Ending::Unreachable { complete_step, .. } => *complete_step,
            Ending::Left { saved_step, .. } => *saved_step,
            _ => None,
        };
        let Some(step) = step else { return Err("no step is named".to_owned()) };
        let keys = training.saved.keys().chain(&training.whole);
        let complete = keys.filter(|key| {
            let (round, notice, saved) = **key;
            notice > 0 && saved == step && training.have_all_saved(**key, &self.members_of(round))
        });
        let Some(round) = complete.map(|(round, _, _)| *round).max_by_key(|round| round.round)
        else {
            return Err(format!("step {step} was not saved by all"));
        };
        let later = training.rounds.iter().find(|(later, of_round)| {
            let worked = of_round.worked.map(|(first, last)| last.saturating_duration_since(first));
            later.round > round.round && worked.is_some_and(|worked| worked > UNKNOWN_WORK)
        });
        match later {
            Some((later, of_round)) => {
                let step = of_round.highest;
                Err(format!("{later} has reached {step:?} after {round}"))
            }
            None => Ok(()),
        }
    }
}

impl Training {
    fn have_all_saved(&self, key: (RoundId, u64, u64), members: &[(NodeId, u32)]) -> bool {
        let has_saved = |id: &NodeId, rank| {
            self.saved.get(&key).is_some_and(|saved| saved.contains(&(id.clone(), rank)))
        };
        let all = members
            .iter()
            .all(|(id, workers)| (0..*workers).map(LocalRank).all(|rank| has_saved(id, rank)));
        self.whole.contains(&key) || all && !members.is_empty()
    }
}
