//! The secret that the processes of a job share, and the connections that follow from it.
//!
//! A secret is never sent. `form` derives an Ed25519 key from it, and `tls` has the configurations of TLS 1.3 in which
//! both ends prove that they have that key. `places` finds the secret of this process, and `file` reads it.
//! [`Credentials`] is the result, which all listeners and connections use; `mismatch` compares it with that of another
//! process. Without a secret, connections are neither authenticated nor encrypted.

mod credentials;
pub mod file;
mod form;
mod limits;
mod mismatch;
mod places;
mod tls;
mod written;

pub use self::{
    credentials::{Credentials, Origin, Unsecured},
    form::{FormError, Secret, SecretId},
    mismatch::Mismatch,
    places::PlacesError,
    written::WrittenSecret,
};
pub(crate) use self::{
    credentials::{READ_INTERVAL, SearchKey},
    mismatch::NamedAuth,
    places::{AuthMode, SecretRequest, user_file},
    tls::{ALPN_HTTP1, ALPN_HTTP2, ALPN_VOTER, ClientTls},
};
