//! Writes what workers wrote to the agent's own stdout and stderr.
//!
//! One thread does it, because a console may block for as long as it likes. Where it does, the
//! queue fills and workers wait, as they would for the console itself; nothing else waits for it.

use std::{
    io::{self, Write},
    thread,
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::{job_spec::Stream, limits};

/// A queue of chunks for the console; clones feed the same one.
#[derive(Clone, Debug)]
pub struct Console(mpsc::Sender<(Stream, Bytes)>);

/// Tells when everything has been written.
#[derive(Debug)]
pub struct ConsoleEnd(oneshot::Receiver<()>);

impl Console {
    /// Starts the thread that writes.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal to start a thread.
    pub fn start() -> io::Result<(Self, ConsoleEnd)> {
        let (sender, chunks) = mpsc::channel(limits::CONSOLE_QUEUE);
        let (done, end) = oneshot::channel();
        thread::Builder::new().name("console".to_owned()).spawn(move || {
            write_all(chunks);
            // Nobody may be waiting.
            let _ = done.send(());
        })?;
        Ok((Self(sender), ConsoleEnd(end)))
    }

    /// Queues `chunk`; waits where the console is slow.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call has queued nothing.
    pub(super) async fn write(&self, stream: Stream, chunk: Bytes) {
        // The thread lives as long as there is a sender.
        let _ = self.0.send((stream, chunk)).await;
    }
}

impl ConsoleEnd {
    /// Waits until everything has been written, at most for `limit`. All [`Console`]s must be gone.
    pub async fn wait(self, limit: Duration) {
        // A console that does not take it in time has lost it.
        let _ = tokio::time::timeout(limit, self.0).await;
    }
}

fn write_all(mut chunks: mpsc::Receiver<(Stream, Bytes)>) {
    while let Some((stream, chunk)) = chunks.blocking_recv() {
        // A console that is gone (EPIPE) is no reason to stop reading from workers.
        let _ = match stream {
            Stream::Stdout => write_flushed(io::stdout().lock(), &chunk),
            Stream::Stderr => write_flushed(io::stderr().lock(), &chunk),
        };
    }
}

fn write_flushed(mut out: impl Write, chunk: &[u8]) -> io::Result<()> {
    out.write_all(chunk)?;
    out.flush()
}
