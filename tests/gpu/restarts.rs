//! Tests restarts of workers that train.

use std::fs::{File, OpenOptions};

use nix::{sys::stat::Mode, unistd};

use crate::{
    machine::{Machine, nvidia_smi, open_devices, worker},
    support::{Program, Sandbox, field, wait_for_standbys},
};

/// The failures of the job, each of which is followed by a restart.
const FAILURES: u32 = 2;

/// Growth of a GPU's memory up to this, in MiB, is not a CUDA context. A context takes hundreds.
const NOISE_MIB: u64 = 64;

/// A job whose workers run `train.py`.
struct Job<'a> {
    machine: &'a Machine,
    agent: Program,
    orders: File,
}

impl<'a> Job<'a> {
    fn start(machine: &'a Machine, sandbox: &Sandbox) -> Self {
        let path = sandbox.path("orders");
        unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        // Held open in both directions, so that orders wait for their reader.
        let orders = OpenOptions::new().read(true).write(true).open(path).unwrap();
        // The first heartbeat starts the standbys of the next round.
        let words = format!(
            "--standalone --nproc-per-node {} --max-restarts {FAILURES} --hang-timeout 600 --standby {}",
            machine.workers,
            worker("train.py")
        );
        Self { machine, agent: machine.ragent(sandbox, &words).start(), orders }
    }

    /// Waits until all workers of a round have taken a step; returns their pids.
    #[track_caller]
    fn workers(&mut self, restart: u32) -> Vec<u32> {
        let Machine { workers, backend, .. } = self.machine;
        let facts = format!("world_size={workers} restart={restart} backend={backend} pid=");
        let lines = (0..*workers).map(|_| self.agent.prints(&facts));
        lines.map(|line| field(&line, "pid").parse().unwrap()).collect()
    }

    /// Waits until each worker has a standby for the next round.
    #[track_caller]
    fn standbys(&self) -> Vec<u32> {
        let count = self.machine.workers as usize;
        wait_for_standbys(self.agent.pid(), |standbys| standbys.len() == count)
    }

    /// Makes the workers fail, or succeed in the last round.
    fn order(&self) {
        unistd::write(&self.orders, b"!").unwrap();
    }
}

/// Workers fail twice, and each time the standbys continue the training. `watch` inspects workers and standbys of each round.
fn restart_twice(machine: &Machine, mut watch: impl FnMut(Moment, &[u32])) {
    let sandbox = Sandbox::new();
    let mut job = Job::start(machine, &sandbox);
    let mut workers = job.workers(0);
    for restart in 1..=FAILURES {
        watch(Moment::Workers, &workers);
        let mut standbys = job.standbys();
        watch(Moment::Standbys, &standbys);
        job.order();
        workers = job.workers(restart);
        let mut sorted = workers.clone();
        sorted.sort_unstable();
        standbys.sort_unstable();
        assert_eq!(sorted, standbys, "the workers of restart {restart} are the standbys");
    }
    watch(Moment::Workers, &workers);
    job.order();
    let end = job.agent.end();
    end.assert_code(0);
    assert!(!end.stderr.contains("standbys do not import"), "{}", end.stderr);
    sandbox.assert_nothing_left();
}

/// A moment of a round.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// All workers have taken a step.
    Workers,
    /// All standbys wait, and the workers train.
    Standbys,
}

/// With NCCL, standbys continue the training after each of two failures. While they wait, they have no device open. Neither they nor their
/// processes use GPU memory.
#[test]
fn standbys_continue_and_use_no_gpu_before() {
    let Some(machine) = Machine::with_gpus() else { return };
    let mut before = Vec::new();
    restart_twice(&machine, |moment, pids| match moment {
        Moment::Workers => {
            for pid in pids {
                assert!(!open_devices(*pid).is_empty(), "worker {pid} trains without a GPU");
            }
            before = used_mib();
        }
        Moment::Standbys => {
            let users = nvidia_smi("--query-compute-apps=pid,used_memory");
            for pid in pids {
                assert_eq!(open_devices(*pid), Vec::<String>::new(), "standby {pid}");
                let is_user = |line: &String| line.split(',').next() == Some(&pid.to_string());
                assert!(!users.iter().any(is_user), "standby {pid} uses a GPU: {users:?}");
            }
            for (before, now) in before.iter().zip(used_mib()) {
                assert!(now < before + NOISE_MIB, "standbys wait, and {before} MiB became {now}");
            }
        }
    });
}

/// The memory in use of each GPU. In a container `nvidia-smi` may list no process.
fn used_mib() -> Vec<u64> {
    let lines = nvidia_smi("--query-gpu=memory.used");
    lines.iter().map(|line| line.trim().parse().unwrap()).collect()
}

/// The same job with gloo, which needs no GPU.
#[test]
#[ignore = "`make test-all` runs it: importing torch takes seconds of CPU time"]
fn standbys_continue_on_processors() {
    let Some(machine) = Machine::with_processors() else { return };
    let mut standbys = 0;
    restart_twice(&machine, |moment, pids| match moment {
        Moment::Workers => assert_eq!(pids.len(), 2),
        Moment::Standbys => standbys += pids.len(),
    });
    assert_eq!(standbys, 4);
}
