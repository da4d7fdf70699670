//! Checks the interpreter for workers, and its torch.

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
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    time::timeout,
};

use super::{Finding, Findings, within};
use crate::{
    commands::doctor::limits,
    spec,
    sys::{clock, host::ThisHost, tree},
};

pub(super) async fn examine(findings: &mut Findings) {
    let check = "python";
    let interpreter = match within(check, || spec::interpreter(&ThisHost)).await {
        Ok(Ok(path)) => path,
        Ok(Err(error)) => {
            let hint = error.hint().unwrap_or_default();
            return findings.report(Finding::fail(check, error.to_string(), hint));
        }
        Err(silent) => return findings.report(silent),
    };
    let path = interpreter.display();
    match ask(interpreter.clone(), limits::CHECK_TIMEOUT).await {
        Ok(Versions { python, torch: found }) => {
            findings.report(Finding::pass(check, format!("Python {python} at {path}")));
            findings.report(torch(found));
        }
        Err(Unusable::Broken(why)) => {
            let text = format!("{path} does not run: {why}");
            findings.report(Finding::fail(check, text, "set PYTHON_EXEC to another interpreter"));
        }
        Err(Unusable::Silent(waited)) => {
            let text = format!("{path} did not answer within {} s", waited.as_secs());
            let hint =
                "check the file system that it is on, or set PYTHON_EXEC to another interpreter";
            findings.report(Finding::fail(check, text, hint));
        }
    }
}

fn torch(version: Option<String>) -> Finding {
    match version {
        Some(version) => Finding::pass("torch", format!("torch {version}")),
        None => Finding::warn(
            "torch",
            "this Python has no torch",
            "activate the environment that has torch, or set PYTHON_EXEC to its interpreter",
        ),
    }
}

/// The versions that an interpreter reports.
#[derive(Debug, Eq, PartialEq)]
struct Versions {
    python: String,
    torch: Option<String>,
}

/// The reason for which an interpreter cannot run workers.
#[derive(Debug, Eq, PartialEq)]
enum Unusable {
    /// The error of the interpreter or of the system.
    Broken(String),
    /// The interpreter has not answered for this time.
    Silent(Duration),
}

/// Asks for the versions. Importing torch would take seconds, so only its metadata is read.
async fn ask(interpreter: PathBuf, limit: Duration) -> Result<Versions, Unusable> {
    let by = clock::now() + limit;
    // Starting it can also hang on a file system that does not answer.
    let started = tokio::task::spawn_blocking(move || start(&interpreter));
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
    let mut lines = stdout.lines().map(str::to_owned);
    match lines.next().filter(|_| status.success()) {
        Some(python) => Ok(Versions { python, torch: lines.next() }),
        None => {
            let last = stderr.lines().last().unwrap_or("it prints nothing");
            Err(Unusable::Broken(last.to_owned()))
        }
    }
}

fn start(interpreter: &Path) -> io::Result<Child> {
    const QUESTION: &str = "\
import platform, importlib.metadata as m
print(platform.python_version())
try: print(m.version('torch'))
except m.PackageNotFoundError: pass
";
    let mut command = Command::new(interpreter);
    command.args(["-c", QUESTION]).stdin(Stdio::null());
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

/// Kills and reaps the process with all its descendants. A process that hangs in the kernel dies
/// when the kernel call returns.
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

    /// An interpreter that does not answer is abandoned after its time.
    #[tokio::test]
    async fn silence_has_an_end() {
        let stays = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/workers/stay.sh");
        let limit = Duration::from_millis(20);
        assert_eq!(ask(stays.into(), limit).await, Err(Unusable::Silent(limit)));
    }

    /// The descendants of an abandoned interpreter are killed with it: no process holds its stdout.
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
        assert_eq!(closed.expect("somebody holds its stdout").unwrap(), 0);
    }

    /// The error of an interpreter that cannot be started is reported.
    #[tokio::test]
    async fn refusals_are_reported() {
        let limit = Duration::from_secs(60);
        let missing = ask("/no/such/python".into(), limit).await;
        assert!(matches!(missing, Err(Unusable::Broken(why)) if why.contains("No such file")));
    }
}
