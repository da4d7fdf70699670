//! Copies the output of workers to the console and to log files, in the agent and, when it is gone,
//! in the keeper.

pub mod capture;
pub mod console;
pub mod flow;
mod journal;
pub mod limits;
pub mod lines;
pub mod logs;
pub mod pipes;
pub mod sources;
pub mod tail;
pub mod temp_folders;
