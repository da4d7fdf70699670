//! Runs one node's part in a job.
//!
//! The modules, from the highest to the lowest. Each uses only those below it:
//!
//! - [`endpoint`] finds the process that hosts the job, or becomes it.
//! - [`node`] registers with the coordinator, and takes part in rounds.
//! - [`memory`] keeps checkpoints of workers in memory.
//! - [`notices`] has the sources of notices on this node.
//!
//! [`ragent_workers`] starts, watches and ends the local workers.
#![deny(unsafe_code)]

pub mod endpoint;
pub mod memory;
pub mod node;
pub mod notices;
