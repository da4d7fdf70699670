//! A voter in this process, its port, and the coordinator that runs here while the voter leads.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ragent_election::election::{self, timers::Timers};
use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    heir::Member,
    ids::{NodeId, VoterAddress, VoterId},
    settings::Settings,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tracing::{info, warn};

use super::{hosted_coordinator::EndpointPort, server::Server};
use crate::{
    coordinator::{
        driver::{Input, Records},
        elected::{self, VoterCoordinator},
        measures::CoordinatorMeasures,
        replica_file::{self, ReplicaFile},
        role::{ElectedCoordinator, OwnVoter, Role},
        service,
        state_file::{self, EndedJobs},
    },
    endpoint::limits,
    net::port::{PortProtocols, VoterConnection},
    spec::Endpoint,
    sys::system_error::{SystemError, system},
    voter::{self, Answered, Commands, Leader, StateNeed, Stored, VoterHandle, VoterSpec},
};

/// A running voter.
pub(crate) struct HostedVoter {
    commands: Commands,
    elected: watch::Receiver<ElectedCoordinator>,
    leader: watch::Receiver<Leader>,
    stored: watch::Receiver<Stored>,
    coordinator: JoinHandle<()>,
    file: Option<StateFile>,
    voter: Option<OwnVoter>,
}

/// The state file of a voter, and the task that writes it.
pub(super) struct StateFile {
    task: JoinHandle<()>,
    path: PathBuf,
    /// The jobs of this name that have ended.
    ended: EndedJobs,
}

/// A process that takes part in the choice of the leader, and the coordinator that runs in it while it leads.
pub(super) struct Elector {
    /// The settings of the coordinator.
    pub settings: Settings,
    /// Its voter; `None` if the leader is chosen through an external store.
    pub voter: Option<OwnVoter>,
    /// The endpoint at which others reach this process.
    pub endpoint: Endpoint,
    /// The queue of its commands.
    pub commands: Commands,
    /// The leader, as this process knows it.
    pub leader: watch::Receiver<Leader>,
    /// The time of the last answer of each voter.
    pub answered: watch::Receiver<Answered>,
    /// The memory, as this process knows it.
    pub stored: watch::Receiver<Stored>,
    /// The queue of connections of other voters, if there are any.
    pub connections: Option<mpsc::Sender<VoterConnection>>,
    /// The file of the memory, if this process keeps one.
    pub file: Option<StateFile>,
    /// The coordinator with which the agent of this process is registered.
    pub registered: watch::Sender<NotHere>,
}

/// The configuration of a voter, its port and its coordinator.
pub(crate) struct HostedVoterSpec {
    /// The endpoints of the first voters.
    pub listed: Vec<Endpoint>,
    /// True if all first voters of the job have the same list, because the user gave it.
    pub is_list_common: bool,
    /// The endpoint at which others reach this process.
    pub endpoint: Endpoint,
    /// The state file of the voter.
    pub state_file: PathBuf,
    /// The node id of this process.
    pub process: NodeId,
    /// The leases of the election.
    pub timers: Timers,
    /// The address of its endpoint, from which it connects to other voters; `None`: the system selects one.
    pub source: Option<IpAddr>,
    /// The settings of the coordinator.
    pub settings: Settings,
    /// The time for which agents may wait for the next leader.
    pub kept: Duration,
    /// True if no earlier job of this name can exist.
    pub is_first_start: bool,
    /// The coordinator with which the agent of this process is registered.
    pub registered: watch::Sender<NotHere>,
}

/// The way in which a voter's process ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum VoterEnd {
    /// The job has ended, and this agent has the outcome; or another job goes on instead.
    Closed,
    /// The agent has left the job.
    Left,
    /// The agent ends for another reason.
    Other,
}

