//! The processes below this one, as `/proc` shows them.

use std::{collections::BTreeSet, fs, io};

use super::cgroup;
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, waitid, waitpid},
    },
    unistd::{Pid, getpid},
};

/// Makes sure that the kernel tells of children.
///
/// # Errors
///
/// Returns the refusal of a kernel that was built without `CONFIG_PROC_CHILDREN`.
pub fn check() -> io::Result<()> {
    let own = getpid();
    fs::read(format!("/proc/{own}/task/{own}/children")).map(drop)
}

/// Whether this process has no child, ended ones that are not reaped included.
pub(crate) fn has_no_children() -> bool {
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, peek) == Err(Errno::ECHILD)
}

/// The children of `parent`, ended and not yet reaped ones included.
pub(crate) fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else {
        return Vec::new();
    };
    let read = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).ok();
    let lists: Vec<String> = tasks.flatten().filter_map(read).collect();
    lists
        .iter()
        .flat_map(|list| list.split_ascii_whitespace())
        .filter_map(|pid| pid.parse().ok().map(Pid::from_raw))
        .collect()
}

/// Every process below this one.
pub(crate) fn descendants() -> BTreeSet<Pid> {
    descendants_of(getpid())
}

/// Every process below `root`.
pub(crate) fn descendants_of(root: Pid) -> BTreeSet<Pid> {
    let mut found = BTreeSet::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children_of(parent) {
            if found.insert(child) {
                parents.push(child);
            }
        }
    }
    found
}

/// Kills every process below this one, once, each as soon as it is found: one that only forks and
/// exits, again and again, is there for some microseconds. Those that are born meanwhile become this
/// process's children when their parents end, and are found by the next call.
pub(crate) fn kill_descendants() {
    let mut found = BTreeSet::new();
    let mut parents = vec![getpid()];
    while let Some(parent) = parents.pop() {
        for child in children_of(parent) {
            // It may have ended by itself.
            let _ = kill(child, Signal::SIGKILL);
            if found.insert(child) {
                parents.push(child);
            }
        }
    }
}

/// Reaps `pid` if it has ended.
pub(crate) fn reap(pid: Pid) -> bool {
    match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
        Ok(status) => status.pid().is_some(),
        // The status names a real-time signal, which `nix` cannot express; it is reaped.
        Err(Errno::EINVAL) => true,
        Err(_) => false,
    }
}

/// Kills and reaps everything below this process; blocks until nothing is left.
///
/// For a process whose children are all to go: nobody else may wait for one of them.
pub fn sweep_blocking() {
    loop {
        cgroup::end_leftovers();
        kill_descendants();
        match waitpid(None, None) {
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => {}
            Err(_) => return,
        }
    }
}
