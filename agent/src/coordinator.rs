//! The coordinator of a job, and the agents' connections to it.
//!
//! `driver` owns the machine, with the open `streams`; `stall` and `peer_addresses` are decisions
//! of its own. `service` is its gRPC and HTTP side, for each `role` of an agent's port, [`client`]
//! the agents'. `proofs` authenticates messages of a node. `browser_guard` refuses requests of web
//! pages. `identity` and `status_page` are pages of the port; `reachability` measures how one node
//! reaches the others. `state_file` keeps what a restarted coordinator needs, `state_writer` writes
//! it.

mod browser_guard;
pub mod client;
pub(crate) mod driver;
pub(crate) mod identity;
mod limits;
mod peer_addresses;
pub(crate) mod proofs;
pub(crate) mod reachability;
pub(crate) mod role;
pub(crate) mod service;
mod stall;
pub mod state_file;
mod state_writer;
mod status_page;
mod streams;
