//! Defines the messages on the wire, and refuses malformed ones.
//!
//! 1. [`v1`] is generated from the files in `proto/ragent/v1`: the registration protocol over gRPC, the
//!    messages between voters, and the record of a leader in etcd. [`etcd`] is generated from `proto/etcd`.
//!    In both, all fields are optional and all numbers wide.
//! 2. [`convert`] converts [`v1`] to the domain types of `ragent-rendezvous` and `ragent-election`. It
//!    refuses malformed messages, so no other crate checks a message again. It also checks a state that was
//!    received as JSON.
//!
//! This crate uses no socket and no process.
#![forbid(unsafe_code)]

pub mod convert;
mod error;
mod limits;
mod printable;
mod proof;

pub use error::Malformed;
pub use printable::{printable, printable_line};
pub use proof::{NoProof, Proof};
#[doc(hidden)]
pub use prost::Message;

/// The generated types and the gRPC client and server.
#[allow(
    clippy::all,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    elided_lifetimes_in_paths,
    reason = "generated"
)]
pub mod v1 {
    tonic::include_proto!("ragent.v1");
}

/// The generated types and clients of the part of etcd's API that ragent uses.
#[allow(
    clippy::all,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    elided_lifetimes_in_paths,
    reason = "generated"
)]
pub mod etcd {
    tonic::include_proto!("etcdserverpb");
}
