//! Keeps the workers of one round, and the state of each.

use std::{collections::BTreeMap, path::PathBuf, time::Instant};

use ragent_base::{
    output::{lines::Choice, logs::WorkerFolder, tail::SharedTail},
    sys::memory::OomKills,
};
use ragent_core::{
    hang::HangWatch, keeper_watch::KeeperWatch, named_hang::NamedHang, saves::SaveWatch,
    signal::Signal, steps::StepWatch, supervisor::Supervisor,
};
use ragent_options::spec::StepFinder;
use ragent_rendezvous::{
    ids::{JobUid, LocalRank},
    message::{Admission, WorkerEnd},
};

use crate::{
    health::{hardware::PendingReading, worker_reports::Unfit},
    plumbing::StderrTail,
};

/// The workers of one round.
pub(super) struct WorkerGroup {
    pub(super) machine: Supervisor,
    pub(super) admission: Admission,
    pub(super) job_uid: JobUid,
    pub(super) workers: BTreeMap<LocalRank, Worker>,
    /// The filters for lines of all workers, and their files: first stdout, then stderr.
    pub(super) choices: [Option<Choice>; 2],
    pub(super) hang: Option<HangWatch>,
    pub(super) steps: StepWatch,
    pub(super) saves: SaveWatch,
    /// True if a report of a checkpoint was ignored. The warning about it is logged only once.
    pub(super) has_ignored_save: bool,
    pub(super) is_looking: bool,
    /// A worker that the coordinator names as hung.
    pub(super) named_hang: NamedHang,
    /// True while the state of that worker is read.
    pub(super) is_reading_state: bool,
    /// The processes that the kernel had killed for lack of memory when the round began.
    pub(super) oom_kills: OomKills,
    /// The reading of the hardware after the first failure.
    pub(super) hardware_reading: Option<PendingReading>,
    pub(super) keeper: KeeperWatch,
    /// The time at which the group began to stop.
    pub(super) stopped: Option<Instant>,
    /// The signal on which the workers are to end, and the time at which it was sent.
    pub(super) signaled: Option<(Signal, Instant)>,
}

/// The state of one worker.
#[derive(Default)]
pub(super) struct Worker {
    pub(super) pid: u32,
    /// True if it was started from a standby.
    pub(super) was_standby: bool,
    /// What its hook has reported before the keeper's report that the worker has started.
    pub(super) early_unfit: Option<Unfit>,
    pub(super) state: WorkerState,
    /// The worker's end, and the time of its report.
    pub(super) end: Option<(WorkerEnd, Instant)>,
    pub(super) folder: Option<WorkerFolder>,
    pub(super) stderr: StderrTail,
    /// The ends of the worker's streams, which are searched for training steps.
    pub(super) searched: Vec<SharedTail>,
    /// Finds training steps in `searched`; `None` if output is not searched.
    pub(super) finder: Option<StepFinder>,
    /// The last status line that the worker sent.
    pub(super) status: Option<String>,
    /// True if this agent has sent it SIGKILL, because its timer has expired.
    pub(super) is_killed_here: bool,
    /// The file with the worker's stack, if it hung.
    pub(super) stack: Option<PathBuf>,
}

/// The state of a worker, for events.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum WorkerState {
    #[default]
    Running,
    Succeeded,
    /// The worker has returned, and waits for the others.
    Returned,
    /// The worker was the first to fail.
    Failed,
    /// The worker has ended in another way.
    Ended,
}

impl Worker {
    /// Notes that the worker has started. Returns the report of its hook if that arrived earlier.
    pub(super) fn handle_started(&mut self, pid: u32, is_standby: bool) -> Option<Unfit> {
        (self.pid, self.was_standby) = (pid, is_standby);
        self.early_unfit.take().filter(|_| is_standby)
    }

    /// Returns the report of its hook if it counts now. Only a standby may send it: any other worker could cause failures that are not
    /// charged.
    pub(super) fn handle_unfit(&mut self, unfit: Unfit) -> Option<Unfit> {
        if self.pid == 0 {
            self.early_unfit = Some(unfit);
            return None;
        }
        Some(unfit).filter(|_| self.was_standby)
    }
}

impl WorkerGroup {
    /// Returns the earliest deadline.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let (machine, keeper) = (self.machine.poll_timeout(), self.keeper.poll_timeout());
        let steps = self.steps.poll_timeout();
        let deadlines = [machine, self.next_look(), self.next_state(), keeper, steps];
        deadlines.into_iter().flatten().min()
    }

    /// Returns the time of the next look at the workers' activity.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let watch = self.hang.as_ref().filter(|_| !self.is_looking)?;
        watch.poll_timeout().filter(|_| self.machine.is_running())
    }

    /// Returns the time of the next look at a stopped worker.
    pub(super) fn next_state(&self) -> Option<Instant> {
        let due = self.named_hang.poll_timeout().filter(|_| !self.is_reading_state);
        due.filter(|_| self.machine.is_running())
    }

    /// Takes the waiting workers once all `size` workers have returned or succeeded.
    pub(super) fn take_returned(&mut self, size: u32) -> Vec<LocalRank> {
        let has_returned = |worker: &Worker| worker.state == WorkerState::Returned;
        let is_done = |worker: &Worker| {
            matches!(worker.state, WorkerState::Returned | WorkerState::Succeeded)
        };
        if self.workers.values().filter(|worker| is_done(worker)).count() < size as usize {
            return Vec::new();
        }
        let waiting = self.workers.iter_mut().filter(|(_, worker)| has_returned(worker));
        let running = |(rank, worker): (&LocalRank, &mut Worker)| {
            worker.state = WorkerState::Running;
            *rank
        };
        waiting.map(running).collect()
    }

    /// Returns the processes of the workers that still run.
    pub(super) fn running(&self) -> BTreeMap<LocalRank, u32> {
        let running = |worker: &Worker| worker.state == WorkerState::Running && worker.pid != 0;
        let workers = self.workers.iter().filter(|(_, worker)| running(worker));
        workers.map(|(&local_rank, worker)| (local_rank, worker.pid)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unfit() -> Unfit {
        Unfit { modules: vec!["torch".to_owned()], reason: "line 1 sets X".to_owned() }
    }

    /// The report of a hook counts also if it arrives before the keeper's report of the start.
    #[test]
    fn hook_reports_before_the_keeper() {
        let mut worker = Worker::default();
        assert_eq!(worker.handle_unfit(unfit()), None);
        assert_eq!(worker.handle_started(7, true), Some(unfit()));
        assert_eq!(worker.handle_unfit(unfit()), Some(unfit()));
    }

    /// A worker that was no standby cannot have its round repeated without a charge, at any time.
    #[test]
    fn only_standbys_start_again() {
        let mut worker = Worker::default();
        assert_eq!(worker.handle_unfit(unfit()), None);
        assert_eq!(worker.handle_started(7, false), None);
        assert_eq!(worker.handle_unfit(unfit()), None);
    }
}
