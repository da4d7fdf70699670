//! Registers many agents with one coordinator at once, and prints a line of JSON about it.
//!
//! The coordinator is one of several processes, which have elected it before the agents start. The agents are tasks in this process. Each
//! drives the library's real agent over its own connection, with a listening worker store. Only the workers are missing: their supervisor
//! receives commands and starts nothing.
//!
//! 1. The job needs all agents, so its round completes when the last one has joined. The time from the first dial until every agent has
//!    been admitted is measured.
//! 2. Then one of three things is measured:
//!     - One agent fails, and the others are admitted to the next round.
//!     - The coordinator is killed, and another one admits all agents.
//!     - Nothing happens for a while, and the coordinator uses resources.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, future,
    io::{BufRead as _, BufReader, Write as _},
    net::{IpAddr, Ipv4Addr, TcpListener},
    path::PathBuf,
    pin::pin,
    process::{Child, Command as Program, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{Signal, kill},
    },
    unistd::Pid,
};
use ragent_base::{
    net::{Endpoint, Reach},
    report::{service_manager::ServiceManager, telemetry::Log},
    secret::{Credentials, Origin, Secret, Unsecured, file},
    sys::host::ThisHost,
};
use ragent_benches::{cpu_time, now, observers::Observers};
use ragent_core::{
    agent::AgentSettings, memory::MemorySettings, steps::NodeSteps, supervisor::GroupEnd,
};
use ragent_node::{
    memory::{MemoryService, MemoryServiceSettings},
    node::{
        destination::Destination,
        driver::{self, AgentSpec},
        worker_stores::{StorePortMode, WorkerStores},
    },
};
use ragent_options::{
    cli::Cli,
    spec::{JobSpec, StorePorts},
};
use ragent_proto::convert::CoordinatorAddress;
use ragent_rendezvous::{
    ids::{LocalRank, NodeId, RoundId, RunId},
    message::{Admission, KnownRound, NodeDescription, StepSource, WorkerEnd, WorkerFailure},
    settings::{Leases, NodeRange, SharedSettings, Timeouts},
};
use ragent_store::StoreThread;
use ragent_workers::driver::{WorkersCommand, WorkersEvent, WorkersHandle};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinSet, LocalSet},
    time::timeout,
};

#[derive(Debug, Parser)]
struct Args {
    /// The program that runs the coordinator.
    #[arg(long, default_value = "target/release/ragent")]
    ragent: PathBuf,
    /// Number of agents.
    #[arg(long, default_value_t = 1000)]
    agents: u16,
    /// Number of coordinators, which elect one of them: 3 or 5.
    #[arg(long, default_value_t = 3)]
    voters: usize,
    /// Authenticates and encrypts the connections with a secret.
    #[arg(long)]
    secured: bool,
    /// The fault after all agents have been admitted.
    #[arg(long)]
    then: Option<Blow>,
    /// Seconds for which the idle coordinator is measured.
    #[arg(long)]
    hold: Option<u64>,
    /// A shell command that runs while the idle coordinator is measured, for example a flood of connections by another user. It gets the
    /// endpoints as further arguments.
    #[arg(long, requires = "hold")]
    meanwhile: Option<String>,
    /// Number of readers of the job's page while the idle coordinator is measured. Each agent then reports
    /// another training step with each keep-alive, so that the state changes all the time.
    #[arg(long, requires = "hold", conflicts_with = "secured")]
    readers: Option<usize>,
    /// Seconds between two scrapes of the coordinator's metrics meanwhile.
    #[arg(long, requires = "readers")]
    scrape: Option<u64>,
    /// Milliseconds for which the coordinator is stopped after all agents have been admitted. Measures the time until every lease is
    /// renewed, and the number of connections opened for that.
    #[arg(long)]
    pause: Option<u64>,
}

