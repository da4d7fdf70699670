//! Writes the stacks of workers that make no progress to files.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Stdio,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, getsid},
};
use ragent_base::sys::{clock, files, proc, tree, unix};
use ragent_proto::{printable, printable_line};
use ragent_rendezvous::ids::LocalRank;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Command,
    task::{JoinSet, spawn_blocking},
    time::timeout,
};
use tracing::warn;

use crate::{
    limits,
    look::{
        frames::{self, Stack},
        kernel::within,
    },
};

/// The tools for taking stacks.
#[derive(Clone, Debug)]
pub(crate) struct StackTools {
    /// py-spy, if it is installed.
    pub(crate) py_spy: Option<PathBuf>,
    /// How it reads workers that are not stopped.
    pub(crate) spied: Spied,
    /// The signal that makes a worker print its own stack, if the user named one.
    pub(crate) signal: Option<Signal>,
}

/// A hung worker, and the file for its stack.
#[derive(Clone, Debug)]
pub(crate) struct Hung {
    pub(crate) local_rank: LocalRank,
    pub(crate) pid: u32,
    pub(crate) file: Option<PathBuf>,
}

/// Takes the stacks of all `workers`, in a limited time. Returns the files that were written.
pub(crate) async fn take(tools: StackTools, workers: Vec<Hung>) -> BTreeMap<LocalRank, PathBuf> {
    let mut tasks = JoinSet::new();
    if let Some(signal) = tools.signal {
        for worker in &workers {
            ask(worker.pid, signal);
        }
        // The end of the printing is not reported, so the workers get a fixed time.
        tasks.spawn(clock::until(Some(clock::now() + limits::STACK_SIGNAL_TIME)));
    }
    let files: Vec<_> = workers.iter().map(|hung| (hung.local_rank, hung.file.clone())).collect();
    for worker in workers {
        tasks.spawn(take_one(tools.py_spy.clone(), tools.spied, worker));
    }
    if timeout(limits::STACKS_TIMEOUT, tasks.join_all()).await.is_err() {
        warn!("stacks of some hung workers were not complete in time");
    }
    let is_written = |(local_rank, file): (LocalRank, Option<PathBuf>)| {
        file.filter(|file| file.exists()).map(|file| (local_rank, file))
    };
    // The disk of the log folder may not answer.
    within(move || files.into_iter().filter_map(is_written).collect()).await
}

/// Asks a worker to print its own stack.
fn ask(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed());
    // Each worker leads a session of its own. A process that has reused its number does not.
    if getsid(Some(pid)) == Ok(pid) {
        let _ = kill(pid, signal);
    }
}

async fn take_one(py_spy: Option<PathBuf>, spied: Spied, worker: Hung) {
    let Hung { local_rank, pid, file } = worker;
    let Some(path) = file else { return };
    append(path.clone(), kernel_view(pid).await).await;
    let is_stopped = proc::stat(pid).is_some_and(|stat| stat.state == 'T');
    let spied = if is_stopped { Spied::Untouched } else { spied };
    if let Some(py_spy) = &py_spy {
        match spy(py_spy, pid, spied).await {
            Ok(dump) => append(path, dump.text).await,
            Err(error) => {
                warn!(%local_rank, pid, %error, "py-spy failed to dump the stack of a hung worker");
            }
        }
    }
}

/// Returns the kernel's view of a worker and its descendants, in a limited time.
pub(crate) async fn kernel_view(pid: u32) -> String {
    // The latter waits for a lock of the worker's memory, which the kernel holds while the worker waits for some file
    // systems.
    let (threads, memory) = tokio::join!(within(move || threads(pid)), within(move || memory(pid)));
    threads + &memory + "\n"
}

/// Writes a text to the end of the file of a worker's stack, without characters that control a terminal.
async fn append(path: PathBuf, text: String) {
    let copy = path.clone();
    let write = move || files::append_log(&copy)?.write_all(printable(&text).as_bytes());
    let written = spawn_blocking(write).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    if let Err(error) = written {
        warn!(path = %path.display(), %error, "failed to write the stack of a worker");
    }
}

