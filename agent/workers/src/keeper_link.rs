//! Connects the agent to its keeper: starts it, sends orders, and receives reports.

use std::{
    collections::HashMap,
    io::{self, IoSlice, Read},
    net::Shutdown,
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::{net::UnixStream as StdUnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        socket::{ControlMessage, MsgFlags, sendmsg},
    },
    unistd::Pid,
};
use ragent_base::{
    output::capture::Drain,
    sys::{tree, unix},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot, watch},
    task::spawn_blocking,
    time::timeout,
};

use crate::{
    keeper::order::{KeeperReport, Order},
    limits,
};

/// An event from the keeper.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FromKeeper {
    /// A report of the keeper.
    Report(KeeperReport),
    /// The keeper is gone. Everything below it has been killed and reaped.
    Lost,
}

/// Captures that are drained before the end of their worker is reported, by local rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Drains(Arc<Mutex<HashMap<u32, Vec<Drain>>>>);

impl Drains {
    pub(super) fn add(&self, local_rank: u32, drains: Vec<Drain>) {
        self.lock().insert(local_rank, drains);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Vec<Drain>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the worker's output has been read, so that its last lines are available.
    async fn drain(&self, local_rank: u32) {
        let drains = self.lock().remove(&local_rank).unwrap_or_default();
        for drain in drains {
            let (done, drained) = oneshot::channel();
            if drain.send(done).is_ok() {
                // A blocked console must not delay the report of an end.
                let _ = timeout(DRAIN_TIMEOUT, drained).await;
            }
        }
    }
}

const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// A running keeper. Dropping it closes the socket, and then the keeper ends.
#[derive(Debug)]
pub(super) struct KeeperLink {
    orders: mpsc::Sender<(Order, Vec<OwnedFd>)>,
    /// The newest renewal of the lease. Older ones need not be sent, so the agent never waits for a paused keeper.
    lease: watch::Sender<Option<Order>>,
    pid: Pid,
    is_reaped: IsReaped,
}

/// True once the keeper may have been reaped. After that, another process may have its process id.
/// The lock is held to send a signal, and to decide to reap.
type IsReaped = Arc<Mutex<bool>>;

impl KeeperLink {
    /// Starts a keeper. Its reports go to `reports`.
    ///
    /// # Errors
    ///
    /// Returns the system's error for a socket or a process.
    pub(super) fn start(drains: Drains, reports: mpsc::Sender<FromKeeper>) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        // The running executable, even if a newer one is at its path now.
        let keeper = Command::new("/proc/self/exe")
            .arg0("ragent")
            .arg("__keeper")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        let pid = Pid::from_raw(keeper.id().cast_signed());
        let readable = unix::watch(ours.try_clone()?, Interest::READABLE)?;
        let (orders, queue) = mpsc::channel(limits::TASK_QUEUE);
        let (lease, renewals) = watch::channel(None);
        tokio::spawn(write_orders(ours, queue, renewals));
        let is_reaped = IsReaped::default();
        tokio::spawn(read_reports(readable, drains, reports, Arc::clone(&is_reaped)));
        Ok(Self { orders, lease, pid, is_reaped })
    }

    /// Returns true if `pid` is a worker or a descendant of one.
    pub(super) fn holds(&self, pid: Pid) -> bool {
        pid != self.pid && tree::descendants().contains(&pid)
    }

