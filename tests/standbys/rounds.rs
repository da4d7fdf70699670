//! Tests standbys between rounds, and of nodes that join.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    job::{Gate, Job, READY, field, pipe, wait_for_standbys, write},
    processes::write_starter,
    support::{Cgroup, End, Sandbox, Start, is_alive, let_pass},
};

/// Sends heartbeats until it receives an order. Then it leaves a process and fails. After a restart it succeeds.
const SCRIPT: &str = "\
import os, select, socket, subprocess, sys
if os.environ['TORCHELASTIC_RESTART_COUNT'] != '0':
    sys.stdout.write('restarted as %d %s\\n' % (os.getpid(), 'json' in sys.modules))
    if 'starter' in sys.modules:
        pids = os.getpid(), sys.modules['starter'].PID
        cgroups = [open('/proc/%d/cgroup' % pid).read() for pid in pids]
        sys.stdout.write('process in the same cgroup: %s\\n' % (cgroups[0] == cgroups[1]))
    sys.exit(0)
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.connect(os.environ['NOTIFY_SOCKET'])
orders = os.open(os.environ['SCRATCH'] + '/orders', os.O_RDWR)
sys.stdout.write('running\\n')
while not select.select([orders], [], [], 0.1)[0]:
    manager.send(b'WATCHDOG=1')
words = ['setsid', '--fork', 'bash', '-c', 'echo left $$; exec sleep infinity >/dev/null']
subprocess.run(words)
sys.exit(7)
";

/// Standbys of the next round start when a round is older than ten seconds and makes progress. The cleanup after a failure kills what
/// workers have left, but not the standbys. They become the workers of the next round.
fn restart(sandbox: &Sandbox, modules: &str, ragent: impl Fn(&Sandbox, &str) -> Start) -> End {
    write(sandbox, "train.py", SCRIPT);
    let orders = pipe(&sandbox.path("orders"));
    let words = format!(
        "--nproc-per-node 2 --max-restarts 1 --hang-timeout 600 --standby={modules} train.py"
    );
    let mut node = ragent(sandbox, &words).start();
    node.prints("running");
    node.prints("running");
    let standbys = wait_for_standbys(node.pid(), |standbys| standbys.len() == 2);
    nix::unistd::write(&orders, b"!").unwrap();
    let left: u32 = field(&node.prints("left ").replace("left ", "left="), "left").parse().unwrap();
    for _ in 0..4 {
        let line = node.logs("worker started");
        if field(&line, "round") != "1.1" {
            assert!(!is_alive(left), "a process of the first round is left");
            assert_eq!(field(&line, "is_standby"), "true");
            assert!(standbys.contains(&field(&line, "pid").parse().unwrap()), "{line}");
        }
    }
    let end = node.end();
    end.assert_code(0);
    for standby in standbys {
        assert!(end.stdout.contains(&format!("restarted as {standby} True")), "{}", end.stdout);
    }
    sandbox.assert_nothing_left();
    end
}

/// A restart uses standbys, and nothing else is left of the round before.
#[test]
fn restart_uses_standbys() {
    restart(&Sandbox::new(), "json", |sandbox, words| sandbox.ragent(words));
}

/// The same holds in a delegated cgroup. There, the cleanup also spares the processes that the modules of a standby have started. They
/// remain in the cgroup of the worker.
#[test]
fn restart_in_a_cgroup_uses_standbys() {
    let Some(cgroup) = Cgroup::delegated("restart") else { return };
    let sandbox = Sandbox::new();
    write_starter(&sandbox, "setsid --fork");
    let modules = sandbox.path("modules");
    let end = restart(&sandbox, "json,starter", |sandbox, words| {
        cgroup.ragent(sandbox, words).env("PYTHONPATH", &modules)
    });
    assert_eq!(end.stdout.matches("process in the same cgroup: True").count(), 2, "{}", end.stdout);
    assert_eq!(cgroup.below(), Vec::<String>::new());
}

/// Standbys are there again when a node waits for others between two rounds.
#[test]
fn standbys_return_while_nodes_are_missing() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(
        &sandbox,
        "train.py",
        "import os, signal\nprint('worker', os.getpid(), flush=True)\nsignal.pause()",
    );
    let job = job.with("--max-restarts 3 --shutdown-timeout 1");
    let mut node = job.ready_node("--standby=json train.py");
    let stays = format!("{} --node-rank 1 --role other --no-python stay.sh", job.flags);
    let mut other = sandbox.ragent(&stays).start();
    other.worker();
    node.prints("worker");
    other.signal(Signal::SIGTERM);
    let standbys = wait_for_standbys(node.pid(), |standbys| standbys.len() == 1);
    let mut other = sandbox.ragent(&stays).start();
    other.worker();
    node.prints(&format!("worker {}", standbys[0]));
    node.signal(Signal::SIGTERM);
    node.end().assert_code(8);
}

/// A node that joins a running job interrupts it only when its standbys have imported their modules.
#[test]
fn joining_node_is_ready_after_its_standbys() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    let gate = Gate::new(&sandbox);
    write(&sandbox, "train.py", "print('joined')");
    let flags = job.flags.replace("--nnodes 2", "--nnodes 1:2");
    let mut running = sandbox.ragent(&format!("{flags} --node-rank 0 --no-python stay.sh")).start();
    assert_eq!(running.worker().number("group_world_size"), 1);
    let words = format!("{flags} --node-rank 1 --role other --standby=blocked train.py");
    let mut joining = job.prepared(sandbox.ragent(&words)).start();
    gate.importer();
    joining.logs("registered");
    // Long enough for a node that does not wait.
    let_pass(Duration::from_millis(500));
    let endpoint = flags.split(' ').find(|word| word.starts_with("127.")).unwrap();
    let end = sandbox.ragent(&format!("status --json --rdzv-endpoint {endpoint}")).run();
    let status: Value = serde_json::from_str(&end.stdout).unwrap();
    let nodes = status["nodes"].as_array().unwrap();
    let states: Vec<&str> = nodes.iter().filter_map(|node| node["state"].as_str()).collect();
    assert_eq!(states, ["running", "preparing"], "{status:#}");
    gate.open();
    joining.logs(READY);
    let line = joining.logs("worker started");
    assert_eq!(field(&line, "is_standby"), "true");
    assert_eq!(running.worker().number("group_world_size"), 2);
    joining.prints("joined");
}
