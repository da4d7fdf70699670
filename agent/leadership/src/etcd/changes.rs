//! Executes changes of the job's key, one at a time.

use std::time::Instant;

use ragent_base::sys::clock;
use ragent_election::claim::{ChangeOutcome, Record, Stamp};
use tokio::sync::mpsc;

use super::{client::EtcdClient, error::EtcdError, event::EtcdEvent, limits};

/// A change of the key.
#[derive(Debug)]
pub(super) struct KeyChange {
    pub(super) number: u64,
    pub(super) expected: Stamp,
    pub(super) record: Box<Record>,
}

/// A lease of etcd, which removes the key of an abandoned job.
struct KeyLease {
    id: i64,
    granted: Instant,
}

/// Executes changes until the sender has ended.
pub(super) async fn execute(
    mut client: EtcdClient,
    mut changes: mpsc::Receiver<KeyChange>,
    events: mpsc::Sender<EtcdEvent>,
) {
    let mut lease = None;
    while let Some(KeyChange { number, expected, record }) = changes.recv().await {
        let (outcome, error) = match change(&mut client, &mut lease, expected, record).await {
            Ok(outcome) => (outcome, None),
            Err(error) => (ChangeOutcome::Unknown, Some(error)),
        };
        if events.send(EtcdEvent::Changed(number, outcome, error)).await.is_err() {
            return;
        }
    }
}

async fn change(
    client: &mut EtcdClient,
    lease: &mut Option<KeyLease>,
    expected: Stamp,
    record: Box<Record>,
) -> Result<ChangeOutcome, EtcdError> {
    let is_old = |lease: &KeyLease| {
        clock::now().saturating_duration_since(lease.granted) >= limits::KEY_LEASE_AGE
    };
    if lease.as_ref().is_none_or(is_old) {
        let id = client.grant_lease().await?;
        *lease = Some(KeyLease { id, granted: clock::now() });
    }
    let id = lease.as_ref().map_or(0, |lease| lease.id);
    let outcome = client.change(expected, Some(*record), id).await;
    if outcome.is_err() {
        // A cluster that was restored may not know this lease.
        *lease = None;
    }
    outcome
}
