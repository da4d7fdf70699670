//! The `TCPStore` protocol of `torch.distributed`, as server.
//!
//! A store is a map from keys to values, plus named queues, that the workers of a job use to find
//! each other. A client sends `VALIDATE` once, then queries. Each is answered in order, except that
//! a `WAIT` or `BARRIER` is answered once its condition holds.
//!
//! ```text
//!             ┌────────────── pure: no clock, no socket ───────────────┐
//!  bytes ───▶ │ wire::Decoder ─▶ Query ─▶ session ─▶ engine ─▶ waiters │ ──▶ bytes, woken clients
//!             └────────────────────────────────────────────────────────┘
//!  server: one thread, one loop, many stores, no lock
//! ```
//!
//! The core compiles without tokio (`default-features = false`). With the feature `net`, start a
//! [`StoreThread`], [`open`](StoreThread::open) a store on a listener from [`listen`], and connect
//! with an unmodified `torch.distributed.TCPStore` of torch 2.2 or newer.
//!
//! Everything that a peer can make grow has a bound, see [`limits`]. The protocol has no error
//! answer: a client that breaks a rule is disconnected, and a line in the log names the rule.
//!
//! Deliberately absent: persistence, replication, authentication, name look-ups, and quirks of the
//! original server that no client depends on; the module headers name each.
#![forbid(unsafe_code)]

pub mod engine;
pub mod limits;
pub mod output;
pub mod session;
mod waiters;
pub mod wire;

#[cfg(feature = "net")]
pub mod server;

pub use engine::Engine;

#[cfg(feature = "net")]
pub use server::{AdmissionRule, Counters, Options, StoreHandle, StoreThread, listen};
