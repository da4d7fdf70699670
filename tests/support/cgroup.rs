//! Makes a cgroup for one test, as a service manager makes for a unit.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use nix::{sys::signal::Signal, unistd::geteuid};

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
            let _ = fs::write(self.0.join("cgroup.kill"), "1");
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
