//! Tests signals to standbys, agents and keepers at every moment in the life of a standby, and processes that cannot be started.

use std::{fs, path::PathBuf};

use nix::sys::signal::Signal;

use crate::{
    job::{
        Gate, Job, READY, ready_standby, used_standbys, wait_for_ends, wait_for_standbys, write,
    },
    support::{Cgroup, Sandbox, children, keeper_of, kill, skip},
};

const SCRIPT: &str = "import os\nprint('rank', os.environ['RANK'], 'of', os.getpid())";

/// A waiting standby that was killed is replaced.
#[test]
fn killed_standby_is_replaced() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "train.py", SCRIPT);
    let node = job.ready_node("--standby=json train.py");
    let first = ready_standby(node.pid());
    kill(first, Signal::SIGKILL);
    let next = wait_for_standbys(node.pid(), |standbys| standbys.len() == 1 && standbys != [first]);
    let end = job.finish(node);
    end.assert_code(0);
    assert_eq!(end.stdout, format!("rank 0 of {}\n", next[0]));
    assert!(used_standbys(&end));
}

/// If the folder of the hook is removed, as at the end of a login session, later standbys work as
/// before, and the script never runs without its round.
#[test]
fn removed_hook() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(
        &sandbox,
        "train.py",
        "import os\nprint('rank', int(os.environ['RANK']), os.environ['WORLD_SIZE'])",
    );
    let node = job.ready_node("--standby=json train.py");
    let standby = ready_standby(node.pid());
    let hook = stored_hook(standby);
    fs::remove_dir_all(&hook).unwrap();
    kill(standby, Signal::SIGKILL);
    wait_for_standbys(node.pid(), |standbys| standbys.len() == 1 && standbys != [standby]);
    let end = job.finish(node);
    end.assert_code(0);
    assert_eq!(end.stdout.matches("rank ").count(), 1, "{}", end.stdout);
    assert!(end.stdout.contains("rank 0 2"), "{}", end.stdout);
    assert!(used_standbys(&end));
}

/// Returns the folder of the hook of a standby.
fn stored_hook(standby: u32) -> PathBuf {
    let environment = fs::read_to_string(format!("/proc/{standby}/environ")).unwrap();
    let path = environment.split('\0').find_map(|pair| pair.strip_prefix("PYTHONPATH=")).unwrap();
    path.split(':').next().unwrap().into()
}

/// If no process can be started for a while, standbys are started when it is possible again, however
/// often a start has failed.
#[test]
fn standbys_are_started_after_a_shortage_of_processes() {
    // Removed after the sandbox has ended all processes in it.
    let Some(limit) = ProcessLimit::new("standbys") else { return };
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "train.py", SCRIPT);
    let mut node = job.ready_node("--standby=json train.py");
    let first = ready_standby(node.pid());
    limit.set(keeper_of(node.pid()), "1");
    kill(first, Signal::SIGKILL);
    // The warning follows the third failure. After three ends, the slot would have no more standbys.
    let line = node.logs("failed to start a standby: ");
    assert!(line.contains("trying again"), "{line}");
    limit.set(keeper_of(node.pid()), "max");
    node.logs("standbys can be started again");
    let next = ready_standby(node.pid());
    let end = job.finish(node);
    end.assert_code(0);
    assert_eq!(end.stdout, format!("rank 0 of {next}\n"));
    assert!(used_standbys(&end));
}

/// A cgroup that limits the number of processes, and is removed on drop.
#[derive(Debug)]
struct ProcessLimit(PathBuf);

impl ProcessLimit {
    /// Creates a cgroup. If that is impossible, prints the reason and returns `None`.
    fn new(name: &str) -> Option<Self> {
        let parents = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        for parent in parents {
            let path = PathBuf::from(parent).join(format!("test-{name}-{}", std::process::id()));
            if fs::create_dir(&path).is_ok() {
                let limit = Self(path);
                if limit.0.join("pids.max").exists() {
                    return Some(limit);
                }
            }
        }
        skip("no cgroup here can limit the number of processes");
        None
    }

