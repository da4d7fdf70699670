//! Copies the output of workers to the console and to log files, in the agent and, when it is gone,
//! in the keeper.

pub(crate) mod capture;
pub mod console;
pub(crate) mod flow;
mod journal;
pub(crate) mod limits;
pub(crate) mod lines;
pub mod logs;
mod pipes;
pub mod screen;
pub(crate) mod tail;
pub(crate) mod temp_folders;
