//! The credentials of this process: its secrets, or the reason for which it has none.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use rustls::ServerConfig;
use tokio::{sync::Mutex, task};
use tracing::{info, warn};
use zeroize::Zeroizing;

use super::{
    file,
    form::{KeyLabel, Secret, SecretId},
    tls::{self, ClientTls, ServerTls},
};

/// The credentials with which this process authenticates itself and others. A clone has the same ones, also after they
/// were read again.
#[derive(Clone)]
pub struct Credentials(Arc<Kind>);

enum Kind {
    Unsecured(Unsecured),
    Secured {
        origin: Origin,
        loaded: RwLock<Arc<Loaded>>,
        /// Held while the file is read again.
        reading: Arc<Mutex<Reading>>,
    },
}

/// The minimum time between two readings of the file: anyone can make this process read it.
pub(crate) const READ_INTERVAL: Duration = Duration::from_secs(1);

/// The last reading of the file on request.
#[derive(Debug, Default)]
struct Reading {
    began: Option<Instant>,
    /// The reason for which the file could not be used, if it was reported.
    failure: Option<String>,
}

/// The reason for which connections are neither authenticated nor encrypted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Unsecured {
    /// The user has given `--auth none`.
    Chosen,
    /// There is no secret in these places.
    NotFound {
        /// The places that were searched.
        searched: Vec<String>,
    },
}

/// The origin of a secret.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Origin {
    /// A file, with its absolute path.
    File(PathBuf),
    /// The registrations of this user's jobs on this machine.
    Registrations,
    /// Stdin.
    Stdin,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Registrations => f.write_str("the jobs of this machine"),
            Self::Stdin => f.write_str("stdin"),
        }
    }
}

/// The secrets of a file, the newest first.
struct Loaded {
    secrets: Vec<Secret>,
    server: ServerTls,
    clients: Vec<ClientTls>,
    search: Vec<SearchKey>,
}

/// The key of one secret for the datagrams of a search.
#[derive(Clone)]
pub(crate) struct SearchKey {
    /// The secret.
    pub(crate) id: SecretId,
    /// The key.
    pub(crate) key: Zeroizing<[u8; 32]>,
}

impl Loaded {
    fn new(secrets: Vec<Secret>) -> Self {
        let (server, clients) =
            tls::configurations(&secrets).expect("a derived key is a valid Ed25519 key");
        let key =
            |secret: &Secret| SearchKey { id: secret.id(), key: secret.key(KeyLabel::Search) };
        let search = secrets.iter().map(key).collect();
        Self { secrets, server, clients, search }
    }
}

impl Credentials {
    /// Creates credentials from at least one secret.
    pub fn new(secrets: Vec<Secret>, origin: Origin) -> Self {
        let loaded = RwLock::new(Arc::new(Loaded::new(secrets)));
        Self(Arc::new(Kind::Secured { origin, loaded, reading: Arc::default() }))
    }

    /// Creates the credentials of a process without a secret.
    pub fn unsecured(reason: Unsecured) -> Self {
        Self(Arc::new(Kind::Unsecured(reason)))
    }

    /// Returns true if there is a secret.
    pub fn is_secured(&self) -> bool {
        matches!(*self.0, Kind::Secured { .. })
    }

    /// Returns the reason for which there is no secret.
    pub(crate) fn unsecured_reason(&self) -> Option<&Unsecured> {
        match &*self.0 {
            Kind::Unsecured(reason) => Some(reason),
            Kind::Secured { .. } => None,
        }
    }

    /// Returns true if the user wants no authentication.
    pub(crate) fn is_declined(&self) -> bool {
        matches!(*self.0, Kind::Unsecured(Unsecured::Chosen))
    }

    /// Returns the origin of the secrets.
    pub fn origin(&self) -> Option<&Origin> {
        match &*self.0 {
            Kind::Secured { origin, .. } => Some(origin),
            Kind::Unsecured(_) => None,
        }
    }

    /// Returns the public names of the secrets, the newest first.
    pub fn ids(&self) -> Vec<SecretId> {
        self.loaded()
            .map_or_else(Vec::new, |loaded| loaded.secrets.iter().map(Secret::id).collect())
    }

