//! A connection from another voter: reads its requests, and sends the answers of the machine. A connection from any other
//! process can only bring the voters of a job that this process does not know.

use std::net::TcpStream as StdTcpStream;

use ragent_election::election::message::{Request, VoterMessage};
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
    driver::Event,
    frames::{Format, codec},
    limits,
};
use crate::{
    net::{
        port::VoterConnection,
        secure_stream::{self, AcceptError, SecureStream},
    },
    secret::{ALPN_VOTER, Credentials},
};

/// Reads the byte by which the port has recognised the protocol, and authenticates the connection if there is a secret.
/// Returns `None` if it is closed; a process that does not authenticate itself is recorded as refused.
async fn open(connection: VoterConnection, credentials: &Credentials) -> Option<SecureStream> {
    let VoterConnection { stream, peer, refusals, .. } = connection;
    let opened = timeout(limits::INFORM_TIMEOUT, authenticate(stream, credentials)).await;
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

/// The reason for which a connection is not served.
enum NotOpened {
    /// The other process has closed it.
    Closed,
    /// The other process has not authenticated itself, for this reason.
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
    format: Format,
    credentials: Credentials,
    events: mpsc::Sender<Event>,
) {
    let peer = connection.peer;
    let Some(stream) = open(connection, &credentials).await else { return };
    if events.send(Event::Opened(task::id())).await.is_err() {
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
                // The event fails only if this voter has ended.
                let _ = events.send(Event::Mismatch(peer.ip, error.to_string())).await;
                return;
            }
        };
        let (answer, answered) = oneshot::channel();
        if events.send(Event::Request(request, answer)).await.is_err() {
            return;
        }
        if let Ok(answer) = answered.await
            && (write.write_all(&answer).await.is_err() || write.flush().await.is_err())
        {
            return;
        }
    }
}

/// Receives the voters of the job from a process that is not known as a voter: this process asks those voters itself, and
/// believes nothing else that the message contains.
pub(super) async fn receive_voters(
    connection: VoterConnection,
    format: Format,
    credentials: Credentials,
    events: mpsc::Sender<Event>,
) {
    let receive = async {
        let stream = open(connection, &credentials).await?;
        let frame = FramedRead::new(stream, codec()).next().await?.ok()?;
        match format.decode(&frame).ok()? {
            FromVoter::Request(VoterMessage { body: Request::Inform { voters }, .. }) => {
                Some(voters)
            }
            FromVoter::Request(_) | FromVoter::Answer(_) => None,
        }
    };
    if let Ok(Some(voters)) = timeout(limits::INFORM_TIMEOUT, receive).await {
        // The event fails only if this voter has ended.
        let _ = events.send(Event::Voters(voters)).await;
    }
}
