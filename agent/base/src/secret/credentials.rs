//! The credentials of this process: its secrets, its certificate, or the reason why it has none.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustls::ServerConfig;
use tokio::{sync::Mutex, task};
use tracing::{info, warn};
use zeroize::Zeroizing;

use super::{
    certificates::{
        self, CertificateError, CertificateFacts, CertificateRefusal, CertificateRequest, PeerName,
        Stamps,
    },
    file::{self, FileError},
    form::{KeyLabel, Secret, SecretId},
    tls::{self, ClientTls, ServerTls},
    unusable::PlacesError,
};

/// The credentials with which this process authenticates itself and others. A clone has the same ones, also after they
/// were read again.
#[derive(Clone)]
pub struct Credentials(Arc<CredentialKind>);

enum CredentialKind {
    Unsecured(Unsecured),
    Secured { origin: Origin, loaded: RwLock<Arc<Loaded>>, reading: Arc<Mutex<Reading>> },
    Certified(Certified),
}

/// The certificates of a process.
struct Certified {
    request: CertificateRequest,
    loaded: RwLock<Arc<certificates::LoadedCertificates>>,
    reading: Arc<Mutex<Reading>>,
    /// True if the certificate is not valid at present, which was reported.
    is_outdated: AtomicBool,
}

/// The last reading of the files on request; locked while they are read.
#[derive(Debug, Default)]
struct Reading {
    began: Option<Instant>,
    /// The reason why the files could not be used, if it was reported.
    failure: Option<String>,
}

/// The own certificate, for messages.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnCertificate {
    /// Its common name, names and time.
    pub facts: CertificateFacts,
    /// The files.
    pub request: CertificateRequest,
    /// The name that peers must have.
    pub required: PeerName,
}

impl OwnCertificate {
    /// Returns the reason why the certificate is not valid at `now`, in seconds since 1970.
    pub fn outdated(&self, now: i64) -> Option<String> {
        let validity = self.facts.validity.filter(|validity| !validity.contains(now))?;
        Some(CertificateRefusal::NotValid { validity, now }.clause(None))
    }
}

/// The certificate and its file.
impl fmt::Display for OwnCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, from {}", self.facts, self.request.certificate.display())
    }
}

