//! Tests what the next process of a coordinator finds on its disk: the state file, the death notice, and files of other jobs.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    time::{Duration, UNIX_EPOCH},
};

use nix::sys::signal::Signal;
use ragent_base::sys::clock;

use crate::{
    job::{Job, hosting, numbers, workers},
    support::{PATIENCE, Program, Sandbox, Stream, let_pass},
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

/// The same with a malformed state file. The host reports it once, with the path.
#[test]
fn host_with_a_bad_state_file_adopts_the_job() {
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
    fs::write(&path, [0xFF; 4096]).unwrap();
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

/// Fails unless the agent has printed one warning with the path of a state file, and with this cause.
#[track_caller]
fn assert_one_warning(agent: &Program, path: &str, cause: &str) {
    let log = agent.text(Stream::Stderr);
    let mut warnings = log.lines().filter(|line| line.contains(" WARN ") && line.contains(path));
    let warning = warnings.next().unwrap_or_else(|| panic!("no warning names {path}:\n{log}"));
    assert!(warning.contains(cause), "{warning}");
    assert_eq!(warnings.next(), None);
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
