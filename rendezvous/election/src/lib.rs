//! Chooses the process that coordinates a job, so that there is never more than one.
//!
//! There are two ways to choose:
//!
//! - [`election`]: three or five agents of the job are voters, and elect one of them, as in Raft.
//! - [`claim`]: a process writes its record to an external store, such as etcd, by
//!   compare-and-swap.
//!
//! Like the rendezvous crate, this crate performs no I/O and reads no clock: every handler takes
//! `now`.

#![forbid(unsafe_code)]

pub mod claim;
pub mod election;
mod limits;