    /// Returns the newest secret, for another process of this user.
    pub(crate) fn newest(&self) -> Option<Secret> {
        self.loaded().and_then(|loaded| loaded.secrets.first().cloned())
    }

    /// Returns the configurations of connections that this process opens, the newest first.
    pub(crate) fn clients(&self) -> Vec<ClientTls> {
        self.loaded().map_or_else(Vec::new, |loaded| loaded.clients.clone())
    }

    /// Returns the keys for the datagrams of a search, the newest first.
    pub(crate) fn search_keys(&self) -> Vec<SearchKey> {
        self.loaded().map_or_else(Vec::new, |loaded| loaded.search.clone())
    }

    /// Returns the configuration of connections that this process accepts.
    pub(crate) fn server(&self) -> Option<Arc<ServerConfig>> {
        self.loaded().map(|loaded| Arc::clone(&loaded.server.config))
    }

    /// Returns true if a client that sends this server name knows one of the secrets.
    pub(crate) fn knows(&self, name: Option<&str>) -> bool {
        self.loaded().is_some_and(|loaded| loaded.server.knows(name))
    }

    /// Returns the file of the secrets, if they have one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self.origin() {
            Some(Origin::File(path)) => Some(path),
            Some(Origin::Registrations | Origin::Stdin) | None => None,
        }
    }

    /// Reads the file of the secrets again, to which another one may have been added: one reading at a time, which may take
    /// long if the file is on a network, and at most one in each [`READ_INTERVAL`]. Keeps the present secrets if it
    /// cannot be used.
    pub(crate) async fn read_again(&self, now: Instant) {
        let Kind::Secured { origin: Origin::File(_), reading, .. } = &*self.0 else { return };
        let mut reading = Arc::clone(reading).lock_owned().await;
        let is_due = |last| now.saturating_duration_since(last) >= READ_INTERVAL;
        if reading.began.is_some_and(|last| !is_due(last)) {
            return;
        }
        reading.began = Some(now);
        let own = self.clone();
        // The task keeps the lock if this future is dropped.
        let _ = task::spawn_blocking(move || own.read_file(&mut reading)).await;
    }

    fn read_file(&self, reading: &mut Reading) {
        let (Kind::Secured { loaded, .. }, Some(path)) = (&*self.0, self.file()) else { return };
        let secrets = match file::read(path) {
            Ok(secrets) => secrets,
            Err(error) => {
                let failure = Some(error.to_string());
                if reading.failure != failure {
                    warn!(
                        "failed to read the secrets again; the present ones stay in use: {error}; {}",
                        error.hint()
                    );
                    reading.failure = failure;
                }
                return;
            }
        };
        reading.failure = None;
        let mut loaded = loaded.write().unwrap_or_else(PoisonError::into_inner);
        if loaded.secrets != secrets {
            *loaded = Arc::new(Loaded::new(secrets));
            drop(loaded);
            let ids: Vec<String> = self.ids().iter().map(ToString::to_string).collect();
            info!(ids = ids.join(", "), file = %path.display(), "the secrets have changed");
        }
    }

    fn loaded(&self) -> Option<Arc<Loaded>> {
        match &*self.0 {
            Kind::Secured { loaded, .. } => {
                Some(Arc::clone(&loaded.read().unwrap_or_else(PoisonError::into_inner)))
            }
            Kind::Unsecured(_) => None,
        }
    }
}

/// The credentials of a process that has searched nowhere.
impl Default for Credentials {
    fn default() -> Self {
        Self::unsecured(Unsecured::NotFound { searched: Vec::new() })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Unsecured(reason) => f.debug_tuple("Unsecured").field(reason).finish(),
            Kind::Secured { origin, .. } => {
                f.debug_struct("Secured").field("origin", origin).field("ids", &self.ids()).finish()
            }
        }
    }
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        let same_reason = self.unsecured_reason() == other.unsecured_reason();
        same_reason && self.origin() == other.origin() && self.ids() == other.ids()
    }
}
