//! Drives the supervisor machine: one task, which owns the keeper and the local group of workers.
//!
//! Each turn of the loop handles one input and then carries out the effects. Reports of the keeper come first. Slow
//! work, such as opening output files or taking stacks, runs in the background and reports its result as an input.

mod failure;
mod group;
mod keeper;
mod looking;
mod messages;
mod standbys;
mod starting;
#[cfg(test)]
mod tests;
mod watching;

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc, time::Instant};

use ragent_core::{
    hang::{Activity, Hang},
    process_end, standby,
    supervisor::{Effect, GroupEnd, Input},
};
use ragent_rendezvous::{
    ids::{LocalRank, RoundId},
    message::{Digest, WorkerFailure},
};
use tokio::sync::{Notify, mpsc};
use tracing::{debug, info, warn};

pub use self::messages::{WorkersCommand, WorkersEvent, WorkersHandle};
use ragent_base::sys::{alarm::Alarm, clock};

use self::{
    group::{Worker, WorkerGroup, WorkerState},
    standbys::HeldStandbys,
    watching::{next_timer, next_worker_report, open_report_sockets},
};
use super::{
    event_log::{AgentEvent, WorkerEvent},
    gloo_interface::GlooInterface,
    health::{
        checks::HealthChecks,
        hardware::HardwareWatch,
        held_gpus::{HeldGpus, gpus_open_in},
        timers::HealthTimers,
        worker_reports::ReportSockets,
    },
    keeper_link::{Drains, FromKeeper, KeeperLink},
    launch::environment,
    look::files::LookFiles,
    plumbing::Prepared,
    spec::WorkersSpec,
};
use crate::{keeper::order::Order, limits};

/// Starts a supervisor and its keeper.
///
/// # Errors
///
/// Returns the system's error if the keeper cannot be started.
pub fn start(spec: WorkersSpec) -> io::Result<WorkersHandle> {
    let (commands, received) = mpsc::channel(limits::TASK_QUEUE);
    let (reports_to_agent, events) = mpsc::channel(limits::TASK_QUEUE);
    let (reports, from_keeper) = mpsc::channel(limits::TASK_QUEUE);
    let (background, done) = mpsc::channel(limits::TASK_QUEUE);
    let worker_reports = open_report_sockets(&spec);
    let gpus = Arc::new(HeldGpus::new(spec.job.held_gpu_timeout));
    let drains = Drains::default();
    let keeper = KeeperLink::start(drains.clone(), reports.clone())?;
    let standbys = HeldStandbys::prepare(&spec);
    let hardware =
        HardwareWatch::new(Arc::clone(&spec.measures), &spec.job.health, spec.logs.run());
    let checks = HealthChecks::new(spec.job.health.clone(), &hardware);
    let health = checks.subscribe();
    let driver = WorkersDriver {
        memory_folder: None,
        hardware,
        checks,
        spec,
        standbys,
        keeper: Some(keeper),
        drains,
        reports,
        reports_to_agent,
        group: None,
        death_notice: None,
        renewed: None,
        lease: None,
        cleanups: 0,
        idle_since: clock::now(),
        timers: HealthTimers::default(),
        worker_reports,
        output: Arc::new(Notify::new()),
        gpus,
        gloo_interface: Arc::default(),
        look_files: BTreeMap::new(),
        background,
    };
    let task = tokio::spawn(driver.drive(received, from_keeper, done));
    Ok(WorkersHandle { commands, events, health, task })
}

struct WorkersDriver {
    spec: WorkersSpec,
    standbys: HeldStandbys,
    keeper: Option<KeeperLink>,
    drains: Drains,
    reports: mpsc::Sender<FromKeeper>,
    reports_to_agent: mpsc::Sender<WorkersEvent>,
    group: Option<WorkerGroup>,
    /// The latest orders of these two kinds. A new keeper needs them.
    death_notice: Option<Order>,
    renewed: Option<Order>,
    /// The end of the lease, if it has one.
    lease: Option<Instant>,
    /// The number of cleanups that were ordered.
    cleanups: u64,
    /// The start of the time without a group.
    idle_since: Instant,
    timers: HealthTimers,
    worker_reports: Option<ReportSockets>,
    /// The folder with the sockets for checkpoints in memory of the newest round.
    memory_folder: Option<PathBuf>,
    /// Notified of output that may contain training steps.
    output: Arc<Notify>,
    gpus: Arc<HeldGpus>,
    gloo_interface: Arc<GlooInterface>,
    hardware: HardwareWatch,
    checks: HealthChecks,
    /// The files of the workers that looks write. They stay the same in all rounds.
    look_files: BTreeMap<LocalRank, LookFiles>,
    background: mpsc::Sender<(RoundId, Done)>,
}

