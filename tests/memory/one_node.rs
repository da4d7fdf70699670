//! Tests what serves the death of a worker: the parts of the node itself.

use std::{collections::BTreeMap, process::Command, time::Duration};

use nix::sys::signal::Signal;
use ragent_base::sys::clock;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::Value;

use crate::{
    WORKER, assert_loaded, change_a_byte, give, memory_files, prints_of_all,
    support::{Cgroup, Orders, PATIENCE, Program, Sandbox, is_there, kill, let_pass, skip},
};

struct Job {
    agent: Program,
    orders: Vec<Orders>,
    endpoint: String,
}

/// Starts a job of one node with two workers.
fn start(sandbox: &Sandbox, flags: &str) -> Job {
    let orders = (0..2).map(|rank| sandbox.orders(rank)).collect();
    let words = format!(
        "--nnodes 1 --nproc-per-node 2 --rdzv-endpoint 127.0.0.1:0 {flags} --max-restarts 9 {WORKER}"
    );
    let mut agent = sandbox.ragent(&words).start();
    let endpoint = agent.endpoint();
    Job { agent, orders, endpoint }
}

/// Returns the pids of the workers of a round.
#[track_caller]
fn workers(agent: &mut Program, restart: u32) -> Vec<u32> {
    let pid = |rank: u32| {
        let line = agent.prints(&format!("rank={rank} pid="));
        assert!(line.ends_with(&format!("restart={restart}")), "{line}");
        line.split(['=', ' ']).nth(3).unwrap().parse().unwrap()
    };
    (0..2).map(pid).collect()
}

/// Waits until the status of the job has a checkpoint in memory that fits.
#[track_caller]
fn wait_for_memory(sandbox: &Sandbox, endpoint: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let words = format!("status --watch --json --rdzv-endpoint {endpoint}");
    let mut status = sandbox.ragent(&words).start();
    loop {
        let status: Value = serde_json::from_str(&status.prints("{")).unwrap();
        if fits(&status["memory"]) {
            return status["memory"].clone();
        }
    }
}

/// After a worker's death, all workers go on from the newest step that both had saved, each with its own block. A step that only one
/// has saved does not count.
#[test]
fn workers_go_on_from_the_newest_step() {
    let sandbox = Sandbox::new();
    let Job { mut agent, orders, endpoint } = start(&sandbox, "");
    let pids = workers(&mut agent, 0);
    give(&orders, "load(); save(10)");
    prints_of_all(&mut agent, &[0, 1], "loaded=nothing");
    prints_of_all(&mut agent, &[0, 1], "saved=10");
    let memory = wait_for_memory(&sandbox, &endpoint, |memory| memory["step"] == 10);
    assert_eq!(memory["text"], Value::Null, "{memory}");
    give(&orders, "save(20)");
    prints_of_all(&mut agent, &[0, 1], "saved=20");
    wait_for_memory(&sandbox, &endpoint, |memory| memory["step"] == 20);
    // The agent learns it with the next echo.
    give(&orders, "while ask(ask='newest')[0]['step'] != 20: time.sleep(0.01)");
    give(&orders, "newest()");
    prints_of_all(&mut agent, &[0, 1], "newest=20");
    orders[0].give("save(30)");
    agent.prints("rank=0 saved=30");
    kill(pids[1], Signal::SIGKILL);
    workers(&mut agent, 1);
    give(&orders, "load(); load(); load('dcp'); save(30); load()");
    assert_loaded(&mut agent, 20, &[0, 1]);
    assert_loaded(&mut agent, 20, &[0, 1]);
    // What another writer has saved, and what all have gone on from, is not loaded.
    prints_of_all(&mut agent, &[0, 1], "loaded=nothing");
    prints_of_all(&mut agent, &[0, 1], "saved=30");
    prints_of_all(&mut agent, &[0, 1], "loaded=nothing");
    agent.signal(Signal::SIGTERM);
    agent.end();
    sandbox.assert_nothing_left();
}

