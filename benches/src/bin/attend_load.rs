//! Lets many agents attend one coordinator at once, and prints a line of JSON about it.
//!
//! The coordinator is a process of its own. The agents are tasks in this one; each drives the
//! library's real agent over a connection of its own, with a worker store that listens, and only
//! the workers are missing: their supervisor takes orders and does nothing. The job needs all of
//! them, so its round completes when the last has joined. The clock runs from the first dial until
//! every agent has been admitted.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::{Child, Command as Program, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ragent::{
    agent::{
        driver::{self, AgentSpec},
        machine::AgentSettings,
        worker_stores::{StorePlace, WorkerStores},
    },
    job_spec::{Endpoint, StorePorts},
    net::Reach,
    supervisor::driver::{Command, SupervisorHandle},
};
use ragent_benches::{cpu_time, now};
use ragent_proto::convert::NotHere;
use ragent_rendezvous::{
    ids::{NodeId, RunId, Term},
    message::{Heard, NodeDescription},
    settings::{NodeRange, SharedSettings, Timeouts},
};
use ragent_store::StoreThread;
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinSet, LocalSet},
    time::timeout,
};

#[derive(Debug, Parser)]
struct Args {
    /// The program that coordinates.
    #[arg(long, default_value = "target/release/ragent")]
    ragent: PathBuf,
    /// How many agents attend.
    #[arg(long, default_value_t = 1000)]
    agents: u16,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    raise_limit_on_files()?;
    let coordinator = Coordinator::start(&args.ragent)?;
    let reach = Reach::Loopback(Ipv4Addr::LOCALHOST.into());
    let stores = (0..args.agents)
        .map(|_| {
            let thread = StoreThread::start("stores")?;
            Ok(WorkerStores::new(
                thread,
                StorePlace::Ports { reach, ports: StorePorts::Any, is_served: true },
            ))
        })
        .collect::<Result<Vec<_>>>()?;
    let attending = attend_all(&coordinator.endpoint, stores);
    let (start, mut admitted) = timeout(TIMEOUT, LocalSet::new().run_until(attending))
        .await
        .context("not all agents were admitted in time")??;
    admitted.sort_unstable();
    let cpu = cpu_time(coordinator.process.id())?;
    let seconds_at = |quantile: f64| {
        let index = (admitted.len() - 1) as f64 * quantile;
        (admitted[index as usize] - start).as_secs_f64()
    };
    let report = json!({
        "agents": args.agents,
        "seconds": seconds_at(1.0),
        "p50_s": seconds_at(0.5),
        "p99_s": seconds_at(0.99),
        "coordinator_cpu_s": cpu.as_secs_f64(),
    });
    writeln!(std::io::stdout(), "{report}")?;
    Ok(())
}

/// Returns when the first agent dialed, and when each was admitted.
async fn attend_all(
    endpoint: &Endpoint,
    stores: Vec<WorkerStores>,
) -> Result<(Instant, Vec<Instant>)> {
    let count = stores.len() as u32;
    let shared = SharedSettings {
        nodes: NodeRange::new(count, count).context("there must be an agent")?,
        max_restarts: 0,
        timeouts: Timeouts::default(),
        fixed_ranks: false,
    };
    let (told, mut admitted) = mpsc::channel(stores.len());
    let mut agents = JoinSet::new();
    let start = now();
    for (number, stores) in (0..count).zip(stores) {
        let spec = agent(number, endpoint.clone(), shared);
        agents.spawn_local(attend(spec, stores, told.clone()));
    }
    drop(told);
    let mut moments = Vec::new();
    while moments.len() < count as usize {
        tokio::select! {
            Some(moment) = admitted.recv() => moments.push(moment),
            Some(ended) = agents.join_next() => {
                ended??;
            }
        }
    }
    Ok((start, moments))
}

/// Runs one agent, and tells when it has been admitted.
async fn attend(
    spec: AgentSpec,
    stores: WorkerStores,
    admitted: mpsc::Sender<Instant>,
) -> Result<()> {
    let (commands, mut orders) = mpsc::channel(QUEUE);
    let (_tell, told) = mpsc::channel(1);
    let (_send_signal, mut signals) = mpsc::channel(1);
    let task = tokio::spawn(async move {
        while let Some(order) = orders.recv().await {
            if matches!(order, Command::Start(_)) {
                // Nobody counts any more once all have been admitted.
                let _ = admitted.send(now()).await;
            }
        }
    });
    let mut supervisor = SupervisorHandle { commands, told, task };
    let ending = driver::drive(spec, stores, &mut supervisor, &mut signals).await?;
    anyhow::bail!("an agent has ended: {ending:?}")
}

fn agent(number: u32, endpoint: Endpoint, shared: SharedSettings) -> AgentSpec {
    // Addresses of as many machines; nobody dials them.
    let address: IpAddr = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 1)) + number).into();
    let node = NodeDescription {
        node_id: NodeId::new(format!("node{number}_1_0")),
        host_name: format!("node{number}"),
        address: address.to_string(),
        addresses: vec![address],
        agent_port: endpoint.port,
        role: "default".to_owned(),
        local_world_size: NonZeroU32::MIN,
        node_rank: None,
    };
    let not_here = NotHere { term: Term::default(), endpoint: endpoint.to_string() };
    AgentSpec {
        run_id: RunId::new(RUN_ID),
        endpoint,
        shared,
        node,
        settings: AgentSettings {
            stop_grace: shared.timeouts.stop_grace,
            join_timeout: shared.timeouts.join,
            heard: Heard::default(),
        },
        state_file: None,
        not_here: watch::channel(not_here).0,
    }
}

/// A coordinator that ends with this value.
struct Coordinator {
    process: Child,
    endpoint: Endpoint,
    /// Where it remembers its job.
    _memory: TempDir,
}

impl Coordinator {
    fn start(ragent: &Path) -> Result<Self> {
        let memory = TempDir::new()?;
        let mut process = Program::new(ragent)
            .args(["coordinator", "--host", "127.0.0.1", "--port", "0", "--rdzv-id", RUN_ID])
            .env("XDG_RUNTIME_DIR", memory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to start `{}`", ragent.display()))?;
        let stdout = process.stdout.take().context("its stdout is a pipe")?;
        let mut coordinator = Self { process, endpoint: Endpoint::default(), _memory: memory };
        let mut address = String::new();
        BufReader::new(stdout).read_line(&mut address)?;
        coordinator.endpoint = address.trim().parse().context("the coordinator says no address")?;
        Ok(coordinator)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An agent needs a stream, a listener, and what the thread of its stores waits on.
fn raise_limit_on_files() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(())
}

const RUN_ID: &str = "attend-load";
const QUEUE: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(60);