/// The minimum time between two readings of the files, because each stranger can make this process read them.
pub const READ_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why connections are neither authenticated nor encrypted.
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
pub struct SearchKey {
    /// The secret.
    pub id: SecretId,
    /// The key.
    pub key: Zeroizing<[u8; 32]>,
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
        Self(Arc::new(CredentialKind::Secured { origin, loaded, reading: Arc::default() }))
    }

    /// Creates the credentials of a process with certificates.
    ///
    /// # Errors
    ///
    /// Returns [`CertificateError`] if a file cannot be used.
    pub fn with_certificates(request: CertificateRequest) -> Result<Self, CertificateError> {
        let loaded = RwLock::new(Arc::new(certificates::LoadedCertificates::read(&request)?));
        let (reading, is_outdated) = (Arc::default(), AtomicBool::new(false));
        let certified = Certified { request, loaded, reading, is_outdated };
        Ok(Self(Arc::new(CredentialKind::Certified(certified))))
    }

    /// Creates the credentials of a process without a secret.
    pub fn unsecured(reason: Unsecured) -> Self {
        Self(Arc::new(CredentialKind::Unsecured(reason)))
    }

    /// Returns true if there is a secret or a certificate.
    pub fn is_secured(&self) -> bool {
        matches!(*self.0, CredentialKind::Secured { .. } | CredentialKind::Certified(_))
    }

    /// Returns the reason why there is neither a secret nor a certificate.
    pub fn unsecured_reason(&self) -> Option<&Unsecured> {
        match &*self.0 {
            CredentialKind::Unsecured(reason) => Some(reason),
            CredentialKind::Secured { .. } | CredentialKind::Certified(_) => None,
        }
    }

    /// Returns true if the user wants no authentication.
    pub fn is_declined(&self) -> bool {
        matches!(*self.0, CredentialKind::Unsecured(Unsecured::Chosen))
    }

    /// Returns the origin of the secrets.
    pub fn origin(&self) -> Option<&Origin> {
        match &*self.0 {
            CredentialKind::Secured { origin, .. } => Some(origin),
            CredentialKind::Unsecured(_) | CredentialKind::Certified(_) => None,
        }
    }

    /// Returns true if this process authenticates itself by a certificate.
    pub fn has_certificate(&self) -> bool {
        matches!(*self.0, CredentialKind::Certified(_))
    }

    /// Returns the own certificate.
    pub fn certificate(&self) -> Option<OwnCertificate> {
        let Certified { request, .. } = self.certified()?;
        let loaded = self.loaded_certificates()?;
        let (facts, required) = (loaded.own.clone(), loaded.required.clone());
        Some(OwnCertificate { facts, request: request.clone(), required })
    }

    /// Returns the public names of the secrets, the newest first.
    pub fn ids(&self) -> Vec<SecretId> {
        self.loaded()
            .map_or_else(Vec::new, |loaded| loaded.secrets.iter().map(Secret::id).collect())
    }

    /// Returns the newest secret, for another process of this user.
    pub fn newest(&self) -> Option<Secret> {
        self.loaded().and_then(|loaded| loaded.secrets.first().cloned())
    }

    /// Returns the configurations of connections that this process opens, the newest first.
    pub fn clients(&self) -> Vec<ClientTls> {
        if let Some(loaded) = self.loaded_certificates() {
            return vec![ClientTls { id: None, config: Arc::clone(&loaded.client), name: None }];
        }
        self.loaded().map_or_else(Vec::new, |loaded| loaded.clients.clone())
    }

    /// Returns the keys for the datagrams of a search, the newest first.
    pub fn search_keys(&self) -> Vec<SearchKey> {
        self.loaded().map_or_else(Vec::new, |loaded| loaded.search.clone())
    }

    /// Returns the configuration of connections that this process accepts.
    pub(crate) fn server(&self) -> Option<Arc<ServerConfig>> {
        if let Some(loaded) = self.loaded_certificates() {
            return Some(Arc::clone(&loaded.server));
        }
        self.loaded().map(|loaded| Arc::clone(&loaded.server.config))
    }

    /// Returns true if a client that sends this server name may know one of the secrets. With certificates, any name is
    /// accepted.
    pub(crate) fn knows(&self, name: Option<&str>) -> bool {
        match &*self.0 {
            CredentialKind::Certified(_) => true,
            CredentialKind::Secured { .. } => {
                self.loaded().is_some_and(|loaded| loaded.server.knows(name))
            }
            CredentialKind::Unsecured(_) => false,
        }
    }

    /// Returns the file of the secrets, if they have one.
    pub fn file(&self) -> Option<&Path> {
        match self.origin() {
            Some(Origin::File(path)) => Some(path),
            Some(Origin::Registrations | Origin::Stdin) | None => None,
        }
    }

    /// Reads the files again, which may have changed: one reading at a time, which may take long if they are on a network, and at
    /// most one in each [`READ_INTERVAL`]. Keeps the present secrets or certificates if they cannot be used.
    pub(crate) async fn read_again(&self, now: Instant) {
        let reading = match &*self.0 {
            CredentialKind::Secured { origin: Origin::File(_), reading, .. } => reading,
            CredentialKind::Certified(Certified { reading, .. }) => reading,
            CredentialKind::Secured { .. } | CredentialKind::Unsecured(_) => return,
        };
        let mut reading = Arc::clone(reading).lock_owned().await;
        let is_due = |last| now.saturating_duration_since(last) >= READ_INTERVAL;
        if reading.began.is_some_and(|last| !is_due(last)) {
            return;
        }
        reading.began = Some(now);
        let own = self.clone();
        // The task keeps the lock if this future is dropped.
        let _ = task::spawn_blocking(move || own.read_files(&mut reading)).await;
    }

    fn read_files(&self, reading: &mut Reading) {
        let failure = match &*self.0 {
            CredentialKind::Unsecured(_) => None,
            CredentialKind::Secured { loaded, .. } => {
                self.read_secrets(loaded).err().map(PlacesError::from)
            }
            CredentialKind::Certified(certified) => {
                certified.read_again().err().map(PlacesError::from)
            }
        };
        let text = failure.as_ref().map(ToString::to_string);
        if let Some(error) = failure.filter(|_| reading.failure != text) {
            warn!(
                "failed to read the files of the credentials again; the present ones stay in use: {error}; {}",
                error.hint()
            );
        }
        reading.failure = text;
    }

    fn read_secrets(&self, loaded: &RwLock<Arc<Loaded>>) -> Result<(), FileError> {
        let Some(path) = self.file() else { return Ok(()) };
        let secrets = file::read(path)?;
        let mut loaded = loaded.write().unwrap_or_else(PoisonError::into_inner);
        if loaded.secrets != secrets {
            *loaded = Arc::new(Loaded::new(secrets));
            drop(loaded);
            let ids: Vec<String> = self.ids().iter().map(ToString::to_string).collect();
            info!(ids = ids.join(", "), file = %path.display(), "the secrets have changed");
        }
        Ok(())
    }

    /// Returns the reason why the own certificate is not valid at `now`, in seconds since 1970, unless that was
    /// returned before.
    pub(crate) fn newly_outdated(&self, now: i64) -> Option<String> {
        let Certified { is_outdated, .. } = self.certified()?;
        let outdated = self.certificate()?.outdated(now);
        let was_outdated = is_outdated.swap(outdated.is_some(), Ordering::Relaxed);
        outdated.filter(|_| !was_outdated)
    }

    fn loaded(&self) -> Option<Arc<Loaded>> {
        match &*self.0 {
            CredentialKind::Secured { loaded, .. } => {
                Some(Arc::clone(&loaded.read().unwrap_or_else(PoisonError::into_inner)))
            }
            CredentialKind::Unsecured(_) | CredentialKind::Certified(_) => None,
        }
    }

    fn certified(&self) -> Option<&Certified> {
        match &*self.0 {
            CredentialKind::Certified(certified) => Some(certified),
            CredentialKind::Unsecured(_) | CredentialKind::Secured { .. } => None,
        }
    }

    fn loaded_certificates(&self) -> Option<Arc<certificates::LoadedCertificates>> {
        self.certified().map(Certified::loaded)
    }
}

