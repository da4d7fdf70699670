//! Starts, signals and reaps the workers of a keeper, and all processes that they have started.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io,
    os::fd::OwnedFd,
    path::PathBuf,
    process::Child,
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getpgid, getpid},
};
use ragent_base::{
    output::flow::{self, HandedOver},
    sys::{
        cgroup::{Cgroup, ChildCgroup},
        clock, proc, tree, unix,
    },
};
use ragent_core::process_end::ProcessEnd;
use ragent_options::spec::Signaled;

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
    running: BTreeMap<u32, KeptWorker>,
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
struct KeptWorker {
    child: Child,
    signaled: Signaled,
    /// The file that it was started with, without links, and its arguments. The file may be a script that becomes another program.
    program: PathBuf,
    args: Vec<OsString>,
    /// The signal that its main process alone has received; the rest of its group follows when that has ended.
    rest_follows: Option<Signal>,
}

impl Workers {
    /// Creates an empty tree. Its workers will run in `cgroup`, if there is one.
    pub(super) fn new(cgroup: Option<Cgroup>) -> Self {
        Self {
            cgroup,
            taken: Vec::new(),
            running: BTreeMap::new(),
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
        if let Some((child, cgroup)) = self.standbys.take_over(program, streams) {
            let pid = Pid::from_raw(child.id().cast_signed());
            self.taken.extend(cgroup.map(|cgroup| (pid, cgroup)));
            return Ok(self.started(program, child, true));
        }
        let copies = streams.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()?;
        let streams: Streams = copies.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        // A worker that cannot join the cgroup is still found in the process tree.
        let cgroup = self.cgroup.as_ref().and_then(|cgroup| cgroup.workers().procs().ok());
        let [stdin, stdout, stderr] = streams;
        let mut command = command_of(program);
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        let child = unix::spawn_worker(command, limits_of(program), cgroup)?;
        Ok(self.started(program, child, false))
    }

    fn started(&mut self, program: &Program, child: Child, is_standby: bool) -> KeeperReport {
        let (local_rank, pid) = (program.local_rank, child.id());
        let worker = KeptWorker {
            child,
            signaled: program.signaled,
            program: fs::canonicalize(&program.program).unwrap_or_else(|_| program.program.clone()),
            args: program.args.clone(),
            rest_follows: None,
        };
        self.groups.push(Pid::from_raw(pid.cast_signed()));
        self.running.insert(local_rank, worker);
        KeeperReport::Spawned { local_rank, pid, is_standby }
    }

    /// Returns true if a process is a running worker or a descendant of one.
    pub(super) fn has_started(&self, process: Pid) -> bool {
        let workers = self.running.values().map(KeptWorker::pid);
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
        let Ok(signal) = Signal::try_from(signal) else { return };
        let alone = self.running.values().filter(|worker| worker.is_signaled_alone());
        self.signal(signal, &alone.map(KeptWorker::pid).collect());
    }

    /// Signals all workers, which are to end.
    pub(super) fn stop(&mut self, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else { return };
        let mut alone = BTreeSet::new();
        for worker in self.running.values_mut().filter(|worker| worker.is_signaled_alone()) {
            worker.rest_follows = Some(signal);
            alone.insert(worker.pid());
        }
        self.signal(signal, &alone);
    }

    /// Signals the groups of all workers, including those of workers that have ended; of the leaders in `alone` only these.
    fn signal(&self, signal: Signal, alone: &BTreeSet<Pid>) {
        for group in &self.groups {
            // The process or the group may be gone already.
            let _ = match alone.contains(group) {
                true => kill(*group, signal),
                false => killpg(*group, signal),
            };
        }
    }

    /// Sends the signal of a stop to the processes that have not received it yet: the main process of their worker may wait for them.
    pub(super) fn signal_rest(&mut self) {
        for worker in self.running.values_mut() {
            let Some(signal) = worker.rest_follows.take() else { continue };
            let main = worker.pid();
            for process in tree::descendants_of(main) {
                if process != main && getpgid(Some(process)) == Ok(main) {
                    // It may have ended.
                    let _ = kill(process, signal);
                }
            }
        }
    }

    /// Returns true if all workers have ended and no process is left in their process groups.
    pub(super) fn is_quiet(&mut self) -> bool {
        // The number of an empty group may be reused later, so the group is removed at once.
        let leaders: Vec<Pid> = self.running.values().map(KeptWorker::pid).collect();
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
        self.running.retain(|&local_rank, worker| {
            let pid = worker.pid();
            if let Some(signal) = worker.rest_follows {
                // Before it is reaped: until then, no other group can have its number. A process that ends after
                // this look causes another call.
                if !tree::has_ended(pid) {
                    return true;
                }
                let _ = killpg(pid, signal);
            }
            match worker.child.try_wait() {
                Ok(None) => true,
                Ok(Some(status)) => {
                    match standbys.take_unstarted(pid, report) {
                        Some(worker) => {
                            unstarted.push(worker);
                            left_by.push(pid);
                        }
                        None => {
                            let end = ProcessEnd::from(status);
                            report(KeeperReport::Ended { local_rank, end });
                        }
                    }
                    false
                }
                // This cannot happen, because only this code waits for workers. Such a worker counts as failed.
                Err(_) => {
                    report(KeeperReport::Ended { local_rank, end: ProcessEnd::UNKNOWN });
                    false
                }
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

impl KeptWorker {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Returns true if its main process gets signals alone.
    fn is_signaled_alone(&self) -> bool {
        match self.signaled {
            Signaled::Auto => proc::runs(self.child.id(), &self.program, &self.args),
            Signaled::Main => true,
            Signaled::Group => false,
        }
    }
}
