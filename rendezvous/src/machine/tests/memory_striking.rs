//! Checkpoints in memory that are not used again: after failures, if a node cannot use them, and if memory is off.

use std::time::Duration;

use super::{
    fixture::{Did, Fixture, SECOND, failure},
    memory::{OWN, id, planned, running},
};
use crate::{
    event::{EventKind, StrikeReason},
    memory::Tried,
    memory::fixture::{checkpoint, part},
    message::{
        CheckpointId, FromNode, MemoryReport, MemoryUnusable, NodeReport, NodeState, OomKill,
        PartPlace, RestartReason, UnusableReason, WorkerFailure,
    },
};

impl Fixture {
    pub(super) fn unusable(
        &mut self,
        name: &str,
        checkpoint: CheckpointId,
        why: UnusableReason,
    ) -> Vec<Did> {
        let report = self.unusable_report(name, checkpoint, why);
        self.message(name, FromNode::NodeReport(report))
    }

    fn unusable_report(
        &self,
        name: &str,
        checkpoint: CheckpointId,
        why: UnusableReason,
    ) -> NodeReport {
        let round = self.rounds[name];
        let unusable = MemoryUnusable { checkpoint, why, text: String::new() };
        let memory_unusable = Some(Box::new(unusable));
        NodeReport { memory_unusable, ..NodeReport::new(round, NodeState::Running) }
    }

    pub(super) fn is_struck(&self, id: CheckpointId) -> bool {
        Tried(self.job_state.training.memory).is_void(id)
    }
}

/// A member reports that memory must be off. All members learn it, and no checkpoint up to this round is used again. The
/// next round may save.
#[test]
fn memory_is_off_for_a_round() {
    let mut t = running(2, 2, &["a", "b"]);
    t.hold_both(id(10));
    let parts = [part(id(10), 1, 2, OWN)];
    t.obstacle("b", &parts, "no copies: the job has no secret");
    assert_eq!(t.memory["a"].off, None, "any other obstacle is only shown");
    let did = t.obstacle("b", &parts, "off: b has 40 GB and needs 84");
    assert_eq!(did, [Did::Remember(1, 0), Did::Notice("a", None), Did::Notice("b", None)]);
    assert_eq!(t.memory["a"].off.as_deref(), Some("b has 40 GB and needs 84"));
    assert_eq!(t.status().text.as_deref(), Some("off: b has 40 GB and needs 84"));
    assert_eq!(t.status().step, None);
    assert_eq!(t.obstacle("b", &[], "off: b has 40 GB and needs 84"), [], "it is known");
    // It is sent again on a new stream.
    t.memory.clear();
    let report = t.memory_of("a", &[part(id(10), 0, 2, OWN)]);
    let mut registration = t.registration_of("a", NodeState::Running);
    registration.memory = Some(report);
    t.register_with(registration);
    assert!(t.memory["a"].off.is_some());
    let off = |kind: &&EventKind| matches!(kind, EventKind::MemoryOff { .. });
    assert_eq!(t.kinds().filter(off).count(), 1);
    t.hold_both(id(20));
    t.fail_both();
    assert_eq!((t.plan("a"), t.plan("b")), (None, None));
    t.memory.clear();
    let newer = checkpoint(2, 5);
    t.hold_both(newer);
    assert_eq!(t.whole("a"), Some(newer));
    assert_eq!(t.memory["a"].off, None);
    t.fail_both();
    assert_eq!(t.plan("a"), planned(newer, &[]));
}

/// The report of a node that memory is off may reach only the next coordinator.
#[test]
fn memory_goes_off_in_a_takeover() {
    let mut t = running(2, 2, &["a", "b"]);
    t.hold_both(id(10));
    t.restart_coordinator();
    t.join_holding("a", &[part(id(10), 0, 2, OWN)]);
    let report = MemoryReport {
        obstacle: Some("off: a save waited 120 s".to_owned()),
        ..t.memory_of("b", &[part(id(10), 1, 2, OWN)])
    };
    t.join_reporting("b", report);
    assert_eq!((t.admissions["b"].round.round.0, t.plan("a"), t.plan("b")), (2, None, None));
}

/// The second process that the kernel kills on nodes with parts turns memory off for the job: a worker, or an agent,
/// which the next agent of its host reports.
#[test]
fn kernel_kills_twice() {
    let oom = || WorkerFailure { oom: Some(OomKill::Probable), ..failure("b", Duration::ZERO) };
    let mut t = running(2, 2, &["a", "b"]);
    t.fail_both_with(oom());
    t.hold_both(checkpoint(2, 10));
    t.fail_both_with(oom());
    assert!(!Tried(t.job_state.training.memory).is_off(), "without parts it does not count");
    let newer = checkpoint(3, 10);
    let counted = |t: &Fixture, kills| MemoryReport {
        oom_kills: Some(kills),
        ..t.memory_of("b", &[part(newer, 1, 2, OWN)])
    };
    let report = counted(&t, 4);
    t.message("b", FromNode::MemoryReport(report));
    t.die("b");
    t.back("a");
    let report = MemoryReport { parts: Vec::new(), ..counted(&t, 5) };
    t.join_reporting("b2", report);
    assert!(Tried(t.job_state.training.memory).is_off());
    assert_eq!(t.admissions["b2"].memory, None);
    let why = "the kernel killed a process on b for lack of memory";
    assert_eq!(t.memory["a"].off.as_deref(), Some(why), "told in the next round too");
    let off = EventKind::MemoryOff { reason: why.to_owned() };
    assert!(t.kinds().any(|kind| *kind == off));
}

