//! Notices: all ranks may save before nodes leave, before nodes join, and before the job ends.

use std::time::Duration;

use super::{
    fixture::{Did, Fixture, SECOND, failure, keep_alive, ready},
    stalling::keep_alive_at,
};
use crate::{
    event::EventKind,
    message::{
        Checkpoint, FromNode, JobResult, NodeNotice, NodeReport, NodeState, NoticeKind, Outcome,
        Registration, Saved, WaitReason,
    },
    settings::SharedSettings,
};

const NOTICE: Duration = Duration::from_secs(60);

/// A job in which all ranks may save for a minute, with a round of `names`.
fn running(min: u32, max: u32, names: &[&'static str]) -> Fixture {
    running_with(min, max, names, |_| {})
}

fn running_with(
    min: u32,
    max: u32,
    names: &[&'static str],
    change: impl FnOnce(&mut SharedSettings),
) -> Fixture {
    let mut t = Fixture::with(min, max, |shared| {
        shared.notice = NOTICE;
        change(shared);
    });
    t.run(names);
    t
}

/// A notice of a node.
fn of_node(ends_job: bool) -> Option<NodeNotice> {
    Some(NodeNotice { ends_job, left: NOTICE, text: "SIGTERM".to_owned() })
}

pub(super) fn leave() -> Option<NodeNotice> {
    of_node(false)
}

fn end() -> Option<NodeNotice> {
    of_node(true)
}

fn saved(notice: u64, step: u64) -> Option<Saved> {
    Some(Saved { notice, step, is_whole: false })
}

impl Fixture {
    /// Reports the state of `name`, with a notice and a checkpoint.
    pub(super) fn tell(
        &mut self,
        name: &str,
        state: NodeState,
        notice: Option<NodeNotice>,
        saved: Option<Saved>,
    ) -> Vec<Did> {
        let round = self.rounds.get(name).copied().unwrap_or_default();
        let report = NodeReport { notice, saved, ..NodeReport::new(round, state) };
        self.message(name, FromNode::NodeReport(report))
    }

    /// Reports that `name`, whose workers run, has received a notice.
    fn notice(&mut self, name: &str, notice: Option<NodeNotice>) -> Vec<Did> {
        self.tell(name, NodeState::Running, notice, None)
    }

    /// Reports that the workers of `name` have saved a step for a notice.
    fn save(&mut self, name: &str, notice: u64, step: u64) -> Vec<Did> {
        self.tell(name, NodeState::Running, None, saved(notice, step))
    }

    /// Sends a keep-alive with a checkpoint.
    pub(super) fn checkpoint(&mut self, name: &str, step: u64) {
        let checkpoint = Some(Checkpoint { step, is_whole: false, cost: None });
        self.message(name, keep_alive(false, None, checkpoint));
    }

    /// Sends a keep-alive with a training step.
    fn step(&mut self, name: &str, step: u64) {
        self.message(name, keep_alive_at(step));
    }

    fn result(&self) -> Option<JobResult> {
        self.outcome().map(|outcome| outcome.result)
    }

    fn complete_step(&self) -> Option<u64> {
        self.job_state.training.complete_step
    }

    /// Ends the round of two nodes after both have saved, because `b` leaves. `b` leaves, `a` is back.
    fn save_and_leave(&mut self, step: u64) {
        self.notice("b", leave());
        self.save("a", 1, step);
        self.tell("b", NodeState::Running, leave(), saved(1, step));
        self.back("a");
        self.tell("b", NodeState::Leaving { reaped: true }, leave(), None);
        self.message("b", FromNode::Goodbye);
    }

    /// Lets a worker of `b` fail in this round, after a step.
    fn fail_at(&mut self, step: Option<u64>) -> Vec<Did> {
        for name in ["a", "b"] {
            self.report(name, NodeState::Running);
            step.into_iter().for_each(|step| self.step(name, step));
        }
        self.fail("b", Duration::ZERO);
        let mut did = self.back("a");
        did.extend(self.back("b"));
        did
    }
}

fn given(number: u64, kind: NoticeKind) -> Vec<Did> {
    ["a", "b"].map(|name| Did::Notice(name, Some((number, kind)))).into()
}

fn restarts() -> [Did; 2] {
    ["a", "b"].map(|name| Did::Restart(name, 1))
}

/// The effects, apart from storing the state of the job.
fn unstored(mut did: Vec<Did>) -> Vec<Did> {
    did.retain(|did| !matches!(did, Did::Remember(..)));
    did
}

fn notices(mut did: Vec<Did>) -> Vec<Did> {
    did.retain(|did| matches!(did, Did::Notice(..)));
    did
}

/// Before a node leaves, the round ends as soon as all members have saved the same step. The lowest of different
/// steps does not count.
#[test]
fn round_ends_when_all_have_saved_the_same_step() {
    let mut t = running(1, 2, &["a", "b"]);
    assert_eq!(unstored(t.notice("b", leave())), given(1, NoticeKind::Leave));
    t.live(&["a", "b"], 5 * SECOND);
    assert_eq!(t.save("a", 1, 120), []);
    assert_eq!(t.tell("b", NodeState::Running, leave(), saved(1, 130)), []);
    let ended = [Did::Remember(1, 0), Did::Restart("a", 1), Did::Restart("b", 1)];
    assert_eq!(t.save("a", 1, 130), ended);
    assert_eq!((t.complete_step(), t.job_state.training.saved_step), (Some(130), Some(130)));
    let over = |kind: &EventKind| {
        matches!(kind, EventKind::NoticeOver { step: Some(130), after_ms: 5_000, .. })
    };
    assert!(t.events.iter().any(|event| over(&event.kind)));
    // The node that stays goes on without the other one.
    t.back("a");
    t.tell("b", NodeState::Leaving { reaped: true }, leave(), None);
    let did = t.live(&["a", "b"], 10 * SECOND);
    assert_eq!(t.admissions["a"].round.round.0, 2, "{did:?}");
    assert_eq!(t.admissions["a"].saved_step, Some(130));
}

impl Fixture {
    /// Reports the number of checkpoints that were requested on `name` so far.
    fn request(&mut self, name: &str, saves: u32) -> Vec<Did> {
        let mut report = NodeReport::new(self.rounds[name], NodeState::Running);
        report.requests.saves = saves;
        self.message(name, FromNode::NodeReport(report))
    }
}

/// A notice that the job ends closes it: saved, or left by all if the time is over.
#[test]
fn end_closes_the_job() {
    for saves in [true, false] {
        let mut t = running(1, 2, &["a", "b"]);
        assert_eq!(unstored(t.notice("a", end())), given(1, NoticeKind::End));
        t.tell("a", NodeState::Running, end(), saved(1, 9));
        if saves {
            t.save("b", 1, 9);
        } else {
            t.live(&["a", "b"], NOTICE);
        }
        let outcome = t.outcome().expect("closed");
        let (result, complete) = match saves {
            true => (JobResult::Saved { step: 9 }, Some(9)),
            false => (JobResult::AllLeft, None),
        };
        assert_eq!((outcome.result, outcome.complete_step), (result, complete));
    }
}

/// A spare may receive the notice that the job ends.
#[test]
fn spare_may_end_the_job() {
    let mut t = running(2, 2, &["a", "b"]);
    t.join("c");
    let did = t.tell("c", ready(), end(), None);
    let expected: Vec<Did> = [Did::Wait("c", WaitReason::Ending)].into();
    assert_eq!(unstored(did), [given(1, NoticeKind::End), expected].concat());
    t.save("a", 1, 3);
    t.save("b", 1, 3);
    assert_eq!(t.result(), Some(JobResult::Saved { step: 3 }));
}

/// Workers that have saved and then exit with 0 have not succeeded, if the round ends for the notice.
#[test]
fn exit_after_a_save_is_no_success() {
    let mut t = running(1, 2, &["a", "b"]);
    t.notice("b", end());
    t.save("a", 1, 8);
    t.tell("a", NodeState::Succeeded, None, saved(1, 8));
    assert_eq!(t.result(), None);
    t.tell("b", NodeState::Succeeded, end(), saved(1, 8));
    assert_eq!(t.result(), Some(JobResult::Saved { step: 8 }));
}

/// A failure ends the phase with its round. It is charged, and a job that is about to end is closed then. Without
/// a restart left, the failure is the result.
#[test]
fn failure_ends_the_phase() {
    for (restarts, result) in [(1, JobResult::AllLeft), (0, JobResult::BudgetSpent)] {
        let mut t = running_with(2, 2, &["a", "b"], |shared| shared.max_restarts = restarts);
        t.notice("a", end());
        t.save("b", 1, 5);
        t.fail("b", Duration::ZERO);
        assert_eq!(t.result(), None);
        t.tell("a", NodeState::Stopping, end(), None);
        t.tell("a", NodeState::Preparing, end(), None);
        assert_eq!(t.result(), None, "b still stops");
        t.report_failure("b", failure("b", Duration::ZERO));
        let round = t.rounds["b"];
        let failure = Some(Box::new(failure("b", Duration::ZERO)));
        let report = NodeReport { failure, ..NodeReport::new(round, NodeState::Preparing) };
        t.message("b", FromNode::NodeReport(report));
        let outcome = t.outcome().expect("closed");
        assert_eq!((outcome.result, outcome.complete_step), (result, None));
        assert_eq!(t.job_state.restarts_used, restarts);
    }
}

/// A failure during the phase of a node that leaves is charged, also if another member answers after that node has left.
/// If the node has left before it could answer, its loss may be the cause.
#[test]
fn failure_in_the_phase_of_a_leaver_is_charged() {
    for answers in [true, false] {
        let mut t = running_with(2, 3, &["a", "b", "c"], |shared| shared.max_restarts = 0);
        t.notice("b", leave());
        let did = t.fail("c", Duration::ZERO);
        let place = |wanted: Did| did.iter().position(|did| *did == wanted);
        assert!(place(Did::Probe("b")) < place(Did::Restart("b", 1)), "{did:?}");
        if answers {
            t.alive("b");
        }
        t.tell("b", NodeState::Leaving { reaped: true }, leave(), None);
        t.back("a");
        t.back("c");
        assert_eq!(t.result(), answers.then_some(JobResult::BudgetSpent));
    }
}

/// A lost node is replaced at once, although others have time for a checkpoint.
#[test]
fn lost_node_ends_the_phase() {
    let mut t = running(2, 3, &["a", "b", "c"]);
    t.notice("b", leave());
    let restarts = ["a", "b"].map(|name| Did::Restart(name, 1));
    assert_eq!(t.die("c"), restarts);
    assert_eq!(t.complete_step(), None);
}

/// A node that leaves during its own phase ends the round.
#[test]
fn second_signal_ends_the_phase() {
    let mut t = running(1, 2, &["a", "b"]);
    t.notice("b", leave());
    t.save("a", 1, 5);
    t.tell("b", NodeState::Leaving { reaped: false }, leave(), None);
    assert_eq!(t.complete_step(), None);
    let did = t.tell("b", NodeState::Leaving { reaped: true }, leave(), None);
    assert_eq!(did[0], Did::Restart("a", 1));
}

/// A node that is about to leave gets no place in a round, and does not delay it.
#[test]
fn leaver_gets_no_place() {
    let mut t = running(1, 3, &["a", "b", "c"]);
    t.die("c");
    t.back("a");
    t.tell("b", NodeState::Stopping, leave(), None);
    t.tell("b", ready(), leave(), None);
    t.live(&["a", "b"], 10 * SECOND);
    assert_eq!(t.admissions["a"].group_world_size, 1);
    assert_eq!(t.rounds["b"].round.0, 1);
}

/// While a notice that the job ends is pending, no round is formed: the job is closed.
#[test]
fn no_round_is_formed_before_the_end() {
    // Before the first round.
    let mut t = Fixture::with(2, 2, |shared| shared.notice = NOTICE);
    t.join("a");
    t.tell("a", ready(), end(), None);
    assert_eq!(t.result(), Some(JobResult::AllLeft));
    // Between two rounds.
    let mut t = running(1, 2, &["a", "b"]);
    t.die("b");
    t.tell("a", NodeState::Stopping, end(), None);
    assert_eq!(t.result(), Some(JobResult::AllLeft));
    assert_eq!(t.outcome().and_then(|outcome| outcome.complete_step), None);
    // After a restart of the coordinator: the node repeats its notice.
    let mut t = running(1, 2, &["a", "b"]);
    t.notice("a", end());
    t.restart_coordinator();
    t.register("b", NodeState::Running);
    let mut registration = t.registration_of("a", NodeState::Running);
    registration.report.notice = end();
    t.register_with(registration);
    assert_eq!(t.result(), Some(JobResult::AllLeft));
}

/// A node that is leaving still ends the job, for example because it has waited too long for a coordinator. So does
/// the host of the coordinator.
#[test]
fn leaving_node_ends_the_job() {
    for host in ["a", "b"] {
        let mut t = running(1, 3, &["a", "b", "c"]).host(host);
        for name in ["a", "b", "c"] {
            t.register(name, NodeState::Running);
        }
        for name in ["a", "b", "c"] {
            t.back(name);
        }
        t.live(&["a", "b", "c"], SECOND);
        for name in ["a", "b", "c"] {
            t.report(name, NodeState::Running);
        }
        t.tell("a", NodeState::Leaving { reaped: false }, end(), None);
        assert_eq!(t.result(), None);
        t.tell("a", NodeState::Leaving { reaped: true }, end(), None);
        assert_eq!(t.result(), Some(JobResult::AllLeft), "{host}");
    }
}

/// A coordinator that takes over learns which nodes leave from their registrations. It begins no phase: the round
/// is over.
#[test]
fn registration_repeats_the_notice() {
    let mut t = running(1, 2, &["a", "b"]);
    t.notice("b", leave());
    t.restart_coordinator();
    t.register("a", NodeState::Running);
    let mut registration = t.registration_of("b", NodeState::Running);
    registration.report.notice = leave();
    let did = t.register_with(registration);
    assert!(did.contains(&Did::Restart("b", 1)), "{did:?}");
    t.back("a");
    t.tell("b", NodeState::Leaving { reaped: true }, leave(), None);
    t.live(&["a", "b"], 10 * SECOND);
    assert_eq!(t.admissions["a"].group_world_size, 1);
}

/// On a new stream, a member receives the notice again, after its admission.
#[test]
fn new_stream_repeats_the_notice() {
    let mut t = running(1, 2, &["a", "b"]);
    t.notice("b", leave());
    let did = t.register("a", NodeState::Running);
    let expected =
        [Did::Welcome("a"), Did::Admit("a", 1, 0), Did::Notice("a", Some((1, NoticeKind::Leave)))];
    assert_eq!(did, expected);
    t.save("a", 1, 5);
    t.tell("b", NodeState::Running, leave(), saved(1, 5));
    assert_eq!(t.complete_step(), Some(5));
}

/// Members that had saved and exited because of a notice have not succeeded, if another coordinator takes over.
#[test]
fn takeover_makes_no_success_of_saves() {
    for notice in [end(), leave()] {
        let mut t = running(1, 2, &["a", "b"]);
        t.notice("b", notice.clone());
        t.tell("a", NodeState::Succeeded, None, saved(1, 8));
        t.restart_coordinator();
        for (name, notice) in [("a", None), ("b", notice.clone())] {
            let mut registration: Registration = t.registration_of(name, NodeState::Succeeded);
            registration.report.saved = saved(1, 8);
            registration.report.notice = notice;
            t.register_with(registration);
        }
        let ends_job = notice.is_some_and(|notice| notice.ends_job);
        assert_eq!(t.result(), ends_job.then_some(JobResult::AllLeft));
    }
}

/// A request that is passed on when a round begins reaches each node after its admission.
#[test]
fn request_follows_the_admission() {
    let mut t = running(2, 2, &["a", "b"]);
    assert_eq!(unstored(t.request("a", 1)), given(1, NoticeKind::Save));
    assert_eq!(t.request("a", 1), [], "the same request");
    t.request("a", 2);
    t.fail("b", Duration::ZERO);
    t.back("a");
    t.live(&["a", "b"], 60 * SECOND);
    let did = t.back("b");
    let admit = did.iter().position(|did| *did == Did::Admit("b", 2, 1));
    let notice = did.iter().position(|did| *did == Did::Notice("b", Some((2, NoticeKind::Save))));
    assert!(admit.is_some() && admit < notice, "{did:?}");
}

/// Two nodes that have saved before, in the phase for a third node that waits.
fn with_phase_for_members() -> Fixture {
    let mut t = running(1, 3, &["a", "b"]);
    t.checkpoint("a", 100);
    t.checkpoint("b", 100);
    t.join("d");
    assert_eq!(unstored(t.live(&["a", "b", "d"], 5 * SECOND)), given(1, NoticeKind::Members));
    t
}

/// After a first checkpoint, nodes that wait are admitted after another one.
#[test]
fn members_join_after_a_checkpoint() {
    let mut t = with_phase_for_members();
    assert_eq!(t.live(&["a", "b", "d"], 10 * SECOND), []);
    t.save("a", 1, 110);
    let did = t.save("b", 1, 110);
    let restarts = [Did::Remember(1, 0), Did::Restart("a", 1), Did::Restart("b", 1)];
    assert!(did.starts_with(&restarts), "{did:?}");
    t.back("a");
    t.back("b");
    assert_eq!(t.admissions["d"].group_world_size, 3);
}

/// Without `--notice`, or before a first checkpoint, nothing is saved first.
#[test]
fn members_join_at_once_before_a_first_checkpoint() {
    for (notice, saves) in [(NOTICE, false), (Duration::ZERO, true)] {
        let mut t = running_with(1, 3, &["a", "b"], |shared| shared.notice = notice);
        if saves {
            t.checkpoint("a", 100);
            t.checkpoint("b", 100);
        }
        t.join("d");
        let did = t.live(&["a", "b", "d"], 5 * SECOND);
        assert!(did.windows(2).any(|did| did == restarts()) && notices(did).is_empty());
    }
}

/// The phase for nodes that join is withdrawn when these are gone, or when a member has done all its work.
#[test]
fn phase_for_members_is_withdrawn() {
    let withdrawn = ["a", "b"].map(|name| Did::Notice(name, None));
    let mut t = with_phase_for_members();
    assert_eq!(t.die("d"), withdrawn);
    assert_eq!(notices(t.live(&["a", "b"], 2 * NOTICE)), []);
    assert!(!t.events.iter().any(|event| matches!(event.kind, EventKind::RoundEnded { .. })));
    let mut t = with_phase_for_members();
    t.save("a", 1, 110);
    assert_eq!(t.report("b", NodeState::Succeeded), withdrawn);
}

/// No node joins in a phase, nor while a member is about to leave.
#[test]
fn nobody_joins_in_a_phase() {
    let mut t = running(1, 3, &["a", "b"]);
    t.notice("b", leave());
    t.join("d");
    assert_eq!(t.live(&["a", "b", "d"], NOTICE - SECOND), []);
}

/// A step that all have saved for a notice counts in the next round too, and between two rounds, until work is done.
#[test]
fn complete_step_survives_rounds_without_work() {
    for is_running in [true, false] {
        let mut t = running(1, 2, &["a", "b"]);
        t.step("a", 90);
        t.save_and_leave(100);
        t.live(&["a"], 10 * SECOND);
        t.report("a", NodeState::Running);
        assert_eq!((t.rounds["a"].round.0, t.complete_step()), (2, Some(100)));
        if !is_running {
            t.fail("a", Duration::ZERO);
        }
        t.tell(
            "a",
            if is_running { NodeState::Running } else { NodeState::Preparing },
            end(),
            None,
        );
        assert_eq!(t.result(), Some(JobResult::Saved { step: 100 }));
    }
}

/// A job of a fixed size whose node has left gives up after the join timeout, and is saved.
#[test]
fn job_that_lacks_a_node_is_saved() {
    let mut t = running(2, 2, &["a", "b"]);
    t.save_and_leave(100);
    t.live(&["a"], 601 * SECOND);
    let Some(Outcome { result: JobResult::JoinTimeout { .. }, complete_step, .. }) = t.outcome()
    else {
        panic!("{:?}", t.outcome())
    };
    assert_eq!(complete_step, Some(100));
}

/// A coordinator that learns of a later round does not know if work was done in it.
#[test]
fn learned_round_clears_the_complete_step() {
    let mut t = running(2, 2, &["a", "b"]);
    t.save_and_leave(100);
    t.restart_coordinator();
    let mut registration = t.registration_of("a", NodeState::Running);
    registration.known_round.round.round.0 += 3;
    registration.report.round.round.0 += 3;
    t.register_with(registration);
    assert_eq!(t.complete_step(), None);
}

fn stuck(limit: u32) -> Fixture {
    running_with(2, 2, &["a", "b"], |shared| {
        shared.no_progress_limit = limit;
        shared.max_restarts = 9;
    })
}

/// A job that fails again and again before a new step is closed, although restarts are left.
#[test]
fn failures_without_progress_close_the_job() {
    let mut t = stuck(3);
    t.fail_at(Some(10));
    t.fail_at(Some(11));
    assert_eq!(t.result(), None);
    t.fail_at(Some(10));
    let rounds = [1, 2, 3].map(crate::ids::Round).into();
    assert_eq!(t.result(), Some(JobResult::NoProgress { rounds, step: Some(11) }));
    // The last failure is followed by no start, so it uses no restart.
    assert_eq!(t.job_state.restarts_used, 2);
}

/// Rounds that were not charged do not count.
#[test]
fn free_rounds_are_no_failures_without_progress() {
    let mut t = stuck(3);
    t.fail_at(Some(10));
    for (unreachable, other) in [("a", "b"), ("b", "a")] {
        t.report("a", NodeState::Running);
        t.report("b", NodeState::Running);
        t.step("a", 10);
        t.back(unreachable);
        t.back(other);
    }
    t.fail_at(Some(10));
    assert_eq!((t.result(), t.job_state.restarts_used), (None, 2));
    t.fail_at(Some(10));
    assert!(matches!(t.result(), Some(JobResult::NoProgress { .. })));
}

/// Failures before the first step close a job that has reported one before if they go on for long enough.
#[test]
fn failures_before_the_first_step_close_the_job() {
    let mut t = stuck(3);
    t.fail_at(Some(5));
    for _ in 0..3 {
        t.live(&["a", "b"], 300 * SECOND);
        t.fail_at(None);
    }
    assert!(matches!(t.result(), Some(JobResult::NoProgress { step: None, .. })));
}

/// If the third failure quarantines a node, another start may help without it.
#[test]
fn quarantine_comes_before_no_progress() {
    let mut t = running_with(1, 2, &["a", "b"], |shared| {
        shared.no_progress_limit = 3;
        shared.max_restarts = 9;
    });
    (0..3).for_each(|_| drop(t.fail_at(Some(10))));
    assert_eq!(t.result(), None);
    assert!(t.events.iter().any(|event| matches!(event.kind, EventKind::NodeQuarantined)));
}
