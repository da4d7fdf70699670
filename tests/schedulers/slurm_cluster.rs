//! Tests the real Slurm: a controller and three nodes on this machine.

use std::{fs, path::Path, thread};

use nix::{
    sys::signal::Signal,
    unistd::{geteuid, gethostname},
};
use ragent_base::sys::clock;

use crate::support::{
    End, Network, PATIENCE, Program, Sandbox, Start, Stream, children, free_port, is_there,
    keeper_of, kill, may_make_networks, skip,
};

/// A controller and its nodes `n1` to `n3`. In the programs of the cluster, these names resolve to this machine, or to nodes of a network.
pub(super) struct Cluster<'a> {
    sandbox: &'a Sandbox,
    network: Option<&'a Network>,
    first_job: u16,
    _daemons: Vec<Program>,
}

/// The node of a network that runs the controller and the users' commands.
const HEAD: u32 = 4;

/// The plugin that finds the processes of a step.
const TRACKING: &str = "ProctrackType=proctrack/linuxproc";

impl<'a> Cluster<'a> {
    /// Starts a cluster that accepts jobs. Returns `None` if Slurm is not installed.
    fn start(sandbox: &'a Sandbox) -> Option<Self> {
        Self::start_on(sandbox, None, TRACKING)
    }

    /// Starts a cluster with these lines of `slurm.conf`. One of them is the plugin that finds the processes of a step.
    pub(super) fn start_with(sandbox: &'a Sandbox, settings: &str) -> Option<Self> {
        Self::start_on(sandbox, None, settings)
    }

    /// Starts a cluster with these settings. Its nodes are the first three of a network, if there is one.
    fn start_on(
        sandbox: &'a Sandbox,
        network: Option<&'a Network>,
        settings: &str,
    ) -> Option<Self> {
        if !geteuid().is_root() {
            skip("a cluster of Slurm wants root");
            return None;
        }
        if !["slurmctld", "slurmd", "srun"].into_iter().all(is_there) {
            return None;
        }
        // The endpoint of a step follows from the number of its job, and clusters share this machine.
        let first_job = free_port();
        configure(sandbox, network.is_some(), first_job, settings);
        let daemon = |node, words: &str, expected: &str| {
            let mut daemon =
                in_cluster(sandbox, network.map(|network| (network, node)), words).start();
            daemon.logs(expected);
            daemon
        };
        let mut daemons = vec![daemon(HEAD, "slurmctld -D", "Running as primary controller")];
        for node in 1..=3 {
            daemons.push(daemon(node, &format!("slurmd -D -N n{node}"), "slurmd started"));
        }
        Some(Self { sandbox, network, first_job, _daemons: daemons })
    }

    /// Returns a command of a user of the cluster.
    pub(super) fn user(&self, words: &str) -> Start {
        in_cluster(self.sandbox, self.network.map(|network| (network, HEAD)), words)
    }

    /// Returns the agent of a worker.
    fn agent_of(&self, worker: u32) -> u32 {
        let has_worker = |agent: &&u32| {
            let keeper = children(**agent).into_iter().find(|it| children(*it).contains(&worker));
            keeper.is_some_and(|keeper| keeper == keeper_of(**agent))
        };
        *self.sandbox.processes().iter().find(has_worker).expect("each worker has an agent")
    }
}

