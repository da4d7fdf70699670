//! Answers what depends on the machine: environment, names, processors, accelerators, addresses.
//!
//! Nothing else reads the environment. Tests pass a struct of their own.

use std::{
    ffi::{OsStr, OsString},
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use nix::{
    ifaddrs::getifaddrs,
    sched,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::Signal,
    },
    unistd,
};

/// What the rest of the program may ask about the machine it runs on.
pub trait Host {
    /// An environment variable; set but empty counts as set.
    fn env(&self, name: &str) -> Option<OsString>;
    /// How many processors this process may use.
    fn cpus(&self) -> NonZeroU32;
    /// How many accelerators this process may use, if there are any.
    fn accelerators(&self) -> Option<NonZeroU32>;
    /// Whether `path` is a file that this process may execute.
    fn is_executable(&self, path: &Path) -> bool;
    /// Whether there is anything at `path`.
    fn exists(&self, path: &Path) -> bool;
    /// Whether `path` is a file that this process may read.
    fn is_readable_file(&self, path: &Path) -> bool;

    /// Where a shell would find `program`, by `PATH`.
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

/// What `execvp` searches where `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisHost;

impl Host for ThisHost {
    #[expect(clippy::disallowed_methods, reason = "this is where the environment enters")]
    fn env(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    fn cpus(&self) -> NonZeroU32 {
        let this_process = unistd::Pid::from_raw(0);
        let count = sched::sched_getaffinity(this_process).map_or(1, |set| {
            (0..sched::CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).count()
        });
        u32::try_from(count).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
    }

    fn accelerators(&self) -> Option<NonZeroU32> {
        let installed = nvidia_devices(Path::new("/dev"))?;
        let Some(visible) = self.env("CUDA_VISIBLE_DEVICES") else {
            return Some(installed);
        };
        let visible = visible_devices(&visible.to_string_lossy(), installed.get());
        NonZeroU32::new(visible)
    }

    fn is_executable(&self, path: &Path) -> bool {
        path.is_file() && unistd::access(path, unistd::AccessFlags::X_OK).is_ok()
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn is_readable_file(&self, path: &Path) -> bool {
        path.is_file() && unistd::access(path, unistd::AccessFlags::R_OK).is_ok()
    }
}

/// Counts the device nodes `nvidia0`, `nvidia1`, …; a container has only those it was granted.
fn nvidia_devices(folder: &Path) -> Option<NonZeroU32> {
    let is_device = |name: &OsStr| {
        let digits = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
        digits.is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()))
    };
    let count =
        fs::read_dir(folder).ok()?.flatten().filter(|entry| is_device(&entry.file_name())).count();
    NonZeroU32::new(u32::try_from(count).ok()?)
}

/// How many of `installed` devices a value of `CUDA_VISIBLE_DEVICES` leaves: CUDA stops reading at
/// the first entry that names none.
fn visible_devices(text: &str, installed: u32) -> u32 {
    let names_one = |entry: &&str| match entry.trim().parse::<i64>() {
        Ok(index) => (0..i64::from(installed)).contains(&index),
        Err(_) => entry.trim().starts_with("GPU-") || entry.trim().starts_with("MIG-"),
    };
    let count = text.split(',').take_while(names_one).count();
    u32::try_from(count).unwrap_or(installed)
}

impl ThisHost {
    /// Whether this process was started with `signal` ignored, as `nohup` does.
    pub fn ignores(self, signal: Signal) -> bool {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
    }

    /// Lets this process open as many files as the system allows, and says how many it was given.
    ///
    /// A coordinator has a connection for each agent, and the usual soft limit is 1024. Workers get
    /// the old limit back.
    pub fn raise_open_files(self) -> u64 {
        let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return u64::MAX };
        // Where it is refused, the old limit stays.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        soft
    }

    /// The machine's host name, at least `localhost`.
    pub fn name(self) -> String {
        let name = unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        if name.is_empty() { "localhost".to_owned() } else { name }
    }

    /// The addresses of all interfaces, loopback last.
    pub fn addresses(self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = getifaddrs()
            .into_iter()
            .flatten()
            .filter_map(|interface| {
                let address = interface.address?;
                let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
                v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
            })
            .collect();
        addresses.sort_by_key(|address| (address.is_loopback(), *address));
        addresses.dedup();
        addresses
    }

    /// Whether one of this machine's interfaces has `address`.
    pub fn owns(self, address: IpAddr) -> bool {
        let is_whole_net = |ip: IpAddr| match ip {
            IpAddr::V4(v4) => v4.is_loopback() || v4 == Ipv4Addr::UNSPECIFIED,
            IpAddr::V6(v6) => v6.is_loopback() || v6 == Ipv6Addr::UNSPECIFIED,
        };
        let address = address.to_canonical();
        is_whole_net(address) || self.addresses().contains(&address)
    }

    /// The user's own folder for run-time state: `$XDG_RUNTIME_DIR`, else the temp folder.
    pub fn runtime_dir(self) -> PathBuf {
        match self.env("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
            Some(dir) => PathBuf::from(dir).join("ragent"),
            None => self.temp_dir().join(format!("ragent-{}", unistd::getuid())),
        }
    }

    /// The folder for temporary files: `$TMPDIR`, else `/tmp`.
    pub fn temp_dir(self) -> PathBuf {
        self.env("TMPDIR")
            .filter(|dir| !dir.is_empty())
            .map_or_else(|| "/tmp".into(), PathBuf::from)
    }
}

/// A machine that a test makes up.
#[cfg(test)]
#[derive(Clone, Debug, Default)]
pub(crate) struct MadeUpHost {
    /// Its environment.
    pub(crate) env: std::collections::BTreeMap<String, OsString>,
    /// Its processors; zero counts as one.
    pub(crate) cpus: u32,
    /// Its accelerators.
    pub(crate) accelerators: u32,
    /// Its files that can be executed.
    pub(crate) programs: Vec<PathBuf>,
    /// Its files that can only be read.
    pub(crate) files: Vec<PathBuf>,
}

#[cfg(test)]
impl Host for MadeUpHost {
    fn env(&self, name: &str) -> Option<OsString> {
        self.env.get(name).cloned()
    }

    fn cpus(&self) -> NonZeroU32 {
        NonZeroU32::new(self.cpus).unwrap_or(NonZeroU32::MIN)
    }

    fn accelerators(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.accelerators)
    }

    fn is_executable(&self, path: &Path) -> bool {
        self.programs.iter().any(|program| program == path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.is_readable_file(path)
    }

    fn is_readable_file(&self, path: &Path) -> bool {
        self.is_executable(path) || self.files.iter().any(|file| file == path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CUDA ignores everything from the first entry on that names no device.
    #[test]
    fn visible_devices_end_at_the_first_that_is_none() {
        assert_eq!(visible_devices("0,1,2", 8), 3);
        assert_eq!(visible_devices("0,9,1", 8), 1);
        assert_eq!(visible_devices("-1", 8), 0);
        assert_eq!(visible_devices("", 8), 0);
        assert_eq!(visible_devices("GPU-1f2e, MIG-77", 8), 2);
    }
}
