//! Runs a job on five nodes from its start to its end, with the faults between.

use std::{
    fs,
    path::{Path, PathBuf},
    process,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use ragent_base::secret::{Secret, file};
use serde_json::Value;

use crate::{
    history::{self, History},
    losses::Losses,
    node::{Chronicle, Newcomers, Node},
    oracle,
    schedule::{HANG_TIMEOUT, NODES, Schedule},
    support::{
        Network, PATIENCE, Sandbox, Start, WorkerProgram, free_port, let_pass, may_make_networks,
    },
};

/// More restarts than any schedule can use.
const MAX_RESTARTS: u32 = 1_000;

/// A machine without an agent, whose link is never cut.
const OBSERVER: u32 = NODES + 1;

/// The network of the nodes: a namespace for each. If none can be made, they share the loopback interface. Then links cannot be cut, and
/// the job has one endpoint.
#[derive(Debug)]
pub(crate) struct Site {
    network: Option<Network>,
    /// The value of `--rdzv-endpoint`.
    endpoint: String,
    /// The flags with the credentials of the job.
    credentials: String,
    /// The sandbox of programs that query the job.
    observer: Sandbox,
    /// Locked while an agent leaves.
    pub(crate) leaving: Mutex<()>,
}

impl Site {
    /// Creates a network in which the job has this number of voters.
    fn new(voters: u32, has_secret: bool) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let observer = Sandbox::new();
        fs::create_dir(observer.path("agreed")).expect("a fresh folder can be written");
        let leaving = Mutex::default();
        let credentials = if has_secret {
            let path = observer.path("secret");
            let secret = Secret::random().expect("the system has random numbers");
            file::create(&path, &secret).expect("a fresh folder can be written");
            format!("--secret-file {}", path.display())
        } else {
            String::new()
        };
        if may_make_networks() {
            let name = format!("chaos{}", NUMBER.fetch_add(1, Ordering::Relaxed));
            let network = Some(Network::new(&name, OBSERVER));
            let hosts: Vec<String> = (1..=voters).map(Network::address).collect();
            let endpoint = format!("{}:29400", hosts.join(","));
            Self { network, endpoint, credentials, observer, leaving }
        } else {
            let endpoint = format!("127.0.0.1:{}", free_port());
            Self { network: None, endpoint, credentials, observer, leaving }
        }
    }

    /// The folder in which all ranks agree on the step that they save for a notice.
    pub(crate) fn agreed(&self) -> PathBuf {
        self.observer.path("agreed")
    }

    /// Returns true if voters elect the coordinator.
    fn is_elected(&self) -> bool {
        self.endpoint.contains(',')
    }

    /// Returns the status of the job. Null if no coordinator answers.
    pub(crate) fn status(&self) -> Value {
        let Self { endpoint, credentials, .. } = self;
        let words = format!("status --json --rdzv-endpoint {endpoint} {credentials}");
        let answer = self.ragent(&self.observer, OBSERVER, &words).run().stdout;
        serde_json::from_str(&answer).unwrap_or_default()
    }

    /// Returns `ragent` with these arguments on a node.
    pub(crate) fn ragent(&self, sandbox: &Sandbox, node: u32, words: &str) -> Start {
        match &self.network {
            Some(network) => network.named_ragent(sandbox, node, words),
            None => sandbox.ragent(words),
        }
    }

    /// Takes the node's link down.
    pub(crate) fn cut(&self, node: u32) {
        if let Some(network) = &self.network {
            network.cut(node);
        }
    }

    /// Brings the node's link up again.
    pub(crate) fn heal(&self, node: u32) {
        if let Some(network) = &self.network {
            network.heal(node);
        }
    }
}

/// The broken rules of a job, and the command that repeats it.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The events of a job, in numbers.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) processes: usize,
    pub(crate) rounds: usize,
    pub(crate) charges: u32,
    pub(crate) standbys: usize,
    /// Rounds that began from memory.
    pub(crate) restored: usize,
    /// Notices after which all ranks have saved.
    pub(crate) saved: usize,
    /// Workers that were killed because they hung.
    pub(crate) hung: usize,
    /// Failures of bad machines that were not charged.
    pub(crate) free: usize,
}

