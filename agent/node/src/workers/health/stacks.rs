//! Writes the stacks of hung workers to files before they are killed.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    process::Stdio,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, getsid},
};
use ragent_base::sys::{clock, files, proc, tree, unix};
use ragent_rendezvous::ids::LocalRank;
use tokio::{
    process::Command,
    task::{JoinSet, spawn_blocking},
    time::timeout,
};
use tracing::warn;

use crate::workers::limits;

/// The tools for taking stacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct StackTools {
    /// py-spy, if it is installed.
    pub(crate) py_spy: Option<PathBuf>,
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
        tasks.spawn(take_one(tools.py_spy.clone(), worker));
    }
    if timeout(limits::STACKS_TIMEOUT, tasks.join_all()).await.is_err() {
        warn!("stacks of some hung workers were not complete in time");
    }
    let is_written = |(local_rank, file): (LocalRank, Option<PathBuf>)| {
        file.filter(|file| file.exists()).map(|file| (local_rank, file))
    };
    files.into_iter().filter_map(is_written).collect()
}

/// Asks a worker to print its own stack.
fn ask(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed());
    // Each worker leads a session of its own. A process that has reused its number does not.
    if getsid(Some(pid)) == Ok(pid) {
        let _ = kill(pid, signal);
    }
}

async fn take_one(py_spy: Option<PathBuf>, worker: Hung) {
    let Hung { local_rank, pid, file } = worker;
    let Some(path) = file else { return };
    let copy = path.clone();
    let written = spawn_blocking(move || write_kernel_view(&copy, pid)).await;
    let file = match written.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Ok(file) => file,
        Err(error) => {
            return warn!(
                path = %path.display(), %error,
                "failed to write the stack of a hung worker"
            );
        }
    };
    if let Some(py_spy) = &py_spy
        && let Err(error) = run_py_spy(py_spy, pid, file).await
    {
        warn!(%local_rank, pid, %error, "py-spy failed to dump the stack of a hung worker");
    }
}

async fn run_py_spy(py_spy: &Path, pid: u32, file: File) -> io::Result<()> {
    let mut command = Command::new(py_spy);
    command.args(["dump", "--pid", &pid.to_string()]).kill_on_drop(true);
    unix::end_with_this_thread(&mut command);
    unix::lower_priority(&mut command);
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let status = command.status().await?;
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

/// Writes the kernel's view of the threads of a worker and of all its descendants. Blocks.
fn write_kernel_view(path: &Path, pid: u32) -> io::Result<File> {
    let mut file = files::append(path)?;
    let worker = Pid::from_raw(pid.cast_signed());
    let mut all = tree::descendants_of(worker);
    all.insert(worker);
    for pid in all.iter().take(limits::STACK_PROCESSES) {
        let name = proc::read(&format!("{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
        writeln!(file, "process {pid}: {}", name.trim_end())?;
        let threads = proc::numbers(&format!("{pid}/task")).into_iter();
        for thread in threads.take(limits::STACK_PROCESSES) {
            let path = |name: &str| format!("{pid}/task/{thread}/{name}");
            let read = |name: &str| proc::read(&path(name)).unwrap_or_default().trim().to_owned();
            let state = proc::field(&path("status"), "State");
            writeln!(
                file,
                "  thread {thread} {}: {}, waits in {}",
                read("comm"),
                state.as_deref().unwrap_or("gone"),
                read("wchan"),
            )?;
            for frame in read("stack").lines() {
                writeln!(file, "    {frame}")?;
            }
        }
    }
    writeln!(file)?;
    Ok(file)
}
