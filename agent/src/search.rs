//! Finds the coordinator of a job where nobody knows an address: agents with the same job name meet by
//! datagrams on the local network, or by asking a list of hosts.
//!
//! [`election`] and [`rivals`] decide, without I/O and without a clock; [`datagram`] is what is said,
//! [`sockets`] how it travels, [`driver`] the loop. What is said is not trusted: it only leads to an address, at which
//! the coordinator says over TCP which job it has.

pub mod datagram;
pub mod driver;
pub mod election;
pub mod rivals;
pub mod sockets;
