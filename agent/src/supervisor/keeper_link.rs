//! The agent's end of the socket to its keeper.

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
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot, watch},
    task::spawn_blocking,
    time::timeout,
};

use super::{capture::Drain, unix};
use crate::{
    keeper::{
        order::{Order, Report},
        tree,
    },
    limits,
};

/// What comes from the keeper.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FromKeeper {
    /// What it says.
    Report(Report),
    /// It is gone, and everything below it has been killed and reaped.
    Lost,
}

/// Captures that are to be drained before the end of their worker is told, by local rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Drains(Arc<Mutex<HashMap<u32, Vec<Drain>>>>);

impl Drains {
    pub(super) fn add(&self, local_rank: u32, drains: Vec<Drain>) {
        self.lock().insert(local_rank, drains);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Vec<Drain>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until what the worker wrote has been read, so that its last lines are at hand.
    async fn drain(&self, local_rank: u32) {
        let drains = self.lock().remove(&local_rank).unwrap_or_default();
        for drain in drains {
            let (done, drained) = oneshot::channel();
            if drain.send(done).is_ok() {
                // A console that blocks must not keep an end from being told.
                let _ = timeout(DRAIN_TIMEOUT, drained).await;
            }
        }
    }
}

const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// A running keeper. Dropping it closes the socket, on which the keeper ends.
#[derive(Debug)]
pub(super) struct KeeperLink {
    orders: mpsc::Sender<(Order, Vec<OwnedFd>)>,
    /// The newest renewal of the lease. Older ones need not be sent, so a keeper that stands still never
    /// makes the agent wait.
    lease: watch::Sender<Option<Order>>,
    pid: Pid,
}

impl KeeperLink {
    /// Starts a keeper; what it says goes to `reports`.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal of a socket or a process.
    pub(super) fn start(drains: Drains, reports: mpsc::Sender<FromKeeper>) -> io::Result<Self> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        // The file that runs, also where its path has a newer one by now.
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
        tokio::spawn(read_reports(readable, drains, reports));
        Ok(Self { orders, lease, pid })
    }

    /// Whether `pid` is one of the workers, or was started by one.
    pub(super) fn holds(&self, pid: Pid) -> bool {
        pid != self.pid && tree::descendants().contains(&pid)
    }

    /// Its process.
    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// Kills it. It is reaped only when its end has been told, so its number is its own until then.
    pub(super) fn kill(&self) {
        let _ = kill(self.pid, Signal::SIGKILL);
    }

    /// Renews the lease; replaces a renewal that has not been written yet.
    pub(super) fn renew(&self, order: Order) {
        self.lease.send_replace(Some(order));
    }

    /// Orders something; a keeper that is gone says so by itself.
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
        let (order, fds) = tokio::select! {
            // The lease first: a keeper starts nothing without one.
            biased;
            Ok(()) = renewals.changed() => match renewals.borrow_and_update().clone() {
                Some(order) => (order, Vec::new()),
                None => continue,
            },
            order = orders.recv() => match order {
                Some(order) => order,
                None => break,
            },
        };
        let mut line = serde_json::to_vec(&order).expect("an order has no map with odd keys");
        line.push(b'\n');
        if write_line(&socket, &line, &fds).await.is_err() {
            return;
        }
    }
    // The other task reads on until the keeper has told all ends; one that is gone has said so.
    let _ = socket.shutdown(Shutdown::Write);
}

/// Writes `line`; the descriptors travel with its first byte.
async fn write_line(socket: &StdUnixStream, line: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut sent = 0;
    while sent < line.len() {
        let rights = [ControlMessage::ScmRights(&raw)];
        let rights = if sent == 0 && !raw.is_empty() { &rights[..] } else { &[] };
        let parts = [IoSlice::new(&line[sent..])];
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

/// Waits until the keeper has read. Only here is that watched for: an agent that was told of it each
/// time would wake up once more for every lease that it renews.
async fn writable(socket: &StdUnixStream) -> io::Result<()> {
    let watched = unix::watch(socket.try_clone()?, Interest::WRITABLE)?;
    watched.writable().await.map(drop)
}

/// Appends what has arrived to `input`; nothing at the end.
async fn read_more(socket: &AsyncFd<StdUnixStream>, input: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = [0; 4096];
    let read = socket.async_io(Interest::READABLE, |mut socket| socket.read(&mut chunk)).await?;
    input.extend_from_slice(&chunk[..read]);
    Ok(read)
}

/// Takes the next report off the front of `input`, reading on where it is not there whole; none at
/// the end, or where the keeper says what no keeper says.
async fn next_report(socket: &AsyncFd<StdUnixStream>, input: &mut Vec<u8>) -> Option<Report> {
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
) {
    let mut input = Vec::new();
    while let Some(report) = next_report(&socket, &mut input).await {
        if let Report::Ended { local_rank, .. } = report {
            drains.drain(local_rank).await;
        }
        if reports.send(FromKeeper::Report(report)).await.is_err() {
            break;
        }
    }
    // The agent is the subreaper above the keeper: whatever outlived it is the agent's child now.
    let swept = spawn_blocking(tree::sweep_blocking).await;
    debug_assert!(swept.is_ok(), "a sweep does not panic");
    // Nobody listens any more once the agent itself ends.
    let _ = reports.send(FromKeeper::Lost).await;
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    /// A keeper that stands still makes nobody wait: renewals replace each other, and it reads the newest
    /// when it goes on.
    #[tokio::test]
    async fn renewals_do_not_queue_up() {
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (orders, queue) = mpsc::channel(1);
        let (lease, renewals) = watch::channel(None);
        let link = KeeperLink { orders, lease, pid: Pid::from_raw(0) };
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