impl Summary {
    fn of(history: &History) -> Self {
        let charges = history.processes.iter().map(|process| process.environment.restart_count);
        Self {
            processes: history.processes.len(),
            rounds: oracle::count_rounds(history),
            charges: charges.max().unwrap_or_default(),
            standbys: history.standbys,
            restored: oracle::count_restored(history),
            saved: oracle::count_saved(history),
            hung: oracle::count_hung(history),
            free: oracle::count_free(history),
        }
    }
}

/// Runs a job through its schedule and checks its history. Keeps the logs if a rule was broken, or if it `is_wanted`.
pub(crate) fn run(
    schedule: &Schedule,
    worker: WorkerProgram,
    is_wanted: bool,
) -> Result<Summary, Failure> {
    let site = Site::new(schedule.voters, schedule.has_secret());
    let chronicle = Chronicle::default();
    let nodes = nodes(schedule, worker, &site, &chronicle);
    let newcomers = Newcomers::default();
    let losses =
        Losses { site: &site, nodes: &nodes, chronicle: &chronicle, newcomers: &newcomers };
    let start = history::now();
    let end_of_losses = thread::scope(|scope| {
        for node in &nodes {
            let newcomers = &newcomers;
            scope.spawn(move || Node::live(node, start, newcomers));
        }
        let end = if site.is_elected() { losses.bring_about(&schedule.losses) } else { Ok(()) };
        // If a loss did not take place, the job still ends with all nodes.
        newcomers.call();
        end
    });
    let mut complaints: Vec<String> = end_of_losses.err().into_iter().collect();
    let inner = |node: Mutex<_>| node.into_inner().expect("a thread that panics ends the test");
    let mut nodes: Vec<Node<'_>> = nodes.into_iter().map(inner).collect();
    chronicle.note("all is well again");
    if let Err(why) = heals(&mut nodes, &site) {
        complaints.push(why);
    }
    let ending = schedule.ending;
    chronicle.note(&format!("the job is to end: {ending:?}"));
    for node in &nodes {
        node.bring_about(ending);
    }
    for node in &mut nodes {
        node.wait_for_job_end(ending, schedule.has_notices());
        complaints.extend(node.sandbox.left().into_iter().map(|left| format!("left: {left}")));
    }
    let mut history = gather(schedule, &nodes);
    history.complaints.extend(complaints);
    let violations = oracle::violations(&history);
    let has_failed = !violations.is_empty();
    let evidence = (has_failed || is_wanted).then(|| keep(schedule, &nodes, &chronicle));
    if !has_failed {
        return Ok(Summary::of(&history));
    }
    Err(Failure(format!(
        "{}\n\n{schedule}\n{}\nlogs are kept in {}\n{}SEED={} cargo test -p ragent --test chaos",
        violations.join("\n"),
        chronicle.text(),
        evidence.unwrap_or_default().display(),
        if worker == WorkerProgram::Python { "WORKER=python " } else { "" },
        schedule.seed
    )))
}

/// The nodes of the job, whose agents are not started yet.
fn nodes<'a>(
    schedule: &'a Schedule,
    worker: WorkerProgram,
    site: &'a Site,
    chronicle: &'a Chronicle,
) -> Vec<Mutex<Node<'a>>> {
    // Workers that begin from nothing again and again make no progress.
    let (script, memory) = if schedule.has_memory() {
        let script = if schedule.is_replicated() { "chaos.py replicated" } else { "chaos.py own" };
        (script, "--memory-limit 64MiB --no-progress-limit 0")
    } else {
        ("chaos.sh", "")
    };
    let notice = if schedule.has_notices() { "--notice 2" } else { "" };
    let hang = if schedule.has_hang_timeout() {
        format!("--hang-timeout {}", HANG_TIMEOUT.as_secs())
    } else {
        String::new()
    };
    let words = format!(
        "{memory} {notice} {hang} {} --rdzv-backend c10d --rdzv-id {} --nnodes {}:{NODES} --max-restarts {MAX_RESTARTS} \
         --shutdown-timeout 1 --rdzv-endpoint {} --rdzv-conf \
         join_settle=0.2,last_call_timeout=1,shrink_timeout=0.5,join_timeout={}",
        site.credentials,
        run_id(schedule),
        schedule.min_nodes,
        site.endpoint,
        // As long as the test waits for the job to heal, because the machine may be busy.
        PATIENCE.as_secs()
    );
    let node = |(number, plan)| {
        // The only endpoint is always that of node 1.
        let is_host =
            if site.is_elected() { String::new() } else { format!(",is_host={}", number == 1) };
        Mutex::new(Node::new(
            number,
            site,
            (plan, worker),
            (script, &(words.clone() + &is_host)),
            chronicle,
        ))
    };
    (1..).zip(&schedule.plans).map(node).collect()
}

