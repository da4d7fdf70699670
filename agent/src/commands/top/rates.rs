//! Keeps the step rates that were seen so far.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    ids::Round,
    message::StepSource,
    snapshot::{JobProgress, Snapshot},
};

/// The number of rates that are kept and shown.
const SAMPLES_MAX: usize = 20;

/// The steps per second since the view was opened, oldest first.
#[derive(Debug, Default)]
pub(super) struct Rates {
    samples: VecDeque<f64>,
    last: Option<Reached>,
}

/// A step, and when it was reached.
#[derive(Clone, Copy, Debug)]
struct Reached {
    round: Round,
    source: StepSource,
    step: u64,
    at: Instant,
}

impl Rates {
    /// Adds the rate since the last state, if the workers have reached another step.
    pub(super) fn add(&mut self, snapshot: &Snapshot, received: Instant) {
        let Some(JobProgress { source, step, age, .. }) = snapshot.progress else { return };
        let at = received.checked_sub(age).unwrap_or(received);
        let reached = Reached { round: snapshot.round, source, step, at };
        let Some(last) = self.last else {
            self.last = Some(reached);
            return;
        };
        let is_comparable = last.round == reached.round && last.source == source;
        if is_comparable && step == last.step {
            return;
        }
        let time = reached.at.saturating_duration_since(last.at);
        // After a restart, steps are done again and have no rate.
        if is_comparable && step > last.step && time >= TIME_MIN {
            self.samples.push_back((step - last.step) as f64 / time.as_secs_f64());
            while self.samples.len() > SAMPLES_MAX {
                self.samples.pop_front();
            }
        } else if is_comparable && step > last.step {
            // The next state covers a longer time, which is more exact.
            return;
        }
        self.last = Some(reached);
    }

    /// Returns the rates as a line of bars.
    pub(super) fn bars(&self) -> String {
        const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = self.samples.iter().fold(0.0, |most: f64, rate| most.max(*rate));
        (self.samples.iter())
            .map(|rate| {
                let level = if most > 0.0 { (rate / most * 7.0).round() as usize } else { 0 };
                LEVELS[level.min(7)]
            })
            .collect()
    }
}

/// The shortest time over which a rate is computed.
const TIME_MIN: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use ragent_base::sys::clock;
    use ragent_base::testing::empty_snapshot;

    use super::*;

    fn at(round: u64, step: u64, age_ms: u64) -> Snapshot {
        let progress = JobProgress {
            source: StepSource::Read,
            step,
            highest: step,
            steps_left: None,
            step_time: None,
            age: Duration::from_millis(age_ms),
        };
        Snapshot { round: Round(round), progress: Some(progress), ..empty_snapshot() }
    }

    /// A rate is computed between two steps, from the times at which they were reached. Steps that are done again have no rate.
    #[test]
    fn rates_are_those_between_steps() {
        let start = clock::now();
        let mut rates = Rates::default();
        let mut add = |ms, snapshot| rates.add(&snapshot, start + Duration::from_millis(ms));
        add(1_000, at(1, 10, 0));
        add(2_000, at(1, 20, 0));
        add(2_050, at(1, 21, 0));
        add(3_500, at(1, 21, 1_000));
        add(3_000, at(1, 25, 0));
        add(5_000, at(2, 20, 0));
        add(6_000, at(2, 25, 0));
        add(6_000, empty_snapshot());
        assert_eq!(rates.samples, [10.0, 2.0, 8.0, 5.0]);
        assert_eq!((Rates::default().bars(), rates.bars()), (String::new(), "█▂▇▅".to_owned()));
    }

    /// The history has a bound.
    #[test]
    fn history_is_bounded() {
        let start = clock::now();
        let mut rates = Rates::default();
        for second in 0..1_000 {
            rates.add(&at(1, second * second, 0), start + Duration::from_secs(second));
        }
        assert_eq!(rates.samples.len(), SAMPLES_MAX);
        assert_eq!(rates.bars().chars().count(), SAMPLES_MAX);
    }
}
