//! Runs the ssh process, and keeps its own output.

use std::{
    ffi::OsString,
    io,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use ragent_base::{output::streams::Stream, sys::unix};
use ragent_options::spec;
use tokio::{
    io::AsyncReadExt,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    sync::mpsc,
};

use super::{
    lines::Lines,
    order::{HostNumber, RelayReport},
};
use crate::commands::{parent, ssh::limits};

/// ssh and the processes that it has started to reach a host. Dropping it kills them.
#[derive(Debug)]
pub(super) struct SshProcess(Child);

impl SshProcess {
    /// Starts ssh, and returns it with its streams.
    ///
    /// # Errors
    ///
    /// Returns the system's error if the process cannot be started.
    pub(super) fn start(
        command: &[OsString],
    ) -> io::Result<(Self, ChildStdin, ChildStdout, ChildStderr)> {
        let (program, args) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // ssh has its own session, so it does not receive the terminal's Ctrl-C, which is passed on through the relays. The ssh of a jump
        // host must not ask for a password either, neither on the terminal nor in a window.
        unix::lead_session(&mut command);
        // The agents of the hosts have other parents and interpreters. A program in place of ssh may pass variables on.
        command.env_remove(parent::VARIABLE).env_remove(spec::OWN_PYTHON);
        let mut child = command.env("SSH_ASKPASS_REQUIRE", "never").kill_on_drop(true).spawn()?;
        match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
            (Some(stdin), Some(stdout), Some(stderr)) => Ok((Self(child), stdin, stdout, stderr)),
            (_, _, _) => Err(io::Error::other("it has no streams")),
        }
    }

    /// Waits for the end of ssh.
    pub(super) async fn ended(&mut self) -> Option<ExitStatus> {
        self.0.wait().await.ok()
    }
}

impl Drop for SshProcess {
    fn drop(&mut self) {
        // The number of its process group is not reused until ssh is reaped. The group includes the ssh of jump hosts.
        if let Some(pid) = self.0.id() {
            let _ = killpg(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
    }
}

/// The end of what ssh and the host's shells have printed before the relay's greeting.
#[derive(Clone, Debug, Default)]
pub(super) struct SshOutput(Arc<Mutex<OutputTail>>);

#[derive(Debug, Default)]
struct OutputTail {
    /// The output on stderr. After the greeting, only the newest line.
    text: Vec<u8>,
    /// The output on stdout, if there was no greeting.
    printed: Vec<u8>,
    is_greeted: bool,
}

impl SshOutput {
    fn lock(&self) -> MutexGuard<'_, OutputTail> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the greeting. Later lines on stderr are shown to the user.
    pub(super) fn greeted(&self) {
        *self.lock() = OutputTail { is_greeted: true, ..OutputTail::default() };
    }

    /// Returns true if the relay has sent its greeting.
    pub(super) fn is_greeted(&self) -> bool {
        self.lock().is_greeted
    }

    /// Keeps the output on stdout if there was no greeting. A host that refuses a connection may print the reason there, for example if the
    /// user has no shell.
    pub(super) fn printed(&self, stdout: &[u8]) {
        let surplus = stdout.len().saturating_sub(limits::SSH_ERROR_LEN);
        self.lock().printed = stdout[surplus..].to_vec();
    }

    /// Keeps a line of stderr. Returns true if it is to be shown to the user.
    fn push(&self, line: &[u8]) -> bool {
        let OutputTail { text, is_greeted, .. } = &mut *self.lock();
        if *is_greeted {
            // After the greeting only the newest line is kept.
            text.clear();
        }
        text.extend_from_slice(line);
        let surplus = text.len().saturating_sub(limits::SSH_ERROR_LEN);
        text.drain(..surplus);
        *is_greeted
    }

    /// Returns the output without control characters: stderr if it is not empty, else stdout, which may be only a welcome message.
    pub(super) fn text(&self) -> String {
        let tail = self.lock();
        let has_errors = tail.text.iter().any(|byte| !byte.is_ascii_whitespace());
        let text = if has_errors { &tail.text } else { &tail.printed };
        let text = String::from_utf8_lossy(text);
        text.replace(|c: char| c.is_control() && c != '\n', "")
    }
}

/// Reads the stderr of ssh.
pub(super) async fn listen(
    mut stderr: ChildStderr,
    host: HostNumber,
    output: SshOutput,
    reports: mpsc::Sender<(HostNumber, RelayReport)>,
) {
    let mut lines = Lines::default();
    loop {
        let is_over = !matches!(stderr.read_buf(lines.room()).await, Ok(1..));
        while let Some(line) = lines.take(is_over) {
            if output.push(&line) {
                let report = RelayReport::Line { stream: Stream::Stderr, line };
                let _ = reports.send((host, report)).await;
            }
        }
        if is_over {
            return;
        }
    }
}
