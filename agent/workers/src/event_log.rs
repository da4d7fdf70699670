//! Logs the events of workers in torchrun's format: one JSON object per line.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ragent_base::{
    output::{console::Console, streams::Stream},
    sys::clock,
};
use ragent_options::spec::JobSpec;
use ragent_rendezvous::{ids::LocalRank, message::Admission};
use serde_json::{Value, json};
use tracing::warn;

use crate::limits;

/// A writer of events to stderr.
#[derive(Debug)]
pub struct EventLog {
    /// Nothing is logged without a console.
    console: Option<Console>,
    job: Arc<JobSpec>,
    /// The name of this machine.
    host_name: String,
    began: Instant,
    /// Lines that have not been handed over yet.
    pending: Vec<u8>,
    has_lost: bool,
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

/// The fields that differ between the events of one node.
struct EventFields {
    source: &'static str,
    state: &'static str,
    /// The worker's global rank and process.
    worker: Option<(u32, u32)>,
    error: Option<String>,
    duration: Option<Duration>,
    details: Value,
}

impl EventLog {
    /// Creates a log on `console`. Events are dropped unless the job prints them.
    pub fn new(console: &Console, job: Arc<JobSpec>, host_name: String) -> Self {
        let console = job.prints_events.then(|| console.clone());
        Self { console, job, host_name, began: clock::now(), pending: Vec::new(), has_lost: false }
    }

    /// Returns the file name of the program that workers run.
    fn entry_point(&self) -> Cow<'_, str> {
        self.job.command.program.file_name().unwrap_or_default().to_string_lossy()
    }

    /// Logs an event of this node's part in a round.
    pub fn agent(&mut self, admission: &Admission, event: AgentEvent) {
        let (state, duration) = match event {
            AgentEvent::Rendezvous(waited) => ("RENDEZVOUS", Some(waited)),
            AgentEvent::Assigned => ("ASSIGN_WORKER_RANKS", Some(Duration::ZERO)),
            AgentEvent::Succeeded => ("SUCCEEDED", None),
            AgentEvent::Failed => ("FAILED", None),
        };
        let details = json!({
            "group_world_size": admission.group_world_size,
            "entry_point": self.entry_point(),
        });
        let (source, worker, error) = ("AGENT", None, None);
        self.log(admission, EventFields { source, state, worker, error, duration, details });
    }

    /// Logs an event of one worker in a round.
    pub fn worker(
        &mut self,
        admission: &Admission,
        local_rank: LocalRank,
        pid: u32,
        event: WorkerEvent,
    ) {
        let (state, failure) = match event {
            WorkerEvent::Started => ("START", None),
            WorkerEvent::Succeeded => ("SUCCEEDED", None),
            WorkerEvent::Failed { exit_code, message } => ("FAILED", Some((exit_code, message))),
            WorkerEvent::Terminated => ("TERMINATED", None),
        };
        let exit_code = failure.as_ref().map(|(exit_code, _)| exit_code);
        let details = json!({
            "group_world_size": admission.group_world_size,
            "entry_point": self.entry_point(),
            "local_rank": [local_rank.0],
            "role_rank": [admission.first_role_rank.0.saturating_add(local_rank.0)],
            "role_world_size": [admission.role_world_size],
            "exit_code": [exit_code],
            "worker_pid": [exit_code.map(|_| pid)],
        });
        let global_rank = admission.first_global_rank.0.saturating_add(local_rank.0);
        let error = failure
            .map(|(_, message)| json!({ "message": message.as_deref().unwrap_or("<NONE>") }))
            .map(|error| error.to_string());
        let (source, worker, duration) = ("WORKER", Some((global_rank, pid)), None);
        self.log(admission, EventFields { source, state, worker, error, duration, details });
    }

    fn log(&mut self, admission: &Admission, event: EventFields) {
        if self.console.is_none() {
            return;
        }
        let line = json!({
            "name": format!("torchelastic.worker.status.{}", event.state),
            "source": event.source,
            // Milliseconds since 1970; torchrun leaves it zero.
            "timestamp": u64::try_from(clock::wall_time().as_millis()).unwrap_or_default(),
            "metadata": {
                "run_id": self.job.run_id.to_string(),
                "global_rank": event.worker.map(|(rank, _)| rank),
                "group_rank": admission.group_rank.0,
                "worker_id": event.worker.map(|(_, pid)| pid.to_string()),
                "role": self.job.role,
                "hostname": self.host_name,
                "state": event.state,
                "total_run_time": clock::now().saturating_duration_since(self.began).as_secs(),
                "rdzv_backend": self.job.rendezvous.backend(),
                "raw_error": event.error,
                "metadata": event.details.to_string(),
                "agent_restarts": admission.restart_count,
                "duration_ms": event.duration.map(|duration| duration.as_secs_f64() * 1000.0),
            },
        });
        let line = format!("{line}\n");
        // The agent never waits for a reader of events.
        if self.pending.len() + line.len() <= limits::MAX_PENDING_EVENTS {
            self.pending.extend_from_slice(line.as_bytes());
        } else if !std::mem::replace(&mut self.has_lost, true) {
            warn!("events were lost: their output is blocked");
        }
    }

    /// Hands over the pending lines, unless their destination is blocked; the next call retries
    /// then.
    pub fn flush(&mut self) {
        let Some(console) = self.console.as_ref().filter(|_| !self.pending.is_empty()) else {
            return;
        };
        if console.try_write(Stream::Stderr, Bytes::copy_from_slice(&self.pending)) {
            self.pending.clear();
        }
    }
}
