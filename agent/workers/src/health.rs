//! Watches running workers: their progress, reports and timers, and their stacks if they hang. Watches and checks the hardware of the node, and
//! waits for GPUs that ended workers still hold.

pub(crate) mod checks;
mod folders;
pub mod hardware;
pub(crate) mod held_gpus;
pub(crate) mod notice_file;
pub(crate) mod progress;
pub(crate) mod stacks;
pub mod timers;
pub(crate) mod worker_reports;
