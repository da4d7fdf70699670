//! The endpoint of a job: its host, and this agent's place at it.
//!
//! [`locate`] asks an address who hosts there (`identity` recognises the answer), [`search`] finds
//! the host without an address, and `place` hosts or joins.

mod error;
pub(crate) mod identity;
pub mod locate;
pub(crate) mod place;
pub(crate) mod plain_store;
pub mod search;

pub(crate) use self::error::PlaceError;
