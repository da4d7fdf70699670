//! Defines the training step that the workers of a node have reached.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The highest step and number of steps. Programs that read JSON numbers as floating point still read it
/// exactly.
pub const STEP_MAX: u64 = (1 << 53) - 1;

/// The origin of a training step. The smaller value is more reliable.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum StepSource {
    /// The script reports it.
    Reported,
    /// It is read from the output of the workers.
    Read,
    /// It is the step of a checkpoint. Used only if the script reports no steps, and none are read.
    Saved,
}

impl StepSource {
    /// All sources, the most reliable one first.
    pub const ALL: [Self; 3] = [Self::Reported, Self::Read, Self::Saved];
}

/// The training steps that the workers of one node have reached in its newest round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StepProgress {
    /// The origin of the steps. Workers with steps of another origin are not included.
    pub source: StepSource,
    /// The lowest step of all workers.
    pub lowest: u64,
    /// The highest step of all workers; at least `lowest`, and at most [`STEP_MAX`].
    pub highest: u64,
    /// The number of steps of the whole training, if known; at most [`STEP_MAX`].
    pub total: Option<u64>,
    /// The time since a worker has reached another step.
    pub age: Duration,
}
