//! The real Slurm: a controller and three nodes on this machine.

use std::fs;

use nix::unistd::{geteuid, gethostname};

use crate::support::{End, Program, Sandbox, Start, free_port, is_there, skip};

/// A controller and its nodes `n1` to `n3`, whose names resolve to this machine in the programs of
/// the cluster.
struct Cluster<'a> {
    sandbox: &'a Sandbox,
    _daemons: Vec<Program>,
}

impl<'a> Cluster<'a> {
    /// Starts a cluster that accepts jobs; `None` if Slurm is not installed.
    fn start(sandbox: &'a Sandbox) -> Option<Self> {
        if !geteuid().is_root() {
            skip("a cluster of Slurm wants root");
            return None;
        }
        if !["slurmctld", "slurmd", "srun"].into_iter().all(is_there) {
            return None;
        }
        configure(sandbox);
        let daemon = |words: &str, expected: &str| {
            let mut daemon = in_cluster(sandbox, words).start();
            daemon.logs(expected);
            daemon
        };
        let mut daemons = vec![daemon("slurmctld -D", "Running as primary controller")];
        for node in ["n1", "n2", "n3"] {
            daemons.push(daemon(&format!("slurmd -D -N {node}"), "slurmd started"));
        }
        Some(Self { sandbox, _daemons: daemons })
    }

    /// Returns a command of a user of the cluster.
    fn user(&self, words: &str) -> Start {
        in_cluster(self.sandbox, words)
    }
}

fn configure(sandbox: &Sandbox) {
    let folder = |name: &str| {
        let path = sandbox.path(name);
        fs::create_dir_all(&path).unwrap();
        path.display().to_string()
    };
    let host = gethostname().unwrap().to_string_lossy().into_owned();
    let (state, spool, pids) = (folder("state"), folder("spool"), folder("pids"));
    let mut text = format!(
        "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nSlurmUser=root\n\
         AuthType=auth/none\nCredType=cred/none\nProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\nSelectType=select/linear\n\
         MailProg=/bin/true\nStateSaveLocation={state}\nSlurmdSpoolDir={spool}/%n\n\
         SlurmctldPidFile={pids}/controller\nSlurmdPidFile={pids}/%n\n",
        free_port()
    );
    let mut hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    for node in ["n1", "n2", "n3"] {
        let place = format!("NodeHostname={host} NodeAddr=127.0.0.1 Port={}", free_port());
        text.push_str(&format!("NodeName={node} {place} CPUs=1\n"));
        hosts.push_str(&format!("127.0.0.1 {node}\n"));
        fs::create_dir_all(format!("{spool}/{node}")).unwrap();
    }
    text.push_str("PartitionName=p Nodes=n1,n2,n3 Default=YES State=UP MaxTime=INFINITE\n");
    fs::write(sandbox.path("slurm.conf"), text).unwrap();
    fs::write(sandbox.path("hosts"), hosts).unwrap();
}

/// A program that has the configuration of the cluster and the names of its nodes.
fn in_cluster(sandbox: &Sandbox, words: &str) -> Start {
    let path = sandbox.environment().into_iter().find(|(name, _)| name == "PATH").unwrap().1;
    let start = sandbox.program("unshare").env("PATH", format!("{path}:/usr/sbin:/sbin"));
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

/// `srun` with one task per node is a job of three nodes, with the endpoint at the first.
#[test]
fn agents_of_a_step_are_one_job() {
    let sandbox = Sandbox::new();
    let Some(cluster) = Cluster::start(&sandbox) else { return };
    let ragent = env!("CARGO_BIN_EXE_ragent");
    let words = format!("srun -N 3 --ntasks-per-node=1 {ragent} --no-python place.sh");
    let end = cluster.user(&words).run();
    assert_places(&end);
    end.assert_stderr(&["endpoint=n1:", "run_id=slurm-1.0"]);
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
    cluster.user("scancel 1").run().assert_code(0);
    lifeline.wait_until_broken();
    let end = job.end();
    assert_ne!(end.code, Some(0), "{}", end.stderr);
    end.assert_stderr(&["signal received; leaving the job"]);
}
