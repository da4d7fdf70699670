//! Serves the stores for the workers of a round, if this node is group rank 0.
//!
//! Each round has a new and empty store, on another port than the round before. The next store is
//! opened while the previous one still serves, so a store outlives the stopping of its round.

use std::{io, net::IpAddr, sync::Arc};

use ragent_base::{
    net::{self, Reach},
    sys::users,
};
use ragent_options::spec::StorePorts;
use ragent_rendezvous::{ids::Round, message::REFUSED_CLIENTS_MAX, settings::StoreAccess};
use ragent_store::{AdmissionRule, Options, StoreHandle, StoreThread};
use tokio::sync::{mpsc, watch};

use super::limits;

/// The ports on which stores are served.
#[derive(Debug)]
pub enum StorePortMode {
    /// Each store on a port of its own.
    Ports {
        /// The connections that their listeners accept.
        reach: Reach,
        /// The ports to choose from.
        ports: StorePorts,
        /// True if the store is served. False if only its port is chosen, for the worker with rank 0.
        is_served: bool,
    },
    /// All stores on one port with an existing listener.
    OnePort {
        /// The port.
        port: u16,
        /// The channel through which the listener receives the store of the round.
        store_sender: watch::Sender<Option<StoreHandle>>,
    },
}

/// One node's worker stores.
#[derive(Debug)]
pub struct WorkerStores {
    thread: Arc<StoreThread>,
    mode: StorePortMode,
    /// Addresses that the store of a round has refused, and the round.
    refused: mpsc::Receiver<(Round, IpAddr)>,
    refusals: mpsc::Sender<(Round, IpAddr)>,
    /// The port of a pinned range that was used last.
    last_port: Option<u16>,
    serving: Option<StoreHandle>,
    next: Option<NextStore>,
}

/// A store that is open but does not admit connections yet.
#[derive(Debug)]
struct NextStore {
    store: StoreHandle,
    /// Addresses from which it refuses connections.
    refused: mpsc::Receiver<IpAddr>,
}

impl WorkerStores {
    /// Creates the stores on the ports of `mode`; none is open yet.
    pub fn new(thread: impl Into<Arc<StoreThread>>, mode: StorePortMode) -> Self {
        let (refusals, refused) = mpsc::channel(REFUSED_CLIENTS_MAX);
        let thread = thread.into();
        Self { thread, mode, refused, refusals, last_port: None, serving: None, next: None }
    }

    /// Returns true if group rank 0 serves the store of each round. False if the worker with rank 0 does.
    pub(crate) fn are_served(&self) -> bool {
        !matches!(self.mode, StorePortMode::Ports { is_served: false, .. })
    }

