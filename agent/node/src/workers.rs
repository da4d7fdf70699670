//! Starts, watches and ends the local workers, through the keeper.
//!
//! [`ragent_core::supervisor`] decides, [`driver`] carries out. [`launch`] prepares the start of a
//! worker, [`standby`] prepares it before its round, [`health`] watches it while it runs.

pub mod driver;
pub mod health;
mod keeper_link;
pub mod launch;
mod limits;
mod plumbing;
pub mod spec;
pub mod standby;
