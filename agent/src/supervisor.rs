//! Starts, watches and ends the local workers, through the keeper.
//!
//! [`ragent_core::supervisor`] decides, [`driver`] carries out. Environment, log files and captured
//! output of workers have a file each; all `unsafe` code is in `unix`.

pub mod arguments;
mod capture;
pub mod console;
pub mod driver;
pub mod environment;
mod error_file;
pub(crate) mod flow;
mod held_gpus;
mod journal;
mod keeper_link;
pub(crate) mod leftovers;
mod lines;
pub mod logs;
mod notices;
mod pipes;
mod plumbing;
mod progress;
mod stacks;
mod tail;
pub mod timers;
pub(crate) mod unix;
