//! A connection, with TLS if this process has a secret or a certificate.

use std::{
    io,
    net::{SocketAddr, TcpStream as StdTcpStream},
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use rustls::{AlertDescription, Error as TlsError, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{LazyConfigAcceptor, TlsConnector, TlsStream};

use super::{authentication, dial};
use crate::{
    net::limits,
    secret::{ALPN_MEMORY, CertificateFacts, ClientTls, Credentials, Mismatch, is_of_certificate},
    sys::clock,
};

/// The first byte of a connection between agents for checkpoints in memory; TLS follows.
pub const MEMORY_PROTOCOL: u8 = 0xef;

/// A connection between two processes of a job.
#[derive(Debug)]
pub enum SecureStream {
    /// Without a secret and a certificate.
    Plain(TcpStream),
    /// With TLS. The other end has proven that it knows the secret, or has a certificate that is accepted.
    Tls(Box<TlsStream<TcpStream>>, TlsFailure),
}

/// The error with which TLS has ended a connection, if it has; also known after the stream was handed over to a protocol.
#[derive(Clone, Debug, Default)]
pub struct TlsFailure(Arc<OnceLock<TlsError>>);

impl TlsFailure {
    fn note(&self, error: &io::Error) {
        if let Some(error) = tls_error(error) {
            // The first one counts.
            let _ = self.0.set(error.clone());
        }
    }
}

/// Returns the error of TLS in an error of its stream.
fn tls_error(error: &io::Error) -> Option<&TlsError> {
    error.get_ref().and_then(|error| error.downcast_ref())
}

/// The end of a connection that this process has opened.
#[derive(Clone, Debug)]
pub struct OpenedEnd {
    /// The address of the other end.
    address: SocketAddr,
    /// The certificate of the other end, which is accepted here.
    theirs: Option<CertificateFacts>,
    failure: TlsFailure,
}

impl OpenedEnd {
    /// Returns the reason for the end if the other process has not accepted the certificate of this one. A server verifies
    /// it after the handshake has ended for the client.
    pub fn mismatch(&self, credentials: &Credentials) -> Option<Mismatch> {
        let error = self.failure.0.get()?;
        let place = self.address.to_string();
        credentials.explain(&place, self.theirs.clone(), error, clock::wall_second())
    }
}

impl From<TlsStream<TcpStream>> for SecureStream {
    fn from(stream: TlsStream<TcpStream>) -> Self {
        Self::Tls(Box::new(stream), TlsFailure::default())
    }
}

impl SecureStream {
    /// Returns the address of the own end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Plain(stream) => stream.local_addr(),
            Self::Tls(stream, _) => stream.get_ref().0.local_addr(),
        }
    }

    /// Returns the end of this connection to `address`, which knows the reason when it has come.
    pub fn end(&self, address: SocketAddr) -> OpenedEnd {
        let (theirs, failure) = match self {
            Self::Plain(_) => (None, TlsFailure::default()),
            Self::Tls(stream, failure) => {
                let theirs = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                (theirs.map(CertificateFacts::of), failure.clone())
            }
        };
        OpenedEnd { address, theirs, failure }
    }
}

/// The reason why a connection cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The system's error, or a time limit.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The other process accepts the connection, and does not answer within this time.
    #[error("it accepts connections but does not answer")]
    Silent(Duration),
    /// The two processes do not have the same secret, or do not accept each other's certificates.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The other process names the right authentication, or none, and the handshake has failed.
    #[error("it has not authenticated itself: {0}")]
    Unproven(io::Error),
}

/// Opens a connection to a process of the job, for the protocol `alpn`.
///
/// # Errors
///
/// Returns [`DialError`] if there is no connection, or the other process does not know the secret.
pub async fn connect(
    address: SocketAddr,
    credentials: &Credentials,
    alpn: &[u8],
) -> Result<SecureStream, DialError> {
    let client = authentication::choose(address, credentials).await;
    let mut stream = dial(address).await?;
    if alpn == ALPN_MEMORY {
        stream.write_all(&[MEMORY_PROTOCOL]).await?;
    }
    match client {
        Some(client) => {
            let opened = OpenedStream { stream, address, client, limit: limits::HANDSHAKE_TIMEOUT };
            opened.secure(credentials, alpn).await
        }
        None => Ok(SecureStream::Plain(stream)),
    }
}

/// A connection that this process has opened, without TLS so far.
pub struct OpenedStream {
    /// The connection.
    pub stream: TcpStream,
    /// The address of the other end.
    pub address: SocketAddr,
    /// The configuration to use.
    pub client: ClientTls,
    /// The time for the handshake.
    pub limit: Duration,
}

