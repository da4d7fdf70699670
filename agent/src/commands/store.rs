//! Serves a store alone, without an agent: `ragent store`.

use std::{io, process::ExitCode};

use nix::unistd;
use ragent_base::{cli::StoreArgs, sys::host::ThisHost};
use ragent_store::{AdmissionRule, StoreThread};

use super::{
    error::{LaunchError, system},
    parent, runtime,
    serve::{SIGNALS, bind, print_address},
};

/// Serves a store until a signal. The first line on stdout is the address at which it listens.
///
/// # Errors
///
/// Returns [`LaunchError`] if the address cannot be bound.
pub fn serve(args: &StoreArgs) -> Result<ExitCode, LaunchError> {
    if args.exit_with_parent && !parent::end_with(unistd::getppid())? {
        return Ok(ExitCode::SUCCESS);
    }
    ThisHost.raise_open_files();
    let (listener, address) = bind(&args.host, args.port)?;
    let stores = StoreThread::start("store").map_err(system("start a thread"))?;
    runtime::block_on(async {
        let mut signals = runtime::watch_signals(&SIGNALS)?;
        let store = stores
            .open(listener, AdmissionRule::Anybody)
            .map_err(|error| system("open the store")(io::Error::other(error)))?;
        print_address(address)?;
        signals.recv().await;
        store.close().await;
        Ok(ExitCode::SUCCESS)
    })?
}
