//! `ragent store` and `ragent coordinator`: the services of an agent, hosted alone.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    process::ExitCode,
};

use nix::{
    sys::{prctl, signal::Signal},
    unistd,
};
use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    ids::{RunId, Term},
    settings::{Leases, Settings},
};
use ragent_store::{Admission, StoreThread};
use tokio::sync::watch;
use tracing::info;

use crate::{
    cli::{CoordinatorArgs, StoreArgs},
    coordinator::{discovery::LocateError, driver::Input},
    error::{LaunchError, system},
    host::ThisHost,
    job_spec::Endpoint,
    net::{self, port::Attended},
    place::{self, ServedPort},
    run, state_file,
};

const SIGNALS: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

/// Serves a store until a signal; the first line on stdout is the address that it listens on.
///
/// # Errors
///
/// Returns [`LaunchError`] if the address cannot be bound.
pub fn store(args: &StoreArgs) -> Result<ExitCode, LaunchError> {
    if args.exit_with_parent {
        let parent = unistd::getppid();
        prctl::set_pdeathsig(Signal::SIGTERM).map_err(|errno| {
            system("request a signal at the end of the parent process")(errno.into())
        })?;
        if unistd::getppid() != parent {
            return Ok(ExitCode::SUCCESS);
        }
    }
    ThisHost.raise_open_files();
    let (listener, address) = bind(&args.host, args.port)?;
    let stores = StoreThread::start("store").map_err(system("start a thread"))?;
    run::block_on(async {
        let mut signals = run::watch_signals(&SIGNALS)?;
        let store = stores
            .open(listener, Admission::Anybody)
            .map_err(|error| system("open the store")(io::Error::other(error)))?;
        say(address)?;
        signals.recv().await;
        store.close().await;
        Ok(ExitCode::SUCCESS)
    })?
}

/// Hosts an endpoint until a signal, or until its job has ended.
///
/// # Errors
///
/// Returns [`LaunchError`] if the address cannot be bound.
pub fn coordinator(args: &CoordinatorArgs) -> Result<ExitCode, LaunchError> {
    ThisHost.raise_open_files();
    ThisHost.forgo_core_dumps();
    let (listener, address) = bind(&args.host, args.port)?;
    let stores = StoreThread::start("store").map_err(system("start a thread"))?;
    run::block_on(async {
        let mut signals = run::watch_signals(&SIGNALS)?;
        let endpoint = Endpoint { host: args.host.clone(), port: address.port() };
        let run_id = RunId::new(&args.rdzv_id);
        let path = state_file::memory_path(&run_id, &endpoint);
        let memory = state_file::read_memory(&path);
        let settings = Settings {
            run_id,
            coordinator: format!("{}_{}", ThisHost.name(), std::process::id()),
            host: None,
            shared: None,
            keeps_charges: ThisHost.service_dir().is_some(),
            leases: Leases::default(),
        };
        let attended = watch::Sender::new(Attended::default());
        let store = place::plain_store(&stores, attended.subscribe())?;
        let key = state_file::read_key(&path);
        let port = ServedPort { listener, store, attended, key };
        let here = NotHere { term: Term(0), endpoint: endpoint.to_string() };
        let (not_here, _) = watch::channel(here);
        let (mut hosted, server) =
            place::host_endpoint(port, settings, memory, Some(path), not_here)?;
        say(address)?;
        info!(%address, run_id = args.rdzv_id, "coordinating the job");
        tokio::select! {
            biased;
            _ = &mut hosted.coordinator => {}
            signal = signals.recv() => {
                info!(?signal, "signal received; notifying the agents");
                // The coordinator may have ended at this moment.
                let _ = hosted.inputs.send(Input::Shutdown).await;
                let _ = (&mut hosted.coordinator).await;
            }
        }
        drop(server);
        Ok(ExitCode::SUCCESS)
    })?
}

fn bind(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), LaunchError> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let resolved = (host, port).to_socket_addrs().map_err(system("resolve `--host`"))?;
    let address = resolved
        .min()
        .ok_or_else(|| system("resolve `--host`")(io::Error::other("it has no address")))?;
    let listener = net::listen_on(address)
        .map_err(|source| LaunchError::Locate(LocateError::Bind { address, source }))?;
    let address = listener.local_addr().map_err(system("listen"))?;
    Ok((listener, address))
}

/// Prints the address of the listener on stdout.
fn say(address: SocketAddr) -> Result<(), LaunchError> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{address}").and_then(|()| stdout.flush()).map_err(system("write to stdout"))
}
