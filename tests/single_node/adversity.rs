//! Tests failures of the machine: disks, descriptors, forks, clocks and names fail, and workers run on.

use nix::sys::signal::Signal;

use crate::support::{Faults, Network, Program, Sandbox, Stream, let_pass, may_make_networks};

/// Waits for the end of the job, fails unless it has succeeded, and returns its stderr.
#[track_caller]
fn ends_well(agent: Program) -> String {
    let end = agent.end();
    end.assert_code(0);
    end.stderr
}

/// If the disk of the logs is full, workers go on. Their further output is lost, and the agent logs that.
#[test]
fn full_disk_ends_no_worker() {
    for streams in ["-r 3", "-t 3"] {
        let sandbox = Sandbox::new();
        let Some(faults) = Faults::new(&sandbox) else { return };
        let orders = sandbox.orders(0);
        let words = format!("--log-dir {} {streams} --no-python obey.sh", slow(&sandbox, "logs"));
        let mut agent = faults.happen_to(sandbox.ragent(&words)).start();
        agent.logs("admitted; starting workers");
        faults.set("full", 1);
        orders.give("seq 10000; seq 10000 >&2; echo the end; exit 0");
        let stderr = ends_well(agent);
        assert!(
            stderr.contains("failed to write log files of workers; the workers continue"),
            "{stderr}"
        );
        sandbox.assert_nothing_left();
    }
}

/// If the folder for logs becomes unwritable, the logs are lost, but not the next round. The output of workers goes to the console.
#[test]
fn lost_log_folder_ends_no_worker() {
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let words = "--max-restarts 1 --log-dir logs -r 3 --no-python obey.sh";
    let mut agent = sandbox.ragent(words).start();
    agent.logs("admitted; starting workers");
    orders.give("rm -r $SCRATCH/logs; touch $SCRATCH/logs; exit 1");
    agent.logs("their output goes to the console");
    assert_eq!(agent.worker().number("restart"), 1);
    orders.give("exit 0");
    ends_well(agent);
}

/// If no temporary folder can be made, a job runs without log files.
#[test]
fn no_temporary_folder() {
    let sandbox = Sandbox::new();
    let stderr = ends_well(sandbox.ragent("--no-python true").env("TMPDIR", "/proc").start());
    assert!(stderr.contains("failed to create a folder for log files"), "{stderr}");
}

/// A missing folder for temporary files is not created, because a file system may be about to be mounted there.
#[test]
fn temporary_folder_that_is_not_there() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("not mounted");
    let start = sandbox.ragent("--no-python true").env("TMPDIR", &folder);
    ends_well(start.env("XDG_RUNTIME_DIR", "").start());
    assert!(!folder.exists());
}

/// An agent notices signals and the ends of workers even if its parent ignores or blocks signals.
#[test]
fn signals_that_a_parent_ignores_or_blocks() {
    let sandbox = Sandbox::new();
    let python = "import os, signal, sys\n\
                  signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
                  signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n\
                  os.execv(sys.argv[1], sys.argv[1:])";
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let start = |script| {
        let words = ["-c", python, ragent, "--no-python", script];
        words.iter().fold(sandbox.program("/usr/bin/python3"), |start, word| start.arg(word))
    };
    ends_well(start("true").start());
    let mut agent = start("stay.sh").start();
    agent.logs("admitted; starting workers");
    agent.signal(Signal::SIGTERM);
    agent.end().assert_code(8);
    sandbox.assert_nothing_left();
}

/// If the machine's loopback is down, an agent does not reach even its own coordinator. It logs that, and ends when it is asked to.
#[test]
fn no_loopback() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("lo", 1), Sandbox::new());
    network.ip(1, "link set lo down");
    let mut agent = network.ragent(&sandbox, 1, "--no-python true").start();
    agent.logs("cannot reach the coordinator");
    agent.signal(Signal::SIGTERM);
    let end = agent.end();
    end.assert_code(8);
    end.assert_stderr(&["coordinator has finished"]);
}

/// A limit for the size of files ends no worker and no agent. It is treated like a full disk.
#[test]
fn files_that_may_not_grow() {
    let sandbox = Sandbox::new();
    let orders = sandbox.orders(0);
    let shell = format!(
        "ulimit -f 8; exec {} --log-dir logs -r 3 --no-python obey.sh",
        env!("CARGO_BIN_EXE_ragent")
    );
    let mut agent = sandbox.program("/bin/sh").arg("-c").arg(shell).start();
    agent.logs("admitted; starting workers");
    orders.give("seq 10000; echo the end; exit 0");
    let stderr = ends_well(agent);
    assert!(
        stderr.contains("failed to write log files of workers; the workers continue"),
        "{stderr}"
    );
    sandbox.assert_nothing_left();
}

/// A fork that is refused for lack of process numbers is retried. If it is refused for long, that is reported as a failure.
#[test]
fn refused_fork_is_tried_again() {
    let sandbox = Sandbox::new();
    let Some(faults) = Faults::new(&sandbox) else { return };
    faults.set("fork", 5);
    let start = sandbox.ragent("--nproc-per-node 4 --no-python true");
    ends_well(faults.happen_to(start).start());
    assert!(faults.is_used_up("fork"), "no fork was refused");
    faults.set("fork", 1000);
    let end = faults.happen_to(sandbox.ragent("--nproc-per-node 16 --no-python true")).run();
    end.assert_code(1);
    assert!(
        end.report().contains("could not be started: Resource temporarily"),
        "{}",
        end.report()
    );
    sandbox.assert_nothing_left();
}

