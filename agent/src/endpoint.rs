//! The endpoint of a job: its host, and this agent's place at it.
//!
//! `locate` asks an address who hosts there (`locator` decides, `identity` recognises the answer),
//! [`search`] finds the host without an address, and `place` hosts or joins.

mod error;
pub(crate) mod identity;
mod locate;
mod locator;
pub(crate) mod place;
pub(crate) mod plain_store;
pub mod search;

pub use self::error::LocateError;
pub(crate) use self::error::PlaceError;