    /// Waits until the store of a round refuses a client, and returns its address.
    ///
    /// # Cancel safety
    ///
    /// Cancelling the call loses nothing.
    pub async fn refused(&mut self) -> (Round, IpAddr) {
        match self.refused.recv().await {
            Some(refused) => refused,
            // The queue is never closed, because `self` holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Opens the next store, which does not admit connections yet, and returns its port.
    ///
    /// # Errors
    ///
    /// Returns the system's error. For a range of pinned ports, returns the last one.
    pub async fn open(&mut self) -> io::Result<u16> {
        self.close_next().await;
        let (reach, ports) = match &self.mode {
            StorePortMode::Ports { reach, ports, .. } => (*reach, *ports),
            StorePortMode::OnePort { port, store_sender } => {
                // New connections wait. Existing ones still use the old store.
                self.serving = store_sender.send_replace(None).or_else(|| self.serving.take());
                let port = *port;
                self.next = Some(self.open_next(None)?);
                return Ok(port);
            }
        };
        let listener = match self.listen(reach, ports) {
            Ok(listener) => listener,
            // All pinned ports are in use, and the store of the previous round has one of them.
            Err(_) if self.serving.is_some() => {
                close(self.serving.take()).await;
                self.listen(reach, ports)?
            }
            Err(error) => return Err(error),
        };
        let port = listener.local_addr()?.port();
        self.next = Some(self.open_next(Some(listener))?);
        self.last_port = Some(port);
        Ok(port)
    }

    /// Serves the newest store to the workers of `round`, as `admission` lists them. Closes the previous store.
    pub async fn serve(&mut self, round: Round, admission: AdmissionRule) {
        close(self.serving.take()).await;
        let Some(NextStore { store, refused }) = self.next.take() else { return };
        store.admit(admission);
        tokio::spawn(forward(round, refused, self.refusals.clone()));
        match &self.mode {
            StorePortMode::Ports { is_served: true, .. } => self.serving = Some(store),
            StorePortMode::Ports { is_served: false, .. } => store.close().await,
            StorePortMode::OnePort { store_sender, .. } => {
                drop(store_sender.send_replace(Some(store)))
            }
        }
    }

    /// Closes all stores, because another node serves this round.
    pub async fn close_all(&mut self) {
        close(self.serving.take()).await;
        self.close_next().await;
    }

    async fn close_next(&mut self) {
        close(self.next.take().map(|next| next.store)).await;
    }

    fn open_next(&self, listener: Option<std::net::TcpListener>) -> io::Result<NextStore> {
        let (refusals, refused) = mpsc::channel(REFUSED_CLIENTS_MAX);
        let options = Options { refusals: Some(refusals), ..Options::default() };
        let store = self.thread.open_with(listener, options).map_err(io::Error::other)?;
        Ok(NextStore { store, refused })
    }

    fn listen(&self, reach: Reach, ports: StorePorts) -> io::Result<std::net::TcpListener> {
        listen_after(self.last_port, reach, ports)
    }
}

/// Listens on a free port of a range. Begins with the one after `last_port`, which was used before.
///
/// # Errors
///
/// Returns the system's error about the last port that was tried.
pub fn listen_after(
    last_port: Option<u16>,
    reach: Reach,
    ports: StorePorts,
) -> io::Result<std::net::TcpListener> {
    let StorePorts::Range { first, last } = ports else { return net::listen(reach, 0) };
    let (first, last) = (first.get(), last.get());
    let start = match last_port {
        Some(port) if (first..last).contains(&port) => port + 1,
        Some(_) | None => first,
    };
    let mut error = io::ErrorKind::AddrInUse.into();
    for port in (start..=last).chain(first..start) {
        match net::listen(reach, port) {
            Ok(listener) => return Ok(listener),
            Err(refusal) => error = refusal,
        }
    }
    Err(error)
}

/// Returns the admission rule of a round's store. `is_own` selects the addresses of this machine,
/// which all of its users share.
pub(super) fn admission_of(
    access: StoreAccess,
    members: &[IpAddr],
    world_size: u32,
    is_own: impl Fn(IpAddr) -> bool,
) -> AdmissionRule {
    match access {
        StoreAccess::Any => AdmissionRule::Anybody,
        StoreAccess::Members => {
            let addresses = members.iter().copied().filter(|address| !is_own(*address));
            AdmissionRule::Only {
                addresses: addresses.collect(),
                local_uids: users::trusted_uids(),
                silent_max: limits::silent_store_clients(world_size),
            }
        }
    }
}

/// Forwards the addresses that the store of `round` refuses, until it is closed.
async fn forward(
    round: Round,
    mut refused: mpsc::Receiver<IpAddr>,
    receiver: mpsc::Sender<(Round, IpAddr)>,
) {
    while let Some(address) = refused.recv().await {
        if receiver.send((round, address)).await.is_err() {
            return;
        }
    }
}

/// Closes a store and waits until its port is free.
async fn close(store: Option<StoreHandle>) {
    if let Some(store) = store {
        store.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU16, time::Duration};

    use nix::unistd::geteuid;

    use super::*;

    fn on(ports: StorePorts) -> StorePortMode {
        StorePortMode::Ports { reach: LOOPBACK, ports, is_served: true }
    }

    const LOOPBACK: Reach = Reach::Loopback(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    /// The ports of a range are used in turn, so that no round gets the port of the previous one.
    #[tokio::test]
    async fn pinned_ports_rotate() {
        // Three free ports in a row, found by binding them.
        let free = |first: u16| {
            (first..first + 3)
                .map(|port| net::listen(LOOPBACK, port))
                .collect::<io::Result<Vec<_>>>()
                .is_ok()
        };
        let first = (41_000..60_000).step_by(7).find(|first| free(*first)).unwrap();
        let range = StorePorts::Range {
            first: NonZeroU16::new(first).unwrap(),
            last: NonZeroU16::new(first + 2).unwrap(),
        };
        let thread = StoreThread::start("stores").unwrap();
        let mut stores = WorkerStores::new(thread, on(range));
        let mut ports = Vec::new();
        for _ in 0..4 {
            ports.push(stores.open().await.unwrap());
            stores.serve(Round(1), AdmissionRule::Anybody).await;
        }
        assert!(ports.windows(2).all(|pair| pair[0] != pair[1]), "{ports:?}");
        assert_eq!(ports, [first, first + 1, first + 2, first]);
    }

    /// A single pinned port is used again after the round that had it.
    #[tokio::test]
    async fn single_pinned_port_is_used_again() {
        let port = net::listen(LOOPBACK, 0).unwrap().local_addr().unwrap().port();
        let port = NonZeroU16::new(port).unwrap();
        let range = StorePorts::Range { first: port, last: port };
        let thread = StoreThread::start("stores").unwrap();
        let mut stores = WorkerStores::new(thread, on(range));
        for _ in 0..2 {
            assert_eq!(stores.open().await.unwrap(), port.get());
            stores.serve(Round(1), AdmissionRule::Anybody).await;
        }
    }

    /// If the worker with rank 0 serves the store itself, the port is released for the worker.
    #[tokio::test]
    async fn port_is_given_up_where_the_worker_serves() {
        let mode =
            StorePortMode::Ports { reach: LOOPBACK, ports: StorePorts::Any, is_served: false };
        let mut stores = WorkerStores::new(StoreThread::start("stores").unwrap(), mode);
        let port = stores.open().await.unwrap();
        assert!(net::listen(LOOPBACK, port).is_err());
        stores.serve(Round(1), AdmissionRule::Anybody).await;
        // A process that another test starts has the socket too, until it runs its program.
        let is_free = async {
            while net::listen(LOOPBACK, port).is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), is_free).await.unwrap();
    }

    /// A port that all rounds share has no store between two rounds.
    #[tokio::test]
    async fn one_port_has_a_store_only_in_a_round() {
        let (store_sender, seen) = watch::channel(None);
        let mode = StorePortMode::OnePort { port: 29_500, store_sender };
        let mut stores = WorkerStores::new(StoreThread::start("stores").unwrap(), mode);
        for _ in 0..2 {
            assert_eq!(stores.open().await.unwrap(), 29_500);
            assert!(seen.borrow().is_none());
            stores.serve(Round(1), AdmissionRule::Anybody).await;
            assert!(seen.borrow().is_some());
        }
    }

    /// This machine's own addresses are not admitted, because all its users share them. The user is checked instead.
    #[test]
    fn own_addresses_are_no_members() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let members = ["10.0.0.1", "10.0.0.2"].map(ip);
        let is_own = |address| address == ip("10.0.0.1");
        let admission = admission_of(StoreAccess::Members, &members, 8, is_own);
        let expected = AdmissionRule::Only {
            addresses: [ip("10.0.0.2")].into(),
            local_uids: [geteuid().as_raw(), 0].into(),
            silent_max: 4 * 8 + 256,
        };
        assert_eq!(admission, expected);
        let any = admission_of(StoreAccess::Any, &members, 8, is_own);
        assert_eq!(any, AdmissionRule::Anybody);
    }
}
