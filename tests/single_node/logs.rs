//! Tests that no output of workers is lost, and which temporary folders stay. The target `conformance` compares the files with torchrun's.

use std::fs;

use nix::sys::signal::Signal;
use ragent_base::sys::clock;

use crate::support::{PATIENCE, Sandbox, Stream};

/// The content of the log files.
fn log_files(sandbox: &Sandbox) -> Vec<String> {
    let read = |file: String| fs::read_to_string(sandbox.path("logs").join(file)).unwrap();
    sandbox.files_below("logs").into_iter().map(read).collect()
}

/// Without a choice the output of workers goes to the console, unchanged and without a prefix.
#[test]
fn console_is_untouched() {
    let sandbox = Sandbox::new();
    let [out, err] = ["out", "err"].map(|name| fs::File::create(sandbox.path(name)).unwrap());
    let start = sandbox.ragent("--no-python bash -c").arg("printf '50%%\\r'; printf 'a\\r' >&2");
    start.stdout(out).stderr(err).run().assert_code(0);
    assert_eq!(fs::read_to_string(sandbox.path("out")).unwrap(), "50%\r");
    let err = fs::read_to_string(sandbox.path("err")).unwrap();
    assert!(err.contains("a\r"), "{err}");
}

/// If stdout and stderr are one file, no byte is lost, although workers write to it directly and the agent at the same time.
#[test]
fn streams_in_one_file_are_complete() {
    const LINES: usize = 3000;
    let sandbox = Sandbox::new();
    let file = fs::File::create(sandbox.path("all")).unwrap();
    let worker = format!("for n in {{1..{LINES}}}; do echo out $n; echo err $n >&2; done");
    let start = sandbox.ragent("--nproc-per-node 2 --no-python bash -c").arg(worker);
    // Without lines of the agent.
    let start = start.default_lines().stdout(file.try_clone().unwrap()).stderr(file);
    start.run().assert_code(0);
    let expected: usize = (1..=LINES).map(|n| 4 * format!("out {n}\n").len()).sum();
    assert_eq!(fs::read(sandbox.path("all")).unwrap().len(), expected);
}

/// A temporary log folder without files is removed at the end.
#[test]
fn unused_temporary_folder_is_removed() {
    let sandbox = Sandbox::new();
    sandbox.ragent("--nproc-per-node 2 --no-python true").run().assert_code(0);
    assert_eq!(fs::read_dir(sandbox.path("tmp")).unwrap().count(), 0);
}

/// A temporary log folder with an error file stays, and the report contains the file's path.
#[test]
fn used_temporary_folder_stays() {
    let sandbox = Sandbox::new();
    let end = sandbox.ragent("--no-python error_file.sh").run();
    let files = sandbox.files_below("tmp");
    assert_eq!(files.len(), 1, "{files:?}");
    assert!(end.report().contains(&files[0]), "{}", end.report());
}

/// The output of workers is in their log files, or on the console, even if the agent was killed
/// before it could read it.
#[test]
fn killed_agent_loses_no_output() {
    for words in ["--log-dir logs -r 3", "--log-dir logs -t 3", ""] {
        let sandbox = Sandbox::new();
        let orders = sandbox.orders(0);
        let [begun, done] = ["begun", "done"].map(|name| sandbox.lifeline(name));
        let words = format!("--rdzv-id my-job --rdzv-endpoint 127.0.0.1:0 {words}");
        let mut agent = sandbox.ragent(&format!("{words} --no-python obey.sh")).start();
        orders.give("echo >$SCRATCH/begun");
        begun.wait_until_broken();
        agent.signal(Signal::SIGSTOP);
        orders.give("seq 1000 >&2; echo >$SCRATCH/done");
        done.wait_until_broken();
        agent.signal(Signal::SIGKILL);
        agent.wait_until_silent();
        sandbox.wait_until_nothing_left();
        let is_number = |line: &&str| line.parse::<u32>().is_ok();
        let mut text = agent.text(Stream::Stderr);
        if words.contains("logs") {
            text = log_files(&sandbox).concat();
        }
        assert_eq!(text.lines().filter(is_number).count(), 1000, "{words}");
    }
}

/// If an agent is killed at any point, all that its worker has written is on the console and in the log file, in order. A stream with one
/// destination is there once. Of other streams, the keeper may repeat the piece that the agent was copying.
#[test]
fn killed_agent_leaves_no_gap() {
    for lines in (1..=8).map(|round| round * 97) {
        for words in ["--log-dir logs -t 1", "--log-dir logs -r 1", "--mark-lines"] {
            kill_after(lines, words);
        }
    }
}

/// Kills the agent of a worker that counts, after `lines` lines. Nothing waits for the test, so the
/// kill can hit any point of the agent's work.
fn kill_after(lines: usize, words: &str) {
    let sandbox = Sandbox::new();
    let job = "--rdzv-id my-job --rdzv-endpoint 127.0.0.1:0";
    let mut agent = sandbox.ragent(&format!("{job} {words} --no-python count.sh")).start();
    let noted = || {
        let noted = fs::read_to_string(sandbox.path("noted")).unwrap_or_default();
        noted.trim_start_matches('0').parse().unwrap_or(0)
    };
    let deadline = clock::now_blocking() + PATIENCE;
    while noted() < lines {
        assert!(clock::now_blocking() < deadline, "the worker does not write");
        std::thread::yield_now();
    }
    agent.signal(Signal::SIGKILL);
    agent.wait_until_silent();
    sandbox.wait_until_nothing_left();
    let mut texts = Vec::new();
    if words.contains("logs") {
        texts.extend(log_files(&sandbox).into_iter().map(|text| ("", text)));
    }
    if !words.contains("-r") {
        texts.push(("[default0]:", agent.text(Stream::Stdout)));
    }
    let count = noted();
    for (prefix, text) in texts {
        let line =
            |number: usize| format!("{prefix}count {number:09} {}\n", "x".repeat(number % 97));
        let noted = (1..=count).map(line).collect::<String>().len();
        // One more line may have been written but not stored in `noted`, and half of another one.
        let expected: String = (1..=count + 2).map(line).collect();
        // A repeated piece may begin in the middle of a line. On the console, half of a line ends with a line break that its worker has not written.
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let once = text.bytes().zip(expected.bytes()).take_while(|(one, other)| one == other);
        let once = once.count();
        let repeated = &text[once..];
        let is_end = |start: usize| {
            noted <= start + repeated.len() + 1 && expected[start..].starts_with(repeated)
        };
        let starts = if words.contains("-r") { once..=once } else { 0..=once };
        assert!(starts.into_iter().any(is_end), "{words}: {noted}, {once}, {}", text.len());
    }
}
