//! Drives the supervisor machine: one task, which owns the keeper and the local worker group.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    future,
    io::{self},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use ragent_core::{
    hang::{Activity, Hang, HangWatch},
    keeper_watch::KeeperWatch,
    process_end::{self, ProcessEnd},
    signal,
    supervisor::{Effect, GroupEnd, Input, Supervisor},
};
use ragent_rendezvous::{
    ids::{GlobalRank, JobUid, LocalRank, Round, RoundId},
    message::{Admission, WorkerEnd, WorkerFailure},
};
use tokio::{sync::mpsc, task::spawn_blocking, time::timeout};
use tracing::{debug, error, info, warn};

use super::{
    health::{
        held_gpus::HeldGpus,
        notices::{Notice, NoticeSockets},
        progress,
        stacks::{self, StackTools},
        timers::{Expired, TimerPipe, TimerRequest, Timers},
    },
    keeper_link::{Drains, FromKeeper, KeeperLink},
    launch::{
        arguments::{ArgumentSpec, Place},
        environment::{self, EnvironmentSpec, NOT_INHERITED},
        error_file,
    },
    plumbing::{Prepared, StderrTail, WorkerFiles, plumb, prepare},
};
use crate::{
    keeper::order::{Order, Program, Report},
    limits,
    output::{
        console::Console,
        lines::Choice,
        logs::{LogFolder, WorkerFolder},
    },
    report::event_log::{AgentEvent, EventLog, WorkerEvent},
    spec::{HangSpec, Output, Stream, WorkerCommand},
    sys::{clock, host::numa::CpuSet},
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

/// The configuration of a supervisor.
#[derive(Debug)]
pub struct SupervisorSpec {
    /// The command that workers run.
    pub command: WorkerCommand,
    /// The arguments that are added to theirs.
    pub arguments: ArgumentSpec,
    /// The variables that are added to their environment.
    pub environment: EnvironmentSpec,
    /// The destinations of their output.
    pub output: Output,
    /// The log of their events.
    pub events: EventLog,
    /// The pipe through which they set timers, if they may.
    pub timer_pipe: Option<TimerPipe>,
    /// Their processors, by local rank; empty if they are not bound.
    pub cpus_by_rank: Vec<CpuSet>,
    /// The folder of their files.
    pub logs: Arc<LogFolder>,
    /// The time that they have to end after one of them has failed.
    pub stop_grace: Duration,
    /// The time to wait for GPUs that processes of an earlier round still hold.
    pub held_gpu_timeout: Duration,
    /// Exit codes after which the job is not restarted.
    pub final_codes: BTreeSet<i32>,
    /// The detection and treatment of hangs; `None` if disabled.
    pub hang: Option<HangSpec>,
    /// The folder in which sockets for heartbeats are created.
    pub socket_dir: PathBuf,
    /// The soft limit of open files of each worker.
    pub open_files: u64,
    /// The soft limit of the core dump of each worker.
    pub core_dump: u64,
    /// This machine's name, for reports.
    pub host_name: String,
    /// The writer of their output.
    pub console: Console,
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
                warn!("the lease has ended; the keeper kills the workers");
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

    /// Kills the workers whose timers have expired; their ends are reported like any other.
    fn kill_expired(&mut self) {
        for Expired { pid, scope_id, signal } in self.timers.expired(clock::now()) {
            let pid = Pid::from_raw(pid);
            let is_own = self.keeper.as_ref().is_some_and(|keeper| keeper.holds(pid));
            match Signal::try_from(signal) {
                Ok(signal) if is_own => {
                    warn!(
                        %pid, scope_id, %signal,
                        "a worker's timer has expired; killing the worker"
                    );
                    let _ = kill(pid, signal);
                }
                Ok(_) | Err(_) => {
                    warn!(
                        %pid, scope_id, signal,
                        "a timer has expired, but its process is not a worker of this agent; no \
                         process is killed"
                    )
                }
            }
        }
    }

    /// Starts to read the workers' activity.
    fn look(&mut self) {
        let Some(group) = &mut self.group else { return };
        group.is_looking = true;
        let (round, workers) = (group.admission.round, group.running());
        self.in_background(round, async move {
            let looked = spawn_blocking(move || progress::activities(&workers)).await;
            Done::Looked(looked.unwrap_or_default())
        });
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

    fn handle_notice(&mut self, (local_rank, notice): (LocalRank, Notice)) {
        let Some(group) = &mut self.group else { return };
        let Some(watch) = &mut group.hang else { return };
        if notice.is_heartbeat {
            watch.handle_heartbeat(clock::now(), local_rank);
        }
        let hang = notice.is_trigger.then(|| watch.handle_trigger(local_rank)).flatten();
        if let Some(text) = notice.status {
            group.workers.entry(local_rank).or_default().said = Some(text.clone());
            // One line per node: that of the first worker that has one.
            let first = group.workers.iter().find(|(_, worker)| worker.said.is_some());
            if first.is_some_and(|(first, _)| *first == local_rank) {
                // If the queue is full, a later line suffices.
                let _ = self.tell.try_send(Told::Said(text));
            }
        }
        self.take_stacks(hang);
    }

    /// Takes the stacks of the group if it hangs; it is killed afterwards.
    fn take_stacks(&self, hang: Option<Hang>) {
        let (Some(hang), Some(group), Some(spec)) = (hang, &self.group, &self.spec.hang) else {
            return;
        };
        if !group.machine.is_running() {
            return;
        }
        let seconds = hang.time.as_secs_f64();
        error!(
            round = %group.admission.round, local_rank = %hang.local_rank, seconds,
            "the workers make no progress; killing them"
        );
        let hung = |(local_rank, pid): (LocalRank, u32)| {
            let folder = group.workers.get(&local_rank).and_then(|worker| worker.folder.as_ref());
            stacks::Hung { local_rank, pid, file: folder.map(WorkerFolder::stack_file) }
        };
        let workers = group.running().into_iter().map(hung).collect();
        let tools = StackTools { py_spy: spec.py_spy.clone(), signal: spec.signal };
        self.in_background(group.admission.round, async move {
            Done::Stacks(hang, stacks::take(tools, workers).await)
        });
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
                Effect::ReportAnswer => info!(pid, "the keeper of the workers answers again"),
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

    async fn start_group(&mut self, admission: Admission, job_uid: JobUid) {
        let size = self.spec.environment.local_world_size;
        let machine = Supervisor::new(size, self.spec.stop_grace);
        let waited = clock::now().saturating_duration_since(self.idle_since);
        self.spec.events.agent(&admission, AgentEvent::Rendezvous(waited));
        self.spec.events.agent(&admission, AgentEvent::Assigned);
        let (round, restart_count) = (admission.round, admission.restart_count);
        let (workers, choices) = (BTreeMap::new(), [None, None]);
        let keeper = KeeperWatch::new(clock::now(), self.lease);
        self.group = Some(Group {
            machine,
            admission,
            job_uid,
            workers,
            choices,
            hang: None,
            is_looking: false,
            keeper,
            stopped: None,
        });
        if self.keeper.is_none() {
            match KeeperLink::start(self.drains.clone(), self.reports.clone()) {
                Ok(keeper) => self.keeper = Some(keeper),
                Err(error) => {
                    let reason = format!("failed to start the keeper: {error}");
                    self.not_started(LocalRank(0), reason);
                    return self.input(Input::KeeperLost);
                }
            }
            if let (Some(keeper), Some(order)) = (&self.keeper, self.renewed.clone()) {
                keeper.renew(order);
            }
            if let Some(order) = self.bury.clone() {
                self.order(order, Vec::new()).await;
            }
        }
        let (logs, output) = (Arc::clone(&self.spec.logs), self.spec.output.clone());
        let gpus = Arc::clone(&self.gpus);
        self.in_background(round, async move {
            gpus.wait().await;
            let prepare = move || prepare(&logs, &output, restart_count, size);
            let prepared = timeout(limits::FILES_TIMEOUT, spawn_blocking(prepare)).await;
            let prepared = prepared.unwrap_or_else(|_| {
                warn!("the disk of the log files does not answer; continuing without log files");
                Ok(Prepared::default())
            });
            Done::Prepared(prepared.unwrap_or_default())
        });
    }

    /// Starts the workers of the group, unless it has been stopped in the meantime.
    async fn start_workers(&mut self, prepared: Prepared) {
        let Some(group) = self.group.as_mut().filter(|group| group.machine.is_running()) else {
            return;
        };
        let Prepared { mut workers, chosen } = prepared;
        let (now, size) = (clock::now(), self.spec.environment.local_world_size);
        let timeout = self.spec.hang.as_ref().map(|hang| hang.timeout);
        group.hang = timeout.map(|timeout| HangWatch::new(now, size, timeout));
        let choose = |(file, stream): (Option<Arc<File>>, Stream)| {
            let filters = self.spec.output.filters(stream).clone();
            file.map(|file| Choice { filters, file })
        };
        let [stdout, stderr] = chosen;
        group.choices = [(stdout, Stream::Stdout), (stderr, Stream::Stderr)].map(choose);
        for local_rank in (0..size).map(LocalRank) {
            let files = workers.remove(&local_rank).unwrap_or_default();
            if let Err(error) = self.start_worker(local_rank, files).await {
                return self.not_started(local_rank, error.to_string());
            }
        }
    }

    fn not_started(&mut self, local_rank: LocalRank, reason: String) {
        self.input(Input::Ended(local_rank, WorkerEnd::NotStarted(reason)));
    }

    async fn start_worker(&mut self, local_rank: LocalRank, files: WorkerFiles) -> io::Result<()> {
        let group = self.group.as_mut().expect("a group is being started");
        let plumbing = plumb(&self.spec, &group.admission, &group.choices, local_rank, &files)?;
        let folder = files.folder;
        let error_file = folder.as_ref().map(WorkerFolder::error_file);
        let mut env =
            self.spec.environment.of_worker(&group.admission, local_rank, error_file.as_deref());
        if let Some(pipe) = &self.spec.timer_pipe {
            env.push(("TORCHELASTIC_TIMER_FILE".to_owned(), pipe.path().into()));
        }
        if let (Some(notices), Some(hang)) = (&self.notices, &self.spec.hang) {
            env.extend(environment::of_heartbeats(&notices.path(local_rank), hang.timeout));
        }
        let place = Place {
            admission: &group.admission,
            job_uid: &group.job_uid,
            local_rank,
            shown_rank: self.spec.environment.shown_rank(local_rank),
        };
        let (flows, fds): (Vec<_>, Vec<_>) = plumbing.flows.into_iter().unzip();
        let cpus = self.spec.cpus_by_rank.get(local_rank.0 as usize);
        let program = Program {
            local_rank: local_rank.0,
            program: self.spec.command.program.clone(),
            args: self.spec.arguments.of_worker(&self.spec.command, &place),
            cpus: cpus.cloned().unwrap_or_default(),
            env,
            unset: NOT_INHERITED.map(str::to_owned).to_vec(),
            open_files: self.spec.open_files,
            core_dump: self.spec.core_dump,
            flows,
        };
        let worker = Worker { folder, stderr: plumbing.stderr, ..Worker::default() };
        group.workers.insert(local_rank, worker);
        self.drains.add(local_rank.0, plumbing.drains);
        let fds = plumbing.fds.into_iter().chain(fds.into_iter().flatten()).collect();
        self.order(Order::Spawn(program), fds).await;
        Ok(())
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

    async fn failure(&self, local_rank: LocalRank, end: WorkerEnd) -> WorkerFailure {
        let group = self.group.as_ref().expect("a group has failed");
        let unknown = Worker::default();
        let worker = group.workers.get(&local_rank).unwrap_or(&unknown);
        let error_file = worker.folder.as_ref().map(WorkerFolder::error_file);
        let stack = worker.stack.as_ref().map(|path| format!("its stack is in {}", path.display()));
        let message = match error_file.clone() {
            Some(path) => read_message(path).await,
            None => None,
        };
        let error_file = error_file.filter(|_| message.is_some());
        let message = message.or(stack);
        let stderr_tail = match &worker.stderr {
            StderrTail::Captured(tail) => tail.text(),
            StderrTail::NotCaptured => String::new(),
        };
        let is_final =
            matches!(&end, WorkerEnd::Exited(code) if self.spec.final_codes.contains(code));
        WorkerFailure {
            host_name: self.spec.host_name.clone(),
            round: group.admission.round,
            global_rank: GlobalRank(
                group.admission.first_global_rank.0.saturating_add(local_rank.0),
            ),
            local_rank,
            pid: worker.pid,
            end,
            age: Duration::ZERO,
            error_file: error_file.map(|path| path.to_string_lossy().into_owned()),
            message,
            stderr_tail,
            is_final,
            error_file_age: None,
        }
    }

    /// Reports to the agent the worker that failed first, by the error files of all workers.
    ///
    /// A file counts only if it was written before the group began to stop: later ones are
    /// consequences of that.
    async fn tell_cause(&self, end: GroupEnd) {
        let Some(group) = self.group.as_ref().filter(|_| end == GroupEnd::Stopped) else {
            return;
        };
        let now = clock::now();
        let stopped = group.stopped.unwrap_or(now);
        let files = group.workers.iter().filter_map(|(&local_rank, worker)| {
            Some((local_rank, worker.folder.as_ref()?.error_file()))
        });
        let files: Vec<_> = files.collect();
        let Some((local_rank, file_age)) = oldest_error_file(files).await else {
            return;
        };
        let stop_age = now.saturating_duration_since(stopped);
        if file_age < stop_age.saturating_add(limits::FILE_TIME_GRANULARITY) {
            return;
        }
        let ended = group.workers.get(&local_rank).and_then(|worker| worker.end.clone());
        // A worker whose end was not reported was killed with its keeper.
        let (end, at) = ended.unwrap_or((WorkerEnd::KeeperLost, now));
        let mut cause = self.failure(local_rank, end).await;
        cause.age = now.saturating_duration_since(at);
        cause.error_file_age = Some(file_age);
        self.tell(Told::Cause(Box::new(cause))).await;
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

impl Group {
    /// Returns the time of the next look at the workers' activity.
    fn next_look(&self) -> Option<Instant> {
        let watch = self.hang.as_ref().filter(|_| !self.is_looking)?;
        watch.poll_timeout().filter(|_| self.machine.is_running())
    }

    /// Returns the processes of the workers that still run.
    fn running(&self) -> BTreeMap<LocalRank, u32> {
        let running = |worker: &Worker| worker.fate == Fate::Running && worker.pid != 0;
        let workers = self.workers.iter().filter(|(_, worker)| running(worker));
        workers.map(|(&local_rank, worker)| (local_rank, worker.pid)).collect()
    }
}

/// Opens the sockets for heartbeats, if hangs are detected.
fn open_notices(spec: &SupervisorSpec) -> Option<NoticeSockets> {
    spec.hang.as_ref()?;
    let size = spec.environment.local_world_size;
    NoticeSockets::open(&spec.socket_dir, size)
        .map_err(|error| {
            warn!(
                %error,
                "failed to open the sockets for heartbeats; workers cannot send any"
            )
        })
        .ok()
}

/// Waits for the next notice of a worker; forever if workers cannot send any.
async fn next_notice(notices: &mut Option<NoticeSockets>) -> (LocalRank, Notice) {
    if let Some(open) = notices {
        if let Some(notice) = open.next().await {
            return notice;
        }
        *notices = None;
    }
    future::pending().await
}

/// Waits for the next request for a timer; forever if workers cannot set any.
async fn next_timer(pipe: &mut Option<TimerPipe>) -> TimerRequest {
    if let Some(open) = pipe {
        match open.next().await {
            Ok(request) => return request,
            Err(error) => warn!(
                %error,
                "failed to read timer requests; workers cannot set further timers"
            ),
        }
        *pipe = None;
    }
    future::pending().await
}

/// Returns the worker whose error file is the oldest, and its age; `None` if there is no such file,
/// or the disk does not answer in time.
async fn oldest_error_file(files: Vec<(LocalRank, PathBuf)>) -> Option<(LocalRank, Duration)> {
    let looking = spawn_blocking(move || {
        let ages =
            files.into_iter().filter_map(|(rank, path)| Some((rank, error_file::age(&path)?)));
        // The lowest rank of several with the same age.
        ages.rev().max_by_key(|(_, age)| *age)
    });
    timeout(limits::LAST_WORDS_TIMEOUT, looking).await.ok()?.ok().flatten()
}

/// Reads the message in a worker's error file; `None` if there is none, or the disk does not answer
/// in time.
async fn read_message(path: PathBuf) -> Option<String> {
    let reading = spawn_blocking(move || error_file::message(&path));
    timeout(limits::LAST_WORDS_TIMEOUT, reading).await.ok()?.ok().flatten()
}