fn configure(sandbox: &Sandbox, has_network: bool, first_job: u16, settings: &str) {
    let folder = |name: &str| {
        let path = sandbox.path(name);
        fs::create_dir_all(&path).unwrap();
        path.display().to_string()
    };
    let host = gethostname().unwrap().to_string_lossy().into_owned();
    let address =
        |node| if has_network { Network::address(node) } else { format!("127.0.0.{node}") };
    let head = address(HEAD);
    let (state, spool, pids) = (folder("state"), folder("spool"), folder("pids"));
    let mut text = format!(
        "ClusterName=test\nSlurmctldHost={host}({head})\nSlurmctldPort={}\nSlurmUser=root\n\
         AuthType=auth/none\nCredType=cred/none\n{settings}\n\
         TaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\nSelectType=select/linear\n\
         MailProg=/bin/true\nStateSaveLocation={state}\nSlurmdSpoolDir={spool}/%n\n\
         SlurmctldPidFile={pids}/controller\nSlurmdPidFile={pids}/%n\nFirstJobId={first_job}\n",
        free_port()
    );
    let mut hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    for node in 1..=3 {
        let (port, address) = (free_port(), address(node));
        let place = format!("NodeHostname={host} NodeAddr={address} Port={port}");
        text.push_str(&format!("NodeName=n{node} {place} CPUs=1\n"));
        hosts.push_str(&format!("{address} n{node}\n"));
        fs::create_dir_all(format!("{spool}/n{node}")).unwrap();
    }
    text.push_str("PartitionName=p Nodes=n1,n2,n3 Default=YES State=UP MaxTime=INFINITE\n");
    fs::write(sandbox.path("slurm.conf"), text).unwrap();
    fs::write(sandbox.path("hosts"), hosts).unwrap();
}

/// A program that has the configuration of the cluster and the names of its nodes. The node `at` of a network runs it.
fn in_cluster(sandbox: &Sandbox, at: Option<(&Network, u32)>, words: &str) -> Start {
    let path = sandbox.environment().into_iter().find(|(name, _)| name == "PATH").unwrap().1;
    let start = match at {
        // `ip netns exec` would hide the control groups, which a daemon wants to see.
        Some((network, node)) => {
            let namespace = format!("--net=/run/netns/{}", network.namespace(node));
            sandbox.program("nsenter").arg(namespace).arg("unshare")
        }
        None => sandbox.program("unshare"),
    };
    let start = start.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    let start = start.env("SLURM_CONF", sandbox.path("slurm.conf"));
    let script = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    let start = start.arg("-m").arg("sh").arg("-c").arg(script).arg(sandbox.path("hosts"));
    words.split_ascii_whitespace().fold(start, Start::arg)
}

#[track_caller]
fn assert_places(end: &End) {
    end.assert_code(0);
    for rank in 0..3 {
        let line = format!("rank {rank} of 3, node {rank}, local 0 of 1, at ");
        assert!(end.stdout.contains(&line), "no `{line}` in:\n{}\n{}", end.stdout, end.stderr);
    }
}

/// `srun` with one task per node is a job of three nodes, whose coordinator is on one of them.
#[test]
fn agents_of_a_step_are_one_job() {
    let sandbox = Sandbox::new();
    let Some(cluster) = Cluster::start(&sandbox) else { return };
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let words = format!("srun -N 3 --ntasks-per-node=1 {ragent} --no-python place.sh");
    let end = cluster.user(&words).run();
    assert_places(&end);
    end.assert_stderr(&[
        "elected; coordinating the job endpoint=n",
        &format!("run_id=slurm-{}.0", cluster.first_job),
    ]);
}

/// `srun` with one task per rank gives each rank its place.
#[test]
fn tasks_of_a_step_are_ranks() {
    let sandbox = Sandbox::new();
    let Some(cluster) = Cluster::start(&sandbox) else { return };
    let words = format!("srun -n 3 {} rank -- place.sh", env!("CARGO_BIN_EXE_ragent"));
    let end = cluster.user(&words).run();
    assert_places(&end);
    assert!(end.stdout.contains(", at n1\n"), "{}", end.stdout);
}

/// The shell of a batch script runs on one node of its job, and an agent there is a job of its own.
#[test]
fn batch_shell_is_no_task() {
    let sandbox = Sandbox::new();
    let Some(cluster) = Cluster::start(&sandbox) else { return };
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let script = format!("#!/bin/sh\n{ragent} --no-python place.sh\n");
    let path = sandbox.path("job.sh");
    fs::write(&path, script).unwrap();
    let start = cluster.user("sbatch --wait -N 3 -o out -e err").arg(&path);
    start.run().assert_code(0);
    let out = fs::read_to_string(sandbox.path("out")).unwrap();
    assert_eq!(out, "rank 0 of 1, node 0, local 0 of 1, at 127.0.0.1\n");
}

