//! What the tests with real processes share: a corner of the machine for each test, programs that
//! run in it, and what these say.
//!
//! Nothing here waits for time to pass. A test waits for a line, for a pipe to close or for a
//! process to end; a deadline only makes it fail.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses its part")]

mod cgroup;
mod faults;
mod network;
mod port;
mod processes;
mod program;
mod sandbox;

use std::{sync::mpsc, time::Duration};

use ragent::host::{Host, ThisHost};

pub use self::{
    cgroup::Cgroup,
    faults::Faults,
    network::{Network, may_make_networks},
    port::{free_port, swallowing_listener},
    processes::{
        children, command_line, find_keeper, is_alive, keeper_of, kill, listening_ports, session_of,
    },
    program::{End, Program, Start, Stream, Worker},
    sandbox::{Lifeline, Orders, Sandbox, wait_until_gone},
};

/// How long something may take that must happen. It says nothing about how long it does take: a
/// machine that is busy with other things may need most of it.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Longer than a node may stay silent before it is lost, and than workers run on by themselves.
pub const LEASE: Duration = Duration::from_millis(3200);

/// Whether `program` is there; says so where it is not, and fails where everything must be.
pub fn is_there(program: &str) -> bool {
    let found = ThisHost.find_program(program.as_ref()).is_some();
    if !found {
        skip(&format!("`{program}` is not in PATH"));
    }
    found
}

/// Says why a test is skipped; fails it where nothing may be.
#[expect(clippy::print_stderr, reason = "whoever runs the tests wants to know")]
pub fn skip(reason: &str) {
    let must_run = ThisHost.env("CI").is_some_and(|ci| ci == "true");
    assert!(!must_run, "cannot be skipped under CI=true: {reason}");
    eprintln!("skipped: {reason}");
}

/// Lets `time` pass where that is what a test does to a job, never to wait for something.
pub fn let_pass(time: Duration) {
    let (_never, nothing) = mpsc::channel::<()>();
    // Nobody sends anything.
    let _ = nothing.recv_timeout(time);
}
