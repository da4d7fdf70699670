//! Connects an agent to the coordinator: one task opens one stream and serves it until it ends.
//!
//! Opening a stream dials all addresses of the endpoint at once and keeps the fastest connection. A slow resolver does not delay it: after
//! 250 ms the last known address is used.
//!
//! [`reading`] has the requests that only read.

pub mod reading;

use std::{io, net::SocketAddr, pin::pin, time::Duration};

use hyper_util::rt::TokioIo;
use ragent_base::{
    net::{
        self, Endpoint, ResolveError,
        authentication::{self, UserError},
        secure_stream::{self, DialError, OpenedEnd},
    },
    secret::{ALPN_HTTP2, Credentials, Mismatch},
};
use ragent_proto::{
    Proof,
    convert::{FromAgent, FromCoordinator},
    v1::{AgentMessage, coordination_client::CoordinationClient},
};
use ragent_rendezvous::{
    ids::{StreamNumber, Term},
    message::{FromNode, Registration},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{
    Code,
    transport::{Channel, Endpoint as GrpcEndpoint},
};

use crate::limits;

pub use self::reading::{
    Asked, JobPage, JournalRequest, NotFound, PageLines, StateStream, ask, ask_logs, state,
};
pub use self::reading::{EVENTS_PATH, STATUS_PATH, WATCH_PATH, elsewhere, find, job};

/// The reason why a stream failed to open, or ended.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The connection broke.
    #[error("the connection to {0} broke")]
    Broken(SocketAddr),
    /// No process listens at the address.
    #[error("cannot connect to {address}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The agent no longer wants the stream.
    #[error("the attempt was canceled")]
    GivenUp,
    /// The process at the address has another secret, or a certificate is not accepted.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// Another program answers at the address.
    #[error("{address} is served by a program other than ragent: {what}")]
    Other {
        /// The address.
        address: SocketAddr,
        /// A description of its answer.
        what: String,
    },
    /// The process at the address does not use our protocol.
    #[error("{address} does not answer with ragent's protocol")]
    Protocol {
        /// The address.
        address: SocketAddr,
        /// The error of gRPC.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The process at the address refuses this user.
    #[error("{address} refuses the connection: {why}")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// The reason, in the words of that process.
        why: String,
    },
    /// The name has no address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The process at the address cannot answer at present.
    #[error("{address} cannot answer at present: {why}")]
    Unable {
        /// The address.
        address: SocketAddr,
        /// The reason, in the words of that process.
        why: String,
    },
    /// The process at the address did not answer in time.
    #[error("{address} accepts connections but did not answer within {} s", waited.as_secs())]
    Silent {
        /// The address.
        address: SocketAddr,
        /// The time waited.
        waited: Duration,
    },
    /// The stream was closed by the other side.
    #[error("the stream was closed by the other side")]
    Closed,
    /// The process at the address has not authenticated itself by the secret or by a certificate.
    #[error("the process at {address} has not authenticated itself")]
    Unproven {
        /// The address.
        address: SocketAddr,
        /// The error of TLS.
        #[source]
        source: io::Error,
    },
}

/// An event on a stream.
#[derive(Debug)]
pub enum StreamEvent {
    /// The stream is connected and waits for its first message.
    Connected {
        /// The stream.
        stream: StreamNumber,
        /// The address of its own end.
        local: SocketAddr,
        /// The address of the other end.
        remote: SocketAddr,
        /// The channel for the first message, and for the queue of later messages.
        reply: oneshot::Sender<FirstWords>,
    },
    /// The other process has accepted the stream. Its answer may come later.
    Accepted(StreamNumber),
    /// A message was received.
    Message(StreamNumber, Box<FromCoordinator>),
    /// The stream has ended.
    Ended(StreamNumber, StreamError),
}

/// The first message of a stream, and the queue of later messages.
#[derive(Debug)]
pub struct FirstWords {
    /// The first message.
    pub registration: Registration,
    /// The proof of the node id, once it was issued.
    pub proof: Option<Proof>,
    /// The term of the leader that the agent has lost; zero if none.
    pub lost_term: Term,
    /// Further messages of the stream.
    pub queue: mpsc::Receiver<FromNode>,
}

