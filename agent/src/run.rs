//! The story of a launch, from a [`JobSpec`] to an exit code.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use nix::sys::signal::Signal;
use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    Rendezvous,
    ids::{JobUid, NodeId, RoundId, RunId},
    message::{Heard, JobResult, NodeDescription},
    settings::{Leases, Memory, Settings, SharedSettings},
};
use ragent_store::{Admission, StoreThread};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tracing::{info, warn};

use crate::{
    agent::{
        driver::{self as agent_driver, AgentSpec},
        machine::{AgentSettings, Ending},
        worker_stores::WorkerStores,
    },
    clock,
    coordinator::{
        discovery::{self, Located},
        driver::{self as coordinator_driver, Input, Inputs},
        service::{self, Role},
    },
    error::{Ended, LaunchError},
    host::ThisHost,
    job_spec::{Endpoint, JobSpec, JobSpecError, Meeting},
    limits,
    net::{self, PortProtocols, Reach},
    state_file::{self, Registration, RunningAgent},
    supervisor::{
        console::Console,
        driver::{self as supervisor_driver, SupervisorSpec},
        environment::EnvironmentSpec,
        logs::LogFolder,
    },
};

/// Launches this node's part of a job and waits for its end.
///
/// # Errors
///
/// Returns [`LaunchError`] unless the job has succeeded.
pub fn launch(mut spec: JobSpec) -> Result<ExitCode, LaunchError> {
    if spec.meeting == Meeting::Standalone {
        // As torchrun does: nobody else can take part, so nobody needs to know the name.
        spec.run_id = RunId::new(random_id());
    }
    // Whatever outlives a keeper that was killed becomes this process's child, and is swept.
    nix::sys::prctl::set_child_subreaper(true)
        .map_err(|errno| system("become a subreaper")(errno.into()))?;
    let logs = LogFolder::create(spec.log_dir.as_deref(), &ThisHost.temp_dir(), &spec.run_id)
        .map_err(|(path, error)| {
            let (path, error) = (path.display().to_string(), error.to_string());
            LaunchError::Usage(vec![JobSpecError::LogDir { path, error }])
        })?;
    block_on(launch_on_runtime(spec, logs))?
}

/// Runs `future` on a runtime of this thread alone.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, LaunchError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(system("start the runtime"))?;
    let output = runtime.block_on(future);
    // A look-up that hangs in a resolver must not keep the process.
    runtime.shutdown_background();
    Ok(output)
}

fn system(attempt: &'static str) -> impl Fn(std::io::Error) -> LaunchError {
    move |source| LaunchError::System { attempt, source }
}

async fn launch_on_runtime(spec: JobSpec, logs: LogFolder) -> Result<ExitCode, LaunchError> {
    let open_files = ThisHost.raise_open_files();
    let signals = watch_signals(&spec.signals)?;
    let (console, console_end) = Console::start().map_err(system("start a thread"))?;
    let mut supervisor =
        supervisor_driver::start(supervisor_spec(&spec, open_files, logs, console))
            .map_err(system("start the keeper process"))?;
    let outcome = take_part(&spec, &mut supervisor, signals).await;
    // Ends the keeper, and with it whatever may be left.
    let supervisor_driver::SupervisorHandle { commands, told, task } = supervisor;
    drop((commands, told));
    let _ = tokio::time::timeout(limits::KEEPER_TIMEOUT, task).await;
    console_end.wait(limits::FAREWELL_TIMEOUT).await;
    let (ending, endpoint) = outcome?;
    match ending {
        Ending::Closed(outcome) if outcome.result == JobResult::Succeeded => {
            info!(run_id = %spec.run_id, "the job has succeeded");
            Ok(ExitCode::SUCCESS)
        }
        ending => {
            let (settings, title) = (spec.shared, spec.command.title);
            Err(LaunchError::Ended(Box::new(Ended { ending, settings, endpoint, title })))
        }
    }
}

/// Finds or becomes the coordinator, and attends it to the end.
async fn take_part(
    spec: &JobSpec,
    supervisor: &mut supervisor_driver::SupervisorHandle,
    mut signals: mpsc::Receiver<Signal>,
) -> Result<(Ending, Endpoint), LaunchError> {
    let located = tokio::select! {
        located = locate(spec) => located?,
        // Nobody knows this node yet, so it just goes.
        Some(signal) = signals.recv() => return Ok((Ending::Left(signal), Endpoint::default())),
    };
    let stores = StoreThread::start("stores").map_err(system("start a thread"))?;
    let mut place = match located.located {
        Located::Here { listener, address } => {
            host(spec, &stores, listener, address, located.endpoint)?
        }
        Located::There(address) => join(spec, address, located.endpoint)?,
    };
    let registration = Registration::new(&RunningAgent {
        run_id: spec.run_id.to_string(),
        endpoint: place.endpoint.to_string(),
        pid: std::process::id(),
    });
    if let Err(error) = &registration {
        warn!(%error, "`ragent status` on this machine must be told the endpoint");
    }
    let stores = WorkerStores::new(stores, place.reach, spec.store_ports);
    let endpoint = place.endpoint.clone();
    let agent = agent_spec(spec, &mut place);
    let ending = agent_driver::drive(agent, stores, supervisor, signals)
        .await
        .map_err(system("open a store for the workers"))?;
    // The coordinator stays until every agent knows the outcome, or a lease has passed.
    if let Some(coordinator) = place.coordinator {
        drop(place.inputs);
        let _ = coordinator.await;
    }
    place.server.abort();
    Ok((ending, endpoint))
}

