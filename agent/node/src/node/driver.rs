//! Drives the agent machine and its link: one task with one loop.
//!
//! The task owns both machines, the node's worker stores, and the streams to the coordinator. Each turn of the loop
//!
//! 1. carries out the effects of the machines, until one of them ends the node's part.
//! 2. waits for a signal, an event or a deadline, and passes it to the machines.

mod death_notice;
mod notices;
mod outage;
mod streams;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use ragent_core::{
    agent::{Action, AgentSettings, Ending, News},
    health::NodeHealth,
    memory,
    node::{Effect, Node},
    outage::Outage,
};
use ragent_options::spec::{JobSpec, RequestKind};
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::{
    ids::{JobUid, Round, StreamNumber},
    message::{Admission, FromNode, NodeDescription, StoreUnreached},
};
use ragent_workers::driver::{WorkersCommand, WorkersEvent, WorkersHandle};
use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
};
use tracing::{debug, info, warn};

use ragent_base::{
    report::{
        measures::{NodeMeasures, RecentMinimum},
        news::{self, round_lines::RoundLines},
        service_manager::ServiceManager,
        stopping_line::StoppingLine,
        telemetry::{self, Log},
    },
    secret::Mismatch,
    sys::{alarm::Alarm, clock, host::ThisHost},
};
use ragent_coordinator::client::{self, StreamEvent};
use ragent_leadership::{Leadership, StateLoss, Superseded};

use self::{death_notice::Recipients, notices::GivenNotices};
use super::{
    destination::Destination,
    limits,
    proof_of_id::ProofOfId,
    store_reach::StoreReach,
    worker_stores::{WorkerStores, admission_of},
};
use crate::memory::MemoryService;
use crate::notices::NoticeRequest;

/// The driver's configuration: the job and the node.
#[derive(Debug)]
pub struct AgentSpec {
    /// The job.
    pub job: Arc<JobSpec>,
    /// The address of the coordinator, or of the voters.
    pub destination: Destination,
    /// This node's description. The address is set only if it is known before a stream is open.
    pub node: NodeDescription,
    /// The handle of the leadership, if this process may lead.
    pub leadership: Option<Leadership>,
    /// The start of the time in which other processes could show an earlier job to this one; `None` if there can be none.
    pub since: Option<Instant>,
    /// The log of this process.
    pub log: Log,
    /// The counters of this node.
    pub measures: Arc<NodeMeasures>,
    /// The settings of the agent machine.
    pub settings: AgentSettings,
    /// The state file of the coordinator that this agent hosts, if it does.
    pub state_file: Option<PathBuf>,
    /// The endpoint of the coordinator, under the name that all nodes use. This agent's port answers with it.
    pub coordinator: watch::Sender<CoordinatorAddress>,
}

impl AgentSpec {
    /// Returns how much time other processes have had to show an earlier job to this one; the maximum if there can be none.
    fn waited(&self) -> Duration {
        let waited = |since| clock::now().saturating_duration_since(since);
        self.since.map_or(Duration::MAX, waited)
    }
}

/// The end of a node's part.
#[derive(Debug)]
pub struct NodeEnd {
    /// The ending that the agent machine reached.
    pub ending: Ending,
    /// True if the workers of the last round on this node had succeeded.
    pub workers_succeeded: bool,
    /// True if workers were started on this node.
    pub has_run: bool,
    /// The endpoint of the coordinator, or the voters.
    pub endpoint: String,
    /// The processes that the coordinator depends on.
    pub depends_on: DependsOn,
}

/// The processes that a job needs to have a coordinator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DependsOn {
    /// The host of the only endpoint.
    OneHost,
    /// A majority of the voters. Set if a majority has lost the job's state.
    Voters(Option<StateLoss>),
    /// An etcd cluster.
    Etcd,
}

/// An error that ends the node's part.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// No store for the workers can be opened.
    #[error("failed to open a store for the workers")]
    Store(#[source] io::Error),
    /// The coordinator has other credentials, or it belongs to another user.
    #[error(transparent)]
    Mismatch(Mismatch),
    /// The driver of the workers has ended before its agent.
    #[error("the driver of the workers has ended")]
    Workers,
}

