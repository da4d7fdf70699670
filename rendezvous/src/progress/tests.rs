//! What is kept about the training, and which work makes a saved step outdated.

use super::*;
use crate::{
    event::{RestartCause, RestartSum},
    fixture::{SECOND, TestJob},
    ids::{GlobalRank, Round},
    message::{RestartReason, WorkerEnd},
};

/// Two nodes whose round runs.
struct Training {
    t: TestJob,
    progress: TrainingProgress,
}

fn training() -> Training {
    let mut t = TestJob::new(1, 2, &["a", "b"]);
    t.begin_round(&["a", "b"]);
    let mut progress = TrainingProgress::new(t.job.clock, &mut t.job.state);
    progress.begin_round(t.job.clock, 2);
    Training { t, progress }
}

impl Training {
    /// All nodes report a step.
    fn step(&mut self, step: u64, source: StepSource) {
        ["a", "b"].iter().for_each(|name| self.step_of(name, step, source));
        self.progress.follow_steps(&self.t.job, &mut self.t.out);
    }

    fn step_of(&mut self, name: &str, step: u64, source: StepSource) {
        let (lowest, highest, age) = (step, step, Duration::ZERO);
        let progress = StepProgress { source, lowest, highest, total: None, age };
        let (job, out) = (&self.t.job, &mut self.t.out);
        self.progress.record_steps(job, &NodeId::new(name), &progress, out);
    }

    /// Returns the step of the job, and the nodes that have reported one, with the ages in seconds.
    fn newest(&self) -> (Option<u64>, Vec<(String, u64)>) {
        let (now, job) = (self.t.job.clock, &self.t.job);
        let ages = self.progress.ages(now, job).map(|(id, ms)| (id.to_string(), ms / 1_000));
        (self.progress.newest(now, job).map(|newest| newest.step), ages.collect())
    }

    fn checkpoint(&mut self, name: &str, step: u64) {
        let checkpoint = Checkpoint { step, is_whole: false, cost: None };
        let (job, out) = (&self.t.job, &mut self.t.out);
        self.progress.record_checkpoint(job, &NodeId::new(name), &checkpoint, out);
    }

    /// Ends the round after all have saved this step for a notice. The next one begins.
    fn save_and_begin_again(&mut self, step: u64) {
        self.progress.end_saving(self.t.job.clock, Some(step));
        let (job, out) = (&self.t.job, &mut self.t.out);
        let reason = RestartReason::NodesWaiting { waiting: 1 };
        self.progress.end_round(job, job.newest_round(), &reason, out);
        self.progress.begin_round(job.clock, 2);
        self.t.end_round();
        self.t.begin_round(&["a", "b"]);
    }

    fn complete_step(&self) -> Option<u64> {
        self.progress.training().complete_step
    }
}

/// A step that all have saved for a notice counts until a step or a newer checkpoint is reported. In a job that reports no steps, it counts
/// until workers run.
#[test]
fn work_clears_the_complete_step() {
    let saved = |source| {
        let mut training = training();
        training.step(90, source);
        training.save_and_begin_again(100);
        assert_eq!(training.complete_step(), Some(100), "before workers run");
        training.progress.workers_started(&training.t.job, &mut training.t.out);
        training
    };
    let mut training = saved(StepSource::Reported);
    training.checkpoint("a", 100);
    training.step(100, StepSource::Saved);
    assert_eq!(training.complete_step(), Some(100), "the same checkpoint");
    training.step(91, StepSource::Reported);
    assert_eq!(training.complete_step(), None);
    let mut training = saved(StepSource::Read);
    training.checkpoint("a", 101);
    assert_eq!(training.complete_step(), None);
    assert_eq!(saved(StepSource::Saved).complete_step(), None);
}

