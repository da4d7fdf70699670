//! `ragent coordinator`: a coordinator alone, without an agent.

use std::process::ExitCode;

use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    ids::{RunId, Term},
    settings::{Leases, Settings},
};
use ragent_store::StoreThread;
use tokio::sync::watch;
use tracing::info;

use super::{
    error::{LaunchError, system},
    runtime,
    serve::{SIGNALS, bind, print_address},
};
use crate::{
    cli::CoordinatorArgs,
    coordinator::{driver::Input, state_file},
    endpoint::{
        hosted_coordinator::{EndpointPort, RecoveredState, host_coordinator},
        plain_store::plain_store,
    },
    net::port::Attended,
    spec::Endpoint,
    sys::host::ThisHost,
};

/// Hosts an endpoint until a signal, or until its job has ended.
///
/// # Errors
///
/// Returns [`LaunchError`] if the address cannot be bound.
pub fn host(args: &CoordinatorArgs) -> Result<ExitCode, LaunchError> {
    ThisHost.raise_open_files();
    ThisHost.disable_core_dumps();
    let (listener, address) = bind(&args.host, args.port)?;
    let stores = StoreThread::start("store").map_err(system("start a thread"))?;
    runtime::block_on(async {
        let mut signals = runtime::watch_signals(&SIGNALS)?;
        let endpoint = Endpoint { host: args.host.clone(), port: address.port() };
        let run_id = RunId::new(&args.rdzv_id);
        let recovered = RecoveredState::from_file(state_file::memory_path(&run_id, &endpoint));
        let settings = Settings {
            run_id,
            coordinator: format!("{}_{}", ThisHost.name(), std::process::id()),
            host: None,
            shared: None,
            keeps_charges: ThisHost.service_dir().is_some(),
            leases: Leases::default(),
        };
        let attended = watch::Sender::new(Attended::default());
        let store = plain_store(&stores, attended.subscribe())?;
        let port = EndpointPort { listener, store, attended };
        let here = NotHere { term: Term(0), endpoint: endpoint.to_string() };
        let (not_here, _) = watch::channel(here);
        let (mut hosted, server) = host_coordinator(port, settings, recovered, not_here);
        print_address(address)?;
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
