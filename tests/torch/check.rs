//! Tests `ragent check` with real workers on gloo, in a network namespace for each node.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;

use crate::{
    support::{
        End, Network, Program, Sandbox, children, command_line, free_port, kill, let_pass,
        may_make_networks,
    },
    venv,
};

/// Starts a check on all nodes. The first one coordinates, and has rank 0, because it is the first by host name. No other one ever
/// coordinates: a node with cut links would not reach it.
fn start(network: &Network, sandbox: &Sandbox, nodes: u32, flags: &str) -> Option<Vec<Program>> {
    let python = venv("python")?;
    let agent = |node: u32| {
        let words = format!(
            "check --nnodes {nodes} --rdzv-id check --auth none --rdzv-conf voters=1 \
             --rdzv-endpoint {}:29400 --local-addr {} -- --backend gloo --out bad-hosts {flags}",
            Network::address(1),
            Network::address(node)
        );
        let start = network.named_ragent(sandbox, node, &words).default_lines();
        let start = start.env("PYTHON_EXEC", &python).env("GLOO_SOCKET_IFNAME", "eth0");
        // Several nodes share the processors.
        start.env("OMP_NUM_THREADS", "1").start()
    };
    Some((1..=nodes).map(agent).collect())
}

/// Waits for the end of all agents. Returns the report.
fn ends(agents: Vec<Program>, code: i32) -> String {
    let ends: Vec<End> = agents.into_iter().map(Program::end).collect();
    report_of(&ends, code)
}

/// Returns the report, which only the first agent prints.
fn report_of(ends: &[End], code: i32) -> String {
    for end in ends {
        end.assert_code(code);
        for wrong in ["Traceback", "has succeeded"] {
            assert!(!end.stderr.contains(wrong), "{}", end.stderr);
        }
        let has_message = end.stderr.contains("error: not all nodes are good: node1 has printed");
        assert_eq!(has_message, code == 1, "{}", end.stderr);
    }
    assert!(ends.iter().skip(1).all(|end| end.stdout.is_empty()), "{ends:?}");
    ends.first().expect("there is a first node").stdout.clone()
}

/// Is set when this value is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn bad_hosts(sandbox: &Sandbox) -> String {
    fs::read_to_string(sandbox.path("bad-hosts")).expect("the first node has written it")
}

/// Good nodes are good, and nothing is left behind.
#[test]
fn good_nodes() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("good", 2), Sandbox::new());
    fs::write(sandbox.path("bad-hosts"), "old\n").unwrap();
    let Some(agents) = start(&network, &sandbox, 2, "") else { return };
    assert_eq!(ends(agents, 0), "2 nodes are good\n");
    assert_eq!(bad_hosts(&sandbox), "");
    let scripts = ["run1", "run2"].map(|folder| sandbox.files_below(folder));
    let is_script = |file: &String| file.ends_with("ragent_check.py");
    assert!(!scripts.iter().flatten().any(is_script), "{scripts:?}");
    sandbox.assert_nothing_left();
}

