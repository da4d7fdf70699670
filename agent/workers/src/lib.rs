//! Starts, watches and ends the local workers, through the keeper.
//!
//! [`ragent_core::supervisor`] decides, and [`driver`] carries out. [`launch`] prepares the start of a worker.
//! [`standby`] prepares an interpreter before the round. [`health`] watches a worker while it runs, and `look` describes workers that
//! make no progress. [`keeper`] is the process that ends the workers if the agent is lost.
#![deny(unsafe_code)]

pub mod driver;
pub mod event_log;
pub mod gloo_interface;
pub mod health;
pub mod keeper;
mod keeper_link;
pub mod launch;
mod limits;
mod look;
mod plumbing;
pub mod socket_folder;
pub mod spec;
pub mod standby;

#[cfg(any(test, feature = "testing"))]
pub use self::look::fuzzing;
