//! Operations that no safe crate offers. All `unsafe` code of the program is here.
#![expect(unsafe_code, reason = "fork, signal dispositions and received descriptors")]

use std::{
    collections::BTreeSet,
    ffi::{CStr, CString},
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, net::UnixStream, process::CommandExt},
    },
    path::Path,
    process::{Child, Command},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    libc,
    sched::{CpuSet, sched_setaffinity},
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        signal::{SigAction, SigSet, SigmaskHow, Signal, sigaction, sigprocmask},
        stat::{SFlag, fstat},
        timerfd::TimerFd,
    },
    unistd,
};
use nvml_wrapper::Device;
use tokio::io::{Interest, unix::AsyncFd};

use super::proc;

/// Takes ownership of a descriptor that a system call has just returned.
pub fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel made this descriptor for the call that returned it, and each caller passes
    // each returned number here once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Returns a number that is the same for two handles of a GPU, and another one for another GPU. It is also known of a GPU that does not
/// answer.
pub fn gpu_identity(gpu: &Device<'_>) -> usize {
    // SAFETY: the handle is only compared.
    unsafe { gpu.handle() }.addr()
}

/// Watches `socket` on this runtime, only for `interest`.
///
/// # Errors
///
/// Returns the system's refusal to watch it.
pub fn watch(socket: UnixStream, interest: Interest) -> io::Result<AsyncFd<UnixStream>> {
    // SAFETY: a stream owns its descriptor, names the same one as long as it lives, and lives as
    // long as the value that watches it.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

/// Watches the reading end of a pipe on this runtime.
///
/// # Errors
///
/// Returns the system's refusal to watch it.
pub(crate) fn watch_pipe(pipe: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: it owns its descriptor, names the same one as long as it lives, and lives as long as
    // the value that watches it.
    Ok(unsafe { AsyncFd::register_with_interest(pipe, Interest::READABLE) }?)
}

/// The descriptor of a timer, by its number.
#[derive(Debug)]
pub(super) struct KernelTimer(pub(super) TimerFd);

impl AsRawFd for KernelTimer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Watches a timer on this runtime.
///
/// # Errors
///
/// Returns the system's refusal to watch it.
pub(super) fn watch_timer(timer: KernelTimer) -> io::Result<AsyncFd<KernelTimer>> {
    // SAFETY: it owns its descriptor, names the same one as long as it lives, and lives as long as
    // the value that watches it.
    Ok(unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?)
}

/// Creates a file in memory, which programs that this process executes do not inherit. `name` is shown in `/proc`.
///
/// The system call is made directly, because glibc has a function for it only since version 2.27. The file can never be
/// executed, where the kernel knows this flag (since 6.3): some systems allow no other file in memory.
///
/// # Errors
///
/// Returns the system's refusal.
pub fn memory_file(name: &CStr) -> io::Result<OwnedFd> {
    let make = |flags: libc::c_uint| {
        // SAFETY: the call reads `name`, which ends with a zero byte and lives until it returns.
        Errno::result(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) })
    };
    let made = match make(libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL) {
        Err(Errno::EINVAL) => make(libc::MFD_CLOEXEC),
        made => made,
    };
    Ok(own(RawFd::try_from(made?).map_err(io::Error::other)?))
}

/// Returns the number of bytes in a pipe; zero if it is unknown.
pub(crate) fn pipe_fill(pipe: BorrowedFd<'_>) -> usize {
    let mut len: libc::c_int = 0;
    // SAFETY: the call writes one `int`, to `len`.
    let result = unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD, &raw mut len) };
    if result == 0 { usize::try_from(len).unwrap_or_default() } else { 0 }
}

/// Returns true if this is a regular file.
pub(crate) fn is_regular_file(fd: BorrowedFd<'_>) -> bool {
    let kind = fstat(fd).map(|status| SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT);
    kind == Ok(SFlag::S_IFREG)
}

/// Takes ownership of a descriptor that the parent of this process left open for it, and named in
/// its environment.
pub(crate) fn inherit(fd: RawFd) -> OwnedFd {
    // SAFETY: the only caller has checked that the number is open, was given it for this use, and
    // closes it before other code could use it; no other code in this process knows of it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Sets close-on-exec on every descriptor but stdin, stdout and stderr: workers must not inherit
/// descriptors that a parent of the agent left open.
pub fn keep_descriptors_private() {
    let numbers = proc::numbers("self/fd").into_iter().map(u32::cast_signed);
    for number in numbers.filter(|number| *number > 2) {
        // SAFETY: it is borrowed for this one call, which fails if it is no longer open.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
    }
}

/// Returns an extended attribute of a file, if it exists and is short.
pub(crate) fn extended_attribute(path: &Path, name: &CStr) -> Option<Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut value = vec![0; 64];
    let room = value.len();
    // SAFETY: both names end with a zero, and the kernel writes at most `room` bytes to `value`.
    let len =
        unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), room) };
    value.truncate(usize::try_from(len).ok()?);
    Some(value)
}

