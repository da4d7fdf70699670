//! Checkpoints in the memory of the nodes: plans, copies, and what is whole.

use std::time::Duration;

use super::{
    fixture::{Did, Fixture, SECOND, failure, ready},
    grant::take_over,
    notices::leave,
};
use crate::{
    event::EventKind,
    ids::GroupRank,
    memory::fixture::{checkpoint, dcp, part},
    message::{CheckpointId, FromNode, MemoryReport, NodeState, Part, PartPlace, WorkerFailure},
    phase::Phase,
    snapshot::MemoryStatus,
};

pub(super) const OWN: PartPlace = PartPlace::Own;
const COPY: PartPlace = PartPlace::Copy;

impl Fixture {
    /// Returns what `name` reports about its memory. It offers its parts at `NAME:1`.
    pub(super) fn memory_of(&self, name: &str, parts: &[Part]) -> MemoryReport {
        let round = self.rounds.get(name).copied().unwrap_or_default();
        let address = Some(format!("{name}:1"));
        MemoryReport { round, parts: parts.to_vec(), address, ..MemoryReport::default() }
    }

    /// Opens a stream of `name`, which is ready and holds these parts.
    pub(super) fn join_holding(&mut self, name: &'static str, parts: &[Part]) -> Vec<Did> {
        let report = self.memory_of(name, parts);
        self.join_reporting(name, report)
    }

    pub(super) fn join_reporting(&mut self, name: &'static str, report: MemoryReport) -> Vec<Did> {
        let mut registration = self.registration_of(name, ready());
        registration.memory = Some(report);
        self.register_with(registration)
    }

    /// Reports that `name` holds these parts.
    pub(super) fn hold(&mut self, name: &str, parts: &[Part]) -> Vec<Did> {
        let report = self.memory_of(name, parts);
        self.message(name, FromNode::MemoryReport(report))
    }

    /// Reports an obstacle of `name`.
    pub(super) fn obstacle(&mut self, name: &str, parts: &[Part], text: &str) -> Vec<Did> {
        let report = self.memory_of(name, parts);
        let obstacle = Some(text.to_owned());
        self.message(name, FromNode::MemoryReport(MemoryReport { obstacle, ..report }))
    }

    /// Reports that `a` and `b` hold their own parts of this checkpoint, and the copies of each other.
    pub(super) fn hold_both(&mut self, id: CheckpointId) {
        self.hold("a", &[part(id, 0, 2, OWN), part(id, 1, 2, COPY)]);
        self.hold("b", &[part(id, 1, 2, OWN), part(id, 0, 2, COPY)]);
    }

    /// Returns the checkpoint with which `name` begins its round, and the sources of its part.
    pub(super) fn plan(&self, name: &str) -> Option<(CheckpointId, Vec<String>)> {
        let plan = self.admissions[name].memory.clone()?;
        Some((plan.checkpoint, plan.sources))
    }

    pub(super) fn whole(&mut self, name: &str) -> Option<CheckpointId> {
        self.keep_alive(&[name]);
        self.memory[name].whole
    }

    /// Lets a worker of `b` fail, and forms the next round of `a` and `b`.
    pub(super) fn fail_both(&mut self) {
        self.fail_both_with(failure("b", Duration::ZERO));
    }

