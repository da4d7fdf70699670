//! Who coordinates the job.
//!
//! There are three ways to choose the coordinator. `fixed`: this process has the only endpoint. `voters`: members elect it, and
//! copy its state to each other. `etcd`: it is a record in etcd. The last two run on threads of their own, so that no other work delays a
//! renewal. All have the same interface, [`Leadership`]: commands, the leader as this process knows it, and the state that the next one
//! continues with. `state_file` keeps what is needed after a restart.
#![deny(unsafe_code)]

#[cfg(feature = "etcd")]
pub mod etcd;
pub mod fixed;
mod handle;
mod limits;
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
