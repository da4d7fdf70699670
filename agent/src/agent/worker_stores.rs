//! The stores that this node would serve, or serves, to the workers of a round as group rank 0.
//!
//! Each round has a fresh and empty one on another port than the round before. The next is opened
//! beside the one that still serves, so a round's store outlives the stopping of its round.

use std::{collections::BTreeSet, io, net::IpAddr};

use ragent_store::{Admission, StoreHandle, StoreThread};

use crate::{
    job_spec::StorePorts,
    net::{self, Reach},
};

/// One node's worker stores.
#[derive(Debug)]
pub struct WorkerStores {
    thread: StoreThread,
    reach: Reach,
    ports: StorePorts,
    /// The port of a pinned range that was used last.
    last_port: Option<u16>,
    serving: Option<StoreHandle>,
    next: Option<StoreHandle>,
}

impl WorkerStores {
    /// Stores on `ports`, none open yet.
    pub fn new(thread: StoreThread, reach: Reach, ports: StorePorts) -> Self {
        Self { thread, reach, ports, last_port: None, serving: None, next: None }
    }

    /// Opens the next store, which admits nobody yet, and says its port.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal, or the last one where a range of ports is pinned.
    pub async fn open(&mut self) -> io::Result<u16> {
        close(self.next.take()).await;
        let listener = match self.listen() {
            Ok(listener) => listener,
            // All pinned ports are taken, one of them by the store of the round that is over.
            Err(_) if self.serving.is_some() => {
                close(self.serving.take()).await;
                self.listen()?
            }
            Err(error) => return Err(error),
        };
        let port = listener.local_addr()?.port();
        let store = self.thread.open(listener, Admission::Nobody).map_err(io::Error::other)?;
        self.next = Some(store);
        self.last_port = Some(port);
        Ok(port)
    }

    /// Serves the store opened last to workers from `clients`; the one before it closes.
    pub async fn serve(&mut self, clients: impl Iterator<Item = IpAddr>) {
        close(self.serving.take()).await;
        self.serving = self.next.take();
        if let Some(store) = &self.serving {
            store.admit(Admission::Only(clients.collect::<BTreeSet<_>>()));
        }
    }

    /// Closes all: another node serves this round.
    pub async fn close_all(&mut self) {
        close(self.serving.take()).await;
        close(self.next.take()).await;
    }

    fn listen(&self) -> io::Result<std::net::TcpListener> {
        let StorePorts::Range { first, last } = self.ports else {
            return net::listen(self.reach, 0);
        };
        let (first, last) = (first.get(), last.get());
        let start = match self.last_port {
            Some(port) if (first..last).contains(&port) => port + 1,
            Some(_) | None => first,
        };
        let mut error = io::ErrorKind::AddrInUse.into();
        for port in (start..=last).chain(first..start) {
            match net::listen(self.reach, port) {
                Ok(listener) => return Ok(listener),
                Err(refusal) => error = refusal,
            }
        }
        Err(error)
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
    use std::num::NonZeroU16;

    use super::*;

    const LOOPBACK: Reach = Reach::Loopback(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    /// A range of ports is used in turn, so that no round meets the port of the one before.
    #[tokio::test]
    async fn pinned_ports_rotate() {
        // Three free ports in a row, found by taking them.
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
        let mut stores = WorkerStores::new(thread, LOOPBACK, range);
        let mut ports = Vec::new();
        for _ in 0..4 {
            ports.push(stores.open().await.unwrap());
            stores.serve(std::iter::empty()).await;
        }
        assert!(ports.windows(2).all(|pair| pair[0] != pair[1]), "{ports:?}");
        assert_eq!(ports, [first, first + 1, first + 2, first]);
    }

    /// A single pinned port is used again, when the round that had it is over.
    #[tokio::test]
    async fn single_pinned_port_is_used_again() {
        let port = net::listen(LOOPBACK, 0).unwrap().local_addr().unwrap().port();
        let port = NonZeroU16::new(port).unwrap();
        let range = StorePorts::Range { first: port, last: port };
        let thread = StoreThread::start("stores").unwrap();
        let mut stores = WorkerStores::new(thread, LOOPBACK, range);
        for _ in 0..2 {
            assert_eq!(stores.open().await.unwrap(), port.get());
            stores.serve(std::iter::empty()).await;
        }
    }
}