    /// Limits the number of processes to `number`. `pid` counts, and so do its children from now on.
    #[track_caller]
    fn set(&self, pid: u32, number: &str) {
        fs::write(self.0.join("pids.max"), number).unwrap();
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for ProcessLimit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// If a standby that imports is killed after its round has started, or ends by itself, the worker is
/// started without it, once.
#[test]
fn worker_starts_although_its_standby_ends() {
    for is_killed in [true, false] {
        let sandbox = Sandbox::new();
        let Some(job) = Job::new(&sandbox) else { return };
        let gate = Gate::new(&sandbox);
        write(&sandbox, "modules/ends.py", "import blocked, os\nos._exit(0)\n");
        write(&sandbox, "train.py", SCRIPT);
        let mut node = job.node("--standby=ends train.py").start();
        let standby = gate.importer();
        let _other = job.complete();
        let started = node.logs("worker started");
        assert!(started.contains(&format!("pid={standby} is_standby=true")), "{started}");
        if is_killed {
            kill(standby, Signal::SIGKILL);
        } else {
            gate.open();
        }
        let started = node.logs("worker started");
        assert!(started.contains("is_standby=false"), "{started}");
        let end = node.end();
        end.assert_code(0);
        assert_eq!(end.stdout.matches("rank 0").count(), 1, "{}", end.stdout);
        assert!(!end.stdout.contains(&standby.to_string()), "{}", end.stdout);
        sandbox.wait_until_nothing_left();
    }
}

/// A standby that still imports when its round starts becomes the worker when it has finished.
#[test]
fn import_continues_in_the_round() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    let gate = Gate::new(&sandbox);
    let script = format!("{SCRIPT}\nimport sys\nprint('json' in sys.modules)");
    write(&sandbox, "train.py", &script);
    // What is left to import is left to the script.
    let mut node = job.node("--standby=blocked,json train.py").start();
    let standby = gate.importer();
    let _other = job.complete();
    node.logs("is_standby=true");
    gate.open();
    let end = node.end();
    end.assert_code(0);
    assert_eq!(end.stdout, format!("rank 0 of {standby}\nFalse\n"));
}

/// A signal to the agent ends a worker at once if its standby still imports. No line of the script has run that could save anything.
#[test]
fn importing_worker_has_no_grace() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        for is_stopped in [false, true] {
            let sandbox = Sandbox::new();
            let Some(job) = Job::new(&sandbox) else { return };
            let job = job.with("--shutdown-timeout 3600");
            let gate = Gate::new(&sandbox);
            write(&sandbox, "train.py", SCRIPT);
            let mut node = job.node("--standby=blocked train.py").start();
            let standby = gate.importer();
            if is_stopped {
                kill(standby, Signal::SIGSTOP);
            }
            let other = job.complete();
            node.logs("is_standby=true");
            node.signal(signal);
            let end = node.end();
            end.assert_code(8);
            // It would wait for another node.
            other.signal(signal);
            assert_eq!(end.stdout, "");
            sandbox.wait_until_nothing_left();
        }
    }
}

/// A standby that was stopped while it waited is a worker that does not run. The agent ends it like a standby that still imports.
#[test]
fn stopped_standby_is_ended() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "train.py", SCRIPT);
    let job = job.with("--shutdown-timeout 3600");
    let mut node = job.ready_node("--standby=json train.py");
    kill(ready_standby(node.pid()), Signal::SIGSTOP);
    let other = job.complete();
    node.logs("is_standby=true");
    node.signal(Signal::SIGTERM);
    node.end().assert_code(8);
    other.signal(Signal::SIGTERM);
    sandbox.wait_until_nothing_left();
}

/// A standby ignores signals, as from a terminal or a service manager. Its worker does not.
#[test]
fn signals_to_standbys_are_ignored() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    let script = "\
import os, signal
for line in open('/proc/self/status'):
    if line.startswith(('SigIgn', 'SigBlk', 'SigPnd', 'ShdPnd')):
        print(line.split())
