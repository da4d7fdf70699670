//! Contains the commands of the program `ragent`, with a file for each. `commands/run.rs` has a launch from start to end.
//!
//! The crates below it form layers. Each imports only from lower ones:
//!
//! - [`ragent_node`]: one node's part in a job
//! - [`ragent_coordinator`]: the service that one node hosts for all
//! - [`ragent_workers`]: the local workers
//! - [`ragent_leadership`]: who coordinates
//! - [`ragent_options`]: arguments, and what they mean
//! - [`ragent_base`]: connections, secrets, logs
#![deny(unsafe_code)]

pub mod commands;
#[cfg(any(test, feature = "testing"))]
#[path = "../fuzz/src/targets.rs"]
pub mod fuzzing;
