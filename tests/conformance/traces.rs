//! Collects what a launcher and its workers leave visible, without the parts that differ between any two runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader},
    path::Path,
    sync::mpsc::{self, Receiver},
    thread,
};

use nix::{
    sched::{CpuSet, sched_getaffinity},
    sys::stat::Mode,
    unistd::{self, Pid},
};
use ragent_base::sys::host::ThisHost;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    REPOSITORY,
    case::Case,
    launcher::{Launcher, Run},
    support::{PATIENCE, Sandbox, count_standbys, free_port, pet_standby},
};

/// The facts of one worker.
pub(crate) type Facts = Map<String, Value>;

/// The traces of one launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Traces {
    codes: Vec<i32>,
    /// The facts of each worker, by attempt, global and local rank.
    pub(crate) workers: BTreeMap<String, Facts>,
    /// Lines of workers on the launchers' stdout and stderr, in any order.
    stdout: BTreeSet<String>,
    stderr: BTreeSet<String>,
    /// The files below the log folder.
    files: BTreeMap<String, String>,
    /// The signals that workers received.
    signals: BTreeMap<String, String>,
    /// The number of workers that were started from standbys, under `PET_STANDBY`.
    #[serde(skip)]
    pub(crate) standbys: usize,
    /// The end of the launcher's stderr, for the message of a failure.
    #[serde(skip)]
    pub(crate) stderr_tail: String,
}

const FACTS: &str = "facts";
const LOGS: &str = "logs";

/// Variables of torch that ragent sets, unless it is called by the name `torchrun`. The test itself sets
/// `PET_STANDBY`, and torchrun's traces were recorded without it.
const OUR_VARIABLES: [&str; 3] =
    ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_WORKER_SERVER_SOCKET", "PET_STANDBY"];

