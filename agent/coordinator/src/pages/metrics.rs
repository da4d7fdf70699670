//! Serves `GET /metrics`: the state of the job, of this node and of this process for Prometheus, as OpenMetrics text.
//!
//! Only the process that coordinates has the metrics of the job. No label has a value for each node, so the number of metrics does not
//! depend on the size of the job. `docs/metrics.md` describes each metric.

mod memory;
mod node;
mod time;

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use nix::sys::resource::{UsageWho, getrusage};
use prometheus_client::{
    encoding::text,
    metrics::{
        counter::ConstCounter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        info::Info,
    },
    registry::{Registry, Unit},
};
use ragent_base::{report::measures::NodeMeasures, sys::proc};
use ragent_rendezvous::{
    message::StepSource,
    snapshot::{JobCounts, JobProgress, PhaseName, Snapshot},
};

use super::{cache::Collected, states::States};
use crate::driver::measures::CoordinatorMeasures;

/// The media type of OpenMetrics.
const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of this process and, if it coordinates, of its job. They are collected at most ten times a second for all clients.
#[derive(Default)]
pub struct MetricsPage {
    /// The snapshots of the job; `None` before the job is found.
    job: Option<Arc<States>>,
    /// The counters of this node, if there is an agent.
    node: OnceLock<Arc<NodeMeasures>>,
    /// The counters of the coordinator, if this process may coordinate.
    coordinator: OnceLock<Arc<CoordinatorMeasures>>,
    last: Collected<Result<Bytes, fmt::Error>>,
}

impl MetricsPage {
    pub(crate) fn of_job(states: Arc<States>) -> Self {
        Self { job: Some(states), ..Self::default() }
    }

    /// Adds the counters of this node. Further calls have no effect.
    pub fn add_node(&self, measures: &Arc<NodeMeasures>) {
        let _ = self.node.set(Arc::clone(measures));
    }

    /// Adds the counters of the coordinator. Further calls have no effect.
    pub fn add_coordinator(&self, measures: Arc<CoordinatorMeasures>) {
        let _ = self.coordinator.set(measures);
    }

    /// Returns the counters of this node, if there is an agent.
    pub(crate) fn node(&self) -> Option<&Arc<NodeMeasures>> {
        self.node.get()
    }

    /// Answers a request for the metrics.
    pub(crate) async fn answer(&self) -> Response {
        match self.last.get(self.text()).await {
            Ok(text) => ([(CONTENT_TYPE, MEDIA_TYPE)], text).into_response(),
            Err(fmt::Error) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "failed to write the metrics\n").into_response()
            }
        }
    }

    async fn text(&self) -> Result<Bytes, fmt::Error> {
        let job = match &self.job {
            Some(states) => states.counts().await,
            None => None,
        };
        let counts = ProcessCounts {
            usage: ProcessUsage::of_this(),
            refused_peers: self.job.as_ref().map_or(0, |states| states.refused()),
            node: self.node.get(),
            coordinator: self.coordinator.get(),
        };
        text(job.as_ref(), &counts)
    }
}

/// The numbers that are not part of the state of the job.
#[derive(Default)]
struct ProcessCounts<'a> {
    usage: ProcessUsage,
    /// The connections and requests that the port has refused.
    refused_peers: u64,
    node: Option<&'a Arc<NodeMeasures>>,
    coordinator: Option<&'a Arc<CoordinatorMeasures>>,
}

/// The path of the metrics.
const METRICS_PATH: &str = "/metrics";

/// Returns the route of the metrics.
pub(crate) fn route(page: Arc<MetricsPage>) -> Router {
    let answer = |State(page): State<Arc<MetricsPage>>| async move { page.answer().await };
    Router::new().route(METRICS_PATH, get(answer).with_state(page))
}

/// The metrics of this process, before and after it finds its job. Every client may read them.
#[derive(Clone, Default)]
pub struct PublicMetrics {
    before: Arc<MetricsPage>,
    found: Arc<OnceLock<Arc<MetricsPage>>>,
}

