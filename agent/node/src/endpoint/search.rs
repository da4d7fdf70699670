//! Finds the coordinator of a job without a configured address.
//!
//! Agents with the same job name find each other by datagrams on the local network, or by asking a list of hosts. Datagrams are not
//! trusted: they only name addresses to try. There the coordinator authenticates itself over TCP, and names its job.
//!
//! - `host_choice` and `rivals` decide, without I/O and without a clock. `challenges` and `places` are parts of `host_choice`.
//! - `datagram` is the format, `seal` its authentication, [`sockets`] the transport.
//! - `driver` is the loop, `trial` tries an address, `notice` has the lines for the user.

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
