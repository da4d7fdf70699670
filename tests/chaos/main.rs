//! Runs jobs of five nodes with faults of all kinds at once, chosen by a seed.
//!
//! - Agents, keepers and workers are killed, frozen and asked to leave. Links are cut, and nodes join.
//! - In half of the jobs, three or five nodes elect the coordinator. There, the hosts of the leader, of one voter after another, and any
//!   host with its state are lost as well. The agent of another node may be started at that moment.
//! - In half of the jobs, the workers keep checkpoints in memory. In half of them, the agents share a secret, so that copies of these cross
//!   the network.
//! - In many jobs, ranks have time to save before a node leaves, and the workers of a node that hangs are killed. Workers are stopped, and
//!   hang. A substitute for NVIDIA's driver reports that a machine is bad.
//! - The workers record their environment and when they were alive. The rules of `docs/rendezvous.md` are checked on these records.
//!
//! With `WORKER=python` the workers are started from standbys, and a run in which none was used fails. So does a run of several jobs in which
//! no round began from memory, and a run of many jobs in which no notice was answered, no worker was killed because it hung, or no bad machine
//! was set aside.
//!
//! `SEED` runs one seed. `CHAOS_SECONDS` runs one seed after the other for that time. Both together repeat the same seed. It determines the
//! faults, but not the speed of the machine.

use std::{
    any::Any,
    hash::{BuildHasher, RandomState},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use schedule::Schedule;
use support::WorkerProgram;

mod history;
mod job;
mod losses;
mod node;
mod oracle;
#[path = "../src/random.rs"]
#[expect(unreachable_pub, reason = "it is shared with the simulation")]
mod random;
mod schedule;
#[path = "../support/mod.rs"]
mod support;

/// The time during which faults begin in a job.
const SPAN: Duration = Duration::from_secs(12);

/// The first seed of a default run, and their number. These seeds cover all kinds of jobs.
const FIRST: u64 = 10;
const SEEDS: u64 = 5;

/// A run of so many jobs has every event that jobs report in numbers.
const MANY: u64 = 30;

/// The number of jobs at the same time. If there were more, they would take each other's CPU time and miss their leases.
const LANES: u64 = 3;

/// A number from the environment.
#[expect(clippy::disallowed_methods, reason = "the user of the test selects its faults")]
fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs the job of a seed. Returns its events, or the broken rules as an error.
#[expect(clippy::print_stderr, reason = "a long run reports its progress")]
fn run(seed: u64, worker: WorkerProgram) -> Result<job::Summary, String> {
    let schedule = Schedule::new(seed, SPAN);
    let is_wanted = given("SEED").is_some();
    let summary = catch_unwind(AssertUnwindSafe(|| job::run(&schedule, worker, is_wanted)));
    let summary = summary.map_err(|panic| format!("{}\n{schedule}", words(&*panic)));
    let summary = summary?.map_err(|failure| failure.to_string())?;
    let job::Summary { processes, rounds, charges, standbys, restored, saved, hung, free } =
        &summary;
    let voters = schedule.voters;
    eprintln!(
        "seed {seed}: {voters} endpoint(s), {processes} processes in {rounds} rounds, {charges} failures charged, \
         {standbys} standbys used, {restored} rounds from memory, {saved} notices after which all have saved, \
         {hung} hangs, {free} failures of bad machines"
    );
    Ok(summary)
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("a panic without words")
}

/// No combination of faults breaks a rule.
#[test]
fn no_fault_breaks_a_rule() {
    let worker = WorkerProgram::selected();
    if !support::is_there("python3") {
        return;
    }
    let (seed, seconds) = (given("SEED"), given("CHAOS_SECONDS"));
    let runs = match (seed, seconds) {
        (_, Some(_)) => u64::MAX,
        (Some(_), None) => 1,
        (None, None) => SEEDS,
    };
    // The seeds of a default run are always the same.
    let first = seconds.map_or(FIRST, |_| RandomState::new().hash_one(()) % 1_000_000_000);
    let end = seconds.map(|seconds| history::now() + Duration::from_secs(seconds));
    let next = AtomicU64::new(0);
    let (standbys, restored) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let [saved, hung, free] = [const { AtomicUsize::new(0) }; 3];
    let broken = Mutex::new(Vec::new());
    let lane = || {
        while end.is_none_or(|end| history::now() < end) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= runs {
                return;
            }
            match run(seed.unwrap_or(first + number), worker) {
                Ok(summary) => {
                    standbys.fetch_add(summary.standbys, Ordering::Relaxed);
                    restored.fetch_add(summary.restored, Ordering::Relaxed);
                    saved.fetch_add(summary.saved, Ordering::Relaxed);
                    hung.fetch_add(summary.hung, Ordering::Relaxed);
                    free.fetch_add(summary.free, Ordering::Relaxed);
                }
                Err(why) => broken.lock().unwrap().push(why),
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
    assert!(runs < SEEDS || restored.into_inner() > 0, "no round has begun from memory");
    let jobs = next.into_inner();
    let counts = [("notice", saved), ("hang", hung), ("bad machine", free)];
    for (what, count) in counts.map(|(what, count)| (what, count.into_inner())) {
        assert!(seed.is_some() || jobs < MANY || count > 0, "no {what} has had its effect");
    }
    let standbys = standbys.into_inner();
    assert_eq!(standbys > 0, worker == WorkerProgram::Python, "{standbys} standbys were used");
}