fn run_id(schedule: &Schedule) -> String {
    format!("chaos-{}", schedule.seed)
}

fn gather(schedule: &Schedule, nodes: &[Node<'_>]) -> History {
    let mut all = History {
        run_id: run_id(schedule),
        min_nodes: schedule.min_nodes,
        max_nodes: NODES,
        max_restarts: MAX_RESTARTS,
        is_replicated: schedule.is_replicated(),
        ..History::default()
    };
    for history in nodes.iter().map(Node::history) {
        all.processes.extend(history.processes);
        all.admissions.extend(history.admissions);
        all.deaths.extend(history.deaths);
        all.thaws.extend(history.thaws);
        all.failures.extend(history.failures);
        all.codes.extend(history.codes);
        all.saved_ends.extend(history.saved_ends);
        all.journal.extend(history.journal);
        all.standbys += history.standbys;
        all.complaints.extend(history.complaints);
    }
    all.failures.sort();
    all.journal.sort_by(|a, b| (&a.job, a.id).cmp(&(&b.job, b.id)));
    all
}

/// Waits until the job runs on every node that is not quarantined. No event reports that, so this
/// polls.
fn heals(nodes: &mut [Node<'_>], site: &Site) -> Result<(), String> {
    let deadline = history::now() + PATIENCE;
    // The round that runs everywhere, and the time at which it was first seen.
    let mut seen = (Value::Null, Duration::ZERO);
    loop {
        let status = site.status();
        if seen.0 != status["round"] {
            seen = (status["round"].clone(), history::now());
        }
        if let Some(workers) = runs_everywhere(&status) {
            let processes = nodes.iter().flat_map(|node| node.history().processes);
            let alive = processes.filter(|worker| worker.is_worker && worker.last_seen() > seen.1);
            if alive.count() == workers {
                return Ok(());
            }
        }
        if history::now() > deadline {
            return Err(format!("the job does not run: {status}"));
        }
        let_pass(Duration::from_millis(100));
        for node in &mut *nodes {
            node.revive();
        }
    }
}

/// The number of workers of a job in which every node runs or is quarantined.
fn runs_everywhere(status: &Value) -> Option<usize> {
    let nodes = status["nodes"].as_array()?;
    let count = |state| nodes.iter().filter(|node| node["state"] == state).count();
    let is_whole = status["phase"] == "running"
        && count("running") + count("quarantined") == NODES as usize
        && count("lost") + NODES as usize == nodes.len();
    is_whole.then(|| usize::try_from(status["world_size"].as_u64()?).ok())?
}

/// Keeps the logs of agents and the files of workers.
fn keep(schedule: &Schedule, nodes: &[Node<'_>], chronicle: &Chronicle) -> PathBuf {
    // Earlier runs of the same seed have folders of their own.
    let now = history::now().as_millis();
    let folder = format!("{}.{}.{now}", run_id(schedule), process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let save = || {
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("chronicle"), format!("{schedule}\n{}", chronicle.text()))?;
        for node in nodes {
            for file in node.sandbox.files_below("") {
                if file.ends_with(".log") || file.starts_with("history/") || file == "journal" {
                    let name = format!("node{}.{}", node.number, file.replace('/', "."));
                    fs::copy(node.sandbox.path(&file), folder.join(name))?;
                }
            }
        }
        std::io::Result::Ok(())
    };
    if let Err(error) = save() {
        chronicle.note(&format!("the evidence is lost: {error}"));
    }
    folder
}
