//! Tests the page of a job in a real browser.

mod browser;
mod command;
mod keys;
mod large;
mod live;
mod server;
#[path = "../support/mod.rs"]
mod support;
