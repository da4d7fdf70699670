//! Holds the standbys: Python interpreters that import modules, and wait until they become workers.
//!
//! Each standby has a socket. It sends reports on it, and receives the variables and streams of its
//! worker. It reports when it has taken them. Until then no line of the script has run, so a
//! standby that ends before that is replaced by a new process.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io::{self, IoSlice},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    process::{Child, Command, Stdio},
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, killpg},
        socket::{
            AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, sendmsg, socketpair,
        },
    },
    unistd::{Pid, getppid},
};
use ragent_base::sys::{
    cgroup::ChildCgroup,
    tree,
    unix::{self, WorkerLimits},
};
use ragent_core::process_end::ProcessEnd;

use super::{
    order::{KeeperReport, Program},
    socket::Streams,
};
use crate::keeper::limits;

/// The standbys of all local ranks.
#[derive(Debug, Default)]
pub(super) struct KeptStandbys {
    /// Standbys that wait for a round, by local rank.
    waiting: BTreeMap<u32, KeptStandby>,
    /// Standbys that were sent the variables and streams of a worker, but have not reported yet
    /// that they have taken them, by local rank.
    starting: BTreeMap<u32, Starting>,
    /// The cgroups of standbys that have ended or were killed. Each is removed when it is empty.
    ended: Vec<ChildCgroup>,
}

/// A standby without a round.
#[derive(Debug)]
struct KeptStandby {
    child: Child,
    socket: ReportSocket,
    program: Program,
    /// Its own cgroup, if the keeper has one.
    cgroup: Option<ChildCgroup>,
}

/// A standby that is becoming a worker.
#[derive(Debug)]
struct Starting {
    pid: Pid,
    socket: ReportSocket,
    program: Program,
    streams: Streams,
}

/// The keeper's end of the socket of a standby.
#[derive(Debug)]
struct ReportSocket {
    /// `None` once the standby has closed its end or has sent too many reports.
    fd: Option<OwnedFd>,
    /// The number of its reports so far.
    received: usize,
}

impl KeptStandbys {
    /// Starts a standby for the worker `program`. `hook` has the variables for the standby only.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed system call.
    pub(super) fn stand(
        &mut self,
        program: Program,
        hook: Vec<(String, OsString)>,
        cgroup: Option<ChildCgroup>,
    ) -> io::Result<()> {
        self.dismiss(program.local_rank);
        match start(&program, hook, cgroup.as_ref()) {
            Ok((child, socket)) => {
                let socket = ReportSocket { fd: Some(socket), received: 0 };
                let standby = KeptStandby { child, socket, program, cgroup };
                self.waiting.insert(standby.program.local_rank, standby);
                Ok(())
            }
            Err(error) => {
                // The cgroup has no process, so no end of a process would cause its removal.
                self.ended.extend(cgroup.filter(|cgroup| !cgroup.remove()));
                Err(error)
            }
        }
    }

    /// Turns the standby of a worker into that worker, and returns its process and cgroup. Returns
    /// `None` if no standby fits, and then dismisses it.
    pub(super) fn take_over(
        &mut self,
        program: &Program,
        streams: &Streams,
    ) -> Option<(Child, Option<ChildCgroup>)> {
        let local_rank = program.local_rank;
        let standby = self.waiting.get(&local_rank)?;
        let copies = streams.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>();
        let copies: Option<Streams> = copies.ok().and_then(|copies| copies.try_into().ok());
        let fits = has_same_command(&standby.program, program);
        let Some(copies) = copies.filter(|_| fits) else {
            self.dismiss(local_rank);
            return None;
        };
        if standby.send_worker(program, streams).is_err() {
            self.dismiss(local_rank);
            return None;
        }
        let KeptStandby { child, socket, cgroup, .. } = self.waiting.remove(&local_rank)?;
        let (pid, program) = (pid_of(&child), program.clone());
        self.starting.insert(local_rank, Starting { pid, socket, program, streams: copies });
        Some((child, cgroup))
    }

    /// Kills a standby without a round, and all processes that its modules have started.
    pub(super) fn dismiss(&mut self, local_rank: u32) {
        if let Some(standby) = self.waiting.remove(&local_rank) {
            // The standby is reaped like any orphan.
            standby.kill();
            self.ended.extend(standby.cgroup);
        }
    }

