//! Finds the GPUs of this machine, and starts the jobs that use them.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use ragent_base::sys::host::{Host, ThisHost};

use crate::support::{Sandbox, Start, skip};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The devices of the driver.
const DEVICES: &str = "/dev/nvidia";

/// Variables by which CUDA finds its libraries and GPUs.
const INHERITED: [&str; 3] = ["LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];

/// Lets only one test at a time use the GPUs, because tests measure their memory.
static TURN: Mutex<()> = Mutex::new(());

/// A Python with torch, and the number of workers that it can run on devices of their own.
#[derive(Debug)]
pub(crate) struct Machine {
    python: String,
    pub(crate) workers: u32,
    /// The backend of `train.py`.
    pub(crate) backend: &'static str,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Machine {
    /// The GPUs that torch can use. If there are none, prints why and returns `None`.
    #[expect(
        clippy::print_stderr,
        reason = "the output of `make test-gpu` must show what was not tested"
    )]
    pub(crate) fn with_gpus() -> Option<Self> {
        if !Path::new("/dev/nvidia0").exists() {
            // Not `skip`: most machines of continuous integration have no GPU.
            eprintln!("skipped: there is no GPU: no /dev/nvidia0");
            return None;
        }
        let machine = Self { backend: "nccl", ..Self::with_processors()? };
        let sandbox = Sandbox::new();
        let count = "import torch; print(torch.cuda.device_count())";
        let end = machine.prepared(sandbox.program(&machine.python)).arg("-c").arg(count).run();
        let workers = end.stdout.trim().parse().unwrap_or_default();
        if workers == 0 {
            skip(&format!("there is /dev/nvidia0, but torch finds no GPU: {}", end.stderr));
            return None;
        }
        // A test that has failed leaves nothing on the GPUs.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Self { workers, _turn: Some(turn), ..machine })
    }

    /// Two workers on processors. Without torch, prints why and returns `None`.
    pub(crate) fn with_processors() -> Option<Self> {
        let python = format!("{REPOSITORY}/.venv/bin/python");
        if !Path::new(&python).exists() {
            skip("there is no .venv; `scripts/setup-venv.sh` makes it");
            return None;
        }
        Some(Self { python, workers: 2, backend: "gloo", _turn: None })
    }

    /// An agent with these arguments. Its workers also find modules in the sandbox's folder `modules`.
    pub(crate) fn ragent(&self, sandbox: &Sandbox, words: &str) -> Start {
        self.prepared(sandbox.ragent(words)).env("PYTHONPATH", sandbox.path("modules"))
    }

    fn prepared(&self, start: Start) -> Start {
        let inherited = INHERITED.into_iter().filter_map(|name| Some((name, ThisHost.env(name)?)));
        let start = inherited.fold(start, |start, (name, value)| start.env(name, value));
        let start =
            if self.backend == "gloo" { start.env("CUDA_VISIBLE_DEVICES", "") } else { start };
        let start = start.env("PYTHON_EXEC", &self.python).env("PYTHONDONTWRITEBYTECODE", "1");
        let start = start.env("NCCL_SOCKET_IFNAME", "lo").env("GLOO_SOCKET_IFNAME", "lo");
        // torch resolves the names of its peers, and waits if there is no answer.
        start.env("OMP_NUM_THREADS", "1").env("RES_OPTIONS", "timeout:1 attempts:1")
    }
}

/// The path of a fake worker.
pub(crate) fn worker(name: &str) -> String {
    format!("{REPOSITORY}/tests/workers/{name}")
}

/// The devices of the driver that a process has open.
pub(crate) fn open_devices(pid: u32) -> Vec<String> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    let links = links.map(|link| link.to_string_lossy().into_owned());
    links.filter(|link| link.starts_with(DEVICES)).collect()
}

/// The answer of `nvidia-smi` to a query, line by line.
#[track_caller]
pub(crate) fn nvidia_smi(query: &str) -> Vec<String> {
    let output =
        Command::new("nvidia-smi").arg(query).arg("--format=csv,noheader,nounits").output();
    let output = output.expect("the driver comes with nvidia-smi");
    assert!(output.status.success(), "nvidia-smi {query}: {output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}
