//! One line of the table: what is run, and which differences are meant.

use std::{collections::BTreeMap, fmt::Write};

use super::traces::Traces;

/// A command line that both launchers get.
#[derive(Clone, Debug, Default)]
pub(crate) struct Case {
    /// What it is about, in a few words.
    pub(crate) name: &'static str,
    /// The words of each node. `{port}` is a free port, `{python}` the interpreter with torch. Words
    /// are divided by spaces; `␣` is a space within one.
    pub(crate) nodes: Vec<&'static str>,
    /// Variables of the launcher.
    pub(crate) environment: Vec<(&'static str, &'static str)>,
    /// What its stdin holds.
    pub(crate) stdin: &'static str,
    /// Signals that are ignored when it starts.
    pub(crate) ignored: Vec<&'static str>,
    /// Signals that the first node's launcher gets, one after the other, once so many workers wait.
    pub(crate) signals: Vec<&'static str>,
    pub(crate) waiting: usize,
    /// No worker comes to be, under torchrun.
    pub(crate) starts_nothing: bool,
    /// `MASTER_ADDR` must be the same: it was typed.
    pub(crate) has_fixed_master: bool,
    /// Runs under `taskset -c 0`.
    pub(crate) on_one_cpu: bool,
    differences: BTreeMap<&'static str, &'static str>,
}

/// A case of one node.
pub(crate) fn case(name: &'static str, words: &'static str) -> Case {
    Case { name, nodes: vec![words], ..Case::default() }
}

impl Case {
    /// With a further node.
    pub(crate) fn node(mut self, words: &'static str) -> Self {
        self.nodes.push(words);
        self
    }

    /// With a variable.
    pub(crate) fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.environment.push((name, value));
        self
    }

    /// Whose workers do this after they have told what they found.
    pub(crate) fn act(self, python: &'static str) -> Self {
        self.env("ACT", python)
    }

    /// With something to read.
    pub(crate) fn stdin(mut self, text: &'static str) -> Self {
        self.stdin = text;
        self
    }

    /// Started as by `nohup`.
    pub(crate) fn ignoring(mut self, signal: &'static str) -> Self {
        self.ignored.push(signal);
        self
    }

    /// Told to end by a signal, once `waiting` workers wait for it.
    pub(crate) fn signalled(mut self, signal: &'static str, waiting: usize) -> Self {
        self.signals.push(signal);
        self.waiting = waiting;
        self
    }

    /// Whose workers get the master's address as it was typed.
    pub(crate) fn with_fixed_master(mut self) -> Self {
        self.has_fixed_master = true;
        self
    }

    /// For which torchrun starts no worker.
    pub(crate) fn starts_nothing(mut self) -> Self {
        self.starts_nothing = true;
        self
    }

    /// Allowed on one processor only.
    pub(crate) fn on_one_cpu(mut self) -> Self {
        self.on_one_cpu = true;
        self
    }

    /// In which aspects ragent is not to do as torchrun does, and why.
    pub(crate) fn differs(mut self, aspects: &'static str, why: &'static str) -> Self {
        assert!(!why.is_empty(), "a difference has a reason");
        self.differences.extend(aspects.split(", ").map(|aspect| (aspect, why)));
        self
    }

    /// Compares what the two left, aspect by aspect.
    pub(crate) fn judge(&self, theirs: &Traces, ours: &Traces) -> Result<(), String> {
        let mut text = String::new();
        if theirs.is_idle() != self.starts_nothing {
            text.push_str("\n  workers came to be under torchrun, or not, otherwise than thought");
        }
        let found = theirs.differences(ours);
        for (aspect, [theirs, ours]) in &found {
            if !self.differences.contains_key(aspect.as_str()) {
                // Writing to a string does not fail.
                let _ = write!(text, "\n  {aspect}:\n    torchrun: {theirs}\n    ragent:   {ours}");
            }
        }
        for (aspect, why) in &self.differences {
            if !found.contains_key(*aspect) {
                let _ = write!(text, "\n  {aspect}: is the same, though the table says: {why}");
            }
        }
        if text.is_empty() {
            return Ok(());
        }
        let (theirs, ours) = (&theirs.last_words, &ours.last_words);
        Err(format!("{text}\n  torchrun's last words: {theirs}\n  ragent's last words: {ours}"))
    }
}
