//! Counters of the coordinator for `GET /metrics`.

use ragent_base::report::measures::{Histogram, Number};

/// The counters of a process that coordinates, or may do so.
#[derive(Debug, Default)]
pub struct CoordinatorMeasures {
    /// The times for one input: its handling by the machine, and the effects.
    pub(super) inputs: Histogram,
    /// The number of times that this process was elected to coordinate a job that had a round.
    pub(super) takeovers: Number,
}
