//! Makes a sandbox for one test: its folders, and a mark on every process that it starts.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver},
    thread,
};

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd,
};
use ragent_base::sys::clock;
use tempfile::TempDir;

use super::{Gate, PATIENCE, Start, WorkerProgram, command_line, kill, processes, standbys};

/// The variable that marks every process of a test.
const MARKER: &str = "RAGENT_TEST_SANDBOX";

/// Folders and a mark. Dropping it kills every process that has the mark.
#[derive(Debug)]
pub struct Sandbox {
    folder: TempDir,
    workers: WorkerProgram,
}

impl Sandbox {
    /// Creates an empty sandbox. Its workers are the programs that a test names.
    pub fn new() -> Self {
        Self::with_workers(WorkerProgram::Shell)
    }

    /// Creates an empty sandbox. With `WORKER=python`, its fake workers can be started from standbys,
    /// and dropping it fails if none was.
    pub fn with_standbys() -> Self {
        Self::with_workers(WorkerProgram::selected())
    }

    fn with_workers(workers: WorkerProgram) -> Self {
        let folder = tempfile::Builder::new().prefix("ragent-test-").tempdir();
        let sandbox = Self { folder: folder.expect("the temp folder can be written"), workers };
        for name in ["run", "tmp"] {
            fs::create_dir(sandbox.path(name)).expect("a fresh folder can be written");
        }
        sandbox
    }

    /// A path in the sandbox.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The files below a folder of the sandbox, by path relative to that folder.
    pub fn files_below(&self, name: &str) -> Vec<String> {
        let base = self.path(name);
        let mut files = Vec::new();
        collect_files(&base, &mut files);
        let relative = |file: &PathBuf| {
            let file = file.strip_prefix(&base).expect("it was found below");
            file.to_string_lossy().into_owned()
        };
        let mut files: Vec<String> = files.iter().map(relative).collect();
        files.sort();
        files
    }

    /// Returns `ragent` with these arguments, not started yet. PATH contains the fake workers.
    pub fn ragent(&self, words: &str) -> Start {
        let (words, gate) = self.job(words);
        let mut start = self.program(env!("CARGO_BIN_EXE_ragent"));
        start.command.args(words.split_ascii_whitespace());
        start.gated_by(gate)
    }

    /// Translates arguments of `ragent` for the workers of this sandbox. Pass the gate to
    /// [`Start::gated_by`].
    pub fn job(&self, words: &str) -> (String, Option<Gate>) {
        match self.workers {
            WorkerProgram::Python if words.contains("--no-python") => Gate::close(words),
            WorkerProgram::Python | WorkerProgram::Shell => (words.to_owned(), None),
        }
    }

    /// Returns true if workers of this sandbox can be started from standbys.
    pub fn has_standbys(&self) -> bool {
        self.workers == WorkerProgram::Python
    }

    /// Returns the number of fake workers that were started from standbys.
    pub fn used_standbys(&self) -> usize {
        let used = fs::read_to_string(self.path("standbys.used"));
        used.map_or(0, |used| used.lines().count())
    }

    /// Returns any program in the same environment, not started yet.
    pub fn program(&self, path: &str) -> Start {
        let mut start = Start::new(path);
        start.command.env_clear().current_dir(self.folder.path()).envs(self.environment());
        start
    }

    /// The environment of its programs. `PET_STANDBY` is inherited.
    pub fn environment(&self) -> Vec<(String, String)> {
        let workers = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/workers");
        let path = |name| self.path(name).display().to_string();
        let mut environment: Vec<(String, String)> = [
            ("PATH", format!("{workers}:/usr/local/bin:/usr/bin:/bin")),
            ("XDG_RUNTIME_DIR", path("run")),
            ("TMPDIR", path("tmp")),
            ("SCRATCH", path("")),
            // Tests wait for log lines, of which few are printed by default.
            ("RAGENT_LOG", "info".to_owned()),
            (MARKER, path("")),
        ]
        .map(|(name, value)| (name.to_owned(), value.trim_end_matches('/').to_owned()))
        .into();
        let standby = standbys::pet_standby().map(|value| value.to_string_lossy().into_owned());
        environment.extend(standby.map(|value| (standbys::PET_STANDBY.to_owned(), value)));
        environment
    }

