//! Serves the metrics on the port of `--metrics-listen`, to every client that reaches it.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
};

use nix::libc;
use ragent_base::{
    net::{self, port::PortProtocols},
    report::{measures::NodeMeasures, telemetry},
    sys::{port_holder, system_error::SystemError},
};
use ragent_coordinator::pages::metrics::{MetricsPage, PublicMetrics};
use tracing::info;

use super::server::PortThread;
use crate::endpoint::limits;

/// The reason why the metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsPortError {
    /// Another process has the address.
    #[error("failed to listen at {address} for the metrics: {} has this port", holder(.by))]
    Held {
        /// The address.
        address: SocketAddr,
        /// The process, if it is known.
        by: Option<String>,
    },
    /// The system refuses the address for another reason.
    #[error("failed to listen at {address} for the metrics")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The thread of the port cannot be started.
    #[error(transparent)]
    System(#[from] SystemError),
}

fn holder(process: &Option<String>) -> String {
    match process {
        Some(process) if process.ends_with("(ragent)") => {
            format!("another agent of this machine, {process},")
        }
        Some(process) => process.clone(),
        None => "another process of this machine".to_owned(),
    }
}

impl MetricsPortError {
    /// Returns the hint for the user.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Held { .. } => Some(
                "give each agent of a machine its own port in `--metrics-listen`, or port 0, which selects a free port",
            ),
            Self::Refused { .. } => Some(
                "give an address of this machine in `--metrics-listen`, such as 0.0.0.0, and a port at which this user \
                 may listen",
            ),
            Self::System(_) => None,
        }
    }
}

/// The port of the metrics. It is served until this value is dropped.
pub struct MetricsPort {
    metrics: PublicMetrics,
    _thread: PortThread,
}

impl MetricsPort {
    /// Listens at `address`, and starts to serve the metrics.
    ///
    /// # Errors
    ///
    /// Returns [`MetricsPortError`] if the address cannot be used.
    pub fn open(address: SocketAddr) -> Result<Self, MetricsPortError> {
        let listener = listen(address)?;
        let bound = listener.local_addr();
        let bound = bound.map_err(|source| MetricsPortError::Refused { address, source })?;
        let metrics = PublicMetrics::default();
        let protocols = PortProtocols::public(metrics.pages());
        let thread = PortThread::start(
            "metrics",
            listener,
            protocols,
            limits::MAX_METRICS_CONNECTIONS,
            async {},
        )?;
        info!("serving the metrics at http://{bound}/metrics to every client that reaches it");
        if address.port() == 0 {
            telemetry::line(&format!("the metrics are at http://{bound}/metrics"));
        }
        Ok(Self { metrics, _thread: thread })
    }

    /// Adds the counters of this node.
    pub fn add_node(&self, measures: &Arc<NodeMeasures>) {
        self.metrics.add_node(measures);
    }

    /// Switches to the page of the job.
    pub fn handle_found(&self, page: Arc<MetricsPage>) {
        self.metrics.handle_found(page);
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, MetricsPortError> {
    net::listen_on(address).map_err(|source| match source.raw_os_error() {
        Some(libc::EADDRINUSE) => {
            MetricsPortError::Held { address, by: port_holder::holder(address.port()) }
        }
        _ => MetricsPortError::Refused { address, source },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error names the address and the process that has it. Another agent is named as such.
    #[test]
    fn errors_name_the_holder() {
        let held = net::listen_on(([127, 0, 0, 1], 0).into()).unwrap();
        let address = held.local_addr().unwrap();
        let error = listen(address).unwrap_err();
        assert!(matches!(&error, MetricsPortError::Held { by: Some(_), .. }), "{error}");
        let text =
            |by: &str| MetricsPortError::Held { address, by: Some(by.to_owned()) }.to_string();
        let attempt = format!("failed to listen at {address} for the metrics: ");
        let agent = "another agent of this machine, process 7 (ragent), has this port";
        assert_eq!(text("process 7 (ragent)"), format!("{attempt}{agent}"));
        assert_eq!(text("process 7 (nginx)"), format!("{attempt}process 7 (nginx) has this port"));
        // This address is reserved for documentation, so this machine does not have it.
        let elsewhere = listen(([192, 0, 2, 1], 0).into()).unwrap_err();
        assert!(matches!(elsewhere, MetricsPortError::Refused { .. }), "{elsewhere}");
        assert!(error.hint().is_some() && elsewhere.hint().is_some());
    }
}
