//! Finds the coordinator of a job without a configured address: agents with the same job name find
//! each other by datagrams on the local network, or by asking a list of hosts.
//!
//! `election` and `rivals` decide, without I/O and without a clock; `datagram` is the format,
//! `seal` its authentication, [`sockets`] the transport, `driver` the loop. Datagrams are not trusted: they only lead to an
//! address, at which the coordinator names its job over TCP.

pub(crate) mod datagram;
pub(crate) mod driver;
pub(crate) mod election;
mod notice;
pub(crate) mod rivals;
mod seal;
pub mod sockets;
