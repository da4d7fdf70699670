//! Serves a connection from another voter, or from a process that shows its job: reads requests, and sends the machine's answers.

use ragent_base::{
    net::{
        port::PassedConnection,
        secure_stream::{self, AcceptError, SecureStream},
    },
    secret::{ALPN_VOTER, Credentials},
};
use ragent_proto::convert::voter::FromVoter;
use tokio::{
    io::{self, AsyncWriteExt},
    sync::{mpsc, oneshot},
    task,
    time::timeout,
};
use tokio_stream::StreamExt;
use tokio_util::codec::FramedRead;
use tracing::debug;

use super::{
    event::{Sender, VoterEvent},
    frames::{Format, VoterFrameError, codec},
    limits,
};

/// Reads the byte that identifies the protocol, and authenticates the connection if there is a secret. Returns `None` if the connection is
/// closed. A process that fails to authenticate itself is recorded as refused.
async fn open(connection: PassedConnection, credentials: &Credentials) -> Option<SecureStream> {
    let PassedConnection { stream, peer, refusals, .. } = connection;
    let opened = secure_stream::accept_after_byte(stream, credentials, ALPN_VOTER);
    match timeout(limits::OPEN_TIMEOUT, opened).await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(AcceptError::Incomplete)) => {
            debug!(peer = %peer.ip, "connection of a voter closed before it was authenticated");
        }
        Ok(Err(error)) => refusals.handle_refused(peer.ip, &error.to_string()),
        Err(_) => {
            debug!(peer = %peer.ip, "connection of a voter closed: it was not authenticated in time");
        }
    }
    None
}

/// Serves a connection until it ends.
pub(super) async fn serve(
    connection: PassedConnection,
    sender: Sender,
    format: Format,
    credentials: Credentials,
    events: mpsc::Sender<VoterEvent>,
) {
    let peer = connection.peer;
    let Some(stream) = open(connection, &credentials).await else { return };
    if events.send(VoterEvent::Opened(task::id())).await.is_err() {
        return;
    }
    let (read, mut write) = io::split(stream);
    let mut frames = FramedRead::new(read, codec());
    while let Some(Ok(frame)) = frames.next().await {
        let request = match format.decode(&frame) {
            Ok(FromVoter::Request(request)) => Box::new(request),
            Ok(FromVoter::Answer(_)) => {
                return debug!(peer = %peer.ip, "connection of a voter closed: it sends an answer");
            }
            Err(error) => {
                if let VoterFrameError::OtherVersion(_, Some(job)) = &error {
                    let _ = events.send(VoterEvent::Shown(job.clone())).await;
                }
                // This fails only if this voter has ended.
                let _ = events
                    .send(VoterEvent::Mismatch(peer.ip, error.to_string(), error.hint()))
                    .await;
                return;
            }
        };
        let (answer, answered) = oneshot::channel();
        if events.send(VoterEvent::Request(task::id(), sender, request, answer)).await.is_err() {
            return;
        }
        if let Ok(answer) = answered.await
            && (write.write_all(&answer).await.is_err() || write.flush().await.is_err())
        {
            return;
        }
    }
}
