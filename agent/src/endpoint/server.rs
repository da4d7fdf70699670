//! The port that an agent serves, on a thread of its own: neither handshakes of TLS nor a flood of requests delays the
//! coordinator and the agent.

use std::{
    io,
    net::TcpListener,
    thread::{self, JoinHandle},
};

use tokio::{runtime::Builder, sync::oneshot, task::yield_now};
use tracing::error;

use crate::{
    net::port::{self, PortProtocols},
    sys::system_error::{SystemError, system},
};

/// A port that is served until this value is dropped.
pub(crate) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The number of times that other tasks run after the end of a port was ordered: enough to send messages that have left
/// their queues.
const LAST_TURNS: usize = 8;

impl Server {
    /// Begins to serve the port of `listener`.
    ///
    /// # Errors
    ///
    /// Returns [`SystemError`] if the thread cannot be started.
    pub(super) fn start(
        listener: TcpListener,
        protocols: PortProtocols,
    ) -> Result<Self, SystemError> {
        let (stop, stopped) = oneshot::channel();
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(system("start the runtime of the port"))?;
        let serve = async move {
            tokio::select! {
                biased;
                // This value was dropped.
                _ = stopped => {}
                served = tokio::spawn(port::serve_port(listener, protocols)) => {
                    if let Err(error) = served.map_err(io::Error::from).flatten() {
                        error!(%error, "failed to serve the agent's port");
                    }
                }
            }
            for _ in 0..LAST_TURNS {
                yield_now().await;
            }
        };
        let run = move || {
            runtime.block_on(serve);
            // Reading a file may take longer.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("port".to_owned()).spawn(run);
        let thread = thread.map_err(system("start a thread"))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its connections are closed when it has ended.
            let _ = thread.join();
        }
    }
}
