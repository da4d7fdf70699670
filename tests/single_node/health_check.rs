//! Tests the program of `--health-check`, which the agent runs, and readings of GPUs and folders.

use std::{fs, time::Duration};

use nix::{sys::signal::Signal, unistd::geteuid};

use crate::support::{
    Gpus, Program, Sandbox, children, is_alive, is_there, keeper_of, kill, let_pass, skip,
};

/// Starts an agent with a check that is this script.
fn start(sandbox: &Sandbox, script: &str, words: &str) -> Program {
    let check = sandbox.path("check.sh");
    fs::write(&check, script).unwrap();
    let words = format!("{words} --no-python obey.sh");
    let start = sandbox.ragent("--health-check").arg(format!("sh {}", check.display()));
    words.split_ascii_whitespace().fold(start, |start, word| start.arg(word)).start()
}

/// Waits for a file, and returns the process id in it.
fn pid_in(sandbox: &Sandbox, name: &str) -> u32 {
    loop {
        match fs::read_to_string(sandbox.path(name)) {
            Ok(pid) => return pid.trim().parse().unwrap(),
            Err(_) => let_pass(Duration::from_millis(20)),
        }
    }
}

/// The check runs before the workers and after a failure, and learns why. Without a shell, it gets its words as a shell would split them.
#[test]
fn check_runs_before_workers() {
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let script = "echo $RAGENT_HEALTH_WHEN $RANK $RAGENT_SOCKET >> $SCRATCH/when";
    let mut agent = start(&sandbox, script, "--max-restarts 1");
    let when = || fs::read_to_string(sandbox.path("when")).unwrap();
    agent.worker();
    assert_eq!(when(), "start\n");
    orders.give("exit 3");
    assert_eq!(agent.worker().number("restart"), 1);
    assert_eq!(when(), "start\nfailure\n");
    orders.give("exit 0");
    let end = agent.end();
    end.assert_code(0);
    assert!(!end.stderr.contains("unhealthy"), "{}", end.stderr);
}

/// After a failure, the check waits until the other workers have ended, which may hold what it needs.
#[test]
fn check_runs_after_all_workers() {
    let sandbox = Sandbox::new();
    let orders = [sandbox.orders(0), sandbox.orders(1)];
    let script = "echo $RAGENT_HEALTH_WHEN >> $SCRATCH/when
        if test -e $SCRATCH/held && kill -0 $(cat $SCRATCH/held)
        then echo a worker is there >&2; exit 1
        fi";
    let words = "--nproc-per-node 2 --shutdown-timeout 1 --max-restarts 1";
    let mut agent = start(&sandbox, script, words);
    agent.workers(2);
    orders[1].give("trap '' TERM; echo $$ > $SCRATCH/draft; mv $SCRATCH/draft $SCRATCH/held");
    pid_in(&sandbox, "held");
    orders[0].give("exit 3");
    agent.logs("rank 1 is killed by SIGKILL ");
    agent.workers(2);
    assert_eq!(fs::read_to_string(sandbox.path("when")).unwrap(), "start\nfailure\n");
    orders.iter().for_each(|orders| orders.give("exit 0"));
    let end = agent.end();
    end.assert_code(0);
    assert!(!end.stderr.contains("unhealthy"), "{}", end.stderr);
}

/// A check that fails, hangs, leaves a process or prints megabytes makes the machine unhealthy, with the last line that it has printed. The
/// job of one node runs in any case. Nothing is left of the check, and no zombie.
#[test]
fn failed_checks_are_named() {
    let flood = "yes word | head -c 3000000";
    for (script, text) in [
        ("echo no network >&2; exit 1", "exited with code 1: no network"),
        ("echo waiting >&2; sleep 1000 & wait", "did not end in 0.5 s: waiting"),
        ("sleep 1000 & echo left >&2; exit 2", "exited with code 2: left"),
        (&format!("{flood} >&2; {flood}; echo full >&2; exit 3"), "exited with code 3: full"),
        ("kill -KILL $$", "was killed by a signal"),
    ] {
        let sandbox = Sandbox::new();
        let orders = sandbox.orders(0);
        let timeout = if text.contains("0.5") { "0.5" } else { "300" };
        let mut agent = start(&sandbox, script, &format!("--health-timeout {timeout}"));
        let line = agent.logs("this machine is unhealthy: ");
        assert!(line.contains(&format!("the health check {text}")), "{line}");
        assert!(line.contains("WARN") && line.contains("class=\"gone\""), "{line}");
        agent.worker();
        let children = children(agent.pid());
        assert!(children.iter().all(|pid| is_alive(*pid)), "{children:?}");
        orders.give("exit 0");
        agent.end().assert_code(0);
        sandbox.wait_until_nothing_left();
    }
}