    /// Returns the process id of the keeper.
    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Returns true if the keeper has ended, so that all processes of this agent are killed.
    pub(super) fn is_reaped(&self) -> bool {
        *self.is_reaped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the keeper, unless it has ended.
    pub(super) fn kill(&self) {
        let is_reaped = self.is_reaped.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_reaped {
            let _ = kill(self.pid, Signal::SIGKILL);
        }
    }

    /// Renews the lease. Replaces a renewal that was not written yet.
    pub(super) fn renew(&self, order: Order) {
        self.lease.send_replace(Some(order));
    }

    /// Sends an order. If the keeper is gone, [`FromKeeper::Lost`] reports it.
    pub(super) async fn order(&self, order: Order, fds: Vec<OwnedFd>) {
        let _ = self.orders.send((order, fds)).await;
    }
}

async fn write_orders(
    socket: StdUnixStream,
    mut orders: mpsc::Receiver<(Order, Vec<OwnedFd>)>,
    mut renewals: watch::Receiver<Option<Order>>,
) {
    loop {
        let (renewal, order) = tokio::select! {
            // The lease comes first, because a keeper starts nothing without one.
            biased;
            Ok(()) = renewals.changed() => {
                // An order that follows is sent together with it, so that the keeper wakes up once.
                (renewals.borrow_and_update().clone(), orders.try_recv().ok())
            }
            order = orders.recv() => match order {
                Some(order) => (None, Some(order)),
                None => break,
            },
        };
        let (order, fds) = order.map_or((None, Vec::new()), |(order, fds)| (Some(order), fds));
        let mut lines = Vec::new();
        for order in renewal.into_iter().chain(order) {
            lines.extend(serde_json::to_vec(&order).expect("an order has no map with odd keys"));
            lines.push(b'\n');
        }
        if write_lines(&socket, &lines, &fds).await.is_err() {
            return;
        }
    }
    // The other task continues to read until the keeper has reported all ends, or is gone.
    let _ = socket.shutdown(Shutdown::Write);
}

/// Writes `lines`. The descriptors are sent with the first byte.
async fn write_lines(socket: &StdUnixStream, lines: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut sent = 0;
    while sent < lines.len() {
        let rights = [ControlMessage::ScmRights(&raw)];
        let rights = if sent == 0 && !raw.is_empty() { &rights[..] } else { &[] };
        let parts = [IoSlice::new(&lines[sent..])];
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        match sendmsg::<()>(socket.as_raw_fd(), &parts, rights, flags, None) {
            Ok(len) => sent += len,
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => writable(socket).await?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Waits until the socket is writable. Only this function watches that: otherwise the agent would
/// wake up twice for every renewal of the lease.
async fn writable(socket: &StdUnixStream) -> io::Result<()> {
    let watched = unix::watch(socket.try_clone()?, Interest::WRITABLE)?;
    watched.writable().await.map(drop)
}

/// Appends received bytes to `input`. Returns their number; zero at the end.
async fn read_more(socket: &AsyncFd<StdUnixStream>, input: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = [0; 4096];
    let read = socket.async_io(Interest::READABLE, |mut socket| socket.read(&mut chunk)).await?;
    input.extend_from_slice(&chunk[..read]);
    Ok(read)
}

/// Removes the next report from the front of `input`, and reads the rest of it if necessary.
/// Returns `None` at the end, or if the input is malformed.
async fn next_report(socket: &AsyncFd<StdUnixStream>, input: &mut Vec<u8>) -> Option<KeeperReport> {
    let mut searched = 0;
    loop {
        if let Some(end) = input[searched..].iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = input.drain(..=searched + end).collect();
            return serde_json::from_slice(&line).ok();
        }
        searched = input.len();
        if searched > limits::MAX_KEEPER_FRAME {
            return None;
        }
        read_more(socket, input).await.ok().filter(|read| *read > 0)?;
    }
}

async fn read_reports(
    socket: AsyncFd<StdUnixStream>,
    drains: Drains,
    reports: mpsc::Sender<FromKeeper>,
    is_reaped: IsReaped,
) {
    let mut input = Vec::new();
    while let Some(report) = next_report(&socket, &mut input).await {
        if let KeeperReport::Ended { local_rank, .. } = report {
            drains.drain(local_rank).await;
        }
        if reports.send(FromKeeper::Report(report)).await.is_err() {
            break;
        }
    }
    // The agent is the subreaper above the keeper, so processes that outlived the keeper are now its children.
    *is_reaped.lock().unwrap_or_else(PoisonError::into_inner) = true;
    let cleaned_up = spawn_blocking(tree::clean_up_blocking).await;
    debug_assert!(cleaned_up.is_ok(), "a cleanup does not panic");
    // If the agent itself is ending, there is no receiver.
    let _ = reports.send(FromKeeper::Lost).await;
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        os::unix::process::ExitStatusExt,
        thread,
    };

    use nix::unistd::gettid;
    use ragent_base::sys::proc;

    use super::*;

    /// A link to the process `pid`, without a socket.
    fn link_to(pid: Pid, is_reaped: &IsReaped) -> KeeperLink {
        let ((orders, _), (lease, _)) = (mpsc::channel(1), watch::channel(None));
        KeeperLink { orders, lease, pid, is_reaped: Arc::clone(is_reaped) }
    }

    /// A keeper is killed, but not once it may be reaped: another process may have its process id then.
    #[test]
    fn reaped_keeper_is_not_killed() {
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let is_reaped = IsReaped::default();
        let mut reaping = is_reaped.lock().unwrap();
        let (link, (started, starts)) = (link_to(pid, &is_reaped), std::sync::mpsc::channel());
        let killing = thread::spawn(move || {
            started.send(gettid()).unwrap();
            link.kill();
        });
        let status = format!("self/task/{}/stat", starts.recv().unwrap());
        // Until the thread waits for the lock, or has ended without it.
        while !killing.is_finished()
            && !proc::read(&status).is_some_and(|text| text.contains(") S "))
        {
            thread::yield_now();
        }
        assert!(!killing.is_finished(), "the lock was not waited for");
        *reaping = true;
        drop(reaping);
        killing.join().unwrap();
        // A killed process would copy nothing.
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        *is_reaped.lock().unwrap() = false;
        link_to(pid, &is_reaped).kill();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
    }

    /// A paused keeper does not make senders wait. Renewals replace each other, and it reads the
    /// newest one when it continues.
    #[tokio::test]
    async fn renewals_do_not_queue_up() {
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (orders, queue) = mpsc::channel(1);
        let (lease, renewals) = watch::channel(None);
        let is_reaped = IsReaped::default();
        let link = KeeperLink { orders, lease, pid: Pid::from_raw(0), is_reaped };
        let writing = tokio::spawn(write_orders(ours, queue, renewals));
        let last = 20_000;
        for until_ns in 0..=last {
            link.renew(Order::Renew { until_ns: Some(until_ns) });
            tokio::task::yield_now().await;
        }
        let reading = spawn_blocking(move || {
            BufReader::new(theirs).lines().map(Result::unwrap).collect::<Vec<_>>()
        });
        link.order(Order::Ping, Vec::new()).await;
        drop(link);
        writing.await.unwrap();
        let lines = reading.await.unwrap();
        let newest = serde_json::to_string(&Order::Renew { until_ns: Some(last) }).unwrap();
        assert!(lines.contains(&newest), "{:?}", lines.last());
        assert!(lines.len() < 5_000, "{} lines", lines.len());
    }
}
