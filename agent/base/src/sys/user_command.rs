//! Runs a command of the user, for example the one given with `--health-check`.
//!
//! 1. Its words were split as in a shell, and no shell runs.
//! 2. It has the environment of workers, without the variables of a round and without secrets.
//! 3. It leads a process group of its own, which is killed at the end of the run, and with the agent.
//! 4. Of what it prints, a limited part is kept. The rest is read and dropped, so that it does not wait.

use std::{
    convert::Infallible,
    io,
    pin::pin,
    process::{ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, killpg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use ragent_rendezvous::message::LINE_MAX;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, ChildStdout, Command},
    runtime::Handle,
    sync::{Semaphore, oneshot},
    time::timeout,
};

use super::{clock, limits, unix};

/// Variables for the agent alone, which neither workers nor commands of the user inherit:
///
/// - of systemd and of the Python module,
/// - the socket of the agent above this one, if this agent runs in a worker,
/// - for the authentication of the job and of etcd,
/// - for the port of the metrics: an agent that a worker starts could not use the same port.
pub const NOT_INHERITED: [&str; 25] = [
    "CREDENTIALS_DIRECTORY",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "PET_AUTH",
    "PET_METRICS_LISTEN",
    "PET_SECRET_FILE",
    "PET_TLS_CA",
    "PET_TLS_CERT",
    "PET_TLS_KEY",
    "PET_TLS_PEER",
    "RAGENT_ETCD_PASSWORD_FILE",
    "RAGENT_ETCD_USER",
    "RAGENT_EXIT_WITH_PARENT",
    "RAGENT_MAIN",
    "RAGENT_MEMORY_SOCKET",
    "RAGENT_NOTICE_FILE",
    "RAGENT_PYTHON",
    "RAGENT_ROUNDS_WITHOUT_PROGRESS",
    "RAGENT_SAVED_STEP",
    "RAGENT_SOCKET",
    "RUNTIME_DIRECTORY",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

/// A command that runs. Dropping it kills its process group.
#[derive(Debug)]
pub struct UserCommand {
    child: Child,
    group: Group,
}

/// A process group, which ends with this value.
#[derive(Debug)]
struct Group(Pid);

impl Group {
    fn kill(&self) {
        // It may be gone already.
        let _ = killpg(self.0, Signal::SIGKILL);
    }

    /// Reaps what has ended in this group; waits for the rest. Its first process was reaped before.
    async fn reap(&self) {
        loop {
            match waitpid(Pid::from_raw(-self.0.as_raw()), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => {
                    clock::until(Some(clock::now() + limits::COMMAND_REAP)).await;
                }
                // The status may have a signal that `nix` does not know.
                Ok(_) | Err(Errno::EINVAL) => {}
                // Nothing is left, or this process gets no orphans.
                Err(_) => return,
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

impl UserCommand {
    /// Starts a program with its arguments and further variables. It ends with the calling thread.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn start(words: &[String], variables: &[(&str, &str)], stderr: Stdio) -> io::Result<Self> {
        let (program, args) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        command.process_group(0);
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied());
        unix::end_with_this_thread(&mut command);
        unix::lower_priority(&mut command);
        let child = command.spawn()?;
        let pid = child.id().ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { child, group: Group(Pid::from_raw(pid.cast_signed())) })
    }

    /// Takes its stdout.
    ///
    /// # Errors
    ///
    /// Returns an error if it was taken before.
    pub fn take_stdout(&mut self) -> io::Result<ChildStdout> {
        Ok(self.child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?)
    }
}

/// The end of a run.
#[derive(Debug)]
pub struct Ended {
    /// How its first process has ended; `None` if it was killed because its time was over.
    pub status: Option<ExitStatus>,
    /// The first bytes of its stdout; `None` if there were more.
    pub stdout: Option<Vec<u8>>,
    /// The last line of its stderr that has any text, cut to [`LINE_MAX`] bytes.
    pub last_line: String,
}

/// A command that has not given the lines that were wanted.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It could not be started or watched.
    #[error("failed to run it")]
    System(#[from] io::Error),
    /// It has failed in this way.
    #[error("it {0}")]
    Failed(String),
    /// It has printed too much.
    #[error("it has printed more than 64 KiB")]
    TooLong,
}

/// A value from a thread that lives as long as this value.
#[derive(Debug)]
struct Aside<T> {
    value: T,
    _thread: mpsc::Sender<Infallible>,
}

/// Starts something on a thread of its own: the system may not answer if the program is on a file system that hangs.
///
/// # Errors
///
/// Returns the error of `start`, or [`Errno::EAGAIN`] if too many starts hang.
async fn start_aside<T: Send + 'static>(
    start: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<Aside<T>> {
    static STARTS: Semaphore = Semaphore::const_new(limits::COMMAND_STARTS);
    let permit = STARTS.try_acquire().map_err(|_| Errno::EAGAIN)?;
    let (started, result) = oneshot::channel();
    let (thread, ended) = mpsc::channel();
    let runtime = Handle::current();
    thread::Builder::new().name("command".to_owned()).spawn(move || {
        let _context = runtime.enter();
        let value = start();
        drop(permit);
        // If nobody waits any longer, the value is dropped.
        let _ = started.send(value);
        let _ = ended.recv();
    })?;
    let value = result.await.map_err(|_| io::ErrorKind::BrokenPipe)??;
    Ok(Aside { value, _thread: thread })
}

/// Runs a command until its first process has ended, at most for `limit`. Dropping the future kills it.
///
/// # Errors
///
/// Returns the system's error if it cannot be started.
pub async fn run(
    words: &[String],
    variables: &[(&str, &str)],
    limit: Duration,
) -> io::Result<Ended> {
    let began = clock::now();
    let starting = {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let (words, variables) = (words.to_vec(), variables.iter().map(owned).collect::<Vec<_>>());
        start_aside(move || {
            let variables: Vec<(&str, &str)> =
                variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            UserCommand::start(&words, &variables, Stdio::piped())
        })
    };
    let Ok(started) = timeout(limit, starting).await else {
        return Ok(Ended { status: None, stdout: Some(Vec::new()), last_line: String::new() });
    };
    let mut started = started?;
    let command = &mut started.value;
    let left = limit.saturating_sub(clock::now().saturating_duration_since(began));
    let stdout = command.take_stdout()?;
    let stderr = command.child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let status = {
        let reading =
            async { tokio::join!(read_first(stdout, &mut first), read_last(stderr, &mut last)) };
        let mut reading = pin!(reading);
        let mut is_read = false;
        let ended = async {
            loop {
                tokio::select! {
                    status = command.child.wait() => return status,
                    _ = &mut reading, if !is_read => is_read = true,
                }
            }
        };
        let status = timeout(left, ended).await.ok().transpose()?;
        if status.is_some() && !is_read {
            // A process that it has started may keep the pipes open.
            let _ = timeout(limits::COMMAND_PIPES, reading).await;
        }
        status
    };
    // What it has left becomes a child of this process, and would stay as a zombie.
    command.group.kill();
    let reaping = async {
        let _ = command.child.wait().await;
        command.group.reap().await;
    };
    // A process that hangs in a driver does not end.
    let _ = timeout(limits::COMMAND_PIPES, reaping).await;
    let text = String::from_utf8_lossy(&last);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut last_line: String = line.trim().chars().filter(|c| !c.is_control()).collect();
    last_line.truncate(last_line.floor_char_boundary(LINE_MAX));
    let stdout = (first.len() <= limits::COMMAND_OUTPUT).then_some(first);
    Ok(Ended { status, stdout, last_line })
}

/// Runs a command, and returns the lines of its stdout.
///
/// # Errors
///
/// Returns [`RunError`] if it has not exited with 0 after at most `limit`, or has printed too much.
pub async fn lines(words: &[String], limit: Duration) -> Result<Vec<String>, RunError> {
    let ended = run(words, &[], limit).await?;
    if !ended.status.is_some_and(|status| status.success()) {
        return Err(RunError::Failed(ended.text(limit)));
    }
    let stdout = ended.stdout.ok_or(RunError::TooLong)?;
    Ok(String::from_utf8_lossy(&stdout).lines().map(str::to_owned).collect())
}

impl Ended {
    /// Describes how the run has ended, such as `exited with code 3: no network`.
    pub fn text(&self, limit: Duration) -> String {
        let end = match self.status {
            None => format!("did not end in {} s", limit.as_secs_f64()),
            Some(status) => match status.code() {
                Some(code) => format!("exited with code {code}"),
                None => "was killed by a signal".to_owned(),
            },
        };
        if self.last_line.is_empty() { end } else { format!("{end}: {}", self.last_line) }
    }
}

/// Keeps the first bytes, one more than the limit if there are more, and reads the rest.
async fn read_first(mut pipe: impl AsyncRead + Unpin, kept: &mut Vec<u8>) {
    let mut chunk = [0; CHUNK];
    while let Ok(len @ 1..) = pipe.read(&mut chunk).await {
        let room = (limits::COMMAND_OUTPUT + 1).saturating_sub(kept.len());
        kept.extend_from_slice(&chunk[..len.min(room)]);
    }
}

/// Keeps the last bytes, and reads all.
async fn read_last(mut pipe: impl AsyncRead + Unpin, kept: &mut Vec<u8>) {
    let mut chunk = [0; CHUNK];
    while let Ok(len @ 1..) = pipe.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..len]);
        kept.drain(..kept.len().saturating_sub(limits::COMMAND_OUTPUT));
    }
}

