//! Serves gRPC and HTTP on one connection, within bounds of time.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use hyper::{
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, watch},
    time::timeout,
};
use tower::ServiceExt;
use tracing::debug;

use super::{
    connection::{ConnectionProgress, PeerAddress},
    connection_quota::ConnectionOrigin,
};
use crate::net::limits;

/// Serves a connection until it ends or is idle for too long. Handlers find its origin among the
/// extensions of a request.
pub(super) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: PeerAddress,
    router: Router,
    origin: ConnectionOrigin,
    progress: &ConnectionProgress,
) {
    let streams = match origin {
        ConnectionOrigin::Known => limits::STREAMS,
        ConnectionOrigin::Unknown => limits::UNKNOWN_STREAMS,
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::REQUEST_TIMEOUT)
        .max_buf_size(limits::MAX_HEAD as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .initial_stream_window_size(limits::WINDOW)
        .initial_connection_window_size(limits::WINDOW)
        .max_header_list_size(limits::MAX_HEAD)
        .max_send_buf_size(limits::WINDOW as usize)
        .keep_alive_interval(limits::PING_INTERVAL)
        .keep_alive_timeout(limits::PING_TIMEOUT);
    let (requests, busy) = watch::channel(0);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(origin);
        let served = BeingServed::new(&requests);
        let answer = answer(request, router.clone(), progress.clone());
        async move {
            Ok::<_, Infallible>(answer.await.map(|body| Body::new(AnswerBody { body, served })))
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = idle(busy) => {
            debug!(peer = %peer.ip, "connection closed: idle");
            connection.as_mut().graceful_shutdown();
            timeout(limits::FLUSH_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(peer = %peer.ip, error, "connection ended");
    }
}

/// Notified by a handler once it has read the part of the body that its answer depends on.
///
/// From then on the request has no time limit: the coordinator of a large job may have thousands of
/// others to answer first.
#[derive(Clone, Debug, Default)]
pub struct BodyRead(Arc<Notify>);

impl BodyRead {
    /// Reports that the body was read.
    pub fn notify(&self) {
        self.0.notify_one();
    }
}

/// Answers a request whose body arrives in time.
async fn answer(
    mut request: Request<Incoming>,
    router: Router,
    progress: ConnectionProgress,
) -> Response {
    let has_body = !request.body().is_end_stream();
    let read = BodyRead::default();
    request.extensions_mut().insert(read.clone());
    let mut answer = pin!(router.oneshot(request));
    if !has_body {
        progress.served().await;
        return infallible(answer.await);
    }
    // The body of a registration lasts as long as its stream; its handler reports the first message.
    let reading = async {
        tokio::select! {
            response = &mut answer => Some(response),
            () = read.0.notified() => None,
        }
    };
    let Ok(response) = timeout(limits::REQUEST_TIMEOUT, reading).await else {
        return StatusCode::REQUEST_TIMEOUT.into_response();
    };
    progress.served().await;
    match response {
        Some(response) => infallible(response),
        None => infallible(answer.await),
    }
}

fn infallible(response: Result<Response, Infallible>) -> Response {
    match response {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Returns when a connection has been idle for too long.
async fn idle(mut requests: watch::Receiver<usize>) {
    loop {
        let is_idle = *requests.borrow_and_update() == 0;
        let change = requests.changed();
        let changed = if is_idle {
            match timeout(limits::IDLE_TIMEOUT, change).await {
                Ok(changed) => changed,
                Err(_) => return,
            }
        } else {
            change.await
        };
        if changed.is_err() {
            // The service has ended, and the connection ends with it.
            return std::future::pending().await;
        }
    }
}

/// Guard that counts a request as in progress until it is dropped.
struct BeingServed(watch::Sender<usize>);

impl BeingServed {
    fn new(requests: &watch::Sender<usize>) -> Self {
        requests.send_modify(|count| *count += 1);
        Self(requests.clone())
    }
}

impl Drop for BeingServed {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The body of an answer, which counts as a request in progress until it is sent.
struct AnswerBody {
    body: Body,
    #[expect(dead_code, reason = "it counts while it is there")]
    served: BeingServed,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
