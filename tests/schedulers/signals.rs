//! Tests that workers get each signal once that Slurm sends to a job: real process tracking of Slurm.

use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
};

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd,
};

use super::slurm_cluster::Cluster;
use crate::support::{Sandbox, Stream, is_there, kill};

/// The processes of `signals.py NAME family`, by what follows NAME.
const FAMILY: [&str; 5] = ["", ".child", ".group", ".session", ".daemon"];

/// Workers are descendants of a task. So Slurm signals them itself if it finds processes by their parents, and their daemons, too. Otherwise
/// only the agent does.
#[test]
fn signals_of_workers() {
    for (plugin, expected) in [("linuxproc", &FAMILY[..]), ("pgid", &FAMILY[..2])] {
        let sandbox = Sandbox::new();
        if !is_there("python3") {
            return;
        }
        let settings = format!("ProctrackType=proctrack/{plugin}");
        let Some(cluster) = Cluster::start_with(&sandbox, &settings) else { return };
        let ragent = env!("CARGO_BIN_EXE_ragent");
        let script = format!(
            "#!/bin/bash
            srun {ragent} --no-python --signals-to-forward SIGUSR1 signals.py worker family\n"
        );
        fs::write(sandbox.path("job.sh"), script).unwrap();
        let pipe = sandbox.path("pipe");
        unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let mut records = sandbox.program("cat").arg(&pipe).start();
        // Without a writer of its own, `cat` would end with the first process.
        let _pipe = OpenOptions::new().write(true).open(&pipe).unwrap();
        let submit = cluster.user("sbatch --parsable -o job.out -N 1");
        let submitted = submit.arg(sandbox.path("job.sh")).env("RECORDS", &pipe).run();
        let id = submitted.stdout.trim();
        let pids = FAMILY.map(|member| {
            let line = records.prints(&format!("0 worker{member} pid="));
            line.rsplit('=').next().unwrap().parse().unwrap()
        });
        cluster.user(&format!("scancel -s USR1 {id}")).run().assert_code(0);
        for member in expected {
            records.prints(&format!("0 worker{member} SIGUSR1"));
        }
        // A process that has written the second signal has written all that came before.
        for (member, pid) in FAMILY.iter().zip(pids) {
            kill(pid, Signal::SIGUSR2);
            records.prints(&format!("0 worker{member} SIGUSR2"));
        }
        let text = records.text(Stream::Stdout);
        let got = text.lines().filter_map(|line| line.strip_suffix(" SIGUSR1"));
        let expected = expected.iter().map(|member| format!("0 worker{member}"));
        assert_eq!(got.map(str::to_owned).collect::<BTreeSet<_>>(), expected.collect());
    }
}
