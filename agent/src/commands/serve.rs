//! Prints the address of a service that is hosted without an agent, and waits for the signals that end it.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener, ToSocketAddrs},
};

use nix::sys::signal::Signal;
use ragent_base::net;
use ragent_node::endpoint::{HostOrJoinError, LocateError};

use super::error::{LaunchError, system};

pub(super) const SIGNALS: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

pub(super) fn bind(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), LaunchError> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let resolved = (host, port).to_socket_addrs().map_err(system("resolve `--host`"))?;
    let address = resolved
        .min()
        .ok_or_else(|| system("resolve `--host`")(io::Error::other("it has no address")))?;
    let listener = net::listen_on(address)
        .map_err(|source| HostOrJoinError::Locate(LocateError::Bind { address, source }))?;
    let address = listener.local_addr().map_err(system("listen"))?;
    Ok((listener, address))
}

/// Prints the address of the listener on stdout.
pub(super) fn print_address(address: SocketAddr) -> Result<(), LaunchError> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{address}").and_then(|()| stdout.flush()).map_err(system("write to stdout"))
}
