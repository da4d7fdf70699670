//! Looks up the owners of connections from this host to the store of a round on another host.
//!
//! A lookup runs on a thread of its own, because the kernel may have to list all sockets.

use std::{collections::VecDeque, mem, time::Instant};

use ragent_base::sys::{clock, users};
use ragent_rendezvous::message::{CheckedOwners, StoreConnection, StoreConnections};
use ragent_store::server::{Owner, Owners};
use tokio::task::{self, JoinHandle};
use tracing::{debug, warn};

use super::limits;

/// The lookup of connections that belong to this agent's user or to root.
#[derive(Debug, Default)]
pub(super) struct OwnerLookup {
    /// `None` while a lookup uses it.
    owners: Option<Owners>,
    lookup: Option<JoinHandle<Result<LookedUp, task::JoinError>>>,
    waiting: VecDeque<StoreConnections>,
    /// True if the warning about a kernel that does not report owners was logged.
    has_warned: bool,
}

impl OwnerLookup {
    /// Starts to look up the clients of these connections. If too many requests wait, the request is ignored. The clients are then refused
    /// and connect again.
    pub(super) fn look_up(&mut self, asked: StoreConnections) {
        if self.waiting.len() < limits::OWNER_LOOKUPS_MAX {
            self.waiting.push_back(asked);
            self.begin();
        }
    }

    /// Waits until a lookup is done.
    ///
    /// # Cancel safety
    ///
    /// Cancelling the call loses nothing.
    pub(super) async fn looked_up(&mut self) -> CheckedOwners {
        loop {
            let Some(lookup) = &mut self.lookup else { return std::future::pending().await };
            let ended = lookup.await;
            self.lookup = None;
            match ended.flatten() {
                Ok(LookedUp { owners, checked, is_blind }) => {
                    self.owners = Some(owners);
                    if is_blind && !mem::replace(&mut self.has_warned, true) {
                        warn!(
                            "this kernel does not report the owner of a connection (neither \
                             NETLINK_SOCK_DIAG nor /proc/net/tcp), so with `--store-access user` no \
                             worker of this node can connect to the store: use `--store-access members`"
                        );
                    }
                    self.begin();
                    return checked;
                }
                Err(cause) => {
                    warn!(%cause, "failed to look up the owners of connections");
                    self.begin();
                }
            }
        }
    }

    fn begin(&mut self) {
        if self.lookup.is_none()
            && let Some(asked) = self.waiting.pop_front()
        {
            let owners = self.owners.take().unwrap_or_default();
            self.lookup = Some(task::spawn(look_up(owners, asked)));
        }
    }
}

/// The result of a lookup.
#[derive(Debug)]
struct LookedUp {
    owners: Owners,
    checked: CheckedOwners,
    /// True if the kernel has no interface for owners.
    is_blind: bool,
}

/// Looks up the clients of connections. Returns the numbers of connections that belong to this agent's user or to root. If the answer is
/// final, also returns all other numbers, as denied.
async fn look_up(mut owners: Owners, asked: StoreConnections) -> Result<LookedUp, task::JoinError> {
    let StoreConnections { round, connections, is_only_member } = asked;
    let all: Vec<u64> = connections.iter().map(|connection| connection.number).collect();
    let (mut numbers, mut is_blind) = (Vec::new(), false);
    let mut rest = connections;
    // If the kernel cannot look up a single socket, an answer may need a second reading of all sockets.
    for _ in 0..2 {
        let found = task::spawn_blocking(move || Pass::new(owners, rest)).await?;
        let Pass { owners: kept, own, later, due, is_blind: blind } = found;
        owners = kept;
        numbers.extend(own);
        rest = later;
        is_blind |= blind;
        if rest.is_empty() {
            break;
        }
        clock::until(due).await;
    }
    let is_denied = |number: &u64| is_only_member && !numbers.contains(number);
    let denied = all.into_iter().filter(is_denied).collect();
    Ok(LookedUp { owners, checked: CheckedOwners { round, numbers, denied }, is_blind })
}

/// The result of one pass over connections.
struct Pass {
    owners: Owners,
    /// The numbers of connections that belong to this agent's user or to root.
    own: Vec<u64>,
    /// Connections whose owner is not known before `due`.
    later: Vec<StoreConnection>,
    due: Option<Instant>,
    /// True if the kernel has no interface for owners.
    is_blind: bool,
}

impl Pass {
    fn new(mut owners: Owners, connections: Vec<StoreConnection>) -> Self {
        if let Err(error) = owners.verify() {
            debug!(%error, "failed to verify that the kernel looks up sockets");
        }
        let (mut own, mut later, mut due, mut is_blind) = (Vec::new(), Vec::new(), None, false);
        for connection in connections {
            let StoreConnection { number, client, store } = connection;
            match owners.of_peer(clock::now_blocking(), store, client) {
                Owner::User(uid) if users::is_trusted(uid) => own.push(number),
                Owner::User(_) | Owner::Nobody => {
                    debug!(%client, "the client of the store does not belong to this user");
                }
                Owner::Later(until) => {
                    due = due.max(Some(until));
                    later.push(connection);
                }
                Owner::Unknown => is_blind = true,
            }
        }
        Self { owners, own, later, due, is_blind }
    }
}
