//! Sends blocks to other agents and receives them, in the TLS of the job.
//!
//! `outgoing` opens a connection for each transfer that this agent begins. `incoming` serves the connections of other
//! agents. Who has begun a transfer does not matter once a block is offered: `block` moves its bytes in either direction.
//! `ranges` moves some bytes of a block.
//! `frames` has the messages.

mod block;
mod frames;
#[cfg(any(test, feature = "testing"))]
#[path = "../../../fuzz/src/memory.rs"]
pub mod fuzzing;
mod incoming;
mod outgoing;
mod places;
mod ranges;

use std::io;

use ragent_base::{net::secure_stream::SecureStream, secret::Credentials};
use ragent_core::memory::{TransferEnd, TransferId};
use ragent_rendezvous::ids::JobUid;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use self::{
    frames::{GREETING_LEN, Greeting},
    places::Places,
};
use super::{
    event::{AnswerSender, Event, TransferAnswer},
    limits,
    threads::{Busy, Stop},
};

/// The parts that all transfers share.
#[derive(Debug)]
pub(super) struct Transport {
    credentials: Credentials,
    /// The job, once it is known.
    job: watch::Receiver<Option<JobUid>>,
    events: mpsc::Sender<Event>,
    /// Ends when this agent ends.
    stop: Stop,
    busy: Busy,
    incoming: Places,
    outgoing: Places,
    /// The number of transfers that other agents have begun.
    foreign: std::sync::atomic::AtomicU64,
}

impl Transport {
    pub(super) fn new(
        credentials: Credentials,
        job: watch::Receiver<Option<JobUid>>,
        events: mpsc::Sender<Event>,
        (stop, busy): (Stop, Busy),
    ) -> Self {
        let per_address = limits::MAX_CONNECTIONS_PER_ADDRESS;
        Self {
            credentials,
            job,
            events,
            stop,
            busy,
            incoming: Places::new(limits::MAX_CONNECTIONS, per_address),
            outgoing: Places::new(limits::MAX_CONNECTIONS, per_address),
            foreign: std::sync::atomic::AtomicU64::new(0),
        }
    }

    /// Reports the end of a transfer.
    async fn ended(&self, transfer: TransferId, end: TransferEnd) {
        // This fails only if the agent ends.
        let _ = self.events.send(Event::Ended { transfer, end }).await;
    }

    /// Asks the machine about a transfer.
    async fn decide(
        &self,
        event: impl FnOnce(AnswerSender) -> Event,
    ) -> Result<TransferAnswer, String> {
        let (answer, answered) = oneshot::channel();
        let decided = async {
            self.events.send(event(answer)).await.ok()?;
            answered.await.ok()
        };
        let decided = timeout(limits::SILENCE, decided).await.ok().flatten();
        decided.ok_or_else(|| "this agent has not decided in time".to_owned())
    }

    /// Exchanges the greetings on a new connection. The own one is always sent, so that both ends know what differs.
    async fn greet(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    ) -> Result<(), String> {
        let mut job = self.job.clone();
        let known = job.wait_for(Option::is_some).await;
        let known = known.ok().and_then(|job| job.as_ref().map(Greeting::of));
        let own = known.ok_or_else(|| "the agent ends".to_owned())?;
        let mut theirs = [0; GREETING_LEN];
        let exchanged = async {
            stream.write_all(&own.encode()).await?;
            stream.flush().await?;
            stream.read_exact(&mut theirs).await?;
            io::Result::Ok(())
        };
        exchanged.await.map_err(lost)?;
        own.check(&theirs).map_err(|error| error.to_string())
    }
}

/// Describes a connection that was lost.
fn lost(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it has closed the connection".to_owned(),
        _ => format!("the connection is lost: {error}"),
    }
}

/// Waits for bytes to move.
async fn moved<T>(moving: impl Future<Output = io::Result<T>>) -> Result<T, String> {
    match timeout(limits::SILENCE, moving).await {
        Ok(moved) => moved.map_err(lost),
        Err(_) => Err(format!("no byte has moved for {} s", limits::SILENCE.as_secs())),
    }
}

/// A stream to another agent. Tests use streams within the process.
trait AgentStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl AgentStream for SecureStream {}

#[cfg(test)]
impl AgentStream for tokio::io::DuplexStream {}

#[cfg(test)]
mod tests;
