//! The coordinator of a job, and the agents' connections to it.
//!
//! `driver` owns the machine; `service` is its gRPC and HTTP side, [`client`] the agents'.
//! `proofs` authenticates messages of a node. `guard` refuses requests of web pages. `reach`
//! measures how one node reaches the others, `state_file` keeps what a restarted coordinator needs.

pub mod client;
pub(crate) mod driver;
mod guard;
pub(crate) mod identity;
mod observed;
pub(crate) mod proofs;
pub(crate) mod reach;
mod remembering;
pub(crate) mod role;
pub(crate) mod service;
mod stall;
pub mod state_file;
mod status_page;
mod streams;