impl PublicMetrics {
    /// Adds the counters of this node.
    pub fn add_node(&self, measures: &Arc<NodeMeasures>) {
        self.before.add_node(measures);
    }

    /// Switches to the page of the job.
    pub fn handle_found(&self, page: Arc<MetricsPage>) {
        // A process finds its job once.
        let _ = self.found.set(page);
    }

    /// Returns the only page of the metrics port. Requests may name any host: every client that reaches the port may read the page.
    pub fn pages(&self) -> Router {
        let answer = |State(public): State<Self>| async move {
            public.found.get().unwrap_or(&public.before).answer().await
        };
        let not_found = || async { StatusCode::NOT_FOUND };
        let page = get(answer).with_state(self.clone());
        Router::new().route(METRICS_PATH, page).fallback(not_found)
    }
}

/// The resources that this process uses.
#[derive(Clone, Copy, Debug, Default)]
struct ProcessUsage {
    cpu: Duration,
    resident_bytes: u64,
    open_files: usize,
}

impl ProcessUsage {
    fn of_this() -> Self {
        let cpu = getrusage(UsageWho::RUSAGE_SELF).map(|usage| {
            let micros = |time: nix::sys::time::TimeVal| {
                let micros = time.tv_sec().saturating_mul(1_000_000).saturating_add(time.tv_usec());
                Duration::from_micros(u64::try_from(micros).unwrap_or(0))
            };
            micros(usage.user_time()).saturating_add(micros(usage.system_time()))
        });
        let resident = proc::field("self/status", "VmRSS");
        let kib = resident.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        Self {
            cpu: cpu.unwrap_or_default(),
            resident_bytes: kib.unwrap_or(0).saturating_mul(1024),
            open_files: proc::open_files(),
        }
    }
}

/// Returns all metrics.
fn text(job: Option<&JobCounts>, counts: &ProcessCounts<'_>) -> Result<Bytes, fmt::Error> {
    let mut registry = Registry::default();
    add_process(&mut registry, &counts.usage);
    node::add_refused(&mut registry, counts);
    if let Some(measures) = counts.node {
        node::add_node(&mut registry, measures);
    }
    if let Some(measures) = counts.coordinator {
        node::add_coordinator(&mut registry, measures);
    }
    if let Some(job) = job {
        add_job(&mut registry, job);
    }
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text.into())
}

fn add_process(registry: &mut Registry, usage: &ProcessUsage) {
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("ragent_build", "Version of ragent", version);
    let cpu = ConstCounter::new(usage.cpu.as_secs_f64());
    let (name, help) = ("process_cpu", "Processor time of this process");
    registry.register_with_unit(name, help, Unit::Seconds, cpu);
    let resident = gauge(usage.resident_bytes);
    let (name, help) = ("process_resident_memory", "Resident memory of this process");
    registry.register_with_unit(name, help, Unit::Bytes, resident);
    let files = gauge(usage.open_files);
    registry.register("process_open_fds", "File descriptors of this process", files);
}

