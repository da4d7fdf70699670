//! Checks the resources and limits of this machine.

use std::{num::NonZeroU32, path::Path};

use nix::sys::{
    resource::{RLIM_INFINITY, Resource, getrlimit},
    statvfs::statvfs,
    utsname::uname,
};
use nvml_wrapper::{Nvml, error::NvmlError};
use ragent_base::sys::{
    cgroup,
    host::{Host, ThisHost},
    proc,
};
use ragent_workers::health::hardware;

use ragent_core::hardware::Reading;

use super::{Finding, Findings, python, within};
use crate::commands::doctor::limits;

pub(super) async fn examine(workers: Option<NonZeroU32>, findings: &mut Findings) {
    findings.report(kernel());
    let gpus = || ThisHost.gpu_count().map_or(1, |count| count.get());
    let workers = match workers {
        Some(workers) => workers.get(),
        // If the driver does not answer, the finding of the GPU check reports it.
        None => within("gpu", gpus).await.unwrap_or(1),
    };
    for finding in resource_limits(workers) {
        findings.report(finding);
    }
    findings.report_check("shm", shared_memory).await;
    findings.report_check("gpu", gpu).await;
    match within("hardware", hardware::read_once).await {
        Ok(reading) => of_hardware(&reading).into_iter().for_each(|found| findings.report(found)),
        Err(silent) => findings.report(silent),
    }
    python::examine(findings).await;
    findings.report_check("cgroup", cgroup).await;
    findings.report_check("service", service_manager).await;
}

fn kernel() -> Finding {
    let release = uname().map(|name| name.release().to_string_lossy().into_owned());
    let release = release.unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (4, 18) {
        return Finding::fail(
            "kernel",
            format!("Linux {release}"),
            "Linux 4.18 or newer is required",
        );
    }
    match proc::check_children() {
        Ok(()) => Finding::pass("kernel", format!("Linux {release}")),
        Err(error) => Finding::fail(
            "kernel",
            format!("Linux {release} does not list the descendants of this process: {error}"),
            "mount /proc, and use a kernel with CONFIG_PROC_CHILDREN",
        ),
    }
}

fn resource_limits(workers: u32) -> [Finding; 3] {
    let limit = |resource| getrlimit(resource).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
    [
        open_files(limit(Resource::RLIMIT_NOFILE).1, workers),
        processes(limit(Resource::RLIMIT_NPROC).0, workers),
        locked_memory(limit(Resource::RLIMIT_MEMLOCK).0, has_rdma()),
    ]
}

/// Checks the hard limit of open files. The agent raises its own limit to it.
fn open_files(hard: u64, workers: u32) -> Finding {
    let needed = limits::MIN_OPEN_FILES + limits::OPEN_FILES_PER_WORKER * u64::from(workers);
    let text = format!("limit of open files: {}", number(hard));
    let hint = "raise the hard limit: `ulimit -Hn`, `LimitNOFILE=`, limits.conf(5)";
    if hard < needed {
        return Finding::fail("nofile", format!("{text}; {workers} workers need {needed}"), hint);
    }
    // A worker has thousands of files if it has many data loaders and connections to all other workers.
    if hard < COMFORTABLE_FILES {
        let text =
            format!("{text}; a worker with many data loaders needs up to {COMFORTABLE_FILES}");
        Finding::warn("nofile", text, hint)
    } else {
        Finding::pass("nofile", text)
    }
}

/// The limit that Linux distributions set for services.
const COMFORTABLE_FILES: u64 = 65_536;

/// Checks the limit of threads: workers start some hundred each.
fn processes(soft: u64, workers: u32) -> Finding {
    let text = format!("limit of processes and threads: {}", number(soft));
    if soft < 512 * u64::from(workers) {
        let hint = format!("{workers} workers with data loaders may need more: `ulimit -u`");
        return Finding::warn("nproc", text, hint);
    }
    Finding::pass("nproc", text)
}

