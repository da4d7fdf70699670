//! Keeps a connection to another voter open, and sends this voter's requests on it.
//!
//! A lost connection is opened again. The pause between attempts doubles, with jitter. It ends early if the other voter connects to this
//! one.

use std::{
    io::Error as IoError,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ragent_base::{
    net::{
        self, Endpoint, authentication,
        port::VOTER_PROTOCOL,
        secure_stream::{OpenedEnd, OpenedStream, SecureStream},
    },
    secret::{ALPN_VOTER, Credentials},
    sys::clock,
};
use ragent_proto::convert::voter::FromVoter;
use ragent_rendezvous::{ids::VoterAddress, jitter::Pauses};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{self, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::{Notify, mpsc},
    time::timeout,
};
use tokio_stream::StreamExt;
use tokio_util::codec::FramedRead;

use super::{
    event::VoterEvent,
    frames::{Format, codec},
    limits,
};

/// The connection to one voter.
pub(super) struct Outgoing {
    pub address: VoterAddress,
    pub endpoint: Endpoint,
    /// The source address of the connection; `None`: the system selects one.
    pub source: Option<IpAddr>,
    pub credentials: Credentials,
    pub format: Format,
    pub requests: mpsc::Receiver<OutgoingRequest>,
    pub events: mpsc::Sender<VoterEvent>,
    /// The last addresses that the endpoint resolved to.
    pub addresses: Vec<SocketAddr>,
    /// Ends the pause before the next attempt to connect.
    pub redial: Arc<Notify>,
    /// The pauses between attempts to connect.
    pub pauses: Pauses,
}

/// A request as a frame.
#[derive(Clone, Debug)]
pub(super) struct OutgoingRequest {
    pub bytes: Bytes,
    /// False for a request that has no answer.
    pub is_answered: bool,
}

/// The reason why a connection has ended.
enum ConnectionEnd {
    /// The voter of this process has ended.
    Closed,
    /// The connection is lost, for this reason. True if the other voter had answered.
    Lost(String, bool),
}

impl Outgoing {
    /// Keeps a connection open until the voter ends.
    pub(super) async fn run(mut self) {
        loop {
            let (cause, has_answered) = match self.connect().await {
                Ok((stream, opened)) => match self.serve(stream, &opened).await {
                    ConnectionEnd::Closed => return,
                    ConnectionEnd::Lost(cause, has_answered) => (cause, has_answered),
                },
                Err(cause) => (cause, false),
            };
            if self.events.send(VoterEvent::Lost(self.address.clone(), cause)).await.is_err() {
                return;
            }
            if has_answered {
                self.pauses.reset();
                continue;
            }
            let pause = self.pauses.after_failure();
            tokio::select! {
                () = clock::until(Some(clock::now() + pause)) => {}
                () = self.redial.notified() => {}
            }
        }
    }

    async fn connect(&mut self) -> Result<(SecureStream, OpenedEnd), String> {
        let resolving = net::resolve(&self.endpoint);
        let resolved = if self.addresses.is_empty() {
            resolving.await.map_err(|error| error.to_string())
        } else {
            timeout(limits::RESOLVE_PATIENCE, resolving)
                .await
                .unwrap_or_else(|_| Ok(self.addresses.clone()))
                .or_else(|_| Ok(self.addresses.clone()))
        };
        self.addresses = resolved?;
        let ips = self.addresses.iter().map(SocketAddr::ip).collect();
        // This fails only if the driver has ended, which is noticed later.
        let _ = self.events.send(VoterEvent::Resolved(self.address.clone(), ips)).await;
        let mut cause = String::new();
        for address in self.addresses.clone() {
            match timeout(limits::CONNECT_TIMEOUT, dial(address, self.source)).await {
                Ok(Ok(stream)) => {
                    let opening = open(stream, address, &self.credentials);
                    match timeout(limits::CONNECT_TIMEOUT, opening).await {
                        Ok(Ok(stream)) => {
                            let opened = stream.end(address);
                            return Ok((stream, opened));
                        }
                        Ok(Err(error)) => cause = error,
                        Err(_) => cause = SILENT.to_owned(),
                    }
                }
                Ok(Err(error)) => cause = error.to_string(),
                Err(_) => cause = "no answer".to_owned(),
            }
        }
        Err(cause)
    }

    async fn serve(&mut self, stream: SecureStream, opened: &OpenedEnd) -> ConnectionEnd {
        // Requests for an earlier connection are outdated. The machine repeats what is needed.
        while self.requests.try_recv().is_ok() {}
        let credentials = self.credentials.clone();
        let lost = |error: IoError, has_answered| {
            let mismatch = opened.mismatch(&credentials).map(|mismatch| mismatch.to_string());
            ConnectionEnd::Lost(mismatch.unwrap_or_else(|| error.to_string()), has_answered)
        };
        if self.events.send(VoterEvent::Connected(self.address.clone())).await.is_err() {
            return ConnectionEnd::Closed;
        }
        let (read, mut write) = io::split(stream);
        let mut frames = FramedRead::new(read, codec());
        let mut unanswered: Option<Instant> = None;
        let mut has_answered = false;
        loop {
            let silent_at = unanswered.map(|since| since + limits::SILENCE);
            tokio::select! {
                biased;
                answer = frames.next() => {
                    let answer = match answer {
                        Some(Ok(frame)) => self.format.decode(&frame),
                        Some(Err(error)) => return lost(error, has_answered),
                        None => return ConnectionEnd::Lost("it closes the connection".into(), has_answered),
                    };
                    unanswered = None;
                    has_answered = true;
                    let answer = match answer {
                        Ok(FromVoter::Answer(answer)) => answer,
                        Ok(FromVoter::Request(_)) => {
                            return ConnectionEnd::Lost("it sends no answers".to_owned(), false);
                        }
                        Err(error) => return ConnectionEnd::Lost(error.to_string(), false),
                    };
                    let answer = VoterEvent::Answer(self.address.clone(), Box::new(answer));
                    if self.events.send(answer).await.is_err() {
                        return ConnectionEnd::Closed;
                    }
                }
                request = self.requests.recv() => {
                    let Some(OutgoingRequest { bytes, is_answered }) = request else {
                        return ConnectionEnd::Closed;
                    };
                    let sent = async {
                        write.write_all(&bytes).await?;
                        // TLS has a buffer of its own.
                        write.flush().await
                    };
                    match timeout(limits::SILENCE, sent).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => return lost(error, has_answered),
                        Err(_) => return ConnectionEnd::Lost(SILENT.to_owned(), has_answered),
                    }
                    if is_answered {
                        unanswered.get_or_insert_with(clock::now);
                    }
                }
                () = clock::until(silent_at) => {
                    return ConnectionEnd::Lost(SILENT.to_owned(), has_answered);
                }
            }
        }
    }
}

const SILENT: &str = "it accepts connections but does not answer";

/// Sends the byte that identifies the protocol, and authenticates the connection if there is a secret.
async fn open(
    mut stream: TcpStream,
    address: SocketAddr,
    credentials: &Credentials,
) -> Result<SecureStream, String> {
    let client = authentication::choose(address, credentials).await;
    let sent = stream.write_all(&[VOTER_PROTOCOL]).await;
    sent.map_err(|error| error.to_string())?;
    match client {
        Some(client) => {
            let opened = OpenedStream { stream, address, client, limit: limits::CONNECT_TIMEOUT };
            opened.secure(credentials, ALPN_VOTER).await.map_err(|error| error.to_string())
        }
        None => Ok(SecureStream::Plain(stream)),
    }
}

async fn dial(address: SocketAddr, source: Option<IpAddr>) -> std::io::Result<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if let Some(source) = source.filter(|source| source.is_ipv4() == address.is_ipv4()) {
        socket.bind((source, 0).into())?;
    }
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    let (idle, interval, probes): (Duration, Duration, u32) = limits::KEEPALIVE;
    let keepalive =
        TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(probes);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}
