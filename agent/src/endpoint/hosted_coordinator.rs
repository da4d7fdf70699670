//! The coordinator of an endpoint in this process, and its port.

use std::{net::TcpListener, path::PathBuf, sync::Arc};

use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    settings::{Memory, Settings},
    tenure::Tenure,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::server::Server;
use crate::{
    coordinator::{
        driver::{self as coordinator_driver, Coordination, Input, Inputs, Records, Right},
        measures::CoordinatorMeasures,
        persistence::Persistence,
        role::Role,
        service, state_file,
    },
    endpoint::limits,
    net::port::{Attended, PortProtocols, PortStore},
    secret::Credentials,
    sys::system_error::SystemError,
};

/// A running coordinator, and its inputs.
pub(crate) struct HostedCoordinator {
    pub(crate) inputs: Inputs,
    pub(crate) coordinator: JoinHandle<()>,
}

/// The listener of an endpoint, and further parts of its port.
pub(crate) struct EndpointPort {
    pub(crate) listener: TcpListener,
    /// The store on the port, if there is one.
    pub(crate) store: Option<PortStore>,
    pub(crate) credentials: Credentials,
    /// The registered nodes, published to the port.
    pub(crate) attended: watch::Sender<Attended>,
    /// The file to which a coordinator appends its events, if there is one.
    pub(crate) journal: Option<PathBuf>,
}

/// The state of an earlier coordinator of the job, and the file that keeps it.
#[derive(Debug, Default)]
pub(crate) struct RecoveredState {
    /// The state file; `None` if the job has none.
    pub(crate) state_file: Option<PathBuf>,
    /// The memory of an earlier coordinator.
    pub(crate) memory: Option<Memory>,
}

impl RecoveredState {
    /// Reads the state file of a job.
    pub(crate) fn from_file(path: PathBuf) -> Self {
        let memory = state_file::read_memory(&path);
        Self { state_file: Some(path), memory }
    }
}

/// Starts a coordinator with the endpoint in `not_here`, and serves its port.
///
/// # Errors
///
/// Returns [`SystemError`] if the thread of the port cannot be started.
pub(crate) fn host_coordinator(
    port: EndpointPort,
    settings: Settings,
    recovered: RecoveredState,
    not_here: watch::Sender<NotHere>,
) -> Result<(HostedCoordinator, Server), SystemError> {
    let RecoveredState { state_file, memory } = recovered;
    if let Some(own) = state_file.clone() {
        // A slow disk does not delay the start, and remaining files are removed next time.
        drop(tokio::task::spawn_blocking(move || state_file::clean(&own)));
    }
    let (inputs, queue) = mpsc::channel::<Input>(limits::COORDINATOR_QUEUE);
    let run_id = settings.run_id.clone();
    let nodes_max = settings.nodes_max();
    let (known, endpoint) = (not_here.subscribe(), not_here.borrow().endpoint.clone());
    let role = Role::Coordinator { inputs: inputs.clone(), endpoint, known };
    let EndpointPort { listener, store, credentials, attended, journal } = port;
    let protocols_attended = attended.subscribe();
    let persistence = Persistence::file(state_file);
    let right = Right::Sole(not_here);
    let measures = Arc::new(CoordinatorMeasures::default());
    let records = Records { journal, measures: Arc::clone(&measures) };
    let coordination =
        Coordination::new(settings, memory, Tenure::Sole, persistence, attended, right, records);
    let coordinator = tokio::spawn(async move {
        coordinator_driver::drive(coordination, queue).await;
    });
    let (http, shared) = service::routers(&run_id, role, &credentials);
    shared.metrics.add_coordinator(measures);
    let protocols = PortProtocols {
        http,
        credentials,
        store,
        voters: None,
        attended: protocols_attended,
        nodes_max,
    };
    Ok((HostedCoordinator { inputs, coordinator }, Server::start(listener, protocols, shared)?))
}
