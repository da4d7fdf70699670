//! Launches this node's part of a job, from a [`JobSpec`] to an exit code.

pub mod result_file;

use std::{
    convert::Infallible, io, path::Path, process::ExitCode, sync::Arc, thread, time::Duration,
};

use nix::sys::signal::Signal;
use ragent_base::{
    limits,
    output::{console::Console, logs::LogFolder, temp_folders},
    report::{
        measures::NodeMeasures,
        news::round_lines::RoundLines,
        service_manager::ServiceManager,
        telemetry::{self, Log},
    },
    sys::{
        clock, files,
        host::{Host, ThisHost},
        proc,
        random::random_id,
    },
};
use ragent_coordinator::journal;
use ragent_core::agent::Ending;
use ragent_election::claim::ClaimTimers;
use ragent_leadership::state_file::{AgentFile, ClosedJob, RunningAgent, Stage};
use ragent_node::{
    endpoint::{LocateError, host_or_join, hosted::HostEnd, metrics_port::MetricsPort},
    node::{
        driver::{self as agent_driver, DependsOn, DriveError},
        worker_stores::WorkerStores,
    },
    notices::{self, NoticeRequest, NoticeSocket},
};
use ragent_options::spec::{
    self, Argument, JobFiles, JobSpec, NoticeSignal, RendezvousMethod, TimerFile, UsageError,
    majority_warning,
};
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::{
    ids::RunId,
    message::{JobResult, Outcome, RefuseReason},
};
use ragent_store::StoreThread;
use ragent_workers::{
    driver::{self as workers_driver, WorkersCommand, WorkersHandle},
    event_log::EventLog,
    gloo_interface,
    health::timers::TimerPipe,
    spec::{GivenLimits, WorkersSpec},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tracing::{debug, info, warn};

use super::{
    error::{Ended, LaunchError, system, unwritable},
    runtime::{block_on, watch_signals},
};

/// The time that the keeper may take to end.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(10);

/// The end of a job that has succeeded.
pub(super) struct Success {
    /// The outcome.
    pub(super) outcome: Outcome,
    /// True if workers were started on this node.
    pub(super) has_run: bool,
}

/// Launches this node's part of a job and waits for its end.
///
/// # Errors
///
/// Returns [`LaunchError`] unless the job has succeeded.
pub fn launch(mut spec: JobSpec, log: &Log) -> Result<ExitCode, LaunchError> {
    // Before the secret is read.
    let core_dump = ThisHost.disable_core_dumps();
    if let Some(path) = &spec.report {
        result_file::prepare(path).map_err(unwritable("--report", path))?;
    }
    let result = launch_prepared(&mut spec, core_dump, log);
    result_file::write(&spec, &result);
    result.map(|_| ExitCode::SUCCESS)
}

fn launch_prepared(spec: &mut JobSpec, core_dump: u64, log: &Log) -> Result<Success, LaunchError> {
    let credentials = spec::find_credentials(&spec.auth, &ThisHost)?;
    let is_shared = spec.shared.nodes.max() > 1 && spec.rendezvous.may_reach_other_machines();
    spec.credentials =
        if is_shared { spec::shared_credentials(credentials, &ThisHost)? } else { credentials };
    let own_id = RunId::new(random_id());
    if spec.run_id.as_str() == spec::NO_NAME {
        spec.files.folder_name = JobFiles::folder_name(&own_id);
        if spec.shared.nodes.max() == 1 && matches!(spec.rendezvous, RendezvousMethod::Etcd(_)) {
            spec.run_id = own_id.clone();
        }
    }
    let closed = ClosedJob::of(&spec.run_id, &spec.rendezvous);
    if spec.rendezvous == RendezvousMethod::Standalone {
        // As torchrun does. No other node can take part, so none needs the name.
        spec.run_id = own_id;
    }
    for (flag, folder) in spec.files.folders(&spec.launch_method) {
        files::make_folder(&folder).map_err(unwritable(flag, &folder))?;
    }
    if let Some(path) = &spec.journal {
        journal::file::open(path).map_err(unwritable("--journal", path))?;
    }
    if let Some((outcome, closed)) =
        closed.as_ref().and_then(|closed| closed.outcome().zip(Some(closed)))
    {
        return had_ended(spec, closed, outcome);
    }
    log_choices(spec);
    let result = launch_with_logs(&Arc::new(spec.clone()), core_dump, log);
    match &closed {
        Some(closed) => remember_end(spec, closed, result),
        None => result,
    }
}

/// Returns the result of a job that ended before this agent started: success, or an error with the recorded failure.
fn had_ended(spec: &JobSpec, closed: &ClosedJob, outcome: Outcome) -> Result<Success, LaunchError> {
    let path = closed.path();
    if outcome.result == JobResult::Succeeded {
        warn!(
            run_id = %spec.run_id,
            "the job has already succeeded, and this agent starts nothing; to run the job again, stop its unit first, or remove {}",
            path.display()
        );
        return Ok(Success { outcome, has_run: false });
    }
    let (title, path) = (spec.command.title.clone(), path.to_owned());
    Err(LaunchError::StaysClosed { outcome: Box::new(outcome), title, path })
}

/// Records that the job has succeeded or failed, for the next agent that a service manager starts on this machine. Returns the result. It
/// is a success if the job had succeeded before this agent registered.
fn remember_end(
    spec: &JobSpec,
    closed: &ClosedJob,
    result: Result<Success, LaunchError>,
) -> Result<Success, LaunchError> {
    let outcome = match &result {
        Ok(Success { outcome, .. }) => outcome,
        Err(LaunchError::Ended(ended)) => match &ended.end.ending {
            Ending::Closed(outcome) | Ending::Refused(RefuseReason::Closed(outcome)) => outcome,
            Ending::Left { .. }
            | Ending::Refused(_)
            | Ending::Outlived
            | Ending::Unreachable { .. } => return result,
        },
        Err(_) => return result,
    };
    let has_succeeded = outcome.result == JobResult::Succeeded;
    if (has_succeeded || outcome.result.is_lasting())
        && let Err(error) = closed.remember(outcome)
    {
        let path = closed.path().display();
        warn!(%path, %error, "failed to record the end of the job; an agent that is started again may run it again");
    }
    if has_succeeded && result.is_err() {
        let outcome = outcome.clone();
        return had_ended(spec, closed, outcome);
    }
    result
}

/// Logs the choices made for the user.
fn log_choices(spec: &JobSpec) {
    for name in &spec.signals.unknown {
        warn!(name, "`--signals-to-handle` contains an unknown signal; it is ignored");
    }
    if spec.omp_num_threads.is_some() {
        info!(
            "OMP_NUM_THREADS is set to 1 for each worker, because several workers share this \
             node; set the variable to use another number"
        );
    }
    if matches!(spec.rendezvous, RendezvousMethod::Etcd(_)) && spec.run_id.as_str() == spec::NO_NAME
    {
        warn!(
            "the job has no name, so other jobs without one in this etcd are taken for the same job \
             (give the same `--rdzv-id NAME` on all nodes, and a different one for each job)"
        );
    }
    if let RendezvousMethod::Voters(voters) = &spec.rendezvous
        && let Some(warning) = voters.majority_warning(spec.shared.nodes)
    {
        warn!("{warning}");
    }
    if let RendezvousMethod::Endpoint { .. } | RendezvousMethod::Search(_) = &spec.rendezvous
        && let Some(warning) = majority_warning(spec.voters, spec.shared.nodes, "to continue")
    {
        warn!("{warning}");
    }
    if let RendezvousMethod::Etcd(etcd) = &spec.rendezvous {
        let lease = ClaimTimers::for_nodes(spec.shared.nodes).leader_lease.as_secs_f64();
        info!(
            %etcd,
            "the coordinator is chosen through etcd; if etcd does not answer for {lease:.1} s, the workers of all \
             nodes are stopped until it does"
        );
    }
    for (local_rank, cpus) in spec.cpus_by_rank.iter().enumerate() {
        info!(local_rank, ?cpus, "worker bound to processors");
    }
}

fn launch_with_logs(
    spec: &Arc<JobSpec>,
    core_dump: u64,
    log: &Log,
) -> Result<Success, LaunchError> {
    let (open_files, limit) = ThisHost.raise_open_files();
    let nice = ThisHost.raise_priority();
    if let Some((what, hint)) = ThisHost.starvation() {
        warn!(
            "{what}: on a busy machine it may not renew its lease in time, and its workers are killed then; {hint}"
        );
    }
    let given = GivenLimits { open_files, core_dump, nice };
    let workers = u64::from(spec.local_world_size.get());
    let needed = limits::MIN_OPEN_FILES + limits::OPEN_FILES_PER_WORKER * workers;
    if limit < needed {
        let message = format!("this process may open {limit} files, but needs {needed}");
        let hint = "raise the hard limit of `ulimit -n`, or `LimitNOFILE=` of the unit";
        return Err(UsageError::new(message).with_hint(hint).into());
    }
    let metrics = spec.metrics_listen.map(MetricsPort::open).transpose()?;
    proc::check_children().map_err(system("list the descendants of this process"))?;
    // If the keeper is killed, its orphans become children of this process, which kills them.
    nix::sys::prctl::set_child_subreaper(true)
        .map_err(|errno| system("become a subreaper")(errno.into()))?;
    let cleaner = thread::Builder::new().name("cleaner".to_owned());
    // There may be hundreds, and nothing waits for it. If there is no thread, the next launch removes them.
    drop(cleaner.spawn(|| temp_folders::clean(&ThisHost.temp_dir())));
    let logs = LogFolder::create(spec.log_dir.as_deref(), &ThisHost.temp_dir(), &spec.run_id);
    let logs = match logs {
        Ok(logs) => logs,
        // The user has not asked for files.
        Err((path, error)) if spec.log_dir.is_none() => {
            warn!(
                path = %path.display(), %error,
                "failed to create a folder for log files; continuing without log files"
            );
            LogFolder::Nowhere
        }
        Err((path, error)) => {
            return Err(Argument::new("--log-dir", &path.to_string_lossy())
                .invalid(format_args!("cannot be used: {error}"))
                .with_hint("give a folder that this user may write to")
                .into());
        }
    };
    if let Some(folder) = logs.run()
        && spec.output.writes_files(spec.local_world_size.get())
    {
        info!(folder = %folder.display(), "writing the output of workers to files");
        if spec.log_dir.is_none() && !spec.output.first_node_lines {
            let folder = folder.display();
            telemetry::line(&format!("the output of workers is in files below {folder}"));
        }
    }
    if let Some(folder) = logs.run() {
        log.set_folder(folder);
    }
    block_on(launch_on_runtime(spec, given, logs, log, metrics.as_ref()))?
}

async fn launch_on_runtime(
    spec: &Arc<JobSpec>,
    given: GivenLimits,
    logs: LogFolder,
    log: &Log,
    metrics: Option<&MetricsPort>,
) -> Result<Success, LaunchError> {
    let mut signals = watch_signals(&spec.signals.signals)?;
    let forwarded = watch_signals(&spec.forwarded)?;
    let (console, console_end) = Console::start().map_err(system("start a thread"))?;
    let measures = Arc::new(NodeMeasures::default());
    let workers_spec = workers_spec(spec, given, logs, console, Arc::clone(&measures))?;
    let mut workers =
        workers_driver::start(workers_spec).map_err(system("start the keeper process"))?;
    let forwarding = tokio::spawn(forward(forwarded, workers.commands.clone()));
    let mut notices = NoticeSources::open(spec)?;
    let since = clock::now();
    let outcome = loop {
        let measures = Arc::clone(&measures);
        let end =
            take_part(spec, &mut workers, &mut signals, &mut notices, log, (metrics, measures))
                .await;
        let meets_saved_job = matches!(&end, Ok(end) if end.ending.is_of_saved_job());
        if !meets_saved_job || clock::now() >= since + limits::SAVED_JOB_ENDS {
            break end;
        }
        info!("the job was saved, and is about to end; waiting for the next one");
        tokio::select! {
            () = clock::until(Some(clock::now() + limits::SAVED_JOB_PAUSE)) => {}
            signal = leaves(&mut signals, &mut notices.queue) => break Ok(left(signal)),
        }
    };
    // Ends the program of `--notice-command`.
    drop(notices);
    keep_log(spec, log, &outcome).await;
    // It would keep the driver of the workers running.
    forwarding.abort();
    // Ends the keeper, and with it all remaining processes.
    let WorkersHandle { commands, events, task, .. } = workers;
    drop((commands, events));
    if tokio::time::timeout(KEEPER_TIMEOUT, task).await.is_err() {
        warn!("the keeper process did not end in time; processes of this node may remain");
    }
    console_end.wait(limits::FLUSH_TIMEOUT).await;
    let end = outcome?;
    match end.ending {
        Ending::Closed(outcome) if outcome.result == JobResult::Succeeded => {
            info!(run_id = %spec.run_id, has_run = end.has_run, "the job has succeeded");
            let lines = RoundLines::new(&spec.shared, spec.output.first_node_lines);
            let line = lines.succeeded().filter(|_| spec.output.announces_success);
            line.iter().for_each(|line| telemetry::line(line));
            if !end.has_run {
                telemetry::line("the job needed no more nodes: nothing was run on this node");
            }
            Ok(Success { outcome, has_run: end.has_run })
        }
        ending => {
            let (settings, title) = (spec.shared, spec.command.title.clone());
            let interpreter = spec.command.interpreter().map(Path::to_owned);
            let end = agent_driver::NodeEnd { ending, ..end };
            let script_args = spec.command.args.get(spec.command.own_args_at..).unwrap_or_default();
            let script_args = script_args.to_vec();
            let ended = Ended { end, settings, title, interpreter, script_args };
            Err(LaunchError::Ended(Box::new(ended)))
        }
    }
}

/// Writes the recent log lines to a file, unless the job has succeeded or was stopped by signals. It must come before the driver of the
/// workers ends, which removes a temporary folder without files.
async fn keep_log(spec: &JobSpec, log: &Log, outcome: &Result<agent_driver::NodeEnd, LaunchError>) {
    let is_well = |ending: &Ending| match ending {
        Ending::Closed(outcome) => {
            matches!(
                outcome.result,
                JobResult::Succeeded | JobResult::Saved { .. } | JobResult::AllLeft
            )
        }
        Ending::Left { .. } => true,
        Ending::Refused(_) | Ending::Outlived | Ending::Unreachable { .. } => false,
    };
    if !matches!(outcome, Ok(end) if is_well(&end.ending)) {
        log.keep();
    } else if spec.log_dir.is_none() {
        log.discard();
    }
    let log = log.clone();
    // Another thread waits for the disk, which may not answer.
    let _ = tokio::task::spawn_blocking(move || log.settle(limits::FLUSH_TIMEOUT)).await;
}

/// The sources of notices on this node, and the queue of what they have received.
struct NoticeSources {
    queue: mpsc::Receiver<NoticeRequest>,
    /// `None` if it cannot be opened.
    socket: Option<NoticeSocket>,
    tasks: JoinSet<()>,
}

impl NoticeSources {
    fn open(spec: &JobSpec) -> Result<Self, LaunchError> {
        let (sender, queue) = mpsc::channel(notices::QUEUE);
        let mut tasks = JoinSet::new();
        for NoticeSignal { signal, kind } in spec.notice_on.iter().copied() {
            let mut signals = watch_signals(&[signal])?;
            let sender = sender.clone();
            tasks.spawn(async move {
                while let Some(signal) = signals.recv().await {
                    let text = signal.as_str().to_owned();
                    let request = NoticeRequest { kind, within: None, text, asker: None };
                    if sender.send(request).await.is_err() {
                        return;
                    }
                }
            });
        }
        if !spec.notice_command.is_empty() {
            tasks.spawn(notices::run_command(spec.notice_command.clone(), sender.clone()));
        }
        let name = format!("notice-{}-{}.sock", std::process::id(), random_id());
        let socket = NoticeSocket::open(ThisHost.socket_dir().join(name), sender)
            .inspect_err(|error| {
                warn!(%error, "failed to open the socket for `ragent notice`, so this agent gets notices only from signals and `--notice-command`");
            })
            .ok();
        Ok(Self { queue, socket, tasks })
    }
}

impl Drop for NoticeSources {
    fn drop(&mut self) {
        self.tasks.abort_all();
    }
}

/// Passes signals on to the workers.
async fn forward(mut signals: mpsc::Receiver<Signal>, commands: mpsc::Sender<WorkersCommand>) {
    while let Some(signal) = signals.recv().await {
        info!(%signal, "signal received; forwarding it to the workers");
        if commands.send(WorkersCommand::Forward(signal)).await.is_err() {
            return;
        }
    }
}

/// Finds or becomes the coordinator, and stays registered until the end.
async fn take_part(
    spec: &Arc<JobSpec>,
    workers: &mut WorkersHandle,
    signals: &mut mpsc::Receiver<Signal>,
    notices: &mut NoticeSources,
    log: &Log,
    (metrics, measures): (Option<&MetricsPort>, Arc<NodeMeasures>),
) -> Result<agent_driver::NodeEnd, LaunchError> {
    let began = clock::now();
    let stores = StoreThread::start("stores").map_err(system("start a thread"))?;
    // The first and only time.
    let _ = measures.stores.set(stores.counters());
    if let Some(metrics) = metrics {
        metrics.add_node(&measures);
    }
    let mut service_manager = ServiceManager::of_this_process(clock::now());
    service_manager.report_looking(&spec.rendezvous.endpoint_text());
    let socket = notices.socket.as_ref().map(|socket| socket.path().to_owned());
    let file = AgentFile::new(&looking(spec, socket.as_deref(), None))
        .inspect_err(|error| {
            warn!(
                %error,
                "failed to register for `ragent status`, which needs `--rdzv-endpoint` on this \
                 machine"
            );
        })
        .ok();
    let waits = |cause: &str| {
        renew(file.as_ref(), &looking(spec, socket.as_deref(), Some(cause)));
    };
    let mut services = tokio::select! {
        services = host_or_join(spec, &stores, waits) => services?,
        // No coordinator knows this node yet, so it can leave at once.
        signal = leaves(signals, &mut notices.queue) => return Ok(left(signal)),
    };
    services.metrics().add_node(&measures);
    if let Some(metrics) = metrics {
        metrics.handle_found(services.metrics());
    }
    let agent = registered(spec, socket.as_deref(), &services.name);
    renew(file.as_ref(), &agent);
    let stores = WorkerStores::new(stores, services.store_port_mode(spec));
    let memory = services.memory_service(spec);
    let since = (!spec.is_first_start()).then_some(began);
    let agent = services.agent_spec(spec, log, measures, since);
    let mut coordinator = services.coordinator();
    let ending = tokio::select! {
        ending = agent_driver::drive(agent, (stores, memory), workers, signals, &mut notices.queue, &mut service_manager) => ending,
        never = keep_file_current(file.as_ref(), spec, socket.as_deref(), &mut coordinator) => match never {},
    };
    service_manager.report_stopping();
    if let Some(hosted) = services.hosted() {
        let limit = spec.shared.timeouts.rejoin() + limits::COORDINATOR_END_MARGIN;
        let ending = ending.as_ref().ok().map(|end| &end.ending);
        let own = services.node_id.clone();
        let ends = async {
            let how = end_of(ending, hosted.leadership().is_fixed());
            hosted.end(how, Some(&own)).await;
        };
        wait_for_hosted(ends, limit, signals).await;
    }
    services.stop();
    ending.map_err(|error| match error {
        DriveError::Store(source) => LaunchError::WorkerStore { ports: spec.store_ports, source },
        DriveError::Mismatch(mismatch) => {
            LaunchError::HostOrJoin(LocateError::Auth(mismatch).into())
        }
        DriveError::Workers => system("watch the workers")(io::Error::other("its task has ended")),
    })
}

/// Waits for a signal, or a notice, with which a node leaves that has no coordinator.
async fn leaves(
    signals: &mut mpsc::Receiver<Signal>,
    notices: &mut mpsc::Receiver<NoticeRequest>,
) -> Signal {
    loop {
        tokio::select! {
            Some(signal) = signals.recv() => return signal,
            Some(notice) = notices.recv() => if notice.answer_without_job() {
                return Signal::SIGTERM;
            },
            else => return std::future::pending().await,
        }
    }
}

/// The end of a node that leaves before it has a coordinator.
fn left(signal: Signal) -> agent_driver::NodeEnd {
    agent_driver::NodeEnd {
        ending: Ending::Left {
            signal: Some(ragent_core::signal::Signal(signal as i32)),
            saved_step: None,
        },
        workers_succeeded: false,
        has_run: false,
        endpoint: String::new(),
        depends_on: DependsOn::OneHost,
    }
}

/// Keeps the coordinator's endpoint in the file of this agent up to date, for `ragent status` on this machine.
async fn keep_file_current(
    file: Option<&AgentFile>,
    spec: &JobSpec,
    socket: Option<&Path>,
    coordinator: &mut watch::Receiver<CoordinatorAddress>,
) -> Infallible {
    while coordinator.changed().await.is_ok() {
        let endpoint = coordinator.borrow_and_update().endpoint.clone();
        renew(file, &registered(spec, socket, &endpoint));
    }
    std::future::pending().await
}

/// Returns the content of the file of this agent before it has found its coordinator, with the reason.
fn looking(spec: &JobSpec, socket: Option<&Path>, cause: Option<&str>) -> RunningAgent {
    let stage = match spec.rendezvous {
        RendezvousMethod::Search(_) => Stage::Searching,
        RendezvousMethod::Standalone
        | RendezvousMethod::Endpoint { .. }
        | RendezvousMethod::Voters(_)
        | RendezvousMethod::Etcd(_)
        | RendezvousMethod::Static { .. } => Stage::Waiting { cause: cause.map(str::to_owned) },
    };
    let endpoint = spec.rendezvous.endpoint_text();
    let agent = RunningAgent::this(&spec.run_id, endpoint, stage, &spec.credentials);
    RunningAgent { notices: socket.map(Path::to_owned), ..agent }
}

/// Returns the content of the file of this agent. `endpoint` is the coordinator's, and the file lists all voters, since any of them can
/// answer and another one may coordinate the job later.
fn registered(spec: &JobSpec, socket: Option<&Path>, endpoint: &str) -> RunningAgent {
    let text = match &spec.rendezvous {
        RendezvousMethod::Voters(voters) => voters.to_string(),
        RendezvousMethod::Standalone
        | RendezvousMethod::Endpoint { .. }
        | RendezvousMethod::Etcd(_)
        | RendezvousMethod::Search(_)
        | RendezvousMethod::Static { .. } => endpoint.to_owned(),
    };
    let agent = RunningAgent::this(&spec.run_id, text, Stage::Registered, &spec.credentials);
    RunningAgent { notices: socket.map(Path::to_owned), ..agent }
}

fn renew(file: Option<&AgentFile>, agent: &RunningAgent) {
    if let Some(Err(error)) = file.map(|file| file.renew(agent)) {
        debug!(%error, "failed to update the file of this agent");
    }
}

/// Waits until the coordinator or the voter in this process has ended, until `limit` has passed, or until
/// another signal.
async fn wait_for_hosted(
    ends: impl Future<Output = ()>,
    limit: Duration,
    signals: &mut mpsc::Receiver<Signal>,
) {
    let goes = async {
        tokio::select! {
            () = ends => {}
            Some(signal) = signals.recv() => {
                warn!(%signal, "signal received; not waiting for the other agents");
            }
        }
    };
    // The other agents may take this long to stop. After that, it is considered stuck.
    let _ = tokio::time::timeout(limit, goes).await;
}

/// Returns how the coordinator or voter in this process ends after the agent. A coordinator that no other process can replace also ends if
/// it has refused its own agent.
fn end_of(ending: Option<&Ending>, is_fixed: bool) -> HostEnd {
    match ending {
        Some(Ending::Closed(_)) => HostEnd::Closed,
        Some(Ending::Outlived | Ending::Refused(RefuseReason::Closed(_))) if !is_fixed => {
            HostEnd::Closed
        }
        Some(Ending::Left { .. }) => HostEnd::Left,
        Some(Ending::Refused(_) | Ending::Outlived | Ending::Unreachable { .. }) | None => {
            HostEnd::Other
        }
    }
}

fn workers_spec(
    spec: &Arc<JobSpec>,
    given: GivenLimits,
    logs: LogFolder,
    console: Console,
    measures: Arc<NodeMeasures>,
) -> Result<WorkersSpec, LaunchError> {
    Ok(WorkersSpec {
        events: EventLog::new(&console, Arc::clone(spec), ThisHost.name()),
        measures,
        timer_pipe: timer_pipe(spec.timers.as_ref())?,
        logs: Arc::new(logs),
        chooses_gloo_interface: ThisHost.env(gloo_interface::VARIABLE).is_none(),
        socket_dir: ThisHost.socket_dir(),
        given,
        host_name: ThisHost.name(),
        console,
        job: Arc::clone(spec),
    })
}

fn timer_pipe(file: Option<&TimerFile>) -> Result<Option<TimerPipe>, LaunchError> {
    let path = match file {
        None => return Ok(None),
        Some(TimerFile::At(path)) => path.clone(),
        Some(TimerFile::Temporary) => {
            ThisHost.temp_dir().join(format!("watchdog_timer_{}", random_id()))
        }
    };
    TimerPipe::make(&path).map(Some).map_err(unwritable("TORCHELASTIC_TIMER_FILE", &path))
}
