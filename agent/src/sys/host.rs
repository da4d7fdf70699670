//! Access to everything that depends on the machine: environment, names, processors, accelerators,
//! addresses.
//!
//! Nothing else reads the environment. Tests pass a struct of their own.

mod accelerators;
pub(crate) mod bridges;
pub mod numa;
mod pmi;

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU32,
    os::{fd::RawFd, unix::net::UnixStream},
    path::{Path, PathBuf},
};

use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    net::if_::{InterfaceFlags, if_nametoindex},
    sched,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal},
    },
    unistd,
};

pub use self::accelerators::Gpu;
use self::{numa::CpuSet, pmi::Pmi};
use super::{proc, unix};
use crate::limits;

/// Queries about the machine that this process runs on.
pub trait Host {
    /// An environment variable; a variable that is set but empty counts as set.
    fn env(&self, name: &str) -> Option<OsString>;
    /// The processors that this process may use.
    fn cpu_set(&self) -> CpuSet;
    /// The NVIDIA GPUs that workers may use, in the order in which CUDA numbers them.
    fn gpus(&self) -> Vec<Gpu>;
    /// Returns the content of a small file, such as one in `/sys`; `None` if it cannot be read or
    /// is not small.
    fn read(&self, path: &Path) -> Option<String>;
    /// Returns the names in a folder; empty if it cannot be read.
    fn list(&self, path: &Path) -> Vec<String>;
    /// The working directory, which workers share.
    fn current_dir(&self) -> PathBuf;
    /// Returns true if `path` is a file that this process may execute.
    fn is_executable(&self, path: &Path) -> bool;
    /// Returns true if `path` exists.
    fn exists(&self, path: &Path) -> bool;
    /// Returns true if `path` is a file of any type that this process may read.
    fn is_readable_file(&self, path: &Path) -> bool;

    /// Asks the launcher of this process, on the socket that it left open if any, for its name for
    /// this start and for the host name of rank 0: `own_host` there if given, else the machine's
    /// own name. Can be called once.
    fn ask_pmi(&self, rank: u32, own_host: Option<String>) -> Option<(String, String)>;
    /// Returns the nearest ancestor of this process in whose environment `variable` is not set.
    fn ancestor_without(&self, variable: &str) -> u32;

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

/// The length of `/sockets-4194304/4095` with its terminator.
const SOCKET_NAME: usize = 24;

/// An interface of this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its IPv4 addresses.
    pub v4: Vec<Ipv4Addr>,
    /// True if it has an IPv6 address that is not link-local.
    pub has_v6: bool,
    /// True if it is a loopback interface.
    pub is_loopback: bool,
}

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
        let Ok(set) = sched::sched_getaffinity(this_process) else {
            return CpuSet::new();
        };
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

    fn ask_pmi(&self, rank: u32, own_host: Option<String>) -> Option<(String, String)> {
        let number: RawFd = self.env("PMI_FD")?.to_str()?.parse().ok()?;
        // The number may not be that of an open file, or not of a socket.
        let socket = proc::link(&format!("self/fd/{number}"))?;
        if number <= 2 || !socket.to_string_lossy().starts_with("socket:") {
            return None;
        }
        let own_host = own_host.unwrap_or_else(|| self.name());
        let pmi = Pmi::new(UnixStream::from(unix::inherit(number))).ok()?;
        pmi.meet(rank, &own_host).ok()
    }
}

impl ThisHost {
    /// Returns true if this process was started with `signal` ignored, as `nohup` does.
    pub fn ignores(self, signal: Signal) -> bool {
        let mask = proc::field("self/status", "SigIgn");
        let mask = mask.and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        mask.is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
    }

    /// Resets inherited signal settings that would break the agent: an ignored `SIGCHLD`, and
    /// blocked signals. Ignores `SIGXFSZ`, so that reaching the file size limit is an error of the
    /// write, not the end of the process.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal.
    pub fn settle_signals(self) -> io::Result<()> {
        let action = |handler| SigAction::new(handler, SaFlags::empty(), SigSet::empty());
        unix::set_disposition(Signal::SIGCHLD, &action(SigHandler::SigDfl))?;
        unix::set_disposition(Signal::SIGXFSZ, &action(SigHandler::SigIgn))?;
        SigSet::empty().thread_set_mask()?;
        Ok(())
    }