/// A check that is killed because the keeper was lost says nothing about the machine.
///
/// If the agent notices the end of the check first, it starts a round that fails at once. Hence the restart, and the second check, which ends.
#[test]
fn lost_keeper_is_no_matter_of_the_machine() {
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let script = "[ ! -e $SCRATCH/pid ] || exit 0
        echo $$ > $SCRATCH/draft; mv $SCRATCH/draft $SCRATCH/pid; exec sleep 1000";
    let mut agent = start(&sandbox, script, "--health-timeout 3600 --max-restarts 1");
    pid_in(&sandbox, "pid");
    kill(keeper_of(agent.pid()), Signal::SIGKILL);
    agent.worker();
    orders.give("exit 0");
    let end = agent.end();
    end.assert_code(0);
    assert!(!end.stderr.contains("unhealthy"), "{}", end.stderr);
}

/// A check ends with its agent and with all that it has started. Its first process ends also if the agent is killed.
#[test]
fn check_ends_with_its_agent() {
    for (signal, rest) in
        [(Signal::SIGTERM, "sleep 1000 & sleep 1000"), (Signal::SIGKILL, "exec sleep 1000")]
    {
        let sandbox = Sandbox::new();
        let script = format!("echo $$ > $SCRATCH/draft; mv $SCRATCH/draft $SCRATCH/pid; {rest}");
        let agent = start(&sandbox, &script, "--health-timeout 3600");
        assert!(is_alive(pid_in(&sandbox, "pid")));
        agent.signal(signal);
        drop(agent.end());
        sandbox.wait_until_nothing_left();
    }
}

/// An error of a GPU makes the machine unhealthy when its worker has failed. A machine without anything of that has no warning.
#[test]
fn error_of_a_gpu_makes_unhealthy() {
    let sandbox = Sandbox::new();
    let Some(mut gpus) = Gpus::new(&sandbox) else { return };
    let orders = sandbox.orders(0);
    let start = sandbox.ragent("--max-restarts 1 --no-python obey.sh");
    let mut agent = gpus.belong_to(start).start();
    agent.worker();
    gpus.fail(1, 79);
    agent.logs("WARN GPU 1 reported XID 79");
    orders.give("exit 3");
    let line = agent.logs("this machine is unhealthy: ");
    assert!(line.contains("GPU 1: XID 79 (fell off the bus)"), "{line}");
    assert!(line.contains("class=\"replace\""), "{line}");
    agent.worker();
    orders.give("exit 0");
    agent.end().assert_code(0);
}

/// With `--health off` nothing is read.
#[test]
fn health_off_reads_nothing() {
    for words in ["--health off", "--health nic"] {
        let sandbox = Sandbox::new();
        let Some(gpus) = Gpus::new(&sandbox) else { return };
        let orders = sandbox.orders(0);
        gpus.set(1, 145, 1);
        let start = sandbox.ragent(&format!("{words} --held-gpu-timeout 0 --no-python obey.sh"));
        let mut agent = gpus.belong_to(start).start();
        agent.worker();
        assert!(!gpus.are_open_in(agent.pid()));
        orders.give("exit 3");
        let end = agent.end();
        end.assert_code(1);
        assert!(!end.stderr.contains("row remap"), "{}", end.stderr);
    }
}

/// A folder that has become full since the round began is named with the failure.
#[test]
fn full_folder_is_named() {
    if !geteuid().is_root() {
        return skip("mounting a small file system needs root");
    }
    if !is_there("unshare") || !is_there("mount") {
        return;
    }
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let logs = sandbox.path("logs");
    fs::create_dir(&logs).unwrap();
    let logs = logs.display();
    let script = format!(
        "mount --make-rprivate / && mount -t tmpfs -o size=8m none {logs} && \
         exec {} --log-dir {logs} --no-python obey.sh",
        env!("CARGO_BIN_EXE_ragent"),
    );
    let start = sandbox.program("unshare").arg("--mount").arg("bash").arg("-c").arg(script);
    let mut agent = start.start();
    agent.worker();
    orders.give(&format!("head -c 100000000 /dev/zero > {logs}/fill; exit 3"));
    let end = agent.end();
    end.assert_code(1);
    let line = end.stderr.lines().find(|line| line.starts_with("  hardware  : "));
    let line = line.unwrap_or_else(|| panic!("no hardware in {}", end.stderr));
    assert!(line.contains(&format!("{logs}/")) && line.contains(" was found full "), "{line}");
}
