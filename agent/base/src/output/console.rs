//! Writes the output of workers to the agent's own stdout and stderr, and to log files.
//!
//! The console and the files have a thread each, because a console, or a file on a network, may
//! block for any time. Then its queue fills and workers wait, as they would if they wrote there
//! directly; nothing else waits for it.

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

use super::{flow::Flow, streams::Stream};
use crate::output::limits;

/// The queues of the writing threads; clones share them.
#[derive(Clone, Debug)]
pub struct Console {
    streams: mpsc::Sender<ToWrite<Stream>>,
    files: mpsc::Sender<ToWrite<Arc<File>>>,
}

/// An item for a writing thread.
#[derive(Debug)]
enum ToWrite<T> {
    Bytes(T, Bytes),
    /// A flow whose available output is to be copied, and the channel that returns the flow.
    Flow(Box<Flow>, oneshot::Sender<Box<Flow>>),
}

/// A handle that waits for the end of the writing threads.
#[derive(Debug)]
pub struct ConsoleEnd([oneshot::Receiver<()>; 2]);

impl Console {
    /// Starts the writing threads.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal to start a thread.
    pub fn start() -> io::Result<(Self, ConsoleEnd)> {
        // Output of workers is read even if the console is gone (EPIPE).
        let (streams, streams_end) = writer("console", move |next| match next {
            ToWrite::Bytes(Stream::Stdout, chunk) => {
                let _ = write_flushed(io::stdout().lock(), &chunk);
            }
            ToWrite::Bytes(Stream::Stderr, chunk) => {
                let _ = write_flushed(io::stderr().lock(), &chunk);
            }
            ToWrite::Flow(mut flow, back) => {
                // A log line between two parts of a chunk would break a worker's line in two.
                let held = flow.shows_lines_on_stderr().then(|| io::stderr().lock());
                let _ = flow.copy_to_console();
                drop(held);
                // The receiving task may have ended with its runtime.
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
                warn!(%error, "failed to write log files of workers; the workers continue");
            }
            is_well = written.is_ok();
        })?;
        Ok((Self { streams, files }, ConsoleEnd([streams_end, files_end])))
    }

    /// Queues `chunk` for the console; waits if the console is slow.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call has queued nothing.
    pub async fn write(&self, stream: Stream, chunk: Bytes) {
        // The thread lives as long as there is a sender.
        let _ = self.streams.send(ToWrite::Bytes(stream, chunk)).await;
    }

    /// Queues `chunk` for the console; returns false if the queue is full.
    pub fn try_write(&self, stream: Stream, chunk: Bytes) -> bool {
        self.streams.try_send(ToWrite::Bytes(stream, chunk)).is_ok()
    }

    /// Queues `chunk` for a file; waits if files are slow.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call has queued nothing.
    pub(super) async fn write_file(&self, file: &Arc<File>, chunk: Bytes) {
        let _ = self.files.send(ToWrite::Bytes(Arc::clone(file), chunk)).await;
    }

    /// Copies the available output of a flow to its destinations; waits if they are slow. Returns
    /// `None` if the threads are gone.
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
    /// Waits until everything has been written, for at most `limit`. All [`Console`]s must have
    /// been dropped.
    pub async fn wait(self, limit: Duration) {
        let both = async {
            for end in self.0 {
                let _ = end.await;
            }
        };
        // Output that has not been written in time is lost.
        let _ = tokio::time::timeout(limit, both).await;
    }
}

/// Starts a thread that writes the items of its queue, and reports when it has ended.
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
        // The receiver may be gone.
        let _ = done.send(());
    })?;
    Ok((sender, end))
}

fn write_flushed(mut out: impl Write, chunk: &[u8]) -> io::Result<()> {
    out.write_all(chunk)?;
    out.flush()
}
