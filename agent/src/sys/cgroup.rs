//! The keeper's own cgroup, if the cgroup that it runs in was delegated to it.
//!
//! All processes that the keeper starts run in one of its two child cgroups: workers, or standbys.
//! All processes of a child cgroup are killed by a single write, however they fork. Processes that
//! are left after a keeper was killed together with its agent are killed by the next agent that is
//! started in the same cgroup, as by a service manager. The process tree is walked in any case,
//! because most systems have no delegated cgroup.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{clock, proc, unix};
use crate::sys::limits;

/// A cgroup. Dropping it removes it if it is empty.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    workers: File,
    standbys: File,
}

/// A child cgroup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ChildCgroup {
    /// Workers, and all that they have started.
    Workers,
    /// Standbys without a round.
    Standbys,
}

impl ChildCgroup {
    const ALL: [Self; 2] = [Self::Workers, Self::Standbys];

    fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Standbys => "standbys",
        }
    }
}

impl Cgroup {
    /// Creates a cgroup for this process, if permitted, and kills the leftovers of earlier keepers.
    pub(crate) fn make() -> Option<Self> {
        let own = delegated()?;
        end_leftovers_in(&own);
        let pid = std::process::id();
        let path = own.join(format!("{PREFIX}{pid}-{}", proc::start_time(pid)?));
        fs::create_dir(&path).ok()?;
        match (make_part(&path, ChildCgroup::Workers), make_part(&path, ChildCgroup::Standbys)) {
            (Ok(workers), Ok(standbys)) => Some(Self { path, workers, standbys }),
            (Err(_), _) | (_, Err(_)) => {
                remove(&path);
                None
            }
        }
    }

    /// The `cgroup.procs` of a child cgroup: a process that writes `0` to it joins it.
    pub(crate) fn procs(&self, part: ChildCgroup) -> io::Result<OwnedFd> {
        self.file(part).try_clone().map(OwnedFd::from)
    }

    /// Moves the process `pid` to a child cgroup.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed system call.
    pub(crate) fn move_to(&self, part: ChildCgroup, pid: u32) -> io::Result<()> {
        let mut file = self.file(part);
        file.write_all(pid.to_string().as_bytes())
    }

    /// Kills every process in a child cgroup.
    pub(crate) fn kill(&self, part: ChildCgroup) {
        kill_all(&self.path.join(part.name()));
    }

    fn file(&self, part: ChildCgroup) -> &File {
        match part {
            ChildCgroup::Workers => &self.workers,
            ChildCgroup::Standbys => &self.standbys,
        }
    }
}

fn make_part(path: &Path, part: ChildCgroup) -> io::Result<File> {
    let path = path.join(part.name());
    fs::create_dir(&path)?;
    OpenOptions::new().write(true).open(path.join("cgroup.procs"))
}

/// Removes a cgroup and its parts, if no process is in them.
fn remove(path: &Path) {
    for part in ChildCgroup::ALL {
        let _ = fs::remove_dir(path.join(part.name()));
    }
    let _ = fs::remove_dir(path);
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Processes that are still in it are killed by the next keeper.
        remove(&self.path);
    }
}

/// Returns true if a cgroup was delegated to this process.
pub(crate) fn is_delegated() -> bool {
    delegated().is_some()
}

/// Kills the processes that killed keepers have left in this process's cgroup.
pub(crate) fn end_leftovers() {
    if let Some(own) = delegated() {
        end_leftovers_in(&own);
    }
}

fn end_leftovers_in(own: &Path) {
    let entries = fs::read_dir(own).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(|path| is_left(path)) {
        kill_all(&path);
        wait_until_empty(&path);
        // Processes that cannot be killed are left to the next keeper.
        remove(&path);
    }
}

/// Waits until the kernel reports in `cgroup.events` that the cgroup is empty.
fn wait_until_empty(path: &Path) {
    let Ok(mut events) = File::open(path.join("cgroup.events")) else { return };
    let until = clock::now_blocking() + limits::LEFTOVER_TIMEOUT;
    loop {
        let mut text = String::new();
        let read = events.rewind().and_then(|()| events.read_to_string(&mut text));
        if read.is_err() || text.lines().any(|line| line == "populated 0") {
            return;
        }
        let left = until.saturating_duration_since(clock::now_blocking());
        let mut watched = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
        let limit = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        if left.is_zero() || poll(&mut watched, limit).is_err() {
            return;
        }
    }
}

/// Returns true if `path` is the cgroup of a keeper that is gone.
fn is_left(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let numbers = name.and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
    let Some((pid, began)) = numbers else { return false };
    let began = began.parse::<u64>().ok();
    began.is_some() && pid.parse().is_ok_and(|pid| proc::start_time(pid) != began)
}

fn kill_all(path: &Path) {
    if fs::write(path.join("cgroup.kill"), "1").is_ok() {
        return;
    }
    // Linux before 5.14.
    for part in [None, Some(ChildCgroup::Workers), Some(ChildCgroup::Standbys)] {
        let path = part.map_or_else(|| path.to_owned(), |part| path.join(part.name()));
        let members = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines().filter_map(|line| line.parse().ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// The cgroup of this process, if it is mounted.
pub(crate) fn own() -> Option<PathBuf> {
    own_path(&proc::read("self/cgroup")?, &proc::read("self/mountinfo")?)
}

/// The cgroup of this process, if systemd has marked it as delegated.
fn delegated() -> Option<PathBuf> {
    let own = own()?;
    let is_marked = |name| unix::extended_attribute(&own, name).is_some_and(|mark| mark == b"1");
    (is_marked(c"user.delegate") || is_marked(c"trusted.delegate")).then_some(own)
}

/// Returns the path of a process's cgroup. `cgroup` and `mountinfo` are the texts of its files in
/// `/proc`.
fn own_path(cgroup: &str, mountinfo: &str) -> Option<PathBuf> {
    let own = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    mountinfo.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = place.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = Path::new(own).strip_prefix(root).ok()?;
        Some(Path::new(point).join(below))
    })
}

const PREFIX: &str = "ragent-";

#[cfg(test)]
mod tests {
    use super::*;

    /// The path is found for every mounted part of the hierarchy and every mount point.
    #[test]
    fn own_cgroup_is_found() {
        let find = |cgroup: &str, mounts: &str| {
            own_path(cgroup, mounts).map(|path| path.to_string_lossy().into_owned())
        };
        let host = "24 19 0:21 / /sys rw - sysfs sysfs rw\n\
                    31 24 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let unit = "0::/system.slice/ragent@a.service\n";
        let path = "/sys/fs/cgroup/system.slice/ragent@a.service";
        assert_eq!(find(unit, host).as_deref(), Some(path));
        let part = "31 24 0:27 /pod7 /cgroup rw - cgroup2 none rw";
        assert_eq!(find("0::/pod7/x\n", part).as_deref(), Some("/cgroup/x"));
        assert_eq!(find("0::/pod8\n", part), None);
        assert_eq!(find("4:memory:/a\n0::/a\n", host).as_deref(), Some("/sys/fs/cgroup/a"));
        assert_eq!(find("4:memory:/a\n", host), None);
        assert_eq!(find("0::/\n", "1 2 0:3 / /x rw - cgroup cgroup rw,memory"), None);
    }
}
