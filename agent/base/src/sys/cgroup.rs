//! The keeper's own cgroup, if the cgroup that it runs in was delegated to it.
//!
//! Workers that are started as new processes share one of its child cgroups, and each standby has a
//! child cgroup of its own. A standby that becomes a worker stays in its cgroup, and so do all
//! processes that its modules have started: a move could miss processes that fork at the same time.
//!
//! All processes of a child cgroup are killed by a single write, however they fork. Processes that
//! are left after a keeper was killed together with its agent are killed by the next agent that is
//! started in the same cgroup, as by a service manager. The process tree is walked in any case,
//! because most systems have no delegated cgroup.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek},
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
pub struct Cgroup {
    path: PathBuf,
    workers: ChildCgroup,
    /// The number of child cgroups that were created for standbys.
    standbys: u64,
}

/// A child cgroup, and all processes that the processes in it start.
#[derive(Debug)]
pub struct ChildCgroup {
    path: PathBuf,
    procs: File,
}

impl ChildCgroup {
    fn make(path: PathBuf) -> io::Result<Self> {
        fs::create_dir(&path)?;
        let procs = OpenOptions::new().write(true).open(path.join("cgroup.procs"));
        // No process has joined it yet.
        let procs = procs.inspect_err(|_| drop(fs::remove_dir(&path)))?;
        Ok(Self { path, procs })
    }

    /// The `cgroup.procs` of this cgroup: a process that writes `0` to it joins it.
    pub fn procs(&self) -> io::Result<OwnedFd> {
        self.procs.try_clone().map(OwnedFd::from)
    }

    /// The processes in this cgroup.
    pub fn members(&self) -> BTreeSet<Pid> {
        members(&self.path)
    }

    /// Kills every process in this cgroup.
    pub fn kill(&self) {
        kill_all(&self.path);
    }

    /// Removes this cgroup if no process is in it; returns true if it is removed.
    pub fn remove(&self) -> bool {
        fs::remove_dir(&self.path).is_ok() || !self.path.exists()
    }
}

impl Cgroup {
    /// Creates a cgroup for this process, if permitted, and kills the leftovers of earlier keepers.
    pub fn make() -> Option<Self> {
        let own = delegated()?;
        end_leftovers_in(&own);
        let pid = std::process::id();
        let path = own.join(format!("{PREFIX}{pid}-{}", proc::start_time(pid)?));
        fs::create_dir(&path).ok()?;
        match ChildCgroup::make(path.join("workers")) {
            Ok(workers) => Some(Self { path, workers, standbys: 0 }),
            Err(_) => {
                remove(&path);
                None
            }
        }
    }

    /// The child cgroup of workers that are started as new processes.
    pub fn workers(&self) -> &ChildCgroup {
        &self.workers
    }

    /// Creates the child cgroup of one standby.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed system call.
    pub fn add_standby(&mut self) -> io::Result<ChildCgroup> {
        self.standbys += 1;
        ChildCgroup::make(self.path.join(format!("standby-{}", self.standbys)))
    }
}

/// Removes a cgroup and its child cgroups, if no process is in them.
fn remove(path: &Path) {
    for child in children(path) {
        let _ = fs::remove_dir(child);
    }
    let _ = fs::remove_dir(path);
}

/// The child cgroups of a cgroup.
fn children(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir())
}

fn members(path: &Path) -> BTreeSet<Pid> {
    let members = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    members.lines().filter_map(|line| line.parse().ok()).map(Pid::from_raw).collect()
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Processes that are still in it are killed by the next keeper.
        remove(&self.path);
    }
}

/// Returns true if a cgroup was delegated to this process.
pub fn is_delegated() -> bool {
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
    for pid in children(path).chain([path.to_owned()]).flat_map(|path| members(&path)) {
        let _ = kill(pid, Signal::SIGKILL);
    }
}

/// The cgroup of this process in the hierarchy of cgroup v2, if that is mounted.
pub(crate) fn own() -> Option<PathBuf> {
    own_path(&proc::read("self/cgroup")?, &proc::read("self/mountinfo")?, None)
}

/// The cgroup of this process in the hierarchy of a controller, if cgroup v1 is mounted for it.
pub(crate) fn own_v1(controller: &str) -> Option<PathBuf> {
    own_path(&proc::read("self/cgroup")?, &proc::read("self/mountinfo")?, Some(controller))
}

/// The cgroup of this process, if systemd has marked it as delegated.
fn delegated() -> Option<PathBuf> {
    let own = own()?;
    let is_marked = |name| unix::extended_attribute(&own, name).is_some_and(|mark| mark == b"1");
    (is_marked(c"user.delegate") || is_marked(c"trusted.delegate")).then_some(own)
}

/// Returns the path of a process's cgroup: in the hierarchy of cgroup v2, or in that of cgroup v1
/// for `controller`. `cgroup` and `mountinfo` are the texts of the process's files in `/proc`.
fn own_path(cgroup: &str, mountinfo: &str, controller: Option<&str>) -> Option<PathBuf> {
    let is_in = |list: &str| list.split(',').any(|word| Some(word) == controller);
    let own = cgroup.lines().find_map(|line| match controller {
        None => line.strip_prefix("0::"),
        Some(_) => {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            is_in(controllers).then_some(path)
        }
    })?;
    mountinfo.lines().find_map(|line| {
        let (place, mount) = line.split_once(" - ")?;
        // The type of the file system, its source and its options.
        let mut mount = mount.split(' ');
        let is_hierarchy = match controller {
            None => mount.next() == Some("cgroup2"),
            Some(_) => mount.next() == Some("cgroup") && mount.nth(1).is_some_and(is_in),
        };
        if !is_hierarchy {
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
            own_path(cgroup, mounts, None).map(|path| path.to_string_lossy().into_owned())
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

    /// The path in the hierarchy of a controller is found if cgroup v1 is mounted, alone or with
    /// v2.
    #[test]
    fn own_cgroup_of_a_controller_is_found() {
        let find = |cgroup: &str, mounts: &str| {
            let path = own_path(cgroup, mounts, Some("memory"));
            path.map(|path| path.to_string_lossy().into_owned())
        };
        let host = "31 24 0:27 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n\
                    35 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n\
                    36 31 0:32 / /sys/fs/cgroup/memory rw,nosuid shared:6 - cgroup cgroup rw,memory\n";
        let step = "5:cpu,cpuacct:/\n4:memory:/slurm/uid_7/job_1/step_0\n1:name=memory:/x\n0::/y\n";
        let path = "/sys/fs/cgroup/memory/slurm/uid_7/job_1/step_0";
        assert_eq!(find(step, host).as_deref(), Some(path));
        // Controllers may share a hierarchy.
        let shared = "36 31 0:32 / /cgroup rw - cgroup none rw,cpu,memory";
        assert_eq!(find("4:cpu,memory:/a\n", shared).as_deref(), Some("/cgroup/a"));
        // Without a cgroup namespace, a container sees its own cgroup as the root of the mount.
        let container = "36 31 0:32 /docker/a /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        assert_eq!(
            find("4:memory:/docker/a\n", container).as_deref(),
            Some("/sys/fs/cgroup/memory/")
        );
        assert_eq!(find("4:memory:/docker/b\n", container), None);
        assert_eq!(find("0::/a\n", host), None);
        assert_eq!(find(step, "31 24 0:27 / /sys/fs/cgroup rw - cgroup2 memory rw,memory"), None);
    }
}
