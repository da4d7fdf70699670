//! An HTTP/1.1 client for one GET: of a short page, from a program that need not be ragent, or of a page that arrives in parts.

use std::{future::poll_fn, io, net::SocketAddr, pin::Pin, str, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{
        StatusCode,
        header::{CONNECTION, HOST, MAX_FORWARDS},
    },
};
use hyper::{
    body::{Body as _, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::JoinSet,
    time::timeout,
};

use super::{
    dial,
    secure_stream::{self, DialError},
};
use crate::{
    net::limits,
    secret::{ALPN_HTTP1, Credentials},
};

/// The bytes that were received after a request, and how the exchange ended.
#[derive(Debug)]
pub struct Exchange {
    /// The answer as far as it was received, header included.
    pub received: Vec<u8>,
    /// The end of the exchange.
    pub end: ExchangeEnd,
}

/// The end of an exchange.
#[derive(Debug)]
pub enum ExchangeEnd {
    /// The other side closed the connection, or sent as much as is read.
    Complete,
    /// The connection could not be opened, or broke.
    Failed(io::Error),
    /// The time limit was reached.
    TimedOut,
}

/// The status and the body of an answer.
#[derive(Debug, Eq, PartialEq)]
pub struct HttpPage<'a> {
    /// The status code.
    pub status: u16,
    /// The text after the header.
    pub body: &'a str,
}

/// Requests the page at `path` from `address`, and reads at most `len_max` bytes of the answer within
/// `limit`. The time for the connection is that of [`dial`].
pub async fn get(address: SocketAddr, path: &str, len_max: usize, limit: Duration) -> Exchange {
    match dial(address).await {
        Ok(stream) => exchange_within(stream, address, path, len_max, limit).await,
        Err(error) => Exchange { received: Vec::new(), end: ExchangeEnd::Failed(error) },
    }
}

/// The same as [`get`], as a process of the job.
pub async fn get_as_member(
    address: SocketAddr,
    credentials: &Credentials,
    path: &str,
    len_max: usize,
    limit: Duration,
) -> Exchange {
    match secure_stream::connect(address, credentials, ALPN_HTTP1).await {
        Ok(stream) => {
            let opened = stream.end(address);
            let mut exchange = exchange_within(stream, address, path, len_max, limit).await;
            if let Some(mismatch) = opened.mismatch(credentials) {
                exchange.end = ExchangeEnd::Failed(io::Error::other(mismatch));
            }
            exchange
        }
        Err(error) => {
            let error = match error {
                DialError::Io(error) => error,
                DialError::Silent(_) => {
                    return Exchange { received: Vec::new(), end: ExchangeEnd::TimedOut };
                }
                DialError::Mismatch(mismatch) => io::Error::other(mismatch),
                DialError::Unproven(_) => io::Error::other(error),
            };
            Exchange { received: Vec::new(), end: ExchangeEnd::Failed(error) }
        }
    }
}

async fn exchange_within(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    path: &str,
    len_max: usize,
    limit: Duration,
) -> Exchange {
    let mut received = Vec::new();
    let exchanged = exchange(stream, address, path, len_max, &mut received);
    let end = match timeout(limit, exchanged).await {
        Ok(Ok(())) => ExchangeEnd::Complete,
        Ok(Err(error)) => ExchangeEnd::Failed(error),
        Err(_) => ExchangeEnd::TimedOut,
    };
    Exchange { received, end }
}

async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    address: SocketAddr,
    path: &str,
    len_max: usize,
    received: &mut Vec<u8>,
) -> io::Result<()> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let sent = stream.write_all(request.as_bytes()).await;
    // A peer that accepts no request may have sent the reason before.
    let read = stream.take(len_max as u64).read_to_end(received).await;
    sent?;
    read.map(drop)
}

/// An answer whose body is received in parts.
#[derive(Debug)]
pub struct HttpAnswer {
    status: StatusCode,
    body: Incoming,
    /// Ends the connection when it is dropped.
    _connection: JoinSet<()>,
}