/// A fault of an agent, or of the coordinator.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Blow {
    /// A worker of an agent fails.
    Fail,
    /// An agent becomes silent.
    Lose,
    /// The coordinator that was elected is killed.
    Kill,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    raise_limit_on_files()?;
    let mut coordinators = Coordinators::start(&args)?;
    let report = LocalSet::new().run_until(measure(&args, &mut coordinators)).await?;
    writeln!(std::io::stdout(), "{report}")?;
    Ok(())
}

async fn measure(args: &Args, coordinators: &mut Coordinators) -> Result<Value> {
    let count = usize::from(args.agents);
    // Each thread has descriptors of its own. With thousands of agents, one thread per agent would need too many.
    let (files, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let has_listeners = (count * FILES_PER_AGENT) as u64 + OTHER_FILES < files;
    let mut thread = Arc::new(StoreThread::start("stores")?);
    let mut stores = Vec::with_capacity(count);
    for number in 1..=count {
        stores.push(open_stores(Arc::clone(&thread), has_listeners));
        if number % AGENTS_PER_THREAD == 0 {
            thread = Arc::new(StoreThread::start("stores")?);
        }
    }
    let left = if args.then == Some(Blow::Lose) { count - 1 } else { count };
    let nodes = NodeRange::new(left as u32, count as u32).context("there must be an agent left")?;
    let shared = SharedSettings {
        max_restarts: 1,
        timeouts: Timeouts { shrink: Duration::ZERO, ..Timeouts::default() },
        ..SharedSettings::new(nodes)
    };
    // The leader. The others cost less.
    let pid = coordinators.processes[0].id();
    let (start, opened) = (now(), connections_opened()?);
    let mut crowd = Crowd::start(coordinators, shared, stores, args.readers.is_some());
    let admitted = crowd.admitted(count).await?;
    let mut report = json!({
        "agents": args.agents,
        "seconds": seconds_at(1.0, start, &admitted),
        "p50_s": seconds_at(0.5, start, &admitted),
        "p99_s": seconds_at(0.99, start, &admitted),
        "coordinator_cpu_s": cpu_time(pid)?.as_secs_f64(),
        "connections": connections_opened()? - opened,
    });
    if let Some(seconds) = args.hold {
        crowd.rest(CALM).await?;
        let meanwhile = args.meanwhile.as_ref().map(|command| coordinators.run_meanwhile(command));
        let mut meanwhile = meanwhile.transpose()?;
        let observers = args.readers.map(|readers| {
            let address = coordinators.endpoints[0].to_string().parse()?;
            Observers::start(address, readers, args.scrape.map(Duration::from_secs))
        });
        let observers = observers.transpose()?;
        let (cpu, start) = (cpu_time(pid)?, now());
        crowd.rest(Duration::from_secs(seconds)).await?;
        report["held"] = json!({
            "seconds": (now() - start).as_secs_f64(),
            "cpu_s": (cpu_time(pid)? - cpu).as_secs_f64(),
            "rss_kb": status_kb(pid, "VmRSS")?,
            "rss_anon_kb": status_kb(pid, "RssAnon")?,
            "admitted_again": crowd.admitted_again(),
        });
        if let Some(observers) = observers {
            report["observed"] = observers.end()?;
        }
        if let Some(process) = &mut meanwhile {
            kill(Pid::from_raw(process.id().try_into()?), Signal::SIGTERM)?;
            process.wait()?;
        }
    }
    if let Some(ms) = args.pause {
        crowd.rest(CALM).await?;
        report["paused"] = crowd.pause(pid, count, Duration::from_millis(ms)).await?;
    }
    if let Some(blow) = args.then {
        crowd.rest(CALM).await?;
        let (cpu, start) = (cpu_time(pid)?, now());
        match blow {
            Blow::Fail | Blow::Lose => crowd.last.send(blow).await?,
            Blow::Kill => coordinators.kill_leader()?,
        }
        let admitted = crowd.admitted(left).await?;
        report["again"] = json!({
            "seconds": seconds_at(1.0, start, &admitted),
            "p50_s": seconds_at(0.5, start, &admitted),
        });
        if blow != Blow::Kill {
            report["again"]["coordinator_cpu_s"] = (cpu_time(pid)? - cpu).as_secs_f64().into();
        }
    }
    Ok(report)
}

fn seconds_at(quantile: f64, start: Instant, sorted: &[Instant]) -> f64 {
    let index = (sorted.len() - 1) as f64 * quantile;
    (sorted[index as usize] - start).as_secs_f64()
}

/// Returns the connections accepted on this machine since boot.
fn connections_opened() -> Result<u64> {
    let counters = fs::read_to_string("/proc/net/snmp")?;
    let mut lines = counters.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next().context("no names")?, lines.next().context("no values")?);
    let index = names.split(' ').position(|name| name == "PassiveOpens").context("no counter")?;
    Ok(values.split(' ').nth(index).context("no value")?.parse()?)
}

