//! Starts, signals and reaps the workers of a keeper, and all processes that they have started.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    process::Child,
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getpid},
};
use ragent_base::{
    output::flow::{self, HandedOver},
    sys::{
        cgroup::{Cgroup, ChildCgroup},
        clock, proc, tree, unix,
    },
};
use ragent_core::process_end::ProcessEnd;

use super::{
    order::{KeeperReport, Program},
    socket::Streams,
    standbys::{KeptStandbys, command_of, limits_of},
};
use crate::keeper::limits;

/// The process tree below a keeper.
///
/// Invariant: `groups` holds the process group of every worker in `running`.
#[derive(Debug)]
pub(super) struct Workers {
    cgroup: Option<Cgroup>,
    /// The cgroups of workers that were standbys, with their process ids, until the cleanup after
    /// their round has ended.
    taken: Vec<(Pid, ChildCgroup)>,
    running: BTreeMap<u32, Worker>,
    /// The signal on which the workers of the round are to end, if they are.
    stopping: Option<Signal>,
    pub(super) standbys: KeptStandbys,
    /// The process groups of workers. A worker that has ended stays in the list while processes of its group run.
    groups: Vec<Pid>,
    /// The streams of the newest workers.
    flows: Vec<HandedOver>,
    /// True during a cleanup, until no process of a round is left.
    cleaning_up: bool,
    /// The number of the newest cleanup that was ordered.
    cleanup: u64,
}

/// A worker that runs.
#[derive(Debug)]
struct Worker {
    child: Child,
    /// The interpreter and its arguments, if signals go to that process alone.
    interpreter: Option<Interpreter>,
}

/// The main process of a worker that is an interpreter.
#[derive(Debug)]
enum Interpreter {
    /// It was a standby.
    Standby,
    /// It was started with this file and these arguments. The file may be a script that becomes another program.
    Started(PathBuf, Vec<OsString>),
}

impl Workers {
    /// Creates an empty tree. Its workers will run in `cgroup`, if there is one.
    pub(super) fn new(cgroup: Option<Cgroup>) -> Self {
        Self {
            cgroup,
            taken: Vec::new(),
            running: BTreeMap::new(),
            stopping: None,
            standbys: KeptStandbys::default(),
            groups: Vec::new(),
            flows: Vec::new(),
            cleaning_up: false,
            cleanup: 0,
        }
    }

