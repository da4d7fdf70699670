//! Runs the coordinator of a job in the process of one agent, and connects the other agents to it.
//!
//! A registration takes this way:
//!
//! 1. `service` receives it on the port of an agent. `role` knows whether the coordinator is in this process.
//! 2. `driver` passes it to the rendezvous machine. `proofs` checks the node id, `streams` keeps the stream.
//! 3. `persistence` holds back the effects until the job's state is stored.
//!
//! `host` runs the driver while this process leads. [`client`] is the side of agents and commands.
//!
//! Helpers of the driver, one decision each:
//!
//! - `pause` delays timeouts after the process was paused.
//! - `peer_addresses` chooses the addresses of a node.
//! - `paths` tests the connections to new nodes.
//! - `listed_voters` adds the voters to the status of the job.
//!
//! Pages of the port:
//!
//! - `page` is for browsers. `status_page`, `events_page` and `metrics` are for programs. `identity` is for all clients.
//! - `states` collects the state of the job, `state` is its JSON, `publisher` sends its changes to clients.
//! - `journal` has the newest events, `journal_file` writes them to a file, `measures` has the counters.
//! - `relay` fetches pages from the coordinator on another node. `readers` limits the clients that stay.
//! - `facts_page` has the hardware of this node, `logs_page` the output of its workers. `reachability` measures how it reaches the others. `browser_guard` refuses requests of web pages.
#![deny(unsafe_code)]

mod browser_guard;
pub mod client;
mod collected;
pub mod driver;
mod events_page;
mod excluded_hosts;
pub mod facts_page;
pub mod host;
pub mod identity;
pub mod journal;
pub mod journal_file;
mod limits;
mod listed_voters;
pub mod logs_page;
pub mod measures;
pub mod metrics;
mod node_reach;
mod page;
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