fn status_kb(pid: u32, field: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with(field)).context("no such field")?;
    Ok(line.split_whitespace().nth(1).context("a field without a value")?.parse()?)
}

/// Agents whose stores share a thread: at most as many as may wait to be opened by it.
const AGENTS_PER_THREAD: usize = 32;

/// Returns the stores of an agent. They have no listener if there are too few descriptors for one in each agent.
fn open_stores(thread: Arc<StoreThread>, has_listener: bool) -> WorkerStores {
    let reach = Reach::Loopback(Ipv4Addr::LOCALHOST.into());
    let mode = if has_listener {
        StorePortMode::Ports { reach, ports: StorePorts::Any, is_served: true }
    } else {
        StorePortMode::OnePort { port: 1, store_sender: watch::channel(None).0 }
    };
    WorkerStores::new(thread, mode)
}

/// Agents of one coordinator.
struct Crowd {
    agents: JoinSet<Result<()>>,
    /// The rounds to which an agent was admitted, with the time.
    admissions: mpsc::Receiver<(RoundId, Instant)>,
    /// Numbers of agents whose lease was renewed.
    renewed: mpsc::Receiver<u32>,
    /// Faults for the last agent.
    last: mpsc::Sender<Blow>,
}

impl Crowd {
    fn start(
        to: &Coordinators,
        shared: SharedSettings,
        stores: Vec<WorkerStores>,
        makes_steps: bool,
    ) -> Self {
        let (admitted, admissions) = mpsc::channel(stores.len());
        let (renew, renewed) = mpsc::channel(64 * stores.len());
        let (mut last, _) = mpsc::channel(1);
        let mut agents = JoinSet::new();
        let job = job(to, shared);
        for (number, stores) in (0..).zip(stores) {
            let spec = agent(number, to, shared, &job);
            let (sender, blows) = mpsc::channel(1);
            let reports = (admitted.clone(), renew.clone(), number, makes_steps);
            agents.spawn_local(run_agent(spec, stores, reports, blows));
            last = sender;
        }
        Self { agents, admissions, renewed, last }
    }

    /// Waits until `count` agents have been admitted to one round. Returns the sorted times.
    async fn admitted(&mut self, count: usize) -> Result<Vec<Instant>> {
        timeout(TIMEOUT, self.gather(count))
            .await
            .context("not all agents were admitted in time")?
    }

    async fn gather(&mut self, count: usize) -> Result<Vec<Instant>> {
        let (mut latest, mut moments) = (None, Vec::new());
        while moments.len() < count {
            tokio::select! {
                Some((round, moment)) = self.admissions.recv() => {
                    if latest.replace(round) != Some(round) {
                        moments.clear();
                    }
                    moments.push(moment);
                }
                Some(ended) = self.agents.join_next() => ended??,
            }
        }
        moments.sort_unstable();
        Ok(moments)
    }

