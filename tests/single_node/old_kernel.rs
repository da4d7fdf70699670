//! Tests the oldest kernel that the documentation names.

use crate::support::{Sandbox, Start};

const FILTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/support/old_kernel.py");

fn on_old_kernel(sandbox: &Sandbox) -> Start {
    sandbox.program("/usr/bin/python3").arg(FILTER)
}

/// With only the system calls of Linux 4.18, workers are restarted after a failure, and descendants that they have left are killed.
/// `pidfd_open` shows that newer calls fail.
#[test]
fn calls_of_linux_4_18() {
    let sandbox = Sandbox::new();
    let probe = "import os\ntry: os.pidfd_open(os.getpid())\nexcept OSError as e: print(e.errno)";
    let end = on_old_kernel(&sandbox).arg("/usr/bin/python3").arg("-c").arg(probe).run();
    assert_eq!(end.stdout, "38\n", "{}", end.stderr);

    let worker = "test $TORCHELASTIC_RESTART_COUNT = 1 && echo rank $RANK of $WORLD_SIZE && exit
        setsid sleep 1000 & kill -9 $$";
    let words = "--nproc-per-node 2 --max-restarts 1 --no-python bash -c";
    let start = on_old_kernel(&sandbox).arg(env!("CARGO_BIN_EXE_ragent"));
    let end = words.split(' ').fold(start, |start, word| start.arg(word)).arg(worker).run();
    end.assert_code(0);
    let mut lines: Vec<&str> = end.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["rank 0 of 2", "rank 1 of 2"]);
    sandbox.assert_nothing_left();
}