/// Opens the stream with number `stream` and serves it until it ends. Its last event is [`StreamEvent::Ended`].
///
/// If the resolver is slow, `known` is used, the last known address of the coordinator.
pub async fn register(
    endpoint: Endpoint,
    known: Option<SocketAddr>,
    stream: StreamNumber,
    credentials: Credentials,
    events: mpsc::Sender<StreamEvent>,
) {
    let error = match open_stream((&endpoint, known), stream, &credentials, &events).await {
        Ok(()) => StreamError::Closed,
        Err(error) => error,
    };
    // The agent may have ended before its streams.
    let _ = events.send(StreamEvent::Ended(stream, error)).await;
}

async fn open_stream(
    (endpoint, known): (&Endpoint, Option<SocketAddr>),
    stream: StreamNumber,
    credentials: &Credentials,
    events: &mpsc::Sender<StreamEvent>,
) -> Result<(), StreamError> {
    let connection = reach(endpoint, known, credentials).await?;
    let CoordinatorConnection { mut client, local, remote, opened } = connection;
    let (reply, replied) = oneshot::channel();
    let connected = StreamEvent::Connected { stream, local, remote, reply };
    events.send(connected).await.map_err(|_| StreamError::GivenUp)?;
    let FirstWords { registration: first, proof, lost_term, queue } =
        replied.await.map_err(|_| StreamError::GivenUp)?;
    let first = FromAgent::Registration { registration: Box::new(first), proof, lost_term };
    let first = AgentMessage::from(first);
    let rest = ReceiverStream::new(queue).map(|m| AgentMessage::from(FromAgent::Message(m)));
    let response = match client.attend(tokio_stream::once(first).chain(rest)).await {
        Ok(response) => response,
        Err(status) => {
            if let Some(mismatch) = opened.mismatch(credentials) {
                return Err(mismatch.into());
            }
            return Err(match status.code() {
                // The text of these codes only repeats that the connection broke.
                Code::Cancelled | Code::Unavailable | Code::Unknown => StreamError::Broken(remote),
                Code::Unauthenticated => {
                    unauthenticated(remote, credentials, status.message()).await
                }
                _ => StreamError::Protocol { address: remote, source: status.message().into() },
            });
        }
    };
    // A connection has an owner only after a process has accepted it.
    authentication::check_user(local, remote, credentials).map_err(|error| match error {
        UserError::Other(mismatch) => mismatch.into(),
        UserError::Closed => StreamError::Broken(remote),
    })?;
    let accepted = StreamEvent::Accepted(stream);
    events.send(accepted).await.map_err(|_| StreamError::GivenUp)?;
    let mut messages = response.into_inner();
    while let Some(message) = messages.message().await.map_err(|_| StreamError::Broken(remote))? {
        let message = FromCoordinator::try_from(message)
            .map_err(|error| StreamError::Protocol { address: remote, source: Box::new(error) })?;
        let event = StreamEvent::Message(stream, Box::new(message));
        events.send(event).await.map_err(|_| StreamError::GivenUp)?;
    }
    Ok(())
}

struct CoordinatorConnection {
    client: CoordinationClient<Channel>,
    local: SocketAddr,
    remote: SocketAddr,
    opened: OpenedEnd,
}

/// Connects to the endpoint, and resolves its name each time.
///
/// If the resolver is slow or fails, the last known address of the coordinator is used.
async fn reach(
    endpoint: &Endpoint,
    known: Option<SocketAddr>,
    credentials: &Credentials,
) -> Result<CoordinatorConnection, StreamError> {
    let connect =
        |addresses: Vec<SocketAddr>| async move { connect(&addresses, credentials).await };
    let Some(known) = known else { return connect(net::resolve(endpoint).await?).await };
    let mut resolving = pin!(net::resolve(endpoint));
    match timeout(limits::RESOLVE_PATIENCE, &mut resolving).await {
        Ok(Ok(addresses)) => connect(addresses).await,
        Ok(Err(error)) => connect_to(known, credentials).await.map_err(|_| error.into()),
        Err(_) => match connect_to(known, credentials).await {
            Ok(connection) => Ok(connection),
            Err(_) => connect(resolving.await?).await,
        },
    }
}

