//! Registers this node with the coordinator, and runs workers when it is admitted to a round.
//!
//! Two machines of [`ragent_core`] decide. `Link` decides when to dial and when to send
//! keep-alives. `Agent` decides when to join, start, stop and leave. [`driver`] carries out their
//! effects. `destination` knows the endpoints to dial.

mod description;
pub mod destination;
pub mod driver;
mod limits;
pub mod node_id;
mod proof_of_id;
mod repeated_signals;
mod store_reach;
pub mod worker_stores;