/// The result of background work for a round.
#[derive(Debug)]
enum Done {
    /// The output files of the workers are open, and the network interface for gloo is known, if workers are given one.
    Prepared(Prepared, Option<String>),
    /// The activity of the workers was read.
    Looked(BTreeMap<LocalRank, Activity>),
    /// The stacks of a hung group were taken.
    Stacks {
        hang: Hang,
        by: HungBy,
        /// True if the hung worker is stopped after that.
        is_stopped: bool,
        stacks: BTreeMap<LocalRank, PathBuf>,
    },
    /// The workers were looked at.
    Digest(Digest),
    /// The state of a worker was read: true if it is stopped.
    State(LocalRank, bool),
}

/// Who has found that a worker hangs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum HungBy {
    /// This node has found it.
    Node,
    /// The coordinator names it, until it no longer does.
    Coordinator,
}

impl WorkersDriver {
    async fn drive(
        mut self,
        mut commands: mpsc::Receiver<WorkersCommand>,
        mut from_keeper: mpsc::Receiver<FromKeeper>,
        mut done: mpsc::Receiver<(RoundId, Done)>,
    ) {
        let mut alarm = Alarm::new();
        loop {
            let group = self.group.as_ref().and_then(WorkerGroup::poll_timeout);
            let (timer, standbys) = (self.timers.poll_timeout(), self.standbys.poll_timeout());
            let check = self.checks.poll_timeout();
            tokio::select! {
                // Reports come before commands and deadlines, so that a process that has ended is not killed again.
                biased;
                Some(report) = from_keeper.recv() => self.handle_keeper(report).await,
                () = alarm.until([group, timer, standbys, check]) => self.handle_timeout().await,
                command = commands.recv() => match command {
                    Some(command) => self.handle_command(command).await,
                    None => break,
                },
                probed = self.standbys.probed() => self.handle_probed(probed).await,
                Some((round, done)) = done.recv() => self.handle_done(round, done).await,
                request = next_timer(&mut self.spec.timer_pipe) => {
                    self.timers.handle(clock::now(), clock::wall_time(), request);
                }
                done = self.checks.done() => {
                    if self.keeper.as_ref().is_some_and(KeeperLink::is_reaped) {
                        self.checks.handle_clean_up();
                    }
                    self.checks.handle_done(done, &self.hardware);
                }
                () = self.output.notified() => self.handle_output(),
                // Last, so that a flood of reports delays nothing else.
                report = next_worker_report(&mut self.worker_reports) => self.handle_worker_report(report),
            }
            self.carry_out_all().await;
            self.carry_out_keeper().await;
            self.carry_out_standbys().await;
            self.spec.events.flush();
        }
        self.end(from_keeper).await;
    }

    /// Applies every deadline that has passed.
    async fn handle_timeout(&mut self) {
        let now = clock::now();
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        self.handle_stop_timeout(now);
        self.kill_expired(now);
        if is_due(self.group.as_ref().and_then(WorkerGroup::next_look)) {
            self.look();
        }
        if is_due(self.group.as_ref().and_then(WorkerGroup::next_state)) {
            self.read_state();
        }
        self.watch_keeper(now).await;
        self.handle_standby_timeout(now);
        if is_due(self.group.as_ref().and_then(|group| group.steps.poll_timeout())) {
            self.pass_steps_on();
        }
        self.checks.handle_timeout(now, &self.hardware);
    }