    /// Raises the limit of open files to the hard limit; returns the old limit and the present one.
    ///
    /// A coordinator has a connection for each agent, and the usual soft limit is 1024. Workers get
    /// the old limit back.
    pub fn raise_open_files(self) -> (u64, u64) {
        let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
            return (u64::MAX, u64::MAX);
        };
        // If the system refuses, the old limit stays.
        let is_raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
        (soft, if is_raised { hard } else { soft })
    }

    /// Disables core dumps of this process, which would contain secrets; returns the old limit,
    /// which workers get back. systemd-coredump respects the limit, too.
    ///
    /// `PR_SET_DUMPABLE` is not used: under `hidepid=2` it would hide the process from its own
    /// user.
    pub fn forgo_core_dumps(self) -> u64 {
        let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_CORE) else {
            return u64::MAX;
        };
        // Lowering a soft limit is not refused.
        let _ = setrlimit(Resource::RLIMIT_CORE, 0, hard);
        soft
    }

    /// The machine's host name; `localhost` if it has none.
    pub fn name(self) -> String {
        let name = unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
        if name.is_empty() { "localhost".to_owned() } else { name }
    }

    /// The addresses of all interfaces, loopback last.
    pub fn addresses(self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> =
            self.interface_addresses().into_iter().map(|(_, address)| address).collect();
        addresses.sort_by_key(|address| (address.is_loopback(), *address));
        addresses.dedup();
        addresses
    }

    /// The addresses of this machine, each with the name of its interface.
    pub fn interface_addresses(self) -> Vec<(String, IpAddr)> {
        getifaddrs()
            .into_iter()
            .flatten()
            .filter_map(|interface| {
                let address = interface.address?;
                let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
                let ip = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
                Some((interface.interface_name, ip))
            })
            .collect()
    }

    /// The interfaces that can multicast, restricted to `name` if given; loopback only if there is
    /// no other.
    pub fn multicast_interfaces(self, name: Option<&str>) -> Vec<Interface> {
        let mut found: BTreeMap<String, Interface> = BTreeMap::new();
        for entry in getifaddrs().into_iter().flatten() {
            let flags = entry.flags;
            let is_loopback = flags.contains(InterfaceFlags::IFF_LOOPBACK);
            let can = is_loopback || flags.contains(InterfaceFlags::IFF_MULTICAST);
            let is_wanted = name.is_none_or(|name| name == entry.interface_name);
            let Some(address) = entry.address.filter(|_| can && is_wanted) else { continue };
            if !flags.contains(InterfaceFlags::IFF_UP) {
                continue;
            }
            let Ok(index) = if_nametoindex(entry.interface_name.as_str()) else { continue };
            let name = entry.interface_name.clone();
            let interface = found.entry(entry.interface_name).or_insert_with(|| Interface {
                name,
                index,
                v4: Vec::new(),
                has_v6: false,
                is_loopback,
            });
            interface.v4.extend(address.as_sockaddr_in().map(|address| address.ip()));
            let v6 = address.as_sockaddr_in6().map(|address| address.ip());
            interface.has_v6 |= v6.is_some_and(|address| !address.is_unicast_link_local());
        }
        let has_others = found.values().any(|interface| !interface.is_loopback);
        let is_used = |interface: &Interface| !(interface.is_loopback && has_others);
        found.into_values().filter(is_used).take(limits::MAX_INTERFACES).collect()
    }

    /// The name of the interface that has `address`.
    pub fn interface_of(self, address: IpAddr) -> Option<String> {
        let has = |interface: &InterfaceAddress| {
            let found = interface.address?;
            let v4 = found.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            let ip = v4.or_else(|| found.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))?;
            (ip == address).then_some(())
        };
        let mut interfaces = getifaddrs().into_iter().flatten();
        interfaces.find(|interface| has(interface).is_some()).map(|found| found.interface_name)
    }

    /// Returns true if one of this machine's interfaces has `address`.
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

    /// A subfolder of the folder that a service manager keeps while it restarts this process:
    /// `$RUNTIME_DIRECTORY`, which systemd sets for `RuntimeDirectory=`. A subfolder, because that
    /// folder may be open to others.
    pub fn service_dir(self) -> Option<PathBuf> {
        let dirs = self.env("RUNTIME_DIRECTORY")?;
        let dir = std::env::split_paths(&dirs).next().filter(|dir| dir.is_absolute())?;
        Some(dir.join("ragent"))
    }

    /// The folder in which a restarted agent finds the state of its predecessor.
    pub fn state_dir(self) -> PathBuf {
        self.service_dir().unwrap_or_else(|| self.runtime_dir())
    }

    /// The user's own folder in which the paths of Unix sockets are short enough.
    pub fn socket_dir(self) -> PathBuf {
        let own = format!("ragent-{}", unistd::getuid());
        let fits = |path: &PathBuf| path.as_os_str().len() + SOCKET_NAME < limits::MAX_SOCKET_PATH;
        let dirs = [self.runtime_dir(), self.temp_dir().join(&own)];
        dirs.into_iter().find(fits).unwrap_or_else(|| Path::new("/tmp").join(own))
    }

    /// The folder for temporary files: `$TMPDIR` if that is a folder, else `/tmp`, as for Python.
    pub fn temp_dir(self) -> PathBuf {
        let named = self.env("TMPDIR").map(PathBuf::from);
        named.filter(|dir| dir.is_dir()).unwrap_or_else(|| "/tmp".into())
    }
}

