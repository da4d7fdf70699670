//! Hosts the rendezvous for all agents of a job, and reaches it from them.
//!
//! [`driver`] owns the machine; [`service`] is its gRPC and HTTP side, [`client`] the agents'.
//! [`discovery`] finds out who hosts.

pub mod client;
pub mod discovery;
pub mod driver;
mod remembering;
pub mod service;
