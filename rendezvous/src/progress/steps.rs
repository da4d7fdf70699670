//! Merges the training steps of the nodes into one step of the job, and measures the usual time of a step.
//!
//! A job has reached the lowest step of its members. Only steps from the most reliable source count: steps
//! that scripts report, else steps that are read from output. Numbers from different sources may not be
//! comparable. A step may go back, because a script may return to a checkpoint without a new round.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use crate::{
    ids::{NodeId, RoundId},
    limits::STEP_TIMES_MAX,
    message::{StepProgress, StepSource},
    snapshot::JobProgress,
};

/// The training steps of the nodes in one round.
///
/// Invariant: `lowest` and `highest` count the steps in `nodes`, so that the job's step needs no search among
/// 10,000 nodes.
#[derive(Debug, Default)]
pub(crate) struct JobSteps {
    round: RoundId,
    nodes: BTreeMap<NodeId, ReportedSteps>,
    lowest: Counts,
    highest: Counts,
    /// The number of all steps, as a node has last named it, by source.
    totals: BTreeMap<StepSource, u64>,
    /// The time at which a worker of any node last reached another step.
    latest: Option<Instant>,
    /// The highest step of a checkpoint.
    saved: Option<u64>,
    pace: StepPace,
}

/// The number of nodes at each step. Steps that count for the job come first.
type Counts = BTreeMap<(StepSource, bool, u64), u32>;

/// The steps of one node.
#[derive(Clone, Copy, Debug)]
struct ReportedSteps {
    source: StepSource,
    lowest: u64,
    highest: u64,
    /// The number of all steps, if it came with them.
    total: Option<u64>,
    /// The time at which one of its workers last reached another step.
    at: Instant,
}

impl ReportedSteps {
    /// Returns true if all its counters have reached their ends. They may have shown something else than
    /// training, and such a node may never print again. So another node, which goes on, decides.
    fn has_ended(&self) -> bool {
        self.source == StepSource::Read && self.total == Some(self.lowest)
    }

    /// Returns the keys of its lowest and highest step.
    fn keys(&self) -> [(StepSource, bool, u64); 2] {
        [self.lowest, self.highest].map(|step| (self.source, self.has_ended(), step))
    }
}

impl JobSteps {
    /// Records the steps of a member of `round`, and forgets those of an earlier round. Returns true if one
    /// of its workers has reached another step.
    pub(crate) fn record(
        &mut self,
        now: Instant,
        round: RoundId,
        id: &NodeId,
        progress: &StepProgress,
    ) -> bool {
        self.begin(round);
        let StepProgress { source, lowest, highest, total, age } = *progress;
        let at = now.checked_sub(age).unwrap_or(now);
        let before = self.nodes.get(id).copied();
        let steps = ReportedSteps { source, lowest, highest, total, at };
        if let Some(total) = total {
            self.totals.insert(source, total);
        }
        let [lowest, highest] = steps.keys();
        if let Some(old) = before.map(|old| old.keys()) {
            if old == [lowest, highest] {
                return false;
            }
            let [old_lowest, old_highest] = old;
            remove(&mut self.lowest, old_lowest);
            remove(&mut self.highest, old_highest);
        }
        *self.lowest.entry(lowest).or_default() += 1;
        *self.highest.entry(highest).or_default() += 1;
        self.nodes.insert(id.clone(), steps);
        if let Some(old) = before.filter(|_| source == StepSource::Read && total.is_none()) {
            self.forget_total(&old);
        }
        self.latest = self.latest.max(Some(at));
        true
    }

    /// Records a checkpoint of a member of `round`. Its step counts also if the steps of the node are read from its
    /// output.
    pub(crate) fn record_saved(&mut self, round: RoundId, step: u64) {
        self.begin(round);
        self.saved = self.saved.max(Some(step));
    }

    fn begin(&mut self, round: RoundId) {
        if self.round != round {
            *self = Self { round, ..Self::default() };
        }
    }

    /// Forgets the number of all steps that came with the old steps of a node, unless another node still has
    /// it. It belonged to something else, such as a progress bar before the training.
    fn forget_total(&mut self, old: &ReportedSteps) {
        let is_known = old.total.is_some() && self.totals.get(&old.source) == old.total.as_ref();
        let is_same =
            |other: &ReportedSteps| (other.source, other.total) == (old.source, old.total);
        if is_known && !self.nodes.values().any(is_same) {
            self.totals.remove(&old.source);
        }
    }

