//! The registration protocol over gRPC, the messages between voters, and the record of a leader in etcd; and the check
//! of a state that was received as JSON.
//!
//! [`v1`] is generated from the files in `proto/ragent/v1`, and [`etcd`] from `proto/etcd`: all fields are
//! optional, all numbers wide. [`convert`] converts [`v1`] to the domain types of `ragent-rendezvous` and refuses
//! malformed messages, so that no other crate checks a message again. This crate uses no socket and no process.
#![forbid(unsafe_code)]

pub mod convert;
mod error;
mod limits;
mod printable;
mod proof;

pub use error::Malformed;
pub use printable::printable;
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

/// The generated types and clients of etcd's API, as far as ragent uses it.
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
