//! Which worker hangs, and which answers to a look count.

use std::ops::RangeInclusive;

use super::*;
use crate::{
    event::EventId,
    fixture::{SECOND, TestJob},
    ids::{Round, Term},
    message::{Digest, LookPart, StepProgress, StepSource, WorkerLook},
    training::ChargedRound,
};

/// Two nodes of a worker each.
struct Stalling {
    t: TestJob,
    progress: TrainingProgress,
    stalls: JobStalls,
}

fn training(hang_auto: bool) -> Stalling {
    let mut job = running(hang_auto);
    job.train(1..=10);
    job
}

fn running(hang_auto: bool) -> Stalling {
    let mut t = TestJob::with(2, 2, &["a", "b"], |shared| shared.hang_auto = hang_auto);
    t.begin_round(&["a", "b"]);
    let mut progress = TrainingProgress::new(t.job.clock, &mut t.job.state);
    progress.begin_round(t.job.clock, 2);
    Stalling { t, progress, stalls: JobStalls::default() }
}

impl Stalling {
    /// All nodes make these steps, one a second.
    fn train(&mut self, steps: RangeInclusive<u64>) {
        for step in steps {
            self.t.pass(SECOND);
            let (lowest, highest, source) = (step, step, StepSource::Reported);
            let progress =
                StepProgress { source, lowest, highest, total: None, age: Duration::ZERO };
            for name in ["a", "b"] {
                let (job, out) = (&self.t.job, &mut self.t.out);
                self.progress.record_steps(job, &NodeId::new(name), &progress, out);
                if let Some(step) = self.progress.follow_steps(job, out) {
                    self.stalls.end_stall(job, Some(step), out);
                }
            }
        }
    }

    /// Lets time pass, in which the workers wait because of a notice if `is_excused`. Returns the rank that counts as hung.
    fn pass(&mut self, seconds: u32, is_excused: bool) -> Option<u32> {
        let until = self.t.job.clock + seconds * SECOND;
        loop {
            let (job, out) = (&self.t.job, &mut self.t.out);
            let wait = is_excused.then_some(OwnWait::Notice);
            self.progress.account.excuse(job.clock, is_excused);
            self.stalls.follow(job, &self.progress, wait, is_excused, out);
            if self.t.job.clock == until {
                return self.stalls.hung().map(|hung| hung.rank.0);
            }
            let due = self.stalls.deadline(&self.t.job, &self.progress);
            self.t.job.clock = due.map_or(until, |due| due.min(until));
        }
    }

    fn request_look(&mut self) {
        self.stalls.request_look(&self.t.job, &mut self.t.out);
    }

    /// Returns the answer of a node to a look: its worker is in this line.
    fn digest(&self, name: &str, look: u64, part: LookPart) -> Digest {
        let rank = GlobalRank(u32::from(name == "b"));
        let line = Some("load_batch at data.py:88".to_owned());
        let workers = vec![WorkerLook { rank, line, ..WorkerLook::default() }];
        Digest { workers, ..Digest::new(self.t.job.newest_round(), look, part) }
    }

    fn answer(&mut self, name: &str, digest: Digest) {
        let (job, out) = (&self.t.job, &mut self.t.out);
        self.stalls.handle_digest(job, &NodeId::new(name), digest, out);
    }

    /// Both nodes answer a part of a look, after this change.
    fn answer_both(&mut self, look: u64, part: LookPart, change: impl Fn(&str, &mut Digest)) {
        for name in ["b", "a"] {
            let mut digest = self.digest(name, look, part);
            change(name, &mut digest);
            self.answer(name, digest);
        }
    }

    /// Returns the number of the newest look that is shown, its sentence, and its places.
    fn shown(&self) -> Option<(u64, Option<String>, Vec<String>)> {
        let look = self.stalls.shown_look(self.t.job.clock)?;
        let places = look.places.into_iter().map(|place| place.text).collect();
        Some((look.number, look.text, places))
    }

    fn look(&self) -> Option<(u64, LookPart)> {
        self.stalls.look().map(|look| (look.number, look.part))
    }
}

/// Without a step for a quarter of an hour, a worker hangs, unless a known reason makes it wait. After such a pause, the time begins
/// again.
#[test]
fn known_reasons_are_no_hangs() {
    let mut job = training(true);
    assert_eq!((job.pass(899, false), job.pass(1, false)), (None, Some(0)));
    let mut job = training(true);
    assert_eq!((job.pass(61, false), job.pass(2_000, true)), (None, None));
    assert_eq!((job.pass(899, false), job.pass(2, false)), (None, Some(0)));
    let mut job = training(false);
    assert_eq!(job.pass(10_000, false), None);
    assert!(job.stalls.stall(job.t.job.clock).is_some());
}

