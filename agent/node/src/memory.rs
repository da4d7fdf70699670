//! Keeps checkpoints of workers in memory, and sends them to other agents.
//!
//! The machine [`NodeMemory`](ragent_core::memory) decides. [`MemoryService`] carries out its effects, and reports what happens:
//!
//! - `worker_sockets` has the requests of workers, as `worker_messages` describes them.
//! - `buffers` has the content, in files that exist only in memory.
//! - `transport` sends content to other agents. Without a secret or certificates, there is none.
//! - `threads` has the threads of all work that takes long.

mod buffers;
mod event;
mod limits;
mod threads;
mod transport;
mod worker_messages;
mod worker_sockets;

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use nix::unistd::Pid;
use ragent_base::{net::port::PassedConnection, secret::Credentials, sys::clock};
use ragent_core::memory::{Answer, Buffer, Effect, Input, TransferEnd, TransferId};
use ragent_rendezvous::ids::{JobUid, LocalRank, RoundId};
use ragent_workers::socket_folder::SocketFolder;
use tokio::sync::{mpsc, watch};
use tracing::warn;

#[cfg(any(test, feature = "testing"))]
pub use self::transport::fuzzing;
use self::{
    buffers::{Buffers, file_of, read_only},
    event::{AnswerSender, Event, Reply, ReplySender, TransferAnswer, memory_left},
    threads::{Stop, Threads, is_stopped, near},
    transport::Transport,
    worker_sockets::WorkerSockets,
};

/// The settings of a [`MemoryService`].
#[derive(Debug)]
pub struct MemoryServiceSettings {
    /// The credentials of the job.
    pub credentials: Credentials,
    /// The folder in which the sockets of workers are, in a folder of their own.
    pub socket_dir: PathBuf,
    /// The connections of other agents; `None` if content must not cross the network.
    pub connections: Option<mpsc::Receiver<PassedConnection>>,
}

/// The input and output of checkpoints in memory.
#[derive(Debug)]
pub struct MemoryService {
    credentials: Credentials,
    socket_dir: PathBuf,
    connections: Option<mpsc::Receiver<PassedConnection>>,
    job: watch::Sender<Option<JobUid>>,
    buffers: Buffers,
    /// Started by the first work.
    working: Option<(Threads, Arc<Transport>)>,
    folder: Option<SocketFolder>,
    sockets: Option<WorkerSockets>,
    /// The workers that wait for an answer to a request that the machine has.
    asked: HashMap<LocalRank, (ReplySender, Option<Pid>)>,
    /// The transfers that wait for a decision of the machine.
    undecided: HashMap<TransferId, AnswerSender>,
    /// The ranges that were fetched, until a worker gets them.
    fetched: HashMap<TransferId, Arc<File>>,
    /// The transfers that this agent has begun. They end when their sender is dropped.
    begun: HashMap<TransferId, watch::Sender<()>>,
    events: mpsc::Sender<Event>,
    received: mpsc::Receiver<Event>,
    /// Effects that could not be begun. Each has at most one input.
    failed: VecDeque<Input>,
    /// The next time at which the memory is read, while it is watched.
    watch_at: Option<Instant>,
}

impl MemoryService {
    /// Creates the service.
    pub fn new(settings: MemoryServiceSettings) -> Self {
        let MemoryServiceSettings { credentials, socket_dir, connections } = settings;
        let (events, received) = mpsc::channel(limits::EVENTS);
        Self {
            credentials,
            socket_dir,
            connections,
            job: watch::Sender::new(None),
            buffers: Buffers::default(),
            working: None,
            folder: None,
            sockets: None,
            asked: HashMap::new(),
            undecided: HashMap::new(),
            fetched: HashMap::new(),
            begun: HashMap::new(),
            events,
            received,
            failed: VecDeque::new(),
            watch_at: None,
        }
    }

    /// Sets the job. Agents of other jobs are refused. Connections wait for this.
    pub fn set_job(&self, job: JobUid) {
        self.job.send_replace(Some(job));
    }

