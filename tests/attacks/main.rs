//! Attacks a job with a real attacker, as another user of the host or from another host, which is a network namespace. Each attack must
//! fail.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod attacker;
mod certificates;
mod coordinator;
mod election;
mod files;
mod floods;
mod handshakes;
mod members;
mod memory;
mod middle;
mod output;
mod own_keys;
mod port;
mod secret;
mod store;
mod versions;
mod victim;

#[path = "../support/mod.rs"]
mod support;
