//! Runs a program for a test, and reads its output.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{BufRead, BufReader, Read},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, killpg},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};
use ragent_base::sys::clock;

use super::{Gate, Lifeline, PATIENCE, kill, let_pass};

/// A program that has not been started yet.
#[derive(Debug)]
pub struct Start {
    pub(super) command: Command,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
    gate: Option<Gate>,
}

impl Start {
    pub(super) fn new(path: &str) -> Self {
        // The test runner may ignore signals, as `nohup` and background jobs of scripts do.
        let mut command = Command::new("/usr/bin/env");
        command.arg("--default-signal=HUP,INT,QUIT").arg(path);
        // A process group of its own, as a shell makes for each job.
        command.stdin(Stdio::null()).process_group(0);
        Self { command, stdout: None, stderr: None, gate: None }
    }

    /// Adds an argument. It may contain spaces.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Prints what is printed by default, instead of all log lines.
    pub fn default_lines(mut self) -> Self {
        self.command.env_remove("RAGENT_LOG");
        self
    }

    /// Makes its fake workers hold `lifeline`.
    pub fn hold(self, lifeline: &Lifeline) -> Self {
        self.env("LIFELINE", lifeline.path())
    }

    /// Sets the gate of its job. The gate opens when an agent that it starts has a standby.
    pub fn gated_by(mut self, gate: Option<Gate>) -> Self {
        self.gate = gate;
        self
    }

    /// Replaces the empty stdin.
    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> Self {
        self.command.stdin(stdin);
        self
    }

    /// Replaces the pipe from which the test reads stdout.
    pub fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.stdout = Some(stdout.into());
        self
    }

    /// Replaces the pipe from which the test reads stderr.
    pub fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.stderr = Some(stderr.into());
        self
    }

    /// Starts the program.
    #[track_caller]
    pub fn start(mut self) -> Program {
        let piped = |stdio: Option<Stdio>| stdio.unwrap_or_else(Stdio::piped);
        self.command.stdout(piped(self.stdout.take())).stderr(piped(self.stderr.take()));
        let mut child = self.command.spawn().expect("the program is there");
        // The command holds the other ends of streams that the test made.
        drop(self.command);
        let (sender, events) = mpsc::channel();
        let mut open = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            read_lines(pipe, Stream::Stdout, sender.clone());
            open.push(Stream::Stdout);
        }
        if let Some(pipe) = child.stderr.take() {
            read_lines(pipe, Stream::Stderr, sender.clone());
            open.push(Stream::Stderr);
        }
        wait_for(child.id(), sender);
        let program = Program { child, events, open, has_ended: false, lines: Vec::new() };
        if let Some(gate) = self.gate {
            gate.open(program.pid());
        }
        program
    }

    /// Starts the program and waits for its end.
    #[track_caller]
    pub fn run(self) -> End {
        self.start().end()
    }
}

fn read_lines(pipe: impl Read + Send + 'static, stream: Stream, events: Sender<Event>) {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
            line.clear();
            if events.send(Event::Line(stream, text)).is_err() {
                return;
            }
        }
        // The test may be over.
        let _ = events.send(Event::Closed(stream));
    });
}

/// Reports the end of a process without reaping it, so that its pid is not reused until then.
fn wait_for(pid: u32, events: Sender<Event>) {
    thread::spawn(move || {
        let pid = Pid::from_raw(pid.cast_signed());
        let ended = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        // If it has been reaped already, the test is over.
        ended.is_ok().then(|| events.send(Event::Ended))
    });
}

/// One of a program's streams.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stream {
    /// Its stdout.
    Stdout,
    /// Its stderr.
    Stderr,
}

#[derive(Debug)]
enum Event {
    Line(Stream, String),
    Closed(Stream),
    Ended,
}

#[derive(Debug)]
struct Line {
    stream: Stream,
    text: String,
    /// True if a test has waited for the line. It is not matched again.
    taken: bool,
}

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Program {
    child: Child,
    events: Receiver<Event>,
    open: Vec<Stream>,
    has_ended: bool,
    lines: Vec<Line>,
}

impl Program {
    /// The pid of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Signals the program only, not its group.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Signals its process group, as a terminal does.
    pub fn signal_group(&self, signal: Signal) {
        killpg(Pid::from_raw(self.pid().cast_signed()), signal).expect("its group is there");
    }

    /// Stops the program with SIGSTOP for a while.
    pub fn freeze(&self, time: Duration) {
        self.signal(Signal::SIGSTOP);
        let_pass(time);
        self.signal(Signal::SIGCONT);
    }

    /// Waits for a line on stdout that contains `part`, and takes it.
    #[track_caller]
    pub fn prints(&mut self, part: &str) -> String {
        self.take(Stream::Stdout, part)
    }

    /// Waits for a line on stderr that contains `part`, and takes it.
    #[track_caller]
    pub fn logs(&mut self, part: &str) -> String {
        self.take(Stream::Stderr, part)
    }