/// An agent whose limit of open files is too low fails before anything starts, with the number that it needs. With that number it runs its
/// workers.
#[test]
fn few_descriptors() {
    let sandbox = Sandbox::new();
    let run = |limit: u32| {
        let agent = env!("CARGO_BIN_EXE_ragent");
        let words =
            "--nproc-per-node 2 --log-dir logs -t 3 --hang-timeout 60 --no-python fail.sh 0";
        let script = format!("ulimit -n {limit}; exec {agent} {words}");
        sandbox.program("bash").arg("-c").arg(script).run()
    };
    for limit in [16, 60, 167] {
        let end = run(limit);
        end.assert_code(2);
        let what = format!("this process may open {limit} files, but needs 168");
        end.assert_stderr(&[&what, "hint: raise the hard limit of `ulimit -n`"]);
    }
    run(168).assert_code(0);
    let script = format!(
        "ulimit -n 896; exec {} --nproc-per-node 16 --log-dir logs -t 3 --hang-timeout 60 \
         --no-python true",
        env!("CARGO_BIN_EXE_ragent")
    );
    sandbox.program("bash").arg("-c").arg(script).run().assert_code(0);
    sandbox.assert_nothing_left();
}

/// A wall clock that is set a year forward, and then two years back, changes nothing.
#[test]
fn stepped_clock_changes_nothing() {
    const YEAR: i64 = 366 * 24 * 3600;
    let sandbox = Sandbox::new();
    let Some(faults) = Faults::new(&sandbox) else { return };
    let orders = sandbox.orders(0);
    let start = sandbox.ragent("--max-restarts 1 --hang-timeout 600 --no-python obey.sh");
    let mut agent = faults.happen_to(start).start();
    agent.worker();
    faults.set("clock", YEAR);
    let_pass(crate::support::LEASE);
    orders.give("exit 1");
    // The timestamps of the log show that the clock was stepped.
    let line = agent.logs("admitted; starting workers");
    let year = |line: &str| line[..4].parse::<i64>().unwrap();
    let before = year(&line);
    assert_eq!(agent.worker().number("restart"), 1);
    let after = year(&agent.logs("admitted; starting workers"));
    assert_eq!(after, before + 1);
    faults.set("clock", -YEAR);
    let_pass(crate::support::LEASE);
    orders.give("exit 0");
    let stderr = ends_well(agent);
    assert!(!stderr.contains("lease"), "{stderr}");
}

/// A slow disk under log files and state file delays a round, but ends no lease. If each file takes longer than a lease, the round starts
/// when they exist, and no node is lost meanwhile.
#[test]
fn slow_disk_costs_no_lease() {
    let sandbox = Sandbox::new();
    let Some(faults) = Faults::new(&sandbox) else { return };
    let orders = sandbox.orders(0);
    let words = format!(
        "--rdzv-endpoint 127.0.0.1:0 --max-restarts 1 --log-dir {} -t 3 --no-python obey.sh",
        slow(&sandbox, "logs")
    );
    let start = sandbox.ragent(&words).env("RUNTIME_DIRECTORY", slow(&sandbox, "run"));
    let mut agent = faults.happen_to(start).start();
    agent.prints("worker rank=0");
    faults.set("slow", 2800);
    orders.give("exit 1");
    agent.logs("the disk of the state file is slow");
    agent.prints("restart=1");
    faults.set("slow", 0);
    orders.give("exit 0");
    let stderr = ends_well(agent);
    assert!(!stderr.contains("lease has ended") && !stderr.contains("was paused"), "{stderr}");
}

fn slow(sandbox: &Sandbox, name: &str) -> String {
    sandbox.path("slow").join(name).display().to_string()
}

/// If the resolver is dead, an agent finds a coordinator that is still at its address. A new agent names the host that it cannot resolve.
#[test]
fn dead_resolver() {
    let sandbox = Sandbox::new();
    let Some(faults) = Faults::new(&sandbox) else { return };
    let endpoint = format!("localhost:{}", crate::support::free_port());
    let words = format!("--nnodes 2 --rdzv-endpoint {endpoint} --no-python stay.sh");
    let mut host = sandbox.ragent(&words).start();
    host.endpoint();
    let mut guest = faults.happen_to(sandbox.ragent(&words)).start();
    guest.worker();
    host.worker();
    faults.set("names", 1);
    host.signal(Signal::SIGKILL);
    host.wait_until_silent();
    let mut host = sandbox.ragent(&words).start();
    guest.worker();
    host.worker();
    let late = format!("--nnodes 2 --rdzv-endpoint {endpoint} --rdzv-conf join_timeout=1");
    let late = faults.happen_to(sandbox.ragent(&format!("{late} --no-python stay.sh"))).run();
    late.assert_code(1);
    late.assert_stderr(&["the resolver did not answer for `localhost`"]);
    assert!(!guest.text(Stream::Stderr).contains("resolver"), "{guest:?}");
}