    pub(super) fn fail_both_with(&mut self, failure: WorkerFailure) {
        let before = self.admissions["a"].round;
        self.report_failure("b", failure);
        self.back("a");
        self.back("b");
        assert!(before < self.admissions["a"].round, "another round has begun");
        self.report("a", NodeState::Running);
        self.report("b", NodeState::Running);
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = &EventKind> {
        self.events.iter().map(|event| &event.kind)
    }

    pub(super) fn status(&self) -> MemoryStatus {
        self.machine.snapshot(self.now).memory.expect("there is memory")
    }
}

/// A job of nodes that keep checkpoints. The names are in the order of their ranks.
pub(super) fn running_with(mut t: Fixture, names: &[&'static str]) -> Fixture {
    for name in names {
        t.join_holding(name, &[]);
    }
    while t.admissions.len() < names.len() {
        t.keep_all_alive();
        t.advance(SECOND);
    }
    names.iter().for_each(|name| drop(t.report(name, NodeState::Running)));
    t
}

pub(super) fn running(min: u32, max: u32, names: &[&'static str]) -> Fixture {
    let t = Fixture::with(min, max, |shared| {
        shared.timeouts.shrink = Duration::ZERO;
        shared.max_restarts = 10;
    });
    running_with(t, names)
}

pub(super) fn id(step: u64) -> CheckpointId {
    checkpoint(1, step)
}

pub(super) fn planned(id: CheckpointId, sources: &[&str]) -> Option<(CheckpointId, Vec<String>)> {
    Some((id, sources.iter().map(|text| (*text).to_owned()).collect()))
}

/// After a worker's death, each node begins with its own part. Each has the other as its buddy.
#[test]
fn worker_dies() {
    let mut t = running(2, 2, &["a", "b"]);
    let pair =
        |t: &Fixture, name: &str| (t.admissions[name].buddy.clone(), t.admissions[name].ward);
    assert_eq!(pair(&t, "a"), (Some("b:1".to_owned()), Some(GroupRank(1))));
    assert_eq!(pair(&t, "b"), (Some("a:1".to_owned()), Some(GroupRank(0))));
    assert_eq!(t.plan("a"), None);
    t.hold_both(id(10));
    assert_eq!(t.whole("a"), Some(id(10)));
    t.fail_both();
    let training = &t.job_state.training;
    assert_eq!((training.highest_step, training.saved_step), (Some(10), None), "it is on no disk");
    assert_eq!((t.plan("a"), t.plan("b")), (planned(id(10), &[]), planned(id(10), &[])));
    assert!(t.job_state.training.charged_rounds.iter().all(|round| !round.began_from_memory));
    let restored =
        EventKind::MemoryRestored { step: 10, fetching: 0, bytes: 0, is_resharded: false };
    assert!(t.kinds().any(|kind| *kind == restored));
    // A repeated admission is the same.
    let before = t.admissions["a"].clone();
    t.register("a", NodeState::Running);
    assert_eq!(t.admissions["a"], before);
}

/// A spare that takes the place of a lost node fetches its part from the buddy. It keeps what it may have to give.
#[test]
fn node_is_lost() {
    let mut t = running(2, 2, &["a", "b"]);
    t.join_holding("x", &[]);
    t.hold_both(id(10));
    t.die("a");
    t.back("b");
    assert_eq!(t.admissions["b"].group_rank, GroupRank(0));
    assert_eq!((t.plan("b"), t.plan("x")), (planned(id(10), &[]), planned(id(10), &["b:1"])));
    let restored =
        |kind: &EventKind| matches!(kind, EventKind::MemoryRestored { fetching: 1, bytes: 10, .. });
    assert!(t.kinds().any(restored));
    assert_eq!(t.job_state.training.memory, None, "no strike");
    t.join_holding("y", &[]);
    assert_eq!(t.memory["y"].kept, Some(id(10)), "a spare keeps its parts of it");
}

/// With another number of nodes, a checkpoint of DCP is read from the parts of all nodes.
#[test]
fn dcp_is_resharded() {
    let mut t = running(1, 3, &["a", "b", "c"]);
    for (name, own, copy) in [("a", 0, 1), ("b", 1, 2), ("c", 2, 0)] {
        t.hold(name, &[dcp(part(id(10), own, 3, OWN)), dcp(part(id(10), copy, 3, COPY))]);
    }
    t.die("b");
    t.back("a");
    t.back("c");
    let plan = |t: &Fixture, name: &str| *t.admissions[name].memory.clone().expect("a plan");
    let all = |t: &Fixture| -> Vec<String> {
        plan(t, "a").all_sources.iter().map(|part| part.sources.join(" ")).collect()
    };
    assert_eq!(all(&t), ["a:1 c:1", "a:1", "c:1"]);
    let rest = plan(&t, "c");
    assert!(rest.is_resharded && rest.sources.is_empty() && rest.all_sources.is_empty());
    let restored =
        EventKind::MemoryRestored { step: 10, fetching: 2, bytes: 30, is_resharded: true };
    assert!(t.kinds().any(|kind| *kind == restored));
}

/// Nodes that register with another coordinator bring their parts. The strikes are part of the job's state.
#[test]
fn takeover() {
    let mut t = running(2, 2, &["a", "b"]);
    t.hold_both(id(10));
    t.fail_both();
    t.hold_both(id(10));
    t.fail_both();
    assert_eq!(
        t.job_state.training.memory.map(|tried| (tried.checkpoint, tried.tries)),
        Some((id(10), 1))
    );
    t.restart_coordinator();
    for (name, rank) in [("a", 0), ("b", 1)] {
        t.join_holding(name, &[part(id(10), rank, 2, OWN)]);
    }
    assert_eq!(t.plan("a"), planned(id(10), &[]));
    assert!(!t.is_struck(id(10)), "a takeover does not count");
    t.report("a", NodeState::Running);
    t.report("b", NodeState::Running);
    t.fail_both();
    assert!(t.is_struck(id(10)));
    assert_eq!(t.plan("a"), None);
    let charged = t.job_state.training.charged_rounds.last();
    assert!(charged.is_some_and(|round| round.began_from_memory));
}

/// After a takeover, a round waits once for parts of spares that register late, if no checkpoint fits without them.
#[test]
fn parts_may_be_late_after_a_takeover() {
    for is_late in [false, true] {
        let mut t = running(1, 2, &["a", "b"]);
        t.join_holding("x", &[]);
        t.hold("a", &[part(id(10), 0, 2, OWN)]);
        take_over(&mut t, Duration::ZERO, None);
        let held = [[part(id(10), 0, 2, OWN)], [part(id(10), 1, 2, PartPlace::Leftover)]];
        t.join_holding("a", &held[0]);
        t.join_holding("b", &[]);
        t.back("a");
        let did = t.back("b");
        assert!(!did.iter().any(|did| matches!(did, Did::Admit(..))), "{did:?}");
        t.keep_alive(&["a", "b"]);
        t.advance(SECOND / 2);
        if is_late {
            t.join_holding("x", &held[1]);
            t.reopen("x");
        }
        t.keep_alive(&["a", "b"]);
        let admitted = [Did::Remember(2, 0), Did::Admit("a", 2, 0), Did::Admit("b", 2, 1)];
        let did = t.advance(SECOND);
        assert!(admitted.iter().all(|one| did.contains(one)), "{did:?}");
        assert_eq!(t.plan("b"), planned(id(10), &["x:1"]).filter(|_| is_late));
    }
}

/// A registration may be old. What a node holds by now counts before its report, which may complete a round.
#[test]
fn parts_after_the_welcome_count() {
    let mut t = running(2, 2, &["a", "b"]);
    t.hold_both(id(10));
    take_over(&mut t, Duration::ZERO, None);
    for (name, rank) in [("a", 0), ("b", 1)] {
        t.join_holding(name, &[part(id(10), rank, 2, OWN)]);
        t.hold(name, &[part(id(10), rank, 2, OWN), part(id(20), rank, 2, OWN)]);
        t.back(name);
    }
    assert_eq!(t.plan("a"), planned(id(20), &[]));
}

/// Before a node leaves, a checkpoint in memory is enough: the other nodes hold all parts of it, and a spare takes the
/// place of the leaver. It must be saved since the notice.
#[test]
fn notice_ends_with_a_checkpoint_in_memory() {
    let t = Fixture::with(2, 2, |shared| shared.notice = 60 * SECOND);
    let mut t = running_with(t, &["a", "b"]);
    t.join_holding("x", &[]);
    t.tell("b", NodeState::Running, leave(), None);
    t.live(&["a", "b", "x"], SECOND);
    t.hold_both(id(20));
    assert!(t.machine.snapshot(t.now).saving.is_some(), "other nodes may get their signal");
    let did = t.live(&["a", "b", "x"], 4 * SECOND);
    assert!(did.contains(&Did::Restart("a", 1)), "{did:?}");
    let Phase::Regathering(regathering) = &t.machine.job.phase else { panic!("the round ends") };
    assert_eq!(regathering.memory_step, Some(20), "the members learn it");
    let training = &t.job_state.training;
    assert_eq!((training.saved_step, training.complete_step), (None, None), "it is on no disk");
    let over =
        |kind: &EventKind| matches!(kind, EventKind::NoticeOver { memory_step: Some(20), .. });
    assert!(t.kinds().any(over));
    t.tell("b", NodeState::Leaving { reaped: true }, leave(), None);
    t.back("a");
    assert_eq!((t.plan("a"), t.plan("x")), (planned(id(20), &[]), planned(id(20), &["a:1"])));
}
