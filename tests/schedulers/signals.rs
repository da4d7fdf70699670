//! Tests which processes of a batch job the real Slurm signals: its shell, `srun`, the tasks of its step, and their descendants.
//!
//! Fake tasks write each signal to a pipe. To know that one did not get a signal, the test sends it another: a process that has written the
//! second has written all that came before.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
    thread,
};

use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd,
};
use ragent_base::sys::clock;

use super::slurm_cluster::Cluster;
use crate::support::{PATIENCE, Program, Sandbox, Stream, is_alive, is_there, kill, skip};

/// A plugin of Slurm that finds the processes of a step, and the members of a process's family that it finds for a signal other than
/// SIGKILL.
struct Tracking {
    plugin: &'static str,
    finds: &'static [&'static str],
}

const BY_PARENT: Tracking =
    Tracking { plugin: "linuxproc", finds: &["", ".child", ".group", ".session"] };
const BY_GROUP: Tracking = Tracking { plugin: "pgid", finds: &["", ".child"] };
const BY_CGROUP: Tracking = Tracking { plugin: "cgroup", finds: &[""] };

/// The processes of `signals.py NAME family`, by what follows NAME.
const FAMILY: [&str; 5] = ["", ".child", ".group", ".session", ".daemon"];

/// The beginning of a batch script whose shell writes its signals to the pipe, too, and [its end](STAY).
const SHELL: &str = r#"#!/bin/bash
exec 3>"$RECORDS"
for name in USR1 USR2 TERM; do trap "echo '0 shell SIG$name' >&3" $name; done
echo "0 shell pid=$$" >&3
"#;

/// The end of such a script. A signal just before `wait` begins to wait would not interrupt it.
const STAY: &str = "while :; do sleep 0.1; done\n";

impl Tracking {
    /// Starts a cluster that finds processes in this way, and sends SIGKILL 10 s after SIGTERM. The default is 30 s.
    fn cluster<'a>(&self, sandbox: &'a Sandbox) -> Option<Cluster<'a>> {
        let settings = format!("ProctrackType=proctrack/{}\nKillWait=10", self.plugin);
        fs::write(sandbox.path("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").unwrap();
        is_there("python3").then(|| Cluster::start_with(sandbox, &settings))?
    }

    /// The processes that a signal to `name` reaches on the first `nodes` nodes.
    fn reached(&self, name: &str, nodes: u32) -> BTreeSet<String> {
        family(name, self.finds, nodes)
    }
}

/// These members of the family of `name` on the first `nodes` nodes.
fn family(name: &str, members: &[&str], nodes: u32) -> BTreeSet<String> {
    let on = |node| members.iter().map(move |member| format!("{node} {name}{member}"));
    (0..nodes).flat_map(on).collect()
}

fn shell() -> BTreeSet<String> {
    family("shell", &[""], 1)
}

fn union(sets: &[BTreeSet<String>]) -> BTreeSet<String> {
    sets.iter().flatten().cloned().collect()
}

/// Waits for a change that nothing reports.
#[track_caller]
fn wait_until(mut is_met: impl FnMut() -> bool) {
    let deadline = clock::now_blocking() + PATIENCE;
    while !is_met() {
        assert!(clock::now_blocking() < deadline, "it never changes");
        thread::yield_now();
    }
}

/// A batch job whose processes write their signals to a pipe.
struct Job {
    id: String,
    /// Prints what is written to the pipe.
    records: Program,
    /// The number of its lines that an assertion has read.
    read: usize,
    pipe: File,
    pids: BTreeMap<String, u32>,
}

