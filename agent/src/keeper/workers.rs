//! The workers of a keeper, and all processes that they have started.

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    process::{Child, Command},
};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::{Pid, getpid},
};

use ragent_core::process_end::ProcessEnd;

use super::{
    order::{Program, Report},
    socket::Streams,
};
use crate::{
    keeper::limits,
    output::flow::{self, HandedOver},
    sys::{
        cgroup::Cgroup,
        clock, tree,
        unix::{self, WorkerLimits},
    },
};

/// The process tree below a keeper.
///
/// Invariant: `groups` holds the process group of every worker in `running`.
#[derive(Debug)]
pub(super) struct Workers {
    cgroup: Option<Cgroup>,
    running: BTreeMap<u32, Child>,
    /// The process groups of workers, including workers that have ended while processes of their
    /// group still run.
    groups: Vec<Pid>,
    /// The streams of the newest workers.
    flows: Vec<HandedOver>,
    /// True during a sweep, in which every process of the tree is killed.
    sweeping: bool,
    /// The number of the newest sweep that was ordered.
    sweep: u64,
}

impl Workers {
    /// Creates an empty tree, whose workers will run in `cgroup`, if there is one.
    pub(super) fn new(cgroup: Option<Cgroup>) -> Self {
        let (running, groups) = (BTreeMap::new(), Vec::new());
        Self { cgroup, running, groups, flows: Vec::new(), sweeping: false, sweep: 0 }
    }

    /// Returns true if no process runs below this one.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.groups.is_empty() && !self.sweeping
    }

    /// Starts a worker in a session of its own.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed system call.
    pub(super) fn spawn(&mut self, program: &Program, streams: &Streams) -> io::Result<Report> {
        let local_rank = program.local_rank;
        let copies = streams.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
        let streams: Streams = copies.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        // A worker that cannot join the cgroup is still found by the walk through the tree.
        let cgroup = self.cgroup.as_ref().and_then(|cgroup| cgroup.procs().ok());
        let limits = WorkerLimits {
            cpus: program.cpus.clone(),
            open_files: program.open_files,
            core_dump: program.core_dump,
        };
        let child = unix::spawn_worker(command_of(program, streams), limits, cgroup)?;
        let pid = child.id();
        self.groups.push(Pid::from_raw(pid.cast_signed()));
        self.running.insert(local_rank, child);
        Ok(Report::Spawned { local_rank, pid })
    }

    /// Keeps the streams of a worker that is to be started, in case the agent does not copy them to
    /// their end.
    pub(super) fn keep(&mut self, flows: Vec<HandedOver>) {
        if self.is_empty() {
            // The agent has copied those of the previous round.
            self.flows.clear();
        }
        self.flows.extend(flows);
    }

    /// Copies the output that the agent has not read to its destinations. All writers are dead.
    pub(super) fn empty_pipes(&mut self) {
        let deadline = clock::now_blocking() + limits::SPILLED_TIMEOUT;
        flow::finish_all(std::mem::take(&mut self.flows), deadline);
    }

    /// Signals the process groups of all workers, including those of workers that have ended.
    pub(super) fn signal(&self, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else {
            return;
        };
        for group in &self.groups {
            // The group may be gone already.
            let _ = killpg(*group, signal);
        }
    }

    /// Returns true if all workers have ended and no process is left in their process groups.
    pub(super) fn is_quiet(&mut self) -> bool {
        // The number of an empty group may be reused later, so the group is removed at once.
        let leaders: Vec<u32> = self.running.values().map(Child::id).collect();
        self.groups.retain(|group| {
            leaders.contains(&group.as_raw().cast_unsigned()) || killpg(*group, None).is_ok()
        });
        self.groups.is_empty()
    }

    /// Kills all processes; [`Report::Reaped`] follows when none is left.
    pub(super) fn sweep(&mut self, number: Option<u64>) {
        self.sweeping = true;
        self.sweep = number.unwrap_or(self.sweep);
        self.kill();
    }

    fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        tree::kill_descendants();
    }

    /// Reaps and reports every process that has ended since the last call.
    pub(super) fn reap(&mut self, report: &mut impl FnMut(Report)) {
        self.reap_workers(report);
        self.reap_orphans();
        let was_quiet = self.groups.is_empty();
        if self.is_quiet() && !was_quiet {
            report(Report::Quiet);
        }
        if self.sweeping {
            if tree::has_no_children() {
                self.sweeping = false;
                self.groups.clear();
                report(Report::Reaped { number: self.sweep });
            } else {
                self.kill();
            }
        }
    }

    fn reap_workers(&mut self, report: &mut impl FnMut(Report)) {
        self.running.retain(|&local_rank, child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                report(Report::Ended { local_rank, end: ProcessEnd::from(status) });
                false
            }
            // Cannot happen, because only this code waits for workers. A worker that cannot be
            // waited for counts as failed.
            Err(_) => {
                report(Report::Ended { local_rank, end: ProcessEnd::UNKNOWN });
                false
            }
        });
    }

    fn reap_orphans(&self) {
        for pid in tree::children_of(getpid()) {
            let worker =
                self.running.values().any(|child| child.id().cast_signed() == pid.as_raw());
            if !worker {
                tree::reap(pid);
            }
        }
    }
}

fn command_of(program: &Program, streams: Streams) -> Command {
    let [stdin, stdout, stderr] = streams;
    let mut command = Command::new(&program.program);
    command.args(&program.args).stdin(stdin).stdout(stdout).stderr(stderr);
    for name in &program.unset {
        command.env_remove(name);
    }
    command.envs(program.env.iter().cloned());
    command
}
