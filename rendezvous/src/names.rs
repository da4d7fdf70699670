//! Derives the names of values from their variants. Journals and metrics contain them, so they never change.
//!
//! If you rename a variant, keep its name with `#[strum(serialize = "...")]`, and for JSON with
//! `#[serde(rename = "...")]`.

use crate::{
    event::{EventKind, RestartCause},
    incomplete::Incomplete,
    message::{
        EvictReason, HealthClass, JobResult, NoticeKind, RefuseReason, RestartReason, StepSource,
        UnusableReason,
    },
    progress::account::TimeState,
    snapshot::{NodeStateName, PhaseName},
};

macro_rules! named {
    ($($value:ty),+ $(,)?) => {$(
        impl $value {
            /// Returns the stable name in snake case, for programs and for people.
            pub fn name(&self) -> &'static str {
                self.into()
            }
        }
    )+};
}

named!(
    EventKind,
    EvictReason,
    HealthClass,
    Incomplete,
    JobResult,
    NodeStateName,
    NoticeKind,
    PhaseName,
    RefuseReason,
    RestartCause,
    RestartReason,
    StepSource,
    TimeState,
    UnusableReason,
);
