//! The process that is ssh, and its own words.

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
use tokio::{
    io::AsyncReadExt,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    sync::mpsc,
};

use super::{
    lines::Lines,
    order::{HostNumber, Report},
};
use crate::{job_spec::Stream, limits, supervisor::unix};

/// ssh, and what it has started to reach a host. Dropping it ends them.
#[derive(Debug)]
pub(super) struct SshProcess(Child);

impl SshProcess {
    /// Starts it, with its streams.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal.
    pub(super) fn start(
        command: &[OsString],
    ) -> io::Result<(Self, ChildStdin, ChildStdout, ChildStderr)> {
        let (program, args) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A terminal's Ctrl-C is for us alone: what it means goes through the relays. Nor is anybody to
        // be asked for a password there, or in a window, by a jump host's ssh.
        unix::lead_session(&mut command);
        let mut child = command.env("SSH_ASKPASS_REQUIRE", "never").kill_on_drop(true).spawn()?;
        match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
            (Some(stdin), Some(stdout), Some(stderr)) => Ok((Self(child), stdin, stdout, stderr)),
            (_, _, _) => Err(io::Error::other("it has no streams")),
        }
    }

    /// Waits for its end.
    pub(super) async fn ended(&mut self) -> Option<ExitStatus> {
        self.0.wait().await.ok()
    }
}

impl Drop for SshProcess {
    fn drop(&mut self) {
        // Until it is reaped, the number of its group is its own. Its jump hosts are in it.
        if let Some(pid) = self.0.id() {
            let _ = killpg(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
    }
}

/// What ssh and the shells of the host have said before ragent says a word, the end of it.
#[derive(Clone, Debug, Default)]
pub(super) struct LastWords(Arc<Mutex<Said>>);

#[derive(Debug, Default)]
struct Said {
    /// On stderr, or, once ragent has said a word, the newest line there.
    text: Vec<u8>,
    /// On stdout, where ragent has not said a word.
    printed: Vec<u8>,
    is_greeted: bool,
}

impl LastWords {
    fn lock(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on lines are for people.
    pub(super) fn greeted(&self) {
        *self.lock() = Said { is_greeted: true, ..Said::default() };
    }

    /// Whether ragent has said a word.
    pub(super) fn is_greeted(&self) -> bool {
        self.lock().is_greeted
    }

    /// Keeps what came out of stdout in place of ragent's first word: a host that refuses may say there
    /// why it does, as one whose user has no shell.
    pub(super) fn printed(&self, stdout: &[u8]) {
        let surplus = stdout.len().saturating_sub(limits::SSH_LAST_WORDS);
        self.lock().printed = stdout[surplus..].to_vec();
    }

    /// Keeps a line; whether it is for people.
    fn push(&self, line: &[u8]) -> bool {
        let Said { text, is_greeted, .. } = &mut *self.lock();
        if *is_greeted {
            // Of what comes later, the newest counts.
            text.clear();
        }
        text.extend_from_slice(line);
        let surplus = text.len().saturating_sub(limits::SSH_LAST_WORDS);
        text.drain(..surplus);
        *is_greeted
    }

    /// What can be shown of them: what stands on stderr is about the end, what is on stdout may be a
    /// greeting.
    pub(super) fn text(&self) -> String {
        let said = self.lock();
        let has_errors = said.text.iter().any(|byte| !byte.is_ascii_whitespace());
        let text = if has_errors { &said.text } else { &said.printed };
        let text = String::from_utf8_lossy(text);
        text.replace(|c: char| c.is_control() && c != '\n', "")
    }
}

/// Reads what ssh says for itself.
pub(super) async fn listen(
    mut stderr: ChildStderr,
    host: HostNumber,
    words: LastWords,
    reports: mpsc::Sender<Report>,
) {
    let mut lines = Lines::default();
    loop {
        let is_over = !matches!(stderr.read_buf(lines.room()).await, Ok(1..));
        while let Some(line) = lines.take(is_over) {
            if words.push(&line) {
                let _ = reports.send(Report::Line { host, stream: Stream::Stderr, line }).await;
            }
        }
        if is_over {
            return;
        }
    }
}