/// Checks the limit of locked memory, which RDMA network cards need.
fn locked_memory(soft: u64, has_rdma: bool) -> Finding {
    let text = if soft == RLIM_INFINITY {
        "limit of locked memory: unlimited".to_owned()
    } else {
        format!("limit of locked memory: {}", size(soft))
    };
    if soft == RLIM_INFINITY || !has_rdma {
        return Finding::pass("memlock", text);
    }
    let hint = "RDMA needs unlimited locked memory: `ulimit -l unlimited`, `LimitMEMLOCK=infinity`";
    Finding::warn("memlock", text, hint)
}

fn has_rdma() -> bool {
    !ThisHost.list(Path::new("/sys/class/infiniband")).is_empty()
}

fn shared_memory() -> Finding {
    match statvfs("/dev/shm") {
        Ok(found) => shared_memory_of(found.fragment_size() * found.blocks_available()),
        Err(error) => Finding::fail(
            "shm",
            format!("/dev/shm cannot be used: {error}"),
            "mount a tmpfs there: data loaders and NCCL use it",
        ),
    }
}

fn shared_memory_of(free: u64) -> Finding {
    let text = format!("{} free in /dev/shm", size(free));
    if free >= COMFORTABLE_SHM {
        return Finding::pass("shm", text);
    }
    let hint = "data loaders and NCCL need more: raise `--shm-size` of the container, or mount \
                an emptyDir in memory";
    Finding::warn("shm", text, hint)
}

/// Containers have 64 MiB by default; NCCL alone takes some ten for each GPU.
const COMFORTABLE_SHM: u64 = 1 << 30;

fn gpu() -> Finding {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(error) => {
            let others = ThisHost.gpu_count().map_or(0, |count| count.get());
            if others > 0 {
                return Finding::pass("gpu", format!("{others} GPUs, which NVML does not list"));
            }
            let hint = "expected without NVIDIA GPUs; otherwise check that the driver is installed \
                        and loaded, and that the container has the device";
            return Finding::warn("gpu", format!("no GPU found: {}", without_driver(&error)), hint);
        }
    };
    let driver = nvml.sys_driver_version().unwrap_or_else(|_| "unknown".to_owned());
    let installed = nvml.device_count().unwrap_or(0);
    let visible = ThisHost.gpus().len();
    let name = nvml.device_by_index(0).and_then(|gpu| gpu.name()).unwrap_or_default();
    let text = format!("{visible} of {installed} GPUs visible ({name}), driver {driver}");
    if visible == 0 {
        let hint = "check CUDA_VISIBLE_DEVICES, and that the machine has GPUs";
        return Finding::warn("gpu", text, hint);
    }
    Finding::pass("gpu", text)
}

/// Judges the state of GPUs and network ports. A machine without any has no finding.
fn of_hardware(reading: &Reading) -> Vec<Finding> {
    let Some(devices) = reading.devices() else { return Vec::new() };
    let bad = reading.findings();
    if !bad.is_empty() {
        let finding = |(text, remedy)| Finding::warn("hardware", text, remedy);
        return bad.into_iter().map(finding).collect();
    }
    let ports = reading.ports.iter().flatten().filter(|port| !port.is_active);
    let idle: Vec<&str> = ports.map(|port| port.name.as_str()).collect();
    let text = match &idle[..] {
        [] => format!("{devices}: nothing unusual"),
        [port] => format!("{devices}: nothing unusual (port {port} is not active)"),
        ports => format!("{devices}: nothing unusual (ports {} are not active)", ports.join(", ")),
    };
    vec![Finding::pass("hardware", text)]
}

/// Describes why the driver's library cannot be used.
fn without_driver(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) => {
            "the library of the NVIDIA driver (libnvidia-ml.so.1) is not installed".to_owned()
        }
        error => error.to_string(),
    }
}

fn cgroup() -> Finding {
    if cgroup::is_delegated() {
        return Finding::pass(
            "cgroup",
            "delegated: all processes that workers start end with their agent",
        );
    }
    let hint = "processes can remain only if agent and keeper are killed at the same time; \
                `Delegate=yes` prevents that";
    Finding::pass(
        "cgroup",
        format!("not delegated: the keeper ends the processes that workers start ({hint})"),
    )
}