/// Runs this node's part until it ends.
///
/// # Errors
///
/// Returns [`DriveError`] if the node can no longer take part.
pub async fn drive(
    spec: AgentSpec,
    (stores, memory): (WorkerStores, MemoryService),
    handle: &mut WorkersHandle,
    signals: &mut mpsc::Receiver<Signal>,
    notices: &mut mpsc::Receiver<NoticeRequest>,
    service_manager: &mut ServiceManager,
) -> Result<NodeEnd, DriveError> {
    let (sender, mut events) = mpsc::channel(limits::TASK_QUEUE);
    let now = clock::now();
    let workers = spec.node.local_world_size.get();
    let workers = LocalWorkers {
        commands: handle.commands.clone(),
        are_running: false,
        have_run: false,
        have_succeeded: false,
        stopping: StoppingLine::new(workers, spec.job.shared.timeouts.stop_grace),
    };
    let mut driver = NodeDriver {
        node: Node::new(now, spec.settings.clone()),
        lines: RoundLines::new(&spec.job.shared, spec.job.output.first_node_lines),
        spec,
        stores,
        memory,
        workers,
        streams: BTreeMap::new(),
        proof: ProofOfId::default(),
        events: sender,
        recipients: Recipients::default(),
        notices: GivenNotices::default(),
        outage: Outage::default(),
        mismatch: None,
        address: None,
        addresses: Vec::new(),
        store_reach: StoreReach::default(),
        lease_margin: RecentMinimum::default(),
        service_manager,
        is_registered: false,
    };
    let mut alarm = Alarm::new();
    driver.take_health(&mut handle.health);
    loop {
        if let Some(ending) = driver.carry_out_all().await? {
            driver.notices.answer(|_| true, saved_step(&ending));
            let workers = &driver.workers;
            let (workers_succeeded, has_run) = (workers.have_succeeded, workers.have_run);
            let endpoint = driver.spec.destination.to_string();
            let depends_on = driver.depends_on();
            driver.flush_streams(&mut events).await;
            return Ok(NodeEnd { ending, workers_succeeded, has_run, endpoint, depends_on });
        }
        if let Some(mismatch) = driver.mismatch.take() {
            return Err(DriveError::Mismatch(mismatch));
        }
        driver.review_registration();
        let deadline = driver.poll_timeout();
        tokio::select! {
            // Events come before deadlines. Otherwise a pause of this agent would look like silence of the coordinator.
            biased;
            Some(signal) = signals.recv() => driver.handle_signal(signal),
            event = handle.events.recv() => {
                let event = event.ok_or(DriveError::Workers)?;
                // Report a failure first: what a check then finds would end the round as `BadMachine`, before the
                // coordinator knows the failure. For any other event, take the health first: a check that the failure has
                // started must be known before the end of the workers.
                if !matches!(event, WorkersEvent::Failed(_)) {
                    driver.take_health(&mut handle.health);
                }
                driver.handle_workers_event(event);
            }
            Some(event) = events.recv() => driver.handle_event(event),
            // An end of that driver is reported above.
            Ok(()) = handle.health.changed() => driver.take_health(&mut handle.health),
            Some(request) = notices.recv() => driver.handle_notice(request),
            input = driver.memory.next() => driver.handle_memory(input),
            () = driver.spec.destination.leader_changed() => driver.handle_own_leader(),
            news = news_of(&mut driver.spec.leadership) => match news {
                Some(superseded) => driver.handle_superseded(superseded),
                None => driver.handle_own_copy(),
            },
            Some(others) = driver.recipients.looked_up() => driver.handle_looked_up(others),
            (round, client) = driver.stores.refused() => driver.handle_refused_client(round, client),
            unreached = driver.store_reach.unreached() => driver.handle_store_unreached(unreached),
            () = alarm.until([deadline]) => driver.handle_timeout(),
        }
    }
}

/// Waits until this process's copy of the job's state has changed, or until the job does not continue here, and then returns the reason.
/// Never returns if this process takes no part in the leadership.
///
/// # Cancel safety
///
/// A cancelled call loses nothing.
async fn news_of(leadership: &mut Option<Leadership>) -> Option<Superseded> {
    let Some(leadership) = leadership else { return std::future::pending().await };
    let mut superseded = leadership.clone();
    tokio::select! {
        superseded = superseded.superseded() => {
            leadership.superseded.mark_unchanged();
            Some(superseded)
        }
        () = leadership.changed() => None,
    }
}