fn add_job(registry: &mut Registry, counts: &JobCounts) {
    let JobCounts { job: snapshot, nodes, longest_silence } = counts;
    let info = Info::new([
        ("run_id", snapshot.run_id.to_string()),
        ("job_uid", snapshot.job_uid.to_string()),
    ]);
    registry.register("ragent_job", "Job that this process coordinates", info);
    let phases = PhaseName::ALL.map(|phase| (phase.name(), u64::from(phase == snapshot.phase)));
    let (name, help) = ("ragent_phase", "1 for the phase of the job, 0 for all others");
    registry.register(name, help, family("phase", phases));
    let mut add = |name, help, value: u64| registry.register(name, help, gauge(value));
    add("ragent_term", "Term of the coordinator", snapshot.term.0);
    add("ragent_round", "Newest round", snapshot.round.0);
    add("ragent_nodes_min", "Fewest nodes of a round", snapshot.min_nodes.into());
    add("ragent_nodes_max", "Most nodes of a round", snapshot.max_nodes.into());
    add("ragent_world_size", "Workers of the newest round", snapshot.world_size.into());
    add("ragent_restarts_used", "Failures charged to the job", snapshot.restarts_used.into());
    let counted = snapshot.restarts_used.saturating_sub(snapshot.restarts_forgiven);
    let left = snapshot.max_restarts.saturating_sub(counted);
    add("ragent_restarts_left", "Failures that may still be charged", left.into());
    let silent = snapshot.voters.iter().filter(|voter| voter.is_silent()).count();
    let answering = snapshot.voters.len().saturating_sub(silent);
    let voters = [("answering", answering as u64), ("silent", silent as u64)];
    let help = "Voters that elect the coordinator, by state";
    registry.register("ragent_voters", help, family("state", voters));
    let by_state = nodes.states().map(|(state, count)| (state.name(), count));
    let help = "Nodes that the coordinator knows, by state";
    registry.register("ragent_nodes", help, family("state", by_state));
    let (ready, importing) = (nodes.standbys_ready, nodes.standbys_importing);
    let missing = nodes.standbys_wanted.saturating_sub(ready.saturating_add(importing));
    let standbys = [("ready", ready), ("importing", importing), ("missing", missing)];
    registry.register("ragent_standbys", "Standbys of all nodes", family("state", standbys));
    let (name, help) = ("ragent_node_silence_max", "Longest silence of a node that is not lost");
    let silence = ConstGauge::new(longest_silence.as_secs_f64());
    registry.register_with_unit(name, help, Unit::Seconds, silence);
    let help = "1 while the workers are stalled, else 0";
    registry.register("ragent_stalled", help, gauge(u8::from(snapshot.stall.is_some())));
    add_progress(registry, snapshot.progress.as_ref());
    add_checkpoints(registry, snapshot);
    memory::add_memory(registry, snapshot.memory.as_ref());
    time::add_time(registry, snapshot);
}

/// Adds the training step of the job. A metric without a known value is absent.
fn add_progress(registry: &mut Registry, progress: Option<&JobProgress>) {
    let sources = StepSource::ALL.map(|source| {
        let is_in_use = progress.is_some_and(|progress| progress.source == source);
        (source.name(), u64::from(is_in_use))
    });
    let (name, help) = ("ragent_progress_source", "1 for the source of the step, 0 for all others");
    registry.register(name, help, family("source", sources));
    let Some(progress) = progress else { return };
    let help = "Training step that all workers with a known step have reached";
    registry.register("ragent_step", help, gauge(progress.step));
    let age = ConstGauge::new(progress.age.as_secs_f64());
    let (name, help) = ("ragent_progress_age", "Time since a worker has reached another step");
    registry.register_with_unit(name, help, Unit::Seconds, age);
    if let Some(time) = progress.step_time {
        let time = ConstGauge::new(time.as_secs_f64());
        registry.register_with_unit("ragent_step", "Usual time of a step", Unit::Seconds, time);
    }
}

/// Adds what is known about checkpoints. A metric without a known value is absent.
fn add_checkpoints(registry: &mut Registry, snapshot: &Snapshot) {
    let help = "1 while all ranks may save because of a notice, else 0";
    registry.register("ragent_saving", help, gauge(u8::from(snapshot.saving.is_some())));
    if let Some(step) = snapshot.saved_step {
        let help = "Newest step that all ranks have saved";
        registry.register("ragent_saved_step", help, gauge(step));
    }
    let help = "1 while the last checkpoint could not be written, else 0";
    registry.register("ragent_save_failed", help, gauge(u8::from(snapshot.save_failed.is_some())));
    let Some(times) = &snapshot.checkpoints else { return };
    let mut add = |name, help, ms| add_seconds(registry, name, help, ms);
    add("ragent_checkpoint_interval", "Usual time between checkpoints", Some(times.every_ms));
    let help = "Usual time for which training stands still for a checkpoint";
    add("ragent_checkpoint_cost", help, times.cost_ms);
    let help = "Time between checkpoints that loses the least";
    add("ragent_checkpoint_best_interval", help, times.best_ms);
}

/// Adds a time, if it is known.
fn add_seconds(registry: &mut Registry, name: &str, help: &str, ms: Option<u64>) {
    if let Some(ms) = ms {
        let seconds = ConstGauge::new(ms as f64 / 1000.0);
        registry.register_with_unit(name, help, Unit::Seconds, seconds);
    }
}

