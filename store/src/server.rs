//! Serves stores over TCP.
//!
//! One thread runs one loop over one event queue; every store and all its connections live in it,
//! so there is no lock and no task. The rest of the program holds handles:
//!
//! ```text
//!  StoreThread ── open ──▶ (bounded queue) ──▶ ┌─ thread ────────────────────────────────────┐
//!  StoreHandle ── admit, close ──▶ (watch) ──▶ │ driver: waits for events                    │
//!  StoreHandle ── serve ──▶ (bounded queue) ─▶ │   └─ store: accepts, refuses                │
//!                                              │       └─ clients: read, execute, write      │
//!                                              └─────────────────────────────────────────────┘
//! ```
//!
//! No handle ever waits for the thread, except to see a store closed. No peer's name is looked up:
//! upstream does so for each connection, and a slow resolver stalls everyone.

mod admission;
mod clients;
mod connection;
mod driver;
mod entrance;
mod listen;
mod store;
mod thread;

pub use admission::Admission;
pub use listen::listen;
pub use thread::{OpenError, ServeError, StoreHandle, StoreThread};
