//! The agent's end of the socket to its keeper.

use std::{
    collections::HashMap,
    io::{self, IoSlice},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::{net::UnixStream as StdUnixStream, process::CommandExt},
    },
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        socket::{ControlMessage, MsgFlags, sendmsg},
    },
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
    task::spawn_blocking,
    time::timeout,
};

use super::capture::Drain;
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
        let (read, write) = UnixStream::from_std(ours)?.into_split();
        let (orders, queue) = mpsc::channel(limits::TASK_QUEUE);
        tokio::spawn(write_orders(write, queue));
        tokio::spawn(read_reports(read, drains, reports));
        Ok(Self { orders, pid })
    }

    /// Whether `pid` is one of the workers, or was started by one.
    pub(super) fn holds(&self, pid: Pid) -> bool {
        pid != self.pid && tree::descendants().contains(&pid)
    }

    /// Kills it. It is reaped only when its end has been told, so its number is its own until then.
    pub(super) fn kill(&self) {
        let _ = kill(self.pid, Signal::SIGKILL);
    }

    /// Orders something; a keeper that is gone says so by itself.
    pub(super) async fn order(&self, order: Order, fds: Vec<OwnedFd>) {
        let _ = self.orders.send((order, fds)).await;
    }
}

async fn write_orders(
    mut socket: OwnedWriteHalf,
    mut orders: mpsc::Receiver<(Order, Vec<OwnedFd>)>,
) {
    while let Some((order, fds)) = orders.recv().await {
        let mut line = serde_json::to_vec(&order).expect("an order has no map with odd keys");
        line.push(b'\n');
        if write_line(&mut socket, &line, &fds).await.is_err() {
            return;
        }
    }
}

/// Writes `line`; the descriptors travel with its first byte.
async fn write_line(socket: &mut OwnedWriteHalf, line: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut sent = 0;
    if !raw.is_empty() {
        let stream: &UnixStream = socket.as_ref();
        sent = stream
            .async_io(Interest::WRITABLE, || {
                let rights = [ControlMessage::ScmRights(&raw)];
                let parts = [IoSlice::new(line)];
                let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
                Ok(sendmsg::<()>(stream.as_raw_fd(), &parts, &rights, flags, None)?)
            })
            .await?;
    }
    socket.write_all(&line[sent..]).await
}

async fn read_reports(socket: OwnedReadHalf, drains: Drains, reports: mpsc::Sender<FromKeeper>) {
    let mut socket = BufReader::new(socket);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = limits::MAX_KEEPER_FRAME as u64;
        let read = (&mut socket).take(limit).read_until(b'\n', &mut line).await;
        let report = match read {
            Ok(len) if len > 0 => serde_json::from_slice::<Report>(&line).ok(),
            Ok(_) | Err(_) => None,
        };
        let Some(report) = report else { break };
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
