//! Runs whole jobs in one thread: a seeded world, and the rules that must always hold in it.
//!
//! Real: the rendezvous and the election of each process that may coordinate, and the agent, link and supervisor of each node.
//!
//! Modelled: a network that delays and loses messages, keepers that kill workers at the end of a lease, and faults that crash, freeze and
//! disconnect nodes.
//!
//! The seed determines everything, so a seed that breaks a rule breaks it every time. [`world::World::step`] handles the next event and
//! checks the rules. [`world::Bug`] plants a bug on purpose, to show that each rule finds it.

#![forbid(unsafe_code)]

mod addresses;
pub mod chronicle;
pub mod invariants;
pub mod random;
pub mod replay;
mod trace;
pub mod world;
