//! One node's part in a job: registers with the coordinator and runs workers when it is admitted.
//!
//! Two machines of [`ragent_core`] decide: `Link` when to send keep-alives and to dial, `Agent`
//! when to join, start, stop and leave. [`driver`] carries out their effects. `destination` has the
//! endpoints that it dials.

mod description;
pub mod destination;
pub mod driver;
mod limits;
pub mod node_id;
mod owner_lookup;
mod proof_of_id;
mod repeated_signals;
mod store_path;
pub mod worker_stores;