/// Sets the disposition of `signal` in this process.
///
/// # Errors
///
/// Returns the system's refusal.
pub(crate) fn set_disposition(signal: Signal, action: &SigAction) -> Result<(), Errno> {
    // SAFETY: callers pass `SIG_IGN` or `SIG_DFL`, so no handler runs at all.
    unsafe { sigaction(signal, action) }.map(drop)
}

/// The disposition of a signal without a handler.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Disposition {
    /// The signal's own default.
    Default,
    /// The signal is ignored.
    Ignore,
}

/// Sets the disposition of every signal in this process, real-time signals included, except
/// `SIGCHLD`: ignoring that would reap children unseen. Async-signal-safe.
pub fn set_all_dispositions(disposition: Disposition) {
    let handler = match disposition {
        Disposition::Default => libc::SIG_DFL,
        Disposition::Ignore => libc::SIG_IGN,
    };
    for signal in (1..=LAST_SIGNAL).filter(|signal| *signal != libc::SIGCHLD) {
        // SAFETY: no handler runs at all. The call fails for SIGKILL, SIGSTOP and the two signals
        // that libc reserves.
        unsafe { libc::signal(signal, handler) };
    }
}

/// Restores the default of the two signals that glibc reserves. Its `posix_spawn` starts processes
/// that ignore them, such as the parent of workers. Async-signal-safe.
fn reset_reserved_signals() {
    // The default, no flags and an empty mask. The structure of the kernel is shorter.
    let default = [0_u64; 8];
    let none = std::ptr::null_mut::<libc::c_void>();
    for signal in [32, 33] {
        // SAFETY: the kernel reads the structure, and no handler runs at all.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), none, size_of::<u64>())
        };
    }
}

/// The last real-time signal of Linux.
const LAST_SIGNAL: libc::c_int = 64;

/// The limits of a worker.
#[derive(Debug)]
pub struct WorkerLimits {
    /// The processors that it is bound to; empty for those of the agent.
    pub cpus: BTreeSet<u32>,
    /// The soft limit of open files.
    pub open_files: u64,
    /// The soft limit of the core dump's size.
    pub core_dump: u64,
    /// The nice value.
    pub nice: i32,
    /// The signals that it ignores from its start on. It may handle them later.
    pub ignored: Vec<i32>,
    /// The process whose descendants may attach to it, as py-spy does. Otherwise only its own ancestors may, on
    /// systems that restrict this (Yama).
    pub tracer: unistd::Pid,
}

/// Returns true if the user namespace of this process owns its network: only users that the namespace maps reach it.
pub(crate) fn network_is_of_user_namespace() -> bool {
    let open = |path| File::open(path).ok();
    let owner = open("/proc/self/ns/net").and_then(|network| {
        // SAFETY: the call has no argument, and returns a new descriptor. It fails if the owner is another namespace above.
        let fd = unsafe { libc::ioctl(network.as_raw_fd(), NS_GET_USERNS) };
        (fd >= 0).then(|| File::from(own(fd)))
    });
    let number = |file: Option<File>| Some(fstat(file?).ok()?.st_ino);
    number(owner).is_some_and(|owner| number(open("/proc/self/ns/user")) == Some(owner))
}

