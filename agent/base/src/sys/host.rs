//! Access to everything that depends on the machine: environment, names, processors, accelerators,
//! addresses.
//!
//! Nothing else reads the environment. Tests pass a struct of their own.

mod accelerators;
pub mod bridges;
#[cfg(any(test, feature = "testing"))]
mod fake;
mod folders;
mod interfaces;
pub mod numa;
mod pmi;
mod process;
mod rdma_ports;
mod scheduling;

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::Read,
    num::NonZeroU32,
    os::{fd::RawFd, unix::net::UnixStream},
    path::{Path, PathBuf},
};

use nix::{sched, sys::statfs::statfs, unistd};

#[cfg(any(test, feature = "testing"))]
pub use self::fake::FakeHost;
pub use self::{accelerators::Gpu, interfaces::Interface, rdma_ports::rdma_ports};
use self::{numa::CpuSet, pmi::Pmi};
use super::{proc, unix};
use crate::sys::limits;

/// Queries about the machine that this process runs on.
pub trait Host {
    /// An environment variable; a variable that is set but empty counts as set.
    fn env(&self, name: &str) -> Option<OsString>;
    /// The processors that this process may use.
    fn cpu_set(&self) -> CpuSet;
    /// The NVIDIA GPUs that workers may use, in the order of CUDA.
    fn gpus(&self) -> Vec<Gpu>;
    /// Returns the content of a small file, such as one in `/sys`; `None` if it cannot be read or
    /// is not small.
    fn read(&self, path: &Path) -> Option<String>;
    /// Returns the names in a folder; empty if it cannot be read.
    fn list(&self, path: &Path) -> Vec<String>;
    /// Returns the absolute folders of this program: the one where it was called, which may have a link to it,
    /// and that of the file itself.
    fn program_folders(&self) -> Vec<PathBuf>;
    /// The working directory, which workers share.
    fn current_dir(&self) -> PathBuf;
    /// Returns true if `path` is a file that this process may execute.
    fn is_executable(&self, path: &Path) -> bool;
    /// Returns true if `path` exists.
    fn exists(&self, path: &Path) -> bool;
    /// Returns true if `path` is a file of any type that this process may read.
    fn is_readable_file(&self, path: &Path) -> bool;
    /// Returns true if `path` is on a network file system, which other machines can have mounted as well.
    fn is_on_network(&self, path: &Path) -> bool;

    /// Asks the launcher of this process, on the socket that it left open if any, for its name for
    /// this start and for the host name of rank 0: `own_host` there if given, else the machine's
    /// own name. Can be called once.
    fn ask_pmi(&self, rank: u32, own_host: Option<String>) -> Option<(String, String)>;
    /// Returns the nearest ancestor of this process in whose environment `variable` is not set.
    fn ancestor_without(&self, variable: &str) -> u32;
    /// Returns the name of the program that has started this process; `None` if it is not visible, for example in a container.
    fn parent_name(&self) -> Option<String>;

    /// The number of processors that this process may use.
    fn cpus(&self) -> NonZeroU32 {
        count(self.cpu_set().len()).unwrap_or(NonZeroU32::MIN)
    }

    /// The number of GPUs that workers may use as `cuda`, if any: NVIDIA's, else AMD's.
    fn gpu_count(&self) -> Option<NonZeroU32>
    where
        Self: Sized,
    {
        count(self.gpus().len()).or_else(|| count(accelerators::amd(self)))
    }

    /// The number of GPUs that workers may use as `xpu`, if any: Intel's.
    fn xpu_count(&self) -> Option<NonZeroU32>
    where
        Self: Sized,
    {
        accelerators::intel(self)
    }

    /// Finds `program` as a shell would, in `PATH`.
    fn find_program(&self, program: &OsStr) -> Option<PathBuf> {
        if program.as_encoded_bytes().contains(&b'/') {
            let path = PathBuf::from(program);
            return self.is_executable(&path).then_some(path);
        }
        let path = self.env("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        std::env::split_paths(&path)
            .map(|folder| folder.join(program))
            .find(|candidate| self.is_executable(candidate))
    }
}

fn count(len: usize) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(len).ok()?)
}

/// The folders that `execvp` searches if `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The numbers of network file systems in `statfs(2)`, and of Lustre, GPFS and BeeGFS in their sources.
const NETWORK_FILE_SYSTEMS: [u32; 10] = [
    0x6969,      // NFS
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
    0x00c3_6400, // CephFS
    0x1983_0326, // BeeGFS
    0x5346_414f, // AFS
    0x6b41_4653, // AFS of the kernel
    0x517b,      // SMB
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB 2
];

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisHost;

