//! Lets a relay replace an earlier relay of the same launch on its host.
//!
//! If the launching host loses a relay through which it reached a host, it reaches the host directly. The relay of the lost connection may
//! still run there, with its agent, because an ssh server does not notice for hours that the other side is gone. So:
//!
//! 1. The new relay connects to a socket of the old one.
//! 2. The old relay ends its agent, and then itself.
//! 3. The connection closes with the old relay, so the new one knows that it has ended.

use std::{future::pending, path::PathBuf, time::Duration};

use ragent_base::sys::users;
use tokio::{
    io::AsyncReadExt,
    net::{UnixListener, UnixStream},
    time::timeout,
};
use tracing::{debug, info};

use super::order::{HostNumber, LaunchId};
use crate::commands::ssh::limits;

/// The socket at which a relay waits for its successor. Its name is in the abstract namespace, and exists for as long as the socket.
#[derive(Debug)]
pub(super) struct SuccessorSocket(Option<UnixListener>);

impl SuccessorSocket {
    /// Listens for the successor of a launch's relay on `host`. If that is impossible, no successor can announce itself, and this relay
    /// runs until its orders end.
    pub(super) fn listen(launch: &LaunchId, host: HostNumber) -> Self {
        let listener = UnixListener::bind(name(launch, host));
        let listener =
            listener.inspect_err(|error| debug!(%error, "failed to listen for another relay"));
        Self(listener.ok())
    }

    /// Waits for a successor, and returns the connection to it. The successor considers this relay as running until the connection is
    /// dropped.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe.
    pub(super) async fn successor(&self) -> UnixStream {
        let Some(listener) = &self.0 else { return pending().await };
        loop {
            match listener.accept().await {
                Ok((stream, _)) if is_own(&stream) => return stream,
                Ok(_) => {}
                Err(error) => {
                    debug!(%error, "failed to accept another relay");
                    return pending().await;
                }
            }
        }
    }
}

/// Ends the relay of the same launch that runs on `host`, if there is one, and waits for its end.
pub(super) async fn end_predecessor(launch: LaunchId, host: HostNumber) {
    let Ok(mut stream) = UnixStream::connect(name(&launch, host)).await else { return };
    if !is_own(&stream) {
        return;
    }
    info!("waiting for the end of the relay of a lost connection");
    let stop = Duration::from_millis(launch.stop_ms);
    let limit =
        stop.saturating_add(limits::CLEANUP_TIMEOUT).saturating_add(limits::DISCONNECT_TIMEOUT);
    // Nothing is sent, so any result is the end of the stream.
    if timeout(limit, stream.read_u8()).await.is_err() {
        debug!("the relay of a lost connection did not end in time");
    }
}

/// Returns the name of the socket, as a path with a zero byte in front.
fn name(launch: &LaunchId, host: HostNumber) -> PathBuf {
    format!("\0ragent-relay-{}-{host}", launch.name).into()
}

/// Returns true if the other side is a process of this user or of root. Every user may connect, and another user may take the name before a
/// relay does.
fn is_own(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| users::is_trusted(peer.uid()))
}

#[cfg(test)]
mod tests {
    use ragent_base::sys::{clock, random::random_id};

    use super::*;

    fn launch() -> LaunchId {
        LaunchId { name: random_id(), stop_ms: 1000 }
    }

    /// A relay learns of its successor, which waits for its end.
    #[tokio::test]
    async fn successor_waits_for_the_end() {
        let launch = launch();
        let socket = SuccessorSocket::listen(&launch, 7);
        let waiting = tokio::spawn(end_predecessor(launch.clone(), 7));
        let stream = socket.successor().await;
        assert!(!waiting.is_finished());
        drop((stream, socket));
        waiting.await.unwrap();
    }

    /// A relay that ends without having seen its successor does not delay it.
    #[tokio::test]
    async fn end_without_an_answer() {
        let launch = launch();
        let socket = SuccessorSocket::listen(&launch, 7);
        let waiting = tokio::spawn(end_predecessor(launch.clone(), 7));
        tokio::task::yield_now().await;
        drop(socket);
        waiting.await.unwrap();
    }

    /// Relays of other hosts and of other launches are left alone. A relay that does not end is waited for only as long as its agent may
    /// take.
    #[tokio::test(start_paused = true)]
    async fn others_are_not_concerned() {
        let launch = launch();
        let socket = SuccessorSocket::listen(&launch, 7);
        end_predecessor(launch.clone(), 8).await;
        end_predecessor(self::launch(), 7).await;
        let begun = clock::now();
        end_predecessor(launch.clone(), 7).await;
        assert!(clock::now() - begun >= Duration::from_secs(1));
        // Another socket has the name.
        assert!(SuccessorSocket::listen(&launch, 7).0.is_none());
        drop(socket);
    }
}