    /// Stops the coordinator for `time`, and waits until the leases of all `count` agents are
    /// renewed.
    async fn pause(&mut self, pid: u32, count: usize, time: Duration) -> Result<Value> {
        let pid = Pid::from_raw(pid.try_into()?);
        let opened = connections_opened()?;
        kill(pid, Signal::SIGSTOP)?;
        self.rest(time).await?;
        kill(pid, Signal::SIGCONT)?;
        let woke = now();
        while self.renewed.try_recv().is_ok() {}
        let mut missing: BTreeSet<u32> = (0..u32::try_from(count)?).collect();
        let all = async {
            while let Some(number) = self.renewed.recv().await {
                missing.remove(&number);
                if missing.is_empty() {
                    return;
                }
            }
        };
        let _ = timeout(TIMEOUT, all).await;
        let over = (now() - woke).as_secs_f64();
        let missing = missing.len();
        // Further attempts would indicate a reconnect storm.
        self.rest(Duration::from_secs(5)).await?;
        let connections = connections_opened()? - opened;
        let again = self.admitted_again();
        Ok(json!({
            "over_s": over,
            "not_renewed": missing,
            "connections": connections,
            "admitted_again": again,
        }))
    }

    /// Returns the number of admissions that have not been counted: none if no lease was lost.
    fn admitted_again(&mut self) -> usize {
        std::iter::from_fn(|| self.admissions.try_recv().ok()).count()
    }

    /// Waits for `time`. Returns an error if an agent ends.
    async fn rest(&mut self, time: Duration) -> Result<()> {
        match timeout(time, self.agents.join_next()).await {
            Ok(Some(ended)) => ended?,
            Ok(None) | Err(_) => Ok(()),
        }
    }
}

/// The senders for admissions and lease renewals of an agent, its number, and true if it reports training steps.
type ToCrowd = (mpsc::Sender<(RoundId, Instant)>, mpsc::Sender<u32>, u32, bool);

/// Runs one agent, and reports its admissions.
async fn run_agent(
    spec: AgentSpec,
    stores: WorkerStores,
    crowd: ToCrowd,
    mut blows: mpsc::Receiver<Blow>,
) -> Result<()> {
    let (commands, orders) = mpsc::channel(QUEUE);
    let (reports, events) = mpsc::channel(QUEUE);
    let (fail, failures) = mpsc::channel(1);
    let (_send_signal, mut signals) = mpsc::channel(1);
    let task = tokio::spawn(supervise(orders, failures, reports, crowd));
    let (_, health) = watch::channel(ragent_core::health::NodeHealth::default());
    let mut supervisor = WorkersHandle { commands, events, health, task };
    let mut nobody = ServiceManager::default();
    let (_notices, mut notices) = mpsc::channel(1);
    let memory = MemoryService::new(MemoryServiceSettings {
        credentials: spec.job.credentials.clone(),
        socket_dir: ThisHost.socket_dir(),
        connections: None,
    });
    let mut agent = pin!(driver::drive(
        spec,
        (stores, memory),
        &mut supervisor,
        &mut signals,
        &mut notices,
        &mut nobody
    ));
    loop {
        tokio::select! {
            ending = &mut agent => anyhow::bail!("an agent has ended: {:?}", ending?),
            Some(blow) = blows.recv() => match blow {
                Blow::Fail | Blow::Kill => fail.send(()).await?,
                // Its connection stays open, as that of a machine that lost power.
                Blow::Lose => future::pending().await,
            },
        }
    }
}