/// A kill counts even if a round without the host has begun before its next agent reports it.
#[test]
fn kernel_kill_is_reported_after_another_round() {
    let mut t = running(1, 2, &["a", "b"]);
    t.hold_both(id(10));
    let killed = WorkerFailure { oom: Some(OomKill::Probable), ..failure("b", Duration::ZERO) };
    t.fail_both_with(killed);
    let counted = |t: &Fixture, kills| MemoryReport {
        oom_kills: Some(kills),
        ..t.memory_of("b", &[part(id(10), 1, 2, OWN)])
    };
    let report = counted(&t, 4);
    t.message("b", FromNode::MemoryReport(report));
    t.die("b");
    t.back("a");
    for _ in 0..60 {
        t.keep_all_alive();
        t.advance(SECOND);
    }
    assert_eq!(t.admissions["a"].group_world_size, 1);
    assert!(!Tried(t.job_state.training.memory).is_off());
    let report = MemoryReport { parts: Vec::new(), ..counted(&t, 5) };
    t.join_reporting("b2", report);
    assert!(Tried(t.job_state.training.memory).is_off());
}

/// A round whose checkpoint a node cannot use ends for free. The checkpoint is not used again, even if workers fail
/// in the same moment.
#[test]
fn checkpoint_is_unusable() {
    let mut t = running(2, 2, &["a", "b"]);
    t.hold_both(id(10));
    t.fail_both();
    assert_eq!(t.unusable("a", id(99), UnusableReason::Script), [], "it is another checkpoint");
    let mut report = t.unusable_report("a", id(10), UnusableReason::Script);
    report.failure = Some(Box::new(failure("a", Duration::ZERO)));
    t.message("a", FromNode::NodeReport(report));
    let is_end = |kind: &&EventKind| {
        matches!(kind, EventKind::RoundEnded { reason: RestartReason::MemoryUnusable { .. } })
    };
    assert_eq!(t.kinds().filter(is_end).count(), 1);
    t.back("a");
    t.back("b");
    assert_eq!((t.job_state.restarts_used, t.job_state.free_rounds), (1, 1));
    assert_eq!((t.admissions["a"].round.round.0, t.plan("a")), (3, None));
    let struck = EventKind::MemoryStruck { step: 10, reason: StrikeReason::Script };
    assert!(t.kinds().any(|kind| *kind == struck));
}

/// The report may come after a worker's failure has ended the round. It explains the failure.
#[test]
fn unusable_explains_a_failure() {
    let mut t = running(2, 2, &["a", "b"]);
    t.hold_both(id(10));
    t.fail_both();
    t.fail("b", Duration::ZERO);
    t.unusable("a", id(10), UnusableReason::Sum);
    t.back("a");
    t.back("b");
    assert_eq!((t.job_state.restarts_used, t.plan("a")), (1, None));
}

/// A source that did not answer is not named again for this checkpoint. This is no strike.
#[test]
fn source_is_gone() {
    let mut t = running(2, 2, &["a", "b"]);
    t.hold_both(id(10));
    t.join_holding("x", &[part(id(10), 0, 2, PartPlace::Leftover)]);
    t.die("a");
    t.back("b");
    assert_eq!(t.plan("x"), planned(id(10), &["b:1"]));
    let gone = |address: &str| UnusableReason::SourceGone { sources: vec![address.to_owned()] };
    t.hold("b", &[part(id(10), 0, 2, OWN), part(id(10), 1, 2, PartPlace::Leftover)]);
    t.unusable("x", id(10), gone("b:1"));
    assert_eq!(t.job_state.training.memory, None);
    t.back("b");
    t.back("x");
    assert_eq!(t.admissions["x"].round.round.0, 3);
    assert_eq!((t.plan("b"), t.plan("x")), (None, None));
    assert_eq!((t.job_state.restarts_used, t.job_state.free_rounds), (0, 2));
    assert!(!t.is_struck(id(10)));
    // The round after that does not name it either.
    t.fail("b", Duration::ZERO);
    t.back("b");
    t.back("x");
    assert_eq!(t.admissions["x"].round.round.0, 4);
    assert_eq!(t.plan("x"), None);
}
