//! Confirms the users of connections to a round's store (`--store-access user`).
//!
//! The address of a connection identifies the host, but not the user. So the users are confirmed:
//!
//! 1. The node that serves the store asks the members at that address, through the coordinator.
//! 2. A member confirms the user of a connection if the client's socket belongs to the member's own user.

use std::net::SocketAddr;

use crate::ids::RoundId;

/// The most connections that one message names.
pub const STORE_CONNECTIONS_MAX: usize = 256;

/// Connections to the store of a round.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StoreConnections {
    /// The round.
    pub round: RoundId,
    /// The connections; at most [`STORE_CONNECTIONS_MAX`].
    pub connections: Vec<StoreConnection>,
    /// True if no other member is asked about these connections, so that the answer is final.
    pub is_only_member: bool,
}

/// A connection to the store of a round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StoreConnection {
    /// The number of the connection; unique in its store.
    pub number: u64,
    /// The client's end, as the store's host observes it.
    pub client: SocketAddr,
    /// The store's end.
    pub store: SocketAddr,
}

/// The answers of members about connections to a round's store. The store refuses a connection without an
/// answer in time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CheckedOwners {
    /// The round.
    pub round: RoundId,
    /// The numbers of connections with a confirmed user; at most [`STORE_CONNECTIONS_MAX`].
    pub numbers: Vec<u64>,
    /// The numbers of connections whose user was not confirmed by the only member that was asked; at most
    /// [`STORE_CONNECTIONS_MAX`].
    pub denied: Vec<u64>,
}