    /// Returns true if this process has no descendants except waiting standbys.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.groups.is_empty() && !self.cleaning_up
    }

    /// Starts a standby.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed system call.
    pub(super) fn stand(
        &mut self,
        program: Program,
        hook: Vec<(String, OsString)>,
    ) -> io::Result<()> {
        let cgroup = self.cgroup.as_mut().and_then(|cgroup| cgroup.add_standby().ok());
        self.standbys.stand(program, hook, cgroup)
    }

    /// Starts a worker in a session of its own, from its standby if there is one.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed system call.
    pub(super) fn spawn(
        &mut self,
        program: &Program,
        streams: &Streams,
    ) -> io::Result<KeeperReport> {
        let local_rank = program.local_rank;
        if let Some((child, cgroup)) = self.standbys.take_over(program, streams) {
            let pid = Pid::from_raw(child.id().cast_signed());
            self.taken.extend(cgroup.map(|cgroup| (pid, cgroup)));
            let interpreter = program.signals_main.then_some(Interpreter::Standby);
            return Ok(self.started(local_rank, Worker { child, interpreter }, true));
        }
        let copies = streams.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
        let streams: Streams = copies.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        // A worker that cannot join the cgroup is still found in the process tree.
        let cgroup = self.cgroup.as_ref().and_then(|cgroup| cgroup.workers().procs().ok());
        let [stdin, stdout, stderr] = streams;
        let mut command = command_of(program);
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        let child = unix::spawn_worker(command, limits_of(program), cgroup)?;
        let started = || Interpreter::Started(program.program.clone(), program.args.clone());
        let interpreter = program.signals_main.then(started);
        Ok(self.started(local_rank, Worker { child, interpreter }, false))
    }

    fn started(&mut self, local_rank: u32, worker: Worker, is_standby: bool) -> KeeperReport {
        let pid = worker.child.id();
        self.stopping = None;
        self.groups.push(Pid::from_raw(pid.cast_signed()));
        self.running.insert(local_rank, worker);
        KeeperReport::Spawned { local_rank, pid, is_standby }
    }

    /// Returns true if a process is a running worker or a descendant of one.
    pub(super) fn has_started(&self, process: Pid) -> bool {
        let workers = self.running.values().map(Worker::pid);
        workers
            .into_iter()
            .any(|worker| worker == process || tree::descendants_of(worker).contains(&process))
    }

    /// Keeps the streams of a worker that will be started, in case the agent does not copy them to their end.
    pub(super) fn keep(&mut self, flows: Vec<HandedOver>) {
        if self.is_empty() {
            // The agent has copied the streams of the previous round.
            self.flows.clear();
        }
        self.flows.extend(flows);
    }

    /// Copies output that the agent has not read to its destinations. No writer is left.
    pub(super) fn empty_pipes(&mut self) {
        let deadline = clock::now_blocking() + limits::SPILLED_TIMEOUT;
        flow::finish_all(std::mem::take(&mut self.flows), deadline);
    }

    /// Signals all workers, which continue.
    pub(super) fn forward(&self, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else {
            return;
        };
        let alone: BTreeSet<Pid> = self.running.values().filter_map(Worker::interpreter).collect();
        for group in &self.groups {
            // The process or the group may be gone already.
            let _ = match alone.contains(group) {
                true => kill(*group, signal),
                false => killpg(*group, signal),
            };
        }
    }

    /// Signals all workers, which are to end. What is left of the group of an interpreter is signaled when that has ended.
    pub(super) fn stop(&mut self, signal: i32) {
        self.stopping = Signal::try_from(signal).ok();
        self.forward(signal);
    }

    /// Returns true if all workers have ended and no process is left in their process groups.
    pub(super) fn is_quiet(&mut self) -> bool {
        // The number of an empty group may be reused later, so the group is removed at once.
        let leaders: Vec<Pid> = self.running.values().map(Worker::pid).collect();
        self.groups.retain(|group| leaders.contains(group) || killpg(*group, None).is_ok());
        self.groups.is_empty()
    }

    /// Kills all processes except waiting standbys and the processes that their modules have
    /// started. [`KeeperReport::Reaped`] follows when no other process is left.
    pub(super) fn clean_up(&mut self, number: Option<u64>) {
        self.standbys.kill_starting();
        self.cleaning_up = true;
        self.cleanup = number.unwrap_or(self.cleanup);
        self.kill();
    }

    fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            cgroup.workers().kill();
        }
        for (_, cgroup) in &self.taken {
            cgroup.kill();
        }
        tree::kill_descendants(&self.standbys.members());
    }

    /// Kills the processes of a standby that ended before it became a worker. The process that
    /// replaces it may import the same modules.
    fn kill_left_by(&self, standby: Pid) {
        for (_, cgroup) in self.taken.iter().filter(|(pid, _)| *pid == standby) {
            cgroup.kill();
        }
        let _ = killpg(standby, Signal::SIGKILL);
    }

    /// Reaps and reports every process that has ended since the last call.
    ///
    /// Returns the workers whose standby ended before it became the worker.
    pub(super) fn reap(
        &mut self,
        report: &mut impl FnMut(KeeperReport),
    ) -> Vec<(Program, Streams)> {
        // A standby may have become a worker and ended since the last report.
        self.standbys.receive(report);
        let unstarted = self.reap_workers(report);
        self.standbys.reap(report);
        self.reap_orphans();
        let was_quiet = self.groups.is_empty();
        if self.is_quiet() && !was_quiet && unstarted.is_empty() {
            report(KeeperReport::Quiet);
        }
        if self.cleaning_up {
            if self.has_only_standbys() {
                self.cleaning_up = false;
                self.groups.clear();
                self.taken.retain(|(_, cgroup)| !cgroup.remove());
                report(KeeperReport::Reaped { number: self.cleanup });
            } else {
                self.kill();
            }
        }
        unstarted
    }

    fn has_only_standbys(&self) -> bool {
        // The children are listed first. A module may start a process in between, which becomes a
        // child later. The end of that process causes another look.
        let children: BTreeSet<Pid> = tree::children_of(getpid()).into_iter().collect();
        let (standbys, members) = (self.standbys.pids(), self.standbys.members());
        if members.is_empty() {
            return tree::has_no_children();
        }
        // A list that cannot be read is empty, so it proves nothing.
        standbys.is_subset(&children) && children.is_subset(&members)
    }

    fn reap_workers(&mut self, report: &mut impl FnMut(KeeperReport)) -> Vec<(Program, Streams)> {
        let (standbys, mut unstarted, mut left_by) = (&mut self.standbys, Vec::new(), Vec::new());
        let stopping = self.stopping;
        self.running.retain(|&local_rank, worker| match worker.child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                let pid = worker.pid();
                if let Some(signal) = stopping {
                    // The group may be empty.
                    let _ = killpg(pid, signal);
                }
                match standbys.take_unstarted(pid, report) {
                    Some(worker) => {
                        unstarted.push(worker);
                        left_by.push(pid);
                    }
                    None => {
                        report(KeeperReport::Ended { local_rank, end: ProcessEnd::from(status) })
                    }
                }
                false
            }
            // This cannot happen, because only this code waits for workers. Such a worker counts as failed.
            Err(_) => {
                report(KeeperReport::Ended { local_rank, end: ProcessEnd::UNKNOWN });
                false
            }
        });
        for standby in left_by {
            self.kill_left_by(standby);
        }
        unstarted
    }

    fn reap_orphans(&self) {
        let standbys = self.standbys.pids();
        for pid in tree::children_of(getpid()) {
            let is_worker = self.running.values().any(|worker| worker.pid() == pid);
            if !is_worker && !standbys.contains(&pid) {
                tree::reap(pid);
            }
        }
    }
}

impl Worker {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Returns the main process if it is the interpreter, and receives signals alone. A wrapper, such as a shell or a profiler, may pass
    /// no signal on, so its whole group receives them.
    fn interpreter(&self) -> Option<Pid> {
        let pid = self.pid();
        let is_interpreter = match self.interpreter.as_ref()? {
            Interpreter::Standby => true,
            Interpreter::Started(program, args) => proc::runs(self.child.id(), program, args),
        };
        is_interpreter.then_some(pid)
    }
}
