//! One ssh: starts a relay on a host, gives it orders, and passes on what it and those below it report.
//!
//! When it ends, for whatever reason, every host that it still led to is reported as gone.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::timeout,
};
use tracing::debug;

use super::{
    frame::{self, Message},
    greeting,
    lines::Lines,
    order::{AgentEnd, HostNumber, Order, Report},
    ssh::{self, Way},
    tree::Branch,
};
use crate::{clock, job_spec::Stream, limits, supervisor::unix};

/// What a connection is made of.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) branch: Branch,
    pub(super) way: Arc<Way>,
    /// Lets only so many be opened at once.
    pub(super) places: Arc<Semaphore>,
    /// Orders, as frames; the connection is closed when nobody gives any more.
    pub(super) orders: mpsc::Receiver<Bytes>,
    /// Where reports go.
    pub(super) reports: mpsc::Sender<Report>,
}

impl Connection {
    /// Opens it and serves it to its end.
    pub(super) async fn run(mut self) {
        let hosts = self.branch.below.iter().chain([&self.branch.head]);
        let mut open: BTreeSet<HostNumber> = hosts.map(|host| host.number).collect();
        let Some(why) = self.attempt(&mut open).await else { return };
        let head = self.branch.head.number;
        for host in open {
            let is_direct = host == head;
            let why = if is_direct {
                why.clone()
            } else {
                format!("the way through {} is lost: {why}", self.branch.head.target)
            };
            // Whoever listens no more has ended.
            let _ = self.reports.send(Report::Gone { host, why, is_direct }).await;
        }
    }

    /// Opens and serves it, again where it may have been refused by chance; says why it has ended, or
    /// nothing if it is not wanted any more.
    async fn attempt(&mut self, open: &mut BTreeSet<HostNumber>) -> Option<String> {
        let mut attempts = 1;
        loop {
            let words = LastWords::default();
            let place = self.place().await?;
            let why = self.serve(place, open, &words).await;
            if words.is_greeted() || !ssh::may_pass(&why) || attempts == limits::SSH_ATTEMPTS {
                return Some(why);
            }
            // Spread, so that those that were refused together do not come together again.
            let wait =
                limits::SSH_RETRY_INTERVAL.mul_f64(f64::from(attempts) + rand::random::<f64>());
            debug!(why, "a connection is refused, and tried again");
            clock::until(Some(clock::now() + wait)).await;
            attempts += 1;
        }
    }

    /// Waits until it may be opened; none if it is not wanted any more.
    async fn place(&mut self) -> Option<OwnedSemaphorePermit> {
        let place = Arc::clone(&self.places).acquire_owned();
        tokio::pin!(place);
        loop {
            tokio::select! {
                biased;
                // What is ordered before there is a connection is for nobody.
                order = self.orders.recv() => drop(order?),
                place = &mut place => return place.ok(),
            }
        }
    }

    /// Serves it; says why it has ended. What is left in `open` has not ended with it.
    async fn serve(
        &mut self,
        place: OwnedSemaphorePermit,
        open: &mut BTreeSet<HostNumber>,
        words: &LastWords,
    ) -> String {
        let command = self.way.command(&self.branch.head.target);
        let (process, stdin, stdout, stderr) = match SshProcess::start(&command) {
            Ok(started) => started,
            Err(error) => return format!("`{}` cannot be started: {error}", self.way.ssh[0]),
        };
        let reach = Order::Reach {
            me: self.branch.head.number,
            below: self.branch.below.clone(),
            way: Way::clone(&self.way),
        };
        let head = self.branch.head.number;
        let stderr = tokio::spawn(listen(stderr, head, words.clone(), self.reports.clone()));
        let listener =
            Listener { stdout, input: BytesMut::new(), words: words.clone(), head, open };
        let deadline = clock::now() + self.way.greeting_timeout();
        let writer = write(stdin, reach.encode(), &mut self.orders);
        let listen = listener.run(place, deadline, &self.reports);
        tokio::pin!(writer, listen);
        // The stream of orders may end first, and what is said afterwards is heard still.
        let heard = tokio::select! {
            heard = &mut listen => heard,
            () = &mut writer => listen.await,
        };
        hang_up(process, stderr, words, heard).await
    }
}

/// ssh, and what it has started to reach a host. Dropping it ends them.
struct SshProcess(Child);

