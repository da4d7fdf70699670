//! The workers that a keeper holds, and everything that they left behind.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, process::Child};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::{Pid, getpid},
};

use ragent_core::process_end::ProcessEnd;

use super::{
    cgroup::Cgroup,
    order::{Program, Report},
    socket::Streams,
    tree,
};
use crate::{
    clock, limits,
    supervisor::{
        flow::{self, HandedOver},
        unix,
    },
};

/// The tree below a keeper.
///
/// Invariant: `groups` holds the process group of every worker in `running`.
#[derive(Debug)]
pub(super) struct Workers {
    cgroup: Option<Cgroup>,
    running: BTreeMap<u32, Child>,
    /// Process groups of workers, also of those that ended and left something in it.
    groups: Vec<Pid>,
    /// Streams of the workers that were started last.
    flows: Vec<HandedOver>,
    /// A sweep is under way: whatever shows up is killed.
    sweeping: bool,
    /// The last sweep that was ordered.
    sweep: u64,
}

impl Workers {
    /// Nothing runs yet; what will is in `cgroup`, if there is one.
    pub(super) fn new(cgroup: Option<Cgroup>) -> Self {
        let (running, groups) = (BTreeMap::new(), Vec::new());
        Self { cgroup, running, groups, flows: Vec::new(), sweeping: false, sweep: 0 }
    }

    /// Whether nothing runs below this process.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.groups.is_empty() && !self.sweeping
    }

    /// Starts a worker in a session of its own.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal.
    pub(super) fn spawn(&mut self, program: &Program, streams: &Streams) -> io::Result<Report> {
        let local_rank = program.local_rank;
        let copies = streams.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
        let streams = copies.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        // One that cannot be in it is found by the walk all the same.
        let cgroup = self.cgroup.as_ref().and_then(|cgroup| cgroup.procs().ok());
        let child = unix::spawn_worker(program.clone(), streams, cgroup)?;
        let pid = child.id();
        self.groups.push(Pid::from_raw(pid.cast_signed()));
        self.running.insert(local_rank, child);
        Ok(Report::Spawned { local_rank, pid })
    }

    /// Keeps streams of a worker that is to be started, should the agent not copy them to their end.
    pub(super) fn keep(&mut self, flows: Vec<HandedOver>) {
        if self.is_empty() {
            // The agent has copied those of the round before.
            self.flows.clear();
        }
        self.flows.extend(flows);
    }

    /// Writes what the agent has not read any more to where it belongs. All writers are dead.
    pub(super) fn empty_pipes(&mut self) {
        let deadline = clock::now_blocking() + limits::SPILLED_TIMEOUT;
        flow::finish_all(std::mem::take(&mut self.flows), deadline);
    }

    /// Signals the groups of all workers, and what ended ones left in theirs.
    pub(super) fn signal(&self, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else {
            return;
        };
        for group in &self.groups {
            // The group may be gone already.
            let _ = killpg(*group, signal);
        }
    }

    /// Whether all workers have ended and nothing is left in their process groups.
    pub(super) fn is_quiet(&mut self) -> bool {
        // A group whose number is free may be another's tomorrow, so it is forgotten at once.
        let leaders: Vec<u32> = self.running.values().map(Child::id).collect();
        self.groups.retain(|group| {
            leaders.contains(&group.as_raw().cast_unsigned()) || killpg(*group, None).is_ok()
        });
        self.groups.is_empty()
    }

    /// Kills everything; [`Report::Reaped`] follows when nothing is left.
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

    /// Takes note of every end since the last call.
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
            // Nobody else waits for it, so this cannot be; a worker that cannot be waited for has
            // not ended well.
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
