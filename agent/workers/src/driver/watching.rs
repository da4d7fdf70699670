//! Watches running workers: their activity, heartbeats, training steps and timers.

use std::{future, time::Instant};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use ragent_base::{
    output::{logs::WorkerFolder, tail::SharedTail},
    sys::clock,
};
use ragent_core::{
    agent::ShownNotice,
    hang::Hang,
    saves::{NodeSaves, SaveReport},
    standby,
    steps::Step,
    supervisor::Input,
};
use ragent_rendezvous::{
    ids::LocalRank,
    message::{StepSource, WorkerEnd},
};
use tokio::task::spawn_blocking;
use tracing::{error, warn};

use super::{Done, HungBy, Worker, WorkerState, WorkersDriver, WorkersEvent};
use crate::{
    health::{
        notice_file, progress,
        stacks::{self, Spied, StackTools},
        timers::{HealthTimer, TimerPipe, TimerRequest},
        worker_reports::{ReportSockets, Unfit, WorkerReport},
    },
    look::is_stopped,
    spec::WorkersSpec,
};

impl WorkersDriver {
    /// Kills the workers whose timers have expired. Their ends are reported like any other.
    pub(super) fn kill_expired(&mut self, now: Instant) {
        for HealthTimer { pid, scope_id, signal, .. } in self.timers.expired(now) {
            let pid = Pid::from_raw(pid);
            let is_own = self.keeper.as_ref().is_some_and(|keeper| keeper.holds(pid));
            match Signal::try_from(signal) {
                Ok(signal) if is_own => {
                    warn!(
                        %pid, scope_id, %signal,
                        "a worker's timer has expired; killing the worker"
                    );
                    let _ = kill(pid, signal);
                    let workers =
                        self.group.iter_mut().flat_map(|group| group.workers.values_mut());
                    workers
                        .filter(|worker| worker.pid.cast_signed() == pid.as_raw())
                        .for_each(|worker| worker.is_killed_here |= signal == Signal::SIGKILL);
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
    pub(super) fn look(&mut self) {
        let Some(group) = &mut self.group else { return };
        group.is_looking = true;
        let (round, workers) = (group.admission.round, group.running());
        self.in_background(round, async move {
            let looked = spawn_blocking(move || progress::activities(&workers)).await;
            Done::Looked(looked.unwrap_or_default())
        });
    }

    pub(super) fn handle_worker_report(&mut self, (local_rank, report): (LocalRank, WorkerReport)) {
        if report.is_heartbeat {
            self.standby_input(standby::Input::Progress);
        }
        let (now, Some(group)) = (clock::now(), &mut self.group) else { return };
        if let Some(unfit) = report.unfit
            && let Some(worker) = group.workers.get_mut(&local_rank)
            && let Some(unfit) = worker.handle_unfit(unfit)
        {
            return self.start_again(local_rank, unfit);
        }
        if report.has_returned {
            return self.handle_returned(local_rank);
        }
        if let Some(step) = report.step {
            group.steps.handle_step(now, local_rank, StepSource::Reported, step);
            group.saves.handle_step(local_rank, step.number());
        }
        if let Some(save) = report.save {
            self.handle_save(local_rank, save);
        }
        let Some(group) = &mut self.group else { return };
        let mut hang = None;
        if let Some(watch) = &mut group.hang {
            if report.is_heartbeat {
                watch.handle_heartbeat(now, local_rank);
            }
            hang = report.is_trigger.then(|| watch.handle_trigger(local_rank)).flatten();
        }
        if let Some(text) = report.status {
            group.workers.entry(local_rank).or_default().status = Some(text.clone());
            // There is one line per node, from the first worker that has one.
            let first = group.workers.iter().find(|(_, worker)| worker.status.is_some());
            if first.is_some_and(|(first, _)| *first == local_rank) {
                // If the queue is full, a later line is enough.
                let _ = self.reports_to_agent.try_send(WorkersEvent::Progress(text));
            }
        }
        self.take_stacks(hang, HungBy::Node);
    }

    /// Ends the group, because the script of this worker does not fit what its standby has imported.
    pub(super) fn start_again(&mut self, local_rank: LocalRank, Unfit { modules, reason }: Unfit) {
        self.input(Input::Ended(local_rank, WorkerEnd::StandbyUnfit(reason.as_str().into())));
        self.standby_input(standby::Input::Unfit { modules, reason });
    }

    /// Notes what a worker reports about a checkpoint.
    fn handle_save(&mut self, local_rank: LocalRank, save: SaveReport) {
        let (now, Some(group)) = (clock::now(), &mut self.group) else { return };
        let step = save.step;
        if !group.saves.handle_report(local_rank, save) {
            if !std::mem::replace(&mut group.has_ignored_save, true) {
                warn!(
                    %local_rank, step,
                    "a worker has reported a checkpoint of a step that it has never reached; it is ignored \
                     (call `ragent.step(n)` with the same numbers as `ragent.saved(n)`)"
                );
            }
            return;
        }
        if let Some(step) = step.and_then(|step| Step::new(step, None)) {
            group.steps.handle_step(now, local_rank, StepSource::Saved, step);
        }
        // If the queue is full, a later checkpoint is enough.
        let _ = self.reports_to_agent.try_send(WorkersEvent::Saves(group.saves.saves()));
    }

    /// Shows a notice to the workers, or removes the last one. The file is replaced as a whole.
    pub(super) fn show_notice(&mut self, notice: Option<&ShownNotice>) {
        let Some(worker_reports) = &self.worker_reports else { return };
        let path = worker_reports.notice_file();
        let result = match notice {
            Some(notice) => notice_file::write(&path, notice, clock::now(), clock::wall_time()),
            None => notice_file::remove(&path),
        };
        if let Err(error) = result {
            warn!(path = %path.display(), %error, "failed to show a notice to the workers");
        }
    }

    /// Notes that the function of a worker has returned. The worker ends only after all others have returned.
    fn handle_returned(&mut self, local_rank: LocalRank) {
        if let Some(group) = &mut self.group {
            let worker = group.workers.entry(local_rank).or_default();
            if worker.state == WorkerState::Running {
                worker.state = WorkerState::Returned;
            }
            if let Some(hang) = &mut group.hang {
                hang.handle_ended(local_rank);
            }
        }
        self.release_returned();
    }

    /// Allows workers to end once all have returned or ended.
    pub(super) fn release_returned(&mut self) {
        let size = self.spec.job.local_world_size.get();
        let returned = self.group.as_mut().map(|group| group.take_returned(size));
        for local_rank in returned.unwrap_or_default() {
            if let Some(worker_reports) = &self.worker_reports {
                worker_reports.release(local_rank);
            }
        }
    }

    /// Notes that a worker has written output that may contain a training step.
    pub(super) fn handle_output(&mut self) {
        if let Some(group) = &mut self.group {
            group.steps.handle_output(clock::now());
        }
    }

    /// Searches new output for training steps, and passes the workers' steps on if they have changed.
    pub(super) fn pass_steps_on(&mut self) {
        let (now, Some(group)) = (clock::now(), &mut self.group) else { return };
        if group.steps.handle_timeout(now) {
            for (&local_rank, Worker { searched, finder, .. }) in &mut group.workers {
                let new = searched.iter().filter_map(SharedTail::take_new);
                let found = new.filter_map(|lines| finder.as_mut()?.newest(&lines));
                for step in found.filter_map(|(step, total)| Step::new(step, total)) {
                    group.steps.handle_step(now, local_rank, StepSource::Read, step);
                }
            }
        }
        if let Some(steps) = group.steps.take_changed() {
            // If the queue is full, later steps are enough.
            let _ = self.reports_to_agent.try_send(WorkersEvent::Steps(steps));
        }
    }

    /// Passes on what the workers have reported last, before the end of their group is reported.
    pub(super) async fn pass_last_reports_on(&mut self) {
        let taken = self.worker_reports.as_mut().map(ReportSockets::take_all);
        for (local_rank, report) in taken.into_iter().flatten() {
            let WorkerReport { step, save, .. } = report;
            self.handle_worker_report((
                local_rank,
                WorkerReport { step, save, ..WorkerReport::default() },
            ));
        }
        self.pass_steps_on();
        if let Some(saves) = self.group.as_ref().map(|group| group.saves.saves())
            && saves != NodeSaves::default()
        {
            self.report(WorkersEvent::Saves(saves)).await;
        }
    }

    /// Takes the stacks of the group if it hangs. The group is killed afterwards, if it still counts as hung.
    pub(super) fn take_stacks(&self, hang: Option<Hang>, by: HungBy) {
        let (Some(hang), Some(group)) = (hang, &self.group) else { return };
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
        let running = group.running();
        let pid = running.get(&hang.local_rank).copied();
        let workers = running.into_iter().map(hung).collect();
        let signal = self.spec.job.hang.as_ref().and_then(|hang| hang.signal);
        // A worker that the coordinator names may live.
        let spied = match by {
            HungBy::Node => Spied::Paused,
            HungBy::Coordinator => Spied::Untouched,
        };
        let tools = StackTools { py_spy: self.spec.job.py_spy.clone(), spied, signal };
        self.in_background(group.admission.round, async move {
            let stacks = stacks::take(tools, workers).await;
            let is_stopped = match pid {
                Some(pid) => is_stopped(pid).await,
                None => false,
            };
            Done::Stacks { hang, by, is_stopped, stacks }
        });
    }
}

/// Opens the sockets for reports of workers.
pub(super) fn open_report_sockets(spec: &WorkersSpec) -> Option<ReportSockets> {
    let size = spec.job.local_world_size.get();
    ReportSockets::open(&spec.socket_dir, size)
        .map_err(|error| {
            warn!(
                %error,
                "failed to open the sockets for reports of workers; they start without \
                 RAGENT_SOCKET and NOTIFY_SOCKET"
            )
        })
        .ok()
}

/// Waits for the next report of a worker. Never returns if workers cannot send any.
pub(super) async fn next_worker_report(
    sockets: &mut Option<ReportSockets>,
) -> (LocalRank, WorkerReport) {
    if let Some(open) = sockets {
        if let Some(report) = open.next().await {
            return report;
        }
        *sockets = None;
    }
    future::pending().await
}

/// Waits for the next request for a timer. Never returns if workers cannot set any.
pub(super) async fn next_timer(pipe: &mut Option<TimerPipe>) -> TimerRequest {
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
