//! Chooses the process that coordinates a job, so that there is never more than one.
//!
//! There are two ways to choose:
//!
//! - [`election`]: three or five agents of the job are voters, and elect one of them.
//! - [`claim`]: the process that writes its record to an external store, such as etcd, coordinates.
//!
//! Like the rendezvous crate, this one performs no I/O and reads no clock: every handler takes `now`.

#![forbid(unsafe_code)]

pub mod claim;
pub mod election;
mod limits;
