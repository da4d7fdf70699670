//! Chooses the leader through etcd: drives [`Claim`] on a thread of its own, so that no other work of the agent delays a renewal.
//!
//! The leader owns a record under the job's key, and changes it by compare-and-swap. If the record does not change for a while, another
//! agent replaces it. Clocks of machines are not compared.
//!
//! - `changes` executes changes of the key, `watch` reports its content. Each has a connection of its own.
//! - `client` sends one request at a time to a member of etcd. If it does not answer, the next request goes to another member.
//! - `tls` reads the files for its connections.
//! - `outage` reports that etcd does not answer.
//!
//! [`Claim`]: ragent_election::claim::Claim

mod changes;
mod client;
mod driver;
mod error;
mod event;
mod limits;
mod outage;
mod tls;
mod watch;

use std::{io, thread};

use ragent_election::claim::ClaimSettings;
use ragent_options::spec::EtcdSpec;
use ragent_rendezvous::ids::RunId;
use tokio::{
    runtime::Builder,
    sync::{mpsc, watch as tokio_watch},
};

pub use self::client::EtcdClient;
use self::driver::{EtcdDriver, PublishedClaim};
pub use self::error::EtcdError;

use super::{Leader, Leadership, Means, RunningLeadership, Stored};

/// The configuration of a process that may lead.
#[derive(Debug)]
pub struct CandidateSpec {
    /// The cluster.
    pub etcd: EtcdSpec,
    /// The job.
    pub run_id: RunId,
    /// The configuration of [`Claim`](ragent_election::claim::Claim).
    pub settings: ClaimSettings,
}

/// Starts a process that may lead. It ends when all of its [`Commands`](super::Commands) are dropped.
///
/// # Errors
///
/// Returns the system's error if the thread cannot be started.
pub fn start(spec: CandidateSpec) -> io::Result<RunningLeadership> {
    let (commands, received) = mpsc::channel(limits::COMMANDS);
    let (leader, leader_known) = tokio_watch::channel(Leader::Unknown);
    let (stored, stored_known) = tokio_watch::channel(Stored::default());
    let (successors, successors_known) = tokio_watch::channel(Vec::new());
    let (superseded, superseded_known) = tokio_watch::channel(None);
    let published = PublishedClaim { leader, stored, successors, superseded };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("etcd".to_owned()).spawn(move || {
        runtime.block_on(async { EtcdDriver::new(spec, published).drive(received).await });
    })?;
    let means = Means::Etcd(successors_known);
    let leadership = Leadership {
        superseded: superseded_known,
        ..Leadership::without_voters(means, &commands, leader_known, stored_known)
    };
    Ok(RunningLeadership { leadership, commands, connections: None })
}
