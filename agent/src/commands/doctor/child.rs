//! Runs programs that may never answer.

use std::{
    io,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use ragent_base::sys::{clock, tree};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    task::spawn_blocking,
    time::timeout,
};

use crate::commands::doctor::limits;

/// The reason why a program cannot be used.
#[derive(Debug, Eq, PartialEq)]
pub(in crate::commands) enum Unusable {
    /// The error of the program or of the system.
    Broken(String),
    /// The program has printed nothing for this time.
    Silent(Duration),
}

/// Runs a program, and returns what it prints on stdout if it succeeds.
pub(in crate::commands) async fn stdout_of(
    program: PathBuf,
    args: &'static [&'static str],
    limit: Duration,
) -> Result<String, Unusable> {
    let by = clock::now() + limit;
    // Starting it can hang too, on a file system that does not answer.
    let started = spawn_blocking(move || start(&program, args));
    let broken = |error: io::Error| Unusable::Broken(error.to_string());
    let mut child = match timeout(limit, started).await {
        Ok(started) => started.map_err(io::Error::other).flatten().map_err(broken)?,
        Err(_) => return Err(Unusable::Silent(limit)),
    };
    let left = by.saturating_duration_since(clock::now());
    let Ok(answer) = timeout(left, answer(&mut child)).await else {
        end(&mut child).await;
        return Err(Unusable::Silent(limit));
    };
    let (status, stdout, stderr) = answer.map_err(broken)?;
    if status.success() {
        return Ok(stdout);
    }
    let last = stderr.lines().last().unwrap_or("it prints nothing");
    Err(Unusable::Broken(last.to_owned()))
}

fn start(program: &Path, args: &[&str]) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn()
}

/// Returns its exit status, and its output on stdout and stderr.
async fn answer(child: &mut Child) -> io::Result<(ExitStatus, String, String)> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    tokio::try_join!(child.wait(), text(stdout), text(stderr))
}

async fn text(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(limits::MAX_ANSWER).read_to_end(&mut bytes).await?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Kills and reaps the process with all its descendants. A process that hangs in the kernel dies when the kernel call returns.
async fn end(child: &mut Child) {
    if let Some(pid) = child.id() {
        let root = Pid::from_raw(pid.cast_signed());
        for pid in tree::descendants_of(root).into_iter().chain([root]) {
            // The process may have ended by itself.
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
    let _ = timeout(limits::REAP_TIMEOUT, child.wait()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The descendants of an abandoned interpreter are killed with it, so no process holds its stdout.
    #[tokio::test]
    async fn what_it_has_started_is_killed() {
        let script = "sleep 1000 & echo there; wait";
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut there = [0; 6];
        stdout.read_exact(&mut there).await.unwrap();
        end(&mut child).await;
        assert_eq!(child.id(), None, "it is not reaped");
        let closed = timeout(Duration::from_secs(60), stdout.read_to_end(&mut Vec::new())).await;
        assert_eq!(closed.expect("a process holds its stdout").unwrap(), 0);
    }
}
