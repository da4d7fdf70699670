//! Merges the checkpoints that the workers of a node report: the newest one that all of them have saved, and the
//! newest one that answers a notice.
//!
//! The machine has no process and no clock.

use std::{collections::BTreeMap, time::Duration};

use ragent_rendezvous::{
    ids::LocalRank,
    message::{Checkpoint, STEP_MAX, Saved},
    saved_steps::SavedSteps,
};

/// What a worker reports about a checkpoint.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SaveReport {
    /// The step that it has saved; `None` if only the cost of the last checkpoint is reported.
    pub step: Option<u64>,
    /// True if it has saved the parts of all ranks.
    pub is_whole: bool,
    /// The notice that it answers; zero if none.
    pub notice: u64,
    /// The time for which training paused.
    pub cost: Option<Duration>,
    /// The reason why the last checkpoint could not be written.
    pub failed: Option<String>,
}

/// The checkpoints of a node's workers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeSaves {
    /// The newest checkpoint of all of them.
    pub newest: Option<Checkpoint>,
    /// The newest checkpoint that answers the newest notice.
    pub answer: Option<Saved>,
    /// The newest notice that any of them has answered, and the workers without an answer.
    pub unanswered: Option<(u64, Vec<LocalRank>)>,
    /// The reason why the last checkpoint could not be written.
    pub failed: Option<String>,
}

/// The checkpoints of the workers of one group.
#[derive(Debug)]
pub struct SaveWatch {
    workers: usize,
    all: SavedSteps<LocalRank>,
    /// The newest notice that was answered, and the steps that answer it.
    notice: u64,
    answers: SavedSteps<LocalRank>,
    /// The newest step of which one worker has saved all parts.
    whole: Option<u64>,
    /// The same for checkpoints that answer the newest notice.
    whole_answer: Option<u64>,
    cost: Option<Duration>,
    failed: Option<String>,
    /// The steps that each worker has reported, apart from checkpoints.
    reached: BTreeMap<LocalRank, Reached>,
}

/// The steps that a worker has reported.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    highest: u64,
    /// The greatest distance of one reported step to the next.
    stride: u64,
}

impl Reached {
    /// A worker may report only each tenth step, and reports are lost while the agent is paused. A checkpoint that is
    /// ahead by more than these many reports is a mistake of the script.
    const LOST_MAX: u64 = 100;

    fn handle_step(&mut self, step: u64) {
        self.stride = self.stride.max(step.saturating_sub(self.highest));
        self.highest = self.highest.max(step);
    }

    fn may_have_reached(self, step: u64) -> bool {
        let ahead = step.saturating_sub(self.highest);
        ahead <= self.stride.max(1).saturating_mul(Self::LOST_MAX)
    }
}

impl SaveWatch {
    /// Starts to watch a group of this size.
    pub fn new(workers: u32) -> Self {
        Self {
            workers: workers as usize,
            all: SavedSteps::default(),
            notice: 0,
            answers: SavedSteps::default(),
            whole: None,
            whole_answer: None,
            cost: None,
            failed: None,
            reached: BTreeMap::new(),
        }
    }

    /// Notes that a worker has reported a training step.
    pub fn handle_step(&mut self, local_rank: LocalRank, step: u64) {
        // The first step says nothing about the distance: a worker may go on from a checkpoint.
        let first = Reached { highest: step, stride: 0 };
        self.reached.entry(local_rank).or_insert(first).handle_step(step);
    }

    /// Notes what a worker has saved. Returns false if the report is ignored, because the worker cannot have reached
    /// that step.
    pub fn handle_report(&mut self, local_rank: LocalRank, report: SaveReport) -> bool {
        let SaveReport { step, is_whole, notice, cost, failed } = report;
        self.cost = cost.or(self.cost);
        if step.is_some() || failed.is_some() {
            self.failed = failed;
        }
        let Some(step) = step else { return true };
        let reached = self.reached.get(&local_rank);
        if reached.is_some_and(|reached| !reached.may_have_reached(step)) || step > STEP_MAX {
            return false;
        }
        self.all.record(local_rank, step, is_whole);
        if is_whole {
            self.whole = self.whole.max(Some(step));
        }
        if notice > self.notice {
            self.notice = notice;
            self.answers = SavedSteps::default();
            self.whole_answer = None;
        }
        if notice == self.notice && notice > 0 {
            self.answers.record(local_rank, step, is_whole);
            if is_whole {
                self.whole_answer = self.whole_answer.max(Some(step));
            }
        }
        true
    }