impl SshProcess {
    fn start(command: &[OsString]) -> io::Result<(Self, ChildStdin, ChildStdout, ChildStderr)> {
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
}

impl Drop for SshProcess {
    fn drop(&mut self) {
        // Until it is reaped, the number of its group is its own. Its jump hosts are in it.
        if let Some(pid) = self.0.id() {
            let _ = killpg(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
    }
}

/// Gives orders, and signs of life between them, until there are no more or nobody takes them.
async fn write(mut stdin: ChildStdin, first: Bytes, orders: &mut mpsc::Receiver<Bytes>) {
    let mut next = first;
    loop {
        if stdin.write_all(&next).await.is_err() {
            // It has ended, which its other streams tell too.
            return;
        }
        next = match timeout(limits::ORDER_KEEP_ALIVE, orders.recv()).await {
            Ok(Some(order)) => order,
            Ok(None) => return,
            Err(_) => Order::KeepAlive.encode(),
        };
    }
}

/// Waits for the end of ssh and says why it came.
async fn hang_up(
    mut process: SshProcess,
    stderr: JoinHandle<()>,
    words: &LastWords,
    heard: Result<(), String>,
) -> String {
    if let Err(why) = heard {
        // What makes no sense any more is ended, not waited for.
        return why;
    }
    let status = timeout(limits::HANG_UP_TIMEOUT, process.0.wait()).await;
    // A master connection of ssh may hold the stream for longer.
    let _ = timeout(limits::LAST_WORDS_TIMEOUT, stderr).await;
    ssh::why(status.ok().and_then(Result::ok), &words.text())
}

/// What ssh and the shells of the host have said before ragent says a word, the end of it.
#[derive(Clone, Debug, Default)]
struct LastWords(Arc<Mutex<(Vec<u8>, bool)>>);

impl LastWords {
    fn lock(&self) -> std::sync::MutexGuard<'_, (Vec<u8>, bool)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on lines are for people.
    fn greeted(&self) {
        *self.lock() = (Vec::new(), true);
    }

    fn is_greeted(&self) -> bool {
        self.lock().1
    }

    /// Keeps a line; whether it is for people.
    fn push(&self, line: &[u8]) -> bool {
        let (text, is_greeted) = &mut *self.lock();
        if *is_greeted {
            // Of what comes later, the newest counts.
            text.clear();
        }
        text.extend_from_slice(line);
        let surplus = text.len().saturating_sub(limits::SSH_LAST_WORDS);
        text.drain(..surplus);
        *is_greeted
    }

    fn text(&self) -> String {
        let text = String::from_utf8_lossy(&self.lock().0).into_owned();
        text.replace(|c: char| c.is_control() && c != '\n', "")
    }
}

/// Reads what ssh says for itself.
async fn listen(
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

/// Hears what a relay reports.
struct Listener<'a> {
    stdout: ChildStdout,
    input: BytesMut,
    words: LastWords,
    head: HostNumber,
    open: &'a mut BTreeSet<HostNumber>,
}

impl Listener<'_> {
    /// Passes reports on until there are no more.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the other end.
    async fn run(
        mut self,
        place: OwnedSemaphorePermit,
        deadline: Instant,
        reports: &mpsc::Sender<Report>,
    ) -> Result<(), String> {
        let greeted = timeout_at(deadline, self.greeting()).await;
        match greeted {
            Some(Ok(true)) => self.words.greeted(),
            Some(Ok(false)) => return Ok(()),
            Some(Err(why)) => return Err(why),
            None => return Err(self.silent()),
        }
        drop(place);
        loop {
            while let Some(report) = self.next()? {
                if let Some(report) = self.checked(report) {
                    let _ = reports.send(report).await;
                }
            }
            if !self.read().await {
                return Ok(());
            }
        }
    }

    /// Waits for the greeting; false if the stream ends before it.
    async fn greeting(&mut self) -> Result<bool, String> {
        loop {
            if greeting::take(&mut self.input).map_err(|error| error.to_string())? {
                return Ok(true);
            }
            if !self.read().await {
                return Ok(false);
            }
        }
    }

    fn silent(&self) -> String {
        let words = self.words.text();
        let said = if words.is_empty() { String::new() } else { format!(": {}", words.trim()) };
        format!("it does not start ragent in time{said}")
    }

    async fn read(&mut self) -> bool {
        self.input.reserve(limits::CONSOLE_CHUNK);
        matches!(self.stdout.read_buf(&mut self.input).await, Ok(1..))
    }

    fn next(&mut self) -> Result<Option<Report>, String> {
        frame::take(&mut self.input).map_err(|error| format!("its ragent speaks nonsense: {error}"))
    }

    /// The report as it is passed on; none if it is about a host that this is not the way to.
    fn checked(&mut self, report: Report) -> Option<Report> {
        let (Report::Line { host, .. }
        | Report::Reached { host, .. }
        | Report::Gone { host, .. }
        | Report::Ended { host, .. }) = report;
        if !self.open.contains(&host) {
            return None;
        }
        match report {
            Report::Gone { host, why, .. } => {
                self.open.remove(&host);
                let why = printable(&why);
                Some(Report::Gone { host, why, is_direct: host == self.head })
            }
            Report::Ended { host, end } => {
                self.open.remove(&host);
                let end = match end {
                    AgentEnd::NotStarted(why) => AgentEnd::NotStarted(printable(&why)),
                    AgentEnd::Exited(_) | AgentEnd::Signaled(_) => end,
                };
                Some(Report::Ended { host, end })
            }
            Report::Line { .. } | Report::Reached { .. } => Some(report),
        }
    }
}

/// What another host says, as it can be shown: it must neither move the reader's cursor nor fill a page.
fn printable(text: &str) -> String {
    let text = text.chars().take(limits::SSH_LAST_WORDS);
    text.map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// What `future` gives, or nothing if it does not by `deadline`.
async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Option<F::Output> {
    tokio::time::timeout_at(deadline.into(), future).await.ok()
}