/// If the last charged round has ended with a hang at the same step, the time is twice as long. It is never shorter than three times
/// the limit of a stall.
#[test]
fn time_is_doubled_at_the_same_step() {
    let seconds = |reached: Option<u64>, limit: u32, end: WorkerEnd, step: Option<u64>| {
        let mut job = running(true);
        reached.into_iter().for_each(|step| job.train(step..=step));
        let (round, rank, at) = (Round(1), GlobalRank(0), Duration::ZERO);
        let charged = ChargedRound { round, step, rank, end, at, began_from_memory: false };
        job.progress.charge(charged, None);
        let event = EventId { term: Term(1), number: 1 };
        let stall = StalledRound::new(job.t.job.clock, reached, limit * SECOND, event);
        hang_time(job.t.job.newest_round(), &stall, &job.progress).as_secs()
    };
    let hung = |seconds: u32| WorkerEnd::Hung(seconds * SECOND);
    assert_eq!(seconds(Some(11), 60, hung(900), Some(10)), 1_800);
    assert_eq!(seconds(Some(10), 60, hung(1_800), Some(11)), 3_600);
    assert_eq!(seconds(None, 60, hung(900), None), 1_800);
    assert_eq!(seconds(Some(12), 60, hung(900), Some(10)), 900, "the job got further");
    assert_eq!(seconds(Some(10), 60, hung(60), Some(10)), 900, "it was stopped");
    assert_eq!(seconds(Some(10), 60, WorkerEnd::Exited(1), Some(10)), 900);
    assert_eq!(seconds(Some(10), 2_400, hung(900), Some(10)), 7_200);
}

/// Answers to another look, about another round, or of nodes without a place do not count. After a step, no answer does.
#[test]
fn late_answers_do_not_count() {
    let mut job = training(false);
    job.t.join("c");
    job.pass(60, false);
    let right = job.digest("a", 1, LookPart::First);
    job.answer("c", right.clone());
    job.answer("a", Digest { look: 2, ..right.clone() });
    job.answer("a", Digest { round: RoundId::default(), ..right.clone() });
    let other = job.digest("b", 1, LookPart::First);
    job.answer("b", other);
    assert_eq!(job.shown(), None);
    job.train(11..=11);
    assert_eq!(job.look(), None, "a step ends it");
    job.answer("a", right.clone());
    assert_eq!(job.shown(), None);
    job.pass(122, false);
    assert_eq!(job.look(), Some((2, LookPart::First)));
    job.answer("a", right);
    let other = job.digest("b", 2, LookPart::First);
    job.answer("b", other);
    assert_eq!(job.shown(), None);
}

/// A requested look explains a job without any step too. It begins no stall, and nothing is recorded.
#[test]
fn requested_look_is_explained() {
    let mut job = running(false);
    job.request_look();
    let text = "rank 1 on b has not reached the store at a.example:4242; 1 of 2 have";
    for (part, suffix) in [(LookPart::First, ""), (LookPart::Second, " (unchanged after 10 s)")] {
        job.answer_both(1, part, |name, digest| {
            digest.workers[0].has_reached_store = Some(name == "a");
        });
        let (_, sentence, _) = job.shown().expect("a look");
        assert_eq!(sentence, Some(format!("{text}{suffix}")));
        job.pass(10, false);
    }
    job.pass(2_000, false);
    assert_eq!((job.stalls.stall(job.t.job.clock), job.t.events()), (None, vec![]));
}

/// If all workers are in one place, and nothing else is known, a sentence would only repeat the place.
#[test]
fn only_place_is_not_repeated() {
    let mut job = running(false);
    job.request_look();
    for part in [LookPart::First, LookPart::Second] {
        job.answer_both(1, part, |_, digest| {
            digest.workers[0].line = None;
            digest.workers[0].waits_in = Some("hrtimer_nanosleep".to_owned());
        });
        let place = vec!["in the kernel in hrtimer_nanosleep".to_owned()];
        assert_eq!(job.shown(), Some((1, None, place)));
        job.pass(10, false);
    }
}

/// A request after the first answers to a look is answered by the next look, so a job has at most one in ten seconds. An earlier
/// one is answered by this look.
#[test]
fn requests_of_looks_are_spaced() {
    let mut job = training(false);
    job.request_look();
    job.request_look();
    job.answer_both(1, LookPart::First, |_, _| {});
    job.request_look();
    job.request_look();
    job.pass(10, false);
    assert_eq!(job.look(), Some((1, LookPart::Second)));
    job.answer_both(1, LookPart::Second, |_, _| {});
    assert_eq!(job.look(), Some((2, LookPart::First)));
    job.answer_both(2, LookPart::First, |_, _| {});
    assert_eq!(job.shown().map(|(number, ..)| number), Some(2));
    job.pass(10, false);
    let look = job.stalls.shown_look(job.t.job.clock).expect("a look");
    assert_eq!(look.age_ms, 10_000);
    job.answer_both(2, LookPart::Second, |_, _| {});
    assert_eq!(job.look(), None);
    // The numbers go on in the next round, so that a late answer is recognized.
    job.stalls.end_round(&job.t.job, &mut job.t.out);
    job.request_look();
    assert_eq!(job.look(), Some((3, LookPart::First)));
}