/// Who hosts, and under which endpoint.
struct Found {
    located: Located,
    endpoint: Endpoint,
}

async fn locate(spec: &JobSpec) -> Result<Found, LaunchError> {
    let (endpoint, is_host) = match &spec.meeting {
        Meeting::Standalone => {
            let listener =
                net::listen(Reach::of(Ipv4Addr::LOCALHOST.into()), 0).map_err(system("listen"))?;
            let address = listener.local_addr().map_err(system("listen"))?;
            let endpoint = Endpoint { host: address.ip().to_string(), port: address.port() };
            return Ok(Found { located: Located::Here { listener, address }, endpoint });
        }
        // The list has one entry until another agent can take over.
        Meeting::Endpoint { endpoints, is_host } => (endpoints[0].clone(), *is_host),
    };
    let located = discovery::locate(&endpoint, is_host, spec.shared.timeouts.join).await?;
    let mut endpoint = endpoint;
    if let Located::Here { address, .. } = &located {
        if address.ip().is_loopback() && spec.shared.nodes.max() > 1 {
            warn!(
                %endpoint, "the endpoint is a loopback address: only agents of this machine reach it"
            );
        }
        endpoint.port = address.port();
    }
    Ok(Found { located, endpoint })
}

/// Where this agent stands: what it serves, and where it attends.
struct Place {
    endpoint: Endpoint,
    /// The address by which the others know this node, where the endpoint gives it.
    address: Option<SocketAddr>,
    reach: Reach,
    port: u16,
    node_id: NodeId,
    heard: Heard,
    not_here: Option<watch::Sender<NotHere>>,
    inputs: Option<Inputs>,
    coordinator: Option<JoinHandle<()>>,
    server: JoinHandle<std::io::Result<()>>,
}

fn host(
    spec: &JobSpec,
    stores: &StoreThread,
    listener: std::net::TcpListener,
    address: SocketAddr,
    endpoint: Endpoint,
) -> Result<Place, LaunchError> {
    let node_id = new_node_id();
    let memory_path = state_file::memory_path(&spec.run_id, &endpoint);
    let persistent = !matches!(spec.meeting, Meeting::Standalone);
    let memory = persistent.then(|| state_file::read_memory(&memory_path)).flatten();
    let heard = memory.as_ref().map_or_else(Heard::default, |memory| Heard {
        round: RoundId { term: memory.term, round: memory.round },
        size: memory.round_size,
        group_rank: memory.host_rank,
    });
    let settings = Settings {
        run_id: spec.run_id.clone(),
        coordinator: node_id.to_string(),
        host: Some(node_id.clone()),
        shared: Some(spec.shared),
        leases: Leases::default(),
    };
    let hosted =
        host_endpoint(stores, listener, settings, memory, persistent.then_some(memory_path))?;
    info!(%endpoint, run_id = %spec.run_id, nodes = %spec.shared.nodes, "coordinating the job");
    let reach = Reach::of(address.ip());
    let (not_here, _) = watch::channel(NotHere { term: heard.round.term, endpoint: String::new() });
    Ok(Place {
        endpoint,
        address: Some(address),
        reach,
        port: address.port(),
        node_id,
        heard,
        not_here: Some(not_here),
        inputs: Some(hosted.inputs),
        coordinator: Some(hosted.coordinator),
        server: hosted.server,
    })
}

/// A coordinator that runs, and the server of its port.
pub(crate) struct Hosted {
    pub(crate) inputs: Inputs,
    pub(crate) coordinator: JoinHandle<()>,
    pub(crate) server: JoinHandle<std::io::Result<()>>,
}

