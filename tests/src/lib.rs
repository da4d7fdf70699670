//! Runs whole jobs in one thread: a seeded world, and the rules that must always hold in it.
//!
//! The machines are the real ones: the rendezvous and the election of each process that may coordinate, and each node's
//! agent, link and supervisor. The rest is modelled: a network that delays and loses messages, keepers that kill workers at
//! the end of a lease, and faults that crash, freeze and disconnect nodes. A seed determines everything else, so a seed
//! that breaks a rule breaks it every time.
//!
//! [`world::World::step`] handles the next event and checks the rules. [`world::Bug`] plants a bug on purpose, to show that
//! each rule finds it.

#![forbid(unsafe_code)]

mod addresses;
pub mod chronicle;
pub mod invariants;
pub mod random;
pub mod replay;
pub mod world;
