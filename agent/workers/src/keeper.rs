//! Keeps workers from outliving their agent: a small process of the same binary, the parent of all workers of one agent.
//!
//! The keeper has a session of its own. It is the *subreaper* of its workers, so no process that they start can leave its tree. Orders of
//! the agent arrive over a socket, its stdin: spawn, signal, cleanup. It reports processes that end, and signals that workers send to it as
//! their parent.
//!
//! On its own it does only three things:
//!
//! - The socket is closed, so the agent is gone. The keeper kills and reaps the whole tree, and sends the coordinator one small message,
//!   the death notice.
//! - The lease, which the agent renews over the socket, has expired: the agent is frozen or unreachable. The keeper kills the workers and
//!   all that they have started, and reports that. After that it starts no process.
//! - A standby ends before it has become the worker. The keeper starts the worker as a new process, once.
//!
//! A standby is an interpreter that waits for the next round. It survives the end of a round and of the lease.
//!
//! There is no runtime: one thread, one `poll`.
//!
//! If the keeper dies, the kernel kills the workers (`PR_SET_PDEATHSIG`). The agent is a subreaper, too, and kills the rest. If agent and
//! keeper are killed at the same moment, a process that a worker has started in a session of its own may survive. A cgroup prevents that
//! ([`Cgroup`]).

mod death_notice;
mod limits;
pub(crate) mod order;
mod socket;
mod standbys;
mod workers;

use std::{
    collections::VecDeque,
    io, iter,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd, siginfo},
        time::TimeSpec,
        timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
    },
    unistd::{self, Pid},
};

use self::{
    death_notice::DeathNoticeSender,
    order::{KeeperReport, Order, Program},
    socket::{OrderSocket, Streams},
    workers::Workers,
};

use ragent_base::sys::{
    cgroup::Cgroup,
    clock, system_error,
    unix::{self, Disposition},
};

/// Runs the keeper until its agent and all processes that it started are gone.
///
/// # Errors
///
/// Returns the error of a failed system call. The agent then notices that its keeper is gone, and
/// the kernel kills the workers.
pub fn run() -> io::Result<()> {
    // This fails only if this process already leads a process group, which does no harm.
    let _ = unistd::setsid();
    prctl::set_child_subreaper(true)?;
    // The agent decides what a signal means. A signal may also reach the keeper, for example if a
    // service manager signals every process of a unit. It must not end the keeper.
    unix::set_all_dispositions(Disposition::Ignore);
    unix::keep_descriptors_private();
    let mut keeper = Keeper::new()?;
    keeper.serve()?;
    keeper.end()
}

struct Keeper {
    socket: OrderSocket,
    workers: Workers,
    signals: SignalFd,
    lease: TimerFd,
    /// The end of the lease, by [`clock::boot_time`]; zero before the first lease.
    lease_until: Duration,
    death_notice: Option<DeathNoticeSender>,
    /// The workers to start, in order.
    wanted: VecDeque<Wanted>,
    /// The number of failed forks in this round.
    refusals: u32,
}

/// Signals that workers send to their parent, and that are meant for the launcher.
const PASSED_ON: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1];

/// A worker to start.
struct Wanted {
    program: Program,
    streams: Streams,
}