    fn handle_stop_timeout(&mut self, now: Instant) {
        let Some(group) = &mut self.group else { return };
        let was_stopping = group.machine.is_stopping();
        group.machine.handle_timeout(now);
        if let Some((signal, sent)) = group.signaled
            && was_stopping
            && !group.machine.is_stopping()
        {
            let waited = now.saturating_duration_since(sent).as_secs_f64();
            let (left, seconds) = (group.running(), waited.round());
            if left.is_empty() {
                warn!(
                    "processes of workers that have ended are killed by SIGKILL {seconds} s after {signal}"
                );
            }
            for (local_rank, pid) in left.into_iter().take(limits::KILLED_NAMED) {
                let (rank, gpus) =
                    (environment::shown_rank(&self.spec.job, local_rank), gpus_open_in(pid));
                warn!("rank {rank} is killed by SIGKILL {seconds} s after {signal}{gpus}");
            }
        }
    }

    /// Runs slow work in the background.
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
            Done::Prepared(prepared, gloo_interface) => {
                self.start_workers(prepared, gloo_interface).await
            }
            Done::Looked(activities) => {
                group.is_looking = false;
                let watch = group.hang.as_mut();
                let hang = watch.and_then(|watch| watch.handle_look(clock::now(), &activities));
                self.take_stacks(hang, HungBy::Node);
            }
            Done::Stacks { hang: Hang { local_rank, time }, by, is_stopped, stacks } => {
                let is_hung = match by {
                    HungBy::Node => true,
                    HungBy::Coordinator => {
                        group.named_hang.handle_stacks(clock::now(), local_rank, is_stopped)
                    }
                };
                if !is_hung {
                    return info!(%local_rank, "the worker no longer counts as hung; it is not killed");
                }
                for (local_rank, path) in stacks {
                    warn!(%local_rank, path = %path.display(), "wrote the stack of a hung worker");
                    group.workers.entry(local_rank).or_default().stack = Some(path);
                }
                self.input(Input::Hung(local_rank, time));
            }
            Done::State(local_rank, is_stopped) => {
                group.is_reading_state = false;
                let hang = group.named_hang.handle_look(clock::now(), local_rank, is_stopped);
                self.take_stacks(hang, HungBy::Coordinator);
            }
            Done::Digest(digest) => self.report(WorkersEvent::Digest(Box::new(digest))).await,
        }
    }

    fn input(&mut self, input: Input) {
        if let Some(group) = &mut self.group {
            group.machine.handle(clock::now(), input);
        }
    }

    async fn handle_command(&mut self, command: WorkersCommand) {
        match command {
            WorkersCommand::Start { admission, job_uid, address, memory_folder } => {
                self.memory_folder = memory_folder;
                self.start_group(*admission, job_uid, address).await
            }
            WorkersCommand::Stop { signal, grace } => self.input(Input::Stop { signal, grace }),
            WorkersCommand::Forward(signal) => {
                if self.group.as_ref().is_some_and(|group| group.machine.is_running()) {
                    self.order(Order::Forward { signal: signal as i32 }, Vec::new()).await;
                }
            }
            WorkersCommand::ShowNotice(notice) => self.show_notice(notice.as_deref()),
            WorkersCommand::Look(order) => self.look_for(order),
            WorkersCommand::Hung(hung) => self.handle_hung(hung),
            WorkersCommand::Kill => self.input(Input::Kill),
            WorkersCommand::Renew(until) => self.renew(until),
            WorkersCommand::LeaveToStandbys(bytes) => {
                self.standby_input(standby::Input::Left(bytes));
            }
            WorkersCommand::SetDeathNotice { node_id, coordinators, round, proof, state_file } => {
                let proof = proof.map(|proof| proof.to_string()).unwrap_or_default();
                let round = round.0;
                let order =
                    Order::SetDeathNotice { node_id, coordinators, round, proof, state_file };
                self.death_notice = Some(order.clone());
                self.order(order, Vec::new()).await;
            }
        }
    }

    async fn carry_out_all(&mut self) {
        while let Some(effect) = self.group.as_mut().and_then(|group| group.machine.poll_effect()) {
            debug!(?effect, "supervisor");
            if let Some(group) = &mut self.group {
                // The first effect of any kind means that the group is ending.
                group.stopped.get_or_insert_with(clock::now);
            }
            match effect {
                Effect::Failed(local_rank, end) => {
                    let reading = self.hardware.start_reading();
                    if let Some(group) = &mut self.group {
                        group.hardware_reading = reading;
                    }
                    let ended = self
                        .group
                        .as_ref()
                        .and_then(|group| Some(group.workers.get(&local_rank)?.end.as_ref()?.1));
                    let at = ended.unwrap_or_else(clock::now);
                    let failure = self.failure(local_rank, end.clone(), at).await;
                    self.record_failed(&failure);
                    self.pass_last_reports_on().await;
                    self.report(WorkersEvent::Failed(Box::new(failure))).await;
                    self.checks.handle_failure(&end, &self.hardware);
                }
                Effect::Signal(signal) => {
                    if let Some(group) = &mut self.group {
                        group.signaled = Some((signal, clock::now()));
                    }
                    self.order(Order::Signal { signal: signal.0 }, Vec::new()).await;
                }
                Effect::SignalRest => self.order(Order::SignalRest, Vec::new()).await,
                Effect::CleanUp => {
                    self.cleanups += 1;
                    self.order(Order::CleanUp { number: self.cleanups }, Vec::new()).await;
                }
                Effect::KillKeeper => {
                    warn!("the keeper did not end its processes in time; killing the keeper");
                    if let Some(keeper) = &self.keeper {
                        keeper.kill();
                    }
                }
                Effect::Finish(end) => {
                    self.report_cause(end).await;
                    self.report_hardware().await;
                    self.record_finished(end);
                    self.pass_last_reports_on().await;
                    self.group = None;
                    self.hardware.end();
                    self.checks.handle_round_over(&self.hardware);
                    self.standby_input(standby::Input::RoundEnded);
                    self.timers.clear();
                    self.idle_since = clock::now();
                    self.report(WorkersEvent::Finished(end)).await;
                }
            }
        }
    }

    fn record_failed(&mut self, failure: &WorkerFailure) {
        let Some(group) = &mut self.group else { return };
        if let Some(worker) = group.workers.get_mut(&failure.local_rank) {
            worker.state = WorkerState::Failed;
        }
        let exit_code = process_end::exit_code(&failure.end);
        let event = WorkerEvent::Failed { exit_code, message: failure.message.clone() };
        self.spec.events.worker(&group.admission, failure.local_rank, failure.pid, event);
    }

    fn record_finished(&mut self, end: GroupEnd) {
        let Some(WorkerGroup { admission, workers, .. }) = &self.group else { return };
        for (local_rank, worker) in workers {
            let event = match worker.state {
                WorkerState::Failed => continue,
                WorkerState::Succeeded => WorkerEvent::Succeeded,
                WorkerState::Running | WorkerState::Returned | WorkerState::Ended => {
                    WorkerEvent::Terminated
                }
            };
            self.spec.events.worker(admission, *local_rank, worker.pid, event);
        }
        let event = match end {
            GroupEnd::Succeeded => AgentEvent::Succeeded,
            GroupEnd::Stopped => AgentEvent::Failed,
        };
        self.spec.events.agent(admission, event);
    }

    async fn report(&self, event: WorkersEvent) {
        // An agent that no longer listens is about to drop its commands, too.
        let _ = self.reports_to_agent.send(event).await;
    }

    /// Ends the keeper, which ends everything below it. Waits until no process is left.
    async fn end(mut self, mut from_keeper: mpsc::Receiver<FromKeeper>) {
        self.spec.events.flush();
        // An agent that ends in order leaves the job itself, so no coordinator needs a death notice.
        if let Some(Order::SetDeathNotice { node_id, round, proof, state_file, .. }) =
            self.death_notice.take()
        {
            let coordinators = Vec::new();
            let order = Order::SetDeathNotice { node_id, coordinators, round, proof, state_file };
            self.order(order, Vec::new()).await;
        }
        if self.keeper.take().is_some() {
            drop(self.reports);
            while let Some(report) = from_keeper.recv().await {
                debug!(?report, "report of the keeper during shutdown");
            }
        }
        self.spec.measures.outputs.close();
        self.spec.logs.clean_up();
        info!(target: "ragent_workers", "all processes of this node have ended");
    }
}