    /// Returns true if other agents reach this one.
    pub fn is_reached(&self) -> bool {
        self.connections.is_some()
    }

    /// Returns the folder with the sockets of the workers, while they are open.
    pub fn socket_folder(&self) -> Option<&Path> {
        let folder = self.folder.as_ref().filter(|_| self.sockets.is_some())?;
        Some(folder.path())
    }

    /// Carries out an effect of the machine. Nothing blocks, except that sockets are opened at once.
    pub fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::OpenSockets { round, workers } => self.open_sockets(round, workers.get()),
            Effect::CloseSockets => self.close_sockets(),
            Effect::Answer { worker, answer } => self.answer(worker, answer),
            Effect::Sum { buffer, bytes } => {
                let Some((threads, _)) = self.working() else {
                    let sum = Err(NO_THREADS.to_owned());
                    return self.failed.push_back(Input::Summed { buffer, sum });
                };
                let (handle, stop) = (threads.handle.clone(), threads.stop.clone());
                let (file, events) = (self.buffers.get(buffer), self.events.clone());
                handle.spawn_blocking(move || {
                    let sum = file.sum(bytes, || is_stopped(&stop));
                    // This fails only if the agent ends.
                    let _ = events.blocking_send(Event::Summed { buffer, sum });
                });
            }
            Effect::Copy { transfer, to, header, buffer } => {
                let file = self.buffers.get(buffer);
                self.begin(transfer, |transport, stop| async move {
                    transport.copy((transfer, stop), to, header, file).await;
                });
            }
            Effect::Fetch { transfer, from, part, local_rank } => {
                self.begin(transfer, |transport, stop| async move {
                    transport.fetch((transfer, stop), from, part, local_rank).await;
                });
            }
            Effect::Receive { transfer, buffer } => {
                let file = self.buffers.get(buffer);
                self.decide(transfer, TransferAnswer::Receive(buffer, file));
            }
            Effect::Serve { transfer, header, buffer } => {
                let file = self.buffers.get(buffer);
                self.decide(transfer, TransferAnswer::Serve(header, file));
            }
            Effect::FetchRanges { transfer, sources, part, ranges } => {
                self.begin(transfer, |transport, stop| async move {
                    transport.fetch_ranges((transfer, stop), sources, part, ranges).await;
                });
            }
            Effect::ServeRange { transfer, range, buffer } => {
                let file = self.buffers.get(buffer);
                self.decide(transfer, TransferAnswer::ServeRange(range, file));
            }
            Effect::Decline { transfer, why } => {
                self.decide(transfer, TransferAnswer::Decline(why));
            }
            Effect::Abort(transfer) => drop(self.begun.remove(&transfer)),
            Effect::Drop(buffer) => self.drop_buffer(buffer),
            // The agent passes this to its standbys.
            Effect::LeaveToStandbys(_) => {}
            Effect::WatchMemory(false) => self.watch_at = None,
            Effect::WatchMemory(true) => {
                self.watch_at.get_or_insert_with(|| clock::now() + limits::WATCH_INTERVAL);
            }
        }
    }

    /// Waits for the next input of the machine.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call has taken nothing.
    pub async fn next(&mut self) -> Input {
        loop {
            if let Some(input) = self.failed.pop_front() {
                return input;
            }
            let input = tokio::select! {
                Some(event) = self.received.recv() => self.handle(event),
                () = clock::until(self.watch_at) => {
                    self.watch_at = Some(clock::now() + limits::WATCH_INTERVAL);
                    Some(Input::Left(memory_left()))
                }
                Some(connection) = next_of(&mut self.connections) => {
                    self.serve(connection);
                    None
                }
            };
            if let Some(input) = input {
                return input;
            }
        }
    }

    fn handle(&mut self, event: Event) -> Option<Input> {
        match event {
            // A process of an earlier round is not answered.
            Event::Asked { round, .. } | Event::WorkerGone { round, .. }
                if self.sockets.as_ref().is_none_or(|sockets| sockets.round != round) =>
            {
                None
            }
            Event::Asked { round, worker, process, ask, left, reply } => {
                // From now on, an answer of the machine is one to this request.
                self.asked.insert(worker, (reply, process));
                Some(Input::Asked { round, worker, ask, left })
            }
            Event::WorkerGone { round, worker } => {
                self.asked.remove(&worker);
                Some(Input::WorkerGone { round, worker })
            }
            Event::Summed { buffer, sum } => Some(Input::Summed { buffer, sum }),
            Event::Made(buffer) => Some(Input::Made(buffer)),
            Event::NotMade { buffer, why, reply } => {
                self.drop_buffer(buffer);
                if let Some(reply) = reply {
                    let packet = worker_messages::packet(&Answer::Refused(why.clone()));
                    // The worker may have ended.
                    let _ = reply.send(Reply { packet, descriptor: None });
                }
                Some(Input::NotMade { buffer, why })
            }
            Event::Incoming { transfer, header, left, answer } => {
                self.undecided.insert(transfer, answer);
                Some(Input::Incoming { transfer, header, left })
            }
            Event::Wanted { transfer, part, local_rank, answer } => {
                self.undecided.insert(transfer, answer);
                Some(Input::Wanted { transfer, part, local_rank })
            }
            Event::WantedRange { transfer, part, range, answer } => {
                self.undecided.insert(transfer, answer);
                Some(Input::WantedRange { transfer, part, range })
            }
            Event::Fetched { transfer, file } => {
                // It is not kept if the machine has ended the transfer.
                if self.begun.remove(&transfer).is_some() {
                    self.fetched.insert(transfer, file);
                }
                Some(Input::Ended { transfer, end: TransferEnd::Done })
            }
            Event::Ended { transfer, end } => {
                self.undecided.remove(&transfer);
                self.begun.remove(&transfer);
                Some(Input::Ended { transfer, end })
            }
        }
    }

    /// Returns the threads, and starts them if this is the first work.
    fn working(&mut self) -> Option<&(Threads, Arc<Transport>)> {
        if self.working.is_none() {
            let threads = Threads::start()
                .inspect_err(
                    |error| warn!(%error, "failed to start threads for checkpoints in memory"),
                )
                .ok()?;
            let job = self.job.subscribe();
            let end = (threads.stop.clone(), threads.busy.clone());
            let transport = Transport::new(self.credentials.clone(), job, self.events.clone(), end);
            self.working = Some((threads, Arc::new(transport)));
        }
        self.working.as_ref()
    }

    fn open_sockets(&mut self, round: RoundId, workers: u32) {
        self.close_sockets();
        let opened = self.try_to_open_sockets(round, workers);
        if let Err(error) = opened {
            warn_of_sockets(&error);
            self.failed.push_back(Input::NotOpened { round, why: error.to_string() });
        }
    }

    fn try_to_open_sockets(&mut self, round: RoundId, workers: u32) -> io::Result<()> {
        let folder = match self.folder.take() {
            Some(folder) => folder,
            None => SocketFolder::make(&self.socket_dir)?,
        };
        let folder = self.folder.insert(folder);
        self.sockets = Some(WorkerSockets::open(folder.path(), round, workers, &self.events)?);
        Ok(())
    }

    fn close_sockets(&mut self) {
        self.sockets = None;
        self.asked.clear();
    }

    fn answer(&mut self, worker: LocalRank, answer: Answer) {
        let fetched = match &answer {
            Answer::Ranges { transfer, .. } => self.fetched.remove(transfer),
            Answer::Buffer { .. }
            | Answer::Block { .. }
            | Answer::Refused(_)
            | Answer::Taken
            | Answer::Nothing
            | Answer::Resharded { .. }
            | Answer::Newest(_)
            | Answer::Noted => None,
        };
        // The worker may have ended.
        let Some((reply, process)) = self.asked.remove(&worker) else { return };
        let packet = worker_messages::packet(&answer);
        let (buffer, is_written) = match answer {
            Answer::Buffer { buffer, .. } => (buffer, true),
            Answer::Block { buffer, .. } => (buffer, false),
            Answer::Ranges { .. } => {
                let file = fetched.ok_or_else(|| "it was not fetched".to_owned());
                return give(reply, packet, file.and_then(|file| read_only(&file)));
            }
            Answer::Resharded { parts, .. } if !parts.is_empty() => {
                return give(reply, packet, file_of(&worker_messages::list_of(&parts)));
            }
            Answer::Resharded { .. }
            | Answer::Refused(_)
            | Answer::Taken
            | Answer::Nothing
            | Answer::Newest(_)
            | Answer::Noted => {
                let _ = reply.send(Reply { packet, descriptor: None });
                return;
            }
        };
        let Some((threads, _)) = self.working() else {
            let event = Event::NotMade { buffer, why: NO_THREADS.to_owned(), reply: Some(reply) };
            let input = self.handle(event);
            return self.failed.extend(input);
        };
        let handle = threads.handle.clone();
        let (file, events) = (self.buffers.get(buffer), self.events.clone());
        handle.spawn_blocking(move || {
            let descriptor = if is_written {
                let file = near(process, || file.with_pages());
                file.and_then(|file| file.try_clone().map_err(|e| e.to_string()))
            } else {
                file.read_only()
            };
            match descriptor {
                Ok(descriptor) => {
                    if is_written {
                        let _ = events.blocking_send(Event::Made(buffer));
                    }
                    let _ = reply.send(Reply { packet, descriptor: Some(descriptor) });
                }
                Err(why) if is_written => {
                    // This fails only if the agent ends.
                    let _ =
                        events.blocking_send(Event::NotMade { buffer, why, reply: Some(reply) });
                }
                Err(why) => give(reply, packet, Err(why)),
            }
        });
    }

    fn decide(&mut self, transfer: TransferId, answer: TransferAnswer) {
        if let Some(undecided) = self.undecided.remove(&transfer) {
            // The transfer may have ended.
            let _ = undecided.send(answer);
        }
    }

    /// Begins a transfer.
    fn begin<F>(&mut self, transfer: TransferId, begin: impl FnOnce(Arc<Transport>, Stop) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (abort, stop) = watch::channel(());
        let Some((threads, transport)) = self.working() else {
            let end = TransferEnd::Failed(NO_THREADS.to_owned());
            return self.failed.push_back(Input::Ended { transfer, end });
        };
        threads.handle.spawn(begin(Arc::clone(transport), stop));
        self.begun.insert(transfer, abort);
    }

    fn drop_buffer(&mut self, buffer: Buffer) {
        let Some(file) = self.buffers.remove(buffer) else { return };
        // The kernel needs a tenth of a second to free a GiB.
        match &self.working {
            Some((threads, _)) => drop(threads.handle.spawn_blocking(move || file.give_back())),
            None => file.give_back(),
        }
    }

    fn serve(&mut self, connection: PassedConnection) {
        if let Some((threads, transport)) = self.working() {
            let transport = Arc::clone(transport);
            threads.handle.spawn(async move { transport.serve(connection).await });
        }
    }
}

/// Answers a worker with a descriptor. Without one the connection is closed, and the worker fails.
fn give(reply: ReplySender, packet: Vec<u8>, descriptor: Result<File, String>) {
    match descriptor {
        // The worker may have ended.
        Ok(file) => drop(reply.send(Reply { packet, descriptor: Some(file) })),
        Err(why) => warn!(%why, "failed to open a checkpoint in memory for a worker"),
    }
}

const NO_THREADS: &str = "the system starts no further threads";

fn warn_of_sockets(error: &io::Error) {
    warn!(%error, "failed to open the sockets for checkpoints in memory; workers start without them");
}

async fn next_of(
    connections: &mut Option<mpsc::Receiver<PassedConnection>>,
) -> Option<PassedConnection> {
    connections.as_mut()?.recv().await
}

#[cfg(test)]
mod tests;