impl Traces {
    /// Runs a case with `launcher`.
    pub(crate) fn of(case: &Case, venv: &Path, launcher: &impl Launcher) -> Self {
        let sandbox = Sandbox::new();
        for folder in [FACTS, "package"] {
            fs::create_dir(sandbox.path(folder)).unwrap();
        }
        let worker = include_str!("worker.py");
        for name in ["worker.py", "package/__init__.py", "package/worker.py", "space in name.py"] {
            fs::write(sandbox.path(name), worker).unwrap();
        }
        fs::write(sandbox.path("recorded.py"), include_str!("recorded.py")).unwrap();
        fs::write(sandbox.path("a file"), "").unwrap();
        fs::write(sandbox.path("input"), case.stdin).unwrap();
        let ready = Ready::new(&sandbox);
        let port = free_port().to_string();
        let python = venv.join("bin/python").display().to_string();
        let run = |(node, words): (usize, &&str)| {
            let expand = |word: &str| {
                let word = word.replace("{port}", &port).replace("{python}", &python);
                word.replace('␣', " ")
            };
            let path = |name| sandbox.path(name).display().to_string();
            let mut environment = vec![
                ("VIRTUAL_ENV".to_owned(), venv.display().to_string()),
                // Without a locale, Python sets one and passes it on.
                ("LC_ALL".to_owned(), "C.UTF-8".to_owned()),
                // torch resolves the names of its peers, and waits if there is no answer.
                ("RES_OPTIONS".to_owned(), "timeout:1 attempts:1".to_owned()),
                // The start of a worker is logged as `info`.
                ("RAGENT_LOG".to_owned(), pet_standby().map_or("warn", |_| "info").to_owned()),
                ("FACTS".to_owned(), path(FACTS)),
                ("READY".to_owned(), path("ready")),
            ];
            let own = case.environment.iter();
            environment.extend(own.map(|(name, value)| ((*name).to_owned(), expand(value))));
            Run {
                words: words.split_ascii_whitespace().map(expand).collect(),
                environment,
                folder: sandbox.path("").canonicalize().unwrap(),
                stdin: sandbox.path("input"),
                stdout: sandbox.path(&format!("stdout.{node}")),
                stderr: sandbox.path(&format!("stderr.{node}")),
                ignored: case.ignored.clone(),
                on_one_cpu: case.on_one_cpu,
            }
        };
        let runs: Vec<Run> = case.nodes.iter().enumerate().map(run).collect();
        let running: Vec<_> = runs.iter().map(|run| launcher.start(&sandbox, run)).collect();
        let text = |name: &str| {
            let bytes =
                (0..runs.len()).map(|node| fs::read(sandbox.path(&format!("{name}.{node}"))));
            let bytes: Vec<u8> = bytes.filter_map(Result::ok).flatten().collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let are_there = ready.have_come(case.waiting);
        assert!(are_there, "{}: workers do not come to be:\n{}", case.name, text("stderr"));
        for signal in &case.signals {
            running[0].signal(signal.parse().unwrap());
        }
        let codes = running.into_iter().map(|running| running.end()).collect();
        let plain = Plain { sandbox: &sandbox, venv, port: &port, host: ThisHost.name(), case };
        let of_workers = |text: &str| {
            // A report indents the lines of a worker that it repeats.
            let is_workers = |line: &&str| line.contains('@') && !line.starts_with(' ');
            text.lines().filter(is_workers).map(|line| plain.text(line)).collect()
        };
        let (stdout, stderr) = (text("stdout"), text("stderr"));
        let tail = stderr.len().saturating_sub(600);
        Self {
            codes,
            workers: plain.workers(),
            stdout: of_workers(&stdout),
            stderr: of_workers(&stderr),
            files: plain.files(),
            signals: plain.signals(),
            standbys: count_standbys(&stderr),
            stderr_tail: String::from_utf8_lossy(&stderr.as_bytes()[tail..]).into_owned(),
        }
    }

    /// Returns true if no worker has written facts.
    pub(crate) fn is_idle(&self) -> bool {
        self.workers.is_empty()
    }

    /// The aspects that differ, each with the value here and the value of `others`.
    pub(crate) fn differences(&self, others: &Self) -> BTreeMap<String, [String; 2]> {
        let mut found = BTreeMap::new();
        let mut compare = |aspect: String, here: String, there: String| {
            if here != there {
                found.insert(aspect, [here, there]);
            }
        };
        let show = |value: &dyn std::fmt::Debug| format!("{value:?}");
        compare("exit code".to_owned(), show(&self.codes), show(&others.codes));
        compare("stdout".to_owned(), show(&self.stdout), show(&others.stdout));
        compare("stderr".to_owned(), show(&self.stderr), show(&others.stderr));
        compare("files".to_owned(), show(&self.files), show(&others.files));
        compare("signals".to_owned(), show(&self.signals), show(&others.signals));
        let names = |traces: &Self| show(&traces.workers.keys().collect::<Vec<_>>());
        compare("workers".to_owned(), names(self), names(others));
        for (worker, facts) in &self.workers {
            let Some(other) = others.workers.get(worker) else { continue };
            let keys: BTreeSet<&String> = facts.keys().chain(other.keys()).collect();
            for key in keys {
                let text =
                    |facts: &Facts| facts.get(key).map_or_else(|| "-".to_owned(), Value::to_string);
                compare(key.clone(), text(facts), text(other));
            }
        }
        found
    }
}

/// Removes the parts of traces that differ between any two runs or machines.
struct Plain<'a> {
    sandbox: &'a Sandbox,
    venv: &'a Path,
    port: &'a str,
    host: String,
    case: &'a Case,
}