/// `NS_GET_USERNS` of linux/nsfs.h: returns the user namespace that owns another namespace.
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// Returns the nice value of the calling thread.
pub(crate) fn nice() -> i32 {
    // SAFETY: the call has no memory to read or write, and does not fail for the calling thread.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Sets the nice value of the calling thread. Async-signal-safe.
///
/// # Errors
///
/// Returns the system's refusal.
pub(crate) fn set_nice(nice: i32) -> Result<(), Errno> {
    // SAFETY: the call has no memory to read or write.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }).map(drop)
}

/// Gives the calling thread a low priority, for work that must not delay workers.
pub fn lower_thread_priority() {
    if nice() < LOW_PRIORITY {
        // A higher nice value is always allowed.
        let _ = set_nice(LOW_PRIORITY);
    }
}

/// The nice value of threads whose work can wait: about a tenth of the weight of a worker.
const LOW_PRIORITY: i32 = 10;

/// Starts a worker as the leader of a session of its own; the kernel kills it when the calling
/// thread ends. `cgroup` is the `cgroup.procs` of its cgroup.
///
/// # Errors
///
/// Returns the system's refusal to fork or to execute.
pub fn spawn_worker(
    mut command: Command,
    limits: WorkerLimits,
    cgroup: Option<OwnedFd>,
) -> io::Result<Child> {
    let parent = unistd::getpid();
    let (open_files, core_dump, worker_nice) = (limits.open_files, limits.core_dump, limits.nice);
    let (ignored, tracer) = (limits.ignored, limits.tracer);
    let mut cpus = (!limits.cpus.is_empty()).then(CpuSet::new);
    for cpu in limits.cpus {
        if let Some(cpus) = &mut cpus {
            cpus.set(cpu as usize)?;
        }
    }
    let prepare = move || {
        unistd::setsid()?;
        if let Some(cgroup) = &cgroup {
            // A worker outside of the cgroup is found by the walk through the process tree.
            let _ = unistd::write(cgroup, b"0");
        }
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if unistd::getppid() != parent {
            // The parent ended before the line above, so the kernel will send no signal for its
            // end.
            return Err(Errno::ESRCH.into());
        }
        allow_tracing(tracer);
        set_all_dispositions(Disposition::Default);
        reset_reserved_signals();
        for signal in &ignored {
            // SAFETY: no handler runs at all.
            unsafe { libc::signal(*signal, libc::SIG_IGN) };
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        setrlimit(Resource::RLIMIT_NOFILE, open_files.min(hard), hard)?;
        let (_, hard) = getrlimit(Resource::RLIMIT_CORE)?;
        setrlimit(Resource::RLIMIT_CORE, core_dump.min(hard), hard)?;
        if nice() < worker_nice {
            set_nice(worker_nice)?;
        }
        if let Some(cpus) = &cpus {
            sched_setaffinity(unistd::Pid::from_raw(0), cpus)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe system calls are made, nothing is
    // allocated, and no lock is taken.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Allows a process and its descendants to attach to this process, and to the program that it executes.
/// Async-signal-safe.
fn allow_tracing(tracer: unistd::Pid) {
    let number = libc::c_ulong::try_from(tracer.as_raw()).unwrap_or_default();
    // SAFETY: the call has no memory to read or write. It fails on a system without restrictions.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, number, 0, 0, 0) };
}

/// Makes the kernel kill the process that `command` starts when the calling thread ends.
pub fn end_with_this_thread(command: &mut tokio::process::Command) {
    // SAFETY: between fork and exec one async-signal-safe system call is made.
    unsafe { command.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)) };
}

/// Gives the process that `command` starts at most the usual priority.
pub fn lower_priority(command: &mut tokio::process::Command) {
    let lower = || if nice() < 0 { Ok(set_nice(0)?) } else { Ok(()) };
    // SAFETY: between fork and exec two async-signal-safe system calls are made.
    unsafe { command.pre_exec(lower) };
}

/// Sets the soft limit of core dumps for the process that `command` starts.
pub fn allow_core_dump(command: &mut tokio::process::Command, size: u64) {
    let allow = move || {
        let (_, hard) = getrlimit(Resource::RLIMIT_CORE)?;
        Ok(setrlimit(Resource::RLIMIT_CORE, size.min(hard), hard)?)
    };
    // SAFETY: between fork and exec two async-signal-safe system calls are made.
    unsafe { command.pre_exec(allow) };
}

/// Makes the process that `command` starts the leader of a session of its own, without a terminal.
pub fn lead_session(command: &mut tokio::process::Command) {
    // SAFETY: between fork and exec one async-signal-safe system call is made.
    unsafe { command.pre_exec(|| Ok(unistd::setsid().map(drop)?)) };
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// Another child of this process may read what a worker does, although it is none of its ancestors: the program
    /// that a worker executes keeps the permission. This fails with Yama (`ptrace_scope` 1) and without the
    /// permission, unless root runs it.
    #[test]
    fn descendants_of_the_tracer_may_attach() {
        let limits = WorkerLimits {
            cpus: BTreeSet::new(),
            open_files: 64,
            core_dump: 0,
            nice: 0,
            ignored: Vec::new(),
            tracer: unistd::getpid(),
        };
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null());
        let mut worker = spawn_worker(command, limits, None).unwrap();
        let call = format!("/proc/{}/syscall", worker.id());
        let read = Command::new("cat").arg(call).stdout(Stdio::null()).status();
        worker.kill().unwrap();
        worker.wait().unwrap();
        assert!(read.unwrap().success());
    }
}
