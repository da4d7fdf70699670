//! Describes one line of the table: a command line, and the intended differences.

use std::{collections::BTreeMap, fmt::Write};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::traces::Traces;

/// The difference that a standby may make, if its imports have come far enough: torch._dynamo sets this variable (docs/standbys.md, "How it
/// differs from a new process").
const SET_BY_AN_IMPORT: &str = "env TORCHINDUCTOR_CACHE_DIR";

/// A command line that both launchers get.
#[derive(Clone, Debug, Default)]
pub(crate) struct Case {
    /// A short description.
    pub(crate) name: &'static str,
    /// The arguments of each node. `{port}` is a free port, `{python}` the interpreter with torch. Arguments are separated by spaces. `␣`
    /// is a space within one.
    pub(crate) nodes: Vec<&'static str>,
    /// Environment variables of the launcher.
    pub(crate) environment: Vec<(&'static str, &'static str)>,
    /// The content of its stdin.
    pub(crate) stdin: &'static str,
    /// Signals that are ignored at its start.
    pub(crate) ignored: Vec<&'static str>,
    /// Signals to the first node's launcher, one after the other, once `waiting` workers wait.
    pub(crate) signals: Vec<&'static str>,
    pub(crate) waiting: usize,
    /// True if torchrun starts no worker.
    pub(crate) starts_nothing: bool,
    /// True if `MASTER_ADDR` must be the same, because it is on the command line.
    pub(crate) has_fixed_master: bool,
    /// True if it runs under `taskset -c 0`.
    pub(crate) on_one_cpu: bool,
    /// True if torchrun's traces depend on the machine.
    pub(crate) is_never_recorded: bool,
    differences: BTreeMap<&'static str, &'static str>,
}

/// A case with one node.
pub(crate) fn case(name: &'static str, words: &'static str) -> Case {
    Case { name, nodes: vec![words], ..Case::default() }
}

impl Case {
    /// Adds a node.
    pub(crate) fn node(mut self, words: &'static str) -> Self {
        self.nodes.push(words);
        self
    }

    /// Adds a variable.
    pub(crate) fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.environment.push((name, value));
        self
    }

    /// Makes the workers run this code after they have printed their facts.
    pub(crate) fn act(self, python: &'static str) -> Self {
        self.env("ACT", python)
    }

    /// Sets the content of stdin.
    pub(crate) fn stdin(mut self, text: &'static str) -> Self {
        self.stdin = text;
        self
    }

    /// Ignores a signal from the start, as `nohup` does.
    pub(crate) fn ignoring(mut self, signal: &'static str) -> Self {
        self.ignored.push(signal);
        self
    }

    /// Signals the launcher once `waiting` workers wait.
    pub(crate) fn signalled(mut self, signal: &'static str, waiting: usize) -> Self {
        self.signals.push(signal);
        self.waiting = waiting;
        self
    }

    /// Expects the workers to get the master's address as typed.
    pub(crate) fn with_fixed_master(mut self) -> Self {
        self.has_fixed_master = true;
        self
    }

    /// Expects torchrun to start no worker.
    pub(crate) fn starts_nothing(mut self) -> Self {
        self.starts_nothing = true;
        self
    }

    /// Allows one processor only.
    pub(crate) fn on_one_cpu(mut self) -> Self {
        self.on_one_cpu = true;
        self
    }

    /// Runs torchrun even if its other traces come from a record.
    pub(crate) fn never_recorded(mut self) -> Self {
        self.is_never_recorded = true;
        self
    }

    /// Names the aspects in which ragent differs from torchrun on purpose, and the reason.
    pub(crate) fn differs(mut self, aspects: &'static str, why: &'static str) -> Self {
        assert!(!why.is_empty(), "a difference has a reason");
        self.differences.extend(aspects.split(", ").map(|aspect| (aspect, why)));
        self
    }

    /// All that torchrun's traces depend on, with a hash of the workers' scripts.
    pub(crate) fn input(&self) -> Value {
        let scripts = concat!(include_str!("worker.py"), include_str!("recorded.py"));
        let hash = format!("{:x}", Sha256::digest(scripts));
        let Self {
            nodes,
            environment,
            stdin,
            ignored,
            signals,
            waiting,
            has_fixed_master,
            on_one_cpu,
            ..
        } = self;
        json!([
            nodes,
            environment,
            stdin,
            ignored,
            signals,
            waiting,
            has_fixed_master,
            on_one_cpu,
            hash[..8]
        ])
    }

    /// Compares the traces of the two launchers, aspect by aspect.
    pub(crate) fn judge(&self, theirs: &Traces, ours: &Traces) -> Result<(), String> {
        let mut text = String::new();
        if theirs.is_idle() != self.starts_nothing {
            text.push_str("\n  workers came to be under torchrun, or not, otherwise than thought");
        }
        let found = theirs.differences(ours);
        let is_left_out = |aspect: &str| ours.standbys > 0 && aspect == SET_BY_AN_IMPORT;
        for (aspect, [theirs, ours]) in &found {
            if !self.differences.contains_key(aspect.as_str()) && !is_left_out(aspect) {
                // Writing to a string does not fail.
                let _ = write!(text, "\n  {aspect}:\n    torchrun: {theirs}\n    ragent:   {ours}");
            }
        }
        for (aspect, why) in &self.differences {
            if !found.contains_key(*aspect) && !is_left_out(aspect) {
                let _ = write!(text, "\n  {aspect}: is the same, contrary to the table: {why}");
            }
        }
        if text.is_empty() {
            return Ok(());
        }
        let (theirs, ours) = (&theirs.stderr_tail, &ours.stderr_tail);
        let theirs =
            if theirs.is_empty() { "(not recorded; `RECORD=0` runs torchrun)" } else { theirs };
        Err(format!("{text}\n  torchrun's last words: {theirs}\n  ragent's last words: {ours}"))
    }
}