/// Returns the step that all ranks had saved at the end of the job.
fn saved_step(ending: &Ending) -> Option<u64> {
    match ending {
        Ending::Closed(outcome) => outcome.complete_step,
        Ending::Unreachable { complete_step, .. } => *complete_step,
        Ending::Left { saved_step, .. } => *saved_step,
        Ending::Refused(_) | Ending::Outlived => None,
    }
}

/// A stream to the coordinator, or the attempt to open it.
struct CoordinatorStream {
    task: AbortHandle,
    /// The queue for messages, and the address of the other end. Set once this node has sent its registration.
    registered: Option<(mpsc::Sender<FromNode>, SocketAddr)>,
}

/// The workers of this node.
struct LocalWorkers {
    commands: mpsc::Sender<WorkersCommand>,
    are_running: bool,
    have_run: bool,
    /// True if the workers of the last round on this node have succeeded.
    have_succeeded: bool,
    stopping: StoppingLine,
}

impl LocalWorkers {
    /// Sends a command. Waits for room in the queue.
    async fn order(&self, command: WorkersCommand) {
        // This fails only if the driver of the workers has ended, which is reported elsewhere.
        let _ = self.commands.send(command).await;
    }

    /// Sends a command without waiting.
    fn try_order(&self, command: WorkersCommand) {
        // The queue has room for all commands that can wait in it.
        let _ = self.commands.try_send(command);
    }
}

struct NodeDriver<'a> {
    node: Node,
    spec: AgentSpec,
    /// The lines about rounds that this agent prints.
    lines: RoundLines,
    stores: WorkerStores,
    memory: MemoryService,
    workers: LocalWorkers,
    streams: BTreeMap<StreamNumber, CoordinatorStream>,
    proof: ProofOfId,
    events: mpsc::Sender<StreamEvent>,
    /// The recipients of the death notice.
    recipients: Recipients,
    notices: GivenNotices,
    outage: Outage,
    /// The mismatch that keeps this node from taking part.
    mismatch: Option<Mismatch>,
    /// The address of this node at the last registration; `None` if it was a name.
    address: Option<IpAddr>,
    /// This machine's addresses at the last registration.
    addresses: Vec<IpAddr>,
    store_reach: StoreReach,
    /// The least time that was left of the lease at recent echoes.
    lease_margin: RecentMinimum,
    service_manager: &'a mut ServiceManager,
    /// True if the voter of this process knows that this agent is registered.
    is_registered: bool,
}

