//! Serves the page of a job to one browser on this machine: `ragent page`. The job may be on another machine.

mod gate;

use std::{
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::Response,
};
use ragent_base::{
    net::{
        self,
        port::{self, PortProtocols},
    },
    sys::{clock, host::ThisHost},
};
use ragent_coordinator::service;
use ragent_node::endpoint::{HostOrJoinError, LocateError};
use ragent_options::{cli::PageArgs, spec::JobEndpoint};
use ragent_proto::convert::CoordinatorAddress;
use tokio::sync::{Mutex, watch};

use self::gate::Gate;
use super::{
    asked_job::asked_job,
    credentials::AskerCredentials,
    error::{LaunchError, system},
    find_coordinator::{FoundJob, find_coordinator},
    runtime,
};

/// The shortest time between two searches for the coordinator.
const SEARCH_INTERVAL: Duration = Duration::from_millis(500);

/// The number of connections of the browser, some for each of its pages.
const CONNECTIONS_MAX: usize = 256;

/// Serves the page until a signal. Its address is the only line on stdout.
///
/// # Errors
///
/// Returns [`LaunchError`] if the endpoint to ask is unknown, no process answers, or the port cannot be used.
pub fn serve(args: &PageArgs) -> Result<ExitCode, LaunchError> {
    ThisHost.disable_core_dumps();
    let (job, credentials) = asked_job(&args.asked)?;
    runtime::block_on(async {
        let mut signals = runtime::watch_signals(&runtime::END_SIGNALS)?;
        let found = find_coordinator(job.clone(), &credentials).await?;
        let (listener, address) = listen(args.port)?;
        let gate = Gate::new(address.port()).map_err(system("make a token"))?;
        print_address(address, &found, gate.token())?;
        // The cookie alone is not enough, because browsers send it to the other ports of this machine as well.
        let others = Router::new().fallback(async || (StatusCode::FORBIDDEN, gate::OTHER_USER));
        let protocols = PortProtocols::private(pages(job, credentials, found, gate), others);
        tokio::select! {
            served = port::serve_port(listener, protocols, CONNECTIONS_MAX) => {
                served.map_err(system("serve the page"))?;
            }
            _ = signals.recv() => {}
        }
        Ok(ExitCode::SUCCESS)
    })?
}

/// Listens on a port of the loopback interface, and returns the address.
fn listen(port: u16) -> Result<(TcpListener, SocketAddr), LaunchError> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = net::listen_on(address)
        .map_err(|source| HostOrJoinError::Locate(LocateError::Bind { address, source }))?;
    let address = listener.local_addr().map_err(system("listen"))?;
    Ok((listener, address))
}

/// Prints the address of the page on stdout, and its purpose on stderr.
fn print_address(address: SocketAddr, found: &FoundJob, token: &str) -> Result<(), LaunchError> {
    let run_id = ragent_proto::printable(found.snapshot.run_id.as_str());
    let note = format!(
        "ragent: this address opens the page of job {run_id} in one browser; Ctrl-C ends it\n"
    );
    let print = || {
        io::stderr().write_all(note.as_bytes())?;
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "http://{address}/?token={token}")?;
        stdout.flush()
    };
    print().map_err(system("print the address of the page"))
}

/// Returns the pages of a job, which only the browser with the token or the cookie can read.
fn pages(job: JobEndpoint, credentials: AskerCredentials, found: FoundJob, gate: Gate) -> Router {
    let (known, role) = watch::channel(address(&found));
    let finder = Finder { job, credentials, known, last: Mutex::new(clock::now()) };
    service::relayed_pages(role, &found.credentials)
        .layer(middleware::from_fn_with_state(Arc::new(finder), follow))
        .layer(middleware::from_fn_with_state(Arc::new(gate), gate::check))
}

fn address(found: &FoundJob) -> CoordinatorAddress {
    CoordinatorAddress { term: found.snapshot.term, endpoint: found.endpoint.to_string() }
}

/// Finds the coordinator of the job again whenever the last one does not answer.
struct Finder {
    job: JobEndpoint,
    credentials: AskerCredentials,
    known: watch::Sender<CoordinatorAddress>,
    /// The time of the last search.
    last: Mutex<Instant>,
}

impl Finder {
    /// Searches for the coordinator, unless another request has just done so.
    async fn search(&self) {
        let asked = clock::now();
        let mut last = self.last.lock().await;
        if *last > asked {
            return;
        }
        clock::until(Some(*last + SEARCH_INTERVAL)).await;
        if let Ok(found) = find_coordinator(self.job.clone(), &self.credentials).await {
            self.known.send_replace(address(&found));
        }
        *last = clock::now();
    }
}

/// Repeats a request if the coordinator has not answered. Another process may coordinate by now.
async fn follow(State(finder): State<Arc<Finder>>, request: Request, next: Next) -> Response {
    let (parts, _) = request.into_parts();
    let again = Request::from_parts(parts.clone(), Body::empty());
    let answer = next.clone().run(Request::from_parts(parts, Body::empty())).await;
    match answer.status() {
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => {
            finder.search().await;
            next.run(again).await
        }
        _ => answer,
    }
}