print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), flush=True)
os.kill(os.getpid(), signal.SIGTERM)
";
    write(&sandbox, "train.py", script);
    let node = job.ready_node("--standby=json train.py");
    let standby = ready_standby(node.pid());
    // All but SIGKILL and SIGSTOP. libc reserves 32 and 33, and faults are not sent.
    let faults = [4, 5, 6, 7, 8, 9, 11, 19, 31];
    for signal in (1..=31).chain(34..=64).filter(|signal| !faults.contains(signal)) {
        let words = [format!("-{signal}"), standby.to_string()];
        let sent = std::process::Command::new("/bin/kill").args(words).status();
        assert!(sent.unwrap().success(), "signal {signal}");
    }
    let end = job.finish(node);
    let standby_lines = end.stdout;
    assert!(end.stderr.contains(&format!("pid={standby} is_standby=true")), "{}", end.stderr);
    assert!(end.stderr.contains("killed by SIGTERM"), "{}", end.stderr);

    let job = Job::new(&sandbox).unwrap();
    let cold = job.finish(job.node("--standby=none train.py").start());
    assert_eq!(standby_lines, cold.stdout);
}

/// If a module sets a handler while it is imported, the worker has that handler.
#[test]
fn handler_of_a_module() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    let module = "\
import signal
signal.signal(signal.SIGTERM, lambda number, frame: print('handled', number, flush=True))
";
    write(&sandbox, "modules/handler.py", module);
    write(&sandbox, "train.py", "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n");
    let end = job.finish(job.ready_node("--standby=handler train.py"));
    end.assert_code(0);
    assert_eq!(end.stdout, "handled 15\n");
    assert!(used_standbys(&end));
}

/// The moment at which a process is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Moment {
    Importing,
    Waiting,
    Stopped,
}

const MOMENTS: [Moment; 3] = [Moment::Importing, Moment::Waiting, Moment::Stopped];

/// Brings a node to a moment, kills what `victims` returns, and waits until nothing is left.
fn nothing_is_left(moment: Moment, has_cgroup: bool, victims: impl Fn(u32, u32) -> Vec<u32>) {
    let cgroup = has_cgroup.then(|| Cgroup::delegated(&format!("standbys-{moment:?}")));
    if matches!(cgroup, Some(None)) {
        return;
    }
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    let gate = Gate::new(&sandbox);
    write(&sandbox, "train.py", SCRIPT);
    let modules = if moment == Moment::Importing { "blocked" } else { "json" };
    let words = format!("--node-rank 0 --nproc-per-node 2 --standby={modules} train.py");
    let words = format!("{} {words}", job.flags);
    let start = match cgroup.as_ref().and_then(Option::as_ref) {
        Some(cgroup) => cgroup.ragent(&sandbox, &words),
        None => sandbox.ragent(&words),
    };
    let mut node = job.prepared(start).start();
    if moment == Moment::Importing {
        gate.importer();
        gate.importer();
    } else {
        node.logs(READY);
    }
    let keeper = keeper_of(node.pid());
    let standbys = children(keeper);
    assert_eq!(standbys.len(), 2);
    if moment == Moment::Stopped {
        for standby in &standbys {
            kill(*standby, Signal::SIGSTOP);
        }
    }
    let victims = victims(node.pid(), keeper);
    // Stopped first, so that none sees the end of another.
    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
        for victim in &victims {
            kill(*victim, signal);
        }
    }
    if victims == [keeper] {
        // The agent goes on.
        wait_for_ends(&standbys);
        node.signal(Signal::SIGTERM);
        node.end().assert_code(8);
    }
    sandbox.wait_until_nothing_left();
}

/// The same if both are killed at the same instant.
#[test]
fn killed_agent_and_keeper_leave_no_standby() {
    for moment in MOMENTS {
        nothing_is_left(moment, false, |agent, keeper| vec![agent, keeper]);
        nothing_is_left(moment, true, |agent, keeper| vec![agent, keeper]);
    }
}

/// After its keeper was killed, a node has standbys again, and its job goes on.
#[test]
fn standbys_return_after_the_keeper_was_killed() {
    let sandbox = Sandbox::new();
    let Some(job) = Job::new(&sandbox) else { return };
    write(&sandbox, "train.py", SCRIPT);
    let mut node = job.ready_node("--standby=json train.py");
    let first = ready_standby(node.pid());
    kill(keeper_of(node.pid()), Signal::SIGKILL);
    node.logs("starting another keeper");
    let next = wait_for_standbys(node.pid(), |standbys| standbys.len() == 1 && standbys != [first]);
    let end = job.finish(node);
    end.assert_code(0);
    assert_eq!(end.stdout, format!("rank 0 of {}\n", next[0]));
}
