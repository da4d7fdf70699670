//! Takes part in the election of the leader: drives [`Election`] on a thread of its own, so that no other work of the agent delays a
//! renewal.
//!
//! Each voter opens one connection to each other voter, and sends its requests on it (`outgoing`). Connections from other voters arrive at
//! the agent's port, which passes them on (`incoming`). Both report an `event` to the driver. `frames` has the format of the messages.
//!
//! The thread does not wait for a disk. [`replica_file`](crate::replica_file) writes the state to the voter's file in another task. Only a change of the voters is
//! written by the thread itself before it is acknowledged: a restarted voter must not use an older list. That write goes to the page cache.
//!
//! `reach` and `state_loss` explain to the user why no leader is elected.
//!
//! [`Election`]: ragent_election::election::Election

mod driver;
mod event;
mod frames;
mod incoming;
mod limits;
mod outgoing;
mod state_loss;
mod voter_reach;

use std::{io, net::IpAddr, thread};

use ragent_base::secret::Credentials;
use ragent_election::election::{ElectionSettings, message::Lists};
use ragent_rendezvous::{
    heir::Member,
    ids::{JobUid, RunId},
};
use tokio::{
    runtime::Builder,
    sync::{mpsc, watch},
};

use self::driver::{Inputs, Published, VoterDriver};
#[cfg(test)]
pub(crate) use self::frames::tests::largest_job_state;
pub use self::state_loss::StateLoss;
use super::{
    Answered, Leader, Leadership, LeadershipCommand, Means, RunningLeadership, StateNeed, Stored,
};

/// The configuration of a voter.
pub struct VoterSpec {
    /// The job.
    pub run_id: RunId,
    /// True if the user gave the list of voters, so that all first voters have the same one.
    pub is_list_common: bool,
    /// The configuration of [`Election`](ragent_election::election::Election).
    pub settings: ElectionSettings,
    /// The state that an earlier process of this voter has stored.
    pub stored: Stored,
    /// Writes the state to the voter's file, without waiting for the disk. Returns false if the file may contain an older state afterwards.
    pub store: Box<dyn Fn(&Stored) -> bool + Send>,
    /// Records that a job of this name has ended.
    pub record_end: Box<dyn Fn(&JobUid) + Send>,
    /// The source address of connections to other voters, by which they recognise this voter;
    /// `None`: the system selects one.
    pub source: Option<IpAddr>,
    /// The credentials that connections between voters use.
    pub credentials: Credentials,
}

/// Starts a voter. It ends when all of its [`Commands`](super::Commands) are dropped.
///
/// # Errors
///
/// Returns the system's error if the thread cannot be started.
pub fn start(spec: VoterSpec) -> io::Result<RunningLeadership> {
    let (commands, received_commands) = mpsc::channel(limits::COMMANDS);
    let (connections, received_connections) = mpsc::channel(limits::MAX_CONNECTIONS);
    let mut initial = spec.stored.clone();
    if !initial.replica.has_round() {
        initial.replica.lists = Lists::listed(&spec.settings.listed);
    }
    let published = Published {
        leader: watch::Sender::new(Leader::Unknown),
        answered: watch::Sender::new(Answered::new()),
        stored: watch::Sender::new(initial),
        state_loss: watch::Sender::new(None),
        others: watch::Sender::new(Vec::new()),
        superseded: watch::Sender::new(None),
        ended: watch::Sender::new(spec.settings.ended.clone()),
    };
    let member = Member { voter: spec.settings.voter, address: spec.settings.address.clone() };
    let leadership = Leadership {
        means: Means::Voters(member),
        commands: commands.downgrade(),
        leader: published.leader.subscribe(),
        stored: published.stored.subscribe(),
        answered: published.answered.subscribe(),
        state_loss: published.state_loss.subscribe(),
        others: published.others.subscribe(),
        superseded: published.superseded.subscribe(),
        ended: published.ended.subscribe(),
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let inputs = Inputs { commands: received_commands, connections: received_connections };
    thread::Builder::new().name("voter".to_owned()).spawn(move || {
        runtime.block_on(async { VoterDriver::new(spec, published).drive(inputs).await });
    })?;
    Ok(RunningLeadership { leadership, commands, connections: Some(connections) })
}
