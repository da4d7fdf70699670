//! Starts the two launchers in the same way.

use std::{
    cell::RefCell,
    fs::File,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    rc::Rc,
    sync::mpsc::{self, Receiver},
    thread,
};

use nix::sys::signal::Signal;
use serde_json::json;

use super::support::{PATIENCE, Program, Sandbox, Start, kill, wait_until_ended};

/// The parameters of a launcher's start.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) words: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) folder: PathBuf,
    pub(crate) stdin: PathBuf,
    pub(crate) stdout: PathBuf,
    pub(crate) stderr: PathBuf,
    pub(crate) ignored: Vec<&'static str>,
    pub(crate) on_one_cpu: bool,
}

/// A launcher, of which several may run at once.
pub(crate) trait Launcher {
    /// Starts it.
    fn start(&self, sandbox: &Sandbox, run: &Run) -> Box<dyn Running>;
}

/// A running launcher.
pub(crate) trait Running {
    fn signal(&self, signal: Signal);

    /// Waits for its end. Returns its exit code, or a negative signal number if it was killed.
    fn end(self: Box<Self>) -> i32;
}

/// A program that is started for each run.
pub(crate) struct Process {
    pub(crate) path: PathBuf,
}

impl Launcher for Process {
    fn start(&self, sandbox: &Sandbox, run: &Run) -> Box<dyn Running> {
        // torchrun's server does the same in its fork.
        let mut start = sandbox.program("/usr/bin/env");
        for name in &run.ignored {
            start = start.arg(format!("--ignore-signal={}", &name[3..]));
        }
        let taskset: &[&str] = if run.on_one_cpu { &["taskset", "-c", "0"] } else { &[] };
        start = taskset.iter().fold(start, Start::arg);
        start = start.arg(&self.path);
        start = run.words.iter().fold(start, |start, word| start.arg(word));
        start = run.environment.iter().fold(start, |start, (name, value)| start.env(name, value));
        let open = |path: &Path| File::options().append(true).create(true).open(path).unwrap();
        let start = start.stdin(File::open(&run.stdin).unwrap());
        let program = start.stdout(open(&run.stdout)).stderr(open(&run.stderr)).start();
        // Processes that outlive torchrun never end; a keeper ends after its work.
        let marker = self.path.ends_with("ragent").then(|| sandbox.marker());
        Box::new(RunningProcess { program, marker })
    }
}

struct RunningProcess {
    program: Program,
    marker: Option<String>,
}

impl Running for RunningProcess {
    fn signal(&self, signal: Signal) {
        self.program.signal(signal);
    }

    fn end(self: Box<Self>) -> i32 {
        let end = self.program.end();
        if let Some(marker) = self.marker {
            wait_until_ended(&marker);
        }
        end.code.or_else(|| end.signal.map(|signal| -signal)).unwrap()
    }
}

/// Torchrun, as forks of processes that have imported torch, as many as run at once.
pub(crate) struct Torchrun {
    venv: PathBuf,
    idle: Rc<RefCell<Vec<Server>>>,
}

impl Torchrun {
    pub(crate) fn new(venv: &Path) -> Self {
        Self { venv: venv.to_owned(), idle: Rc::default() }
    }
}

impl Launcher for Torchrun {
    fn start(&self, sandbox: &Sandbox, run: &Run) -> Box<dyn Running> {
        let idle = self.idle.borrow_mut().pop();
        let mut server = idle.unwrap_or_else(|| Server::start(&self.venv));
        let environment: serde_json::Map<String, serde_json::Value> = sandbox
            .environment()
            .into_iter()
            .chain(run.environment.iter().cloned())
            .map(|(name, value)| (name, value.into()))
            .collect();
        let request = json!({
            "words": run.words,
            "environment": environment,
            "folder": run.folder,
            "stdin": run.stdin,
            "stdout": run.stdout,
            "stderr": run.stderr,
            "ignored": run.ignored,
            "on_one_cpu": run.on_one_cpu,
        });
        writeln!(server.requests, "{request}").unwrap();
        let pid = server.answer().try_into().unwrap();
        Box::new(RunningTorchrun { server, pid, idle: Rc::clone(&self.idle) })
    }
}

struct Server {
    process: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
}

impl Server {
    fn start(venv: &Path) -> Self {
        let script =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/conformance/torchrun_server.py");
        let mut process = Command::new("/usr/bin/env")
            .arg("--default-signal=HUP,INT,QUIT")
            .arg(venv.join("bin/python"))
            .arg(script)
            // torch resolves the names of its peers, and waits if there is no answer.
            .env("RES_OPTIONS", "timeout:1 attempts:1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // The test may be over.
                let _ = sender.send(line);
            }
        });
        let server = Self { process, requests, answers };
        assert_eq!(server.line(), "ready");
        server
    }

    fn line(&self) -> String {
        self.answers.recv_timeout(PATIENCE).expect("torchrun comes to its end")
    }

    fn answer(&self) -> i32 {
        self.line().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct RunningTorchrun {
    server: Server,
    pid: u32,
    idle: Rc<RefCell<Vec<Server>>>,
}

impl Running for RunningTorchrun {
    fn signal(&self, signal: Signal) {
        kill(self.pid, signal);
    }

    fn end(self: Box<Self>) -> i32 {
        let Self { server, pid: _, idle } = *self;
        let code = server.answer();
        idle.borrow_mut().push(server);
        code
    }
}