/// Handles an agent's commands, without any workers.
async fn supervise(
    mut orders: mpsc::Receiver<WorkersCommand>,
    mut failures: mpsc::Receiver<()>,
    reports: mpsc::Sender<WorkersEvent>,
    (admitted, renewed, number, makes_steps): ToCrowd,
) {
    let (mut group, mut step) = (None, 0);
    loop {
        // Sending fails once the agent has ended.
        tokio::select! {
            order = orders.recv() => match order {
                None => return,
                Some(WorkersCommand::Start { admission, .. }) => {
                    let _ = admitted.send((admission.round, now())).await;
                    group = Some(admission);
                }
                Some(WorkersCommand::Stop { .. } | WorkersCommand::Kill) if group.take().is_some() => {
                    let _ = reports.send(WorkersEvent::Finished(GroupEnd::Stopped)).await;
                }
                Some(WorkersCommand::Renew(_)) => {
                    // Only the measurement of a pause uses it, and the next renewal follows soon.
                    let _ = renewed.try_send(number);
                    if makes_steps && group.is_some() {
                        step += 1;
                        let (source, total, at) = (StepSource::Reported, Some(100_000), now());
                        let steps = NodeSteps { source, lowest: step, highest: step, total, at };
                        let _ = reports.send(WorkersEvent::Steps(steps)).await;
                    }
                }
                Some(_) => {}
            },
            Some(()) = failures.recv() => if let Some(admission) = group.take() {
                let _ = reports.send(WorkersEvent::Failed(Box::new(failure(&admission)))).await;
                let _ = reports.send(WorkersEvent::Finished(GroupEnd::Stopped)).await;
            },
        }
    }
}

fn failure(admission: &Admission) -> WorkerFailure {
    WorkerFailure::new(
        "failing",
        admission.round,
        (admission.first_global_rank, LocalRank(0)),
        1,
        WorkerEnd::Exited(1),
    )
}

fn agent(
    number: u32,
    coordinators: &Coordinators,
    shared: SharedSettings,
    job: &Arc<JobSpec>,
) -> AgentSpec {
    // One address per agent. They are never dialed.
    let address: IpAddr = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 1)) + number).into();
    let node = NodeDescription {
        addresses: vec![address],
        // Never dialed either.
        agent_port: 1,
        script: "train.py".to_owned(),
        ..NodeDescription::new(
            NodeId::new(format!("node{number}_1_0")),
            format!("node{number}"),
            address.to_string(),
        )
    };
    AgentSpec {
        since: None,
        leadership: None,
        log: Log::disabled(),
        job: Arc::clone(job),
        destination: coordinators.destination(),
        node,
        measures: Arc::default(),
        settings: AgentSettings {
            memory: MemorySettings::off(),
            shared,
            silence: Duration::ZERO,
            known_round: KnownRound::default(),
            runs_unleased: false,
            has_voters: true,
            has_standbys: false,
            leases: Leases::default().for_nodes(shared.nodes),
            seed: u64::from(number),
        },
        state_file: None,
        coordinator: watch::channel(CoordinatorAddress::unknown()).0,
    }
}

/// The job of all agents. It starts no workers.
fn job(coordinators: &Coordinators, shared: SharedSettings) -> Arc<JobSpec> {
    let words = ["ragent", "--standalone", "--no-python", "true"].map(OsString::from);
    let cli = Cli::read(words).expect("a command line");
    let job = JobSpec::resolve(cli.launch, &ThisHost).expect("a job");
    let (run_id, credentials) = (RunId::new(RUN_ID), coordinators.credentials.clone());
    Arc::new(JobSpec { run_id, credentials, shared, ..job })
}

/// Coordinator processes that are killed when this value is dropped. The first one leads.
struct Coordinators {
    ragent: PathBuf,
    processes: Vec<Child>,
    endpoints: Vec<Endpoint>,
    credentials: Credentials,
    /// The flags with these credentials.
    auth: Vec<OsString>,
    /// The folder of their state.
    _folder: TempDir,
}

impl Coordinators {
    /// Starts a shell command with the endpoints as further arguments.
    fn run_meanwhile(&self, command: &str) -> Result<Child> {
        let mut shell = Program::new("sh");
        shell.arg("-c").arg(format!("exec {command} \"$@\"")).arg("sh");
        shell.args(self.endpoints.iter().map(ToString::to_string));
        shell.spawn().context("cannot start the command")
    }

