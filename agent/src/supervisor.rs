//! Starts, watches and ends the local workers, through the keeper.
//!
//! [`machine`] decides, [`driver`] carries out. Environment, log files and captured output of
//! workers have a file each; whatever needs `unsafe` is in `unix`.

pub mod arguments;
mod capture;
pub mod console;
pub mod driver;
pub mod environment;
mod error_file;
pub mod hang;
mod held_gpus;
mod keeper_link;
pub mod logs;
pub mod machine;
mod notices;
mod plumbing;
mod progress;
mod stacks;
mod tail;
pub mod timers;
pub(crate) mod unix;
