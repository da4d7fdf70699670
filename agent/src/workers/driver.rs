//! Drives the supervisor machine: one task, which owns the keeper and the local worker group.

mod failure;
mod starting;
mod watching;

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use ragent_core::{
    hang::{Activity, Hang, HangWatch},
    keeper_watch::KeeperWatch,
    process_end::{self, ProcessEnd},
    signal,
    supervisor::{Effect, GroupEnd, Input, Supervisor},
};
use ragent_rendezvous::{
    ids::{JobUid, LocalRank, Round, RoundId},
    message::{Admission, WorkerEnd, WorkerFailure},
};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use self::watching::{next_notice, next_timer, open_notices};
use super::{
    health::{held_gpus::HeldGpus, notices::NoticeSockets, timers::Timers},
    keeper_link::{Drains, FromKeeper, KeeperLink},
    plumbing::{Prepared, StderrTail},
    spec::SupervisorSpec,
};
use crate::{
    keeper::order::{Order, Report},
    limits,
    output::{lines::Choice, logs::WorkerFolder},
    report::event_log::{AgentEvent, WorkerEvent},
    sys::clock,
};

/// A command to the supervisor.
#[derive(Debug)]
pub enum Command {
    /// Start the workers of a round; the previous group has finished.
    Start {
        /// The admission of the node.
        admission: Box<Admission>,
        /// The run to which the round belongs.
        job_uid: JobUid,
    },
    /// End the group; its workers have `grace` to end.
    Stop {
        /// The signal for its workers.
        signal: signal::Signal,
        /// The time that they have.
        grace: Duration,
    },
    /// Forward a signal to the workers, which go on.
    Forward(Signal),
    /// End the group at once.
    Kill,
    /// Let workers run until this time unless it is renewed; without a limit if they need no lease.
    Renew(Option<Instant>),
    /// Set the obituary that the keeper sends if the agent dies, and its destinations.
    Bury {
        /// The id of the agent's node.
        node_id: String,
        /// The addresses of the coordinator.
        coordinators: Vec<std::net::SocketAddr>,
        /// The newest round that ran here.
        round: Round,
        /// The proof of the agent's node id; `None` until the first welcome.
        proof: Option<ragent_proto::Proof>,
        /// The state file of the coordinator that this agent hosts, if it does.
        state_file: Option<PathBuf>,
    },
}

/// A report of the supervisor.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    /// The group's first failure; the other workers are being stopped.
    Failed(Box<WorkerFailure>),
    /// The failure with the oldest error file of all workers in the group; sent before the end of
    /// the group.
    Cause(Box<WorkerFailure>),
    /// The group has ended, and none of its processes is left.
    Finished(GroupEnd),
    /// The keeper kills the workers because their lease has expired.
    CutOff,
    /// The status line of a worker.
    Said(String),
}

/// A running supervisor.
#[derive(Debug)]
pub struct SupervisorHandle {
    /// Commands; dropping this ends the supervisor, its keeper and everything below.
    pub commands: mpsc::Sender<Command>,
    /// Reports of the supervisor.
    pub told: mpsc::Receiver<Told>,
    /// Its task, which ends when no process is left.
    pub task: tokio::task::JoinHandle<()>,
}

/// Starts a supervisor with its keeper.
///
/// # Errors
///
/// Returns the system's refusal to start the keeper.
pub fn start(spec: SupervisorSpec) -> io::Result<SupervisorHandle> {
    let (commands, received) = mpsc::channel(limits::TASK_QUEUE);
    let (tell, told) = mpsc::channel(limits::TASK_QUEUE);
    let (reports, from_keeper) = mpsc::channel(limits::TASK_QUEUE);
    let (background, done) = mpsc::channel(limits::TASK_QUEUE);
    let notices = open_notices(&spec);
    let gpus = Arc::new(HeldGpus::new(spec.held_gpu_timeout));
    let drains = Drains::default();
    let keeper = KeeperLink::start(drains.clone(), reports.clone())?;
    let driver = Driver {
        spec,
        keeper: Some(keeper),
        drains,
        reports,
        tell,
        group: None,
        bury: None,
        renewed: None,
        lease: None,
        sweeps: 0,
        idle_since: clock::now(),
        timers: Timers::default(),
        notices,
        gpus,
        background,
    };
    let task = tokio::spawn(driver.drive(received, from_keeper, done));
    Ok(SupervisorHandle { commands, told, task })
}

