//! Tests processes that modules start while they are imported.

use std::fs;

use nix::sys::signal::Signal;

use crate::{
    job::{Job, READY, ready_standby, used_standbys, wait_for_ends, wait_for_standbys, write},
    support::{Cgroup, Sandbox, kill},
};

/// Writes the module `starter`, which starts a process by this command. `PID` is its process id.
pub(crate) fn write_starter(sandbox: &Sandbox, command: &str) {
    let module = format!(
        "\
import os, subprocess
read, write = os.pipe()
script = 'echo $$ >&%d; exec sleep infinity' % write
subprocess.Popen('{command} bash -c'.split() + [script], pass_fds=[write])
PID = int(os.read(read, 20))
with open(os.environ['SCRATCH'] + '/started', 'a') as started:
    started.write('%d\\n' % PID)
"
    );
    write(sandbox, "modules/starter.py", &module);
}

/// Returns the processes that the module has started, in their order.
fn started(sandbox: &Sandbox) -> Vec<u32> {
    let started = fs::read_to_string(sandbox.path("started")).unwrap();
    started.lines().map(|line| line.parse().unwrap()).collect()
}

/// Kills a standby whose module has started a process by this command, before the first round, and
/// waits until that process has ended.
fn kill_standby(command: &str, cgroup: Option<&Cgroup>) {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write_starter(&sandbox, command);
    write(&sandbox, "train.py", "import starter\nprint('started', starter.PID)");
    let words = format!("{} --node-rank 0 --standby=starter train.py", job.flags);
    let start = match cgroup {
        Some(cgroup) => cgroup.ragent(&sandbox, &words),
        None => sandbox.ragent(&words),
    };
    let mut node = job.prepared(start).start();
    node.logs(READY);
    let first = ready_standby(node.pid());
    kill(first, Signal::SIGKILL);
    wait_for_ends(&started(&sandbox)[..1]);
    wait_for_standbys(node.pid(), |standbys| standbys.len() == 1 && standbys != [first]);
    let end = job.finish(node);
    end.assert_code(0);
    assert!(used_standbys(&end));
    assert_eq!(end.stdout, format!("started {}\n", started(&sandbox)[1]));
    sandbox.wait_until_nothing_left();
}

/// A process that a module has started ends with the standby.
#[test]
fn process_ends_with_the_standby() {
    kill_standby("env", None);
}

/// In a delegated cgroup, so does a process that has left the session and the process tree.
#[test]
fn daemon_ends_with_the_standby() {
    let Some(cgroup) = Cgroup::delegated("daemon") else { return };
    kill_standby("setsid --fork", Some(&cgroup));
    assert_eq!(cgroup.below(), Vec::<String>::new());
}

/// A new process replaces a standby whose round has started. The processes that the standby's modules have started end.
#[test]
fn process_ends_with_a_refused_standby() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write_starter(&sandbox, "env");
    write(&sandbox, "modules/setter.py", "import starter, os\nos.environ['WORLD_SIZE'] = '1'\n");
    let script = "\
import os, select
with open(os.environ['SCRATCH'] + '/started') as started:
    pids = started.read().split()
try:
    process = os.pidfd_open(int(pids[0]))
    ended = select.select([process], [], [], 20)[0] != []
except ProcessLookupError:
    ended = True
print(len(pids), ended)
";
    write(&sandbox, "train.py", script);
    let end = job.finish(job.ready_node("--standby=setter train.py"));
    end.assert_code(0);
    assert!(!used_standbys(&end));
    assert_eq!(end.stdout, "1 True\n");
}
