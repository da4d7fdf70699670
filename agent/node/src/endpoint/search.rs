//! Finds the coordinator of a job without a configured address.
//!
//! Agents with the same job name find each other by datagrams on the local network, or by asking a list of hosts. A datagram only names an
//! address to try. There the agent authenticates itself over TCP, and shows its part in the job.
//!
//! - `choice` decides, without I/O and without a clock.
//! - `datagram` is the format, with its authentication, [`sockets`] the transport.
//! - `driver` is the loop, `home` follows the part of an agent in its job, `notice` has the lines for the user.

pub(crate) mod choice;
pub(crate) mod datagram;
pub(crate) mod driver;
#[cfg(any(test, feature = "testing"))]
#[path = "../../../fuzz/src/datagram.rs"]
pub mod fuzzing;
pub(crate) mod home;
mod notice;
pub mod sockets;
