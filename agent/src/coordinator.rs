//! Hosts the rendezvous for all agents of a job, and reaches it from them.
//!
//! [`driver`] owns the machine; [`service`] is its gRPC and HTTP side, [`client`] the agents'.
//! `proofs` decides who speaks for a node. `guard` keeps web pages away from it. [`discovery`] finds out who hosts, [`reach`] how one node reaches the others.

pub mod client;
pub mod discovery;
pub mod driver;
mod guard;
pub(crate) mod proofs;
pub mod reach;
mod remembering;
pub mod service;