impl Job {
    /// Submits a batch script with these options of `sbatch`, and waits until these processes of it have started.
    fn start(
        (sandbox, cluster): (&Sandbox, &Cluster<'_>),
        (name, options): (&str, &str),
        script: &str,
        processes: &BTreeSet<String>,
    ) -> Self {
        let path = |suffix: &str| sandbox.path(&format!("{name}.{suffix}"));
        fs::write(path("sh"), script).unwrap();
        unistd::mkfifo(&path("pipe"), Mode::S_IRWXU).unwrap();
        let records = sandbox.program("cat").arg(path("pipe")).start();
        let pipe = OpenOptions::new().write(true).open(path("pipe")).unwrap();
        let submit = cluster.user(&format!("sbatch --parsable -o {name}.out {options}"));
        let submitted = submit.arg(path("sh")).env("RECORDS", path("pipe")).run();
        let id = submitted.stdout.trim().to_owned();
        let mut job = Self { id, records, read: 0, pipe, pids: BTreeMap::new() };
        for process in processes {
            let pid = job.pid(process);
            job.pids.insert(process.clone(), pid);
        }
        job
    }

    /// Waits until a process has started, and returns its id.
    fn pid(&mut self, process: &str) -> u32 {
        let line = self.records.prints(&format!("{process} pid="));
        line.rsplit('=').next().unwrap().parse().unwrap()
    }

    /// Waits until `processes` have got SIGUSR1, and asserts that no other process has, since the last call.
    #[track_caller]
    fn assert_got_usr1(&mut self, processes: &BTreeSet<String>) {
        self.wait_for("SIGUSR1", processes);
        for (process, pid) in &self.pids {
            // Pending signals are delivered by number, and this has a higher one.
            kill(*pid, Signal::SIGUSR2);
            self.records.prints(&format!("{process} SIGUSR2"));
        }
        assert_eq!(self.got("SIGUSR1"), *processes);
        self.read = self.records.text(Stream::Stdout).lines().count();
    }

    /// Waits until `processes` have got SIGTERM and `killed` are dead, and asserts that no others have or are.
    #[track_caller]
    fn assert_ended(&mut self, processes: &BTreeSet<String>, killed: &BTreeSet<String>) {
        self.wait_for("SIGTERM", processes);
        wait_until(|| !killed.iter().any(|process| is_alive(self.pids[process])));
        let dead = self.pids.iter().filter(|(_, pid)| !is_alive(**pid));
        let dead: BTreeSet<String> = dead.map(|(process, _)| process.clone()).collect();
        assert_eq!(dead, *killed);
        self.pipe.write_all(b"they are dead\n").unwrap();
        self.records.prints("they are dead");
        assert_eq!(self.got("SIGTERM"), *processes);
        // The shell does not write it.
        assert_eq!(union(&[self.got("SIGCONT"), shell()]), *processes);
    }

    #[track_caller]
    fn wait_for(&mut self, signal: &str, processes: &BTreeSet<String>) {
        for process in processes {
            self.records.prints(&format!("{process} {signal}"));
        }
    }

    /// The processes whose lines name the signal, among the lines that no assertion has read.
    fn got(&self, signal: &str) -> BTreeSet<String> {
        let text = self.records.text(Stream::Stdout);
        let lines = text.lines().skip(self.read);
        let names = lines.filter_map(|line| line.strip_suffix(signal)?.strip_suffix(' '));
        names.map(str::to_owned).collect()
    }
}

/// Tests the signals of a batch job with a step on two nodes. `end` ends it.
#[track_caller]
fn assert_reached(sandbox: &Sandbox, cluster: &Cluster<'_>, tracking: &Tracking, end: &str) -> Job {
    let script = format!(
        "{SHELL}signals.py shell.child &
        srun --kill-on-bad-exit=0 signals.py task family &
        {STAY}"
    );
    let of_batch = family("shell", &["", ".child"], 1);
    let everyone = union(&[of_batch.clone(), family("task", &FAMILY, 2)]);
    let mut job = Job::start((sandbox, cluster), ("job", "-N 2"), &script, &everyone);
    let id = job.id.clone();
    let run = |words: &str| cluster.user(&format!("{words} {id}")).run().assert_code(0);
    let tasks = tracking.reached("task", 2);

    run("scancel --signal=USR1");
    job.assert_got_usr1(&tasks);
    run("scancel --signal=USR1 --batch");
    job.assert_got_usr1(&shell());
    run("scancel --signal=USR1 --full");
    job.assert_got_usr1(&union(&[of_batch.clone(), tasks.clone()]));

    run(end);
    let shells = tracking.reached("shell", 1).intersection(&of_batch).cloned().collect();
    let signaled = union(&[shells, tasks]);
    // Only a cgroup holds all processes of a step until SIGKILL.
    let is_complete = tracking.plugin == BY_CGROUP.plugin;
    job.assert_ended(&signaled, if is_complete { &everyone } else { &signaled });
    job
}

/// With `proctrack/linuxproc`, a signal reaches all descendants of a task, in other groups and sessions, too. It does not reach a daemon,
/// and SIGKILL does not either.
#[test]
fn signals_of_processes_found_by_parent() {
    let sandbox = Sandbox::new();
    let Some(cluster) = BY_PARENT.cluster(&sandbox) else { return };
    assert_reached(&sandbox, &cluster, &BY_PARENT, "scancel");
}

/// With `proctrack/pgid`, a signal reaches the process group of a task, and SIGKILL reaches no more. `scontrol requeue` sends the same
/// signals as `scancel`.
#[test]
fn signals_of_processes_found_by_group() {
    let sandbox = Sandbox::new();
    let Some(cluster) = BY_GROUP.cluster(&sandbox) else { return };
    assert_reached(&sandbox, &cluster, &BY_GROUP, "scontrol requeue");
}

/// With `proctrack/cgroup`, a signal reaches only the task itself, and SIGKILL all processes of the step.
#[test]
fn signals_of_processes_found_by_cgroup() {
    const FREEZER: &str = "/sys/fs/cgroup/freezer";
    if !Path::new(FREEZER).exists() {
        return skip("the cgroups of Slurm want the freezer of cgroup v1");
    }
    let sandbox = Sandbox::new();
    let Some(cluster) = BY_CGROUP.cluster(&sandbox) else { return };
    let job = assert_reached(&sandbox, &cluster, &BY_CGROUP, "scancel");
    for node in 1..=3 {
        let user = format!("{FREEZER}/slurm_n{node}/uid_0");
        wait_until(|| !Path::new(&format!("{user}/job_{}", job.id)).exists());
        // Another test may use them.
        let _ = fs::remove_dir(&user);
        let _ = fs::remove_dir(format!("{FREEZER}/slurm_n{node}"));
    }
}

/// `--signal=B:USR1@60` reaches only the shell of the batch script, and `--signal=USR1@60` only its step. At the time limit, both get
/// SIGTERM, and later SIGKILL.
///
/// This takes a minute and a half: no time limit is below a minute, and Slurm compares it with the clock every 30 s.
#[test]
fn signals_before_and_at_the_time_limit() {
    let sandbox = Sandbox::new();
    let Some(cluster) = BY_PARENT.cluster(&sandbox) else { return };
    let script = format!(
        "{SHELL}srun --kill-on-bad-exit=0 signals.py task family &
        {STAY}"
    );
    let tasks = BY_PARENT.reached("task", 1);
    let everyone = union(&[shell(), family("task", &FAMILY, 1)]);
    let start = |name, flag: &str| {
        let options = format!("-N 1 --time=1 {flag}");
        Job::start((&sandbox, &cluster), (name, &options), &script, &everyone)
    };
    let mut jobs = [
        (start("shell", "--signal=B:USR1@60"), shell()),
        (start("step", "--signal=USR1@60"), tasks.clone()),
    ];
    for (job, warned) in &mut jobs {
        job.assert_got_usr1(warned);
    }
    let signaled = union(&[shell(), tasks]);
    for (job, _) in &mut jobs {
        job.assert_ended(&signaled, &signaled);
    }
}

/// `srun` passes SIGUSR1 on to its tasks. SIGTERM for `srun` is SIGKILL for them, and so is `scancel` with the number of the step.
#[test]
fn signals_of_srun() {
    let sandbox = Sandbox::new();
    let Some(cluster) = BY_PARENT.cluster(&sandbox) else { return };
    let script = r#"#!/bin/bash
        exec 3>"$RECORDS"
        srun --kill-on-bad-exit=0 signals.py task &
        echo "0 srun pid=$!" >&3
        wait $!
        echo "0 srun code=$?" >&3
    "#;
    let tasks = family("task", &[""], 2);
    for name in ["srun", "step"] {
        let mut job = Job::start((&sandbox, &cluster), (name, "-N 2"), script, &tasks);
        let srun = job.pid("0 srun");
        kill(srun, Signal::SIGUSR1);
        job.assert_got_usr1(&tasks);
        match name {
            "srun" => kill(srun, Signal::SIGTERM),
            _ => cluster.user(&format!("scancel {}.0", job.id)).run().assert_code(0),
        }
        job.records.prints("0 srun code=137");
        assert_eq!(job.got("SIGTERM"), BTreeSet::new());
    }
}

/// `srun` exits with the highest code of its tasks.
#[test]
fn highest_code_counts() {
    let sandbox = Sandbox::new();
    let Some(cluster) = BY_PARENT.cluster(&sandbox) else { return };
    let srun = cluster.user("srun -N 3 --kill-on-bad-exit=0 sh -c");
    srun.arg("set 5 8 5; shift $SLURM_PROCID; exit $1").run().assert_code(8);
}

/// A batch script whose shell has a trap gets the exit code of `srun`, with and without a signal, and requeues its job.
#[test]
fn script_with_a_trap_gets_the_exit_code() {
    let sandbox = Sandbox::new();
    let Some(cluster) = BY_PARENT.cluster(&sandbox) else { return };
    let task = family("task", &[""], 1);
    for (number, shell) in ["/bin/bash", "/bin/bash --posix", "/bin/sh"].into_iter().enumerate() {
        let script = format!("#!{shell}\n{TRAP}");
        let start = |name: &str| {
            let name = format!("{name}{number}");
            Job::start((&sandbox, &cluster), (&name, "-N 1 --requeue"), &script, &task)
        };
        let [mut plain, mut warned] = ["plain", "warned"].map(start);
        cluster.user(&format!("scancel -s USR1 --batch {}", warned.id)).run().assert_code(0);
        warned.records.prints("0 shell trapped");
        for job in [&mut plain, &mut warned] {
            kill(job.pids["0 task"], Signal::SIGHUP);
            job.records.prints("0 shell code=5");
            let shown = format!("scontrol show job {}", job.id);
            wait_until(|| cluster.user(&shown).run().stdout.contains("Restarts=1"));
        }
    }
}

/// The script of `docs/schedulers.md` for a shell with a trap, which here writes what it does.
const TRAP: &str = r#"
exec 3>"$RECORDS"
trap 'echo "0 shell trapped" >&3' USR1
srun --kill-on-bad-exit=0 signals.py task &
wait $!; code=$?
# A trap has interrupted `wait`.
if [ $code -gt 128 ]; then wait $!; code=$?; fi
echo "0 shell code=$code" >&3
if [ $code = 5 ]; then scontrol requeue $SLURM_JOB_ID; fi
exit $code
"#;

/// Workers are descendants of a task. So Slurm signals them itself if it finds processes by their parents, and their daemons, too. Otherwise
/// only the agent does.
#[test]
fn signals_of_workers() {
    for tracking in [BY_PARENT, BY_GROUP] {
        let sandbox = Sandbox::new();
        let Some(cluster) = tracking.cluster(&sandbox) else { return };
        let ragent = env!("CARGO_BIN_EXE_ragent");
        let script = format!(
            "#!/bin/bash
            srun {ragent} --no-python --signals-to-forward SIGUSR1 signals.py worker family\n"
        );
        let workers = family("worker", &FAMILY, 1);
        let mut job = Job::start((&sandbox, &cluster), ("job", "-N 1"), &script, &workers);
        cluster.user(&format!("scancel -s USR1 {}", job.id)).run().assert_code(0);
        let is_by_parent = tracking.plugin == BY_PARENT.plugin;
        let of_agent = family("worker", &["", ".child"], 1);
        job.assert_got_usr1(if is_by_parent { &workers } else { &of_agent });
    }
}