/// A process as py-spy reads it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Spied {
    /// py-spy stops it for a moment. If it waits for a disk (state `D`), it is stopped later, and stays so. So it is
    /// killed afterwards.
    Paused,
    /// py-spy reads it as it is: it goes on afterwards, or a signal has stopped it already.
    Untouched,
}

/// The output of py-spy.
#[derive(Debug)]
pub(crate) struct Dump {
    /// The text for people.
    pub(crate) text: String,
    /// The stack of the main thread, if the output is that of py-spy.
    pub(crate) stack: Option<Stack>,
}

/// Runs py-spy.
pub(crate) async fn spy(py_spy: &Path, pid: u32, spied: Spied) -> io::Result<Dump> {
    let mut command = Command::new(py_spy);
    command.args(["dump", "--pid", &pid.to_string(), "--json"]).kill_on_drop(true);
    if spied == Spied::Untouched {
        command.arg("--nonblocking");
    }
    unix::end_with_this_thread(&mut command);
    unix::lower_priority(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (output, errors) = tokio::try_join!(read(stdout), read(stderr))?;
    let status = child.wait().await?;
    if !status.success() {
        let errors = String::from_utf8_lossy(&errors);
        let first = errors.lines().next().unwrap_or_default();
        return Err(io::Error::other(format!("{status}: {first}")));
    }
    Ok(match frames::of_py_spy(&output) {
        Some((text, stack)) => Dump { text: text + "\n", stack: Some(stack) },
        None => Dump { text: String::from_utf8_lossy(&output).into_owned(), stack: None },
    })
}

/// Reads all that a program prints, up to the limit. Further output makes it fail.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(limits::MAX_STACKS).read_to_end(&mut output).await?;
    }
    Ok(output)
}

/// Returns the kernel's view of the threads of a worker and of all its descendants. Blocks.
fn threads(pid: u32) -> String {
    let mut view = String::new();
    for pid in processes(pid) {
        let _ = writeln!(view, "process {pid}");
        let threads = proc::numbers(&format!("{pid}/task")).into_iter();
        for thread in threads.take(limits::STACK_PROCESSES) {
            let path = |name: &str| format!("{pid}/task/{thread}/{name}");
            let read = |name: &str| proc::read(&path(name)).unwrap_or_default().trim().to_owned();
            let state = proc::field(&path("status"), "State");
            let _ = writeln!(
                view,
                "  thread {thread} {}: {}, waits in {}",
                printable_line(&read("comm")),
                state.as_deref().unwrap_or("gone"),
                read("wchan"),
            );
            for frame in read("stack").lines() {
                let _ = writeln!(view, "    {frame}");
            }
        }
    }
    view
}

/// Returns the commands of a worker and all its descendants, and its newest library. Blocks.
fn memory(pid: u32) -> String {
    let mut view = String::new();
    for pid in processes(pid) {
        let command = proc::read(&format!("{pid}/cmdline")).unwrap_or_default();
        let command = printable_line(&command.replace('\0', " "));
        let _ = writeln!(view, "command of process {pid}: {}", command.trim_end());
    }
    if let Some(library) = newest_library(pid) {
        let _ = writeln!(view, "newest library of process {pid}: {library}");
    }
    view
}

/// Returns a worker and its descendants, in order.
fn processes(worker: u32) -> impl Iterator<Item = Pid> {
    let worker = Pid::from_raw(worker.cast_signed());
    let mut all = tree::descendants_of(worker);
    all.insert(worker);
    all.into_iter().take(limits::STACK_PROCESSES)
}

/// Returns the library that a process has loaded last. The kernel places each new one below those before it, so it
/// has the lowest address.
fn newest_library(pid: u32) -> Option<String> {
    let maps = proc::read(&format!("{pid}/maps"))?;
    let mut paths = maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5));
    let is_library = |path: &&str| path.starts_with('/') && path.contains(".so");
    paths.find(is_library).map(printable_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file contains no characters that control a terminal, apart from the ends of lines.
    #[tokio::test]
    async fn control_characters_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stack.txt");
        append(path.clone(), "a\u{1b}]0;title\u{7}\n".to_owned()).await;
        append(path.clone(), "\u{9b}2Jb\r\n".to_owned()).await;
        assert_eq!(std::fs::read_to_string(path).unwrap(), "a]0;title\n2Jb\n");
    }
}
