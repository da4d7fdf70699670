//! Serves an agent's port on a thread of its own, so that neither TLS handshakes nor a flood of requests delay the coordinator and the
//! agent.

use std::{
    io,
    net::TcpListener,
    sync::Arc,
    thread::{self, JoinHandle},
};

use ragent_base::{
    net::port::{self, PassedConnection, PortProtocols, RegisteredNodes},
    secret::Credentials,
    sys::system_error::{SystemError, system},
};
use ragent_coordinator::{
    pages::{
        identity::{SearchStanding, ShownStanding},
        metrics::MetricsPage,
    },
    role::Role,
    service::{self, Shared},
};
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::ids::RunId;
use tokio::{
    runtime::Builder,
    sync::{mpsc, oneshot, watch},
    task::yield_now,
};
use tracing::error;

use super::limits;

/// A port, served until this value is dropped.
pub struct Server {
    thread: PortThread,
    metrics: Arc<MetricsPage>,
    memory: mpsc::Receiver<PassedConnection>,
    standing: ShownStanding,
}

/// A thread that serves a port until this value is dropped.
pub(super) struct PortThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The turns of other tasks after the port was ordered to end: enough to send messages that have left their queues.
const LAST_TURNS: usize = 8;

impl Server {
    /// Starts to serve the port of `listener`. Its routes share these parts.
    ///
    /// # Errors
    ///
    /// Returns [`SystemError`] if the thread cannot be started.
    pub(super) fn start(
        listener: TcpListener,
        mut protocols: PortProtocols,
        Shared { metrics, readers, standing }: Shared,
    ) -> Result<Self, SystemError> {
        let (connections, memory) = mpsc::channel(limits::MEMORY_CONNECTIONS);
        protocols.memory = protocols.credentials.is_secured().then_some(connections);
        let last = async move { readers.wait_for_followers().await };
        let connections_max = port::connections_max();
        let thread = PortThread::start("port", listener, protocols, connections_max, last)?;
        Ok(Self { thread, metrics, memory, standing })
    }

    /// Starts to serve the port of an agent that does not coordinate. It redirects clients to the `known` endpoint.
    ///
    /// # Errors
    ///
    /// Returns [`SystemError`] if the thread cannot be started.
    pub(super) fn elsewhere(
        listener: TcpListener,
        run_id: &RunId,
        known: watch::Receiver<CoordinatorAddress>,
        credentials: &Credentials,
    ) -> Result<Self, SystemError> {
        let (http, shared) = service::routers(run_id, Role::Elsewhere(known), credentials);
        let protocols = PortProtocols {
            http,
            credentials: credentials.clone(),
            store: None,
            voters: None,
            memory: None,
            registered_nodes: watch::channel(RegisteredNodes::default()).1,
            nodes_max: 0,
        };
        Self::start(listener, protocols, shared)
    }

    /// Returns the page with the metrics.
    pub fn metrics(&self) -> Arc<MetricsPage> {
        Arc::clone(&self.metrics)
    }

    /// Returns the connections of other agents for checkpoints in memory, once.
    pub(super) fn memory_connections(&mut self) -> mpsc::Receiver<PassedConnection> {
        std::mem::replace(&mut self.memory, mpsc::channel(1).1)
    }

    /// Shows the part of this agent in its job to agents that search for the job.
    pub(super) fn show_standing(&self, standing: watch::Receiver<SearchStanding>) {
        // It is set once.
        let _ = self.standing.set(standing);
    }

    /// Stops serving the port.
    pub(crate) fn stop(self) {
        drop(self.thread);
    }
}

impl PortThread {
    /// Starts to serve the port of `listener`, on a thread with this name and with at most this many connections. Waits for `last` before
    /// it closes the connections.
    ///
    /// # Errors
    ///
    /// Returns [`SystemError`] if the thread cannot be started.
    pub(super) fn start(
        name: &'static str,
        listener: TcpListener,
        protocols: PortProtocols,
        connections_max: usize,
        last: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Self, SystemError> {
        let (stop, stopped) = oneshot::channel();
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(system("start the runtime of the port"))?;
        let serve = async move {
            tokio::select! {
                biased;
                // This value was dropped.
                _ = stopped => {}
                served = tokio::spawn(port::serve_port(listener, protocols, connections_max)) => {
                    if let Err(error) = served.map_err(io::Error::from).flatten() {
                        error!(%error, thread = name, "failed to serve a port");
                    }
                }
            }
            last.await;
            for _ in 0..LAST_TURNS {
                yield_now().await;
            }
        };
        let run = move || {
            runtime.block_on(serve);
            // The reading of a file may still be running, and is not waited for.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = thread.map_err(system("start a thread"))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for PortThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The connections are closed when the thread has ended.
            let _ = thread.join();
        }
    }
}