/// A node that reaches only the first one fails with its neighbour, and with its partner of the second pass. It is named, and no other node.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn node_with_cut_links_is_named() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("links", 6), Sandbox::new());
    for other in 2..6 {
        network.cut_one_way(6, other);
    }
    let Some(agents) = start(&network, &sandbox, 6, "--timeout 60") else { return };
    let report = ends(agents, 1);
    // On a busy machine, other nodes may be slow.
    let failed = |text: &str| {
        let failed = text.lines().filter(|line| line.contains("failed twice: with node"));
        failed.map(|line| line[..5].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(failed(&report), ["node6"], "{report}");
    assert_eq!(failed(&bad_hosts(&sandbox)), ["node6"], "{report}");
    assert!(report.contains("nodes are good; the others are in bad-hosts"), "{report}");
    sandbox.assert_nothing_left();
}

/// Two good nodes on this machine are good with this Python.
pub(super) fn works_with(python: &str) {
    let (sandbox, port) = (Sandbox::new(), free_port());
    let agent = |node: u32| {
        let words = format!(
            "check --nnodes 2 --rdzv-id check --rdzv-backend c10d --node-rank {node} \
             --rdzv-endpoint 127.0.0.1:{port} -- --backend gloo"
        );
        let start = sandbox.ragent(&words).default_lines().env("PYTHON_EXEC", python);
        let start = start.env("RES_OPTIONS", "timeout:1 attempts:1");
        start.env("GLOO_SOCKET_IFNAME", "lo").env("OMP_NUM_THREADS", "1").start()
    };
    assert_eq!(ends(vec![agent(0), agent(1)], 0), "2 nodes are good\n");
    sandbox.assert_nothing_left();
}

/// A node that hangs while it imports torch is named by its group rank, and does not keep the job from ending.
#[test]
fn node_that_hangs_is_named() {
    let Some(python) = venv("python") else { return };
    let (sandbox, port) = (Sandbox::new(), free_port());
    fs::create_dir(sandbox.path("torch")).unwrap();
    fs::write(sandbox.path("torch/__init__.py"), "import time\ntime.sleep(3600)\n").unwrap();
    let agent = |node: u32, modules: &str| {
        let words = format!(
            "check --nnodes 2 --rdzv-id check --rdzv-backend c10d --node-rank {node} \
             --rdzv-endpoint 127.0.0.1:{port} -- --backend gloo --timeout 10"
        );
        let start = sandbox.ragent(&words).default_lines().env("PYTHON_EXEC", &python);
        start.env("PYTHONPATH", sandbox.path(modules)).start()
    };
    let (first, second) = (agent(0, "none"), agent(1, ""));
    let end = first.end();
    end.assert_code(1);
    assert!(end.stdout.starts_with("group rank 1   no answer in 10 s"), "{}", end.stdout);
    assert_eq!(bad_hosts(&sandbox), "");
    let end = second.end();
    end.assert_code(1);
    end.assert_stderr(&["error: failed to check ", "torch was not imported in 40 s"]);
    sandbox.assert_nothing_left();
}

/// A slow rank makes its node slow, and not its partners.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn slow_rank_is_named() {
    if !may_make_networks() {
        return;
    }
    let (network, sandbox) = (Network::new("slow", 4), Sandbox::new());
    let Some(agents) = start(&network, &sandbox, 4, "--timeout 250") else { return };
    let has_ended = AtomicBool::new(false);
    let ends_of_agents: Vec<End> = thread::scope(|scope| {
        scope.spawn(|| slow_down(&network, 3, &has_ended));
        // A failure that is found here ends the other thread, too.
        let _end = Ends(&has_ended);
        agents.into_iter().map(Program::end).collect()
    });
    let report = report_of(&ends_of_agents, 1);
    assert!(report.contains("node3   slow: "), "{report}");
    assert!(bad_hosts(&sandbox).contains("node3 slow: "), "{}", bad_hosts(&sandbox));
}

/// Lets those processes of a node that work in pairs run for a fiftieth of the time. The workers, which have started them, are not slow.
/// On a busy machine, the times between the signals become longer, and all other nodes are slower too.
fn slow_down(network: &Network, node: u32, has_ended: &AtomicBool) {
    while !has_ended.load(Ordering::Relaxed) {
        let is_of_check = |pid: &u32| command_line(*pid).contains("ragent_check.py");
        let workers = network.processes(node).into_iter().filter(is_of_check);
        let working: Vec<u32> = workers.flat_map(children).filter(is_of_check).collect();
        working.iter().for_each(|pid| kill(*pid, Signal::SIGSTOP));
        let_pass(Duration::from_millis(490));
        working.iter().for_each(|pid| kill(*pid, Signal::SIGCONT));
        let_pass(Duration::from_millis(10));
    }
}