    /// Starts the coordinators, and waits until they have elected one of them.
    fn start(args: &Args) -> Result<Self> {
        let Args { ragent, voters: count, secured: is_secured, .. } = args;
        let (count, is_secured) = (*count, *is_secured);
        let folder = TempDir::new()?;
        let mut credentials = Credentials::unsecured(Unsecured::Chosen);
        let mut auth = vec!["--auth".into(), "none".into()];
        if is_secured {
            let path = folder.path().join("secret");
            let secret = Secret::random()?;
            file::create(&path, &secret)?;
            auth = vec!["--secret-file".into(), path.clone().into_os_string()];
            credentials = Credentials::new(vec![secret], Origin::File(path));
        }
        let list = free_endpoints(count)?.join(",");
        // The number of nodes selects the leases.
        let nodes = format!("1:{}", args.agents);
        let mut started = Self {
            ragent: ragent.to_owned(),
            processes: Vec::new(),
            endpoints: Vec::new(),
            credentials,
            auth,
            _folder: folder,
        };
        for _ in 0..count {
            let mut process = Program::new(ragent)
                .args(["coordinator", "--rdzv-id", RUN_ID])
                .args(["--rdzv-endpoint", &list, "--nnodes", &nodes])
                .args(&started.auth)
                .env("XDG_RUNTIME_DIR", started._folder.path())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .with_context(|| format!("failed to start `{}`", ragent.display()))?;
            let stdout = process.stdout.take().context("its stdout is a pipe")?;
            started.processes.push(process);
            let mut address = String::new();
            BufReader::new(stdout).read_line(&mut address)?;
            let address = address.trim().parse().context("the coordinator printed no address")?;
            started.endpoints.push(address);
        }
        let until = now() + TIMEOUT;
        let leader = loop {
            match started.leader() {
                Ok(leader) => break leader,
                Err(error) if now() >= until => return Err(error),
                Err(_) => Program::new("sleep").arg("0.1").status().map(drop)?,
            }
        };
        started.processes.swap(0, leader);
        started.endpoints.swap(0, leader);
        Ok(started)
    }

    /// Returns the endpoints as text.
    fn text(&self) -> String {
        let texts: Vec<_> = self.endpoints.iter().map(Endpoint::to_string).collect();
        texts.join(",")
    }

    /// Returns the endpoints as an agent dials them.
    fn destination(&self) -> Destination {
        let own = Endpoint { host: "127.0.0.1".to_owned(), port: 1 };
        let voters = self.endpoints.clone();
        Destination::voters(voters, Vec::new(), self.text(), (own.clone(), own), 0)
    }

    /// Returns the position of the coordinator that was elected.
    fn leader(&self) -> Result<usize> {
        let words = ["status", "--json", "--rdzv-endpoint", &self.text()];
        let asked = Program::new(&self.ragent).args(words).args(&self.auth).output()?;
        let status: Value = serde_json::from_slice(&asked.stdout).context("no state of the job")?;
        let leader = status["leader"].as_str().context("no leader")?;
        let is_leader = |endpoint: &Endpoint| endpoint.to_string() == leader;
        self.endpoints.iter().position(is_leader).context("an unknown leader")
    }

    /// Kills the coordinator that leads.
    fn kill_leader(&mut self) -> Result<()> {
        let leader = self.leader()?;
        Ok(self.processes[leader].kill()?)
    }
}

impl Drop for Coordinators {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Returns endpoints on loopback whose ports are free.
fn free_endpoints(count: usize) -> Result<Vec<String>> {
    let listen = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners = (0..count).map(listen).collect::<Result<Vec<_>, _>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect()
}

/// Raises the limit. An agent needs a stream, a listener, and its share of a thread of stores.
fn raise_limit_on_files() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(())
}

const RUN_ID: &str = "agent-load";
const QUEUE: usize = 64;
/// The descriptors of an agent: a stream, a timer and the listener of a store.
const FILES_PER_AGENT: usize = 3;
/// Other descriptors of this process, with a reserve.
const OTHER_FILES: u64 = 500;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time for the work after an admission to complete.
const CALM: Duration = Duration::from_secs(2);
