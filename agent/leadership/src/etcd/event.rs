//! The events that the connections to etcd report to the driver.

use ragent_election::claim::{Outcome, Value};

use super::error::EtcdError;

/// An event of a connection to etcd.
#[derive(Debug)]
pub(super) enum Event {
    /// The key has this content.
    Value(Box<Value>),
    /// The change of this number has this outcome; with the error if it is unknown.
    Changed(u64, Outcome, Option<EtcdError>),
    /// The key cannot be read at present, for this reason.
    Away(EtcdError),
}