    /// Returns what the workers have saved.
    pub fn saves(&self) -> NodeSaves {
        let newest = self.all.newest(self.workers).map(|step| Checkpoint {
            step,
            is_whole: self.whole == Some(step),
            cost: self.cost,
        });
        let answer = self.answers.newest(self.workers).map(|step| Saved {
            notice: self.notice,
            step,
            is_whole: self.whole_answer == Some(step),
        });
        let is_unanswered =
            |rank: &LocalRank| self.whole_answer.is_none() && !self.answers.has(rank);
        let ranks = (0..self.workers).filter_map(|rank| u32::try_from(rank).ok()).map(LocalRank);
        let unanswered =
            (self.notice > 0).then(|| (self.notice, ranks.filter(is_unanswered).collect()));
        NodeSaves { newest, answer, unanswered, failed: self.failed.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LocalRank = LocalRank(0);
    const B: LocalRank = LocalRank(1);

    fn saved(step: u64, notice: u64) -> SaveReport {
        SaveReport { step: Some(step), notice, ..SaveReport::default() }
    }

    fn steps(watch: &SaveWatch) -> (Option<u64>, Option<u64>) {
        let NodeSaves { newest, answer, .. } = watch.saves();
        (newest.map(|newest| newest.step), answer.map(|answer| answer.step))
    }

    /// A node has saved what all of its workers have saved.
    #[test]
    fn all_workers_must_have_saved() {
        let mut watch = SaveWatch::new(2);
        assert!(watch.handle_report(A, saved(120, 0)));
        assert_eq!(steps(&watch), (None, None));
        assert!(watch.handle_report(B, saved(130, 0)));
        assert_eq!(steps(&watch), (None, None), "120 and 130 are no checkpoint");
        assert_eq!(watch.saves().unanswered, None, "there is no notice");
        assert!(watch.handle_report(B, saved(120, 0)));
        assert_eq!(steps(&watch), (Some(120), None));
    }

    /// Only checkpoints for the newest notice answer it.
    #[test]
    fn earlier_notices_are_not_answered() {
        let mut watch = SaveWatch::new(2);
        watch.handle_report(A, saved(7, 1));
        watch.handle_report(B, saved(7, 1));
        assert_eq!(steps(&watch), (Some(7), Some(7)));
        watch.handle_report(A, saved(9, 2));
        assert_eq!(steps(&watch), (Some(7), None));
        watch.handle_report(B, saved(9, 1));
        assert_eq!(steps(&watch), (Some(9), None), "B has answered the first notice");
        assert_eq!(watch.saves().unanswered, Some((2, vec![B])));
        watch.handle_report(B, saved(9, 2));
        assert_eq!(watch.saves().answer, Some(Saved { notice: 2, step: 9, is_whole: false }));
    }

    /// One worker may save everything.
    #[test]
    fn one_worker_may_save_all_parts() {
        let mut watch = SaveWatch::new(8);
        watch.handle_report(A, SaveReport { is_whole: true, ..saved(7, 3) });
        assert_eq!(watch.saves().answer, Some(Saved { notice: 3, step: 7, is_whole: true }));
        assert!(watch.saves().newest.unwrap().is_whole);
    }

    /// A checkpoint far ahead of all steps of the worker is ignored. One a little ahead counts: the worker may report
    /// only some steps, and reports can be lost. A worker without steps may save any.
    #[test]
    fn steps_that_were_never_made_are_ignored() {
        let mut watch = SaveWatch::new(1);
        assert!(watch.handle_report(A, saved(50, 0)));
        watch.handle_step(A, 120);
        assert!(watch.handle_report(A, saved(120, 0)));
        assert!(!watch.handle_report(A, saved(221, 0)));
        assert!(watch.handle_report(A, saved(121, 0)));
        watch.handle_step(A, 130);
        assert!(watch.handle_report(A, saved(139, 0)));
        assert!(!watch.handle_report(A, saved(1_131, 0)));
        assert!(!watch.handle_report(A, saved(u64::MAX, 0)));
        assert_eq!(steps(&watch), (Some(139), None));
        assert!(watch.handle_report(A, saved(1_130, 0)), "it may report each tenth step");
        assert!(watch.handle_report(B, saved(STEP_MAX, 0)));
        assert!(!watch.handle_report(B, saved(STEP_MAX + 1, 0)));
    }

    /// The cost may follow later, alone.
    #[test]
    fn cost_may_follow() {
        let mut watch = SaveWatch::new(1);
        watch.handle_report(A, saved(5, 0));
        assert_eq!(watch.saves().newest.unwrap().cost, None);
        let cost = Some(Duration::from_secs(9));
        assert!(watch.handle_report(A, SaveReport { cost, ..SaveReport::default() }));
        assert_eq!(watch.saves().newest.unwrap().cost, cost);
    }

    /// A failed checkpoint is known until the next one is reported. A cost changes nothing.
    #[test]
    fn failure_lasts_until_the_next_checkpoint() {
        let mut watch = SaveWatch::new(2);
        let failed = Some("no space".to_owned());
        watch.handle_report(A, SaveReport { failed: failed.clone(), ..SaveReport::default() });
        watch.handle_report(A, SaveReport { cost: Some(Duration::ZERO), ..SaveReport::default() });
        assert_eq!(watch.saves().failed, failed);
        watch.handle_report(A, SaveReport { is_whole: true, ..saved(7, 0) });
        assert_eq!(watch.saves().failed, None);
    }
}
