//! Tests the loss and the restart of the coordinator's process: the other agents stay, and one round follows.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    time::{Duration, UNIX_EPOCH},
};

use nix::sys::signal::Signal;
use ragent_base::sys::clock;

use crate::{
    job::{Job, hosting, numbers, workers},
    support::{PATIENCE, Program, Sandbox, Stream, keeper_of, kill, let_pass},
};

/// The agent with the coordinator is killed and started again. The other agent stays. One new round follows under a higher term. The number
/// of restarts and the budget are kept.
#[test]
fn killed_host_comes_back() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 2 --shutdown-timeout 300");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    workers([&mut host, &mut guest])[1].signal(Signal::SIGKILL);
    assert_eq!(numbers(&workers([&mut host, &mut guest]), "restart"), [1, 1]);
    let before = job.status();
    host.signal(Signal::SIGKILL);
    host.wait_until_silent();
    let mut host = job.host("--no-python stay.sh");
    let both = workers([&mut host, &mut guest]);
    // So the coordinator did not wait for the lease.
    host.logs("the previous host's agent and all of its processes have ended");
    assert_eq!(numbers(&both, "restart"), [1, 1]);
    assert_eq!(numbers(&both, "rank"), [0, 1]);
    let after = job.status();
    assert_eq!(before["round"], 2);
    assert_eq!(after["round"], 3);
    assert_eq!(before["job_uid"], after["job_uid"]);
    assert!(after["term"].as_u64() > before["term"].as_u64());
    // One restart of the budget is left.
    both[0].signal(Signal::SIGKILL);
    let last = workers([&mut host, &mut guest]);
    assert_eq!(numbers(&last, "restart"), [2, 2]);
    last[1].signal(Signal::SIGKILL);
    let (host, guest) = (host.end(), guest.end());
    assert_eq!(host.report(), guest.report());
    sandbox.assert_nothing_left();
}

/// A host comes back without its state file, as after a reboot. It continues the job of the nodes that waited for it. No node is refused,
/// and the round number and the restarts used continue.
#[test]
fn host_without_its_state_adopts_the_job() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 2 --shutdown-timeout 300");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    workers([&mut host, &mut guest])[1].signal(Signal::SIGKILL);
    assert_eq!(numbers(&workers([&mut host, &mut guest]), "restart"), [1, 1]);
    let before = job.status();
    host.signal(Signal::SIGKILL);
    host.wait_until_silent();
    let elsewhere = sandbox.path("rebooted");
    let start = job.agent("--no-python stay.sh").env("XDG_RUNTIME_DIR", &elsewhere);
    let mut host = hosting(start);
    host.logs("adopted the run of a node");
    let both = workers([&mut host, &mut guest]);
    assert_eq!(numbers(&both, "restart"), [1, 1]);
    let after = job.status();
    assert_eq!(after["round"], 3);
    assert_eq!(after["job_uid"], before["job_uid"]);
    let stderr = guest.text(Stream::Stderr);
    assert!(!stderr.contains("refuses this node"), "{stderr}");
}

/// The same with a malformed state file. The host reports it once, with the path.
#[test]
fn host_with_a_bad_state_file_adopts_the_job() {
    for bad in [&b""[..], b"{\"schema\":1", &[0xFF; 4096]] {
        let sandbox = Sandbox::new();
        let job = Job::new(&sandbox, "--nnodes 2 --shutdown-timeout 300");
        let mut host = job.host("--no-python stay.sh");
        let mut guest = job.guest("--no-python stay.sh");
        workers([&mut host, &mut guest]);
        let before = job.status();
        host.signal(Signal::SIGKILL);
        host.wait_until_silent();
        let files = sandbox.files_below("run/ragent");
        let name = files.iter().find(|name| name.starts_with("job-") && name.ends_with(".json"));
        let path = sandbox.path("run/ragent").join(name.expect("the state was written"));
        fs::write(&path, bad).unwrap();
        let mut host = job.host("--no-python stay.sh");
        host.logs("adopted the run of a node");
        workers([&mut host, &mut guest]);
        assert_eq!(job.status()["job_uid"], before["job_uid"]);
        assert_one_warning(
            &host,
            &path.display().to_string(),
            "ignored a state file that cannot be read or is malformed",
        );
    }
}

