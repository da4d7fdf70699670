//! Measures the hot paths of the pure core, without socket, process or runtime.

use std::{hint::black_box, time::Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use ragent_benches::now;
use ragent_rendezvous::{
    Rendezvous,
    ids::{GlobalRank, JobUid, NodeId, RoundId, RunId},
    message::{
        Digest, GroupLook, Launched, LookPart, NodeDescription, NodeState, Registration, WorkerLook,
    },
    settings::{JobState, Leases, NodeRange, Settings, SharedSettings},
    stall::{Own, RankedNode, explain_stall},
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

/// A stall is explained by the answers of all nodes, which have eight workers each, in both parts of a look.
fn explain(c: &mut Criterion) {
    let nodes = 0..10_000_u32;
    let of_part = |part| nodes.clone().map(move |node| digest(node, part));
    let digests: Vec<_> = of_part(LookPart::First).chain(of_part(LookPart::Second)).collect();
    let node = |node: u32| RankedNode {
        host: format!("node{node}"),
        first: GlobalRank(8 * node),
        workers: 8,
    };
    let own = Own { look: 1, nodes: nodes.clone().map(node).collect(), ..Own::default() };
    let mut group = c.benchmark_group("rendezvous/explain a stall");
    group.sample_size(10).bench_function("10,000 nodes", |b| {
        b.iter(|| {
            let explanation = explain_stall(black_box(&digests), &own);
            assert_eq!(explanation.rank, Some(GlobalRank(0)));
        });
    });
    group.finish();
}

/// The workers of the first node have not launched what all others have.
fn digest(node: u32, part: LookPart) -> Digest {
    let ranks: Vec<_> = (8 * node..8 * node + 8).map(GlobalRank).collect();
    let group = |name: String, size, ranks: &[GlobalRank]| GroupLook {
        name,
        size,
        launched: vec![Launched {
            operation: "all_reduce [1024] float".to_owned(),
            number: 7 - u64::from(node == 0),
            is_finished: node == 0,
            count: u32::try_from(ranks.len()).expect("it is small"),
            ranks: ranks.to_vec(),
        }],
    };
    let mut groups = vec![group("world".to_owned(), 80_000, &ranks)];
    for (local, rank) in ranks.iter().enumerate() {
        groups.push(group(format!("data{local}"), 10_000, &[*rank]));
    }
    let worker = |rank: &GlobalRank| WorkerLook { rank: *rank, ..WorkerLook::default() };
    let workers = ranks.iter().map(worker).collect();
    Digest { workers, groups, ..Digest::new(RoundId::default(), 1, part) }
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

criterion_group!(benches, store, join, explain);
criterion_main!(benches);
