//! Decides which nodes form the next worker group, with which ranks, and when the job is over.
//!
//! 1. A node registers, and reports when it is ready.
//! 2. Once enough nodes are ready, each is admitted to a round, with a group rank.
//! 3. The round ends on all its members when a worker fails, or when a node is lost, leaves or is
//!    added.
//! 4. The next round is formed from the nodes that are ready again.
//!
//! ```text
//!  first start                                     restart of the coordinator
//!      │                                                      │
//!      ▼        last call over, or max nodes                  ▼
//!  Gathering ────────────────────────────▶ Running       Recovering
//!      ▲                                   │     ▲            │
//!      │        failure, loss, leave, room │     │ all back   │ all back, or lease over
//!      │                                   ▼     │            │ and a member back
//!      │                                 Regathering ◀────────┤
//!      └───────────────── no node was in the last round ──────┘
//!
//!  any ──▶ Closed: succeeded, budget spent, too few nodes for too long, all left
//! ```
//!
//! The crate performs no I/O, reads no clock and starts no process: every handler takes `now`.
//! Drive [`Rendezvous`] in this order: one `handle_*` call, then [`Rendezvous::poll_effect`] until
//! `None`, then arm one timer for [`Rendezvous::poll_timeout`].

#![forbid(unsafe_code)]

mod departures;
pub mod effect;
mod effects;
pub mod event;
#[cfg(test)]
mod fixture;
mod flapping;
pub mod grant;
mod group;
mod health;
pub mod heir;
pub mod ids;
pub mod incomplete;
pub mod jitter;
mod job;
pub mod known_job;
pub mod limits;
mod machine;
pub mod member_reports;
mod memory;
pub mod message;
mod names;
mod notices;
mod phase;
mod progress;
mod ranks;
mod roster;
pub mod settings;
mod shared_settings;
pub mod snapshot;
mod stalls;
mod table;
pub mod voter_count;

pub use machine::{ExcludedHosts, Rendezvous};
pub use progress::{account, saved_steps, stall_limit, training};
pub use stalls::explain as stall;
