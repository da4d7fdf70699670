//! Runs whole jobs in one thread: a seeded world, and the rules that never break in it.
//!
//! The machines are the real ones: the coordinator's rendezvous, and each node's agent, link and
//! supervisor. The rest is modelled: a network that delays and loses, keepers that kill when a
//! lease is over, and faults that crash, freeze and cut off nodes. A seed decides
//! everything that is left open, so a seed that breaks a rule breaks it every time.
//!
//! [`world::World::step`] lets the next thing happen; [`invariants::RULES`] are looked at after
//! each. [`sabotage::Sabotage`] plants a bug on purpose, to show that each rule notices.

#![forbid(unsafe_code)]

pub mod chronicle;
pub mod invariants;
pub mod random;
pub mod sabotage;
pub mod world;
