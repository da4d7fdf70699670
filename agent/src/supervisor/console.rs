//! Writes what workers wrote: to the agent's own stdout and stderr, and to log files beside them.
//!
//! A thread each does it, because a console, and a file on a network, may block for as long as they
//! like. Where one does, its queue fills and workers wait, as they would for the thing itself;
//! nothing else waits for it.

use std::{
    fs::File,
    io::{self, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::{flow::Flow, pipes::Pipe};
use crate::{job_spec::Stream, limits};

/// Queues of what is to be written; clones feed the same ones.
#[derive(Clone, Debug)]
pub struct Console {
    streams: mpsc::Sender<ToWrite<Stream>>,
    files: mpsc::Sender<ToWrite<Arc<File>>>,
    /// Lines on their way to stdout and to stderr.
    staged: [Arc<Pipe>; 2],
}

/// What a thread is to write.
#[derive(Debug)]
enum ToWrite<T> {
    Bytes(T, Bytes),
    /// What there is of a stream, which is given back.
    Flow(Box<Flow>, oneshot::Sender<Box<Flow>>),
}

/// Tells when everything has been written.
#[derive(Debug)]
pub struct ConsoleEnd([oneshot::Receiver<()>; 2]);

impl Console {
    /// Starts the threads that write.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal to start a thread.
    pub fn start() -> io::Result<(Self, ConsoleEnd)> {
        // A console that is gone (EPIPE) is no reason to stop reading from workers.
        let (streams, streams_end) = writer("console", |next| match next {
            ToWrite::Bytes(Stream::Stdout, chunk) => {
                let _ = write_flushed(io::stdout().lock(), &chunk);
            }
            ToWrite::Bytes(Stream::Stderr, chunk) => {
                let _ = write_flushed(io::stderr().lock(), &chunk);
            }
            ToWrite::Flow(mut flow, back) => {
                let _ = flow.copy_to_console();
                // A task that is gone was ended with its runtime.
                let _ = back.send(flow);
            }
        })?;
        let mut is_well = true;
        let (files, files_end) = writer("log-files", move |next: ToWrite<Arc<File>>| {
            let written = match next {
                ToWrite::Bytes(file, chunk) => file.as_ref().write_all(&chunk),
                ToWrite::Flow(mut flow, back) => {
                    let written = flow.copy_to_file();
                    let _ = back.send(flow);
                    written
                }
            };
            if let Err(error) = &written
                && is_well
            {
                warn!(%error, "log files of workers take no more; the workers go on");
            }
            is_well = written.is_ok();
        })?;
        let pipe = || Pipe::new(limits::STAGED_LINES).map(Arc::new);
        let staged = [pipe()?, pipe()?];
        Ok((Self { streams, files, staged }, ConsoleEnd([streams_end, files_end])))
    }

    /// Queues `chunk` for the console; waits where that is slow.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call has queued nothing.
    pub(crate) async fn write(&self, stream: Stream, chunk: Bytes) {
        // The thread lives as long as there is a sender.
        let _ = self.streams.send(ToWrite::Bytes(stream, chunk)).await;
    }

    /// Queues `chunk` for the console; false if that is blocked.
    pub(crate) fn try_write(&self, stream: Stream, chunk: Bytes) -> bool {
        self.streams.try_send(ToWrite::Bytes(stream, chunk)).is_ok()
    }

    /// Queues `chunk` for a file; false if files are blocked.
    pub(crate) fn try_write_file(&self, file: &Arc<File>, chunk: Bytes) -> bool {
        self.files.try_send(ToWrite::Bytes(Arc::clone(file), chunk)).is_ok()
    }

    /// Queues `chunk` for a file; waits where that is slow.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call has queued nothing.
    pub(super) async fn write_file(&self, file: &Arc<File>, chunk: Bytes) {
        let _ = self.files.send(ToWrite::Bytes(Arc::clone(file), chunk)).await;
    }

    /// Lines on their way to `stream`.
    pub(super) fn staged(&self, stream: Stream) -> Arc<Pipe> {
        let [stdout, stderr] = &self.staged;
        Arc::clone(match stream {
            Stream::Stdout => stdout,
            Stream::Stderr => stderr,
        })
    }

    /// Copies what there is of a stream to its destinations; waits where they are slow. None if the
    /// threads are gone.
    pub(super) async fn copy(&self, mut flow: Box<Flow>) -> Option<Box<Flow>> {
        if flow.has_file() {
            let (back, given_back) = oneshot::channel();
            self.files.send(ToWrite::Flow(flow, back)).await.ok()?;
            flow = given_back.await.ok()?;
        }
        if flow.has_console() {
            let (back, given_back) = oneshot::channel();
            self.streams.send(ToWrite::Flow(flow, back)).await.ok()?;
            flow = given_back.await.ok()?;
        }
        if let Some((file, chosen)) = flow.chosen() {
            self.write_file(&file, chosen.into()).await;
        }
        Some(flow)
    }
}

impl ConsoleEnd {
    /// Waits until everything has been written, at most for `limit`. All [`Console`]s must be gone.
    pub async fn wait(self, limit: Duration) {
        let both = async {
            for end in self.0 {
                let _ = end.await;
            }
        };
        // What does not take it in time has lost it.
        let _ = tokio::time::timeout(limit, both).await;
    }
}

/// A thread that writes what is queued for it, and says when it has.
fn writer<T: Send + 'static>(
    name: &str,
    mut write: impl FnMut(T) + Send + 'static,
) -> io::Result<(mpsc::Sender<T>, oneshot::Receiver<()>)> {
    let (sender, mut queue) = mpsc::channel(limits::CONSOLE_QUEUE);
    let (done, end) = oneshot::channel();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        while let Some(next) = queue.blocking_recv() {
            write(next);
        }
        // Nobody may be waiting.
        let _ = done.send(());
    })?;
    Ok((sender, end))
}

fn write_flushed(mut out: impl Write, chunk: &[u8]) -> io::Result<()> {
    out.write_all(chunk)?;
    out.flush()
}
