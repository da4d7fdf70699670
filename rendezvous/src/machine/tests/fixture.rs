//! A machine, its clock, and functions for events that return the effects of the machine.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

pub(super) use crate::fixture::{SECOND, describe, ready};
use crate::{
    effect::Effect,
    event::Event,
    fixture::{settings, some_instant},
    ids::{
        GlobalRank, GroupRank, JobUid, LocalRank, NodeId, Peer, Round, RoundId, RunId,
        StreamNumber, Term,
    },
    machine::Rendezvous,
    message::{
        Admission, Assignment, Checkpoint, CheckpointId, EvictReason, FromNode, Guidance,
        KnownRound, LookPart, NodeReport, NodeState, NoticeKind, Outcome, PROTOCOL_VERSION,
        RefuseReason, Registration, StepProgress, ToNode, Unhealthy, WaitReason, WorkerEnd,
        WorkerFailure,
    },
    settings::{JobState, NodeRange, Settings, SharedSettings},
};

/// The time for which nodes have waited for news of an earlier job: long enough for any first round.
const LONG: Duration = Duration::from_secs(3_600);

/// A machine, its clock, and the state of the nodes that send messages to it.
pub(super) struct Fixture {
    pub(super) machine: Rendezvous,
    pub(super) now: Instant,
    pub(super) shared: SharedSettings,
    pub(super) settings: Settings,
    /// The content of the state file.
    pub(super) job_state: JobState,
    /// The number of each node's newest stream.
    pub(super) registrations: BTreeMap<String, StreamNumber>,
    /// The round in which each node was last a member.
    pub(super) rounds: BTreeMap<String, RoundId>,
    pub(super) admissions: BTreeMap<String, Admission>,
    /// The journal.
    pub(super) events: Vec<Event>,
    /// What the nodes report about their machines.
    pub(super) unhealthy: BTreeMap<String, Unhealthy>,
    /// The last messages to each node about its memory.
    pub(super) memory: BTreeMap<String, MemoryNews>,
}

/// The last messages to a node about its memory: the checkpoint that is whole, the one that it keeps while it waits,
/// and the reason why memory is off.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct MemoryNews {
    pub(super) whole: Option<CheckpointId>,
    pub(super) kept: Option<CheckpointId>,
    pub(super) off: Option<String>,
}

