//! Serves a connection from another voter, or from a process that shows its job: reads requests, and sends the machine's answers.

use std::net::TcpStream as StdTcpStream;

use ragent_base::{
    net::{
        port::VoterConnection,
        secure_stream::{self, AcceptError, SecureStream},
    },
    secret::{ALPN_VOTER, Credentials},
};
use ragent_proto::convert::voter::FromVoter;
use tokio::{
    io::{self, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
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
async fn open(connection: VoterConnection, credentials: &Credentials) -> Option<SecureStream> {
    let VoterConnection { stream, peer, refusals, .. } = connection;
    let opened = timeout(limits::OPEN_TIMEOUT, authenticate(stream, credentials)).await;
    match opened {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(NotOpened::Closed)) => {
            debug!(peer = %peer.ip, "connection of a voter closed before it was authenticated");
            None
        }
        Ok(Err(NotOpened::Refused(why))) => {
            refusals.handle_refused(peer.ip, &why);
            None
        }
        Err(_) => {
            debug!(peer = %peer.ip, "connection of a voter closed: it was not authenticated in time");
            None
        }
    }
}

/// The reason why a connection is not served.
enum NotOpened {
    /// The other process has closed it.
    Closed,
    /// The other process has not authenticated itself.
    Refused(String),
}

async fn authenticate(
    stream: StdTcpStream,
    credentials: &Credentials,
) -> Result<SecureStream, NotOpened> {
    let opened = async {
        let mut stream = TcpStream::from_std(stream)?;
        stream.set_nodelay(true)?;
        stream.read_u8().await?;
        io::Result::Ok(stream)
    };
    let stream = opened.await.map_err(|_| NotOpened::Closed)?;
    if !credentials.is_secured() {
        return Ok(SecureStream::Plain(stream));
    }
    match secure_stream::accept(stream, credentials).await {
        Ok(accepted) if accepted.get_ref().1.alpn_protocol() == Some(ALPN_VOTER) => {
            Ok(accepted.into())
        }
        Ok(_) => Err(NotOpened::Refused("it does not use the protocol of voters".to_owned())),
        Err(AcceptError::Incomplete) => Err(NotOpened::Closed),
        Err(error) => Err(NotOpened::Refused(error.to_string())),
    }
}

/// Serves a connection until it ends.
pub(super) async fn serve(
    connection: VoterConnection,
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
