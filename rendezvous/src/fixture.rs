//! A job without its machine: a test changes what the nodes have reported, and asks one feature.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    effect::Effect,
    effects::Effects,
    event::EventKind,
    group::{Group, MemberState},
    ids::{JobUid, NodeId, Round, RoundId, RunId, Term},
    job::Job,
    message::{MemoryReport, NodeDescription, NodeReport, NodeState, Registration, RestartReason},
    phase::{Phase, Regathering, Running},
    settings::{JobState, Leases, NodeRange, Settings, SharedSettings},
    table::{Past, Table},
    voter_count::VoterCount,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A job, and what its features have written.
pub(crate) struct TestJob {
    pub(crate) job: Job,
    pub(crate) out: Effects,
}

impl TestJob {
    /// Returns a job of `min` to `max` nodes. These are ready for the first round.
    pub(crate) fn new(min: u32, max: u32, names: &[&str]) -> Self {
        Self::with(min, max, names, |_| {})
    }

    /// Does the same with other settings.
    pub(crate) fn with(
        min: u32,
        max: u32,
        names: &[&str],
        change: impl FnOnce(&mut SharedSettings),
    ) -> Self {
        let mut shared = SharedSettings::new(NodeRange::new(min, max).expect("min <= max"));
        change(&mut shared);
        let now = some_instant();
        let state = JobState { term: Term(1), ..JobState::new(JobUid::new("uid")) };
        let job = Job::new(now, settings(shared), state);
        let mut job = Self { job, out: Effects::default() };
        names.iter().for_each(|name| job.join(name));
        job
    }

    pub(crate) fn shared(&self) -> SharedSettings {
        self.job.settings.shared.expect("it has nodes")
    }

    /// Adds a node that is ready.
    pub(crate) fn join(&mut self, name: &str) {
        let shared = self.shared();
        let registration = Registration::new(RunId::new("run"), describe(name), shared, ready());
        self.job.roster.register(self.job.clock, registration, 3_600 * SECOND, None);
        self.job.roster.index_readiness(&NodeId::new(name), false);
    }

    /// Begins the next round, with these nodes in the order of their ranks. Their workers run.
    pub(crate) fn begin_round(&mut self, names: &[impl AsRef<str>]) {
        let ids: Vec<NodeId> = names.iter().map(|name| NodeId::new(name.as_ref())).collect();
        let round = RoundId { term: Term(1), round: Round(self.job.state.round.0 + 1) };
        let node = |id| Arc::clone(&self.job.roster.get(id).expect("a known node").description);
        let members = ids.iter().map(node).collect();
        let table = Table::new(round, members, 4242, Past::default()).expect("nodes");
        let group = Group::new(self.job.clock, round, table, BTreeSet::new());
        self.job.state.round = round.round;
        self.job.phase = Phase::Running(Running { group, waiting_since: None });
        for name in names {
            self.report(name.as_ref(), |report| {
                (report.round, report.state) = (round, NodeState::Running);
            });
        }
    }

    /// Ends the round. All members are ready again.
    pub(crate) fn end_round(&mut self) {
        let mut group = self.job.phase.take_group().expect("a round");
        let members: Vec<NodeId> = group.members().map(|(id, _)| id.clone()).collect();
        members.iter().for_each(|id| group.set_state(id, MemberState::Back));
        self.job.phase = Phase::Regathering(Regathering {
            group,
            reason: RestartReason::NodesWaiting { waiting: 1 },
            since: self.job.clock,
            last_loss: self.job.clock,
            verdict: None,
            memory_step: None,
        });
        for id in members {
            self.report(id.as_str(), |report| report.state = ready());
        }
    }

    /// Changes what a node has last reported.
    pub(crate) fn report(&mut self, name: &str, change: impl FnOnce(&mut NodeReport)) {
        let id = NodeId::new(name);
        let mut report = self.job.roster.get(&id).expect("a known node").report.clone();
        change(&mut report);
        self.job.roster.record_report_on_stream(self.job.clock, &id, report);
        let running = self.job.phase.running();
        let is_member = running.is_some_and(|running| running.group.held(&id).is_some());
        self.job.roster.index_readiness(&id, is_member);
    }

    /// Replaces what a node has reported about its memory.
    pub(crate) fn set_memory(&mut self, name: &str, report: MemoryReport) {
        let node = self.job.roster.get_mut(&NodeId::new(name)).expect("a known node");
        node.memory = Some(Box::new(report));
    }

    /// Lets `time` pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.job.clock += time;
    }

    pub(crate) fn group(&mut self) -> &mut Group {
        self.job.phase.group_mut().expect("a round")
    }

    /// Takes the events so far.
    pub(crate) fn events(&mut self) -> Vec<EventKind> {
        let kind = |effect| match effect {
            Effect::Record(event) => Some(event.kind),
            _ => None,
        };
        self.out.queue.drain(..).filter_map(kind).collect()
    }
}

/// The settings of a coordinator without an agent.
pub(crate) fn settings(shared: SharedSettings) -> Settings {
    Settings {
        run_id: RunId::new("run"),
        coordinator: "c".to_owned(),
        host: None,
        shared: Some(shared),
        voters: Vec::new(),
        voter_count: VoterCount::One,
        keeps_charges: true,
        leases: Leases::default(),
        begins_at: None,
    }
}

#[expect(clippy::disallowed_methods, reason = "a test needs some instant to begin with")]
pub(crate) fn some_instant() -> Instant {
    Instant::now()
}

pub(crate) fn ready() -> NodeState {
    NodeState::Ready { store_port: 4242 }
}

/// Describes a node. Nodes whose names begin with the same letter are agents of one machine.
pub(crate) fn describe(name: &str) -> NodeDescription {
    let host = &name[..1];
    NodeDescription {
        agent_port: 1,
        script: "train.py".to_owned(),
        ..NodeDescription::new(NodeId::new(name), host, format!("{host}.example"))
    }
}
