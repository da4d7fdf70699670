//! The coordinator of a job, and the agents' connections to it.
//!
//! `driver` owns the machine, with the open `streams`; `pause` and `peer_addresses` are decisions
//! of its own. `persistence` waits until the state that outlives the process is stored. `host` runs the driver while
//! this process leads, and `listed_voters` adds the voters to the status of the job. `service` is the
//! gRPC and HTTP side of the coordinator, for each `role` of an agent's port, and [`client`] the
//! side of agents and commands. `proofs` authenticates messages of a node. `browser_guard` refuses requests of web
//! pages. `identity`, `status_page` and `metrics` are pages of the port, with the counters of `measures`, and `events_page`
//! serves the `journal`, which `journal_file` writes to a file; `page` is for people. `state` is what they show of the job, `states` collects it,
//! `publisher` makes what clients receive who follow, `relay` passes on pages of the coordinator on another node, and
//! `readers` bounds the number of clients that stay; `reachability` measures how one node
//! reaches the others.
#![deny(unsafe_code)]

mod browser_guard;
pub mod client;
mod collected;
pub mod driver;
mod events_page;
pub mod host;
pub mod identity;
pub mod journal;
pub mod journal_file;
mod limits;
mod listed_voters;
pub mod measures;
pub mod metrics;
mod page;
mod paths;
mod pause;
mod peer_addresses;
mod persistence;
pub mod proofs;
mod publisher;
pub mod reachability;
pub mod readers;
mod relay;
pub mod role;
pub mod service;
mod state;
mod states;
mod status_page;
mod streams;
