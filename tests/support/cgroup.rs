//! Makes a cgroup for one test, as a service manager makes for a unit.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use nix::{
    sys::signal::Signal,
    unistd::{Pid, geteuid},
};

use super::{Sandbox, Start, is_there, kill, skip};

/// A cgroup, marked as delegated. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup. If that is impossible, prints why and returns `None`.
    pub fn delegated(name: &str) -> Option<Self> {
        /// The number of cgroups that this process has created: tests run at the same time.
        static CREATED: AtomicU32 = AtomicU32::new(0);

        if !geteuid().is_root() {
            skip("cgroups want root");
            return None;
        }
        if !is_there("python3") {
            return None;
        }
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let Some(mount) = mounts.find(|fields| fields.get(2) == Some(&"cgroup2")) else {
            skip("no cgroup2 is mounted");
            return None;
        };
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{name}-{}-{number}", std::process::id());
        let path = PathBuf::from(mount[1]).join(name);
        if let Err(error) = fs::create_dir(&path) {
            skip(&format!("{}: {error}", path.display()));
            return None;
        }
        let cgroup = Self(path);
        let mark = "import os, sys; os.setxattr(sys.argv[1], 'trusted.delegate', b'1')";
        let marked = Command::new("python3").arg("-c").arg(mark).arg(&cgroup.0).status();
        assert!(marked.is_ok_and(|status| status.success()), "cannot mark {}", cgroup.0.display());
        Some(cgroup)
    }

    /// Creates a cgroup whose processes may use this many bytes of memory: of version 1 or 2, as the memory controller is mounted.
    /// If that is impossible, prints why and returns `None`.
    pub fn limited(name: &str, bytes: u64) -> Option<Self> {
        if !geteuid().is_root() {
            skip("cgroups want root");
            return None;
        }
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mounts: Vec<Vec<&str>> = mounts.lines().map(|line| line.split(' ').collect()).collect();
        let v1 = mounts.iter().find(|fields| {
            fields.get(2) == Some(&"cgroup")
                && fields.get(3).is_some_and(|options| options.split(',').any(|o| o == "memory"))
        });
        let v2 = || mounts.iter().find(|fields| fields.get(2) == Some(&"cgroup2"));
        let mount = v1.or_else(v2).and_then(|fields| fields.get(1));
        let limit = if v1.is_some() { "memory.limit_in_bytes" } else { "memory.max" };
        let Some(mount) = mount.map(Path::new) else {
            skip("no cgroups are mounted");
            return None;
        };
        if v1.is_none() {
            // It may be enabled already.
            let _ = fs::write(mount.join("cgroup.subtree_control"), "+memory");
        }
        let path = mount.join(format!("test-{name}-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&path) {
            skip(&format!("{}: {error}", path.display()));
            return None;
        }
        let cgroup = Self(path);
        if let Err(error) = fs::write(cgroup.0.join(limit), bytes.to_string()) {
            skip(&format!("memory is not limited in {}: {error}", cgroup.0.display()));
            return None;
        }
        Some(cgroup)
    }

    /// Returns `ragent` with these arguments, to be started in the cgroup.
    pub fn ragent(&self, sandbox: &Sandbox, words: &str) -> Start {
        let (words, gate) = sandbox.job(words);
        let script = format!(
            "echo 0 >{}/cgroup.procs; exec {} {words}",
            self.0.display(),
            env!("CARGO_BIN_EXE_ragent")
        );
        sandbox.program("bash").arg("-c").arg(script).gated_by(gate)
    }

    /// The path of the cgroup.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The number of its processes that the kernel has killed for lack of memory.
    pub fn oom_kills(&self) -> u64 {
        let read = |file| fs::read_to_string(self.0.join(file)).ok();
        let text = read("memory.events").or_else(|| read("memory.oom_control")).unwrap_or_default();
        let number = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        number.and_then(|number| number.parse().ok()).expect("the kernel counts them")
    }

    /// The names of the child cgroups.
    pub fn below(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.path().is_dir());
        folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// The processes in the cgroup and in all below it.
    pub fn members(&self) -> Vec<u32> {
        let files = tree(&self.0).into_iter().map(|path| path.join("cgroup.procs"));
        let lists: Vec<String> = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
        lists.iter().flat_map(|list| list.lines()).filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Signals all of its processes, as a service manager does when it stops a unit.
    pub fn signal(&self, signal: Signal) {
        for pid in self.members() {
            kill(pid, signal);
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Bounded, since all processes in it were started by this test and die at once.
        for _ in 0..10_000 {
            if fs::write(self.0.join("cgroup.kill"), "1").is_err() {
                // Version 1, or Linux before 5.14. A process may have ended meanwhile.
                for pid in self.members() {
                    let pid = Pid::from_raw(pid.cast_signed());
                    let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
                }
            }
            for path in tree(&self.0) {
                let _ = fs::remove_dir(path);
            }
            if !self.0.exists() {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Returns all cgroups below `path`, the lowest ones first, and then `path` itself.
fn tree(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let below = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    below.flat_map(|path| tree(&path)).chain([path.to_owned()]).collect()
}
