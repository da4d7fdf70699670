//! Serves the pages of an agent's port.
//!
//! - `browser` is for browsers. `status`, `events` and [`metrics`] are for programs. [`identity`] is for all clients.
//! - [`facts`] has the hardware of this node, and [`logs`] the output of its workers. [`reachability`] measures how it reaches the others.
//!
//! They share `guard` (refuses requests of web pages), `states` (collects the state of the job), `publisher` (sends its changes), `cache`
//! (what is made once for all readers), `relay` (fetches pages of the coordinator on another node) and [`readers`] (limits those that stay).

pub(crate) mod browser;
pub(crate) mod cache;
pub(crate) mod events;
pub mod facts;
pub(crate) mod guard;
pub mod identity;
pub mod logs;
pub mod metrics;
mod publisher;
pub mod reachability;
pub mod readers;
pub(crate) mod relay;
pub(crate) mod states;
pub(crate) mod status;
