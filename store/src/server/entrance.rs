//! Accepts the connections that come to a store's listener.

use std::future;
use std::mem;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Timeout, timeout};
use tracing::warn;

/// A listener, if the store has one, that rests after a failure.
#[derive(Debug)]
pub(super) struct Entrance {
    listener: Option<TcpListener>,
    /// The last attempt failed; this is said once, not at each.
    is_failing: bool,
    rest: Option<Rest>,
}

/// It never completes, hence always times out: the only way to the timer without a clock.
type Rest = Pin<Box<Timeout<future::Pending<()>>>>;

impl Entrance {
    pub(super) fn new(listener: Option<TcpListener>) -> Self {
        Self { listener, is_failing: false, rest: None }
    }

    /// Returns the next connection.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped, nor is a rest begun anew.
    pub(super) async fn accept(&mut self) -> TcpStream {
        let Some(listener) = &self.listener else {
            return future::pending().await;
        };
        loop {
            if let Some(rest) = &mut self.rest {
                let _ = rest.await;
                self.rest = None;
            }
            match listener.accept().await {
                Ok((stream, _)) => {
                    self.is_failing = false;
                    return stream;
                }
                Err(cause) => {
                    if !mem::replace(&mut self.is_failing, true) {
                        warn!(%cause, "failed to accept connections to the store; trying on");
                    }
                    // Usually the limit on open files. The connection stays in the backlog, so
                    // trying again at once would be a busy loop.
                    self.rest = Some(Box::pin(timeout(ACCEPT_RETRY, future::pending())));
                }
            }
        }
    }
}

const ACCEPT_RETRY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};
    use tokio::sync::{mpsc, watch};

    use super::super::Admission;
    use super::super::store::{self, Opened, Policy};
    use super::*;

    /// A listener from which nothing can be accepted.
    fn broken() -> TcpListener {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        TcpListener::from_std(socket.into()).unwrap()
    }

    async fn after<T>(duration: Duration, future: impl Future<Output = T>) -> Option<T> {
        timeout(duration, future).await.ok()
    }

    /// A listener that fails again and again does not delay the end.
    #[tokio::test(start_paused = true)]
    async fn failures_delay_nothing() {
        let (policy, policy_seen) = watch::channel(Policy::Open(Admission::Anybody));
        let (_handed_over, taken_over) = mpsc::channel(1);
        let opened = Opened { listener: Some(broken()), policy: policy_seen, taken_over };
        let store = tokio::task::LocalSet::new();
        store.spawn_local(store::serve(opened));
        store
            .run_until(async {
                let half = ACCEPT_RETRY / 2;
                assert_eq!(after(5 * half, future::pending::<()>()).await, None);
                policy.send_replace(Policy::Closed);
                assert_eq!(after(half / 2, policy.closed()).await, Some(()));
            })
            .await;
    }

    /// Between two attempts there is a rest, whoever interrupts it.
    #[tokio::test(start_paused = true)]
    async fn failures_are_spaced() {
        let mut entrance = Entrance::new(Some(broken()));
        for _ in 0..3 {
            assert!(after(ACCEPT_RETRY / 4, entrance.accept()).await.is_none());
            assert!(entrance.is_failing && entrance.rest.is_some());
        }
        let rest = entrance.rest.as_mut().unwrap();
        assert_eq!(after(ACCEPT_RETRY / 2, rest).await.map(|end| end.is_err()), Some(true));
    }
}