/// Starts a coordinator and serves its port.
pub(crate) fn host_endpoint(
    stores: &StoreThread,
    listener: std::net::TcpListener,
    settings: Settings,
    memory: Option<Memory>,
    state_file: Option<std::path::PathBuf>,
) -> Result<Hosted, LaunchError> {
    let (inputs, queue) = mpsc::channel::<Input>(limits::COORDINATOR_QUEUE);
    let run_id = settings.run_id.clone();
    let memory = memory.unwrap_or_else(|| Memory::fresh(JobUid::new(random_id())));
    let rendezvous = Rendezvous::new(clock::now(), settings, memory);
    let coordinator = tokio::spawn(coordinator_driver::drive(rendezvous, queue, state_file));
    // Any PyTorch client may use the endpoint as a plain store.
    let store = stores
        .open_without_listener(Admission::Anybody)
        .map_err(|error| system("open the endpoint's store")(std::io::Error::other(error)))?;
    let http = service::router(run_id.as_str(), Role::Coordinator(inputs.clone()));
    let protocols = PortProtocols { http, store: Some(store) };
    let server = tokio::spawn(net::serve_port(listener, protocols));
    Ok(Hosted { inputs, coordinator, server })
}

fn join(spec: &JobSpec, coordinator: SocketAddr, endpoint: Endpoint) -> Result<Place, LaunchError> {
    // A stream to any loopback address begins at the first one of its family.
    let reach = match coordinator.ip() {
        IpAddr::V4(ip) if ip.is_loopback() => Reach::Loopback(Ipv4Addr::LOCALHOST.into()),
        ip => Reach::of(ip),
    };
    let listener = net::listen(reach, 0).map_err(system("listen"))?;
    let port = listener.local_addr().map_err(system("listen"))?.port();
    let term = Heard::default().round.term;
    let (not_here, known) = watch::channel(NotHere { term, endpoint: endpoint.to_string() });
    let http = service::router(spec.run_id.as_str(), Role::Elsewhere(known));
    let server = tokio::spawn(net::serve_port(listener, PortProtocols { http, store: None }));
    Ok(Place {
        endpoint,
        address: None,
        reach,
        port,
        node_id: new_node_id(),
        heard: Heard::default(),
        not_here: Some(not_here),
        inputs: None,
        coordinator: None,
        server,
    })
}

fn agent_spec(spec: &JobSpec, place: &mut Place) -> AgentSpec {
    let host_name = ThisHost.name();
    let address = spec
        .local_addr
        .clone()
        .or_else(|| place.address.filter(|a| !a.ip().is_unspecified()).map(|a| a.ip().to_string()));
    let node = NodeDescription {
        node_id: place.node_id.clone(),
        host_name,
        // Filled in with the stream's own address where it is not known here.
        address: address.unwrap_or_default(),
        addresses: ThisHost.addresses().into_iter().take(MAX_ADDRESSES).collect(),
        agent_port: place.port,
        role: spec.role.clone(),
        local_world_size: spec.local_world_size,
        node_rank: spec.node_rank,
    };
    let not_here = place.not_here.take().unwrap_or_else(|| {
        watch::channel(NotHere { term: place.heard.round.term, endpoint: String::new() }).0
    });
    AgentSpec {
        run_id: spec.run_id.clone(),
        endpoint: place.endpoint.clone(),
        shared: spec.shared,
        node,
        settings: agent_settings(spec.shared, spec.shutdown_timeout, place.heard),
        not_here,
    }
}

/// As many as the wire takes.
const MAX_ADDRESSES: usize = 64;

fn agent_settings(
    shared: SharedSettings,
    shutdown_timeout: Duration,
    heard: Heard,
) -> AgentSettings {
    AgentSettings {
        stop_grace: shared.timeouts.stop_grace,
        shutdown_timeout,
        join_timeout: shared.timeouts.join,
        heard,
    }
}

fn supervisor_spec(
    spec: &JobSpec,
    open_files: u64,
    logs: LogFolder,
    console: Console,
) -> SupervisorSpec {
    let signals: Vec<&str> = spec.signals.iter().map(|signal| signal.as_str()).collect();
    SupervisorSpec {
        command: spec.command.clone(),
        environment: EnvironmentSpec {
            run_id: spec.run_id.clone(),
            max_restarts: spec.shared.max_restarts,
            role: spec.role.clone(),
            local_world_size: spec.local_world_size.get(),
            signals: signals.join(","),
            omp_num_threads: spec.omp_num_threads,
            nccl_async_error_handling: spec.nccl_async_error_handling,
        },
        streams: spec.streams.clone(),
        logs,
        stop_grace: spec.shared.timeouts.stop_grace,
        open_files,
        host_name: ThisHost.name(),
        console,
    }
}

/// One queue for all signals on which the agent shuts down.
pub(crate) fn watch_signals(signals: &[Signal]) -> Result<mpsc::Receiver<Signal>, LaunchError> {
    let (sender, queue) = mpsc::channel(limits::STREAM_QUEUE);
    for &kind in signals {
        let stream = signal(SignalKind::from_raw(kind as i32));
        let mut stream = stream.map_err(system("watch for signals"))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                if sender.send(kind).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(queue)
}

/// A name that no other agent process has.
fn new_node_id() -> NodeId {
    NodeId::new(format!("{}_{}_{}", ThisHost.name(), std::process::id(), random_id()))
}

fn random_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}