/// A host cannot write its state file. It reports that once with the path, although it tries again with each round, and its job runs.
#[test]
fn host_that_cannot_write_its_state_reports_it_once() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 2");
    let start = job.agent("--no-python stay.sh").env("XDG_RUNTIME_DIR", "/proc/none");
    let mut host = hosting(start);
    let mut guest = job.guest("--no-python stay.sh");
    for _ in 0..2 {
        workers([&mut host, &mut guest])[1].signal(Signal::SIGKILL);
    }
    workers([&mut host, &mut guest]);
    let cause = "failed to write the state of the job";
    assert_one_warning(&host, "/proc/none/ragent/job-", cause);
}

/// Fails unless the agent has printed one warning with the path of a state file, and with this cause.
#[track_caller]
fn assert_one_warning(agent: &Program, path: &str, cause: &str) {
    let log = agent.text(Stream::Stderr);
    let mut warnings = log.lines().filter(|line| line.contains(" WARN ") && line.contains(path));
    let warning = warnings.next().unwrap_or_else(|| panic!("no warning names {path}:\n{log}"));
    assert!(warning.contains(cause), "{warning}");
    assert_eq!(warnings.next(), None);
}

/// The keeper of the old agent was killed too, so there is no death notice. The coordinator waits for the leases, because workers of the
/// old agent might be alive.
#[test]
fn host_that_was_killed_with_its_keeper_is_waited_for() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --shutdown-timeout 300");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    workers([&mut host, &mut guest]);
    let keeper = keeper_of(host.pid());
    kill(host.pid(), Signal::SIGSTOP);
    kill(keeper, Signal::SIGKILL);
    kill(host.pid(), Signal::SIGKILL);
    host.wait_until_silent();
    let started = clock::now_blocking();
    let mut host = job.host("--no-python stay.sh");
    host.logs("recovered");
    // The coordinator's lease. Nothing can shorten it here.
    assert!(clock::now_blocking() - started >= Duration::from_secs(3));
    assert_eq!(numbers(&workers([&mut host, &mut guest]), "rank"), [0, 1]);
    let stderr = host.text(Stream::Stderr);
    assert!(!stderr.contains("all of its processes have ended"), "{stderr}");
}

/// While a host is frozen, its own workers and those of the other nodes end with their leases. When it resumes, it evicts no node because
/// of its own pause. One new round of the same nodes follows, without a charge.
#[test]
fn frozen_host_evicts_nobody() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --shutdown-timeout 300");
    let lifeline = sandbox.lifeline("lifeline");
    let mut host = hosting(job.agent("--no-python stubborn.sh").hold(&lifeline));
    let mut guest = job.agent("--no-python stubborn.sh").hold(&lifeline).start();
    workers([&mut host, &mut guest]);
    host.signal(Signal::SIGSTOP);
    lifeline.wait_until_broken();
    host.signal(Signal::SIGCONT);
    let both = workers([&mut host, &mut guest]);
    assert_eq!(numbers(&both, "rank"), [0, 1]);
    assert_eq!(numbers(&both, "restart"), [0, 0]);
    assert_eq!(job.status()["round"], 2);
    let stderr = host.text(Stream::Stderr);
    assert!(!stderr.contains("node lost"), "{stderr}");
}

