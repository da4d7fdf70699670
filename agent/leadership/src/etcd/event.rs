//! Names the events that the connections to etcd report to the driver.

use ragent_election::claim::{ChangeOutcome, KeyContent};

use super::error::EtcdError;

/// An event of a connection to etcd.
#[derive(Debug)]
pub(super) enum EtcdEvent {
    /// The key has this content.
    Value(Box<KeyContent>),
    /// The change with this number has this outcome. The error is set if the outcome is unknown.
    Changed(u64, ChangeOutcome, Option<EtcdError>),
    /// The key cannot be read at present.
    Away(EtcdError),
}
