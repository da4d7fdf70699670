//! The coordinator of a job, and the agents' connections to it.
//!
//! [`driver`] owns the machine; [`service`] is its gRPC and HTTP side, [`client`] the agents'.
//! `proofs` authenticates messages of a node. `guard` refuses requests of web pages. [`discovery`]
//! finds the host, [`reach`] measures how one node reaches the others.

pub mod client;
pub mod discovery;
pub mod driver;
mod guard;
pub(crate) mod proofs;
pub mod reach;
mod remembering;
pub mod service;