/// The next coordinator goes on from the longest pauses, from what was saved and from the last failures. It knows them by the state
/// of the job.
#[test]
fn training_outlives_the_coordinator() {
    let mut training = training();
    training.t.pass(7 * SECOND);
    training.step(1, StepSource::Reported);
    training.t.pass(400 * SECOND);
    training.step(2, StepSource::Reported);
    training.checkpoint("a", 2);
    assert_eq!(training.progress.training().saved_step, None, "one of two");
    training.checkpoint("b", 2);
    let end = WorkerEnd::Exited(1);
    let (round, rank, at) = (Round(1), GlobalRank(0), 407 * SECOND);
    let step = Some(2);
    let charged = ChargedRound { round, step, rank, end, at, began_from_memory: false };
    training.progress.charge(charged.clone(), Some(2));
    let now = training.t.job.clock;
    let mut state = training.t.job.state.clone();
    training.progress.keep(now, &mut state);
    let next = TrainingProgress::new(now, &mut state);
    let pauses = Pauses { longest: 400 * SECOND, first: 7 * SECOND };
    assert_eq!(next.account.pauses(), pauses);
    assert_eq!(next.account.seen(now).age(), 407 * SECOND);
    let known = next.training();
    assert_eq!((known.highest_step, known.saved_step), (Some(2), Some(2)));
    assert_eq!((&known.charged_rounds[..], known.step_at_charge), (&[charged][..], Some(2)));
}

/// A step counts if its node runs the newest round, and has reported so. Its age is that of the node. The next round begins without
/// steps.
#[test]
fn steps_are_those_of_the_running_round() {
    let mut training = training();
    training.t.join("c");
    training.step_of("c", 1, StepSource::Reported);
    assert_eq!(training.newest(), (None, vec![]));
    training.step_of("a", 50, StepSource::Reported);
    training.t.pass(SECOND);
    training.step_of("b", 50, StepSource::Reported);
    let ages = vec![("a".to_owned(), 1), ("b".to_owned(), 0)];
    assert_eq!(training.newest(), (Some(50), ages.clone()));
    training.t.end_round();
    training.step_of("a", 51, StepSource::Reported);
    assert_eq!(training.newest(), (Some(50), ages), "the round has ended");
    training.t.begin_round(&["a", "b"]);
    assert_eq!(training.newest(), (None, vec![]));
    training.t.report("a", |report| report.round.round.0 -= 1);
    training.step_of("a", 51, StepSource::Reported);
    assert_eq!(training.newest(), (None, vec![]), "it has not reported that it runs the round");
    training.step_of("b", 40, StepSource::Reported);
    assert_eq!(training.newest(), (Some(40), vec![("b".to_owned(), 0)]));
}

/// The interval between checkpoints is known after two of them.
#[test]
fn checkpoints_are_timed() {
    let mut training = training();
    for step in [1, 2] {
        training.t.pass(100 * SECOND);
        training.step(step, StepSource::Reported);
        training.checkpoint("a", step);
        training.checkpoint("b", step);
    }
    let times = training.progress.checkpoint_times(&training.t.job).expect("two checkpoints");
    assert_eq!((times.every_steps, times.every_ms), (1, 100_000));
    assert_eq!(training.progress.time_with_workers(training.t.job.clock), 200 * SECOND);
}

/// Failures that an earlier coordinator has forgiven stay forgiven.
#[test]
fn forgiven_failures_are_learned() {
    let mut training = training();
    for (learned, forgiven) in [(2, 2), (1, 2), (3, 3)] {
        training.progress.learn_forgiven(learned);
        assert_eq!(training.progress.training().restarts_forgiven, forgiven);
    }
}

/// A restart after a fault counts as a failure. A wanted one does not.
#[test]
fn unwanted_restarts_are_counted() {
    let counted = RestartCause::ALL.into_iter().filter(|cause| {
        let sum_of =
            |other| RestartSum { count: u32::from(other == *cause), ..RestartSum::default() };
        Restarts::new(RestartCause::ALL.map(sum_of)).failures() == 1
    });
    let names: Vec<&str> = counted.map(|cause| cause.name()).collect();
    let expected =
        ["worker_failed", "node_lost", "coordinator_lost", "coordinator_restarted", "bad_machine"];
    assert_eq!(names, expected);
}

/// A checkpoint that cannot be written is an event once, and is shown until its node reports none. Another node does not end it.
#[test]
fn failed_checkpoint_is_recorded_once() {
    let mut training = training();
    let [failed, fine] = [Some("no space"), None].map(|it| it.map(str::to_owned));
    for (name, reason, shown) in [
        ("a", &failed, &failed),
        ("a", &failed, &failed),
        ("b", &fine, &failed),
        ("a", &fine, &fine),
    ] {
        let (job, out) = (&training.t.job, &mut training.t.out);
        training.progress.record_failed_save(job, &NodeId::new(name), reason.clone(), out);
        assert_eq!(training.progress.failed_save(), *shown);
    }
    assert_eq!(training.t.events(), [EventKind::SaveFailed { reason: "no space".to_owned() }]);
}