fn gauge(value: impl TryInto<i64>) -> ConstGauge {
    ConstGauge::new(value.try_into().unwrap_or(i64::MAX))
}

/// Returns gauges that differ in one label.
fn family<const N: usize>(
    label: &'static str,
    values: [(&'static str, u64); N],
) -> Family<[(&'static str, &'static str); 1], Gauge> {
    let family = Family::<_, Gauge>::default();
    for (name, value) in values {
        family.get_or_create(&[(label, name)]).set(i64::try_from(value).unwrap_or(i64::MAX));
    }
    family
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ragent_base::testing::empty_snapshot;
    use ragent_rendezvous::{
        event::{RestartCause, RestartSum},
        ids::RunId,
        message::StandbyCounts,
        snapshot::{
            CheckpointTimes, JobTime, MemoryBytes, MemoryStatus, NodeCounts, NodeStateName,
            RestartsByCause, Snapshot, Stall, StateTime, VoterStatus,
        },
    };
    use ragent_store::StoreThread;

    use super::*;

    fn written(snapshot: Option<&Snapshot>) -> String {
        let usage = ProcessUsage {
            cpu: Duration::from_millis(1500),
            resident_bytes: 9 << 20,
            open_files: 17,
        };
        let (node, coordinator) = (Arc::new(NodeMeasures::default()), Arc::default());
        node.round_trips.observe(Duration::from_millis(2));
        node.set_margin(Some(Duration::from_secs(1)));
        // A thread of stores.
        let stores = StoreThread::start("stores").unwrap();
        node.stores.set(stores.counters()).unwrap();
        let counts = ProcessCounts {
            usage,
            refused_peers: 4,
            node: snapshot.is_some().then_some(&node),
            coordinator: snapshot.is_some().then_some(&coordinator),
        };
        let standbys = StandbyCounts { ready: 2, importing: 1, size: 8, obstacle: None };
        let mut nodes = NodeCounts::default();
        nodes.add(NodeStateName::Spare, Some(&standbys));
        let longest_silence = Duration::from_millis(1_500);
        let of = |job: &Snapshot| JobCounts { job: job.clone(), nodes, longest_silence };
        String::from_utf8(text(snapshot.map(of).as_ref(), &counts).unwrap().to_vec()).unwrap()
    }

    /// The names of all metrics in the text, without the suffixes of samples.
    fn names(text: &str) -> BTreeSet<String> {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
    }

    /// A process that does not coordinate has only metrics of its own.
    #[test]
    fn process_has_metrics() {
        let text = written(None);
        for line in [
            "process_cpu_seconds_total 1.5",
            "process_resident_memory_bytes 9437184",
            "process_open_fds 17",
        ] {
            assert!(text.lines().any(|written| written == line), "{line}: {text}");
        }
        assert!(text.contains(&format!(
            "ragent_build_info{{version=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION")
        )));
        assert!(!text.contains("ragent_job") && text.ends_with("# EOF\n"), "{text}");
        let usage = ProcessUsage::of_this();
        assert!(usage.resident_bytes > 1 << 20 && usage.open_files > 2, "{usage:?}");
    }

    /// The state of the job is in gauges. Labels are escaped, and the number of gauges does not depend on the nodes.
    #[test]
    fn job_has_metrics() {
        let mut snapshot = empty_snapshot();
        snapshot.run_id = RunId::new("a\"b\\");
        (snapshot.max_restarts, snapshot.restarts_used) = (3, 1);
        let voter = |is_leader, seconds| VoterStatus {
            endpoint: "n0:1".to_owned(),
            is_leader,
            silent_for: Duration::from_secs(seconds),
        };
        snapshot.set_voters(vec![voter(true, 9), voter(false, 0), voter(false, 9)]);
        let text = written(Some(&snapshot));
        for line in [
            "ragent_phase{phase=\"gathering\"} 1".to_owned(),
            "ragent_phase{phase=\"running\"} 0".to_owned(),
            "ragent_nodes{state=\"quarantined\"} 0".to_owned(),
            "ragent_nodes{state=\"spare\"} 1".to_owned(),
            "ragent_node_silence_max_seconds 1.5".to_owned(),
            "ragent_standbys{state=\"ready\"} 2".to_owned(),
            "ragent_standbys{state=\"importing\"} 1".to_owned(),
            "ragent_standbys{state=\"missing\"} 5".to_owned(),
            "ragent_restarts_used 1".to_owned(),
            "ragent_restarts_left 2".to_owned(),
            "ragent_voters{state=\"answering\"} 2".to_owned(),
            "ragent_voters{state=\"silent\"} 1".to_owned(),
            "ragent_refused_total{what=\"peer\"} 4".to_owned(),
            "ragent_refused_total{what=\"store_client\"} 0".to_owned(),
            "ragent_worker_ends_total{how=\"exit_0\"} 0".to_owned(),
            "ragent_keep_alive_seconds_bucket{le=\"0.001\"} 0".to_owned(),
            "ragent_keep_alive_seconds_bucket{le=\"0.0025\"} 1".to_owned(),
            "ragent_keep_alive_seconds_bucket{le=\"+Inf\"} 1".to_owned(),
            "ragent_keep_alive_seconds_count 1".to_owned(),
            "ragent_lease_margin_seconds 1.0".to_owned(),
            format!("ragent_job_info{{run_id=\"a\\\"b\\\\\",job_uid=\"{}\"}} 1", snapshot.job_uid),
        ] {
            assert!(text.lines().any(|written| written == line), "{line}: {text}");
        }
        assert!(text.len() < 16 * 1024, "{}", text.len());
    }

    /// The state of a job whose step is known.
    fn with_progress() -> Snapshot {
        let progress = JobProgress {
            source: StepSource::Read,
            step: 48_210,
            highest: 48_211,
            steps_left: None,
            step_time: Some(Duration::from_millis(410)),
            age: Duration::from_millis(1_250),
        };
        let state =
            |state: &str, ms, settled_ms| StateTime { state: state.to_owned(), ms, settled_ms };
        let time = JobTime {
            states: vec![state("productive", 9_000, 8_500), state("starting", 1_000, 1_000)],
            redone_ms: 1_000,
            ..JobTime::default()
        };
        let sum = RestartSum { count: 2, cost_ms: 24_000, redone_steps: 80 };
        let restarts = vec![RestartsByCause { cause: RestartCause::WorkerFailed, sum }];
        let checkpoints = CheckpointTimes {
            every_steps: 400,
            every_ms: 164_000,
            cost_ms: Some(2_500),
            failure_every_ms: 9_000_000,
            is_rate_measured: true,
            lost: Some(0.024),
            best_ms: Some(210_000),
            best_steps: Some(512),
            best_lost: Some(0.023),
        };
        let memory = MemoryStatus {
            step: Some(48_210),
            is_copied: true,
            age_ms: Some(2_500),
            cost_ms: Some(20),
            needed: 245_000_000_000,
            limit: 667_000_000_000,
            bytes: MemoryBytes { own: 122_400_000_000, copy: 61_200_000_000, leftover: 0 },
            copy_ms: Some(1_500),
            waited_ms: 250,
            text: None,
        };
        Snapshot {
            progress: Some(progress),
            checkpoints: Some(checkpoints),
            saved_step: Some(48_000),
            memory: Some(memory),
            time,
            restarts,
            ..empty_snapshot()
        }
    }

    /// The step of the job has gauges once it is known.
    #[test]
    fn step_has_metrics() {
        let text = written(Some(&with_progress()));
        for line in [
            "ragent_step 48210",
            "ragent_step_seconds 0.41",
            "ragent_progress_age_seconds 1.25",
            "ragent_progress_source{source=\"read\"} 1",
            "ragent_progress_source{source=\"reported\"} 0",
            "ragent_checkpoint_interval_seconds 164.0",
            "ragent_checkpoint_cost_seconds 2.5",
            "ragent_checkpoint_best_interval_seconds 210.0",
        ] {
            assert!(text.lines().any(|written| written == line), "{line}: {text}");
        }
        let text = written(Some(&empty_snapshot()));
        assert!(text.contains("ragent_progress_source{source=\"read\"} 0"), "{text}");
        assert!(!text.contains("ragent_step"), "{text}");
        assert!(text.lines().any(|line| line == "ragent_stalled 0"), "{text}");
        let stall = Some(Stall::default());
        let text = written(Some(&Snapshot { stall, ..empty_snapshot() }));
        assert!(text.lines().any(|line| line == "ragent_stalled 1"), "{text}");
    }

    /// Checkpoints in memory have gauges once there are any. Before that, only that memory is not off.
    #[test]
    fn memory_has_metrics() {
        let mut snapshot = with_progress();
        let text = written(Some(&snapshot));
        for line in [
            "ragent_memory_off 0",
            "ragent_memory_step 48210",
            "ragent_memory_copied 1",
            "ragent_memory_age_seconds 2.5",
            "ragent_memory_save_seconds 0.02",
            "ragent_memory_needed_bytes 245000000000",
            "ragent_memory_limit_bytes 667000000000",
            "ragent_memory_bytes{place=\"own\"} 122400000000",
            "ragent_memory_bytes{place=\"copy\"} 61200000000",
            "ragent_memory_bytes{place=\"leftover\"} 0",
            "ragent_memory_copy_seconds 1.5",
            "ragent_memory_wait_seconds_total 0.25",
        ] {
            assert!(text.lines().any(|written| written == line), "{line}: {text}");
        }
        let off = Some("off: n17 has 40 GB and needs 84".to_owned());
        snapshot.memory = Some(MemoryStatus { text: off, ..MemoryStatus::default() });
        let text = written(Some(&snapshot));
        assert!(text.lines().any(|line| line == "ragent_memory_off 1"), "{text}");
        assert!(
            !text.contains("ragent_memory_step") && !text.contains("ragent_memory_age"),
            "{text}"
        );
        snapshot.memory = None;
        let text = written(Some(&snapshot));
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with("ragent_memory")).collect();
        assert_eq!(lines, ["ragent_memory_off 0"]);
    }

    /// The time account has counters of settled times. Restarts are counted by cause.
    #[test]
    fn time_has_metrics() {
        let text = written(Some(&with_progress()));
        for line in [
            "ragent_time_seconds_total{state=\"productive\"} 8.5",
            "ragent_time_seconds_total{state=\"starting\"} 1.0",
            "ragent_redone_seconds_total 1.0",
            "ragent_productive_ratio 0.8",
            "ragent_restarts_total{cause=\"worker_failed\"} 2",
            "ragent_restarts_total{cause=\"node_lost\"} 0",
            "ragent_restart_seconds_total{cause=\"worker_failed\"} 24.0",
        ] {
            assert!(text.lines().any(|written| written == line), "{line}: {text}");
        }
    }

    /// Each metric has a row in the documentation, and each row a metric.
    #[test]
    fn metrics_are_documented() {
        let rows = include_str!("../../../../docs/metrics.md").lines();
        let documented = rows.filter_map(|line| line.strip_prefix("| `")?.split(['`', '{']).next());
        let is_metric = |name: &&str| !name.starts_with("Ragent");
        let documented: BTreeSet<String> =
            documented.filter(is_metric).map(str::to_owned).collect();
        let sample = |name: &String| match name.as_str() {
            "process_cpu_seconds" => format!("{name}_total"),
            "ragent_refused"
            | "ragent_worker_starts"
            | "ragent_worker_ends"
            | "ragent_store_requests"
            | "ragent_restarts"
            | "ragent_restart_seconds"
            | "ragent_time_seconds"
            | "ragent_redone_seconds"
            | "ragent_memory_wait_seconds"
            | "ragent_takeovers" => format!("{name}_total"),
            "ragent_build" | "ragent_job" => format!("{name}_info"),
            _ => name.clone(),
        };
        let written: BTreeSet<String> =
            names(&written(Some(&with_progress()))).iter().map(sample).collect();
        assert_eq!(written, documented);
    }
}
