//! A connection from another voter: reads its requests, and sends the answers of the machine. A connection from any other
//! process can only bring the voters of a job that this process does not know.

use ragent_proto::convert::voter::FromVoter;
use ragent_rendezvous::election::message::{Request, VoterMessage};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{mpsc, oneshot},
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
use crate::net::port::VoterConnection;

/// Serves a connection until it ends.
pub(super) async fn serve(
    connection: VoterConnection,
    format: Format,
    events: mpsc::Sender<Event>,
) {
    let VoterConnection { stream, peer, .. } = connection;
    let Ok(mut stream) = TcpStream::from_std(stream) else { return };
    // The byte by which the port has recognised the protocol.
    if stream.set_nodelay(true).is_err() || stream.read_u8().await.is_err() {
        return;
    }
    let (read, mut write) = stream.into_split();
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
            && write.write_all(&answer).await.is_err()
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
    events: mpsc::Sender<Event>,
) {
    let Ok(mut stream) = TcpStream::from_std(connection.stream) else { return };
    let receive = async {
        stream.read_u8().await.ok()?;
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
