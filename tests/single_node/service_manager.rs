//! Tests notices to a service manager, through a socket like systemd's, and the unit file of this repository.

use std::{fs, os::unix::net::UnixDatagram, process::Command};

use nix::sys::signal::Signal;

use crate::support::{PATIENCE, Sandbox, is_there};

const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/systemd/ragent@.service");

/// The socket of a service manager.
struct Notices(UnixDatagram);

impl Notices {
    fn new(sandbox: &Sandbox) -> Self {
        let socket = UnixDatagram::bind(sandbox.path("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    /// Receives notices until one begins with `start`.
    fn until(&self, start: &str) -> String {
        loop {
            let mut notice = [0; 4096];
            let length =
                self.0.recv(&mut notice).unwrap_or_else(|error| panic!("{start}: {error}"));
            let notice = String::from_utf8_lossy(&notice[..length]).trim_end().to_owned();
            if notice.starts_with(start) {
                return notice;
            }
        }
    }
}

/// An agent reports that it is ready once it has registered. Then it reports the state of its job, and that it stops. Its workers do not
/// get the socket.
#[test]
fn job_is_reported() {
    let sandbox = Sandbox::new();
    let notices = Notices::new(&sandbox);
    let words = "--rdzv-endpoint 127.0.0.1:0 --no-python environment.sh";
    let agent = sandbox.ragent(words).env("NOTIFY_SOCKET", sandbox.path("notify")).start();
    assert!(
        notices.until("STATUS=").starts_with("STATUS=looking for the coordinator at 127.0.0.1")
    );
    notices.until("STATUS=registered at 127.0.0.1:");
    notices.until("READY=1");
    notices.until("STATUS=round 1, 1 node, running");
    notices.until("STATUS=round 1: succeeded");
    notices.until("STOPPING=1");
    let end = agent.end();
    end.assert_code(0);
    assert!(!end.stdout.contains("NOTIFY_SOCKET"), "{}", end.stdout);
}

/// A failure is reported too, with the rank, and so is the next round.
#[test]
fn failure_is_reported() {
    let sandbox = Sandbox::new();
    let notices = Notices::new(&sandbox);
    let orders = sandbox.orders(0);
    let words = "--max-restarts 1 --no-python obey.sh";
    let agent = sandbox.ragent(words).env("NOTIFY_SOCKET", sandbox.path("notify")).start();
    notices.until("STATUS=round 1, 1 node, running");
    orders.give("exit 3");
    notices.until("STATUS=round 1: rank 0 exited with code 3");
    notices.until("STATUS=round 2, 1 node, running");
    agent.signal(Signal::SIGTERM);
    notices.until("STOPPING=1");
    agent.end().assert_code(8);
}

/// Watchdog notices are sent more often than required. The main loop sends them, so a stopped agent sends none.
#[test]
fn watchdog_is_fed() {
    let sandbox = Sandbox::new();
    let notices = Notices::new(&sandbox);
    let agent = sandbox
        .ragent("--no-python stay.sh")
        .env("NOTIFY_SOCKET", sandbox.path("notify"))
        .env("WATCHDOG_USEC", "200000")
        .start();
    notices.until("READY=1");
    for _ in 0..5 {
        notices.until("WATCHDOG=1");
    }
    agent.signal(Signal::SIGSTOP);
    // Notices that were sent before that are still in the queue.
    notices.0.set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
    while notices.0.recv(&mut [0; 4096]).is_ok() {}
    agent.signal(Signal::SIGCONT);
    notices.0.set_read_timeout(Some(PATIENCE)).unwrap();
    notices.until("WATCHDOG=1");
    agent.signal(Signal::SIGTERM);
    notices.until("STOPPING=1");
}

/// A service manager that is gone, or reads nothing, does not stop the agent.
#[test]
fn manager_that_takes_nothing_is_left_alone() {
    let sandbox = Sandbox::new();
    for socket in ["/nowhere", "@nobody", "x"] {
        let start = sandbox.ragent("--no-python true").env("NOTIFY_SOCKET", socket);
        start.env("WATCHDOG_USEC", "1000").run().assert_code(0);
    }
    // Its queue holds about ten notices, and no process reads them.
    let _notices = Notices::new(&sandbox);
    let start = sandbox.ragent("--max-restarts 2 --no-python fail.sh");
    start
        .env("NOTIFY_SOCKET", sandbox.path("notify"))
        .env("WATCHDOG_USEC", "1000")
        .run()
        .assert_code(1);
}

/// systemd has no complaint about the unit, and rates its exposure lower than the default.
#[test]
fn unit_is_verified() {
    if !is_there("systemd-analyze") {
        return;
    }
    let sandbox = Sandbox::new();
    // The unit with the path of the built program, as none is installed.
    let unit = fs::read_to_string(UNIT).unwrap();
    let unit = unit.replace("/usr/local/bin/ragent", env!("CARGO_BIN_EXE_ragent"));
    let path = sandbox.path("ragent@run7.service");
    fs::write(&path, unit).unwrap();
    let analyze = |words: &[&str]| {
        let output = Command::new("systemd-analyze").args(words).arg(&path).output().unwrap();
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), lossy(&output.stdout), lossy(&output.stderr))
    };
    let (is_well, text, warned) = analyze(&["verify", "--man=no"]);
    // An unknown key is only a warning.
    assert!(is_well && warned.is_empty(), "{text}{warned}");
    let (_, rated, warned) = analyze(&["security", "--offline=true", "--no-pager"]);
    let level = rated.lines().find(|line| line.contains("Overall exposure level"));
    let level = level.unwrap_or_else(|| panic!("{rated}{warned}"));
    let exposure: f64 = level.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    // A unit without any of these settings has 9.6.
    assert!(exposure <= 4.0, "{level}");
}