struct Driver {
    spec: SupervisorSpec,
    keeper: Option<KeeperLink>,
    drains: Drains,
    reports: mpsc::Sender<FromKeeper>,
    tell: mpsc::Sender<Told>,
    group: Option<Group>,
    /// The latest orders of these kinds, which a new keeper needs.
    bury: Option<Order>,
    renewed: Option<Order>,
    /// The end of the lease, if it has one.
    lease: Option<Instant>,
    /// The number of sweeps ordered so far.
    sweeps: u64,
    /// The time since which no group has run.
    idle_since: Instant,
    timers: Timers,
    notices: Option<NoticeSockets>,
    gpus: Arc<HeldGpus>,
    background: mpsc::Sender<(RoundId, Done)>,
}

/// The result of background work for the group of a round.
#[derive(Debug)]
enum Done {
    /// The output files of the workers are open.
    Prepared(Prepared),
    /// The activity of the workers was read.
    Looked(BTreeMap<LocalRank, Activity>),
    /// The stacks of a hung group were taken.
    Stacks(Hang, BTreeMap<LocalRank, PathBuf>),
}

/// The workers of one round.
struct Group {
    machine: Supervisor,
    admission: Admission,
    job_uid: JobUid,
    workers: BTreeMap<LocalRank, Worker>,
    /// The filters for lines of all workers, and their files: of stdout, of stderr.
    choices: [Option<Choice>; 2],
    hang: Option<HangWatch>,
    is_looking: bool,
    keeper: KeeperWatch,
    /// The time at which it began to stop.
    stopped: Option<Instant>,
}

/// The state of one worker.
#[derive(Default)]
struct Worker {
    pid: u32,
    fate: Fate,
    /// Its end, and the time at which that was reported.
    end: Option<(WorkerEnd, Instant)>,
    folder: Option<WorkerFolder>,
    stderr: StderrTail,
    /// The last status line that it sent.
    said: Option<String>,
    /// The file with its stack, if it hung.
    stack: Option<PathBuf>,
}

/// The state of a worker, for events.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Fate {
    #[default]
    Running,
    Succeeded,
    /// The worker was the first to fail.
    Failed,
    /// The worker has ended in another way.
    Ended,
}

impl Driver {
    async fn drive(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        mut from_keeper: mpsc::Receiver<FromKeeper>,
        mut done: mpsc::Receiver<(RoundId, Done)>,
    ) {
        loop {
            let deadline = self.group.as_ref().and_then(|group| group.machine.poll_timeout());
            let timer = self.timers.poll_timeout();
            let look = self.group.as_ref().and_then(Group::next_look);
            let keeper = self.group.as_ref().and_then(|group| group.keeper.poll_timeout());
            tokio::select! {
                // Reports before commands and deadlines, so that a process that has ended is not
                // killed again.
                biased;
                Some(report) = from_keeper.recv() => self.handle_keeper(report).await,
                () = clock::until(deadline) => self.handle_timeout(),
                command = commands.recv() => match command {
                    Some(command) => self.handle_command(command).await,
                    None => break,
                },
                () = clock::until(timer) => self.kill_expired(),
                () = clock::until(look) => self.look(),
                () = clock::until(keeper) => self.watch_keeper().await,
                Some((round, done)) = done.recv() => self.handle_done(round, done).await,
                request = next_timer(&mut self.spec.timer_pipe) => {
                    self.timers.handle(clock::now(), clock::wall_time(), request);
                }
                // Last, so that a flood of notices delays nothing else.
                notice = next_notice(&mut self.notices) => self.handle_notice(notice),
            }
            self.carry_out_all().await;
            self.carry_out_keeper().await;
            self.spec.events.flush();
        }
        self.end(from_keeper).await;
    }

