//! Chooses the process that coordinates the job, in one of three ways:
//!
//! - `fixed`: one process has the only endpoint of the job, so it always leads.
//! - `voters`: agents elect the leader with leases, as in Raft, and copy the state of the job to each other.
//! - `etcd`: the leader is named by a record in etcd.
//!
//! `voters` and `etcd` run on a thread of their own, so that no other work delays the renewal of a lease.
//!
//! All three have the same interface, [`Leadership`]: commands to it, the leader as this process knows it, and the state that the next
//! leader continues from. `state_file` keeps what a restarted process needs, and `replica_file` writes it.
#![deny(unsafe_code)]

#[cfg(feature = "etcd")]
pub mod etcd;
pub mod fixed;
mod handle;
mod limits;
pub mod replica_file;
pub mod state_file;
pub mod voters;

pub use self::handle::{
    Answered, Commands, Leader, LeadershipCommand, Mandate, Means, RunningLeadership, StateNeed,
    Stored,
};
pub use self::{
    handle::{Leadership, Superseded},
    voters::StateLoss,
};