/// Starts a voter, and serves its port.
///
/// # Errors
///
/// Returns [`SystemError`] if its thread cannot be started.
pub(crate) fn host_voter(
    port: EndpointPort,
    spec: HostedVoterSpec,
) -> Result<(HostedVoter, Server), SystemError> {
    let HostedVoterSpec {
        listed,
        is_list_common,
        endpoint,
        state_file,
        process,
        timers,
        source,
        settings,
        kept,
        is_first_start,
        registered,
    } = spec;
    let run_id = settings.run_id.clone();
    let stored = state_file::read_copy(&state_file)
        .filter(|stored| is_of_this_voter(stored, &state_file, &endpoint));
    let is_new = stored.is_none();
    let mut stored = stored.unwrap_or_default();
    let voter = *stored.voter.get_or_insert_with(|| VoterId(rand::random()));
    let own = state_file.clone();
    // A slow disk does not delay the start, and remaining files are removed next time.
    drop(tokio::task::spawn_blocking(move || state_file::clean(&own)));
    let memory = stored.replica.memory.as_ref();
    info!(%endpoint, run_id = %run_id, round = memory.map_or(0, |m| m.round.0), "voter started");
    let address = VoterAddress::new(endpoint.to_string());
    let replica_file = Arc::new(ReplicaFile::new(state_file.clone(), kept));
    let own_file = Arc::clone(&replica_file);
    let ended = EndedJobs::of(&run_id, kept);
    let ended_before = ended.read();
    let record_end = ended.clone();
    let handle = voter::start(VoterSpec {
        run_id,
        is_list_common,
        settings: election::Settings {
            voter,
            is_new,
            // A process before this one may have granted a lease.
            is_first_start: is_first_start && is_new,
            ended: ended_before,
            address: address.clone(),
            listed: listed.iter().map(|listed| VoterAddress::new(listed.to_string())).collect(),
            process,
            timers,
            seed: rand::random(),
        },
        stored,
        // The task that writes the file otherwise reports errors.
        store: Box::new(move |stored| own_file.write(stored).is_ok() || own_file.discard()),
        record_end: Box::new(move |uid| {
            let (ended, uid) = (record_end.clone(), uid.clone());
            // A slow disk does not delay the voter.
            drop(tokio::task::spawn_blocking(move || ended.add(&uid)));
        }),
        source,
        credentials: port.credentials.clone(),
    })
    .map_err(system("start a thread"))?;
    let VoterHandle {
        commands,
        leader,
        answered,
        stored,
        state_loss,
        others,
        superseded,
        ended: ended_jobs,
        connections,
    } = handle;
    let task = replica_file::keep(replica_file, stored.clone());
    let file = StateFile { task: tokio::spawn(task), path: state_file, ended };
    let own = OwnVoter {
        member: Member { voter, address },
        commands: commands.downgrade(),
        stored: stored.clone(),
        state_loss,
        others,
        superseded,
        ended: ended_jobs,
    };
    let elector = Elector {
        settings,
        voter: Some(own),
        endpoint,
        commands,
        leader,
        answered,
        stored,
        connections: Some(connections),
        file: Some(file),
        registered,
    };
    serve_elector(port, elector)
}

/// Returns false if the voter of a state file has its seat at another endpoint. Example: two containers share a state folder. Two
/// processes with the identity of one voter could elect two leaders.
fn is_of_this_voter(stored: &Stored, path: &Path, endpoint: &Endpoint) -> bool {
    let mut seats = stored.replica.lists.seats();
    let seat = seats.find(|seat| seat.voter.is_some() && seat.voter == stored.voter);
    let other = seat.filter(|seat| seat.address.as_str() != endpoint.to_string());
    if let Some(seat) = other {
        warn!(
            path = %path.display(), voter = %seat.address,
            "ignored the state file of another voter; the job continues without it. If two containers share this folder, give each its own"
        );
    }
    other.is_none()
}

/// Starts the coordinator of a process that takes part in the choice of the leader, and serves its port.
///
/// # Errors
///
/// Returns [`SystemError`] if the thread of the port cannot be started.
pub(super) fn serve_elector(
    port: EndpointPort,
    elector: Elector,
) -> Result<(HostedVoter, Server), SystemError> {
    let Elector {
        settings,
        voter,
        endpoint,
        commands,
        leader,
        answered,
        stored,
        connections,
        file,
        registered,
    } = elector;
    let run_id = settings.run_id.clone();
    let nodes_max = settings.nodes_max();
    let (published, elected) = watch::channel(ElectedCoordinator::Unknown);
    let (obituaries, received) = mpsc::channel(limits::OBITUARIES);
    let EndpointPort { listener, store, credentials, attended, journal } = port;
    let protocols_attended = attended.subscribe();
    let (known, known_leader) = (stored.clone(), leader.clone());
    let not_here = registered.subscribe();
    let measures = Arc::new(CoordinatorMeasures::default());
    let coordinator = VoterCoordinator {
        settings,
        endpoint: VoterAddress::new(endpoint.to_string()),
        voter: voter.clone(),
        commands: commands.clone(),
        leader,
        answered,
        stored,
        attended,
        elected: published,
        registered,
        obituaries: received,
        records: Records { journal, measures: Arc::clone(&measures) },
    };
    let coordinator = tokio::spawn(coordinator.run());
    let role = Role::Voter {
        endpoint: endpoint.to_string(),
        elected: elected.clone(),
        obituaries,
        voter: voter.clone(),
        registered: not_here,
        run_id: run_id.clone(),
    };
    let (http, shared) = service::routers(&run_id, role, &credentials);
    shared.metrics.add_coordinator(measures);
    let protocols = PortProtocols {
        http,
        credentials,
        store,
        voters: connections,
        attended: protocols_attended,
        nodes_max,
    };
    let hosted = HostedVoter {
        commands,
        elected,
        leader: known_leader,
        stored: known,
        coordinator,
        file,
        voter,
    };
    Ok((hosted, Server::start(listener, protocols, shared)?))
}

