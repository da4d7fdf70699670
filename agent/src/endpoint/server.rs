//! The port that an agent serves.

use std::net::TcpListener;

use tokio::task::JoinHandle;
use tracing::error;

use crate::net::port::{self, PortProtocols};

/// A port that is served until this value is dropped.
pub(crate) struct Server(JoinHandle<()>);

impl Server {
    /// Begins to serve the port of `listener`.
    pub(super) fn start(listener: TcpListener, protocols: PortProtocols) -> Self {
        Self(tokio::spawn(async move {
            if let Err(error) = port::serve_port(listener, protocols).await {
                error!(%error, "failed to serve the agent's port");
            }
        }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}