/// A host is frozen for longer than its lease of nodes, even repeatedly. It evicts no node, although the job could go on without one. Each
/// time one round of all nodes follows, without a charge.
#[test]
fn repeatedly_frozen_host_evicts_nobody() {
    let sandbox = Sandbox::new();
    let flags = "--nnodes 1:2 --rdzv-conf shrink_timeout=0,last_call_timeout=3600";
    let job = Job::new(&sandbox, flags);
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    workers([&mut host, &mut guest]);
    for round in [2, 3] {
        host.freeze(Duration::from_millis(4500));
        let both = workers([&mut host, &mut guest]);
        assert_eq!(numbers(&both, "world_size"), [2, 2]);
        assert_eq!(numbers(&both, "restart"), [0, 0]);
        let status = job.status();
        assert_eq!(status["round"], round, "{status}");
        let nodes = status["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 2, "{status}");
        assert!(nodes.iter().all(|node| node["state"] == "running"), "{status}");
    }
    host.receive_pending();
    let stderr = host.text(Stream::Stderr);
    assert!(!stderr.contains("node lost"), "{stderr}");
}

/// All agents of a job were killed and started again. The job runs again once all leases are over, in a later round, although no member of
/// the last round is left.
#[test]
fn job_that_was_killed_as_a_whole_starts_again() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --rdzv-conf join_timeout=3600");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    workers([&mut host, &mut guest]);
    let before = job.status();
    for agent in [&host, &guest] {
        agent.signal(Signal::SIGKILL);
    }
    host.wait_until_silent();
    guest.wait_until_silent();
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--no-python stay.sh");
    let both = workers([&mut host, &mut guest]);
    assert_eq!(numbers(&both, "world_size"), [2, 2]);
    let after = job.status();
    assert!(after["round"].as_u64() > before["round"].as_u64(), "{before} {after}");
    assert!(after["term"].as_u64() > before["term"].as_u64(), "{before} {after}");
}

/// All agents of a run were killed. Its restarts are not charged when the same command is run again. They are charged if a service manager
/// restarts the agent.
#[test]
fn budget_of_a_killed_run_is_not_charged_to_the_next() {
    for (is_service, restarts) in [(false, 0), (true, 1)] {
        let sandbox = Sandbox::new();
        let job = Job::new(&sandbox, "--max-restarts 1");
        let service = sandbox.path("service");
        let start = || {
            let agent = job.agent("--no-python stay.sh");
            hosting(if is_service { agent.env("RUNTIME_DIRECTORY", &service) } else { agent })
        };
        let mut agent = start();
        agent.worker().signal(Signal::SIGKILL);
        assert_eq!(agent.worker().number("restart"), 1);
        agent.signal(Signal::SIGKILL);
        agent.wait_until_silent();
        assert_eq!(start().worker().number("restart"), restarts, "{is_service}");
    }
}

/// State files of jobs that no agent can be waiting for are removed when a coordinator starts.
#[test]
fn state_files_of_forgotten_jobs_are_removed() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("run/ragent");
    fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
    let forgotten = folder.join("job-0123456789abcdef.death-notice");
    fs::write(&forgotten, "node 1").unwrap();
    let file = fs::File::options().append(true).open(&forgotten).unwrap();
    file.set_modified(UNIX_EPOCH).unwrap();
    let mut host = Job::new(&sandbox, "").host("--no-python stay.sh");
    host.worker();
    let deadline = clock::now_blocking() + PATIENCE;
    while forgotten.exists() {
        assert!(clock::now_blocking() < deadline, "it stays");
        let_pass(Duration::from_millis(10));
    }
}

/// A coordinator's state is removed at the end of its job. A later job with the same name neither waits for it nor is charged for it.
#[test]
fn job_that_is_over_leaves_nothing_to_the_next() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--max-restarts 1");
    for _ in 0..2 {
        let mut agent = job.host("--no-python fail.sh 1");
        assert_eq!(agent.worker().number("restart"), 0);
        assert_eq!(agent.worker().number("restart"), 1);
        let end = agent.end();
        end.assert_code(1);
        assert!(!end.stderr.contains("members of the last round"), "{}", end.stderr);
    }
}

/// Without a coordinator, workers run no longer than the lease. The agent logs the endpoint that it waits for.
#[test]
fn workers_do_not_run_on_without_a_coordinator() {
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2 --shutdown-timeout 300");
    let lifeline = sandbox.lifeline("lifeline");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.agent("--role other --no-python stubborn.sh").hold(&lifeline).start();
    workers([&mut host, &mut guest]);
    host.signal(Signal::SIGKILL);
    let line = guest.logs("cannot reach the coordinator");
    assert!(line.contains(&job.endpoint), "{line}");
    lifeline.wait_until_broken();
    // No coordinator can release the agent, so it leaves by itself.
    guest.signal(Signal::SIGTERM);
    guest.end().assert_code(8);
}