    /// Waits until a fake worker of the program has announced itself.
    #[track_caller]
    pub fn worker(&mut self) -> Worker {
        let line = self.prints("worker rank=");
        let pairs = line.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        Worker(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Waits for `count` fake workers, and returns them by local rank.
    #[track_caller]
    pub fn workers(&mut self, count: usize) -> Vec<Worker> {
        let mut workers: Vec<Worker> = (0..count).map(|_| self.worker()).collect();
        workers.sort_by_key(|worker| worker.number("local_rank"));
        workers
    }

    /// The endpoint of the coordinator in the agent's process.
    #[track_caller]
    pub fn endpoint(&mut self) -> String {
        let line = self.logs("coordinating the job");
        let word = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("endpoint="));
        word.expect("the line names the endpoint").to_owned()
    }

    /// Receives the output that was read since the last wait, so that [`Self::text`] has it.
    pub fn receive_pending(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.handle_event(event);
        }
    }

    /// Returns true if the program has ended.
    pub fn has_ended(&mut self) -> bool {
        self.receive_pending();
        self.has_ended
    }

    /// The output on `stream` up to the last wait.
    pub fn text(&self, stream: Stream) -> String {
        let lines = self.lines.iter().filter(|line| line.stream == stream);
        lines.map(|line| format!("{}\n", line.text)).collect()
    }

    /// Waits until both streams are closed. Then no process that inherited them is alive.
    #[track_caller]
    pub fn wait_until_silent(&mut self) {
        self.receive_until("its streams to close", |program| program.open.is_empty().then_some(()));
    }

    /// Waits for its end, and for the end of all processes that inherited its streams.
    #[track_caller]
    pub fn end(mut self) -> End {
        self.receive_until("its end", |program| program.has_ended.then_some(()));
        self.wait_until_silent();
        let status = self.child.wait().expect("it is our child, and has ended");
        End {
            code: status.code(),
            signal: status.signal(),
            stdout: self.text(Stream::Stdout),
            stderr: self.text(Stream::Stderr),
        }
    }

    #[track_caller]
    fn take(&mut self, stream: Stream, part: &str) -> String {
        self.receive_until(&format!("`{part}` on its {stream:?}"), |program| {
            program.take_received(stream, part)
        })
    }

    /// Waits for a line with `part`, and takes it. If there is a line on stderr with one of `others` instead, returns that line as the
    /// error.
    #[track_caller]
    pub fn prints_unless(
        &mut self,
        (stream, part): (Stream, &str),
        others: &[&str],
    ) -> Result<String, String> {
        self.receive_until(&format!("`{part}` or one of {others:?}"), |program| {
            let line = program.take_received(stream, part).map(Ok);
            let mut other =
                || others.iter().find_map(|other| program.take_received(Stream::Stderr, other));
            line.or_else(|| other().map(Err))
        })
    }

    fn take_received(&mut self, stream: Stream, part: &str) -> Option<String> {
        let fits =
            |line: &&mut Line| !line.taken && line.stream == stream && line.text.contains(part);
        let line = self.lines.iter_mut().find(fits)?;
        line.taken = true;
        Some(line.text.clone())
    }

    #[track_caller]
    fn receive_until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = clock::now_blocking() + PATIENCE;
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            let left = deadline.saturating_duration_since(clock::now_blocking());
            match self.events.recv_timeout(left) {
                Ok(event) => self.handle_event(event),
                Err(why) => panic!("waiting for {what}: {why}\n{}", self.transcript()),
            }
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Line(stream, text) => self.lines.push(Line { stream, text, taken: false }),
            Event::Closed(stream) => self.open.retain(|open| *open != stream),
            Event::Ended => self.has_ended = true,
        }
    }

    fn transcript(&self) -> String {
        let line = |line: &Line| format!("  {:?}: {}\n", line.stream, line.text);
        let lines: String = self.lines.iter().map(line).collect();
        format!("output of process {}:\n{lines}", self.pid())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Its pid is not reused until it is reaped, and both calls are harmless after that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A fake worker's announcement of itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Worker(BTreeMap<String, String>);

impl Worker {
    /// A number in the announcement, by name.
    #[track_caller]
    pub fn number(&self, name: &str) -> u32 {
        self.0.get(name).and_then(|text| text.parse().ok()).expect("fake workers announce it")
    }

    /// The pid of the worker.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.number("pid")
    }

    /// Signals the worker only.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }
}

/// The end of a program, with all of its output.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct End {
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that killed it, if one did.
    pub signal: Option<i32>,
    /// The text that it wrote to stdout.
    pub stdout: String,
    /// The text that it wrote to stderr.
    pub stderr: String,
}

impl End {
    /// Fails unless it exited with `code`.
    #[track_caller]
    pub fn assert_code(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        // In every case, the agent must not have given up waiting for the keeper.
        assert!(!self.stderr.contains("the keeper process did not end in time"), "{}", self.stderr);
    }

    /// Fails unless stderr contains all of `parts`.
    #[track_caller]
    pub fn assert_stderr(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.stderr.contains(part), "no `{part}` in:\n{}", self.stderr);
        }
    }

    /// The report of the job's failure, from the first rule to the last.
    #[track_caller]
    pub fn report(&self) -> &str {
        let rule = "=".repeat(60);
        let start = self.stderr.find(&rule);
        let (start, end) = start.zip(self.stderr.rfind(&rule)).expect("there is a report");
        &self.stderr[start..end + rule.len()]
    }
}
