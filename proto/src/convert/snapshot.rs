//! Reads the state of a job that was received as JSON.

use std::error::Error;

use ragent_rendezvous::snapshot::Snapshot;

use super::{millis, progress::optional_step, to_millis, v1};
use crate::printable::printable_json;

/// Reads a state that was received. Afterwards, its texts may be printed, and its steps may be added.
///
/// # Errors
///
/// Returns an error if the text is not the JSON of a state, or if a step is out of its range.
pub fn state_from_json(json: &str) -> Result<Snapshot, Box<dyn Error + Send + Sync>> {
    let mut snapshot: Snapshot = serde_json::from_str(&printable_json(json)?)?;
    // With the checks of messages that have an outcome.
    let outcome = snapshot.outcome.take().map(|outcome| v1::Outcome::from(outcome).try_into());
    snapshot.outcome = outcome.transpose()?;
    if let Some(progress) = &snapshot.progress {
        for step in [Some(progress.step), Some(progress.highest), progress.steps_left] {
            optional_step(step, "progress.step")?;
        }
        millis(to_millis(progress.step_time.unwrap_or_default()), "progress.step_ms")?;
    }
    optional_step(snapshot.saved_step, "saved_step")?;
    optional_step(snapshot.stall.as_ref().and_then(|stall| stall.step), "stall.step")?;
    optional_step(snapshot.memory.as_ref().and_then(|memory| memory.step), "memory.step")?;
    Ok(snapshot)
}
