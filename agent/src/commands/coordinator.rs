//! Runs a voter of a job without an agent: `ragent coordinator`.

use std::{
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
};

use ragent_base::{
    limits,
    net::port::RegisteredNodes,
    secret::Credentials,
    sys::{clock, host::ThisHost},
};
use ragent_coordinator::journal;
use ragent_election::election::timers::Timers;
use ragent_leadership::state_file;
use ragent_node::{
    endpoint::{
        HostOrJoinError,
        host::warn_of_open_port,
        hosted::{
            EndpointPort, HostEnd, Hosted, HostedVoterSpec, OwnCoordinator, host_voter, kept_for,
        },
        metrics_port::MetricsPort,
        plain_store::plain_store,
        server::Server,
        voter_secrets,
        voters::{OwnEndpoint, own_endpoint, source},
    },
    node::node_id::new_node_id,
};
use ragent_options::{
    cli::CoordinatorArgs,
    spec::{Argument, UsageError, VoterList, credentials, shared_credentials},
};
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::{
    ids::RunId,
    settings::{Leases, NodeRange, Settings, Timeouts},
    voter_count::VoterCount,
};
use ragent_store::StoreThread;
use tokio::sync::watch;
use tracing::info;

use super::{
    error::{LaunchError, system, unwritable},
    runtime,
};

/// Takes part in the election of a job's coordinator, until a signal or until the job has ended.
///
/// # Errors
///
/// Returns [`LaunchError`] if no list of voters is given, or if none of its endpoints can be served here.
pub fn vote(args: &CoordinatorArgs) -> Result<ExitCode, LaunchError> {
    let (Some(list), Some(nodes), None, None) =
        (&args.rdzv_endpoint, &args.nnodes, &args.host, &args.port)
    else {
        return Err(without_list().into());
    };
    ThisHost.raise_open_files();
    ThisHost.raise_priority();
    ThisHost.disable_core_dumps();
    let credentials = shared_credentials(credentials(&args.auth, &ThisHost)?, &ThisHost)?;
    let metrics = metrics_port(args)?;
    let list = Argument::new("--rdzv-endpoint", list).voters()?;
    let nodes = Argument::new("--nnodes", nodes).nodes()?;
    let stores = StoreThread::start("store").map_err(system("start a thread"))?;
    runtime::block_on(async {
        let mut signals = runtime::watch_signals(&runtime::END_SIGNALS)?;
        voter_secrets::check(&list, &credentials).await.map_err(HostOrJoinError::from)?;
        let own = own_endpoint(&list, clock::now(), |_| {}).await.map_err(HostOrJoinError::from)?;
        let own = own.ok_or_else(|| no_free_endpoint(&list))?;
        let address = own.listener.local_addr().map_err(system("listen"))?;
        warn_of_open_port(&credentials, &RunId::new(&args.rdzv_id), address);
        let (mut voter, server) = host(args, &stores, credentials, (&list, nodes), own)?;
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

/// Starts the voter at an endpoint of this machine, and serves its port.
fn host(
    args: &CoordinatorArgs,
    stores: &StoreThread,
    credentials: Credentials,
    (list, nodes): (&VoterList, NodeRange),
    own: OwnEndpoint,
) -> Result<(Hosted, Server), LaunchError> {
    let registered_nodes = watch::Sender::new(RegisteredNodes::default());
    let port = EndpointPort {
        listener: own.listener,
        store: plain_store(stores, registered_nodes.subscribe(), &credentials)?,
        credentials,
        registered_nodes,
        journal: journal(args)?,
        exclude_command: exclude_command(args)?,
    };
    let run_id = RunId::new(&args.rdzv_id);
    let process = new_node_id();
    let spec = HostedVoterSpec {
        is_list_common: true,
        listed: list.endpoints().to_vec(),
        state_file: state_file::voter_path(&run_id, &own.endpoint),
        timers: Timers::for_nodes(nodes),
        source: source(own.address),
        kept: kept_for(nodes, Timeouts::default()),
        is_first_start: false,
        process: process.clone(),
    };
    let coordinator = OwnCoordinator {
        settings: settings(run_id, process.to_string(), list.count_for(nodes)),
        endpoint: own.endpoint,
        // There is no agent in this process.
        registered: watch::Sender::new(CoordinatorAddress::unknown()),
    };
    Ok(host_voter(port, coordinator, spec)?)
}

/// Prints the address of the listener on stdout.
fn print_address(address: SocketAddr) -> Result<(), LaunchError> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{address}").and_then(|()| stdout.flush()).map_err(system("write to stdout"))
}

fn no_free_endpoint(list: &VoterList) -> UsageError {
    let message =
        format!("this machine has no endpoint of `--rdzv-endpoint {list}` whose port is free");
    let hint = "run `ragent coordinator` on a listed host on which no agent of the job runs";
    UsageError::new(message).with_hint(hint)
}

/// Returns the error of a command without a list. Until version 0.3, it ran the only coordinator of a job.
fn without_list() -> UsageError {
    let message = "cannot start a voter: `ragent coordinator` needs `--nnodes`, and the list of the voters in \
                   `--rdzv-endpoint`, without `--host` and `--port`";
    let hint = "give both as the nodes of the job do: `ragent coordinator --rdzv-id run7 --nnodes 2 \
                --rdzv-endpoint node0,node1,login`; a job with one endpoint needs no such command";
    UsageError::new(message).with_hint(hint)
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
        journal::file::open(path).map_err(unwritable("--journal", path))?;
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
