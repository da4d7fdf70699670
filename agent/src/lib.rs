//! The commands of the program `ragent`, a file for each: `commands/run.rs` contains the course of a launch.
//!
//! The crates below it form layers, and each imports only from lower ones: [`ragent_node`] (one node's part in a job),
//! [`ragent_coordinator`] (the service that one node hosts for all), [`ragent_leadership`] (who coordinates) and
//! [`ragent_base`] (arguments, connections, secrets, logs).
#![deny(unsafe_code)]

pub mod commands;
#[cfg(any(test, feature = "testing"))]
#[path = "../fuzz/src/targets.rs"]
pub mod fuzzing;
