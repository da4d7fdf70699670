//! Tests thousands of jobs, each with a seed that determines its faults.
//!
//! A failure prints the command that replays it.

mod budget;
mod etcd;
mod fixed;
mod health;
mod memory;
mod notices;
mod scale;
mod stalls;
mod storm;
mod takeover;

use std::{
    num::NonZeroUsize,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use ragent_tests::world::{Bug, Totals, World};

/// The seed below which a planted bug must be found.
const SEEDS_TO_FIND_A_BUG: u64 = 31_300;

/// Creates the world of a seed.
type Create = fn(u64, Bug) -> World;

/// Prints a number for each kind of world, which changes with any effect of a coordinator. For changes of the code that must change nothing:
/// `scripts/same-effects.sh` compares the numbers of two commits.
#[test]
#[ignore = "prints, and tests nothing"]
#[expect(clippy::print_stdout, reason = "prints the numbers")]
fn effects_are_traced() {
    let kinds: [(&str, Create); 10] = [
        ("takeover", World::new),
        ("aimed", World::with_aimed_faults),
        ("lost states", World::with_lost_states),
        ("etcd", World::with_etcd),
        ("fixed", World::with_fixed_coordinator),
        ("notices", World::with_notices),
        ("memory", World::with_memory),
        ("stalls", World::with_stalls),
        ("health", World::with_health),
        ("budget", World::with_budget),
    ];
    let count = given("SEEDS").unwrap_or(100);
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    for (name, create) in kinds {
        // The order of the seeds does not matter.
        let share = |first: usize| {
            let traces = (0..count).skip(first).step_by(threads);
            let traces =
                traces.map(|seed| create(seed, Bug::None).trace().wrapping_mul(2 * seed + 1));
            traces.fold(0, u64::wrapping_add)
        };
        let sum = thread::scope(|scope| {
            let share = &share;
            let handles: Vec<_> =
                (0..threads).map(|first| scope.spawn(move || share(first))).collect();
            let sums = handles.into_iter().map(|handle| handle.join().expect("no world panics"));
            sums.fold(0, u64::wrapping_add)
        });
        println!("{name} {sum:016x}");
    }
}

/// Runs a world to its end, or until the first rule is broken.
fn run(world: &mut World) -> Result<Totals, String> {
    while world.step()? {}
    Ok(world.totals())
}

/// A number from the environment: `SEED` to replay a failure, or `SEEDS`, `ETCD_SEEDS`, `MEMORY_SEEDS` and others to run more of them.
#[expect(clippy::disallowed_methods, reason = "the user of the simulation selects its worlds")]
fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The lowest of `seeds` that breaks a rule, with the reason. All processors share the seeds.
fn first_broken(seeds: Range<u64>, create: Create, bug: Bug) -> Option<(u64, String)> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    // Once a seed is known to break a rule, higher seeds are skipped.
    let end = AtomicU64::new(seeds.end);
    let share = |first: usize| {
        let share = seeds.clone().skip(first).step_by(threads);
        let mut share = share.take_while(|seed| *seed < end.load(Ordering::Relaxed));
        let broken =
            share.find_map(|seed| run(&mut create(seed, bug)).err().map(|why| (seed, why)))?;
        end.fetch_min(broken.0, Ordering::Relaxed);
        Some(broken)
    };
    thread::scope(|scope| {
        let share = &share;
        let handles: Vec<_> = (0..threads).map(|first| scope.spawn(move || share(first))).collect();
        let broken = handles.into_iter().map(|handle| handle.join().expect("no world panics"));
        broken.flatten().min_by_key(|(seed, _)| *seed)
    })
}

/// Fails if a rule is broken, with the story of the world and the command that replays it. `variable` sets the number of worlds. Without
/// it, the number is `count`.
fn assert_rules_hold(create: Create, variable: &str, count: u64, test: &str) {
    let seeds = match given("SEED") {
        Some(seed) => seed..seed.saturating_add(1),
        None => 0..given(variable).unwrap_or(count),
    };
    if let Some((seed, why)) = first_broken(seeds, create, Bug::None) {
        let mut world = create(seed, Bug::None);
        while world.step() == Ok(true) {}
        let story = world.story();
        panic!("{story}\n{why}\nSEED={seed} cargo test -p ragent-tests --test simulation {test}");
    }
}

/// Bugs of all kinds of worlds that many seeds trigger. The tests `every_…_bug_is_noticed` have all of them.
#[test]
fn common_bugs_are_noticed() {
    assert_noticed(World::new, &[(Bug::IgnoredReplica, "d g"), (Bug::VoteUnderLease, "a")]);
    assert_noticed(World::with_aimed_faults, &[(Bug::CountedNewcomer, "a d")]);
    assert_noticed(World::with_lost_states, &[(Bug::StrangersDropped, "b j l")]);
    assert_noticed(World::with_etcd, &[(Bug::RecordNotWritten, "o")]);
    assert_noticed(World::with_fixed_coordinator, &[(Bug::Amnesia, "3")]);
    assert_noticed(World::with_notices, &[(Bug::ForgottenNotice, "r")]);
    assert_noticed(World::with_memory, &[(Bug::TornIsDone, "w")]);
    assert_noticed(World::with_stalls, &[(Bug::EternalWait, "af")]);
    assert_noticed(World::with_health, &[(Bug::NewKinds, "ak")]);
}

/// Fails unless each bug is noticed by one of its rules.
#[expect(clippy::print_stdout, reason = "shows the first seeds with `--nocapture`")]
fn assert_noticed(create: Create, bugs: &[(Bug, &str)]) {
    let is_expected = |rules: &str, noticed: &Option<(u64, String)>| {
        let why = noticed.as_ref().and_then(|(_, why)| why.strip_prefix("rule "));
        let rule = why.and_then(|why| why.split(':').next());
        rule.is_some_and(|rule| rules.split(' ').any(|expected| expected == rule))
    };
    let noticed = bugs.iter().map(|(bug, rules)| {
        let found = first_broken(0..SEEDS_TO_FIND_A_BUG, create, *bug);
        println!("{bug:?}: {found:?}");
        (bug, rules, found)
    });
    let missed: Vec<_> =
        noticed.filter(|(_, rules, noticed)| !is_expected(rules, noticed)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}
