//! Jobs of five nodes to which everything happens at once, decided by a seed: agents, keepers and
//! workers are killed, frozen and told to leave, links are cut, nodes join. The workers write down
//! from inside what they were told and when they were alive; the rules of section 7 of
//! `docs/architecture.md` are looked at over that.
//!
//! `SEED` runs one seed, `CHAOS_SECONDS` runs one after the other for so long, and both together run
//! the one again and again: a seed repeats what is done, but not how fast the machine is meanwhile.

use std::{
    any::Any,
    hash::{BuildHasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use schedule::Schedule;

mod history;
mod job;
mod node;
mod oracle;
#[path = "../src/random.rs"]
#[expect(unreachable_pub, reason = "it is shared with the simulation")]
mod random;
mod schedule;
#[path = "../support/mod.rs"]
mod support;

/// How long faults begin in a job.
const SPAN: Duration = Duration::from_secs(12);

/// Seeds of an ordinary run.
const SEEDS: u64 = 3;

/// Jobs at the same time. More would starve each other of the processor, and leases with it.
const LANES: u64 = 3;

/// A number that is given by hand.
#[expect(clippy::disallowed_methods, reason = "whoever runs the test says what happens in it")]
fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs the job of a seed; says what broke.
#[expect(clippy::print_stderr, reason = "whoever runs it for long wants to see it move")]
fn run(seed: u64) -> Result<(), String> {
    let schedule = Schedule::new(seed, SPAN);
    let summary = catch_unwind(AssertUnwindSafe(|| job::run(&schedule, given("SEED").is_some())));
    let summary = summary.map_err(|panic| format!("{}\n{schedule}", words(&*panic)));
    let summary = summary?.map_err(|failure| failure.to_string())?;
    let job::Summary { processes, rounds, charges } = summary;
    eprintln!("seed {seed}: {processes} processes in {rounds} rounds, {charges} failures charged");
    Ok(())
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("a panic without words")
}

/// Whatever is done to a job, no rule is broken.
#[test]
fn no_fault_breaks_a_rule() {
    let (seed, seconds) = (given("SEED"), given("CHAOS_SECONDS"));
    let runs = match (seed, seconds) {
        (_, Some(_)) => u64::MAX,
        (Some(_), None) => 1,
        (None, None) => SEEDS,
    };
    // The ordinary run is always the same one.
    let first = seconds.map_or(1, |_| RandomState::new().hash_one(()) % 1_000_000_000);
    let end = seconds.map(|seconds| history::now() + Duration::from_secs(seconds));
    let next = AtomicU64::new(0);
    let broken = Mutex::new(Vec::new());
    let lane = || {
        while end.is_none_or(|end| history::now() < end) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= runs {
                return;
            }
            if let Err(why) = run(seed.unwrap_or(first + number)) {
                broken.lock().unwrap().push(why);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..LANES.min(runs) {
            scope.spawn(lane);
        }
    });
    let broken = broken.into_inner().unwrap();
    assert!(broken.is_empty(), "\n{}", broken.join("\n\n"));
}
