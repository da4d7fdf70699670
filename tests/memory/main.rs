//! Tests checkpoints in memory with real processes: what workers have saved is there after a failure, whole and unchanged.
#![expect(clippy::unwrap_used, reason = "what cannot be is a failure of the test")]

mod copies;
mod one_node;
#[path = "../support/mod.rs"]
mod support;

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::PathBuf,
};

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

/// The kept blocks of an agent: the files that exist only in memory.
fn memory_files(agent: &Program) -> Vec<PathBuf> {
    let folder = format!("/proc/{}/fd", agent.pid());
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_memory = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("memfd:"))
    };
    entries.filter(is_memory).collect()
}

/// Changes a byte of each kept block of an agent.
#[track_caller]
fn change_a_byte(agent: &Program) {
    let files = memory_files(agent);
    assert!(!files.is_empty());
    for path in files {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[255], 77).unwrap();
    }
}