/// A fake machine for tests.
#[cfg(test)]
#[derive(Clone, Debug, Default)]
pub(crate) struct MadeUpHost {
    /// Its environment.
    pub(crate) env: BTreeMap<String, OsString>,
    /// The number of its processors.
    pub(crate) cpus: u32,
    /// Its GPUs.
    pub(crate) gpus: Vec<Gpu>,
    /// The contents of its small files.
    pub(crate) contents: BTreeMap<PathBuf, String>,
    /// Its executable files.
    pub(crate) programs: Vec<PathBuf>,
    /// Its files that are only readable.
    pub(crate) files: Vec<PathBuf>,
}

#[cfg(test)]
impl MadeUpHost {
    /// Adds a small file.
    pub(crate) fn put(&mut self, path: &str, text: &str) {
        self.contents.insert(path.into(), text.to_owned());
    }
}

#[cfg(test)]
impl Host for MadeUpHost {
    fn env(&self, name: &str) -> Option<OsString> {
        self.env.get(name).cloned()
    }

    fn cpu_set(&self) -> CpuSet {
        (0..self.cpus).collect()
    }

    fn gpus(&self) -> Vec<Gpu> {
        self.gpus.clone()
    }

    fn read(&self, path: &Path) -> Option<String> {
        self.contents.get(path).cloned()
    }

    fn list(&self, path: &Path) -> Vec<String> {
        let below = self.contents.keys().filter_map(|file| file.strip_prefix(path).ok());
        let names = below.filter_map(|rest| rest.iter().next()?.to_str().map(str::to_owned));
        let names: std::collections::BTreeSet<String> = names.collect();
        names.into_iter().collect()
    }

    fn current_dir(&self) -> PathBuf {
        "/here".into()
    }

    fn is_executable(&self, path: &Path) -> bool {
        self.programs.iter().any(|program| program == path)
    }

    fn exists(&self, path: &Path) -> bool {
        self.is_readable_file(path)
    }

    fn ask_pmi(&self, _: u32, _: Option<String>) -> Option<(String, String)> {
        None
    }

    fn ancestor_without(&self, _: &str) -> u32 {
        4711
    }

    fn is_readable_file(&self, path: &Path) -> bool {
        self.is_executable(path)
            || self.contents.contains_key(path)
            || self.files.iter().any(|file| file == path)
    }
}