    /// Kills the standbys that should become workers. No line of their script has run, and they
    /// ignore other signals. Their ends are reported like those of workers.
    pub(super) fn kill_starting(&mut self) {
        for Starting { pid, .. } in std::mem::take(&mut self.starting).into_values() {
            let _ = killpg(pid, Signal::SIGKILL);
        }
    }

    /// Kills all standbys without a round.
    pub(super) fn dismiss_all(&mut self) {
        for local_rank in self.waiting.keys().copied().collect::<Vec<_>>() {
            self.dismiss(local_rank);
        }
    }

    /// Returns the process ids of the standbys without a round.
    pub(super) fn pids(&self) -> BTreeSet<Pid> {
        self.waiting.values().map(|standby| pid_of(&standby.child)).collect()
    }

    /// Returns the process ids of the standbys without a round, and of the processes that their
    /// modules have started in their cgroups.
    pub(super) fn members(&self) -> BTreeSet<Pid> {
        let cgroups = self.waiting.values().filter_map(|standby| standby.cgroup.as_ref());
        let mut members = self.pids();
        members.extend(cgroups.flat_map(ChildCgroup::members));
        members
    }

    /// Returns the sockets, for `poll`.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let waiting = self.waiting.values().filter_map(|standby| standby.socket.fd.as_ref());
        let starting = self.starting.values().filter_map(|starting| starting.socket.fd.as_ref());
        waiting.chain(starting).map(AsFd::as_fd)
    }

    /// Receives the reports that have arrived.
    pub(super) fn receive(&mut self, report: &mut impl FnMut(KeeperReport)) {
        let mut refused = Vec::new();
        for (&local_rank, standby) in &mut self.waiting {
            if receive_all(&mut standby.socket, local_rank, report, is_refused) {
                refused.push(local_rank);
            }
        }
        for local_rank in refused {
            self.dismiss(local_rank);
        }
        self.starting.retain(|&local_rank, starting| {
            !receive_all(&mut starting.socket, local_rank, report, is_taken)
        });
    }

    /// Reaps and reports all standbys without a round that have ended.
    pub(super) fn reap(&mut self, report: &mut impl FnMut(KeeperReport)) {
        let waiting = self.waiting.iter();
        let ended = waiting.filter(|(_, standby)| tree::has_ended(pid_of(&standby.child)));
        for local_rank in ended.map(|(&local_rank, _)| local_rank).collect::<Vec<_>>() {
            let Some(mut standby) = self.waiting.remove(&local_rank) else { continue };
            // It is killed before it is reaped, because its process group id may be reused after that.
            standby.kill();
            let end = match standby.child.try_wait() {
                Ok(Some(status)) => ProcessEnd::from(status),
                Ok(None) | Err(_) => ProcessEnd::UNKNOWN,
            };
            // Its last report may have arrived meanwhile.
            if !receive_all(&mut standby.socket, local_rank, report, is_refused) {
                report(KeeperReport::StandbyEnded { local_rank, end });
            }
            self.ended.extend(standby.cgroup);
        }
        self.ended.retain(|cgroup| !cgroup.remove());
    }

    /// Returns the program and the streams of the worker that the standby `pid` should become.
    /// Returns `None` if it has become the worker, or if `pid` is another process.
    pub(super) fn take_unstarted(
        &mut self,
        pid: Pid,
        report: &mut impl FnMut(KeeperReport),
    ) -> Option<(Program, Streams)> {
        let (&local_rank, _) = self.starting.iter().find(|(_, starting)| starting.pid == pid)?;
        let mut starting = self.starting.remove(&local_rank)?;
        // It may have become the worker since reports were last received.
        let has_taken = receive_all(&mut starting.socket, local_rank, report, is_taken);
        (!has_taken).then_some((starting.program, starting.streams))
    }
}

impl KeptStandby {
    /// Kills the standby and the processes that its modules have started: all of them if it has a cgroup, otherwise its descendants and the
    /// members of its process group.
    fn kill(&self) {
        let pid = pid_of(&self.child);
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        tree::kill_descendants_of(pid, &BTreeSet::new());
        let _ = killpg(pid, Signal::SIGKILL);
    }

