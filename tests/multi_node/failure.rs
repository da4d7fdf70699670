//! Tests how the failure of a worker reaches every node: exit codes, signals, error files, stderr, and the driver of the GPUs.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::{
    job::{Job, hosting, workers},
    support::{Gpus, Sandbox, let_pass},
};

/// What the GPUs of one node have reported is named on every node: in the reason of the restart, and first in the report.
#[test]
fn error_of_a_gpu_is_named_on_every_node() {
    let sandbox = Sandbox::with_standbys();
    let Some(mut gpus) = Gpus::new(&sandbox) else { return };
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 1");
    let mut host = job.host("--no-python obey.sh");
    let mut guest = gpus.belong_to(job.agent("--no-python obey.sh")).start();
    workers([&mut host, &mut guest]);
    let text = "GPU 1 reported XID 79 (fell off the bus)";
    for is_last in [false, true] {
        gpus.fail(1, 79);
        guest.logs(&format!("WARN {text}"));
        orders[1].give("exit 7");
        if !is_last {
            let line = host.logs("round has ended; stopping workers");
            assert!(line.contains(&format!("exited with code 7; {text} ")), "{line}");
            workers([&mut host, &mut guest]);
        }
    }
    let (host, guest) = (host.end(), guest.end());
    assert_eq!(host.report(), guest.report());
    let first = "Root cause (first observed failure):\n  hardware  : ";
    assert!(host.report().contains(&format!("{first}{text} ")), "{}", host.report());
}

/// An agent without workers has closed the driver, because that resets no GPU that a process has open.
#[test]
fn driver_is_closed_without_workers() {
    let sandbox = Sandbox::with_standbys();
    let Some(gpus) = Gpus::new(&sandbox) else { return };
    let job = Job::new(&sandbox, "--nnodes 2");
    let mut host = hosting(gpus.belong_to(job.agent("--no-python obey.sh")));
    let mut guest = job.guest("--no-python obey.sh");
    workers([&mut host, &mut guest]);
    let is_open = || gpus.are_open_in(host.pid());
    while !is_open() {
        let_pass(Duration::from_millis(50));
    }
    guest.signal(Signal::SIGTERM);
    drop(guest.end());
    while is_open() {
        let_pass(Duration::from_millis(50));
    }
    host.signal(Signal::SIGTERM);
    drop(host.end());
}

/// A job that has failed stays closed when a service manager starts its agents again, each on its own. They report its outcome, and start
/// nothing.
#[test]
fn closed_job_stays_closed() {
    // A worker may be killed before it records that it was a standby.
    let sandbox = Sandbox::new();
    let job = Job::new(&sandbox, "--nnodes 2");
    let folders = ["service.0", "service.1"].map(|name| sandbox.path(name));
    // With the mode of a volume of Kubernetes.
    for folder in &folders {
        std::fs::create_dir(folder).unwrap();
        std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .unwrap();
    }
    let agents = || {
        folders
            .each_ref()
            .map(|dir| job.agent("--no-python fail.sh 9").env("RUNTIME_DIRECTORY", dir))
    };
    let [host, guest] = agents();
    let mut host = hosting(host);
    let guest = guest.start();
    // Either node's worker may be stopped before it prints anything, as the other one has failed.
    host.logs("admitted; starting workers");
    let first = [host.end(), guest.end()];
    for (again, first) in agents().into_iter().zip(&first) {
        first.assert_code(1);
        let again = again.run();
        again.assert_code(4);
        assert_eq!(again.report(), first.report());
        assert_eq!(again.stdout, "");
    }
    // The folder of a stopped unit is removed.
    for folder in &folders {
        std::fs::remove_dir_all(folder).unwrap();
    }
    let [host, guest] = agents();
    let mut host = hosting(host);
    let guest = guest.start();
    // The job runs again; its worker may be stopped before it prints anything.
    host.logs("admitted; starting workers");
    host.end().assert_code(1);
    guest.end().assert_code(1);
}

/// The next round begins only when the last process of the previous round is gone on every node. Here the worker of one node ignores
/// SIGTERM for its grace period of a second.
#[test]
fn next_round_waits_for_the_last_process() {
    let sandbox = Sandbox::with_standbys();
    let job = Job::new(&sandbox, "--nnodes 2 --max-restarts 1 --shutdown-timeout 1");
    let mut host = job.host("--no-python stay.sh");
    let mut guest = job.guest("--role other --no-python stubborn.sh");
    let [quick, stubborn] = workers([&mut host, &mut guest]);
    quick.signal(Signal::SIGKILL);
    let again = host.worker();
    assert_eq!(again.number("restart"), 1);
    assert!(!crate::support::is_alive(stubborn.pid()));
    guest.worker();
}

/// A failure is reported on every node even if its worker has written invalid UTF-8. That grows when it is converted to text, and must
/// still fit the message.
#[test]
fn garbage_does_not_hide_a_failure() {
    for streams in ["", "--log-dir logs -r 2"] {
        let sandbox = Sandbox::with_standbys();
        let orders = [0, 1].map(|rank| sandbox.orders(rank));
        let job = Job::new(&sandbox, "--nnodes 2");
        let mut host = job.host(&format!("{streams} --no-python obey.sh"));
        let mut guest = job.guest(&format!("{streams} --no-python obey.sh"));
        workers([&mut host, &mut guest]);
        orders[1].give(r"head -c 20000 /dev/zero | LC_ALL=C tr '\0' '\377' >&2; exit 3");
        let (host, guest) = (host.end(), guest.end());
        host.assert_code(1);
        guest.assert_code(1);
        assert_eq!(host.report(), guest.report());
        for part in ["rank      : 1", "exited with code 3", "\u{fffd}\u{fffd}"] {
            assert!(host.report().contains(part), "no `{part}` in:\n{}", host.report());
        }
        sandbox.assert_nothing_left();
    }
}

/// The root cause is the worker that failed first, not the worker that exited first. Its error file is older, even on another node, and the
/// worker exits late and is killed in the end.
#[test]
fn oldest_error_file_is_the_root_cause() {
    let sandbox = Sandbox::with_standbys();
    let orders = [0, 1, 2, 3].map(|rank| sandbox.orders(rank));
    let job = Job::new(&sandbox, "--nnodes 2 --nproc-per-node 2 --shutdown-timeout 300");
    let mut host = job.host("--no-python obey.sh");
    let mut guest = job.guest("--no-python obey.sh");
    host.workers(2);
    guest.workers(2);
    let write =
        |what: &str| format!("echo '{{\"message\": \"{what}\"}}' >$TORCHELASTIC_ERROR_FILE");
    // Aged by two seconds. A file that was written milliseconds before a stop could be a consequence of it.
    let age = "touch -d '2 seconds ago' $TORCHELASTIC_ERROR_FILE";
    orders[3].give(&format!("{}; {age}; echo first", write("CUDA out of memory")));
    guest.prints("first");
    orders[1].give(&format!("{}; exit 7", write("connection closed by peer")));
    let (host, guest) = (host.end(), guest.end());
    host.assert_code(1);
    guest.assert_code(1);
    assert_eq!(host.report(), guest.report());
    for part in ["rank      : 3 (local_rank: 1)", "    CUDA out of memory"] {
        assert!(host.report().contains(part), "no `{part}` in:\n{}", host.report());
    }
    sandbox.assert_nothing_left();
}