impl Keeper {
    fn new() -> io::Result<Self> {
        let mut read = SigSet::empty();
        read.add(Signal::SIGCHLD);
        // A blocked signal is kept until it is read, even if it is ignored.
        PASSED_ON.iter().for_each(|signal| read.add(*signal));
        read.thread_block()?;
        let signals = SignalFd::with_flags(&read, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        Ok(Self {
            socket: OrderSocket::from_stdin()?,
            workers: Workers::new(Cgroup::make()),
            signals,
            lease: TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?,
            lease_until: Duration::ZERO,
            death_notice: None,
            wanted: VecDeque::new(),
            refusals: 0,
        })
    }

    /// Serves the agent until it is gone.
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            if ready.signals {
                self.reap();
            }
            if ready.standbys {
                self.receive_from_standbys();
            }
            // Orders come before the lease: a start that a file system blocked may have delayed the reading of renewals.
            if ready.socket {
                loop {
                    match self.socket.receive() {
                        Ok(Some(order)) => self.carry_out(order)?,
                        Ok(None) => break,
                        Err(_) => return Ok(()),
                    }
                }
            }
            if ready.lease {
                // Reading only resets the timer. `poll` has already reported that it fired.
                let _ = self.lease.wait();
                self.lease_is_over();
            }
            self.start_wanted();
        }
    }

    fn wait(&self) -> io::Result<ReadySources> {
        let flag = |fd: &PollFd<'_>| fd.any().unwrap_or(false);
        let socket = if self.socket.has_output() {
            PollFlags::POLLIN | PollFlags::POLLOUT
        } else {
            PollFlags::POLLIN
        };
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.lease.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.socket.as_fd(), socket),
        ];
        let standbys = self.workers.standbys.sockets();
        fds.extend(standbys.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        // No event reports that a fork is possible again, so the start is retried.
        let retry = PollTimeout::try_from(limits::FORK_INTERVAL).unwrap_or(PollTimeout::ZERO);
        let limit = if self.wanted.is_empty() { PollTimeout::NONE } else { retry };
        match poll(&mut fds, limit) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(ReadySources {
            signals: flag(&fds[0]),
            lease: flag(&fds[1]),
            socket: flag(&fds[2]),
            standbys: fds[3..].iter().any(flag),
        })
    }

    fn carry_out(&mut self, order: Order) -> io::Result<()> {
        match order {
            Order::Spawn(program) => self.want(program),
            Order::StartStandby { program, hook } => {
                let local_rank = program.local_rank;
                if let Err(error) = self.workers.stand(program, hook) {
                    let (reason, is_short) = (error.to_string(), system_error::is_shortage(&error));
                    let report = KeeperReport::StandbyNotStarted { local_rank, reason, is_short };
                    self.socket.send(&report);
                }
            }
            Order::DismissStandby { local_rank } => self.workers.standbys.dismiss(local_rank),
            Order::SignalRest => self.workers.signal_rest(),
            Order::Forward { signal } => self.workers.forward(signal),
            Order::Signal { signal } => {
                self.reject_wanted("the workers were stopped first");
                self.receive_from_standbys();
                self.workers.standbys.kill_starting();
                self.workers.stop(signal);
                // If no worker was started, no end of a worker triggers this report.
                if self.workers.is_quiet() {
                    self.socket.send(&KeeperReport::Quiet);
                }
            }
            Order::CleanUp { number } => {
                self.reject_wanted("the workers were killed first");
                self.workers.clean_up(Some(number));
                self.reap();
            }
            Order::Renew { until_ns } => self.renew(until_ns.map(Duration::from_nanos))?,
            Order::Ping => self.socket.send(&KeeperReport::Pong),
            Order::SetDeathNotice { node_id, coordinators, round, proof, state_file } => {
                self.death_notice =
                    Some(DeathNoticeSender { node_id, coordinators, round, proof, state_file });
            }
        }
        Ok(())
    }

    fn receive_from_standbys(&mut self) {
        let socket = &mut self.socket;
        self.workers.standbys.receive(&mut |report| socket.send(&report));
    }

    /// Queues a worker and starts it as soon as possible.
    fn want(&mut self, program: Program) {
        let Some((streams, flows)) = self.socket.take_streams(&program.flows) else {
            return self.not_spawned(program.local_rank, "the keeper did not receive its streams");
        };
        if self.workers.is_empty() && self.wanted.is_empty() {
            self.refusals = 0;
        }
        self.workers.keep(flows);
        self.wanted.push_back(Wanted { program, streams });
        self.start_wanted();
    }

    /// Starts the queued workers. If memory or process numbers are short, for example while another
    /// job ends, the start is retried for a moment.
    fn start_wanted(&mut self) {
        while let Some(Wanted { program, streams }) = self.wanted.front() {
            let local_rank = program.local_rank;
            if self.lease_until <= clock::boot_time() {
                // The order was sent before the agent was frozen or unreachable, so it is outdated.
                self.socket.send(&KeeperReport::LeaseOver);
                return self.reject_wanted("the lease has ended");
            }
            match self.workers.spawn(program, streams) {
                Ok(report) => self.socket.send(&report),
                Err(error) => {
                    let is_short = system_error::is_shortage(&error);
                    if is_short && self.refusals < limits::FORK_ATTEMPTS {
                        self.refusals += 1;
                        return;
                    }
                    self.not_spawned(local_rank, &error.to_string());
                }
            }
            self.wanted.pop_front();
        }
    }

    /// Gives up the workers that are not started yet.
    fn reject_wanted(&mut self, reason: &str) {
        for Wanted { program, .. } in std::mem::take(&mut self.wanted) {
            self.not_spawned(program.local_rank, reason);
        }
    }

    fn not_spawned(&mut self, local_rank: u32, reason: &str) {
        let reason = reason.to_owned();
        self.socket.send(&KeeperReport::NotSpawned { local_rank, reason });
    }

    /// Sets the end of the lease. An expired lease fires at once.
    fn renew(&mut self, until: Option<Duration>) -> io::Result<()> {
        let Some(until) = until else {
            self.lease_until = Duration::MAX;
            return Ok(self.lease.unset()?);
        };
        self.lease_until = until;
        let left = until.saturating_sub(clock::boot_time()).max(Duration::from_nanos(1));
        let once = Expiration::OneShot(TimeSpec::from_duration(left));
        Ok(self.lease.set(once, TimerSetTimeFlags::empty())?)
    }

    fn lease_is_over(&mut self) {
        // A renewal may have arrived since the timer fired.
        if self.workers.is_empty() || self.lease_until > clock::boot_time() {
            return;
        }
        self.reject_wanted("the lease has ended");
        self.socket.send(&KeeperReport::LeaseOver);
        self.workers.clean_up(None);
        self.reap();
    }

    fn reap(&mut self) {
        // One signal may report several ended processes, so the code below looks for all of them.
        for received in first_signals(|| self.signals.read_signal().ok().flatten()) {
            self.pass_on(&received);
        }
        let socket = &mut self.socket;
        let unstarted = self.workers.reap(&mut |report| socket.send(&report));
        self.wanted
            .extend(unstarted.into_iter().map(|(program, streams)| Wanted { program, streams }));
    }

    /// Passes a signal on to the agent if a worker, or a process below it, has sent it. Under torchrun, the parent of a worker is the
    /// launcher, so the signal is meant for the launcher. Two senders do not mean it: a service manager, which may signal all processes of
    /// a unit, and a process whose worker has ended, which would have another parent under torchrun.
    ///
    /// Called before anything is reaped, so that a sender that has just ended is still found.
    fn pass_on(&mut self, received: &siginfo) {
        let signal = received.ssi_signo.cast_signed();
        let sender = Pid::from_raw(received.ssi_pid.cast_signed());
        let is_passed_on = PASSED_ON.iter().any(|passed_on| *passed_on as i32 == signal);
        if is_passed_on && self.workers.has_started(sender) {
            self.socket.send_signal(signal);
        }
    }

    /// Kills every process that the agent started, after the agent is gone. Then delivers the death notice.
    fn end(mut self) -> io::Result<()> {
        self.workers.standbys.dismiss_all();
        self.workers.clean_up(None);
        self.reap();
        while !self.workers.is_empty() {
            let ready = self.wait_for_ends()?;
            if ready {
                self.reap();
            }
        }
        if let Some(death_notice) = self.death_notice {
            death_notice.deliver();
            // An agent that has left in order empties its pipes itself.
            if !death_notice.is_in_order() {
                self.workers.empty_pipes();
            }
        }
        Ok(())
    }

    fn wait_for_ends(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => Ok(true),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Reads a limited number of pending signals. The next `poll` reports the others.
fn first_signals<T>(read: impl FnMut() -> Option<T>) -> Vec<T> {
    iter::from_fn(read).take(limits::SIGNALS).collect()
}

/// The sources that are ready.
struct ReadySources {
    signals: bool,
    lease: bool,
    socket: bool,
    standbys: bool,
}

/// Borrows the socket for `poll`.
impl AsFd for OrderSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endless stream of signals does not keep the keeper from its other work. No signal is skipped.
    #[test]
    fn signals_without_end_are_interrupted() {
        let mut endless = 0..;
        let first = first_signals(|| endless.next());
        assert_eq!(first, (0..limits::SIGNALS).collect::<Vec<_>>());
        assert_eq!(first_signals(|| endless.next()).first(), Some(&limits::SIGNALS));
        assert!(first_signals(|| None::<i32>).is_empty());
    }
}
