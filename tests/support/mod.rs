//! Provides what tests with real processes share: a sandbox for each test, programs that run in it, and their output.
//!
//! Nothing here waits for time to pass. A test waits for a line, for a pipe to close or for a process to end. A deadline only makes it
//! fail.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each test binary uses its part")]

mod cgroup;
mod faults;
mod gpus;
mod network;
mod port;
mod processes;
mod program;
mod sandbox;
mod screen;
mod standbys;
mod worker_program;

use std::{sync::mpsc, time::Duration};

use ragent_base::sys::host::{Host, ThisHost};

pub use self::{
    cgroup::Cgroup,
    faults::Faults,
    gpus::Gpus,
    network::{Network, may_make_networks},
    port::{free_port, swallowing_listener},
    processes::{
        children, command_line, find_keeper, is_alive, keeper_of, kill, listening_ports, session_of,
    },
    program::{End, Program, Start, Stream, Worker},
    sandbox::{Lifeline, Orders, Sandbox, wait_until_ended},
    screen::ScreenTerminal,
    standbys::{
        READY, count_standbys, field, is_standby, pet_standby, standbys_of, wait_for_standbys,
    },
    worker_program::{Gate, WorkerProgram},
};
pub(crate) use ragent_base::secret::testing::{
    Authority, Issue, Issued, write as write_certificates,
};

/// The deadline for an expected event. It does not measure how long the event usually takes, because a busy machine may need most of it.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Longer than the leases. After this time a silent node is lost, and workers without a coordinator have ended.
pub const LEASE: Duration = Duration::from_millis(3200);

/// Returns true if `program` is in PATH. Otherwise prints so, or fails under `CI=true`.
pub fn is_there(program: &str) -> bool {
    let found = ThisHost.find_program(program.as_ref()).is_some();
    if !found {
        skip(&format!("`{program}` is not in PATH"));
    }
    found
}

/// Prints why a test is skipped. Fails under `CI=true`.
#[expect(clippy::print_stderr, reason = "whoever runs the tests wants to know")]
pub fn skip(reason: &str) {
    let must_run = ThisHost.env("CI").is_some_and(|ci| ci == "true");
    assert!(!must_run, "cannot be skipped under CI=true: {reason}");
    eprintln!("skipped: {reason}");
}

/// Lets `time` pass as part of a test's scenario, never to wait for an event.
pub fn let_pass(time: Duration) {
    let (_never, nothing) = mpsc::channel::<()>();
    // Nothing is ever sent.
    let _ = nothing.recv_timeout(time);
}

/// The flags of a process with these files of certificates.
pub fn tls_flags([authorities, certificate, key]: &[std::path::PathBuf; 3]) -> String {
    format!(
        "--tls-ca {} --tls-cert {} --tls-key {}",
        authorities.display(),
        certificate.display(),
        key.display()
    )
}