/// An effect, reduced to what distinguishes it from others.
#[expect(clippy::large_enum_variant, reason = "a test compares a handful of them")]
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Did {
    /// `node` received this number of voters.
    Voters(&'static str, usize),
    /// `node` was welcomed.
    Welcome(&'static str),
    /// `node` was refused.
    Refuse(&'static str, RefuseReason),
    /// `node` was sent a wait.
    Wait(&'static str, WaitReason),
    /// `node` was admitted to that round with that rank.
    Admit(&'static str, u64, u32),
    /// `node` was informed that that round has ended.
    Restart(&'static str, u64),
    /// `node` was evicted.
    Evict(&'static str, EvictReason),
    /// `node` was probed.
    Probe(&'static str),
    /// `node` was dismissed.
    Dismiss(&'static str),
    /// `node` was sent the outcome.
    Close(&'static str),
    /// `node` was informed that the host leaves.
    HostLeaving(&'static str),
    /// `node` was sent this number of clients that the round's store has refused.
    RefusedClients(&'static str, usize),
    /// A keep-alive of `node` was echoed.
    Echo(&'static str),
    /// The state file was written, with this round and this number of restarts used.
    Remember(u64, u32),
    /// `node` has received this notice of the round, or that there is none any more.
    Notice(&'static str, Option<(u64, NoticeKind)>),
    /// `node` has received this part of the look with this number, and the rank of the node that asks NCCL.
    Look(&'static str, u64, LookPart),
    /// `node` was informed that the worker with this rank hangs; true if it is killed only after it was stopped for a while.
    Hung(&'static str, u32, bool),
    /// The stream of `node` was ended.
    HangUp(&'static str),
    /// The coordinator resigned because of this term.
    Resign(u64),
    /// The coordinator ended, so that another voter is elected.
    HandOver,
    /// The coordinator ended, and its voters are to forget the job.
    Forget,
    /// The coordinator may exit.
    Finish,
}

impl Fixture {
    /// Starts a coordinator for the first time, for `min` to `max` nodes and three restarts.
    pub(super) fn new(min: u32, max: u32) -> Self {
        Self::with(min, max, |_| {})
    }

    /// Does the same with other settings.
    pub(super) fn with(min: u32, max: u32, change: impl FnOnce(&mut SharedSettings)) -> Self {
        let nodes = NodeRange::new(min, max).expect("min <= max");
        let mut shared = SharedSettings { max_restarts: 3, ..SharedSettings::new(nodes) };
        change(&mut shared);
        let mut fixture = Self::start(settings(shared), shared, JobState::new(JobUid::new("uid")));
        fixture.drain();
        fixture
    }

    /// Starts a coordinator with the content of the state file.
    pub(super) fn start(settings: Settings, shared: SharedSettings, job_state: JobState) -> Self {
        let now = some_instant();
        Self {
            machine: Rendezvous::new(now, settings.clone(), job_state.clone(), None),
            now,
            shared,
            settings,
            job_state,
            registrations: BTreeMap::new(),
            rounds: BTreeMap::new(),
            admissions: BTreeMap::new(),
            events: Vec::new(),
            unhealthy: BTreeMap::new(),
            memory: BTreeMap::new(),
        }
    }

    /// Kills the coordinator's process and starts it again.
    pub(super) fn restart_coordinator(&mut self) -> Vec<Did> {
        self.machine =
            Rendezvous::new(self.now, self.settings.clone(), self.job_state.clone(), None);
        self.drain()
    }

    /// Makes `name` the node in the coordinator's process.
    pub(super) fn host(mut self, name: &str) -> Self {
        self.settings.host = Some(NodeId::new(name));
        self.job_state.term = Term(0);
        self.machine =
            Rendezvous::new(self.now, self.settings.clone(), self.job_state.clone(), None);
        self.drain();
        self
    }

    pub(super) fn registration_of(&mut self, name: &'static str, state: NodeState) -> Registration {
        let stream = self.registrations.entry(name.to_owned()).or_default();
        stream.0 += 1;
        let stream = *stream;
        let round = self.rounds.get(name).copied().unwrap_or_default();
        let admission = self.admissions.get(name);
        Registration {
            ended: Vec::new(),
            protocol_version: PROTOCOL_VERSION,
            run_id: RunId::new("run"),
            job: None,
            waited: LONG,
            job_uid: None,
            stream,
            node: describe(name),
            settings: self.shared,
            known_round: KnownRound {
                round,
                size: admission.map_or(0, |admission| admission.group_world_size),
                group_rank: admission.map(|admission| admission.group_rank),
            },
            restarts_used: admission.map_or(0, |admission| admission.restart_count),
            charged_through: Round(0),
            report: NodeReport {
                unhealthy: self.unhealthy.get(name).cloned().map(Box::new),
                ..NodeReport::new(round, state)
            },
            memory: None,
        }
    }

    /// Opens a stream of `name`, which is in `state`.
    pub(super) fn register(&mut self, name: &'static str, state: NodeState) -> Vec<Did> {
        let registration = self.registration_of(name, state);
        self.register_with(registration)
    }

    /// Opens a stream. An agent that knows of a round also knows the run.
    pub(super) fn register_with(&mut self, mut registration: Registration) -> Vec<Did> {
        if registration.known_round.round.round > Round(0) && registration.job_uid.is_none() {
            registration.job_uid = Some(self.job_state.job_uid.clone());
        }
        self.machine.handle_registration(self.now, registration);
        self.drain()
    }

    /// Opens a stream of `name`, which is ready.
    pub(super) fn join(&mut self, name: &'static str) -> Vec<Did> {
        self.register(name, ready())
    }

    /// Opens a stream of each of `names`, and runs a round of them all.
    pub(super) fn run(&mut self, names: &[&'static str]) {
        for name in names {
            self.join(name);
        }
        for _ in 0..60 {
            if self.admissions.len() == names.len() {
                break;
            }
            self.keep_all_alive();
            self.advance(SECOND);
        }
        assert_eq!(self.admissions.len(), names.len(), "a round of all has begun");
        for name in names {
            self.report(name, NodeState::Running);
        }
    }

    pub(super) fn node_report(
        &mut self,
        name: &str,
        state: NodeState,
        failure: Option<WorkerFailure>,
    ) -> FromNode {
        let round = self.rounds.get(name).copied().unwrap_or_default();
        let failure = failure.map(Box::new);
        let unhealthy = self.unhealthy.get(name).cloned().map(Box::new);
        FromNode::NodeReport(NodeReport { failure, unhealthy, ..NodeReport::new(round, state) })
    }

    pub(super) fn peer(&self, name: &str) -> Peer {
        let stream = self.registrations.get(name).copied().unwrap_or_default();
        Peer { node: NodeId::new(name), stream }
    }

    pub(super) fn message(&mut self, name: &str, message: FromNode) -> Vec<Did> {
        let peer = self.peer(name);
        self.machine.handle_message(self.now, peer, message);
        self.drain()
    }

    /// Reports that `name` is now in `state`.
    pub(super) fn report(&mut self, name: &str, state: NodeState) -> Vec<Did> {
        let report = self.node_report(name, state, None);
        self.message(name, report)
    }

    /// Reports that `name` is ready again.
    pub(super) fn back(&mut self, name: &str) -> Vec<Did> {
        self.report(name, ready())
    }

    /// Reports that `name` opens another store, and then that it is ready again.
    pub(super) fn reopen(&mut self, name: &str) -> Vec<Did> {
        let mut did = self.report(name, NodeState::Preparing);
        did.extend(self.back(name));
        did
    }

    /// Reports that a worker of `name` failed `age` ago.
    pub(super) fn fail(&mut self, name: &str, age: Duration) -> Vec<Did> {
        self.report_failure(name, failure(name, age))
    }

    /// Reports this failure on `name`.
    pub(super) fn report_failure(&mut self, name: &str, failure: WorkerFailure) -> Vec<Did> {
        let report = self.node_report(name, NodeState::Stopping, Some(failure));
        self.message(name, report)
    }

    /// Answers a probe for `name`.
    pub(super) fn alive(&mut self, name: &str) -> Vec<Did> {
        let round = self.rounds.get(name).copied().unwrap_or_default();
        self.message(name, FromNode::Alive { round })
    }

    /// Ends the stream of `name`, and sends its death notice.
    pub(super) fn die(&mut self, name: &str) -> Vec<Did> {
        let peer = self.peer(name);
        self.machine.handle_detached(self.now, peer);
        self.death_notice(name)
    }

    /// Sends a death notice of `name`.
    pub(super) fn death_notice(&mut self, name: &str) -> Vec<Did> {
        let round = self.rounds.get(name).map(|round| round.round).unwrap_or_default();
        self.machine.handle_death_notice(self.now, &NodeId::new(name), round);
        self.drain()
    }

    /// Sends a keep-alive of every known node.
    pub(super) fn keep_all_alive(&mut self) {
        let names: Vec<String> = self.registrations.keys().cloned().collect();
        self.keep_alive(&names.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Sends a keep-alive of each of `names`.
    pub(super) fn keep_alive(&mut self, names: &[&str]) {
        for name in names {
            self.message(name, keep_alive(false, None, None));
        }
    }

    /// Lets `duration` pass without any message.
    pub(super) fn advance(&mut self, duration: Duration) -> Vec<Did> {
        let until = self.now + duration;
        let mut did = Vec::new();
        while let Some(at) = self.machine.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.machine.handle_timeout(self.now);
            did.extend(self.drain());
            let next = self.machine.poll_timeout();
            assert!(next.is_none_or(|next| next > at), "a deadline that passed is still awaited");
        }
        self.now = until;
        did
    }

    /// Lets `duration` pass while all of `names` send keep-alives.
    pub(super) fn live(&mut self, names: &[&str], duration: Duration) -> Vec<Did> {
        let until = self.now + duration;
        let mut did = Vec::new();
        while self.now < until {
            did.extend(self.advance(SECOND.min(until - self.now)));
            self.keep_alive(names);
        }
        did
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.machine.snapshot(self.now).outcome
    }

    /// Returns the text of the reason why the next round is not complete yet.
    pub(super) fn why(&self) -> String {
        self.machine.incomplete(self.now).map(|why| why.to_string()).unwrap_or_default()
    }

    pub(super) fn drain(&mut self) -> Vec<Did> {
        let mut did = Vec::new();
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::Record(event) => self.events.push(event),
                Effect::Remember(job_state) if self.is_of_account(&job_state) => {
                    self.job_state = *job_state
                }
                effect => did.push(self.shorten(effect)),
            }
        }
        let counts = self.machine.counts(self.now).nodes;
        assert_eq!(counts, self.machine.count_nodes(self.now), "the counts are outdated");
        did
    }

    /// Returns true if only the time account and the longest pauses have changed, which are stored at intervals.
    fn is_of_account(&self, job_state: &JobState) -> bool {
        let JobState { time, restarts, .. } = self.job_state.clone();
        let mut host_tallies = job_state.host_tallies.clone();
        for (new, known) in host_tallies.iter_mut().zip(&self.job_state.host_tallies) {
            new.suspected_for = known.suspected_for;
        }
        let mut training = job_state.training.clone();
        training.longest_pause = self.job_state.training.longest_pause;
        training.first_step = self.job_state.training.first_step;
        *job_state != self.job_state
            && JobState { time, restarts, training, host_tallies, ..job_state.clone() }
                == self.job_state
    }

    fn shorten(&mut self, effect: Effect) -> Did {
        let (to, message) = match effect {
            Effect::Record(_) => unreachable!("events are collected"),
            Effect::Resign { term } => return Did::Resign(term.0),
            Effect::HandOver => return Did::HandOver,
            Effect::Forget => return Did::Forget,
            Effect::Finish { .. } => return Did::Finish,
            Effect::HangUp { to } => return Did::HangUp(known(&to)),
            Effect::Remember(job_state) => {
                self.job_state = *job_state;
                return Did::Remember(self.job_state.round.0, self.job_state.restarts_used);
            }
            Effect::Send { to, message } => (to, message),
        };
        assert_eq!(Some(&to.stream), self.registrations.get(to.node.as_str()), "an old stream");
        let name = known(&to);
        let news = self.memory.entry(name.to_owned()).or_default();
        match &message {
            ToNode::Echo { memory_whole, .. } => news.whole = *memory_whole,
            ToNode::Assignment(Assignment::Wait { memory, .. }) => news.kept = *memory,
            ToNode::Guidance(guidance) => news.off.clone_from(&guidance.memory_off),
            _ => {}
        }
        match message {
            ToNode::Welcome(_) => Did::Welcome(name),
            ToNode::Refuse(reason) => Did::Refuse(name, reason),
            ToNode::Echo { .. } => Did::Echo(name),
            ToNode::Probe { .. } => Did::Probe(name),
            ToNode::HostLeaving => Did::HostLeaving(name),
            ToNode::Guidance(Guidance { notice: None, look: None, hung: Some(hung), .. }) => {
                Did::Hung(name, hung.rank.0, hung.if_stopped)
            }
            ToNode::Guidance(Guidance { notice: None, look: Some(look), .. }) => {
                Did::Look(name, look.number, look.part)
            }
            ToNode::Guidance(Guidance { notice, .. }) => {
                Did::Notice(name, notice.map(|notice| (notice.number, notice.kind)))
            }
            ToNode::Voters(voters) => Did::Voters(name, voters.len()),
            ToNode::RefusedClients(refused) => Did::RefusedClients(name, refused.addresses.len()),
            ToNode::Assignment(Assignment::Wait { reason, .. }) => Did::Wait(name, reason),
            ToNode::Assignment(Assignment::Restart { round, .. }) => {
                Did::Restart(name, round.round.0)
            }
            ToNode::Assignment(Assignment::Evict { reason, .. }) => Did::Evict(name, reason),
            ToNode::Assignment(Assignment::Dismiss) => Did::Dismiss(name),
            ToNode::Assignment(Assignment::Close(_)) => Did::Close(name),
            ToNode::Assignment(Assignment::Admit(admission)) => {
                self.rounds.insert(name.to_owned(), admission.round);
                let did = Did::Admit(name, admission.round.round.0, admission.group_rank.0);
                self.admissions.insert(name.to_owned(), admission);
                did
            }
        }
    }
}

/// The names that tests give to nodes.
pub(super) const NAMES: [&str; 23] = [
    "a", "a2", "b", "b2", "b3", "b4", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n",
    "o", "p", "q", "x", "y",
];

fn known(peer: &Peer) -> &'static str {
    NAMES.iter().find(|name| **name == peer.node.as_str()).expect("a known name")
}

pub(super) fn failure(name: &str, age: Duration) -> WorkerFailure {
    WorkerFailure {
        age,
        ..WorkerFailure::new(
            name,
            RoundId::default(),
            (GlobalRank(0), LocalRank(0)),
            1,
            WorkerEnd::Exited(1),
        )
    }
}

pub(super) fn keep_alive(
    asks_reason: bool,
    progress: Option<StepProgress>,
    checkpoint: Option<Checkpoint>,
) -> FromNode {
    FromNode::KeepAlive { sequence: 1, asks_reason, progress, checkpoint, save_failed: None }
}

/// Returns the claim of a member of `round`.
pub(super) fn known_round(round: RoundId, size: u32, rank: u32) -> KnownRound {
    KnownRound { round, size, group_rank: Some(GroupRank(rank)) }
}
