//! Runs a coordinator alone, without an agent: `ragent coordinator`.

use std::{path::PathBuf, process::ExitCode};

use ragent_base::{
    cli::CoordinatorArgs,
    limits,
    net::port::RegisteredNodes,
    secret::Credentials,
    spec::{Argument, Endpoint, UsageError, credentials, shared_credentials},
    sys::{clock, host::ThisHost},
};
use ragent_coordinator::journal_file;
use ragent_election::election::timers::Timers;
use ragent_leadership::{
    fixed::{self, RecoveredState},
    state_file,
};
use ragent_node::{
    endpoint::{
        HostOrJoinError,
        host::warn_of_open_port,
        hosted::{self, EndpointPort, HostEnd, HostedVoterSpec, OwnCoordinator, host_voter},
        metrics_port::MetricsPort,
        plain_store::plain_store,
        voter_secrets,
        voters::{kept_for, own_endpoint, source},
    },
    node::node_id::new_node_id,
};
use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    ids::{RunId, Term},
    settings::{Leases, Settings, Timeouts},
    voter_count::VoterCount,
};
use ragent_store::StoreThread;
use tokio::sync::watch;
use tracing::info;

use super::{
    error::{LaunchError, system, unwritable},
    runtime,
    serve::{SIGNALS, bind, print_address},
};

/// Hosts an endpoint until a signal, or until its job has ended.
///
/// # Errors
///
/// Returns [`LaunchError`] if the address cannot be bound.
pub fn host(args: &CoordinatorArgs) -> Result<ExitCode, LaunchError> {
    ThisHost.raise_open_files();
    ThisHost.raise_priority();
    ThisHost.disable_core_dumps();
    let credentials = credentials(&args.auth, &ThisHost)?;
    let metrics = metrics_port(args)?;
    if let (Some(list), Some(nodes)) = (&args.rdzv_endpoint, &args.nnodes) {
        return vote(args, list, nodes, shared_credentials(credentials, &ThisHost)?, metrics);
    }
    let (listener, address) = bind(&args.host, args.port)?;
    let credentials = match address.ip().is_loopback() {
        true => credentials,
        false => shared_credentials(credentials, &ThisHost)?,
    };
    let stores = StoreThread::start("store").map_err(system("start a thread"))?;
    runtime::block_on(async {
        let mut signals = runtime::watch_signals(&SIGNALS)?;
        let endpoint = Endpoint { host: args.host.clone(), port: address.port() };
        let run_id = RunId::new(&args.rdzv_id);
        let recovered = RecoveredState::from_file(state_file::job_state_path(&run_id, &endpoint));
        let process = format!("{}_{}", ThisHost.name(), std::process::id());
        let begins_at = (args.port != 0).then(|| clock::now() + Leases::default().coordinator);
        let settings = Settings { begins_at, ..settings(run_id, process, VoterCount::One) };
        let registered_nodes = watch::Sender::new(RegisteredNodes::default());
        let store = plain_store(&stores, registered_nodes.subscribe(), &credentials)?;
        warn_of_open_port(&credentials, &settings.run_id, address);
        let (journal, exclude_command) = (journal(args)?, exclude_command(args)?);
        let port = EndpointPort {
            listener,
            store,
            credentials,
            registered_nodes,
            journal,
            exclude_command,
        };
        let here = NotHere { term: Term(0), endpoint: endpoint.to_string() };
        let (not_here, _) = watch::channel(here);
        let own = OwnCoordinator { settings, endpoint, registered: not_here };
        let (mut hosted, server) = hosted::host(port, own, fixed::start(recovered), None)?;
        metrics.iter().for_each(|metrics| metrics.handle_found(server.metrics()));
        print_address(address)?;
        info!(%address, run_id = args.rdzv_id, "coordinating the job");
        tokio::select! {
            biased;
            () = hosted.job_ended() => {}
            signal = signals.recv() => {
                info!(?signal, "signal received; notifying the agents");
                hosted.end(HostEnd::Other, None).await;
            }
        }
        drop(server);
        Ok(ExitCode::SUCCESS)
    })?
}

/// Returns the settings of a coordinator without an agent. The nodes that register bring the settings of the job.
fn settings(run_id: RunId, coordinator: String, voter_count: VoterCount) -> Settings {
    Settings {
        run_id,
        coordinator,
        host: None,
        shared: None,
        // They are known to the part that decides who coordinates.
        voters: Vec::new(),
        voter_count,
        keeps_charges: ThisHost.service_dir().is_some(),
        leases: Leases::default(),
        begins_at: None,
    }
}

