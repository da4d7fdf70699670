//! Carries the attend protocol and status over gRPC.
//!
//! [`v1`] is what `ragent.proto` generates: everything optional, every number wide. [`convert`]
//! turns it into the domain types of `ragent-rendezvous` and refuses what is malformed, so that
//! nothing behind this crate checks a message again. It knows no socket and no process.
#![forbid(unsafe_code)]

pub mod convert;
mod error;
mod limits;
mod printable;
mod proof;

pub use error::Malformed;
pub use printable::printable;
pub use proof::{NoProof, Proof};

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