/// `scancel` reaches every agent, all leave, and no process is left.
#[test]
fn cancelled_job_leaves_nothing() {
    let sandbox = Sandbox::new();
    let Some(cluster) = Cluster::start(&sandbox) else { return };
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let lifeline = sandbox.lifeline("lifeline");
    let words = format!("srun -N 3 --ntasks-per-node=1 {ragent} --no-python stay.sh");
    let mut job = cluster.user(&words).hold(&lifeline).start();
    for _ in 0..3 {
        job.logs("admitted; starting workers");
        job.worker();
    }
    cluster.user(&format!("scancel {}", cluster.first_job)).run().assert_code(0);
    lifeline.wait_until_broken();
    let end = job.end();
    assert_ne!(end.code, Some(0), "{}", end.stderr);
    end.assert_stderr(&["signal received; leaving the job"]);
}

/// `packaging/exclude/slurm` prints the drained nodes with their reasons.
#[test]
fn drained_nodes_are_printed() {
    let sandbox = Sandbox::new();
    let Some(cluster) = Cluster::start(&sandbox) else { return };
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/exclude/slurm");
    let printed = || {
        let end = cluster.user(program).run();
        end.assert_code(0);
        end.stdout.trim().to_owned()
    };
    assert_eq!(printed(), "");
    let drain = cluster.user("scontrol update nodename=n2 state=drain").arg("reason=bad disk");
    drain.run().assert_code(0);
    assert_eq!(printed(), "n2 bad disk");
}

/// With `voters=3`, the agents of a step elect their coordinator. The coordinator's agent is killed, and the job goes on with the others.
#[test]
fn step_survives_its_coordinator() {
    if !may_make_networks() {
        return;
    }
    let sandbox = Sandbox::new();
    let network = Network::new("slurm", HEAD);
    let Some(cluster) = Cluster::start_on(&sandbox, Some(&network), TRACKING) else { return };
    let orders: Vec<_> = (0..3).map(|rank| sandbox.orders(rank)).collect();
    let words = format!(
        "srun --label -N 3 --ntasks-per-node=1 --kill-on-bad-exit=0 --no-kill --wait=0 {} --nnodes 2:3 \
         --rdzv-conf voters=3,shrink_timeout=0,last_call_timeout=600 --report report --no-python obey.sh",
        env!("CARGO_BIN_EXE_ragent")
    );
    let mut job = cluster.user(&words).start();
    let workers = job.workers(3);
    let task = |line: &str| line.split(':').next().unwrap_or_default().trim().to_owned();
    let leader = task(&job.logs("elected; coordinating the job"));
    let endpoint = job.logs(" registered ");
    assert!(["n1:", "n2:", "n3:"].iter().any(|name| endpoint.contains(name)), "{endpoint}");
    let of_leader = |worker: &&crate::support::Worker| {
        job.text(Stream::Stdout)
            .lines()
            .any(|line| task(line) == leader && line.ends_with(&format!(" pid={}", worker.pid())))
    };
    let worker = workers.iter().find(of_leader).expect("each task has a worker").pid();
    kill(cluster.agent_of(worker), Signal::SIGKILL);
    // Under load, the first coordinator may have been elected more than once.
    while task(&job.logs("elected; coordinating the job")) == leader {}
    for worker in job.workers(2) {
        assert_eq!(worker.number("world_size"), 2);
    }
    for order in &orders[..2] {
        order.give("exit 0");
    }
    // The exit code comes from the agent that was killed, and `srun` may omit the last lines.
    let end = job.end();
    let report = fs::read_to_string(sandbox.path("report")).unwrap();
    assert!(report.contains("\"succeeded\""), "{report}\n{}", end.stderr);
}

/// Waits until the job has this line or a part of it in `scontrol show job`, and returns all lines.
#[track_caller]
fn wait_for_job(cluster: &Cluster<'_>, job: &str, part: &str) -> String {
    let deadline = clock::now_blocking() + PATIENCE;
    loop {
        let shown = cluster.user(&format!("scontrol show job {job}")).run().stdout;
        if shown.contains(part) {
            return shown;
        }
        assert!(clock::now_blocking() < deadline, "no `{part}` in:\n{shown}");
        thread::yield_now();
    }
}