    async fn handle_keeper(&mut self, report: FromKeeper) {
        debug!(?report, "keeper");
        if let Some(group) = &mut self.group {
            match report {
                FromKeeper::Report(Report::Pong) => group.keeper.handle_pong(),
                FromKeeper::Report(_) | FromKeeper::Lost => {
                    group.keeper.handle_report(clock::now());
                }
            }
        }
        let report = match report {
            FromKeeper::Report(report) => report,
            FromKeeper::Lost => {
                warn!("the keeper has ended, and the workers with it; starting another keeper");
                self.keeper = None;
                return self.input(Input::KeeperLost);
            }
        };
        match report {
            Report::Spawned { local_rank, pid } => {
                let local_rank = LocalRank(local_rank);
                if let Some(group) = &mut self.group {
                    group.workers.entry(local_rank).or_default().pid = pid;
                    let event = WorkerEvent::Started;
                    self.spec.events.worker(&group.admission, local_rank, pid, event);
                }
            }
            Report::NotSpawned { local_rank, reason } => {
                self.input(Input::Ended(LocalRank(local_rank), WorkerEnd::NotStarted(reason)));
            }
            Report::Ended { local_rank, end } => {
                let worker = self
                    .group
                    .as_mut()
                    .and_then(|group| group.workers.get_mut(&LocalRank(local_rank)));
                if let Some(worker) = worker {
                    worker.end = Some((end.into(), clock::now()));
                    worker.fate =
                        if end == ProcessEnd::Exited(0) { Fate::Succeeded } else { Fate::Ended };
                }
                if let Some(hang) = self.group.as_mut().and_then(|group| group.hang.as_mut()) {
                    hang.handle_ended(LocalRank(local_rank));
                }
                self.input(Input::Ended(LocalRank(local_rank), end.into()));
            }
            Report::Quiet => self.input(Input::Quiet),
            Report::Reaped { number } if number == self.sweeps => self.input(Input::Reaped),
            // A sweep that the keeper began by itself; the sweep ordered since is reported as well.
            Report::Reaped { .. } => {}
            Report::LeaseOver => {
                // The agent warns of the outage.
                info!("the lease has ended; the keeper kills the workers");
                self.tell(Told::CutOff).await;
                self.input(Input::Kill);
            }
            Report::Pong => {}
        }
    }

    fn handle_timeout(&mut self) {
        if let Some(group) = &mut self.group {
            warn!(round = %group.admission.round, "workers did not end in time; killing them");
            group.machine.handle_timeout(clock::now());
        }
    }

    /// Runs slow work while the loop goes on.
    fn in_background(&self, round: RoundId, work: impl Future<Output = Done> + Send + 'static) {
        let background = self.background.clone();
        tokio::spawn(async move {
            // The loop may have ended.
            let _ = background.send((round, work.await)).await;
        });
    }

    async fn handle_done(&mut self, round: RoundId, done: Done) {
        let Some(group) = self.group.as_mut().filter(|group| group.admission.round == round) else {
            return;
        };
        match done {
            Done::Prepared(prepared) => self.start_workers(prepared).await,
            Done::Looked(activities) => {
                group.is_looking = false;
                let watch = group.hang.as_mut();
                let hang = watch.and_then(|watch| watch.handle_look(clock::now(), &activities));
                self.take_stacks(hang);
            }
            Done::Stacks(Hang { local_rank, time }, stacks) => {
                for (local_rank, path) in stacks {
                    warn!(%local_rank, path = %path.display(), "wrote the stack of a hung worker");
                    group.workers.entry(local_rank).or_default().stack = Some(path);
                }
                self.input(Input::Hung(local_rank, time));
            }
        }
    }

    async fn watch_keeper(&mut self) {
        if let Some(group) = &mut self.group {
            group.keeper.handle_timeout(clock::now());
        }
        self.carry_out_keeper().await;
    }

    async fn carry_out_keeper(&mut self) {
        use ragent_core::keeper_watch::Effect;
        while let Some(effect) = self.group.as_mut().and_then(|group| group.keeper.poll_effect()) {
            let pid = self.keeper.as_ref().map(KeeperLink::pid).unwrap_or_default();
            match effect {
                Effect::Ping => self.order(Order::Ping, Vec::new()).await,
                Effect::ReportSilence => warn!(
                    pid,
                    "the keeper of the workers does not answer; until it does, ends of workers \
                     are not detected (check for a stopped process or a file system that hangs)"
                ),
                Effect::ReportAnswer => warn!(pid, "the keeper of the workers answers again"),
                Effect::Kill => {
                    warn!(
                        pid,
                        "the lease has ended and the keeper does not react; killing the keeper"
                    );
                    self.input(Input::Kill);
                    if let Some(keeper) = &self.keeper {
                        keeper.kill();
                    }
                }
            }
        }
    }

    fn input(&mut self, input: Input) {
        if let Some(group) = &mut self.group {
            group.machine.handle(clock::now(), input);
        }
    }

