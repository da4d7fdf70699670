//! The arguments of all commands, from their text to their meaning.
//!
//! [`cli`] parses them. [`scheduler`] reads the variables of Slurm, MPI and others. [`spec`] has the meaning of both.
#![deny(unsafe_code)]

pub mod cli;
pub mod scheduler;
pub mod spec;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
