//! Collects snapshots of the job that this process coordinates.

use std::sync::Arc;

use ragent_base::net::refusals::Refusals;
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::snapshot::{JobCounts, Snapshot};

use super::{
    cache::{Collected, JsonState},
    relay::{Refusal, unavailable},
};
use crate::{driver, journal::JournalReader, role::Role};

/// The snapshots of the job, collected at most ten times a second for all callers.
pub(crate) struct States {
    role: Arc<Role>,
    refusals: Arc<Refusals>,
    last: Collected<Option<Arc<JsonState>>>,
}

impl States {
    pub(crate) fn new(role: Arc<Role>, refusals: Arc<Refusals>) -> Self {
        Self { role, refusals, last: Collected::default() }
    }

    /// Returns the state, with the processes that the coordinator's port has refused.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal`] if another process coordinates, or if the job has ended.
    pub(super) async fn get(&self) -> Result<Arc<JsonState>, Refusal> {
        let inputs = self.role.coordinator_to_read()?;
        let collect = async {
            let snapshot = driver::snapshot(&inputs).await?;
            let refused_peers = self.refusals.list();
            Some(Arc::new(JsonState::new(Snapshot { refused_peers, ..snapshot })))
        };
        self.last.get(collect).await.ok_or_else(|| unavailable("the job has ended").into())
    }

    /// Returns the counts of the job's nodes, if this process coordinates the job.
    pub(super) async fn counts(&self) -> Option<JobCounts> {
        driver::counts(&self.role.coordinator_to_read().ok()?).await
    }

    /// Returns the process that coordinates, if it is another one.
    pub(super) fn elsewhere(&self) -> Option<CoordinatorAddress> {
        self.role.coordinator_to_read().err()
    }

    /// Returns the journal of the coordinator in this process.
    ///
    /// # Errors
    ///
    /// Returns [`Refusal`] if another process coordinates, or if the job has ended.
    pub(super) async fn journal(&self) -> Result<JournalReader, Refusal> {
        let inputs = self.role.coordinator_to_read()?;
        let journal = driver::journal(&inputs).await;
        journal.ok_or_else(|| unavailable("the job has ended").into())
    }

    /// Returns the number of connections and requests that the port has refused.
    pub(super) fn refused(&self) -> u64 {
        self.refusals.total()
    }
}
