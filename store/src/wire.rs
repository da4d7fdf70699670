//! Turns bytes into queries and queries into bytes.
//!
//! A request is a code and its fields, without a length of its own; `layout.rs` says which fields,
//! [`Decoder`] finds where a request ends and checks every length word as soon as it is complete,
//! and a [`Query`] borrows its keys and values from the buffer. Nothing is allocated for a request
//! that has not arrived whole.
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

/// What `VALIDATE` carries, to tell a store client from anything else.
pub const MAGIC: u32 = 0x3C85_F7CE;

/// What every client sends first: `VALIDATE` and [`MAGIC`].
pub const GREETING: [u8; 5] = [0x00, 0xce, 0xf7, 0x85, 0x3c];

/// The answer to a `WAIT` or `BARRIER` that came true.
pub const STOP_WAITING: u8 = 0;

/// The answer to `CANCEL_WAIT`.
pub const WAIT_CANCELED: u8 = 1;

/// The answer to a `CHECK` whose keys are all present.
pub const READY: u8 = 0;

/// The answer to a `CHECK` of which a key is missing.
pub const NOT_READY: u8 = 1;
