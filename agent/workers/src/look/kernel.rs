//! Reads from `/proc` what a process does: its state, where it waits in the kernel, and in which file system.
//!
//! Nothing here opens or examines a file of the process, because that would wait too, if its file system hangs.

use std::path::Path;

use nix::{libc, unistd::Pid};
use ragent_base::sys::{proc, tree};
use ragent_proto::printable_line;
use tokio::{task::spawn_blocking, time::timeout};

use crate::limits;

/// The state of a process, as the kernel shows it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct KernelView {
    /// The process that was looked at.
    pub(super) pid: u32,
    /// The letter of `ps`; `None` if it has ended.
    pub(super) state: Option<char>,
    /// The function in which it waits, with the file system in brackets if that is known.
    pub(super) waits_in: Option<String>,
}

impl KernelView {
    /// Returns the state of the Python interpreter of a worker. That is the worker itself, or the first process below
    /// it that runs Python.
    pub(super) fn of_worker(worker: u32) -> Self {
        let pid = interpreter(worker);
        let state = proc::stat(pid).map(|stat| stat.state);
        let function = proc::read(&format!("{pid}/wchan"));
        let function = function.filter(|name| !name.is_empty() && name != "0");
        let waits_in = function.map(|function| {
            printable_line(&match file_system(pid, state, &function) {
                Some(name) => format!("{function} ({name})"),
                None => function,
            })
        });
        Self { pid, state, waits_in }
    }

    /// Returns true if it was stopped by a signal or a debugger.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, Some('T' | 't'))
    }
}

/// Runs work that reads `/proc` or a folder. If it is not complete in time, nothing is known.
pub(crate) async fn within<T: Default + Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> T {
    let read = timeout(limits::KERNEL_VIEW_TIMEOUT, spawn_blocking(read)).await;
    read.ok().and_then(Result::ok).unwrap_or_default()
}

/// Returns the process of a worker that runs Python; the worker if there is none.
pub(super) fn interpreter(worker: u32) -> u32 {
    let is_python = |pid: u32| {
        let program = proc::link(&format!("{pid}/exe"));
        let name = program.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("python"))
    };
    if is_python(worker) {
        return worker;
    }
    let below = tree::descendants_of(Pid::from_raw(worker.cast_signed())).into_iter();
    let mut below = below.take(limits::STACK_PROCESSES).map(|pid| pid.as_raw().cast_unsigned());
    below.find(|pid| is_python(*pid)).unwrap_or(worker)
}

/// The file systems whose names people write in another way than the kernel. All may wait for other machines.
const FILE_SYSTEMS: [(&str, &str); 9] = [
    ("beegfs", "BeeGFS"),
    ("ceph", "Ceph"),
    ("cifs", "SMB"),
    ("fuse", "FUSE"),
    ("gpfs", "GPFS"),
    ("lustre", "Lustre"),
    ("nfs", "NFS"),
    ("smb3", "SMB"),
    ("wekafs", "Weka"),
];

/// Functions of the kernel that begin like this wait for a file system.
const FUNCTIONS: [(&str, &str); 11] = [
    ("ceph_", "Ceph"),
    ("cifs_", "SMB"),
    ("cl_sync_", "Lustre"),
    ("cxiWait", "GPFS"),
    ("fuse_", "FUSE"),
    ("ldlm_", "Lustre"),
    ("nfs", "NFS"),
    ("osc_", "Lustre"),
    ("ptlrpc_", "Lustre"),
    ("request_wait_answer", "FUSE"),
    ("rpc_", "NFS"),
];

/// Returns the name of the file system for which a process waits, if it is known.
fn file_system(pid: u32, state: Option<char>, function: &str) -> Option<String> {
    let by_function = FUNCTIONS.iter().find(|(start, _)| function.starts_with(start));
    if let Some((_, name)) = by_function {
        return Some((*name).to_owned());
    }
    // A named pipe has a file system, and waits for a process.
    if function.contains("pipe") || function.contains("fifo") || function.contains("partner") {
        return None;
    }
    let kind = kind_of_open_file(pid)?;
    let known = FILE_SYSTEMS.iter().find(|(start, _)| kind.starts_with(start));
    match known {
        Some((_, name)) => Some((*name).to_owned()),
        None => (state == Some('D')).then_some(kind),
    }
}

/// The system calls whose first argument is a descriptor.
const OF_DESCRIPTOR: [i64; 13] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
];

/// Returns the kind of the file system of the file that a system call of the process is about.
fn kind_of_open_file(pid: u32) -> Option<String> {
    let descriptor = descriptor_of_call(&proc::read(&format!("{pid}/syscall"))?)?;
    let mount = proc::field(&format!("{pid}/fdinfo/{descriptor}"), "mnt_id")?;
    kind_of_mount(&proc::read(&format!("{pid}/mountinfo"))?, &mount)
}

/// Reads the descriptor from a line such as `0 0x3 0x7f00 …`: the number of a system call, and its arguments.
fn descriptor_of_call(line: &str) -> Option<u64> {
    let mut words = line.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    let first = words.next()?.strip_prefix("0x")?;
    let is_counted = OF_DESCRIPTOR.contains(&number);
    is_counted.then(|| u64::from_str_radix(first, 16).ok())?
}

/// Returns the kind of file system of a mount, by its number.
fn kind_of_mount(mounts: &str, number: &str) -> Option<String> {
    let mut lines = mounts.lines();
    let line = lines.find(|line| line.split_ascii_whitespace().next() == Some(number))?;
    let (_, rest) = line.split_once(" - ")?;
    rest.split_ascii_whitespace().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The system call of a process leads to the kind of its file system.
    #[test]
    fn file_systems_are_named() {
        let read = format!("{} 0x1f 0x7f00 0x400 0x0 0x0 0x0 0x7ffd 0x7f59", libc::SYS_read);
        assert_eq!(descriptor_of_call(&read), Some(31));
        let futex = format!("{} 0x1f 0x189 0x0 0x0 0x0 0xffffffff 0x7ffe 0x7f59", libc::SYS_futex);
        assert_eq!(descriptor_of_call(&futex), None);
        assert_eq!((descriptor_of_call("running"), descriptor_of_call("")), (None, None));
        let mounts = "21 26 0:19 / /sys rw shared:7 - sysfs sysfs rw\n\
                      210 26 0:50 / /data rw,relatime shared:9 master:1 - nfs4 node0:/data rw,vers=4.2\n";
        assert_eq!(kind_of_mount(mounts, "210").as_deref(), Some("nfs4"));
        assert_eq!((kind_of_mount(mounts, "2"), kind_of_mount("", "210")), (None, None));
        let by_function = |function: &str| file_system(u32::MAX, Some('D'), function);
        assert_eq!(by_function("rpc_wait_bit_killable").as_deref(), Some("NFS"));
        assert_eq!(by_function("anon_pipe_read"), None);
    }

    /// A reading that does not end is given up.
    #[tokio::test]
    async fn reading_has_a_limit() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        assert!(!within(move || ended.recv().is_err()).await);
        drop(end);
        assert!(within(|| true).await);
    }

    /// This process runs. It does not run Python.
    #[test]
    fn own_process() {
        let own = std::process::id();
        let view = KernelView::of_worker(own);
        assert!(view.pid == own && !view.is_stopped(), "{view:?}");
        assert!(view.state.is_some_and(|state| state.is_ascii_alphabetic()), "{view:?}");
        assert_eq!(KernelView::of_worker(u32::MAX).state, None);
    }
}
