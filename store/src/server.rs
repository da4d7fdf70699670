//! Serves stores over TCP.
//!
//! One thread runs one current-thread runtime; every store and all its connections live on it as
//! tasks, and share the engine without a lock. The rest of the program holds handles:
//!
//! ```text
//!  StoreThread ── open ──▶ (bounded queue) ──▶ ┌─ thread ──────────────────────────────┐
//!  StoreHandle ── admit, close ──▶ (watch) ──▶ │ store task: accepts, refuses          │
//!  StoreHandle ── serve ──▶ (bounded queue) ─▶ │   └─ connection task: reads, executes,│
//!                                              │        writes                         │
//!                                              └───────────────────────────────────────┘
//! ```
//!
//! No handle ever waits for the thread, except to see a store closed. No peer's name is looked up:
//! upstream does so for each connection, and a slow resolver stalls everyone.

mod admission;
mod connection;
mod entrance;
mod listen;
mod peer;
mod state;
mod store;
mod thread;

pub use admission::Admission;
pub use listen::listen;
pub use thread::{OpenError, ServeError, StoreHandle, StoreThread};
