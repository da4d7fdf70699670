//! Converts the training steps of a node. A source that only a newer peer knows counts as unknown.

use std::time::Duration;

use ragent_rendezvous::message::{STEP_MAX, StepProgress, StepSource};

use crate::{Malformed, v1};

/// Parses the steps of a node.
pub(super) fn of_node(
    progress: Option<v1::StepProgress>,
) -> Result<Option<StepProgress>, Malformed> {
    let Some(progress) = progress else { return Ok(None) };
    let Ok(source) = StepSource::try_from(progress.source()) else { return Ok(None) };
    let v1::StepProgress { source: _, lowest, spread, total, age_ms } = progress;
    Ok(Some(StepProgress {
        source,
        lowest: step(lowest, "progress.lowest")?,
        highest: step(lowest.saturating_add(spread), "progress.spread")?,
        total: total.map(|total| step(total, "progress.total")).transpose()?,
        age: Duration::from_millis(age_ms.into()),
    }))
}

/// Parses a training step.
pub(super) fn step(step: u64, field: &'static str) -> Result<u64, Malformed> {
    if step > STEP_MAX {
        return Err(Malformed::OutOfRange(field));
    }
    Ok(step)
}

/// Parses a training step that may be unknown.
pub(super) fn optional_step(
    value: Option<u64>,
    field: &'static str,
) -> Result<Option<u64>, Malformed> {
    value.map(|value| step(value, field)).transpose()
}

impl From<StepProgress> for v1::StepProgress {
    fn from(StepProgress { source, lowest, highest, total, age }: StepProgress) -> Self {
        Self {
            source: v1::StepSource::from(source).into(),
            lowest,
            spread: highest.saturating_sub(lowest),
            total,
            age_ms: u32::try_from(age.as_millis()).unwrap_or(u32::MAX),
        }
    }
}

enumeration!(StepSource, StepSource, "progress.source", [Reported, Read, Saved]);

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn progress() -> StepProgress {
        StepProgress {
            source: StepSource::Reported,
            lowest: 1_000_000,
            highest: 1_000_100,
            total: Some(2_000_000),
            age: Duration::from_millis(600_000),
        }
    }

    /// Any progress is received as it was sent.
    #[test]
    fn progress_is_received() {
        let all = [
            progress(),
            StepProgress { source: StepSource::Read, total: None, ..progress() },
            StepProgress { lowest: 0, highest: STEP_MAX, ..progress() },
        ];
        for sent in all {
            assert_eq!(of_node(Some(sent.into())), Ok(Some(sent)));
        }
    }

    /// The progress adds at most 24 bytes to a keep-alive.
    #[test]
    fn progress_is_small() {
        let keep_alive = |progress: Option<StepProgress>| {
            let progress = progress.map(Into::into);
            v1::KeepAlive { sequence: 7, progress, ..Default::default() }.encoded_len()
        };
        assert!(keep_alive(Some(progress())) - keep_alive(None) <= 24);
        assert_eq!(v1::KeepAlive { sequence: 7, ..Default::default() }.encoded_len(), 2);
    }

    /// The progress of an unknown source is none, and a step beyond the range is malformed.
    #[test]
    fn progress_is_checked() {
        let changed = |change: fn(&mut v1::StepProgress)| {
            let mut message = v1::StepProgress::from(progress());
            change(&mut message);
            of_node(Some(message))
        };
        assert_eq!(changed(|message| message.source = 0), Ok(None));
        assert_eq!(changed(|message| message.source = 77), Ok(None));
        let out_of_range = |field| Err(Malformed::OutOfRange(field));
        let lowest = changed(|message| message.lowest = STEP_MAX + 1);
        assert_eq!(lowest, out_of_range("progress.lowest"));
        let spread = changed(|message| message.spread = u64::MAX);
        assert_eq!(spread, out_of_range("progress.spread"));
        let total = changed(|message| message.total = Some(u64::MAX));
        assert_eq!(total, out_of_range("progress.total"));
    }
}
