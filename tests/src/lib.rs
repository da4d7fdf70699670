//! Runs whole jobs in one thread: a seeded world, and the rules that never break in it.
//!
//! The rendezvous machine is the real one. Around it stand models: a network that delays and loses,
//! agents that join, crash, freeze and leave, keepers that kill when a lease is over. A seed decides
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
