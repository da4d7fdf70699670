//! Runs one node's part in a job.
//!
//! The modules, from the highest to the lowest. Each uses only those below it:
//!
//! - [`endpoint`] finds the process that hosts the job, or becomes it.
//! - [`node`] registers with the coordinator, and takes part in rounds.
//! - [`workers`] starts, watches and ends the local workers.
//! - [`memory`] keeps checkpoints of workers in memory.
//! - [`keeper`] is the process that ends the workers if the agent is lost.
#![deny(unsafe_code)]

pub mod endpoint;
pub mod keeper;
pub mod memory;
pub mod node;
pub mod notices;
mod socket_folder;
pub mod workers;
