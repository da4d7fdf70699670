//! Keeps torchrun's traces in a file for each version of torch, because torchrun imports torch, which takes seconds.
//!
//! - By default the traces come from the file for the version of torch in `.venv`. If there is no such file, torchrun runs.
//! - With `RECORD=0`, torchrun runs, and the file has no effect. `make test-torchrun` uses this.
//! - With `RECORD=1`, torchrun runs, and its traces are written to the file. With `CASE=word`, the traces of other cases stay.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command, sync::Mutex};

use ragent_base::sys::host::{Host, ThisHost};
use serde_json::{Value, json};

use super::{
    REPOSITORY,
    case::Case,
    cases,
    launcher::Launcher,
    traces::{Facts, Traces},
};

/// By the name of a case, its input and torchrun's traces.
type Entries = BTreeMap<String, (Value, Traces)>;

/// The traces of torchrun.
pub(crate) struct Record {
    venv: PathBuf,
    path: String,
    is_used: bool,
    is_written: bool,
    entries: Mutex<Entries>,
}

impl Record {
    /// Reads the file for the version of torch in `venv`.
    pub(crate) fn read(venv: PathBuf) -> Self {
        let script = "from importlib.metadata import version; print(version('torch'))";
        let version = Command::new(venv.join("bin/python")).args(["-c", script]).output().unwrap();
        assert!(version.status.success(), "{version:?}");
        let version = String::from_utf8(version.stdout).unwrap();
        let minor = version.split('.').take(2).collect::<Vec<_>>().join(".");
        let path = format!("{REPOSITORY}/tests/conformance/recorded/torch-{minor}.json");
        let text = fs::read_to_string(&path);
        let (is_used, is_written) = match ThisHost.env("RECORD").as_deref() {
            None => (text.is_ok(), false),
            Some(value) if value == "0" => (false, false),
            Some(value) if value == "1" => (false, true),
            Some(value) => panic!("RECORD is 0, 1, or not set, and not {}", value.display()),
        };
        let mut entries: Entries = serde_json::from_str(text.as_deref().unwrap_or("{}")).unwrap();
        convert(&mut entries, |full, changes| {
            let facts: Facts = full.clone().into_iter().chain(changes.clone()).collect();
            facts.into_iter().filter(|(_, value)| !value.is_null()).collect()
        });
        Self { venv, path, is_used, is_written, entries: Mutex::new(entries) }
    }

    /// Returns torchrun's traces of a case. `launcher` starts torchrun.
    pub(crate) fn of(&self, case: &Case, launcher: &impl Launcher) -> Result<Traces, String> {
        if !self.is_used || case.is_never_recorded {
            let traces = Traces::of(case, &self.venv, launcher);
            let entry = (case.input(), traces.clone());
            self.entries.lock().unwrap().insert(case.name.to_owned(), entry);
            return Ok(traces);
        }
        let entries = self.entries.lock().unwrap();
        let entry = entries.get(case.name).filter(|(input, _)| *input == case.input());
        let why = "the case or a worker's script has changed since torchrun's traces were recorded; \
                   record them: `RECORD=1 cargo test -p ragent --test conformance both_worlds`";
        entry.map(|(_, traces)| traces.clone()).ok_or_else(|| why.to_owned())
    }

    /// Writes the file under `RECORD=1`: one line for each case, in the order of their names.
    pub(crate) fn write(self) {
        if !self.is_written {
            return;
        }
        let mut entries = self.entries.into_inner().unwrap();
        let mut recorded = cases::all();
        recorded.retain(|case| !case.is_never_recorded);
        entries.retain(|name, _| recorded.iter().any(|case| case.name == name));
        // A null stands for a fact that the worker of "plain" has and this one does not.
        convert(&mut entries, |full, facts| {
            let keys = full.keys().chain(facts.keys());
            let keys = keys.filter(|key| full.get(*key) != facts.get(*key));
            keys.map(|key| (key.clone(), facts.get(key).cloned().unwrap_or_default())).collect()
        });
        let line = |(name, entry)| format!("{}: {}", json!(name), json!(entry));
        let lines: Vec<String> = entries.iter().map(line).collect();
        fs::write(self.path, format!("{{\n{}\n}}\n", lines.join(",\n"))).unwrap();
    }
}

/// Converts the facts of workers between memory, where they are complete, and the file, which has only the differences from the worker of the
/// case "plain". `of` gets the facts of that worker and those of another one, and returns the new facts of the other one.
fn convert(entries: &mut Entries, of: impl Fn(&Facts, &Facts) -> Facts) {
    let full = entries.get("plain").and_then(|(_, traces)| traces.workers.values().next());
    let full = full.cloned().unwrap_or_default();
    for (_, (_, traces)) in entries.iter_mut().filter(|(name, _)| *name != "plain") {
        traces.workers.values_mut().for_each(|facts| *facts = of(&full, facts));
    }
}