    /// Applies the steps of a node to the pace of the job.
    pub(crate) fn advance(&mut self, now: Instant, id: &NodeId) {
        let at = self.nodes.get(id).map_or(now, |steps| steps.at);
        if let Some((source, _, step)) = self.first() {
            self.pace.handle_step(at, source, step);
        }
    }

    /// Returns the lowest step that counts. If all counters have reached their ends, the last one has shown
    /// the training.
    fn first(&self) -> Option<(StepSource, bool, u64)> {
        let (&lowest, _) = self.lowest.first_key_value()?;
        let (source, has_ended, _) = lowest;
        let last = self.totals.get(&source).map(|total| (source, has_ended, *total));
        Some(last.filter(|last| has_ended && self.lowest.contains_key(last)).unwrap_or(lowest))
    }

    /// Returns the steps if they belong to `round`.
    pub(crate) fn of_round(&self, round: RoundId) -> Option<&Self> {
        (self.round == round).then_some(self)
    }

    /// Returns the steps of the job; `None` if no node has reported any.
    pub(crate) fn merged(&self, now: Instant) -> Option<JobProgress> {
        let (source, has_ended, step) = self.first()?;
        let highest = if has_ended {
            step
        } else {
            let of_source = (source, false, 0)..=(source, false, u64::MAX);
            let (&(_, _, highest), _) = self.highest.range(of_source).next_back()?;
            highest
        };
        Some(JobProgress {
            source,
            step,
            highest,
            steps_left: self.steps_left(),
            step_time: self.pace.usual(),
            age: now.saturating_duration_since(self.latest?),
        })
    }

    /// Returns the number of steps after the step of the job, if the number of all steps is known.
    pub(crate) fn steps_left(&self) -> Option<u64> {
        let (source, _, step) = self.first()?;
        self.totals.get(&source).map(|total| total.saturating_sub(step))
    }

    /// Returns the highest step that a worker has reported or saved.
    pub(crate) fn highest_reported(&self) -> Option<u64> {
        let is_reported = |source: &StepSource| *source != StepSource::Read;
        let steps = self.highest.keys().filter(|(source, _, _)| is_reported(source));
        steps.map(|(_, _, step)| *step).max().max(self.saved)
    }

    /// Returns the nodes by id, with the time since one of their workers has reached another step.
    pub(crate) fn ages(&self, now: Instant) -> impl Iterator<Item = (&NodeId, Duration)> {
        self.nodes.iter().map(move |(id, steps)| (id, now.saturating_duration_since(steps.at)))
    }
}

fn remove(counts: &mut Counts, key: (StepSource, bool, u64)) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

/// The times of the recent steps.
#[derive(Debug, Default)]
struct StepPace {
    /// The last step of the job, and the time at which it was reached.
    last: Option<(Instant, StepSource, u64)>,
    /// The mean time of a step between two reports, for the recent reports; at most [`STEP_TIMES_MAX`].
    recent: VecDeque<Duration>,
}

impl StepPace {
    /// Notes that the job was at `step` at that time. A step that goes back begins a new measurement.
    fn handle_step(&mut self, at: Instant, source: StepSource, step: u64) {
        let Some((before, old_source, old_step)) = self.last else {
            self.last = Some((at, source, step));
            return;
        };
        if old_source != source {
            *self = Self { last: Some((at, source, step)), recent: VecDeque::new() };
            return;
        }
        let steps = step.checked_sub(old_step).and_then(|steps| u32::try_from(steps).ok());
        let time = at.saturating_duration_since(before);
        match steps {
            Some(0) => return,
            Some(steps) if !(time / steps).is_zero() => {
                self.recent.push_back(time / steps);
                if self.recent.len() > STEP_TIMES_MAX {
                    self.recent.pop_front();
                }
            }
            Some(_) | None => {}
        }
        self.last = Some((at.max(before), source, step));
    }

    /// Returns the usual time of a step: the median, which an occasional checkpoint does not change.
    fn usual(&self) -> Option<Duration> {
        let mut times: Vec<Duration> = self.recent.iter().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests;
