//! Tests standbys: real agents start workers from interpreters that have already imported modules.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod arguments;
mod ends;
mod equality;
mod guards;
mod hook;
mod interpreters;
mod job;
mod output;
mod processes;
mod resources;
mod rounds;
mod script_variables;

#[path = "../support/mod.rs"]
mod support;