impl HostedVoter {
    /// Returns the voter, from the point of view of the agent; `None` if the leader is chosen through an external store.
    pub(super) fn own_voter(&self) -> Option<OwnVoter> {
        self.voter.clone()
    }

    /// Returns the voters of the job that this voter knows to have a round, from its state file at first.
    pub(super) fn voters_of_job(&self) -> Vec<VoterAddress> {
        self.stored.borrow().voters_of_job()
    }

    /// Returns the leader, as this voter knows it.
    pub(super) fn leader(&self) -> watch::Receiver<Leader> {
        self.leader.clone()
    }

    /// Returns the coordinator that the voters have elected, as this process knows it.
    pub(super) fn elected(&self) -> watch::Receiver<ElectedCoordinator> {
        self.elected.clone()
    }

    /// Ends the voter. A leader resigns or, if the job has ended, first informs all nodes; a follower of a job
    /// that has ended grants leases until the leader has done so. The caller limits the time.
    pub(crate) async fn end(mut self, how: VoterEnd) {
        if how == VoterEnd::Closed {
            self.complete().await;
        } else {
            let inputs = match &*self.elected.borrow() {
                ElectedCoordinator::Here(inputs) => Some(inputs.clone()),
                ElectedCoordinator::There(_) | ElectedCoordinator::Unknown => None,
            };
            if let Some(inputs) = inputs {
                // The coordinator may have ended.
                let _ = inputs.send(Input::Shutdown).await;
            }
        }
        let need = elected::leave(&self.commands, how == VoterEnd::Left).await;
        self.stop(how, need).await;
    }

    /// Waits until the job has been closed for all nodes.
    async fn complete(&mut self) {
        if self.coordinator.is_finished() {
            return;
        }
        let is_elsewhere =
            |elected: &ElectedCoordinator| !matches!(elected, ElectedCoordinator::Here(_));
        tokio::select! {
            _ = &mut self.coordinator => return,
            // Another voter completes it; or the voter has ended.
            _ = self.elected.wait_for(is_elsewhere) => {}
        }
        // This voter must not lead; its lease to the present leader stays in force.
        elected::leave(&self.commands, false).await;
        let is_over =
            |elected: &ElectedCoordinator| !matches!(elected, ElectedCoordinator::There(_));
        // The voter may have ended.
        let _ = self.elected.wait_for(is_over).await;
    }

    async fn stop(self, how: VoterEnd, need: StateNeed) {
        let Self { commands, coordinator, file, voter, stored, .. } = self;
        drop(voter);
        drop(stored);
        coordinator.abort();
        // The voter ends when no sender of commands is left, and then the task that writes its file.
        drop(commands);
        // A finished task may have been awaited already, and must not be polled again.
        if !coordinator.is_finished() {
            let _ = coordinator.await;
        }
        let Some(StateFile { task, path, ended }) = file else { return };
        let _ = task.await;
        // No majority may be left without this voter, if no member could replace it.
        let is_needed = how == VoterEnd::Left && need == StateNeed::Needed;
        if how == VoterEnd::Other || is_needed {
            return;
        }
        forget(&path).await;
        if let StateNeed::Ended(job) = need {
            // Other hosts may still have a state file of it.
            let _ = tokio::task::spawn_blocking(move || ended.add(&job)).await;
        }
    }

    /// Waits until the job has ended: the coordinator in this process has closed it, or another one has, and no
    /// further coordinator is elected; or until it does not go on in this process.
    pub(crate) async fn job_ended(&mut self) {
        let superseded = async {
            match &mut self.voter {
                Some(voter) => drop(voter.superseded().await),
                None => std::future::pending().await,
            }
        };
        let closed = async {
            // Before the first election, this voter's copy may be that of an earlier job of the same name.
            let is_led =
                |elected: &ElectedCoordinator| !matches!(elected, ElectedCoordinator::Unknown);
            let _ = self.elected.wait_for(is_led).await;
            loop {
                let is_closed = |stored: &Stored| {
                    let memory = stored.replica.memory.as_ref();
                    memory.is_some_and(|memory| memory.closed.is_some())
                };
                // The voter may have ended.
                let _ = self.stored.wait_for(is_closed).await;
                let is_unknown =
                    |elected: &ElectedCoordinator| matches!(elected, ElectedCoordinator::Unknown);
                let _ = self.elected.wait_for(is_unknown).await;
                let is_known = |elected: &ElectedCoordinator| !is_unknown(elected);
                let next = self.elected.wait_for(is_known);
                if tokio::time::timeout(limits::NEXT_LEADER_TIMEOUT, next).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            _ = &mut self.coordinator => {}
            () = closed => {}
            () = superseded => {}
        }
    }
}

/// Removes the state file: if the job continues, other voters have its state.
async fn forget(state_file: &Path) {
    let path = state_file.to_owned();
    let _ = tokio::task::spawn_blocking(move || state_file::forget(&path)).await;
}
