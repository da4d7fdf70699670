//! One node's part in a job: attends the coordinator, runs workers when it is admitted.
//!
//! Two pure machines: [`link`] keeps the attendance (keep-alives, lease, further connections),
//! [`machine`] decides when to join, start, stop and leave. [`driver`] carries out what both say.

pub mod driver;
pub mod link;
pub mod machine;
pub mod worker_stores;
