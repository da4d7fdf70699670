//! A process that may lead the job: the choice of the coordinator, its port, and the coordinator that runs here while it leads.

use std::{
    net::{IpAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ragent_base::{
    net::port::{PortProtocols, PortStore, RegisteredNodes},
    secret::Credentials,
    spec::Endpoint,
    sys::system_error::{SystemError, system},
};
use ragent_coordinator::{
    driver::{Input, Inputs, Records, snapshot},
    host::CoordinatorHost,
    measures::CoordinatorMeasures,
    role::{ElectedCoordinator, Role},
    service,
};
use ragent_election::election::{self, timers::Timers};
use ragent_leadership::{
    Commands, Leadership, RunningLeadership, StateNeed, Stored,
    state_file::{self, EndedJobs},
    voters::{
        self, VoterSpec,
        replica_file::{self, ReplicaFile},
    },
};
use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    ids::{NodeId, VoterAddress, VoterId},
    settings::Settings,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tracing::{info, warn};

use super::server::Server;
use crate::endpoint::limits;

/// The parts of a process that may lead: the choice of the coordinator, and the coordinator while it leads.
pub struct Hosted {
    leadership: Leadership,
    /// Dropped to end the choice.
    commands: Commands,
    elected: watch::Receiver<ElectedCoordinator>,
    coordinator: JoinHandle<()>,
    file: Option<StateFile>,
}

/// The state file of a voter, and the task that writes it.
pub struct StateFile {
    task: JoinHandle<()>,
    path: PathBuf,
    /// The jobs of this name that have ended.
    ended: EndedJobs,
}

/// The listener of an endpoint, and further parts of its port.
pub struct EndpointPort {
    /// The listener.
    pub listener: TcpListener,
    /// The store on the port, if there is one.
    pub store: Option<PortStore>,
    /// The proof that its clients must give.
    pub credentials: Credentials,
    /// The registered nodes, published to the port.
    pub registered_nodes: watch::Sender<RegisteredNodes>,
    /// The file to which a coordinator appends its events, if there is one.
    pub journal: Option<PathBuf>,
}

/// The coordinator that a process runs while it leads, as others see it.
pub struct OwnCoordinator {
    /// Its settings.
    pub settings: Settings,
    /// The endpoint at which others reach this process.
    pub endpoint: Endpoint,
    /// The coordinator with which the agent of this process is registered.
    pub registered: watch::Sender<NotHere>,
}

/// The configuration of a voter, its port and its coordinator.
pub struct HostedVoterSpec {
    /// The endpoints of the first voters.
    pub listed: Vec<Endpoint>,
    /// True if all first voters of the job have the same list, because the user gave it.
    pub is_list_common: bool,
    /// The state file of the voter.
    pub state_file: PathBuf,
    /// The node id of this process.
    pub process: NodeId,
    /// The leases of the election.
    pub timers: Timers,
    /// The address of its endpoint, from which it connects to other voters; `None`: the system selects one.
    pub source: Option<IpAddr>,
    /// The time for which agents may wait for the next leader.
    pub kept: Duration,
    /// True if no earlier job of this name can exist.
    pub is_first_start: bool,
}

/// The way in which a process that may lead ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HostEnd {
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
pub fn host_voter(
    port: EndpointPort,
    own: OwnCoordinator,
    spec: HostedVoterSpec,
) -> Result<(Hosted, Server), SystemError> {
    let HostedVoterSpec {
        listed,
        is_list_common,
        state_file,
        process,
        timers,
        source,
        kept,
        is_first_start,
    } = spec;
    let (run_id, endpoint) = (own.settings.run_id.clone(), &own.endpoint);
    let stored = state_file::read_copy(&state_file)
        .filter(|stored| is_of_this_voter(stored, &state_file, endpoint));
    let is_new = stored.is_none();
    let mut stored = stored.unwrap_or_default();
    let voter = *stored.voter.get_or_insert_with(|| VoterId(rand::random()));
    let kept_file = state_file.clone();
    // A slow disk does not delay the start, and remaining files are removed next time.
    drop(tokio::task::spawn_blocking(move || state_file::clean(&kept_file)));
    let job_state = stored.replica.job_state.as_ref();
    info!(%endpoint, run_id = %run_id, round = job_state.map_or(0, |job_state| job_state.round.0), "voter started");
    let address = VoterAddress::new(endpoint.to_string());
    let replica_file = Arc::new(ReplicaFile::new(state_file.clone(), kept));
    let own_file = Arc::clone(&replica_file);
    let ended = EndedJobs::of(&run_id, kept);
    let ended_before = ended.read();
    let record_end = ended.clone();
    let running = voters::start(VoterSpec {
        run_id,
        is_list_common,
        settings: election::ElectionSettings {
            voter,
            is_new,
            // A process before this one may have granted a lease.
            is_first_start: is_first_start && is_new,
            ended: ended_before,
            address,
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
    let task = replica_file::keep(replica_file, running.leadership.stored.clone());
    let file = StateFile { task: tokio::spawn(task), path: state_file, ended };
    host(port, own, running, Some(file))
}

/// Returns false if the voter of a state file has its slot at another endpoint. Example: two containers share a state
/// folder. Two processes with the identity of one voter could elect two leaders.
fn is_of_this_voter(stored: &Stored, path: &Path, endpoint: &Endpoint) -> bool {
    let mut slots = stored.replica.lists.slots();
    let slot = slots.find(|slot| slot.voter.is_some() && slot.voter == stored.voter);
    let other = slot.filter(|slot| slot.address.as_str() != endpoint.to_string());
    if let Some(slot) = other {
        warn!(
            path = %path.display(), voter = %slot.address,
            "ignored the state file of another voter; the job continues without it. If two containers share this folder, give each its own"
        );
    }
    other.is_none()
}

/// Starts the coordinator of a process that may lead, and serves its port. `file` is that of its voter.
///
/// # Errors
///
/// Returns [`SystemError`] if the thread of the port cannot be started.
pub fn host(
    port: EndpointPort,
    own: OwnCoordinator,
    running: RunningLeadership,
    file: Option<StateFile>,
) -> Result<(Hosted, Server), SystemError> {
    let OwnCoordinator { settings, endpoint, registered } = own;
    let RunningLeadership { leadership, commands, connections } = running;
    let run_id = settings.run_id.clone();
    let nodes_max = settings.nodes_max();
    let (published, elected) = watch::channel(ElectedCoordinator::Unknown);
    let (death_notices, received) = mpsc::channel(limits::DEATH_NOTICES);
    let EndpointPort { listener, store, credentials, registered_nodes, journal } = port;
    let protocols_nodes = registered_nodes.subscribe();
    let measures = Arc::new(CoordinatorMeasures::default());
    let role = Role::Host {
        endpoint: endpoint.to_string(),
        elected: elected.clone(),
        death_notices,
        leadership: leadership.clone().into(),
        registered: registered.subscribe(),
        run_id: run_id.clone(),
    };
    let host = CoordinatorHost {
        settings,
        endpoint: VoterAddress::new(endpoint.to_string()),
        leadership: leadership.clone(),
        registered_nodes,
        elected: published,
        registered,
        death_notices: received,
        records: Records { journal, measures: Arc::clone(&measures) },
    };
    let coordinator = tokio::spawn(host.run());
    let (http, shared) = service::routers(&run_id, role, &credentials);
    shared.metrics.add_coordinator(measures);
    let protocols = PortProtocols {
        http,
        credentials,
        store,
        voters: connections,
        registered_nodes: protocols_nodes,
        nodes_max,
    };
    let hosted = Hosted { leadership, commands, elected, coordinator, file };
    Ok((hosted, Server::start(listener, protocols, shared)?))
}

impl Hosted {
    /// Returns the choice of the coordinator.
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Returns the coordinator that leads, as this process knows it.
    pub(super) fn elected(&self) -> watch::Receiver<ElectedCoordinator> {
        self.elected.clone()
    }

    /// Ends this process's part. A leader resigns or, if the job has ended or no other process can lead, first informs all nodes;
    /// a follower of a job that has ended grants leases until the leader has done so. `own` is the node of this process, if it has an
    /// agent. The caller limits the time.
    pub async fn end(mut self, how: HostEnd, own: Option<&NodeId>) {
        let inputs = match &*self.elected.borrow() {
            ElectedCoordinator::Here(inputs) if how != HostEnd::Closed => Some(inputs.clone()),
            _ => None,
        };
        if how == HostEnd::Closed {
            self.complete().await;
        } else if let Some(inputs) = inputs {
            let is_fixed = self.leadership.is_fixed();
            let own = own.filter(|_| is_fixed && how == HostEnd::Left);
            let is_informed = match own {
                Some(own) => knows(&inputs, own).await,
                None => false,
            };
            if !is_informed {
                // The coordinator does not know why this agent ends, and may have ended.
                let _ = inputs.send(Input::Shutdown).await;
            }
            if is_fixed {
                self.complete().await;
            }
        }
        let need = self.leadership.leave(how == HostEnd::Left).await;
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
            // Another process completes it; or the choice of the coordinator has ended.
            _ = self.elected.wait_for(is_elsewhere) => {}
        }
        // This process must not lead; the lease that it has granted to the present leader stays in force.
        self.leadership.leave(false).await;
        let is_over =
            |elected: &ElectedCoordinator| !matches!(elected, ElectedCoordinator::There(_));
        // The choice of the coordinator may have ended.
        let _ = self.elected.wait_for(is_over).await;
    }

    async fn stop(self, how: HostEnd, need: StateNeed) {
        let Self { leadership, commands, coordinator, file, .. } = self;
        drop(leadership);
        coordinator.abort();
        // The choice ends when no sender of commands is left, and then the task that writes the file of its voter.
        drop(commands);
        // A finished task may have been awaited already, and must not be polled again.
        if !coordinator.is_finished() {
            let _ = coordinator.await;
        }
        let Some(StateFile { task, path, ended }) = file else { return };
        let _ = task.await;
        // No majority may be left without this voter, if no member could replace it.
        let is_needed = how == HostEnd::Left && need == StateNeed::Needed;
        if how == HostEnd::Other || is_needed {
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
    pub async fn job_ended(&mut self) {
        let mut stored = self.leadership.stored.clone();
        let closed = async {
            // Before the first election, this voter's copy may be that of an earlier job of the same name.
            let is_led =
                |elected: &ElectedCoordinator| !matches!(elected, ElectedCoordinator::Unknown);
            let _ = self.elected.wait_for(is_led).await;
            loop {
                let is_closed = |stored: &Stored| {
                    let job_state = stored.replica.job_state.as_ref();
                    job_state.is_some_and(|job_state| job_state.closed.is_some())
                };
                // The voter may have ended.
                let _ = stored.wait_for(is_closed).await;
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
            _ = self.leadership.superseded() => {}
        }
    }
}

/// Removes the state file: if the job continues, other voters have its state.
async fn forget(state_file: &Path) {
    let path = state_file.to_owned();
    let _ = tokio::task::spawn_blocking(move || state_file::forget(&path)).await;
}

/// Returns true if a coordinator counts `node`, or has ended.
async fn knows(coordinator: &Inputs, node: &NodeId) -> bool {
    let job = snapshot(coordinator).await;
    job.is_none_or(|job| job.nodes.iter().any(|known| known.node_id == *node))
}