impl Plain<'_> {
    /// Replaces folders, the name of the host before a colon, and random names in paths.
    fn text(&self, text: &str) -> String {
        let folder = self.sandbox.path("").display().to_string();
        let text = text.replace(folder.trim_end_matches('/'), "<folder>");
        let text = text.replace(&self.venv.display().to_string(), "<venv>");
        let text = text.replace(REPOSITORY, "<repository>");
        // Machines have the Python of PATH in one of these two folders.
        let text = text.replace("/usr/local/bin/python", "/usr/bin/python");
        let text = text.replace(&format!("{}:", self.host), "<host>:");
        let text = text.replace("/torchelastic_", "/ragent_");
        let words = text.split_inclusive('/').map(|part| {
            let (name, slash) = part.strip_suffix('/').map_or((part, ""), |name| (name, "/"));
            match without_random(name) {
                Some(front) if is_id(front) => format!("<id>_<random>{slash}"),
                Some(front) => format!("{front}_<random>{slash}"),
                None => part.to_owned(),
            }
        });
        words.collect()
    }

    /// The facts of each worker, with one fact for each variable.
    fn workers(&self) -> BTreeMap<String, Facts> {
        let mut workers = BTreeMap::new();
        let own = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let cpus: Vec<_> = (0..CpuSet::count()).filter(|cpu| own.is_set(*cpu).unwrap()).collect();
        for name in self.sandbox.files_below(FACTS) {
            if name.starts_with("signal") {
                continue;
            }
            let text = fs::read_to_string(self.sandbox.path(FACTS).join(&name)).unwrap();
            let mut facts: Facts = serde_json::from_str(&self.text(&text)).unwrap();
            let environment = facts.remove("environment").unwrap();
            if !self.case.on_one_cpu && facts["cpus"] == json!(cpus) {
                facts["cpus"] = "<all>".into();
            }
            // The variables that torchrun does not have: docs/torchrun-compat.md.
            let variables = environment.as_object().unwrap().iter();
            let is_ours = |name: &str| name.starts_with("RAGENT_") || OUR_VARIABLES.contains(&name);
            for (variable, value) in variables.filter(|(name, _)| !is_ours(name)) {
                let value = value.as_str().unwrap();
                facts.insert(format!("env {variable}"), self.variable(variable, value).into());
            }
            workers.insert(name, facts);
        }
        workers
    }

    fn variable(&self, name: &str, value: &str) -> String {
        match name {
            "MASTER_PORT" if value == self.port => "<the port>".to_owned(),
            // A free port.
            "MASTER_PORT" if value.parse::<u16>().is_ok_and(|port| port >= 1024) => {
                "<free>".to_owned()
            }
            "TORCHELASTIC_RUN_ID" if is_id(value) => "<random>".to_owned(),
            // Contains the name of the user.
            "TORCHINDUCTOR_CACHE_DIR" => "<cache>".to_owned(),
            // The names and the addresses of this host count as equal, because torchrun uses a name where ragent uses an address.
            "MASTER_ADDR" if !self.case.has_fixed_master => {
                let is_here = ["localhost", "127.0.0.1", "::1"].contains(&value)
                    || value.split('.').next() == self.host.split('.').next();
                if is_here { "<here>".to_owned() } else { value.to_owned() }
            }
            _ => value.replace(self.port, "<the port>"),
        }
    }

    /// The files below the log folder.
    fn files(&self) -> BTreeMap<String, String> {
        let read = |name: String| {
            let bytes = fs::read(self.sandbox.path(LOGS).join(&name)).unwrap();
            let text = self.text(&String::from_utf8_lossy(&bytes));
            // Several workers write to one file, in any order.
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            // Torch writes the time of an exception, and the path of a script in its traceback.
            let text =
                if name.ends_with("error.json") { "…".to_owned() } else { lines.join("\n") };
            (self.text(&name), text)
        };
        self.sandbox.files_below(LOGS).into_iter().map(read).collect()
    }

    fn signals(&self) -> BTreeMap<String, String> {
        let names = self.sandbox.files_below(FACTS).into_iter();
        names
            .filter(|name| name.starts_with("signal"))
            .map(|name| {
                let text = fs::read_to_string(self.sandbox.path(FACTS).join(&name)).unwrap();
                (name, text)
            })
            .collect()
    }
}

/// Returns true for a run id that a launcher has generated.
fn is_id(text: &str) -> bool {
    text.len() >= 16 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

/// The part of a name before `_` and the eight random letters that both launchers append.
fn without_random(name: &str) -> Option<&str> {
    let (front, random) = name.split_at_checked(name.len().checked_sub(8)?)?;
    let is_random = random.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    front.strip_suffix('_').filter(|_| is_random)
}

/// The announcements of workers that wait.
struct Ready(Receiver<()>);

impl Ready {
    fn new(sandbox: &Sandbox) -> Self {
        let path = sandbox.path("ready");
        unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        // Held open in both directions, so that workers never wait for a reader.
        let pipe: File = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let (sender, ready) = mpsc::channel();
        thread::spawn(move || {
            for _ in BufReader::new(pipe).lines().map_while(Result::ok) {
                if sender.send(()).is_err() {
                    return;
                }
            }
        });
        Self(ready)
    }

    /// Returns true if `count` workers announce themselves in time.
    fn have_come(&self, count: usize) -> bool {
        (0..count).all(|_| self.0.recv_timeout(PATIENCE).is_ok())
    }
}