impl Certified {
    fn loaded(&self) -> Arc<certificates::LoadedCertificates> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again if one has changed.
    fn read_again(&self) -> Result<(), CertificateError> {
        if Stamps::of(&self.request) == self.loaded().stamps {
            return Ok(());
        }
        let loaded = certificates::LoadedCertificates::read(&self.request)?;
        info!(own = %loaded.own, "the files of certificates have changed; new connections use them");
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
        Ok(())
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
            CredentialKind::Unsecured(reason) => f.debug_tuple("Unsecured").field(reason).finish(),
            CredentialKind::Secured { origin, .. } => {
                f.debug_struct("Secured").field("origin", origin).field("ids", &self.ids()).finish()
            }
            CredentialKind::Certified(Certified { request, .. }) => {
                f.debug_tuple("Certified").field(request).finish()
            }
        }
    }
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        let same_reason = self.unsecured_reason() == other.unsecured_reason();
        let same_secrets = self.origin() == other.origin() && self.ids() == other.ids();
        same_reason && same_secrets && self.certificate() == other.certificate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::certificates::testing::{Authority, Issue, write};

    /// Files are read again when they change, at most once a second. Files that cannot be used are reported once, and the present
    /// ones are kept.
    #[tokio::test]
    async fn certificates_are_renewed() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("ca");
        let put = |name: &str| {
            let issued = authority.issue(&Issue::with_names(&[name]));
            let [authorities, certificate, key] = write(folder.path(), &[&authority], &issued);
            CertificateRequest { authorities, certificate, key, peer: None }
        };
        let request = put("a");
        let credentials = Credentials::with_certificates(request.clone()).unwrap();
        let required = || credentials.certificate().unwrap().required.to_string();
        let failure = || {
            let reading = &credentials.certified().unwrap().reading;
            reading.try_lock().unwrap().failure.clone()
        };
        let mut now = crate::sys::clock::now_blocking();
        let server = credentials.server().unwrap();
        credentials.read_again(now).await;
        assert!(Arc::ptr_eq(&server, &credentials.server().unwrap()), "no file has changed");
        put("b");
        credentials.read_again(now + READ_INTERVAL / 2).await;
        assert_eq!(required(), "a");
        now += READ_INTERVAL;
        credentials.read_again(now).await;
        assert_eq!(required(), "b");
        assert!(!Arc::ptr_eq(&server, &credentials.server().unwrap()));
        std::fs::write(&request.certificate, "half").unwrap();
        now += READ_INTERVAL;
        credentials.read_again(now).await;
        assert!(failure().is_some());
        assert_eq!(required(), "b");
        put("c");
        now += READ_INTERVAL;
        credentials.read_again(now).await;
        assert_eq!((required().as_str(), failure()), ("c", None));
        std::fs::remove_file(&request.key).unwrap();
        now += READ_INTERVAL;
        credentials.read_again(now).await;
        assert!(failure().is_some());
    }

    /// A certificate that is not valid is reported once, until it is renewed.
    #[tokio::test]
    async fn outdated_certificates_are_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("ca");
        let put = |last| {
            let issued = authority.issue(&Issue { last, ..Issue::with_names(&["a"]) });
            let [authorities, certificate, key] = write(folder.path(), &[&authority], &issued);
            CertificateRequest { authorities, certificate, key, peer: None }
        };
        let credentials = Credentials::with_certificates(put(1_000_000_000)).unwrap();
        let outdated = |now| credentials.newly_outdated(now).is_some();
        assert!(!outdated(1_000_000_000));
        assert!(outdated(1_000_000_001));
        assert!(!outdated(1_000_000_002));
        put(1_100_000_000);
        credentials.read_again(crate::sys::clock::now_blocking()).await;
        assert!(!outdated(1_000_000_003));
        assert!(outdated(1_100_000_001));
        assert_eq!(Credentials::default().newly_outdated(0), None);
    }
}
