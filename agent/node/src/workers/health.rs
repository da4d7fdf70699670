//! Watches running workers: their progress, notices and timers, their stacks if they hang, and GPUs
//! that ended workers still hold.

pub(crate) mod held_gpus;
pub(crate) mod notices;
pub(crate) mod progress;
pub(crate) mod stacks;
pub mod timers;