    /// The environment entry that marks all processes of this test.
    pub fn marker(&self) -> String {
        format!("{MARKER}={}", self.folder.path().display())
    }

    /// The live processes of this test.
    pub fn processes(&self) -> Vec<u32> {
        processes::marked(&self.marker())
    }

    /// The live processes of this test, with their command lines.
    pub fn left(&self) -> Vec<String> {
        let describe = |pid: u32| format!("{pid} {}", command_line(pid));
        self.processes().into_iter().map(describe).collect()
    }

    /// Fails if any process of this test is alive.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        assert_eq!(self.left(), Vec::<String>::new(), "left behind");
    }

    /// Waits until no process of this test is alive.
    #[track_caller]
    pub fn wait_until_nothing_left(&self) {
        wait_until_ended(&self.marker());
    }

    /// Creates a pipe that fake workers and their descendants hold open. `LIFELINE` is its path.
    pub fn lifeline(&self, name: &str) -> Lifeline {
        let path = self.path(name);
        unistd::mkfifo(&path, Mode::S_IRWXU).expect("a fresh folder takes a pipe");
        let (broken, is_broken) = mpsc::channel();
        let pipe = path.clone();
        thread::spawn(move || {
            // Opening waits for the first holder. The end of file comes after the last one.
            let mut pipe = File::open(pipe)?;
            pipe.read_to_end(&mut Vec::new())?;
            // The test may be over.
            let _ = broken.send(());
            std::io::Result::Ok(())
        });
        Lifeline { path, is_broken }
    }

    /// Creates the pipe from which the fake worker `obey.sh` with global rank `rank` reads its
    /// orders.
    pub fn orders(&self, rank: u32) -> Orders {
        let path = self.path(&format!("orders.{rank}"));
        unistd::mkfifo(&path, Mode::S_IRWXU).expect("a fresh folder takes a pipe");
        // Held open in both directions, so that orders wait for their reader.
        let pipe = OpenOptions::new().read(true).write(true).open(path);
        Orders(pipe.expect("a fresh pipe opens"))
    }
}

/// Waits until no process that has `marker` is alive. Nothing reports the ends of processes that are not children, so this polls.
#[track_caller]
pub fn wait_until_ended(marker: &str) {
    let deadline = clock::now_blocking() + PATIENCE;
    while !processes::marked(marker).is_empty() {
        assert!(clock::now_blocking() < deadline, "something stays alive");
        thread::yield_now();
    }
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            collect_files(&entry.path(), files);
        } else {
            files.push(entry.path());
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.kill_all();
        let is_unused = self.has_standbys() && self.used_standbys() == 0;
        assert!(!is_unused || thread::panicking(), "no worker was started from a standby");
    }
}

impl Sandbox {
    fn kill_all(&self) {
        // All processes with the mark were started by this test. The bound is for processes that
        // cannot die.
        for _ in 0..10_000 {
            let marked = self.processes();
            if marked.is_empty() {
                return;
            }
            for pid in marked {
                kill(pid, Signal::SIGKILL);
            }
            thread::yield_now();
        }
    }
}

/// A pipe that closes when a worker and all of its descendants are dead.
#[derive(Debug)]
pub struct Lifeline {
    path: PathBuf,
    is_broken: Receiver<()>,
}

impl Lifeline {
    /// The path of the pipe, for `LIFELINE`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until no process holds the pipe any more.
    #[track_caller]
    pub fn wait_until_broken(&self) {
        let broken = self.is_broken.recv_timeout(PATIENCE);
        assert!(broken.is_ok(), "somebody holds {} still", self.path.display());
    }

    /// Returns true if a process holds the pipe.
    pub fn is_held(&self) -> bool {
        self.is_broken.try_recv().is_err()
    }
}

/// The orders of a fake worker.
#[derive(Debug)]
pub struct Orders(File);

impl Orders {
    /// Sends an order: a line for the shell.
    pub fn give(&self, order: &str) {
        let mut pipe = &self.0;
        pipe.write_all(format!("{order}\n").as_bytes()).expect("a pipe takes a line");
    }
}
