//! Describes failures of workers, and finds the first one.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use ragent_base::{
    output::logs::WorkerFolder,
    sys::{clock, memory::OomKills},
};
use ragent_core::supervisor::{GroupEnd, is_before_stop};
use ragent_rendezvous::{
    ids::{GlobalRank, LocalRank},
    message::{OomKill, WorkerEnd, WorkerFailure},
};
use tokio::{task::spawn_blocking, time::timeout};

use super::{Worker, WorkersDriver, WorkersEvent};
use crate::{launch::error_file, limits, plumbing::StderrTail};

impl WorkersDriver {
    /// Describes the failure of a worker that has ended at `at`.
    pub(super) async fn failure(
        &self,
        local_rank: LocalRank,
        end: WorkerEnd,
        at: Instant,
    ) -> WorkerFailure {
        let group = self.group.as_ref().expect("a group has failed");
        let first = group.admission.first_global_rank;
        let global_rank = GlobalRank(first.0.saturating_add(local_rank.0));
        let unknown = Worker::default();
        let worker = group.workers.get(&local_rank).unwrap_or(&unknown);
        let error_file = worker.folder.as_ref().map(WorkerFolder::error_file);
        let stack = worker.stack.as_ref().map(|path| format!("its stack is in {}", path.display()));
        let message = match error_file.clone() {
            Some(path) => read_message(path).await,
            None => None,
        };
        let error_file = error_file.filter(|_| message.is_some());
        let message = match message.or(stack) {
            None => self.flight_record(worker, global_rank).await,
            message => message,
        };
        let stderr_tail = match &worker.stderr {
            StderrTail::Captured(tail) => tail.text(),
            StderrTail::NotCaptured => String::new(),
        };
        let is_final =
            matches!(&end, WorkerEnd::Exited(code) if self.spec.job.final_codes.contains(code));
        // After the group began to stop, this agent may have killed it.
        let is_killed_here =
            worker.is_killed_here || group.stopped.is_some_and(|stopped| at > stopped);
        let is_killed = end == WorkerEnd::Signaled(Signal::SIGKILL as i32) && !is_killed_here;
        let is_oom = is_killed && has_grown(group.oom_kills, OomKills::read());
        let now = clock::now();
        WorkerFailure {
            host_name: self.spec.host_name.clone(),
            round: group.admission.round,
            global_rank,
            local_rank,
            pid: worker.pid,
            end,
            age: now.saturating_duration_since(at),
            error_file: error_file.map(|path| path.to_string_lossy().into_owned()),
            message,
            stderr_tail,
            is_final,
            error_file_age: None,
            hardware: self.hardware.of_failure(now),
            // A certain one needs a cgroup for each worker.
            oom: is_oom.then_some(OomKill::Probable),
            // The agent knows.
            before_load: false,
        }
    }

    /// Returns a sentence that names the file with torch's records of a worker's collectives, if there is one.
    async fn flight_record(&self, worker: &Worker, rank: GlobalRank) -> Option<String> {
        let folder =
            worker.folder.as_ref().filter(|_| self.spec.job.observation.flight_recorder)?;
        let mut file = folder.flight_record_prefix().into_os_string();
        file.push(rank.to_string());
        let file = PathBuf::from(file);
        let examined = file.clone();
        let is_there = spawn_blocking(move || examined.exists());
        let is_there = timeout(limits::FAILURE_OUTPUT_TIMEOUT, is_there).await.ok()?.ok()?;
        let all = file.parent()?.display();
        is_there.then(|| {
            format!(
                "torch has recorded its collectives in {} (compare those of all ranks: `torchfrtrace --prefix \
                 nccl_trace_rank_ {all}`)",
                file.display()
            )
        })
    }

    /// Reports what the hardware has reported by now, for the failure of this round. Waits for its reading, but not for long.
    pub(super) async fn report_hardware(&mut self) {
        let Some(group) = self.group.as_mut() else { return };
        let (round, Some(reading)) = (group.admission.round, group.hardware_reading.take()) else {
            return;
        };
        reading.ended().await;
        let hardware = self.hardware.of_failure(clock::now());
        self.report(WorkersEvent::Hardware(round, hardware)).await;
    }

