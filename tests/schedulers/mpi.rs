//! Tests the real Open MPI and MPICH: ranks on this machine, and agents on hosts of a network of namespaces.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use nix::sys::signal::Signal;

use crate::support::{End, Network, Sandbox, Start, is_there, may_make_networks, skip};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// An MPI of Debian, and its flags.
#[derive(Clone, Copy)]
struct Mpi {
    program: &'static str,
    /// Flags that allow root, and more ranks than processors.
    lenient: &'static str,
    one_a_node: &'static str,
    /// Flags that set the way to reach other hosts.
    reach: &'static str,
    hosts: &'static str,
}

const ALL: [Mpi; 2] = [
    Mpi {
        program: "mpirun.openmpi",
        lenient: "--allow-run-as-root --oversubscribe",
        one_a_node: "-npernode 1",
        reach: "--mca oob_tcp_if_include eth0 --mca plm_rsh_agent",
        hosts: "--host",
    },
    Mpi {
        program: "mpirun.mpich",
        lenient: "",
        one_a_node: "-ppn 1 -np 3",
        reach: "-launcher ssh -launcher-exec",
        hosts: "-hosts",
    },
];

fn installed() -> impl Iterator<Item = Mpi> {
    ALL.into_iter().filter(|mpi| is_there(mpi.program))
}

impl Mpi {
    /// Runs ranks that end at once. On a busy machine, SIGPIPE kills Hydra's mpiexec in one of twenty such runs, with any program. Such a
    /// run is repeated.
    fn run_short(self, start: impl Fn() -> Start) -> End {
        let mut runs = (0..5).map(|_| start().run());
        runs.find(|end| end.signal != Some(Signal::SIGPIPE as i32)).expect("mpiexec lives")
    }

    fn start(self, sandbox: &Sandbox, words: &str) -> Start {
        let start = sandbox.program(self.program);
        format!("{} {words}", self.lenient).split_ascii_whitespace().fold(start, Start::arg)
    }
}

/// DDP on gloo trains with only `ragent rank` between the launcher and Python.
#[test]
fn ranks_train() {
    let python = PathBuf::from(format!("{REPOSITORY}/.venv/bin/python"));
    if !python.exists() {
        return skip("there is no .venv; `scripts/setup-venv.sh` makes it");
    }
    for mpi in installed() {
        let sandbox = Sandbox::new();
        let ragent = env!("CARGO_BIN_EXE_ragent");
        let end = mpi
            .start(&sandbox, &format!("-np 4 {ragent} rank --"))
            .arg(&python)
            .arg(format!("{REPOSITORY}/tests/schedulers/ddp.py"))
            .env("RES_OPTIONS", "timeout:1 attempts:1")
            .run();
        for rank in 0..4 {
            let line = format!("rank {rank} of 4, local {rank} of 4, trained");
            assert!(end.stdout.contains(&line), "{}: no `{line}` in {}", mpi.program, end.stdout);
        }
        end.assert_code(0);
    }
}

/// Two jobs on one machine have different ports, without any flag.
#[test]
fn starts_have_ports_of_their_own() {
    for mpi in installed() {
        let sandbox = Sandbox::new();
        let port = || {
            let words = format!("-np 2 {} rank -- sh -c", env!("CARGO_BIN_EXE_ragent"));
            let end = mpi.run_short(|| mpi.start(&sandbox, &words).arg("echo port=$MASTER_PORT"));
            end.assert_code(0);
            let ports = end.stdout.lines().filter_map(|line| line.strip_prefix("port="));
            let ports: Vec<String> = ports.map(str::to_owned).collect();
            assert_eq!(ports.len(), 2, "{}", end.stdout);
            assert_eq!(ports[0], ports[1]);
            ports[0].clone()
        };
        // Two jobs may get the same one of 8192 ports, but not three.
        let seen = [port(), port(), port()];
        assert!(seen.iter().any(|port| *port != seen[0]), "{seen:?}");
    }
}

/// Hosts with their own names, and a script that starts programs on them in place of ssh.
struct Hosts {
    network: Network,
    shell: PathBuf,
}

impl Hosts {
    fn new(sandbox: &Sandbox, name: &str) -> Self {
        let network = Network::new(name, 3);
        let shell = sandbox.path("rsh");
        // The arguments are options, the host, and a command for its shell.
        let script = format!(
            "#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nhost=$1; shift\n\
             exec ip netns exec {}${{host##*.}} unshare -u sh -c \"hostname n${{host##*.}}; $*\"\n",
            network.namespace(1).strip_suffix('1').unwrap()
        );
        fs::write(&shell, script).unwrap();
        fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
        Self { network, shell }
    }

    /// Returns `mpirun` on the first host. It starts one agent on each host.
    fn agents(&self, sandbox: &Sandbox, mpi: Mpi, words: &str) -> Start {
        let hosts = [1, 2, 3].map(Network::address).join(",");
        let Mpi { program, lenient, one_a_node, reach, hosts: flag } = mpi;
        let shell = self.shell.display();
        let ragent = env!("CARGO_BIN_EXE_ragent");
        let line = format!(
            "hostname n1; exec {program} {lenient} {reach} {shell} {flag} {hosts} {one_a_node} \
             {ragent} {words}"
        );
        let start = self.network.program(sandbox, 1, "unshare");
        start.arg("-u").arg("sh").arg("-c").arg(line)
    }
}

fn assert_places(end: &End) {
    for rank in 0..3 {
        let line = format!("rank {rank} of 3, node {rank}, local 0 of 1, at 10.77.0.1");
        assert!(end.stdout.contains(&line), "no `{line}` in:\n{}\n{}", end.stdout, end.stderr);
    }
}

/// One agent per node forms one job, without flags for nodes, names or addresses. The job has as many nodes as mpirun has started agents,
/// in the launcher's order. The endpoint is at the first rank's host.
#[test]
fn agents_on_three_hosts_are_one_job() {
    if !may_make_networks() {
        return;
    }
    for (name, mpi) in ["ompi", "mpich"].into_iter().zip(ALL) {
        if !is_there(mpi.program) {
            continue;
        }
        let sandbox = Sandbox::new();
        let hosts = Hosts::new(&sandbox, name);
        let end = hosts.agents(&sandbox, mpi, "--no-python place.sh").run();
        end.assert_code(0);
        assert_places(&end);
        end.assert_stderr(&["run_id=mpi-"]);
    }
}

/// `ragent rank` across hosts knows the address of rank 0.
#[test]
fn ranks_on_three_hosts_know_the_first() {
    if !may_make_networks() {
        return;
    }
    for (name, mpi) in ["ompi-rank", "mpich-rank"].into_iter().zip(ALL) {
        if !is_there(mpi.program) {
            continue;
        }
        let sandbox = Sandbox::new();
        let hosts = Hosts::new(&sandbox, name);
        let end = mpi.run_short(|| hosts.agents(&sandbox, mpi, "rank -- place.sh"));
        end.assert_code(0);
        assert_places(&end);
    }
}
