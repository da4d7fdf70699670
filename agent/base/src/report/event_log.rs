//! Logs the events of workers in torchrun's format: one JSON object per line.

use std::{
    fs::File,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ragent_rendezvous::{
    ids::{LocalRank, RunId},
    message::Admission,
};
use serde::Serialize;
use serde_json::json;
use tracing::warn;

use crate::{
    output::console::Console,
    report::limits,
    spec::{self, Stream},
    sys::{clock, files},
};

/// The fields that all events of one agent share.
#[derive(Clone, Debug)]
pub struct EventSource {
    /// The job.
    pub run_id: RunId,
    /// The role of this node's workers.
    pub role: String,
    /// The name of this machine.
    pub host_name: String,
    /// The file name of the program that workers run.
    pub entry_point: String,
    /// The rendezvous backend, by torchrun's name.
    pub rdzv_backend: &'static str,
}

/// A writer of events.
#[derive(Debug)]
pub struct EventLog {
    sink: EventSink,
    source: EventSource,
    began: Instant,
    /// Lines that have not been handed over yet.
    pending: Vec<u8>,
    has_lost: bool,
}

#[derive(Debug)]
enum EventSink {
    Null,
    Console(Console),
    File(Console, Arc<File>),
}

/// An event of a worker.
#[derive(Clone, Debug)]
pub enum WorkerEvent {
    /// The worker has started.
    Started,
    /// The worker exited with 0.
    Succeeded,
    /// The worker failed by itself.
    Failed {
        /// The exit code; the negative signal number if a signal killed it.
        exit_code: i32,
        /// The content of its error file.
        message: Option<String>,
    },
    /// The worker was stopped by the agent.
    Terminated,
}

/// An event of this node's part in a round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AgentEvent {
    /// The node was admitted, after waiting this long.
    Rendezvous(Duration),
    /// The node has received its ranks.
    Assigned,
    /// Its workers have succeeded.
    Succeeded,
    /// Its workers have failed.
    Failed,
}

/// One event, with torchrun's fields in torchrun's order.
#[derive(Serialize)]
struct TorchrunEvent {
    name: String,
    source: &'static str,
    /// Milliseconds since 1970; torchrun leaves it zero.
    timestamp: u128,
    metadata: Metadata,
}

#[derive(Serialize)]
struct Metadata {
    run_id: String,
    global_rank: Option<u32>,
    group_rank: u32,
    worker_id: Option<String>,
    role: String,
    hostname: String,
    state: &'static str,
    total_run_time: u64,
    rdzv_backend: &'static str,
    raw_error: Option<String>,
    metadata: String,
    agent_restarts: u32,
    duration_ms: Option<f64>,
}

impl EventLog {
    /// Opens the requested log.
    ///
    /// # Errors
    ///
    /// Returns the system's refusal to open the file.
    pub fn open(
        wanted: &spec::EventDestination,
        source: EventSource,
        console: &Console,
    ) -> io::Result<Self> {
        let sink = match wanted {
            spec::EventDestination::Null => EventSink::Null,
            spec::EventDestination::Console => EventSink::Console(console.clone()),
            spec::EventDestination::File(path) => {
                let file = files::append(path)?;
                EventSink::File(console.clone(), Arc::new(file))
            }
        };
        Ok(Self { sink, source, began: clock::now(), pending: Vec::new(), has_lost: false })
    }

    /// Logs an event of this node's part in a round.
    pub fn agent(&mut self, admission: &Admission, event: AgentEvent) {
        if matches!(self.sink, EventSink::Null) {
            return;
        }
        let (state, duration) = match event {
            AgentEvent::Rendezvous(waited) => ("RENDEZVOUS", Some(waited)),
            AgentEvent::Assigned => ("ASSIGN_WORKER_RANKS", Some(Duration::ZERO)),
            AgentEvent::Succeeded => ("SUCCEEDED", None),
            AgentEvent::Failed => ("FAILED", None),
        };
        let details = json!({
            "group_world_size": admission.group_world_size,
            "entry_point": self.source.entry_point,
        });
        let mut metadata = self.metadata(admission, state, details.to_string());
        metadata.duration_ms = duration.map(|duration| duration.as_secs_f64() * 1000.0);
        self.write("AGENT", metadata);
    }

    /// Logs an event of one worker in a round.
    pub fn worker(
        &mut self,
        admission: &Admission,
        local_rank: LocalRank,
        pid: u32,
        event: WorkerEvent,
    ) {
        if matches!(self.sink, EventSink::Null) {
            return;
        }
        let (state, failure) = match event {
            WorkerEvent::Started => ("START", None),
            WorkerEvent::Succeeded => ("SUCCEEDED", None),
            WorkerEvent::Failed { exit_code, message } => ("FAILED", Some((exit_code, message))),
            WorkerEvent::Terminated => ("TERMINATED", None),
        };
        let exit_code = failure.as_ref().map(|(exit_code, _)| exit_code);
        let details = json!({
            "group_world_size": admission.group_world_size,
            "entry_point": self.source.entry_point,
            "local_rank": [local_rank.0],
            "role_rank": [admission.first_role_rank.0.saturating_add(local_rank.0)],
            "role_world_size": [admission.role_world_size],
            "exit_code": [exit_code],
            "worker_pid": [exit_code.map(|_| pid)],
        });
        let mut metadata = self.metadata(admission, state, details.to_string());
        metadata.global_rank = Some(admission.first_global_rank.0.saturating_add(local_rank.0));
        metadata.worker_id = Some(pid.to_string());
        metadata.raw_error = failure
            .map(|(_, message)| json!({ "message": message.as_deref().unwrap_or("<NONE>") }))
            .map(|error| error.to_string());
        self.write("WORKER", metadata);
    }

    fn metadata(&self, admission: &Admission, state: &'static str, metadata: String) -> Metadata {
        let EventSource { run_id, role, host_name, entry_point: _, rdzv_backend } = &self.source;
        Metadata {
            run_id: run_id.to_string(),
            global_rank: None,
            group_rank: admission.group_rank.0,
            worker_id: None,
            role: role.clone(),
            hostname: host_name.clone(),
            state,
            total_run_time: clock::now().saturating_duration_since(self.began).as_secs(),
            rdzv_backend,
            raw_error: None,
            metadata,
            agent_restarts: admission.restart_count,
            duration_ms: None,
        }
    }

    fn write(&mut self, source: &'static str, metadata: Metadata) {
        let name = format!("torchelastic.worker.status.{}", metadata.state);
        let timestamp = clock::wall_time().as_millis();
        let event = TorchrunEvent { name, source, timestamp, metadata };
        let Ok(line) = serde_json::to_vec(&event) else { return };
        // The agent never waits for a reader of events.
        if self.pending.len() + line.len() > limits::MAX_PENDING_EVENTS {
            if !std::mem::replace(&mut self.has_lost, true) {
                warn!("events were lost: their output is blocked");
            }
            return;
        }
        self.pending.extend_from_slice(&line);
        self.pending.push(b'\n');
    }

    /// Hands over the pending lines, unless their destination is blocked; the next call retries
    /// then.
    pub fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let lines = Bytes::copy_from_slice(&self.pending);
        let is_taken = match &self.sink {
            EventSink::Null => true,
            EventSink::Console(console) => console.try_write(Stream::Stderr, lines),
            EventSink::File(console, file) => console.try_write_file(file, lines),
        };
        if is_taken {
            self.pending.clear();
        }
    }
}
