//! Tests the ends of agents and keepers while workers run and standbys of the next round import modules or wait.

use std::thread;

use nix::sys::signal::Signal;

use crate::{
    job::{Gate, wait_for_standbys, write},
    support::{Sandbox, is_there, keeper_of, kill},
};

/// Sends heartbeats until it is killed, even if no process receives them.
const SCRIPT: &str = "\
import os, socket, time
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.connect(os.environ['NOTIFY_SOCKET'])
os.write(1, b'running\\n')
while True:
    try:
        manager.send(b'WATCHDOG=1')
    except OSError:
        pass
    time.sleep(0.1)
";

/// Runs two workers until there are standbys of the next round, kills what `victims` returns for an
/// agent and its keeper, and waits until nothing is left.
fn nothing_is_left(is_importing: bool, victims: fn(u32, u32) -> Vec<u32>) {
    let sandbox = Sandbox::new();
    write(&sandbox, "train.py", SCRIPT);
    let words = "--nproc-per-node 2 --hang-timeout 600 --standby=json,blocked train.py";
    let node = sandbox.ragent(words).env("PYTHONPATH", sandbox.path("modules"));
    let mut node = node.env("PYTHONDONTWRITEBYTECODE", "1").start();
    node.prints("running");
    node.prints("running");
    // Before this, the module `blocked` is not installed.
    let _gate = is_importing.then(|| {
        let gate = Gate::new(&sandbox);
        gate.importer();
        gate
    });
    if !is_importing {
        wait_for_standbys(node.pid(), |standbys| standbys.len() == 2);
    }
    let victims = victims(node.pid(), keeper_of(node.pid()));
    // Both are stopped first, so that neither handles the end of the other.
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for victim in &victims {
            kill(*victim, signal);
        }
    }
    if !victims.contains(&node.pid()) {
        node.end().assert_code(1);
    }
    sandbox.wait_until_nothing_left();
}

fn nothing_is_left_of_both(victims: fn(u32, u32) -> Vec<u32>) {
    if !is_there("python3") {
        return;
    }
    thread::scope(|scope| {
        for is_importing in [false, true] {
            scope.spawn(move || nothing_is_left(is_importing, victims));
        }
    });
}

/// If an agent is killed, neither its workers nor its standbys are left.
#[test]
fn killed_agent_leaves_nothing() {
    nothing_is_left_of_both(|agent, _| vec![agent]);
}

/// The same holds if a keeper is killed. That is a failure of the job.
#[test]
fn killed_keeper_leaves_nothing() {
    nothing_is_left_of_both(|_, keeper| vec![keeper]);
}

/// The same holds if both are killed at the same instant.
#[test]
fn killed_agent_and_keeper_leave_nothing() {
    nothing_is_left_of_both(|agent, keeper| vec![agent, keeper]);
}