impl Host for ThisHost {
    #[expect(clippy::disallowed_methods, reason = "this is where the environment enters")]
    fn env(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    fn cpu_set(&self) -> CpuSet {
        let this_process = unistd::Pid::from_raw(0);
        let Ok(set) = sched::sched_getaffinity(this_process) else { return CpuSet::new() };
        let numbers = (0u32..).zip(0..sched::CpuSet::count());
        numbers.filter(|(_, cpu)| set.is_set(*cpu).unwrap_or(false)).map(|(cpu, _)| cpu).collect()
    }

    fn gpus(&self) -> Vec<Gpu> {
        let installed = accelerators::nvidia();
        match self.env("CUDA_VISIBLE_DEVICES") {
            Some(text) => accelerators::visible(&text.to_string_lossy(), &installed),
            None => installed,
        }
    }

    fn read(&self, path: &Path) -> Option<String> {
        let mut text = String::new();
        let file = File::open(path).ok()?;
        file.take(limits::MAX_SMALL_FILE + 1).read_to_string(&mut text).ok()?;
        (text.len() as u64 <= limits::MAX_SMALL_FILE).then_some(text)
    }

    fn list(&self, path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn program_folders(&self) -> Vec<PathBuf> {
        let Ok(program) = std::env::current_exe() else { return Vec::new() };
        // The name may be any text: other programs of that name do not count.
        let is_this = |path: &PathBuf| fs::canonicalize(path).is_ok_and(|real| real == program);
        let called = std::env::args_os().next().and_then(|name| self.find_program(&name));
        let called = called.map(|path| self.current_dir().join(path)).filter(is_this);
        let files = called.into_iter().chain([program.clone()]);
        files.filter_map(|file| Some(file.parent()?.to_owned())).collect()
    }

    fn current_dir(&self) -> PathBuf {
        // A folder that was removed no longer has a name, and nothing can be created in it.
        std::env::current_dir().unwrap_or_else(|_| ".".into())
    }

    fn is_executable(&self, path: &Path) -> bool {
        path.is_file() && unistd::access(path, unistd::AccessFlags::X_OK).is_ok()
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn is_readable_file(&self, path: &Path) -> bool {
        !path.is_dir() && unistd::access(path, unistd::AccessFlags::R_OK).is_ok()
    }

    fn is_on_network(&self, path: &Path) -> bool {
        let of_path = statfs(path).map(|about| about.filesystem_type().0);
        // The width of the number depends on the platform, and its upper half on the sign.
        of_path.is_ok_and(|number| NETWORK_FILE_SYSTEMS.contains(&(number as u32)))
    }

    fn ancestor_without(&self, variable: &str) -> u32 {
        let mut pid = unistd::getppid().as_raw().cast_unsigned();
        for _ in 0..limits::MAX_ANCESTORS {
            if pid <= 1 || !proc::has_variable(pid, variable) {
                break;
            }
            pid = proc::stat(pid).map_or(1, |stat| stat.parent);
        }
        pid
    }

    fn parent_name(&self) -> Option<String> {
        let name = proc::read(&format!("{}/comm", unistd::getppid()))?;
        Some(name.trim_end().to_owned())
    }

    fn ask_pmi(&self, rank: u32, own_host: Option<String>) -> Option<(String, String)> {
        let number: RawFd = self.env("PMI_FD")?.to_str()?.parse().ok()?;
        // The number may not be that of an open file, or not of a socket.
        let socket = proc::link(&format!("self/fd/{number}"))?;
        if number <= 2 || !socket.to_string_lossy().starts_with("socket:") {
            return None;
        }
        let own_host = own_host.unwrap_or_else(|| self.name());
        let pmi = Pmi::new(UnixStream::from(unix::inherit(number))).ok()?;
        pmi.exchange_head(rank, &own_host).ok()
    }
}

impl ThisHost {
    /// Returns the folders of `PATH` that have `program`, without repetitions, in the order that a shell searches
    /// them.
    pub fn folders_in_path(self, program: &str) -> Vec<PathBuf> {
        let path = self.env("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
        let mut found = Vec::new();
        for folder in std::env::split_paths(&path) {
            let folder = fs::canonicalize(&folder).unwrap_or(folder);
            if self.is_executable(&folder.join(program)) && !found.contains(&folder) {
                found.push(folder);
            }
        }
        found
    }

    /// The machine's host name; `localhost` if it has none.
    pub fn name(self) -> String {
        let name = unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        if name.is_empty() { "localhost".to_owned() } else { name }
    }
}
