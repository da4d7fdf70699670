//! Tests checkpoints in memory with real processes: what workers have saved is there after a failure, whole and unchanged.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod copies;
mod one_node;
#[path = "../support/mod.rs"]
mod support;

use support::{Orders, Program};

/// The worker of all tests, which follows orders.
const WORKER: &str = "--no-python memory.py";

fn give(orders: &[Orders], order: &str) {
    orders.iter().for_each(|orders| orders.give(order));
}

/// Waits until each of these ranks has printed that it loads its own block of a step.
#[track_caller]
fn assert_loaded(agent: &mut Program, step: u64, ranks: &[u32]) {
    for rank in ranks {
        agent.prints(&format!("rank={rank} loaded={step} of={rank}"));
    }
}

#[track_caller]
fn prints_of_all(agent: &mut Program, ranks: &[u32], text: &str) {
    for rank in ranks {
        agent.prints(&format!("rank={rank} {text}"));
    }
}