/// The size of one read.
const CHUNK: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::proc;

    const LONG: Duration = Duration::from_secs(300);

    fn shell(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    async fn ended(script: &str) -> Ended {
        run(&shell(script), &[("WHEN", "start")], LONG).await.unwrap()
    }

    async fn wait_until_ended(pid: &str) {
        while proc::start_time(pid.parse().unwrap()).is_some() {
            tokio::task::yield_now().await;
        }
    }

    /// The end of a command is described with its last line on stderr. It sees further variables.
    #[tokio::test]
    async fn end_is_described() {
        assert_eq!(ended("true").await.text(LONG), "exited with code 0");
        let end = ended("echo one >&2; printf 'two $WHEN\\033\\n\\n  \\n' >&2; exit 3").await;
        assert_eq!(end.text(LONG), "exited with code 3: two $WHEN");
        assert_eq!(ended("echo $WHEN >&2; exit 3").await.last_line, "start");
        assert_eq!(ended("kill -TERM $$").await.text(LONG), "was killed by a signal");
        assert!(run(&["/no/such/program".to_owned()], &[], LONG).await.is_err());
    }

    /// A command that hangs is killed with all that it has started.
    #[tokio::test]
    async fn hung_command_is_killed() {
        let script = "sleep 1000 & echo waiting $! >&2; wait";
        let short = Duration::from_millis(500);
        let end = run(&shell(script), &[], short).await.unwrap();
        let text = end.text(short);
        let pid = text.strip_prefix("did not end in 0.5 s: waiting ").unwrap();
        wait_until_ended(pid).await;
    }

    /// A process that the command has left neither delays the end nor lives on.
    #[tokio::test]
    async fn forked_process_is_killed() {
        let end = ended("sleep 1000 & echo $! >&2; exit 4").await;
        assert_eq!(end.status.and_then(|status| status.code()), Some(4));
        wait_until_ended(&end.last_line).await;
    }

    /// A start that hangs blocks nothing, and is undone when it ends.
    #[tokio::test]
    async fn hung_start_blocks_nothing() {
        let (answer, answers) = mpsc::channel::<Infallible>();
        let (alive, mut dropped) = oneshot::channel::<Infallible>();
        let starting = start_aside(move || {
            let _ = answers.recv();
            Ok(alive)
        });
        assert!(timeout(Duration::from_millis(50), starting).await.is_err());
        assert_eq!(dropped.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        assert_eq!(ended("true").await.text(LONG), "exited with code 0");
        drop(answer);
        assert!(dropped.await.is_err());
    }

    /// Megabytes of output neither stop the command nor are kept.
    #[tokio::test]
    async fn output_is_bounded() {
        let flood = "yes word | head -c 3000000";
        let end = ended(&format!("{flood} >&2; echo last >&2; {flood}; exit 5")).await;
        assert_eq!((end.text(LONG).as_str(), end.stdout), ("exited with code 5: last", None));
        assert!(matches!(lines(&shell(flood), LONG).await, Err(RunError::TooLong)));
        let long = ended("yes ä | head -c 3000000 | tr -d '\\n' >&2; exit 5").await.last_line;
        assert!((LINE_MAX - 3..=LINE_MAX).contains(&long.len()), "{} bytes", long.len());
    }

    /// The lines of a command that fails do not count.
    #[tokio::test]
    async fn lines_of_a_command() {
        let printed = lines(&shell("echo n1 drained; echo n2"), LONG).await.unwrap();
        assert_eq!(printed, ["n1 drained", "n2"]);
        let error = lines(&shell("echo n1; echo down >&2; exit 1"), LONG).await.unwrap_err();
        assert_eq!(error.to_string(), "it exited with code 1: down");
    }
}
