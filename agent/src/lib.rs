//! Starts, watches and re-forms distributed training jobs: the parts of the program `ragent`.
//!
//! [`cli`] parses the arguments, and [`commands`] has a file for each command; `commands/run.rs`
//! contains the course of a launch. The modules form layers, and each imports only from lower ones:
//! [`commands`] at the top, then [`endpoint`] (who hosts), [`node`] (one node's part in a job),
//! [`workers`] and [`keeper`] (which hold the workers), [`coordinator`] (the service that one node
//! hosts for all), [`leadership`] (who coordinates), [`report`], [`output`], [`net`], [`spec`] (the meaning of the arguments),
//! [`scheduler`], [`cli`], [`secret`], [`sys`] and [`limits`]. `tests/layers` verifies it.
#![deny(unsafe_code)]

pub mod cli;
pub mod commands;
pub mod coordinator;
pub mod endpoint;
#[cfg(any(test, fuzzing))]
#[path = "../fuzz/src/targets.rs"]
pub mod fuzzing;
pub mod keeper;
pub mod leadership;
pub mod limits;
pub mod net;
pub mod node;
pub mod output;
pub mod report;
pub mod scheduler;
pub mod secret;
pub mod spec;
pub mod sys;
pub mod workers;
