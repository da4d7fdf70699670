//! The encoding of queries.
//!
//! A request is a code and its fields, without a total length. `layout.rs` lists the fields,
//! [`Decoder`] finds the end of a request and checks every length word as soon as it is complete,
//! and a [`Query`] borrows its keys and values from the buffer. Nothing is allocated for a request
//! before all of it has arrived.
//!
//! Integers are little-endian; a string is a 64-bit length and that many bytes.

mod decode;
mod encode;
mod layout;
mod query;

pub use decode::{DecodeError, Decoder};
pub use encode::LimitError;
pub use layout::QueryType;
pub use query::Query;

/// The magic number in `VALIDATE`, which identifies a store client.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// The first bytes of every client: `VALIDATE` and [`MAGIC`].
pub const GREETING: [u8; 5] = [0x00, 0xce, 0xf7, 0x85, 0x3c];

/// The answer to a `WAIT` or `BARRIER` that has ended.
pub const STOP_WAITING: u8 = 0;

/// The answer to `CANCEL_WAIT`.
pub const WAIT_CANCELED: u8 = 1;

/// The answer to a `CHECK` whose keys are all present.
pub const READY: u8 = 0;

/// The answer to a `CHECK` if a key is missing.
pub const NOT_READY: u8 = 1;
