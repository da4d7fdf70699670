//! The secret that the processes of a job share, or their certificates, and the connections that follow from them.
//!
//! A secret is never sent. `form` derives an Ed25519 key from it, and `tls` has the configurations of TLS 1.3 in which
//! both ends prove that they have that key. `places` finds the secret of this process, and `file` reads it; `unusable` is the error if there is none.
//! [`Credentials`] is the result, which all listeners and connections use; `mismatch` compares it with that of another
//! process. `certificates` has the certificates of sites with a PKI, with which there is no secret. Without either,
//! connections are neither authenticated nor encrypted.

mod certificates;
mod credentials;
pub mod file;
mod form;
mod limits;
mod mismatch;
mod places;
mod shared_home;
mod tls;
mod unusable;
mod written;

#[cfg(any(test, feature = "testing"))]
pub use self::certificates::testing;
pub use self::{
    certificates::{CertificateError, CertificateRequest, PeerName},
    credentials::{Credentials, Origin, Unsecured},
    form::{FormError, Secret, SecretId, random_bytes},
    mismatch::Mismatch,
    unusable::PlacesError,
    written::WrittenSecret,
};
pub use self::{
    certificates::{CertificateFacts, Validity, is_of_certificate, utc},
    credentials::{OwnCertificate, READ_INTERVAL, SearchKey},
    mismatch::NamedAuth,
    places::{AuthMode, AuthRequest, user_file},
    shared_home::make as make_on_shared_home,
    tls::{ALPN_HTTP1, ALPN_HTTP2, ALPN_MEMORY, ALPN_VOTER, ClientTls},
};
