//! Finds the coordinator of a job without a configured address: agents with the same job name find
//! each other by datagrams on the local network, or by asking a list of hosts.
//!
//! `host_choice` and `rivals` decide, without I/O and without a clock; `challenges` and `places` are parts of `host_choice`.
//! `datagram` is the format, `seal` its authentication, [`sockets`] the transport, `driver` the loop. Datagrams are not trusted: they
//! only lead to addresses, which `trial` tries: there the coordinator authenticates itself, and names its job, over TCP.

mod challenges;
pub(crate) mod datagram;
pub(crate) mod driver;
#[cfg(any(test, feature = "testing"))]
#[path = "../../../fuzz/src/datagram.rs"]
pub mod fuzzing;
pub(crate) mod host_choice;
mod notice;
mod places;
pub(crate) mod rivals;
mod seal;
pub mod sockets;
mod trial;
