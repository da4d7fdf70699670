//! Serves the workers of one round: a `SOCK_SEQPACKET` socket for each, which keeps the borders of messages.
//!
//! A worker has one connection at a time; a newer one replaces it. It sends a request, and waits for the answer. A worker
//! that breaks this protocol loses its connection.

use std::{
    fs,
    future::pending,
    io::{self, IoSlice, IoSliceMut},
    os::{fd::AsRawFd, unix::net::UnixListener as StdUnixListener},
    path::{Path, PathBuf},
    pin::Pin,
};

use nix::{
    sys::socket::{
        AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind,
        listen, recvmsg, sendmsg, socket,
    },
    unistd::{Pid, geteuid},
};
use ragent_base::sys::clock;
use ragent_core::memory::Ask;
use ragent_rendezvous::ids::{LocalRank, RoundId};
use ragent_workers::socket_folder::memory_socket;
use tokio::{
    io::Interest,
    net::{UnixListener, UnixStream},
    sync::{mpsc, oneshot},
    task::AbortHandle,
};
use tracing::{debug, warn};

use super::{
    event::{Event, Reply, memory_left},
    limits, worker_messages,
};

/// The sockets of the workers of one round. Dropping this closes and removes them.
#[derive(Debug)]
pub(super) struct WorkerSockets {
    pub(super) round: RoundId,
    paths: Vec<PathBuf>,
    tasks: Vec<AbortHandle>,
}

impl WorkerSockets {
    /// Opens a socket for each worker in a folder, in place of those of earlier rounds.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub(super) fn open(
        folder: &Path,
        round: RoundId,
        workers: u32,
        events: &mpsc::Sender<Event>,
    ) -> io::Result<Self> {
        let mut opened = Self { round, paths: Vec::new(), tasks: Vec::new() };
        for worker in (0..workers).map(LocalRank) {
            let path = memory_socket(folder, worker);
            let listener = listen_at(&path)?;
            opened.paths.push(path);
            let socket = WorkerSocket { round, worker, events: events.clone() };
            let task = tokio::spawn(socket.serve(UnixListener::from_std(listener)?));
            opened.tasks.push(task.abort_handle());
        }
        Ok(opened)
    }
}

impl Drop for WorkerSockets {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        for path in &self.paths {
            // A socket that stays does no harm: no process listens.
            let _ = fs::remove_file(path);
        }
    }
}

fn listen_at(path: &Path) -> io::Result<StdUnixListener> {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::new(limits::WORKER_BACKLOG)?)?;
    Ok(socket.into())
}

/// The reason why the connection of a worker is closed.
#[derive(Debug)]
enum WorkerEnd {
    /// The worker has closed it, or the agent has ended.
    Closed,
    /// The worker has broken the protocol.
    Broken(&'static str),
}

impl From<io::Error> for WorkerEnd {
    fn from(_: io::Error) -> Self {
        // The worker has ended.
        Self::Closed
    }
}

type Serving<'a> = Pin<Box<dyn Future<Output = WorkerEnd> + Send + 'a>>;

struct WorkerSocket {
    round: RoundId,
    worker: LocalRank,
    events: mpsc::Sender<Event>,
}

impl WorkerSocket {
    async fn serve(self, listener: UnixListener) {
        let mut serving: Option<Serving<'_>> = None;
        let mut has_warned = false;
        loop {
            let end = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) if is_trusted(&stream) => {
                        let newer: Serving<'_> = Box::pin(self.converse(stream));
                        if serving.replace(newer).is_none() {
                            continue;
                        }
                        WorkerEnd::Closed
                    }
                    Ok(_) => {
                        debug!("a process of another user may not use the socket of a worker");
                        continue;
                    }
                    Err(error) => {
                        debug!(%error, "failed to accept a connection of a worker");
                        clock::until(Some(clock::now() + limits::ACCEPT_PAUSE)).await;
                        continue;
                    }
                },
                end = ended(&mut serving) => {
                    serving = None;
                    end
                }
            };
            if let WorkerEnd::Broken(why) = end
                && !std::mem::replace(&mut has_warned, true)
            {
                warn!(
                    local_rank = %self.worker,
                    "closed the connection of a worker for checkpoints in memory: {why}"
                );
            }
            let gone = Event::WorkerGone { round: self.round, worker: self.worker };
            if self.events.send(gone).await.is_err() {
                return;
            }
        }
    }

    /// Answers requests until the connection ends.
    async fn converse(&self, stream: UnixStream) -> WorkerEnd {
        loop {
            if let Err(end) = self.answer_one(&stream).await {
                return end;
            }
        }
    }

    async fn answer_one(&self, stream: &UnixStream) -> Result<(), WorkerEnd> {
        let ask = receive(stream).await?;
        let (reply, replied) = oneshot::channel();
        let (round, worker, left) = (self.round, self.worker, memory_left());
        let process = stream.peer_cred().ok().and_then(|peer| peer.pid()).filter(|pid| *pid > 0);
        let process = process.map(Pid::from_raw);
        let asked = Event::Asked { round, worker, process, ask, left, reply };
        self.events.send(asked).await.map_err(|_| WorkerEnd::Closed)?;
        tokio::select! {
            biased;
            reply = replied => send(stream, &reply.map_err(|_| WorkerEnd::Closed)?).await?,
            early = receive(stream) => {
                early?;
                return Err(WorkerEnd::Broken("it asks again before the answer"));
            }
        }
        Ok(())
    }
}

/// Waits for the end of a connection; for ever if there is none.
async fn ended(serving: &mut Option<Serving<'_>>) -> WorkerEnd {
    match serving {
        Some(serving) => serving.await,
        None => pending().await,
    }
}

/// Returns true if a process of this user or of root has connected.
fn is_trusted(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == geteuid().as_raw())
}

/// Receives one request. A cancelled call has taken nothing.
async fn receive(stream: &UnixStream) -> Result<Ask, WorkerEnd> {
    let mut packet = [0; limits::MAX_PACKET];
    let received = stream.async_io(Interest::READABLE, || {
        let mut slices = [IoSliceMut::new(&mut packet)];
        // There is no room for descriptors, so the kernel closes them.
        let message = recvmsg::<()>(stream.as_raw_fd(), &mut slices, None, MsgFlags::MSG_DONTWAIT)?;
        Ok((message.bytes, message.flags))
    });
    let (len, flags) = received.await?;
    if flags.contains(MsgFlags::MSG_TRUNC) {
        return Err(WorkerEnd::Broken("a request is too long"));
    }
    if flags.contains(MsgFlags::MSG_CTRUNC) {
        return Err(WorkerEnd::Broken("a request has a descriptor"));
    }
    if len == 0 {
        return Err(WorkerEnd::Closed);
    }
    let ask = packet.get(..len).and_then(worker_messages::parse);
    ask.ok_or(WorkerEnd::Broken("a request is malformed"))
}

async fn send(stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let descriptors: Vec<_> = reply.descriptor.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let rights = if descriptors.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let slices = [IoSlice::new(&reply.packet)];
    let sent = stream.async_io(Interest::WRITABLE, || {
        Ok(sendmsg::<()>(stream.as_raw_fd(), &slices, rights, flags, None)?)
    });
    // A packet is sent whole.
    sent.await.map(drop)
}

/// Connects to the socket of a worker, as the worker does.
#[cfg(test)]
pub(super) fn connect(path: &Path) -> io::Result<std::os::unix::net::UnixStream> {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    nix::sys::socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket.into())
}