    /// Reports to the agent which worker failed first, by the error files of all workers.
    ///
    /// A file counts only if it was written before the group began to stop. Later failures are
    /// consequences of the stop.
    pub(super) async fn report_cause(&self, end: GroupEnd) {
        let Some(group) = self.group.as_ref().filter(|_| end == GroupEnd::Stopped) else { return };
        // Both times are read at once, because the files may be examined much later.
        let (now, wall_now) = (clock::now(), clock::wall_time());
        let stopped = group.stopped.unwrap_or(now);
        let files = group.workers.iter().filter_map(|(&local_rank, worker)| {
            Some((local_rank, worker.folder.as_ref()?.error_file()))
        });
        let files: Vec<_> = files.collect();
        let Some((local_rank, file_age)) = oldest_error_file(files, wall_now).await else { return };
        if !is_before_stop(file_age, now.saturating_duration_since(stopped)) {
            return;
        }
        let ended = group.workers.get(&local_rank).and_then(|worker| worker.end.clone());
        // A worker without a reported end was killed with its keeper.
        let (end, at) = ended.unwrap_or((WorkerEnd::KeeperLost, now));
        let mut cause = self.failure(local_rank, end, at).await;
        let read_for = clock::now().saturating_duration_since(now);
        cause.error_file_age = Some(file_age.saturating_add(read_for));
        self.report(WorkersEvent::Cause(Box::new(cause))).await;
    }
}

/// Returns true if the kernel has killed a process for lack of memory since `before`: one of this cgroup, or one of the machine if the
/// cgroup does not count them.
fn has_grown(before: OomKills, now: OomKills) -> bool {
    let (before, now) = match now.cgroup {
        Some(_) => (before.cgroup, now.cgroup),
        None => (before.machine, now.machine),
    };
    before.zip(now).is_some_and(|(before, now)| now > before)
}

/// Returns the worker with the oldest error file, and the file's age at `wall_now`. Returns `None` if there is no such file, or if the disk
/// does not answer in time.
async fn oldest_error_file(
    files: Vec<(LocalRank, PathBuf)>,
    wall_now: Duration,
) -> Option<(LocalRank, Duration)> {
    let looking = spawn_blocking(move || {
        let ages = files
            .into_iter()
            .filter_map(|(rank, path)| Some((rank, error_file::age(&path, wall_now)?)));
        // If several have the same age, the lowest rank counts.
        ages.rev().max_by_key(|(_, age)| *age)
    });
    timeout(limits::FAILURE_OUTPUT_TIMEOUT, looking).await.ok()?.ok().flatten()
}

/// Reads the message in a worker's error file. Returns `None` if there is none, or if the disk does not answer in time.
async fn read_message(path: PathBuf) -> Option<String> {
    let reading = spawn_blocking(move || error_file::message(&path));
    timeout(limits::FAILURE_OUTPUT_TIMEOUT, reading).await.ok()?.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel has killed a process if the counter of the cgroup has grown since the start of the round, or else that of the machine.
    #[test]
    fn kills_of_the_kernel() {
        let of = |cgroup, machine| OomKills { cgroup, machine };
        for (before, now, expected) in [
            (of(Some(1), Some(5)), of(Some(2), Some(6)), true),
            // Processes of others.
            (of(Some(1), Some(5)), of(Some(1), Some(6)), false),
            (of(None, Some(5)), of(None, Some(6)), true),
            (of(None, Some(5)), of(None, Some(5)), false),
            // The system did not report it at first.
            (of(None, None), of(Some(2), Some(6)), false),
            (of(None, None), of(None, Some(6)), false),
        ] {
            assert_eq!(has_grown(before, now), expected, "{before:?} {now:?}");
        }
    }
}
