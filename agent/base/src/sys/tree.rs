//! The processes below this one, as `/proc` shows them.

use std::collections::BTreeSet;

use super::{cgroup, proc};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::{Pid, getpid},
};

/// Returns true if this process has no child; children that have ended but are not reaped count.
pub fn has_no_children() -> bool {
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, peek) == Err(Errno::ECHILD)
}

/// Returns true if `pid`, a child of this process, has ended; it is not reaped.
pub fn has_ended(pid: Pid) -> bool {
    let peek = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(pid), peek) != Ok(WaitStatus::StillAlive)
}

/// Returns the children of `parent`, including ended ones that are not reaped.
pub fn children_of(parent: Pid) -> Vec<Pid> {
    let children = proc::children(parent.as_raw().cast_unsigned()).into_iter();
    children.map(|pid| Pid::from_raw(pid.cast_signed())).collect()
}

/// Returns all descendants of this process.
pub fn descendants() -> BTreeSet<Pid> {
    descendants_of(getpid())
}

/// Returns all descendants of `root`.
pub fn descendants_of(root: Pid) -> BTreeSet<Pid> {
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

/// Kills every descendant of this process once, each as soon as it is found: a process that
/// repeatedly forks and exits lives for some microseconds only. Processes that are created
/// meanwhile become children of this process when their parents end; the next call finds them.
///
/// The children in `spared`, and all below them, are not killed.
pub fn kill_descendants(spared: &BTreeSet<Pid>) {
    kill_descendants_of(getpid(), spared);
}

/// Kills every descendant of `root` once, except children in `spared` and all below them.
pub fn kill_descendants_of(root: Pid, spared: &BTreeSet<Pid>) {
    let mut found = spared.clone();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children_of(parent) {
            if spared.contains(&child) {
                continue;
            }
            // It may have ended already.
            let _ = kill(child, Signal::SIGKILL);
            if found.insert(child) {
                parents.push(child);
            }
        }
    }
}

/// Reaps `pid` if it has ended.
pub fn reap(pid: Pid) -> bool {
    match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
        Ok(status) => status.pid().is_some(),
        // The status has a real-time signal, which `nix` cannot express; the process is reaped.
        Err(Errno::EINVAL) => true,
        Err(_) => false,
    }
}

/// Kills and reaps all descendants of this process; blocks until none is left.
///
/// No other part of this process may wait for a child meanwhile.
pub fn clean_up_blocking() {
    loop {
        cgroup::end_leftovers();
        kill_descendants(&BTreeSet::new());
        match waitpid(None, None) {
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => {}
            Err(_) => return,
        }
    }
}
