//! Runs the agent that a relay has started, and passes on its output.

use std::{
    fs,
    io::{self, Write},
    path::{Component, Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use ragent_base::{
    output::streams::Stream,
    secret::WrittenSecret,
    sys::{clock, unix},
};
use ragent_core::process_end::ProcessEnd;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    sync::mpsc,
    task::JoinSet,
};

use super::{
    lines::Lines,
    order::{AgentEnd, HostJob, RelayReport, SharedJob},
};
use crate::commands::ssh::limits;

/// A running agent. The kernel kills it when the thread that started it ends.
#[derive(Debug)]
pub(super) struct AgentProcess {
    child: Child,
    readers: JoinSet<()>,
    /// The time after which its streams are not read any more, once it has ended.
    drained_by: Option<Instant>,
}

impl AgentProcess {
    /// Starts an agent by `job` and its own part `host`. Its lines are sent to `reports`. `core_dump` is the inherited limit.
    ///
    /// # Errors
    ///
    /// Returns the reason if the agent cannot be started.
    pub(super) fn start(
        job: &SharedJob,
        host: &HostJob,
        core_dump: u64,
        reports: &mpsc::Sender<RelayReport>,
    ) -> Result<Self, String> {
        let folder = job.folder.display();
        let metadata = fs::metadata(&job.folder);
        match metadata {
            Err(error) => return Err(format!("cannot enter the folder `{folder}`: {error}")),
            Ok(metadata) if !metadata.is_dir() => {
                return Err(format!("`{folder}` is not a folder"));
            }
            Ok(_) => {}
        }
        // The file that is running, even if another file has replaced it at its path.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ragent");
        let stdin = match &job.secret {
            Some(secret) => {
                // So that the secret is in no list of processes and in no file.
                command.arg("--secret-file=-");
                pipe_with(secret).map_err(|error| format!("failed to send the secret: {error}"))?
            }
            None => Stdio::null(),
        };
        command.args(job.words(host)).current_dir(&job.folder);
        match shells_name(&job.folder) {
            Some(folder) => command.env("PWD", folder),
            None => command.env_remove("PWD"),
        };
        for (name, value) in job.env.iter().chain(&host.env) {
            command.env(name, value);
        }
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        unix::end_with_this_thread(&mut command);
        unix::allow_core_dump(&mut command, core_dump);
        let spawned = command.spawn();
        let mut child =
            spawned.map_err(|error| format!("failed to start its agent in `{folder}`: {error}"))?;
        let mut readers = JoinSet::new();
        if let Some(pipe) = child.stdout.take() {
            readers.spawn(pass_on(pipe, Stream::Stdout, reports.clone()));
        }
        if let Some(pipe) = child.stderr.take() {
            readers.spawn(pass_on(pipe, Stream::Stderr, reports.clone()));
        }
        Ok(Self { child, readers, drained_by: None })
    }

    /// Signals the agent, unless it has ended.
    pub(super) fn signal(&self, signal: i32) {
        // The process id is not reused until the process is reaped. Then `id` returns `None`.
        if let (Some(pid), Ok(signal)) = (self.child.id(), Signal::try_from(signal)) {
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        }
    }

    /// Waits until the agent has ended. Then waits for its keeper and all workers, which hold its streams, at most for the time of a
    /// cleanup.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub(super) async fn ended(&mut self) -> AgentEnd {
        let status = self.child.wait().await;
        // A worker that cannot be killed may hold the streams forever.
        let by = *self.drained_by.get_or_insert_with(|| clock::now() + limits::CLEANUP_TIMEOUT);
        let readers = &mut self.readers;
        tokio::select! {
            () = async { while readers.join_next().await.is_some() {} } => {}
            () = clock::until(Some(by)) => {}
        }
        match status {
            Ok(status) => AgentEnd::from(ProcessEnd::from(status)),
            Err(error) => AgentEnd::NotStarted(format!("failed to wait for its agent: {error}")),
        }
    }
}

/// Returns the end of a pipe from which a secret can be read.
fn pipe_with(WrittenSecret(secret): &WrittenSecret) -> io::Result<Stdio> {
    let (read, mut write) = io::pipe()?;
    // A pipe takes 64 KiB at once.
    write.write_all(secret.text().as_bytes())?;
    Ok(read.into())
}

/// Returns the `PWD` that a shell has after it changes to `folder`. Returns `None` if it depends on symbolic links.
fn shells_name(folder: &Path) -> Option<PathBuf> {
    let is_plain = !folder.components().any(|part| part == Component::ParentDir);
    (is_plain && folder.is_absolute()).then(|| folder.components().collect())
}

/// Sends the lines of `pipe` to `reports`, and waits while the queue is full.
async fn pass_on(
    mut pipe: impl AsyncRead + Unpin,
    stream: Stream,
    reports: mpsc::Sender<RelayReport>,
) {
    let mut lines = Lines::default();
    loop {
        let is_over = !matches!(pipe.read_buf(lines.room()).await, Ok(1..));
        while let Some(line) = lines.take(is_over) {
            // If the receiver is gone, the pipe is still read, so that the agent does not block.
            let _ = reports.send(RelayReport::Line { stream, line }).await;
        }
        if is_over {
            return;
        }
    }
}