/// Connects to the first of `addresses` that answers.
async fn connect(
    addresses: &[SocketAddr],
    credentials: &Credentials,
) -> Result<CoordinatorConnection, StreamError> {
    let open = |address| {
        let credentials = credentials.clone();
        async move { connect_to(address, &credentials).await }
    };
    to_first_of(addresses, open).await
}

/// Opens connections to all of `addresses`, and returns the fastest.
async fn to_first_of<C: Send + 'static, F>(
    addresses: &[SocketAddr],
    open: impl Fn(SocketAddr) -> F,
) -> Result<C, StreamError>
where
    F: Future<Output = Result<C, StreamError>> + Send + 'static,
{
    let mut dials: JoinSet<_> = addresses.iter().copied().map(open).collect();
    let mut last = StreamError::GivenUp;
    while let Some(dialed) = dials.join_next().await {
        match dialed {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => last = error,
            Err(_) => {}
        }
    }
    Err(last)
}

/// Returns the error of a connection to `address` that cannot be opened.
fn opening_error(address: SocketAddr, error: DialError) -> StreamError {
    match error {
        DialError::Io(source) => StreamError::Connect { address, source },
        DialError::Silent(waited) => StreamError::Silent { address, waited },
        DialError::Mismatch(mismatch) => mismatch.into(),
        DialError::Unproven(source) => StreamError::Unproven { address, source },
    }
}

async fn connect_to(
    address: SocketAddr,
    credentials: &Credentials,
) -> Result<CoordinatorConnection, StreamError> {
    let stream = secure_stream::connect(address, credentials, ALPN_HTTP2).await;
    let stream = stream.map_err(|error| opening_error(address, error))?;
    let local = stream.local_addr().map_err(|source| StreamError::Connect { address, source })?;
    let opened = stream.end(address);
    let mut stream = Some(TokioIo::new(stream));
    // The only connection exists already. A channel that asks for another one has lost it.
    let connector = tower::service_fn(move |_| {
        let stream = stream.take().ok_or_else(|| io::Error::other("the connection was lost"));
        std::future::ready(stream)
    });
    // An authority cannot contain the scope of a link-local address.
    let authority = SocketAddr::new(address.ip(), address.port());
    let grpc = GrpcEndpoint::from_shared(format!("http://{authority}"))
        .map_err(|source| StreamError::Protocol { address, source: Box::new(source) })?;
    let channel = grpc.connect_with_connector(connector);
    let channel = in_time(address, channel)
        .await?
        .map_err(|source| StreamError::Protocol { address, source: Box::new(source) })?;
    let client =
        CoordinationClient::new(channel).max_decoding_message_size(limits::MAX_COORDINATOR_MESSAGE);
    Ok(CoordinatorConnection { client, local, remote: address, opened })
}

/// Explains why the process at `address` has refused this one. `why` is its own text.
async fn unauthenticated(address: SocketAddr, credentials: &Credentials, why: &str) -> StreamError {
    let theirs = authentication::ask(address).await.unwrap_or_default();
    match credentials.compare(&address.to_string(), &theirs) {
        Err(mismatch) => mismatch.into(),
        Ok(()) => StreamError::Refused { address, why: why.to_owned() },
    }
}

/// Waits for an answer of the process at `address`.
async fn in_time<T>(
    address: SocketAddr,
    answer: impl Future<Output = T>,
) -> Result<T, StreamError> {
    let waited = limits::IDENTIFY_TIMEOUT;
    timeout(waited, answer).await.map_err(|_| StreamError::Silent { address, waited })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A process that does not answer is reported with the time that it had.
    #[tokio::test(start_paused = true)]
    async fn silence_is_reported_with_its_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = Endpoint { host: address.ip().to_string(), port: address.port() };
        let open = Credentials::unsecured(ragent_base::secret::Unsecured::Chosen);
        let error = state(&endpoint, &open).await.unwrap_err();
        let expected = format!("{address} accepts connections but did not answer within 3 s");
        assert_eq!(error.to_string(), expected);
        assert!(std::error::Error::source(&error).is_none());
    }
}
