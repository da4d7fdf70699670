//! A voter in this process, its port, and the coordinator that runs here while the voter leads.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use ragent_rendezvous::{
    election::{self, message::Place, timers::Timers},
    ids::NodeId,
    settings::Settings,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tracing::info;

use super::{hosted_coordinator::EndpointPort, server::Server};
use crate::{
    coordinator::{
        driver::Input,
        elected::{self, VoterCoordinator},
        replica_file,
        role::{ElectedCoordinator, Role},
        service, state_file,
    },
    endpoint::limits,
    net::port::{PortProtocols, VoterConnection},
    spec::Endpoint,
    sys::system_error::{SystemError, system},
    voter::{self, Answered, Commands, Leader, Stored, VoterHandle, VoterSpec},
};

/// A running voter.
pub(crate) struct HostedVoter {
    commands: Commands,
    elected: watch::Receiver<ElectedCoordinator>,
    stored: watch::Receiver<Stored>,
    coordinator: JoinHandle<()>,
    file: Option<StateFile>,
}

/// The state file of a voter, and the task that writes it.
pub(super) struct StateFile {
    task: JoinHandle<()>,
    path: PathBuf,
}

/// A process that takes part in the choice of the leader, and the coordinator that runs in it while it leads.
pub(super) struct Elector {
    /// The settings of the coordinator.
    pub settings: Settings,
    /// The list of voters, in the order of their places; empty if the leader is chosen through an external store.
    pub list: Vec<Endpoint>,
    /// The place of this process in the list.
    pub own: Place,
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
}

/// The configuration of a voter, its port and its coordinator.
pub(crate) struct HostedVoterSpec {
    /// The list of voters, in the order of their places.
    pub list: Vec<Endpoint>,
    /// The place of this process.
    pub place: Place,
    /// Its position in the list as the user gave it.
    pub turn: usize,
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
}

/// The way in which a voter's process ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum VoterEnd {
    /// The job has ended, and this agent has the outcome.
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
    let run_id = spec.settings.run_id.clone();
    let endpoint = spec.list.get(spec.place.0).cloned().unwrap_or_default();
    let state_file = state_file::voter_path(&run_id, &endpoint);
    let stored = state_file::read_copy(&state_file).unwrap_or_default();
    let own = state_file.clone();
    // A slow disk does not delay the start, and remaining files are removed next time.
    drop(tokio::task::spawn_blocking(move || state_file::clean(&own)));
    info!(
        %endpoint, run_id = %run_id, round = stored.replica.memory.as_ref().map_or(0, |m| m.round.0),
        "voter started"
    );
    let handle = voter::start(VoterSpec {
        run_id: run_id.clone(),
        list: spec.list.clone(),
        settings: election::Settings {
            place: spec.place,
            turn: spec.turn,
            voters: spec.list.len(),
            process: spec.process,
            timers: spec.timers,
            seed: rand::random(),
        },
        stored,
        source: spec.source,
    })
    .map_err(system("start a thread"))?;
    let VoterHandle { commands, leader, answered, stored, connections } = handle;
    let task = replica_file::keep(state_file.clone(), stored.clone(), spec.kept);
    let file = StateFile { task: tokio::spawn(task), path: state_file };
    let elector = Elector {
        settings: spec.settings,
        list: spec.list,
        own: spec.place,
        endpoint,
        commands,
        leader,
        answered,
        stored,
        connections: Some(connections),
        file: Some(file),
    };
    Ok(serve_elector(port, elector))
}

/// Starts the coordinator of a process that takes part in the choice of the leader, and serves its port.
pub(super) fn serve_elector(port: EndpointPort, elector: Elector) -> (HostedVoter, Server) {
    let Elector {
        settings,
        list,
        own,
        endpoint,
        commands,
        leader,
        answered,
        stored,
        connections,
        file,
    } = elector;
    let run_id = settings.run_id.clone();
    let (published, elected) = watch::channel(ElectedCoordinator::Unknown);
    let (obituaries, received) = mpsc::channel(limits::OBITUARIES);
    let EndpointPort { listener, store, attended } = port;
    let protocols_attended = attended.subscribe();
    let known = stored.clone();
    let coordinator = VoterCoordinator {
        settings,
        list,
        own,
        commands: commands.clone(),
        leader,
        answered,
        stored,
        attended,
        elected: published,
        obituaries: received,
    };
    let coordinator = tokio::spawn(coordinator.run());
    let role = Role::Voter { endpoint: endpoint.to_string(), elected: elected.clone(), obituaries };
    let http = service::router(&run_id, role);
    let protocols = PortProtocols {
        http,
        store: Some(store),
        voters: connections,
        attended: protocols_attended,
    };
    let hosted = HostedVoter { commands, elected, stored: known, coordinator, file };
    (hosted, Server::start(listener, protocols))
}

impl HostedVoter {
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
        elected::leave(&self.commands).await;
        self.stop(how).await;
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
        elected::leave(&self.commands).await;
        let is_over =
            |elected: &ElectedCoordinator| !matches!(elected, ElectedCoordinator::There(_));
        // The voter may have ended.
        let _ = self.elected.wait_for(is_over).await;
    }

    async fn stop(self, how: VoterEnd) {
        let Self { commands, coordinator, file, .. } = self;
        coordinator.abort();
        // The voter ends when no sender of commands is left, and then the task that writes its file.
        drop(commands);
        // A finished task may have been awaited already, and must not be polled again.
        if !coordinator.is_finished() {
            let _ = coordinator.await;
        }
        let Some(StateFile { task, path }) = file else { return };
        let _ = task.await;
        match how {
            VoterEnd::Closed | VoterEnd::Left => forget(&path).await,
            VoterEnd::Other => {}
        }
    }

    /// Waits until the job has ended: the coordinator in this process has closed it, or another one has, and no
    /// further coordinator is elected.
    pub(crate) async fn job_ended(&mut self) {
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
        }
    }
}

/// Removes the state file: if the job continues, other voters have its state.
async fn forget(state_file: &Path) {
    let path = state_file.to_owned();
    let _ = tokio::task::spawn_blocking(move || state_file::forget(&path)).await;
}
