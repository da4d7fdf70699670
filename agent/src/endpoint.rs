//! The endpoint of a job: its host, and this agent's place at it.
//!
//! `take` finds the host and takes the place: `locate` asks an address who hosts there (`locator`
//! decides, `identity` recognises the answer), and [`search`] finds the host without an address
//! (`finder` decides what follows). Then `host` or `join` makes the `Place`. `hosted` is a
//! coordinator with its port, with or without an agent.

mod address;
mod error;
mod finder;
mod host;
pub(crate) mod hosted;
pub(crate) mod identity;
mod join;
mod limits;
mod locate;
mod locator;
mod place;
pub(crate) mod plain_store;
pub mod search;
mod server;
mod take;

pub(crate) use self::error::CHECK_NAME;
pub use self::error::{LocateError, PlaceError};
pub(crate) use self::take::take_place;