    async fn handle_command(&mut self, command: Command) {
        match command {
            Command::Start { admission, job_uid } => self.start_group(*admission, job_uid).await,
            Command::Stop { signal, grace } => self.input(Input::Stop { signal, grace }),
            Command::Forward(signal) => {
                if self.group.as_ref().is_some_and(|group| group.machine.is_running()) {
                    self.order(Order::Forward { signal: signal as i32 }, Vec::new()).await;
                }
            }
            Command::Kill => self.input(Input::Kill),
            Command::Renew(until) => {
                // The boot clock first: a pause between the two must not lengthen the lease.
                let boot = clock::boot_time();
                let left = until.map(|until| until.saturating_duration_since(clock::now()));
                let until_ns = left.map(|left| boot.saturating_add(left).as_nanos());
                let until_ns = until_ns.map(|ns| u64::try_from(ns).unwrap_or(u64::MAX));
                self.lease = until;
                if let (Some(group), Some(until)) = (&mut self.group, until) {
                    group.keeper.handle_renewed(until);
                }
                let order = Order::Renew { until_ns };
                self.renewed = Some(order.clone());
                if let Some(keeper) = &self.keeper {
                    keeper.renew(order);
                }
            }
            Command::Bury { node_id, coordinators, round, proof, state_file } => {
                let proof = proof.map(|proof| proof.to_string()).unwrap_or_default();
                let round = round.0;
                let order = Order::Bury { node_id, coordinators, round, proof, state_file };
                self.bury = Some(order.clone());
                self.order(order, Vec::new()).await;
            }
        }
    }

    async fn order(&mut self, order: Order, fds: Vec<OwnedFd>) {
        if let Some(keeper) = &self.keeper {
            keeper.order(order, fds).await;
        }
    }

    async fn carry_out_all(&mut self) {
        while let Some(effect) = self.group.as_mut().and_then(|group| group.machine.poll_effect()) {
            debug!(?effect, "supervisor");
            if let Some(group) = &mut self.group {
                // Any first effect means that the group is being ended.
                group.stopped.get_or_insert_with(clock::now);
            }
            match effect {
                Effect::Failed(local_rank, end) => {
                    let failure = self.failure(local_rank, end).await;
                    self.tell_failed(&failure);
                    self.tell(Told::Failed(Box::new(failure))).await;
                }
                Effect::Signal(signal) => {
                    self.order(Order::Signal { signal: signal.0 }, Vec::new()).await;
                }
                Effect::Sweep => {
                    self.sweeps += 1;
                    self.order(Order::Sweep { number: self.sweeps }, Vec::new()).await;
                }
                Effect::KillKeeper => {
                    warn!("the keeper did not end its processes in time; killing the keeper");
                    if let Some(keeper) = &self.keeper {
                        keeper.kill();
                    }
                }
                Effect::Finish(end) => {
                    self.tell_cause(end).await;
                    self.tell_finished(end);
                    self.group = None;
                    self.timers.clear();
                    self.idle_since = clock::now();
                    self.tell(Told::Finished(end)).await;
                }
            }
        }
    }

    fn tell_failed(&mut self, failure: &WorkerFailure) {
        let Some(group) = &mut self.group else { return };
        if let Some(worker) = group.workers.get_mut(&failure.local_rank) {
            worker.fate = Fate::Failed;
        }
        let exit_code = process_end::exit_code(&failure.end);
        let event = WorkerEvent::Failed { exit_code, message: failure.message.clone() };
        self.spec.events.worker(&group.admission, failure.local_rank, failure.pid, event);
    }

    fn tell_finished(&mut self, end: GroupEnd) {
        let Some(Group { admission, workers, .. }) = &self.group else { return };
        for (local_rank, worker) in workers {
            let event = match worker.fate {
                Fate::Failed => continue,
                Fate::Succeeded => WorkerEvent::Succeeded,
                Fate::Running | Fate::Ended => WorkerEvent::Terminated,
            };
            self.spec.events.worker(admission, *local_rank, worker.pid, event);
        }
        let event = match end {
            GroupEnd::Succeeded => AgentEvent::Succeeded,
            GroupEnd::Stopped => AgentEvent::Failed,
        };
        self.spec.events.agent(admission, event);
    }

    async fn tell(&self, told: Told) {
        // An agent that no longer listens is about to drop its commands too.
        let _ = self.tell.send(told).await;
    }

    /// Ends the keeper, which ends everything below it, and waits until no process is left.
    async fn end(mut self, mut from_keeper: mpsc::Receiver<FromKeeper>) {
        self.spec.events.flush();
        // An agent that ends normally leaves the job itself: no coordinator needs an obituary.
        if let Some(Order::Bury { node_id, round, proof, state_file, .. }) = self.bury.take() {
            let coordinators = Vec::new();
            let order = Order::Bury { node_id, coordinators, round, proof, state_file };
            self.order(order, Vec::new()).await;
        }
        if self.keeper.take().is_some() {
            drop(self.reports);
            while let Some(report) = from_keeper.recv().await {
                debug!(?report, "report of the keeper during shutdown");
            }
        }
        self.spec.logs.clean_up();
        info!(target: "ragent::workers", "all processes of this node have ended");
    }
}