fn service_manager() -> Finding {
    let has_socket = ThisHost.env("NOTIFY_SOCKET").is_some_and(|path| !path.is_empty());
    let text = match (has_socket, ThisHost.exists(Path::new("/run/systemd/system"))) {
        (true, _) => "this process is a service; its manager receives status notifications",
        (false, true) => "systemd runs here",
        (false, false) => "no systemd: the program that starts the agent must also restart it",
    };
    Finding::pass("service", text)
}

fn number(limit: u64) -> String {
    if limit == RLIM_INFINITY { "unlimited".to_owned() } else { limit.to_string() }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..=0xf_ffff => format!("{} KiB", bytes >> 10),
        0x10_0000..=0x3fff_ffff => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::commands::doctor::CheckVerdict;

    /// A missing driver is described in plain words, without the error of the loader.
    #[test]
    fn missing_driver_is_described() {
        let nowhere = OsStr::new("/nonexistent/libnvidia-ml.so.1");
        let error = Nvml::builder().lib_path(nowhere).init().unwrap_err();
        assert_eq!(
            without_driver(&error),
            "the library of the NVIDIA driver (libnvidia-ml.so.1) is not installed"
        );
        assert!(without_driver(&NvmlError::DriverNotLoaded).contains("driver"));
    }

    /// A limit that is too small for the workers fails. A tight one is a warning.
    #[test]
    fn limits_are_judged() {
        assert_eq!(open_files(100, 8).verdict, CheckVerdict::Fail);
        assert_eq!(open_files(1024, 8).verdict, CheckVerdict::Warn);
        assert_eq!(open_files(1 << 20, 8).verdict, CheckVerdict::Pass);
        assert_eq!(processes(1000, 8).verdict, CheckVerdict::Warn);
        assert_eq!(processes(RLIM_INFINITY, 8).verdict, CheckVerdict::Pass);
        assert_eq!(locked_memory(64 << 10, true).verdict, CheckVerdict::Warn);
        assert_eq!(locked_memory(64 << 10, false).verdict, CheckVerdict::Pass);
        assert_eq!(locked_memory(RLIM_INFINITY, true).verdict, CheckVerdict::Pass);
        assert_eq!(shared_memory_of(64 << 20).verdict, CheckVerdict::Warn);
        assert_eq!(shared_memory_of(8 << 30).verdict, CheckVerdict::Pass);
    }

    /// A GPU that needs something is a warning, a port that is not active is none, and a machine without devices has no finding.
    #[test]
    fn hardware_is_judged() {
        use ragent_core::hardware::{Gpu, Port};

        assert_eq!(of_hardware(&Reading::default()), []);
        let port = Port { name: "mlx5_1".to_owned(), ..Port::default() };
        let ports = Some(vec![port]);
        let well = Reading {
            gpus: Some(vec![Gpu::default(); 2]),
            ports: ports.clone(),
            ..Reading::default()
        };
        let text = "2 GPUs, 1 port: nothing unusual (port mlx5_1 is not active)";
        assert_eq!(of_hardware(&well), [Finding::pass("hardware", text)]);
        let bad = Gpu { recovery_action: Some(1), has_remap_failed: true, ..Gpu::default() };
        let found = of_hardware(&Reading { gpus: Some(vec![bad]), ports, ..Reading::default() });
        let texts: Vec<&str> = found.iter().map(|finding| finding.text.as_str()).collect();
        let expected =
            ["GPU 0 has a failed row remap, and must be replaced", "GPU 0 asks for a reset"];
        assert_eq!(texts, expected);
        assert!(found.iter().all(|finding| finding.verdict == CheckVerdict::Warn));
    }

    /// Sizes have a suitable unit.
    #[test]
    fn sizes_have_units() {
        assert_eq!([size(65_536), size(64 << 20), size(5 << 30)], ["64 KiB", "64 MiB", "5 GiB"]);
    }
}