/// `scancel` signals all processes of a job's step. With `--notice-on`, the agent takes the signal for a notice, and the worker, which does
/// not handle it, lives on and saves.
#[test]
fn signal_of_slurm_is_a_notice_and_kills_no_worker() {
    let sandbox = Sandbox::new();
    let Some(cluster) = Cluster::start_with(&sandbox, TRACKING) else { return };
    let orders = sandbox.orders(0);
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let script = format!(
        "#!/bin/bash\nsrun {ragent} --notice 300 --notice-on SIGUSR1 --no-python steps.py\n"
    );
    fs::write(sandbox.path("job.sh"), script).unwrap();
    let submitted = cluster.user("sbatch --parsable --output=out job.sh").run();
    let job = submitted.stdout.trim().to_owned();
    orders.give("open('started', 'w').close()");
    let deadline = clock::now_blocking() + PATIENCE;
    while !sandbox.path("started").exists() {
        assert!(clock::now_blocking() < deadline, "{:?}", fs::read_to_string(sandbox.path("out")));
        thread::yield_now();
    }
    cluster.user(&format!("scancel --signal=USR1 {job}")).run().assert_code(0);
    orders.give("notice(1); saved(7, 1)");
    let shown = wait_for_job(&cluster, &job, "JobState=FAILED");
    assert!(
        shown.contains("ExitCode=5:0"),
        "{shown}\n{:?}",
        fs::read_to_string(sandbox.path("out"))
    );
}

/// `examples/slurm/requeue.sbatch` queues its job again once all ranks have saved, and its next start goes on. After a success or a failure it
/// does not.
#[test]
fn example_requeues_a_saved_job() {
    let sandbox = Sandbox::new();
    // A job starts again when the credentials of its last start have expired: after two minutes, by default.
    let settings = format!("{TRACKING}\nAuthInfo=cred_expire=5");
    let Some(cluster) = Cluster::start_with(&sandbox, &settings) else { return };
    let ragent = Path::new(env!("CARGO_BIN_EXE_ragent")).parent().unwrap().display().to_string();
    let environment = sandbox.environment();
    let (_, path) = environment.iter().find(|(name, _)| name == "PATH").unwrap();
    let orders = [0, 1].map(|rank| sandbox.orders(rank));
    let give = |order: &str| orders.iter().for_each(|orders| orders.give(order));
    let submit = |flags: &str| {
        let words = "sbatch --parsable --nodes=2 --output=out";
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/slurm/requeue.sbatch");
        let start = cluster.user(words).arg(script).env("PATH", format!("{ragent}:{path}"));
        let words = format!("{flags} --no-python steps.py");
        let end = words.split_ascii_whitespace().fold(start, Start::arg).run();
        end.assert_code(0);
        end.stdout.trim().to_owned()
    };

    let job = submit("");
    // Both have started when both have answered.
    give("open(f'started.{rank}', 'w').close()");
    let started = [0, 1].map(|rank| sandbox.path(&format!("started.{rank}")));
    let deadline = clock::now_blocking() + PATIENCE;
    while !started.iter().all(|path| path.exists()) {
        assert!(clock::now_blocking() < deadline, "{:?}", fs::read_to_string(sandbox.path("out")));
        thread::yield_now();
    }
    give("notice(1); open(f'checkpoint.{rank}', 'w').write('8'); saved(8, 1)");
    cluster.user(&format!("scancel --signal=USR1 --batch {job}")).run().assert_code(0);
    wait_for_job(&cluster, &job, "Restarts=1");
    give("open(f'resumed.{rank}', 'w').write(open(f'checkpoint.{rank}').read()); sys.exit(0)");
    let shown = wait_for_job(&cluster, &job, "JobState=COMPLETED");
    assert!(shown.contains("Restarts=1 ") && shown.contains("ExitCode=0:0"), "{shown}");
    for rank in 0..2 {
        assert_eq!(fs::read_to_string(sandbox.path(&format!("resumed.{rank}"))).unwrap(), "8");
    }

    let job = submit("--no-restart-exit-codes 3");
    give("sys.exit(3)");
    let shown = wait_for_job(&cluster, &job, "JobState=FAILED");
    assert!(shown.contains("Restarts=0 ") && shown.contains("ExitCode=1:0"), "{shown}");
}
