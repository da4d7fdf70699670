//! The coordinator of a job, and the agents' connections to it.
//!
//! `driver` owns the machine, with the open `streams`; `stall` and `observed` are decisions of its
//! own. `service` is its gRPC and HTTP side, for each `role` of an agent's port, [`client`] the
//! agents'. `proofs` authenticates messages of a node. `guard` refuses requests of web pages.
//! `identity` and `status_page` are pages of the port; `reach` measures how one node reaches the
//! others. `state_file` keeps what a restarted coordinator needs, `remembering` writes it.

pub mod client;
pub(crate) mod driver;
mod guard;
pub(crate) mod identity;
mod limits;
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
