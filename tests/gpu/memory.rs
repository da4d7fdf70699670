//! Tests GPU memory that a killed worker held.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::{
    machine::{Machine, open_devices, worker},
    support::{Sandbox, field, free_port, kill, let_pass},
};

/// A worker that used most of a GPU's memory was killed. The next round's worker can allocate the same amount, because it starts when the
/// driver has freed the memory.
#[test]
fn memory_of_a_killed_worker_is_free_again() {
    let Some(machine) = Machine::with_gpus() else { return };
    let sandbox = Sandbox::new();
    let words = format!("--standalone --max-restarts 1 {}", worker("hold_gpu.py"));
    let mut agent = machine.ragent(&sandbox, &words).start();
    let first = agent.prints("holds restart=0");
    kill(field(&first, "pid").parse().unwrap(), Signal::SIGKILL);
    let second = agent.prints("holds restart=1");
    assert_eq!(field(&first, "bytes"), field(&second, "bytes"));
    agent.end().assert_code(0);
    sandbox.assert_nothing_left();
}

/// An agent without workers has no GPU open, because the driver resets none that a process has open.
#[test]
fn agent_without_workers_has_no_gpu_open() {
    let Some(machine) = Machine::with_gpus() else { return };
    let sandbox = Sandbox::new();
    let endpoint = format!("127.0.0.1:{}", free_port());
    let words = format!(
        "--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint {endpoint} --no-python sleep 1000"
    );
    let mut host = machine.ragent(&sandbox, &words).start();
    host.endpoint();
    let guest = machine.ragent(&sandbox, &words).start();
    while open_devices(host.pid()).is_empty() {
        let_pass(Duration::from_millis(50));
    }
    guest.signal(Signal::SIGTERM);
    drop(guest.end());
    while !open_devices(host.pid()).is_empty() {
        let_pass(Duration::from_millis(50));
    }
    host.signal(Signal::SIGTERM);
    drop(host.end());
}
