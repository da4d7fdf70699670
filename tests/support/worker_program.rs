//! Chooses the program of fake workers by `WORKER`: a shell script, or Python that becomes the script and can be started from a standby.

use std::net::TcpListener;

use ragent_base::sys::{
    clock,
    host::{Host, ThisHost},
};

use super::{PATIENCE, children, free_port, is_alive, is_standby, let_pass};

/// The modules that standbys of fake workers import. `exec.py` recognises a standby by `decimal`.
const MODULES: &str = "json,decimal";

/// The program of fake workers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WorkerProgram {
    /// A shell script, without standbys.
    Shell,
    /// `exec.py`, which can be started from a standby and replaces itself by the script.
    Python,
}

impl WorkerProgram {
    /// Returns the program that `WORKER` selects.
    pub fn selected() -> Self {
        match ThisHost.env("WORKER").as_deref().map(|name| name.to_string_lossy()).as_deref() {
            Some("python") => Self::Python,
            Some("shell") | None => Self::Shell,
            Some(other) => panic!("`WORKER={other}` is unknown; set it to `shell` or `python`"),
        }
    }

    /// Translates arguments of `ragent` that run a shell script as the worker.
    pub fn translate(self, words: &str) -> String {
        match self {
            Self::Shell => words.to_owned(),
            Self::Python => {
                let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/workers/exec.py");
                words.replacen("--no-python", &format!("--standby={MODULES} {program}"), 1)
            }
        }
    }
}

/// The port of a job's endpoint. It is in use until the first agent has a standby. That agent cannot host the job before then, so its first
/// round uses a standby.
#[derive(Debug)]
pub struct Gate(TcpListener);

impl Gate {
    /// Translates the arguments of an agent for Python workers, and closes the gate of its job.
    ///
    /// A job without an endpoint gets one. Returns no gate if the endpoint is already in use, or in another network namespace.
    pub(super) fn close(words: &str) -> (String, Option<Self>) {
        let words = WorkerProgram::Python.translate(words);
        let mut rest = words.split_ascii_whitespace().skip_while(|word| *word != "--rdzv-endpoint");
        if let Some(endpoint) = rest.nth(1) {
            let gate = TcpListener::bind(endpoint).ok().map(Self);
            return (words, gate);
        }
        let endpoint = format!("127.0.0.1:{}", free_port());
        let gate = TcpListener::bind(&endpoint).expect("the port is free");
        (format!("--rdzv-backend c10d --rdzv-endpoint {endpoint} {words}"), Some(Self(gate)))
    }

    /// Opens the gate when an agent below the process `top` has a standby, or when `top` has ended.
    #[track_caller]
    pub(super) fn open(self, top: u32) {
        let deadline = clock::now_blocking() + PATIENCE;
        while is_alive(top) && !has_standby(top) {
            assert!(clock::now_blocking() < deadline, "the agent has no standby");
            let_pass(std::time::Duration::from_millis(5));
        }
        drop(self.0);
    }
}

fn has_standby(top: u32) -> bool {
    children(top).into_iter().any(|child| is_standby(child) || has_standby(child))
}