impl OpenedStream {
    /// Authenticates both ends, for the protocol `alpn`.
    ///
    /// # Errors
    ///
    /// As [`connect`].
    pub async fn secure(
        self,
        credentials: &Credentials,
        alpn: &[u8],
    ) -> Result<SecureStream, DialError> {
        let Self { stream, address, client, limit } = self;
        let connector = TlsConnector::from(Arc::clone(&client.config));
        let connector = connector.with_alpn(vec![alpn.to_vec()]);
        // The name of an address is not sent.
        let name = client.name.unwrap_or_else(|| ServerName::IpAddress(address.ip().into()));
        match timeout(limit, connector.connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(TlsStream::from(stream).into()),
            Ok(Err(error)) => {
                let place = address.to_string();
                // Two nodes with different secrets, or one with a certificate only, are the usual reason. The next attempt
                // uses a secret that was added.
                authentication::read_again(credentials).await;
                if let Some(theirs) = authentication::ask(address).await {
                    credentials.compare(&place, &theirs)?;
                }
                let explained = tls_error(&error).and_then(|error| {
                    credentials.explain(&place, None, error, clock::wall_second())
                });
                Err(match (explained, error.kind()) {
                    (Some(mismatch), _) => mismatch.into(),
                    (None, io::ErrorKind::InvalidData) => DialError::Unproven(error),
                    // The connection was lost, or was closed for lack of room.
                    (None, _) => error.into(),
                })
            }
            Err(_) => Err(DialError::Silent(limit)),
        }
    }
}

/// The reason why a connection that was accepted is closed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AcceptError {
    /// The certificate of the other process is not accepted, or it has none, for this reason.
    #[error("its certificate is not accepted: {0}")]
    Certificate(TlsError),
    /// The connection was closed, or its bytes are not TLS.
    #[error("the handshake was not completed")]
    Incomplete,
    /// The handshake has failed for a reason that is not about certificates.
    #[error("the handshake has failed: {0}")]
    Handshake(TlsError),
    /// The other process does not accept the certificate of this one, and has sent this alert.
    #[error("it does not accept the certificate of this process ({0:?})")]
    NotAccepted(AlertDescription),
    /// The other process has another secret.
    #[error("it has another secret")]
    OtherSecret,
    /// Its first message is that of a process with the secret, but it has not proven that it knows the secret.
    #[error("it has not proven that it knows the secret")]
    Unproven,
    /// The first byte announced one protocol, and TLS has negotiated another one.
    #[error("it uses another protocol")]
    OtherProtocol,
}

impl AcceptError {
    fn of(error: &io::Error, credentials: &Credentials) -> Self {
        let has_certificate = credentials.has_certificate();
        match tls_error(error) {
            Some(TlsError::AlertReceived(alert))
                if has_certificate && is_of_certificate(*alert) =>
            {
                Self::NotAccepted(*alert)
            }
            Some(error @ (TlsError::InvalidCertificate(_) | TlsError::NoCertificatesPresented))
                if has_certificate =>
            {
                Self::Certificate(error.clone())
            }
            Some(error) if has_certificate => Self::Handshake(error.clone()),
            Some(_) => Self::Unproven,
            None => Self::Incomplete,
        }
    }
}

/// Accepts a connection of a process that knows the secret, or has a certificate that is accepted.
///
/// # Errors
///
/// Returns [`AcceptError`] if the process has not authenticated itself.
pub async fn accept(
    stream: TcpStream,
    credentials: &Credentials,
) -> Result<TlsStream<TcpStream>, AcceptError> {
    let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
    let hello = hello.await.map_err(|_| AcceptError::Incomplete)?;
    let name = hello.client_hello().server_name().map(str::to_owned);
    let is_known = authentication::knows(credentials, name.as_deref()).await;
    let Some(config) = credentials.server() else { return Err(AcceptError::Incomplete) };
    if !is_known {
        // Sends the alert; no key is used.
        let _ = hello.into_stream(config).await;
        return Err(AcceptError::OtherSecret);
    }
    let stream = hello.into_stream(config).await;
    Ok(stream.map_err(|error| AcceptError::of(&error, credentials))?.into())
}

/// Accepts a connection whose first byte precedes TLS, for the protocol `alpn`. Without a secret or certificates, no TLS follows.
///
/// # Errors
///
/// Returns [`AcceptError`] if the process has not authenticated itself.
pub async fn accept_after_byte(
    stream: StdTcpStream,
    credentials: &Credentials,
    alpn: &[u8],
) -> Result<SecureStream, AcceptError> {
    let opened = async {
        let mut stream = TcpStream::from_std(stream)?;
        stream.set_nodelay(true)?;
        stream.read_u8().await?;
        io::Result::Ok(stream)
    };
    let stream = opened.await.map_err(|_| AcceptError::Incomplete)?;
    if !credentials.is_secured() {
        return Ok(SecureStream::Plain(stream));
    }
    let stream = accept(stream, credentials).await?;
    match stream.get_ref().1.alpn_protocol() {
        Some(protocol) if protocol == alpn => Ok(stream.into()),
        Some(_) | None => Err(AcceptError::OtherProtocol),
    }
}

impl AsyncRead for SecureStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream, failure) => {
                let read = Pin::new(stream).poll_read(context, buffer);
                if let Poll::Ready(Err(error)) = &read {
                    failure.note(error);
                }
                read
            }
        }
    }
}

impl AsyncWrite for SecureStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream, _) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream, _) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream, _) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
