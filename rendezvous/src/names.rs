//! The names of values, for programs and for people. Journals and metrics contain them, so they never change.

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
            /// Returns the name, such as `node_lost`.
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
