//! Runs a job whose first round starts when the test allows it.

use std::{
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader},
    path::Path,
    sync::mpsc::{self, Receiver},
    thread,
};

use nix::{sys::stat::Mode, unistd};
use ragent_base::sys::clock;

use crate::support::{End, PATIENCE, Program, Sandbox, Start, free_port, is_alive, is_there};
pub(crate) use crate::support::{READY, field, wait_for_standbys};

/// A job of two nodes. When the test adds the second one, the first round starts.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    sandbox: &'a Sandbox,
    pub(crate) flags: String,
}

impl<'a> Job<'a> {
    /// Returns a job whose first node finds modules in the folder `modules`. Without Python, prints why and returns `None`.
    pub(crate) fn new(sandbox: &'a Sandbox) -> Option<Self> {
        // Several jobs may share a sandbox.
        let _ = fs::create_dir(sandbox.path("modules"));
        let endpoint = format!("127.0.0.1:{}", free_port());
        let flags =
            format!("--rdzv-backend c10d --rdzv-id j --rdzv-endpoint {endpoint} --nnodes 2");
        is_there("python3").then_some(Self { sandbox, flags })
    }

    /// Returns the job with these flags on all nodes in addition.
    pub(crate) fn with(mut self, flags: &str) -> Self {
        self.flags = format!("{} {flags}", self.flags);
        self
    }

    /// The first node with these flags and this script.
    pub(crate) fn node(&self, words: &str) -> Start {
        self.prepared(self.sandbox.ragent(&format!("{} --node-rank 0 {words}", self.flags)))
    }

    /// Adds the environment of the first node.
    pub(crate) fn prepared(&self, start: Start) -> Start {
        let modules = self.sandbox.path("modules");
        start.env("PYTHONPATH", modules).env("PYTHONDONTWRITEBYTECODE", "1")
    }

    /// Starts the first node and waits until its standbys are ready.
    #[track_caller]
    pub(crate) fn ready_node(&self, words: &str) -> Program {
        let mut node = self.node(words).start();
        node.logs(READY);
        node
    }

    /// Starts the second node, whose worker succeeds at once.
    pub(crate) fn complete(&self) -> Program {
        let words = format!("{} --node-rank 1 --role other --no-python true", self.flags);
        self.sandbox.ragent(&words).start()
    }

    /// Lets the job run to its end, with the workers of `node`.
    #[track_caller]
    pub(crate) fn finish(&self, node: Program) -> End {
        let other = self.complete();
        let end = node.end();
        other.end();
        end
    }
}

/// Writes a file of the sandbox, and the folders above it. The file is never seen half written.
pub(crate) fn write(sandbox: &Sandbox, name: &str, text: &str) {
    let (path, draft) = (sandbox.path(name), sandbox.path("draft"));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&draft, text).unwrap();
    fs::rename(draft, path).unwrap();
}

/// Waits until an agent has one standby that has imported its modules. Its name changes after its report.
#[track_caller]
pub(crate) fn ready_standby(agent: u32) -> u32 {
    wait_for_standbys(agent, |standbys| standbys.len() == 1)[0]
}

/// Returns true if every worker of the first node was started from a standby.
#[track_caller]
pub(crate) fn used_standbys(end: &End) -> bool {
    let lines = end.stderr.lines().filter(|line| line.contains("worker started"));
    let used: Vec<bool> = lines.map(|line| field(line, "is_standby") == "true").collect();
    assert!(!used.is_empty(), "{}", end.stderr);
    used.iter().all(|used| *used)
}

/// Waits until these processes have ended.
#[track_caller]
pub(crate) fn wait_for_ends(pids: &[u32]) {
    let deadline = clock::now_blocking() + PATIENCE;
    while pids.iter().any(|pid| is_alive(*pid)) {
        assert!(clock::now_blocking() < deadline, "a process is left");
        thread::yield_now();
    }
}

/// A module named `blocked`, whose import waits for the test.
#[derive(Debug)]
pub(crate) struct Gate<'a> {
    sandbox: &'a Sandbox,
    pids: Receiver<u32>,
    _held: File,
}

impl<'a> Gate<'a> {
    pub(crate) fn new(sandbox: &'a Sandbox) -> Self {
        let module = "\
import os
with open(os.environ['SCRATCH'] + '/importing', 'w') as importing:
    importing.write('%d\\n' % os.getpid())
with open(os.environ['SCRATCH'] + '/gate') as gate:
    gate.read()
";
        write(sandbox, "modules/blocked.py", module);
        let importing = pipe(&sandbox.path("importing"));
        let held = pipe(&sandbox.path("gate"));
        let (sender, pids) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(importing).lines().map_while(Result::ok) {
                if sender.send(line.parse().unwrap_or_default()).is_err() {
                    return;
                }
            }
        });
        Self { sandbox, pids, _held: held }
    }

    /// Waits until a process imports the module; returns the process.
    #[track_caller]
    pub(crate) fn importer(&self) -> u32 {
        self.pids.recv_timeout(PATIENCE).expect("a process imports the module")
    }

    /// Lets all imports end.
    pub(crate) fn open(self) {
        // Later imports read an empty file.
        write(self.sandbox, "gate", "");
    }
}

/// Creates a pipe, held open in both directions.
pub(crate) fn pipe(path: &Path) -> File {
    unistd::mkfifo(path, Mode::S_IRWXU).unwrap();
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}
