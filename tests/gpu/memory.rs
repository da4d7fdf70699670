//! Tests GPU memory that a killed worker held.

use nix::sys::signal::Signal;

use crate::{
    machine::{Machine, worker},
    support::{Sandbox, field, kill},
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