impl NodeDriver<'_> {
    fn poll_timeout(&self) -> Option<Instant> {
        let of_manager = self.service_manager.poll_timeout();
        let of_line = self.workers.stopping.poll_timeout();
        [self.node.poll_timeout(), of_manager, of_line].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self) {
        let now = clock::now();
        self.node.handle_timeout(now);
        self.service_manager.handle_timeout(now);
        self.workers.stopping.handle_timeout(now).iter().for_each(|line| telemetry::line(line));
    }

    fn handle_refused_client(&mut self, round: Round, address: IpAddr) {
        self.spec.measures.refused_clients.add(1);
        self.node.tell(clock::now(), |agent| agent.handle_client_refused(round, address));
    }

    fn handle_store_unreached(&mut self, unreached: StoreUnreached) {
        let StoreUnreached { round, address, why } = unreached.clone();
        if self.node.tell(clock::now(), |agent| agent.handle_store_unreached(unreached)) {
            warn!(%round, "{}", news::store_unreached("this node", &address, &why));
        }
    }

    /// Takes the health of this node, as it is now.
    fn take_health(&mut self, health: &mut watch::Receiver<NodeHealth>) {
        let (now, health) = (clock::now(), health.borrow_and_update().clone());
        self.node.tell(now, |agent| agent.handle_health(now, health));
    }

    fn handle_workers_event(&mut self, event: WorkersEvent) {
        let now = clock::now();
        debug!(?event, "message from the driver of the workers");
        match &event {
            WorkersEvent::Finished(_) => {
                self.workers.are_running = false;
                self.workers.stopping.handle_ended();
            }
            // The keeper's clock runs while the machine is suspended. The agent's does not.
            WorkersEvent::LeaseExpired => self.report_lost_lease(),
            WorkersEvent::SignalOfWorker(signal) => self.handle_signal_of_worker(*signal),
            WorkersEvent::Saves(saves) => self.notices.answer_saves(saves),
            // Only the machine needs it.
            _ => {}
        }
        self.node.tell(now, |agent| match event {
            WorkersEvent::Failed(failure) => agent.handle_failed(now, *failure),
            WorkersEvent::Cause(cause) => agent.handle_cause(now, *cause),
            WorkersEvent::Hardware(round, hardware) => agent.handle_hardware(now, round, hardware),
            WorkersEvent::Finished(end) => agent.handle_finished(now, end),
            WorkersEvent::LeaseExpired => agent.handle_lease_expired(),
            WorkersEvent::SignalOfWorker(_) => {}
            WorkersEvent::Progress(text) => agent.handle_progress(now, text),
            WorkersEvent::Steps(steps) => agent.handle_steps(steps),
            WorkersEvent::Saves(saves) => agent.handle_saves(now, saves),
            WorkersEvent::Digest(digest) => agent.handle_digest(*digest),
            WorkersEvent::Standbys(counts) => agent.handle_standbys(now, counts),
            WorkersEvent::StandbysSettled => agent.handle_standbys_settled(now),
        });
    }

    fn handle_memory(&mut self, input: memory::Input) {
        let now = clock::now();
        self.node.tell(now, |agent| agent.handle_memory(now, input));
    }

    /// Carries out the effects of the machines. Returns the ending once it is reached.
    async fn carry_out_all(&mut self) -> Result<Option<Ending>, DriveError> {
        let mut ending = None;
        while let Some(effect) = self.node.poll_effect() {
            if !matches!(effect, Effect::Send { .. }) {
                debug!(?effect, "agent");
            }
            match effect {
                Effect::Local(Action::Finish(how)) => ending = Some(how),
                effect => self.carry_out(effect).await?,
            }
        }
        Ok(ending)
    }

    async fn carry_out(&mut self, effect: Effect) -> Result<(), DriveError> {
        match effect {
            Effect::Dial(stream) => {
                let is_registered = self.node.is_registered();
                let (endpoint, known) = self.spec.destination.dial(stream, is_registered);
                let events = self.events.clone();
                let credentials = self.spec.job.credentials.clone();
                let task = client::register(endpoint, known, stream, credentials, events);
                let task = tokio::spawn(task).abort_handle();
                self.streams.insert(stream, CoordinatorStream { task, registered: None });
            }
            Effect::Send { stream, message } => self.send_on(stream, message),
            Effect::Drop(stream) => self.forget(stream),
            Effect::Renew(until) => self.workers.order(WorkersCommand::Renew(until)).await,
            Effect::LeaseLost => {
                self.lease_margin = RecentMinimum::default();
                self.spec.measures.set_margin(None);
                self.report_lost_lease();
            }
            Effect::Local(action) => self.act(action).await?,
        }
        Ok(())
    }

    /// Carries out an action on this node.
    async fn act(&mut self, action: Action) -> Result<(), DriveError> {
        match action {
            Action::OpenStore => {
                self.refresh_addresses();
                let port = self.stores.open().await.map_err(DriveError::Store)?;
                let now = clock::now();
                self.node.tell(now, |agent| agent.handle_store_open(now, port));
            }
            Action::Start(admission) => {
                self.workers.have_succeeded = false;
                self.workers.are_running = true;
                self.workers.have_run = true;
                // An admission shows that the coordinator was reached.
                self.outage.handle_reached();
                if self.lines.is_shown(admission.group_rank) {
                    self.workers.stopping.handle_started();
                }
                self.set_death_notice();
                self.serve_store(&admission).await;
                if self.stores.are_served() {
                    self.store_reach.test(&admission);
                }
                // An admitted node has been welcomed, so it knows the job uid.
                let job_uid = self.node.agent().job_uid().cloned();
                let job_uid = job_uid.unwrap_or_else(|| JobUid::new(""));
                self.memory.set_job(job_uid.clone());
                let memory_folder = self.memory.socket_folder().map(Path::to_owned);
                let address = self.address;
                let start = WorkersCommand::Start { admission, job_uid, address, memory_folder };
                self.workers.order(start).await;
            }
            Action::Stop { signal, grace } => {
                self.workers.order(WorkersCommand::Stop { signal, grace }).await
            }
            Action::ShowNotice(notice) => {
                if notice.is_none() {
                    // The round has ended, so a request for a checkpoint gets no answer.
                    self.notices.answer(|asker| asker.kind == RequestKind::Save, None);
                }
                self.workers.order(WorkersCommand::ShowNotice(notice)).await;
            }
            Action::Look(order) => self.workers.order(WorkersCommand::Look(order)).await,
            Action::Hung(hung) => self.workers.order(WorkersCommand::Hung(hung)).await,
            Action::Kill => self.workers.order(WorkersCommand::Kill).await,
            Action::Announce(news) => {
                self.workers.have_succeeded |= matches!(news, News::Succeeded(_));
                if let News::NoticeOver(end) = &news {
                    self.notices.answer(|_| true, end.step.or(end.memory_step));
                }
                if news == News::HostLeaving {
                    self.outage.handle_host_leaving(clock::now());
                }
                news::log(&news, self.lines.are_repeated());
                self.lines.line(&news).iter().for_each(|line| telemetry::line(line));
                if news::is_failure(&news) {
                    self.spec.log.keep();
                }
                self.service_manager.report_news(&news);
            }
            Action::ReportWait(wait) => {
                info!("{}", news::waiting_for(&wait));
                let endpoint = self.spec.coordinator.borrow().endpoint.clone();
                let line = self.lines.waiting(&wait, &endpoint, &self.spec.job.run_id);
                line.iter().for_each(|line| telemetry::line(line));
            }
            Action::Memory(memory::Effect::LeaveToStandbys(bytes)) => {
                self.workers.order(WorkersCommand::LeaveToStandbys(bytes)).await;
            }
            Action::Memory(effect) => self.memory.carry_out(effect),
            Action::Finish(_) => debug_assert!(false, "handled by the caller"),
        }
        Ok(())
    }

    async fn serve_store(&mut self, admission: &Admission) {
        if admission.group_rank.0 == 0 {
            let (members, world_size) = (&admission.store_clients, admission.world_size);
            let access = self.spec.job.shared.store_access;
            let access = admission_of(access, members, world_size, |ip| ThisHost.owns(ip));
            self.stores.serve(admission.round.round, access).await;
        } else {
            self.stores.close_all().await;
        }
    }

    fn depends_on(&self) -> DependsOn {
        let AgentSpec { destination, leadership, .. } = &self.spec;
        let state_loss = leadership.as_ref().and_then(|choice| choice.state_loss.borrow().clone());
        if destination.uses_etcd() {
            DependsOn::Etcd
        } else if destination.voter_list().len() > 1 || state_loss.is_some() {
            DependsOn::Voters(state_loss)
        } else {
            DependsOn::OneHost
        }
    }

    /// Dials the leader that this agent's own voter, or the record in etcd, names. With etcd, the recipients of the death notice may have
    /// changed, too.
    fn handle_own_leader(&mut self) {
        if self.spec.destination.handle_own_leader() {
            self.node.handle_new_leader(clock::now());
        }
        if self.spec.destination.uses_etcd() {
            self.handle_other_recipients();
        }
    }

    /// Sends the last messages. Closing this side of the streams ends the other side.
    async fn flush_streams(mut self, events: &mut mpsc::Receiver<StreamEvent>) {
        let current = self.node.current();
        self.streams.clear();
        let ended = async {
            while let Some(event) = events.recv().await {
                if matches!(event, StreamEvent::Ended(stream, _) if Some(stream) == current) {
                    return;
                }
            }
        };
        if current.is_some() {
            let _ = tokio::time::timeout(limits::FLUSH_TIMEOUT, ended).await;
        }
    }
}
