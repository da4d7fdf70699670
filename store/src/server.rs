//! Serves stores over TCP.
//!
//! One thread runs one loop over one event queue; it owns every store and all connections, so there
//! is no lock and no task. The rest of the program holds handles:
//!
//! ```text
//!  StoreThread ── open ──▶ (bounded queue) ──▶ ┌─ thread ────────────────────────────────────┐
//!  StoreHandle ── admit, close ──▶ (watch) ──▶ │ driver: waits for events                    │
//!  StoreHandle ── serve ──▶ (bounded queue) ─▶ │   └─ store: accepts, refuses                │
//!                                              │       └─ clients: read, execute, write      │
//!                                              └─────────────────────────────────────────────┘
//! ```
//!
//! Admission is decided once, before a byte is read: see [`AdmissionRule`]. A refused connection is
//! reset, since the protocol has no message for it; [`Options::refusals`] reports it.
//!
//! No handle waits for the thread, except to wait until a store is closed. Names of peers are not
//! looked up: upstream does so for each connection, and a slow resolver stalls all clients.

mod acceptor;
mod admission;
mod clients;
mod connection;
mod counters;
mod driver;
mod listen;
mod owner;
mod source;
mod store;
mod thread;

pub use admission::AdmissionRule;
pub use counters::Counters;
pub use listen::listen;
#[cfg(any(test, fuzzing))]
pub use owner::fuzzing::sock_diag;
pub use owner::{Owner, Owners};
pub use thread::{OpenError, Options, ServeError, StoreHandle, StoreThread};
