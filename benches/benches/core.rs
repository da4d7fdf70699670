//! Measures the hot paths of the pure core, without socket, process or runtime.

use std::{hint::black_box, time::Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use ragent_benches::now;
use ragent_rendezvous::{
    Rendezvous,
    ids::{JobUid, NodeId, RunId},
    message::{NodeDescription, NodeState, Registration},
    settings::{JobState, Leases, NodeRange, Settings, SharedSettings},
    voter_count::VoterCount,
};
use ragent_store::{
    Engine,
    wire::{Decoder, Query},
};

fn store(c: &mut Criterion) {
    let mut request = Vec::new();
    let query = Query::Set { key: KEY, value: &VALUE };
    query.encode(&mut request).expect("the query is within all limits");
    let mut decoder = Decoder::default();
    c.bench_function("store/decode SET", |b| {
        b.iter(|| {
            let mut bytes = black_box(&request[..]);
            assert!(decoder.decode(&mut bytes).is_ok_and(|query| query.is_some()));
        });
    });
    let mut engine = Engine::default();
    c.bench_function("store/engine SET", |b| {
        b.iter(|| engine.set(black_box(KEY), black_box(&VALUE)).expect("there is room"));
    });
    c.bench_function("store/engine GET", |b| b.iter(|| engine.get(black_box(KEY)).cloned()));
}

/// All nodes of a job register, and the round that needs them all completes.
fn join(c: &mut Criterion) {
    let mut group = c.benchmark_group("rendezvous/all join");
    for nodes in [10, 100, 1000, 10_000] {
        let registrations: Vec<Registration> =
            (0..nodes).map(|number| registration(number, nodes)).collect();
        let start = now();
        group.bench_function(BenchmarkId::from_parameter(nodes), |b| {
            b.iter_batched(
                || registrations.clone(),
                |registrations| gather(start, registrations),
                BatchSize::LargeInput,
            )
        });
    }
    group.finish();
}

fn gather(now: Instant, registrations: Vec<Registration>) -> usize {
    let settings = Settings {
        run_id: RunId::new(RUN_ID),
        coordinator: "coordinator".to_owned(),
        host: None,
        shared: None,
        voters: Vec::new(),
        voter_count: VoterCount::One,
        keeps_charges: false,
        leases: Leases::default(),
        begins_at: None,
    };
    let nodes = registrations.len();
    let mut machine = Rendezvous::new(now, settings, JobState::new(JobUid::new("job")), None);
    let mut effects = 0;
    for registration in registrations {
        machine.handle_registration(now, registration);
        while machine.poll_effect().is_some() {
            effects += 1;
        }
    }
    // Each is welcomed and admitted.
    assert!(effects >= 2 * nodes, "{effects}");
    effects
}

fn registration(number: u32, nodes: u32) -> Registration {
    Registration::new(
        RunId::new(RUN_ID),
        NodeDescription {
            agent_port: 29400,
            script: "train.py".to_owned(),
            ..NodeDescription::new(
                NodeId::new(format!("node{number}")),
                format!("node{number}"),
                format!("10.0.{}.{}", number / 256, number % 256),
            )
        },
        SharedSettings::new(NodeRange::new(nodes, nodes).expect("there is a node")),
        NodeState::Ready { store_port: 29500 },
    )
}

const KEY: &[u8] = b"/bench/key";
const VALUE: [u8; 64] = [b'v'; 64];
const RUN_ID: &str = "bench";

criterion_group!(benches, store, join);
criterion_main!(benches);