    /// Sends the variables and the streams of the worker.
    fn send_worker(&self, program: &Program, streams: &Streams) -> io::Result<()> {
        let socket = self.socket.fd.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let message = variables(&self.program, program);
        if message.len() > limits::MAX_STANDBY_MESSAGE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let rights: Vec<RawFd> = streams.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&rights)];
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&message)], &rights, flags, None)?;
        Ok(())
    }
}

/// Starts a standby. Returns its process, and the keeper's end of its socket.
fn start(
    program: &Program,
    hook: Vec<(String, OsString)>,
    cgroup: Option<&ChildCgroup>,
) -> io::Result<(Child, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    let mut command = command_of(program);
    command.envs(hook).stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
    // A standby that cannot join its cgroup is still found in the process tree.
    let cgroup = cgroup.and_then(|cgroup| cgroup.procs().ok());
    Ok((unix::spawn_worker(command, limits_of(program), cgroup)?, ours))
}

/// Returns the message to a standby, separated by zeros: `NAME=VALUE` for each variable of its
/// worker, and `NAME` for each variable of the standby that the worker does not have.
fn variables(standby: &Program, worker: &Program) -> Vec<u8> {
    let names: BTreeSet<&str> = worker.env.iter().map(|(name, _)| name.as_str()).collect();
    let mut message = Vec::new();
    for (name, value) in &worker.env {
        message.extend([name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat());
    }
    for (name, _) in standby.env.iter().filter(|(name, _)| !names.contains(name.as_str())) {
        message.extend([name.as_bytes(), b"\0"].concat());
    }
    message
}

/// Returns true if two programs differ only in their environment and streams.
fn has_same_command(one: &Program, other: &Program) -> bool {
    let command =
        |program: &Program| Program { env: Vec::new(), flows: Vec::new(), ..program.clone() };
    command(one) == command(other)
}

/// Receives all waiting reports and passes them on. Closes a socket if the other end is closed.
/// Returns true if `is_last` holds for one of the reports.
fn receive_all(
    socket: &mut ReportSocket,
    local_rank: u32,
    report: &mut impl FnMut(KeeperReport),
    is_last: fn(&str) -> bool,
) -> bool {
    let mut message = vec![0; limits::MAX_STANDBY_REPORT];
    let mut has_last = false;
    while let Some(open) = &socket.fd {
        if socket.received == limits::STANDBY_REPORTS {
            // The hook sends two reports. A standby that sends too many is no longer read.
            socket.fd = None;
            break;
        }
        match recv(open.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => socket.fd = None,
            Ok(len) => {
                socket.received += 1;
                let text = String::from_utf8_lossy(&message[..len]).into_owned();
                has_last |= is_last(&text);
                report(KeeperReport::Standby { local_rank, text });
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => break,
            Err(_) => socket.fd = None,
        }
    }
    has_last
}

/// Returns true if the standby that sends this report has become the worker.
fn is_taken(report: &str) -> bool {
    report == "taken"
}

/// Returns true if a standby that sends this report must not become a worker.
fn is_refused(report: &str) -> bool {
    report.starts_with("refused\t")
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

/// Returns the command of a program, without streams.
pub(super) fn command_of(program: &Program) -> Command {
    let mut command = Command::new(&program.program);
    command.args(&program.args);
    for name in &program.unset {
        command.env_remove(name);
    }
    command.envs(program.env.iter().cloned());
    command
}

pub(super) fn limits_of(program: &Program) -> WorkerLimits {
    WorkerLimits {
        cpus: program.cpus.clone(),
        open_files: program.open_files,
        core_dump: program.core_dump,
        nice: program.nice,
        ignored: program.ignored.clone(),
        // The agent, which starts py-spy.
        tracer: getppid(),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::send;

    use super::*;

    /// A standby that reports without pause is no longer read, even if its reports arrive one by one.
    #[test]
    fn reports_of_a_standby_are_bounded() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let mut socket = ReportSocket { fd: Some(ours), received: 0 };
        let mut reports = Vec::new();
        while socket.fd.is_some() && reports.len() < 100 {
            send(theirs.as_raw_fd(), b"ready\t1", MsgFlags::MSG_NOSIGNAL).unwrap();
            receive_all(&mut socket, 0, &mut |report| reports.push(report), is_taken);
        }
        assert_eq!((reports.len(), socket.fd.is_none()), (limits::STANDBY_REPORTS, true));
    }
}