/// Returns the file of `--journal`, after a check that it can be written.
fn journal(args: &CoordinatorArgs) -> Result<Option<PathBuf>, LaunchError> {
    let path = args.journal.as_ref().map(PathBuf::from);
    if let Some(path) = &path {
        journal_file::open(path).map_err(unwritable("--journal", path))?;
    }
    Ok(path)
}

/// Returns the program of `--exclude-command`, with its arguments.
fn exclude_command(args: &CoordinatorArgs) -> Result<Vec<String>, LaunchError> {
    let given = Argument::of_flag("--exclude-command", &args.exclude_command);
    let words = given.map(|given| given.command(&ThisHost, "'cat bad-hosts'")).transpose()?;
    Ok(words.unwrap_or_default())
}

/// Opens the port of the metrics, if it is given.
fn metrics_port(args: &CoordinatorArgs) -> Result<Option<MetricsPort>, LaunchError> {
    let given = Argument::of_flag("--metrics-listen", &args.metrics_listen);
    let address = given.map(|given| given.listen_address()).transpose()?;
    Ok(address.map(MetricsPort::open).transpose()?)
}

/// Takes part in the election of a job's coordinator, until a signal or until the job has ended.
fn vote(
    args: &CoordinatorArgs,
    list: &str,
    nodes: &str,
    credentials: Credentials,
    metrics: Option<MetricsPort>,
) -> Result<ExitCode, LaunchError> {
    let list = Argument::new("--rdzv-endpoint", list).voters()?;
    let nodes = Argument::new("--nnodes", nodes).nodes()?;
    let stores = StoreThread::start("store").map_err(system("start a thread"))?;
    runtime::block_on(async {
        let mut signals = runtime::watch_signals(&SIGNALS)?;
        voter_secrets::check(&list, &credentials).await.map_err(HostOrJoinError::from)?;
        let own = own_endpoint(&list, clock::now(), |_| {}).await.map_err(HostOrJoinError::from)?;
        let Some(own) = own else {
            let message = format!(
                "this machine has no endpoint of `--rdzv-endpoint {list}` whose port is free"
            );
            let hint =
                "run `ragent coordinator` on a listed host on which no agent of the job runs";
            return Err(UsageError::new(message).with_hint(hint).into());
        };
        let address = own.listener.local_addr().map_err(system("listen"))?;
        let registered_nodes = watch::Sender::new(RegisteredNodes::default());
        let store = plain_store(&stores, registered_nodes.subscribe(), &credentials)?;
        warn_of_open_port(&credentials, &RunId::new(&args.rdzv_id), address);
        let (journal, exclude_command) = (journal(args)?, exclude_command(args)?);
        let listener = own.listener;
        let port = EndpointPort {
            listener,
            store,
            credentials,
            registered_nodes,
            journal,
            exclude_command,
        };
        let process = new_node_id();
        let state_file = state_file::voter_path(&RunId::new(&args.rdzv_id), &own.endpoint);
        let count = list.count_for(nodes);
        let coordinator = OwnCoordinator {
            settings: settings(RunId::new(&args.rdzv_id), process.to_string(), count),
            endpoint: own.endpoint,
            // There is no agent in this process.
            registered: watch::Sender::new(NotHere::unknown()),
        };
        let spec = HostedVoterSpec {
            is_list_common: true,
            listed: list.endpoints().to_vec(),
            state_file,
            timers: Timers::for_nodes(nodes),
            source: source(own.address),
            process,
            kept: kept_for(Timeouts::default().join),
            is_first_start: false,
        };
        let (mut voter, server) = host_voter(port, coordinator, spec)?;
        metrics.iter().for_each(|metrics| metrics.handle_found(server.metrics()));
        print_address(address)?;
        info!(%address, voters = %list, run_id = args.rdzv_id, "taking part in the election");
        let how = tokio::select! {
            biased;
            () = voter.job_ended() => HostEnd::Closed,
            signal = signals.recv() => {
                info!(?signal, "signal received; leaving the election");
                HostEnd::Left
            }
        };
        tokio::select! {
            ended = tokio::time::timeout(limits::COORDINATOR_END_MARGIN, voter.end(how, None)) => {
                // After this time the coordinator is considered stuck.
                let _ = ended;
            }
            signal = signals.recv() => info!(?signal, "signal received again; ending at once"),
        }
        drop(server);
        Ok(ExitCode::SUCCESS)
    })?
}
