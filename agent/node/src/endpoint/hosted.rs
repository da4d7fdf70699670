//! Runs the part of a process that may lead the job.
//!
//! It has three pieces:
//!
//! - the leadership, which decides whether this process leads,
//! - the port, which all nodes reach,
//! - the coordinator, which runs here while this process leads.
//!
//! The end is the hard part. A process must not take its state with it while the job needs it, and a leader informs all nodes before it
//! ends ([`Hosted::end`]).

use std::{
    net::{IpAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ragent_base::{
    net::{
        Endpoint,
        port::{PortProtocols, PortStore, RegisteredNodes},
    },
    secret::Credentials,
    sys::system_error::{SystemError, system},
};
use ragent_coordinator::{
    driver::{Input, Inputs, Records, measures::CoordinatorMeasures, snapshot},
    host::CoordinatorHost,
    role::{ElectedCoordinator, Role},
    service,
};
use ragent_election::election::{self, timers::Timers};
use ragent_leadership::{
    Commands, Leadership, RunningLeadership, StateNeed, Stored,
    replica_file::{self, ReplicaFile},
    state_file::{self, EndedJobs},
    voters::{self, VoterSpec},
};
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::{
    ids::{NodeId, VoterAddress, VoterId},
    settings::{Leases, NodeRange, Settings, Timeouts},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tracing::{info, warn};

use super::server::Server;
use crate::endpoint::limits;

/// The parts of a process that may lead: the leadership, and the coordinator while it leads.
pub struct Hosted {
    leadership: Leadership,
    /// Dropped to end the leadership.
    commands: Commands,
    elected: watch::Receiver<ElectedCoordinator>,
    coordinator: JoinHandle<()>,
    file: Option<StateFile>,
}

/// The state file of a voter, and the task that writes it.
pub struct StateFile {
    task: JoinHandle<()>,
    file: Arc<ReplicaFile>,
    /// The jobs of this name that have ended.
    ended: EndedJobs,
}

/// The listener of an endpoint, and what else its port needs.
pub struct EndpointPort {
    /// The listener.
    pub listener: TcpListener,
    /// The store on the port, if there is one.
    pub store: Option<PortStore>,
    /// The credentials that clients must match.
    pub credentials: Credentials,
    /// The registered nodes, published to the port.
    pub registered_nodes: watch::Sender<RegisteredNodes>,
    /// The file to which a coordinator appends its events, if there is one.
    pub journal: Option<PathBuf>,
    /// The program of `--exclude-command`, with its arguments; empty if there is none.
    pub exclude_command: Vec<String>,
}

/// The coordinator that a process runs while it leads.
pub struct OwnCoordinator {
    /// Its settings.
    pub settings: Settings,
    /// The endpoint at which others reach this process.
    pub endpoint: Endpoint,
    /// The coordinator with which the agent of this process is registered.
    pub registered: watch::Sender<CoordinatorAddress>,
}

/// The configuration of a voter, its port and its coordinator.
pub struct HostedVoterSpec {
    /// The endpoints of the first voters.
    pub listed: Vec<Endpoint>,
    /// True if the user gave the list, so that all first voters of the job have the same one.
    pub is_list_common: bool,
    /// The state file of the voter.
    pub state_file: PathBuf,
    /// The node id of this process.
    pub process: NodeId,
    /// The leases of the election.
    pub timers: Timers,
    /// The address of the endpoint, from which it connects to other voters; `None`: the system selects one.
    pub source: Option<IpAddr>,
    /// The time that agents may wait for the next leader.
    pub kept: Duration,
    /// True if no earlier job of this name can exist.
    pub is_first_start: bool,
}

/// The reason why a process that may lead ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HostEnd {
    /// The job has ended and this agent has the outcome, or another job continues instead.
    Closed,
    /// The agent has left the job.
    Left,
    /// Any other reason.
    Other,
}

/// Starts a voter and serves its port.
///
/// # Errors
///
/// Returns [`SystemError`] if a thread cannot be started.
pub fn host_voter(
    port: EndpointPort,
    own: OwnCoordinator,
    spec: HostedVoterSpec,
) -> Result<(Hosted, Server), SystemError> {
    let (run_id, endpoint) = (own.settings.run_id.clone(), &own.endpoint);
    let stored = state_file::read_copy(&spec.state_file)
        .filter(|stored| is_of_this_voter(stored, &spec.state_file, endpoint));
    let is_new = stored.is_none();
    let mut stored = stored.unwrap_or_default();
    let voter = *stored.voter.get_or_insert_with(|| VoterId(rand::random()));
    let job_state = stored.replica.job_state.as_ref();
    info!(%endpoint, run_id = %run_id, round = job_state.map_or(0, |job_state| job_state.round.0), "voter started");
    let address = VoterAddress::new(endpoint.to_string());
    let file = Arc::new(ReplicaFile::new(spec.state_file, spec.kept));
    let own_file = Arc::clone(&file);
    let ended = EndedJobs::of(&run_id, spec.kept);
    let ended_before = ended.read();
    let record_end = ended.clone();
    let running = voters::start(VoterSpec {
        run_id,
        is_list_common: spec.is_list_common,
        settings: election::ElectionSettings {
            voter,
            is_new,
            // An earlier process of this voter may have granted a lease.
            is_first_start: spec.is_first_start && is_new,
            ended: ended_before,
            address,
            listed: spec
                .listed
                .iter()
                .map(|listed| VoterAddress::new(listed.to_string()))
                .collect(),
            process: spec.process,
            timers: spec.timers,
            seed: rand::random(),
        },
        stored,
        // Errors are reported by the task that usually writes the file.
        store: Box::new(move |stored| own_file.write(stored).is_ok() || own_file.discard()),
        record_end: Box::new(move |uid| {
            let (ended, uid) = (record_end.clone(), uid.clone());
            // A slow disk must not delay the voter.
            drop(tokio::task::spawn_blocking(move || ended.add(&uid)));
        }),
        source: spec.source,
        credentials: port.credentials.clone(),
    })
    .map_err(system("start a thread"))?;
    let task = replica_file::keep(Arc::clone(&file), running.leadership.stored.clone());
    let file = StateFile { task: tokio::spawn(task), file, ended };
    host(port, own, running, Some(file))
}

/// Returns the time that agents may wait for the next leader: a lease and the join timeout. After that, the stored state is useless.
pub fn kept_for(nodes: NodeRange, timeouts: Timeouts) -> Duration {
    timeouts.join.saturating_add(Leases::default().for_nodes(nodes).coordinator)
}

/// Returns false if the state file belongs to a voter at another endpoint. For example, two containers share a state folder. Two processes
/// with the identity of one voter could elect two leaders.
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

/// Starts the coordinator of a process that may lead, and serves its port. `file` is the state file of its voter.
///
/// # Errors
///
/// Returns [`SystemError`] if the thread of the port cannot be started.
pub(super) fn host(
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
    let EndpointPort { listener, store, credentials, registered_nodes, journal, exclude_command } =
        port;
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
        exclude_command,
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
        memory: None,
        registered_nodes: protocols_nodes,
        nodes_max,
    };
    let hosted = Hosted { leadership, commands, elected, coordinator, file };
    Ok((hosted, Server::start(listener, protocols, shared)?))
}

impl Hosted {
    /// Returns the handle of the leadership.
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Returns the elected coordinator, as this process knows it.
    pub(super) fn elected(&self) -> watch::Receiver<ElectedCoordinator> {
        self.elected.clone()
    }

    /// Ends this process's part. The caller limits the time. `own` is the node of this process, if it has an agent.
    ///
    /// - A leader steps down. If the job has ended, or if no other process can lead, it first informs all nodes.
    /// - A follower of a job that has ended keeps granting leases until the leader has informed all nodes.
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
                // The coordinator does not know why this agent ends. It may have ended itself.
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
            // Another process completes the job, or the leadership has ended.
            _ = self.elected.wait_for(is_elsewhere) => {}
        }
        let ElectedCoordinator::There(last) = self.elected.borrow().clone() else { return };
        // This process must not lead any more. The lease that it has granted to the current leader stays valid.
        self.leadership.leave(false).await;
        // The leader of the next job may follow at once.
        let is_over = |elected: &ElectedCoordinator| match elected {
            ElectedCoordinator::There(leader) => *leader != last,
            ElectedCoordinator::Here(_) | ElectedCoordinator::Unknown => true,
        };
        // This fails if the leadership has ended.
        let _ = self.elected.wait_for(is_over).await;
    }

    async fn stop(self, how: HostEnd, need: StateNeed) {
        let Self { leadership, commands, coordinator, file, .. } = self;
        drop(leadership);
        coordinator.abort();
        // The leadership ends with the last sender of commands. Then the task that writes the voter's file ends.
        drop(commands);
        // A finished task may have been awaited already, and must not be polled again.
        if !coordinator.is_finished() {
            let _ = coordinator.await;
        }
        let Some(StateFile { task, file, ended }) = file else { return };
        let _ = task.await;
        // If no member could replace this voter, the others may need it for a majority.
        let is_needed = how == HostEnd::Left && need == StateNeed::Needed;
        if how == HostEnd::Other || is_needed {
            return;
        }
        // If the job continues, other voters have its state.
        let _ = tokio::task::spawn_blocking(move || file.remove()).await;
        if let StateNeed::Ended(job) = need {
            // Other hosts may still have a state file of the job.
            let _ = tokio::task::spawn_blocking(move || ended.add(&job)).await;
        }
    }

    /// Waits until the job has ended: a coordinator has closed it and no other one is elected, or the job does not continue in this
    /// process.
    pub async fn job_ended(&mut self) {
        let mut stored = self.leadership.stored.clone();
        let closed = async {
            // Before the first election, this voter's copy may belong to an earlier job of the same name.
            let is_led =
                |elected: &ElectedCoordinator| !matches!(elected, ElectedCoordinator::Unknown);
            let _ = self.elected.wait_for(is_led).await;
            loop {
                let is_closed = |stored: &Stored| {
                    let job_state = stored.replica.job_state.as_ref();
                    job_state.is_some_and(|job_state| job_state.closed.is_some())
                };
                // This fails if the voter has ended.
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

/// Returns true if a coordinator counts `node`, or if it has ended.
async fn knows(coordinator: &Inputs, node: &NodeId) -> bool {
    let job = snapshot(coordinator).await;
    job.is_none_or(|job| job.nodes.iter().any(|known| known.node_id == *node))
}
