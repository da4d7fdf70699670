//! Counts what the coordinator does, for `GET /metrics`.

use ragent_base::report::measures::{Histogram, Number};

/// The counters of a process that coordinates or may coordinate.
#[derive(Debug, Default)]
pub struct CoordinatorMeasures {
    /// The time for each input: its handling by the machine, and the effects.
    pub(crate) inputs: Histogram,
    /// The elections of this process as coordinator of a job that had a round.
    pub(crate) takeovers: Number,
}
