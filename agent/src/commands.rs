//! Runs the commands of the program, with a file or a folder for each, and reports their errors.
//!
//! [`run`] starts this node's part of a job. [`ssh`] is `ragent launch`.

mod asked_job;
mod assumed_host;
pub mod check;
pub mod completion;
pub mod coordinator;
mod credentials;
pub mod doctor;
pub mod error;
pub mod events;
pub mod explain;
mod find_coordinator;
mod follow;
pub mod install_torchrun;
pub mod logs;
pub mod manifest;
pub mod notice;
pub mod page;
pub mod parent;
pub mod rank;
pub mod run;
mod runtime;
pub mod secret;
pub mod ssh;
pub mod stacks;
pub mod status;
#[cfg(feature = "top")]
pub mod top;