impl HttpAnswer {
    /// Requests the page at `path` from the process at `address`, to which `stream` is connected. The process is not to ask
    /// another one for it.
    pub async fn request(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        address: SocketAddr,
        path: &str,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        // Without the scope of a link-local address, which an authority cannot contain.
        let host = SocketAddr::new(address.ip(), address.port()).to_string();
        let request = Request::get(path)
            .header(HOST, host)
            .header(CONNECTION, "close")
            .header(MAX_FORWARDS, "0")
            .body(Body::empty())?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(limits::MAX_HEAD as usize);
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let mut task = JoinSet::new();
        // The request, or the body, has the error with which it ends.
        task.spawn(async { drop(connection.await) });
        let (head, body) = sender.send_request(request).await?.into_parts();
        Ok(Self { status: head.status, body, _connection: task })
    }

    /// Returns the status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the next part of the body; `None` at the end.
    ///
    /// # Cancel safety
    ///
    /// A cancelled call loses nothing.
    pub async fn next(&mut self) -> Option<hyper::Result<Bytes>> {
        loop {
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await?;
            match frame.map(hyper::body::Frame::into_data) {
                Ok(Ok(part)) => return Some(Ok(part)),
                // Trailers are not used.
                Ok(Err(_)) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl<'a> HttpPage<'a> {
    /// Parses an answer of HTTP/1.1 with a whole header; `None` if it is anything else.
    pub fn parse(received: &'a [u8]) -> Option<Self> {
        let (head, body) = str::from_utf8(received).ok()?.split_once("\r\n\r\n")?;
        let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        Some(Self { status, body })
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Answers one request with `answer`, and returns what was received.
    async fn get_answer(answer: &'static [u8]) -> Exchange {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(answer).await.unwrap();
            String::from_utf8(request).unwrap()
        });
        let exchange = get(address, "/v1/page", 40, Duration::from_secs(60)).await;
        let request = server.await.unwrap();
        assert!(request.starts_with("GET /v1/page HTTP/1.1\r\n"), "{request}");
        assert!(request.contains(&format!("Host: {address}\r\n")), "{request}");
        exchange
    }

    /// The whole answer is received, but never more than the limit.
    #[tokio::test]
    async fn answers_are_bounded() {
        let short = get_answer(b"HTTP/1.1 200 OK\r\n\r\nbody").await;
        assert!(matches!(short.end, ExchangeEnd::Complete), "{:?}", short.end);
        assert_eq!(HttpPage::parse(&short.received), Some(HttpPage { status: 200, body: "body" }));
        let long = get_answer(&[b'x'; 100]).await;
        assert_eq!(long.received, [b'x'; 40]);
    }

    /// A process that reads the request and does not answer is distinguished from a closed port; the
    /// connection to it is closed at the time limit.
    #[tokio::test]
    async fn silence_is_distinguished() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = String::new();
            // Ends when the client gives up.
            stream.read_to_string(&mut request).await.unwrap();
            request
        });
        let silent = get(address, "/", 40, Duration::from_millis(1)).await;
        assert!(matches!(silent.end, ExchangeEnd::TimedOut), "{:?}", silent.end);
        assert_eq!(silent.received, b"");
        let request = server.await.unwrap();
        assert!(request.starts_with("GET / HTTP/1.1\r\n"), "{request}");
        assert!(request.ends_with("\r\n\r\n"), "{request}");
        let closed = get(address, "/", 40, Duration::from_secs(60)).await;
        assert!(matches!(closed.end, ExchangeEnd::Failed(_)), "{:?}", closed.end);
    }

    /// Only an answer of HTTP/1.1 with a whole header has a status.
    #[test]
    fn pages_are_parsed() {
        let page = |text: &'static str| HttpPage::parse(text.as_bytes());
        let too_many = HttpPage { status: 429, body: "later\n" };
        assert_eq!(page("HTTP/1.1 429 Too Many Requests\r\na: b\r\n\r\nlater\n"), Some(too_many));
        for other in
            ["", "SSH-2.0-X\r\n", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 x\r\n\r\n", "HTTP/1.1 \r\n\r\n"]
        {
            assert_eq!(page(other), None, "{other:?}");
        }
        assert_eq!(HttpPage::parse(b"HTTP/1.1 200 OK\r\n\r\n\xff"), None);
    }
}
