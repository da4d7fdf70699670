//! Copies the output of workers to the console and to log files, in the agent and, when it is gone,
//! in the keeper.

mod begun_line;
pub mod capture;
pub mod console;
pub mod filters;
pub mod flow;
pub mod limits;
pub mod lines;
pub mod logs;
mod pipes;
pub mod sources;
pub mod streams;
pub mod tail;
pub mod temp_folders;