/// Workers are killed again and again while they save, each time at another moment. Those of each round load the same step, whole and
/// unchanged. A failure prints the seed of the moments.
#[test]
#[expect(clippy::disallowed_methods, reason = "the user of the test chooses the number of kills")]
#[expect(clippy::print_stdout, reason = "the output of a test that fails has the seed")]
fn kills_in_saves_leave_nothing_torn() {
    let given = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let kills = given("KILLS").unwrap_or(30);
    let seed = given("SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let sandbox = Sandbox::new();
    let words = format!(
        "--standalone --nproc-per-node 2 --max-restarts {} --no-progress-limit 0 {WORKER} loop",
        kills + 1
    );
    let mut agent = sandbox.ragent(&words).start();
    let mut restored = 0;
    for number in 0..kills {
        let mut steps = BTreeMap::new();
        while steps.len() < 2 {
            let line = agent.prints("loaded=");
            let words: Vec<&str> = line.split(['=', ' ']).collect();
            let rank: u32 = words[1].parse().unwrap();
            assert!(words.get(5).is_none_or(|of| of.parse() == Ok(rank)), "{line}");
            steps.insert(rank, words[3].to_owned());
        }
        assert_eq!(steps[&0], steps[&1], "round {number}");
        restored += u64::from(steps[&0] != "nothing");
        agent.prints("rank=0 filling=");
        let begun = clock::now_blocking();
        agent.prints("rank=0 saved=");
        let time = clock::now_blocking() - begun;
        // The third save waits until the first one is whole. It is interrupted, or what follows it.
        agent.prints("rank=0 filling=");
        agent.prints("rank=0 filling=");
        let_pass(random.random_range(Duration::ZERO..=2 * time));
        let workers = crate::support::children(crate::support::keeper_of(agent.pid()));
        kill(workers[number as usize % workers.len()], Signal::SIGKILL);
    }
    assert!(restored * 2 > kills, "only {restored} of {kills} rounds began from memory");
    agent.signal(Signal::SIGTERM);
    let end = agent.end();
    assert!(!end.stdout.contains("torn") && !end.stdout.contains("mixed"), "{}", end.stdout);
    sandbox.assert_nothing_left();
}

/// A byte of a kept block changes. It is not loaded, and the next round begins without it. No failure is charged.
#[test]
fn changed_byte_is_not_loaded() {
    let sandbox = Sandbox::new();
    let Job { mut agent, orders, endpoint } = start(&sandbox, "");
    let pids = workers(&mut agent, 0);
    give(&orders, "save(10)");
    prints_of_all(&mut agent, &[0, 1], "saved=10");
    wait_for_memory(&sandbox, &endpoint, |memory| memory["step"] == 10);
    change_a_byte(&agent);
    kill(pids[0], Signal::SIGKILL);
    agent.logs("cannot use step 10 from memory: the checksum of its part is wrong");
    agent.logs("round admitted round=1.3");
    give(&orders, "load(); save(5)");
    prints_of_all(&mut agent, &[0, 1], "loaded=nothing");
    prints_of_all(&mut agent, &[0, 1], "saved=5");
    agent.signal(Signal::SIGTERM);
    agent.end();
    sandbox.assert_nothing_left();
}

/// A limit that is too small, and one of the file size: one reason that says what is missing. The workers run on, and the next round tries again.
#[test]
fn limits_end_saving_not_training() {
    let cases = [
        ("--memory-limit 1MiB", "", "has 1.0 MB and needs 8.4 MB"),
        ("--memory-limit 0", "", "has --memory-limit 0"),
        ("", "ulimit -f 100; ", "File too large"),
    ];
    for (flags, limit, why) in cases {
        let sandbox = Sandbox::new();
        let orders: Vec<Orders> = (0..2).map(|rank| sandbox.orders(rank)).collect();
        let script = format!(
            "{limit} exec {} --standalone --nproc-per-node 2 --max-restarts 1 {flags} {WORKER}",
            env!("CARGO_BIN_EXE_ragent")
        );
        let mut agent = sandbox.program("bash").arg("-c").arg(script).start();
        let pids = workers(&mut agent, 0);
        orders[1].give("save(10, 2 * SIZE)");
        orders[1].give("save(10)");
        let line = agent.prints("rank=1 refused");
        assert!(line.contains(why), "{line}");
        agent.prints("rank=1 refused");
        give(&orders, "load(); newest()");
        prints_of_all(&mut agent, &[0, 1], "loaded=nothing");
        prints_of_all(&mut agent, &[0, 1], "newest=None");
        kill(pids[0], Signal::SIGKILL);
        workers(&mut agent, 1);
        agent.signal(Signal::SIGTERM);
        agent.end().assert_code(8);
        sandbox.assert_nothing_left();
    }
}

/// A worker that dies while it fills a buffer, and one that asks for absurd amounts, harm nobody. A socket of the last round is gone.
#[test]
fn misbehaving_workers_harm_nobody() {
    let sandbox = Sandbox::new();
    let Job { mut agent, orders, .. } = start(&sandbox, "");
    let pids = workers(&mut agent, 0);
    orders[0].give("tell(ask(ask='saved', step=1, bytes=8)[0])");
    agent.prints("rank=0 {'refused'");
    orders[0]
        .give("old = os.environ['RAGENT_MEMORY_SOCKET']; agent.send(b'{'); tell(agent.recv(10))");
    agent.prints("rank=0 b''");
    orders[0].give("agent = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); agent.connect(old); save(10)");
    agent.prints("rank=0 saved=10");
    orders[1].give(
        "ask(ask='buffer', step=10, bytes=SIZE, kind='state', replicated=False); tell('filling')",
    );
    agent.prints("rank=1 filling");
    kill(pids[1], Signal::SIGKILL);
    workers(&mut agent, 1);
    give(&orders, "load(); save(10)");
    prints_of_all(&mut agent, &[0, 1], "loaded=nothing");
    prints_of_all(&mut agent, &[0, 1], "saved=10");
    agent.signal(Signal::SIGTERM);
    agent.end();
}

/// Starts an agent with two workers in a cgroup.
fn agent_in(cgroup: &Cgroup, sandbox: &Sandbox, flags: &str) -> Program {
    let words = format!("--standalone --nproc-per-node 2 {flags} {WORKER}");
    cgroup.ragent(sandbox, &words).start()
}

/// A worker takes memory that checkpoints used. They are freed, and the job goes on without them. No process is killed.
#[test]
fn memory_gives_way_to_workers() {
    let Some(cgroup) = Cgroup::limited("memory-way", 3 << 30) else { return };
    let sandbox = Sandbox::new();
    let orders: Vec<Orders> = (0..2).map(|rank| sandbox.orders(rank)).collect();
    let mut agent = agent_in(&cgroup, &sandbox, "--max-restarts 9");
    let pids = workers(&mut agent, 0);
    give(&orders, "save(10, 64 << 20)");
    prints_of_all(&mut agent, &[0, 1], "saved=10");
    assert!(memory_files(&agent).len() >= 2);
    orders[1].give("taken = b'x' * (5 << 28)");
    agent.logs("checkpoints in memory are off");
    give(&orders, "save(20)");
    for _ in 0..2 {
        let line = agent.prints("refused");
        assert!(line.contains("GB left, and keeps 2.1 GB free"), "{line}");
    }
    // Another thread closes them. Nothing reports it, so this polls.
    let deadline = clock::now_blocking() + PATIENCE;
    while !memory_files(&agent).is_empty() {
        assert!(clock::now_blocking() < deadline, "{:?}", memory_files(&agent));
        std::thread::yield_now();
    }
    kill(pids[1], Signal::SIGKILL);
    workers(&mut agent, 1);
    // The one on disk may be newer.
    give(&orders, "load(); save(20)");
    prints_of_all(&mut agent, &[0, 1], "loaded=nothing");
    prints_of_all(&mut agent, &[0, 1], "saved=20");
    agent.signal(Signal::SIGTERM);
    agent.end().assert_code(8);
    assert_eq!(cgroup.oom_kills(), 0);
}

/// In a container with a `/dev/shm` of 64 MB, and on a machine whose kernel makes no executable files in memory: what is larger than that is
/// saved and loaded.
#[test]
fn small_tmpfs_and_sealed_memory_are_enough() {
    if !nix::unistd::geteuid().is_root() {
        return skip("namespaces want root");
    }
    if !is_there("unshare") || !is_there("mount") {
        return;
    }
    let cases = [
        ("--mount", "mount --make-rprivate / && mount -t tmpfs -o size=64m none /dev/shm"),
        // The setting belongs to the namespace of processes.
        ("--pid --fork --mount-proc", "echo 2 >/proc/sys/vm/memfd_noexec"),
    ];
    for (flags, prepare) in cases {
        let unshare = || flags.split(' ').collect::<Vec<_>>();
        let tried = Command::new("unshare").args(unshare()).args(["sh", "-c", prepare]).status();
        if !tried.is_ok_and(|status| status.success()) {
            skip(&format!("`unshare {flags}`, or `{prepare}` in it, is not possible"));
            continue;
        }
        let sandbox = Sandbox::new();
        let orders: Vec<Orders> = (0..2).map(|rank| sandbox.orders(rank)).collect();
        let script = format!(
            "{prepare} && exec {} --standalone --nproc-per-node 2 --max-restarts 1 {WORKER}",
            env!("CARGO_BIN_EXE_ragent")
        );
        let start =
            unshare().into_iter().fold(sandbox.program("unshare"), |start, flag| start.arg(flag));
        let mut agent = start.arg("bash").arg("-c").arg(script).start();
        workers(&mut agent, 0);
        give(&orders, "save(10, 96 << 20)");
        prints_of_all(&mut agent, &[0, 1], "saved=10");
        give(&orders, "while ask(ask='newest')[0]['step'] != 10: time.sleep(0.01)");
        give(&orders, "newest()");
        prints_of_all(&mut agent, &[0, 1], "newest=10");
        // The pids outside of the namespace are others.
        orders[1].give("os.kill(os.getpid(), 9)");
        workers(&mut agent, 1);
        give(&orders, "load(); os._exit(0)");
        assert_loaded(&mut agent, 10, &[0, 1]);
        agent.end().assert_code(0);
        sandbox.assert_nothing_left();
    }
}
