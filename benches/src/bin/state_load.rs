//! Measures what the state of a job with many nodes costs its coordinator, without socket, process or runtime, and prints a line
//! of JSON about it.

use std::{
    io::Write as _,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::Parser;
use ragent_benches::now;
use ragent_proto::{Message as _, convert::FromAgent, v1};
use ragent_rendezvous::{
    Rendezvous,
    ids::{JobUid, NodeId, Peer, RoundId, RunId, StreamNumber},
    message::{
        FromNode, NodeDescription, NodeReport, NodeState, Registration, StepProgress, StepSource,
    },
    settings::{JobState, Leases, NodeRange, Settings, SharedSettings},
    voter_count::VoterCount,
};
use serde_json::{Value, json};

#[derive(Debug, Parser)]
struct StateLoadArgs {
    /// Number of nodes.
    #[arg(long, default_value_t = 10_000)]
    nodes: u32,
    /// Number of repetitions.
    #[arg(long, default_value_t = 50)]
    repeat: usize,
}

fn main() -> Result<()> {
    let StateLoadArgs { nodes, repeat } = StateLoadArgs::parse();
    let (start, times) = (now(), Times { repeat });
    let ids: Vec<NodeId> = (0..nodes).map(id).collect();
    let mut machine = running(start, &ids)?;
    let snapshot = machine.snapshot(start);
    anyhow::ensure!(snapshot.progress.is_some() && snapshot.nodes.len() == nodes as usize);
    let json = serde_json::to_vec(&snapshot)?.len();
    let report = json!({
        "nodes": nodes,
        "snapshot_ms": times.between_keep_alives(&mut machine, &ids, Rendezvous::shared_snapshot),
        "counts_ms": times.between_keep_alives(&mut machine, &ids, Rendezvous::counts),
        "texts_ms": times.of(|| machine.snapshot(start)),
        "ageless_ms": times.of(|| snapshot.without_ages()),
        "json_ms": times.of(|| serde_json::to_vec(&snapshot)),
        "json_bytes": json,
        "keep_alive_bytes": keep_alive(None),
        "keep_alive_with_step_bytes": keep_alive(Some(progress(48_210))),
        "keep_alive_with_largest_step_bytes": keep_alive(Some(progress(1 << 52))),
    });
    writeln!(std::io::stdout(), "{report}")?;
    Ok(())
}

/// Measures functions.
struct Times {
    repeat: usize,
}

impl Times {
    /// Returns the median and the longest time of a function of the machine, in milliseconds. As in a coordinator, each node sends
    /// another step between two calls.
    fn between_keep_alives<T>(
        &self,
        machine: &mut Rendezvous,
        ids: &[NodeId],
        act: fn(&Rendezvous, Instant) -> T,
    ) -> Value {
        let mut step = 48_210;
        self.measured(|| {
            step += 1;
            let now = now();
            for id in ids {
                send_step(machine, now, id, step);
            }
            timed(|| act(machine, now))
        })
    }

    /// Returns the median and the longest time of a function, in milliseconds.
    fn of<T>(&self, act: impl Fn() -> T) -> Value {
        self.measured(|| timed(&act))
    }

    fn measured(&self, mut time: impl FnMut() -> f64) -> Value {
        let mut times: Vec<f64> = (0..self.repeat.max(1)).map(|_| time()).collect();
        times.sort_by(f64::total_cmp);
        json!({ "median": times[times.len() / 2], "worst": times[times.len() - 1] })
    }
}

/// Returns the time of a function in milliseconds. It excludes the time to drop the result.
fn timed<T>(act: impl FnOnce() -> T) -> f64 {
    let begun = now();
    let result = act();
    let time = now() - begun;
    drop(result);
    time.as_secs_f64() * 1e3
}

/// Returns the size of a keep-alive.
fn keep_alive(progress: Option<StepProgress>) -> usize {
    let message = FromNode::KeepAlive {
        sequence: 1_000_000,
        asks_reason: false,
        progress,
        checkpoint: None,
        save_failed: None,
    };
    v1::AgentMessage::from(FromAgent::Message(message)).encoded_len()
}

fn progress(step: u64) -> StepProgress {
    let (total, age) = (Some(2 * step), Duration::from_millis(412));
    StepProgress { source: StepSource::Reported, lowest: step, highest: step, total, age }
}

/// Returns the machine of a job whose nodes run and report training steps.
fn running(now: Instant, ids: &[NodeId]) -> Result<Rendezvous> {
    let settings = Settings {
        run_id: RunId::new("state-load"),
        coordinator: "coordinator".to_owned(),
        host: None,
        shared: None,
        voters: Vec::new(),
        voter_count: VoterCount::One,
        keeps_charges: false,
        leases: Leases::default(),
        begins_at: None,
    };
    let job_state = JobState::new(JobUid::new("job"));
    let mut machine = Rendezvous::new(now, settings, job_state, None);
    let nodes = u32::try_from(ids.len())?;
    let range = NodeRange::new(nodes, nodes).context("there must be a node")?;
    for (number, id) in (0..nodes).zip(ids) {
        machine.handle_registration(now, registration(number, id.clone(), range));
    }
    while machine.poll_effect().is_some() {}
    let snapshot = machine.snapshot(now);
    let round = RoundId { term: snapshot.term, round: snapshot.round };
    for id in ids {
        let peer = Peer { node: id.clone(), stream: StreamNumber(1) };
        let report = NodeReport::new(round, NodeState::Running);
        machine.handle_message(now, peer, FromNode::NodeReport(report));
        for step in [48_209, 48_210] {
            send_step(&mut machine, now, id, step);
        }
    }
    Ok(machine)
}

/// Handles a keep-alive with a training step.
fn send_step(machine: &mut Rendezvous, now: Instant, id: &NodeId, step: u64) {
    let (peer, progress) =
        (Peer { node: id.clone(), stream: StreamNumber(1) }, Some(progress(step)));
    let message = FromNode::KeepAlive {
        sequence: step,
        asks_reason: false,
        progress,
        checkpoint: None,
        save_failed: None,
    };
    machine.handle_message(now, peer, message);
    while machine.poll_effect().is_some() {}
}

fn id(number: u32) -> NodeId {
    NodeId::new(format!("node{number}_1_0"))
}

fn registration(number: u32, node_id: NodeId, nodes: NodeRange) -> Registration {
    Registration::new(
        RunId::new("state-load"),
        NodeDescription {
            agent_port: 29400,
            script: "train.py".to_owned(),
            local_world_size: NonZeroU32::MIN.saturating_add(7),
            ..NodeDescription::new(
                node_id,
                format!("node{number}"),
                format!("10.0.{}.{}", number / 256, number % 256),
            )
        },
        SharedSettings::new(nodes),
        NodeState::Ready { store_port: 29500 },
    )
}
