//! Thousands of jobs, each with a seed that determines its faults.
//!
//! A failure prints the command that replays it.

mod scale;
mod storm;
mod takeover;

use std::{
    mem,
    num::NonZeroUsize,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use ragent_tests::{invariants::RULES, sabotage::Sabotage, world::World};

/// The number of seeds of a default run.
const SEEDS: u64 = 2_000;

/// The number of seeds within which a planted bug must be found.
const SEEDS_TO_FIND_A_BUG: u64 = 20_000;

/// Runs the world of `seed` to its end, or to the first rule that is broken.
fn run(seed: u64, sabotage: Sabotage) -> Result<(), String> {
    let mut world = World::new(seed, sabotage);
    loop {
        let goes_on = world.step();
        let has_news = mem::take(&mut world.chronicle.has_news);
        for (name, check) in RULES {
            // Most steps are keep-alives; rules that these cannot break are not checked.
            let is_cheap = ["5", "8", "12"].iter().any(|number| name.starts_with(number));
            if has_news || is_cheap {
                check(&world)
                    .map_err(|why| format!("rule {name}: {why}, at {:?}", world.elapsed()))?;
            }
        }
        if !goes_on {
            return Ok(());
        }
    }
}

/// A number from the environment: `SEED`, to replay a failure, or `SEEDS` and `TAKEOVER_SEEDS`, to
/// run more of them.
#[expect(clippy::disallowed_methods, reason = "the user of the simulation selects its worlds")]
fn given(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The lowest of `seeds` that breaks a rule, with the reason; the seeds are divided among all
/// processors.
fn first_broken(seeds: Range<u64>, sabotage: Sabotage) -> Option<(u64, String)> {
    first_broken_of(seeds, |seed| run(seed, sabotage).err())
}

/// The lowest of `seeds` for which `run` returns a reason.
fn first_broken_of(
    seeds: Range<u64>,
    run: impl Fn(u64) -> Option<String> + Sync,
) -> Option<(u64, String)> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    // Once a seed is known to break a rule, higher seeds are skipped.
    let end = AtomicU64::new(seeds.end);
    let share = |first: usize| {
        let share = seeds.clone().skip(first).step_by(threads);
        let mut share = share.take_while(|seed| *seed < end.load(Ordering::Relaxed));
        let broken = share.find_map(|seed| run(seed).map(|why| (seed, why)))?;
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

/// No fault breaks a rule.
#[test]
fn rules_hold_in_every_world() {
    let broken = match given("SEED") {
        Some(seed) => first_broken(seed..seed.saturating_add(1), Sabotage::None),
        None => first_broken(0..given("SEEDS").unwrap_or(SEEDS), Sabotage::None),
    };
    if let Some((seed, why)) = broken {
        panic!("{why}\nSEED={seed} cargo test -p ragent-tests --test simulation");
    }
}

/// The same seed gives the same world.
#[test]
fn worlds_are_repeatable() {
    let life = |seed| {
        let mut world = World::new(seed, Sabotage::None);
        while world.step() {}
        (world.elapsed(), format!("{:?}", world.chronicle))
    };
    for seed in 0..20 {
        assert_eq!(life(seed), life(seed));
    }
}

/// The worlds contain enough of the events that the rules are about: an uneventful world breaks
/// none.
#[test]
fn worlds_are_eventful() {
    let (mut rounds, mut terms, mut charges, mut successes) = (0, 0, 0, 0);
    for seed in 0..SEEDS / 10 {
        let mut world = World::new(seed, Sabotage::None);
        let mut has_succeeded = false;
        while world.step() {
            has_succeeded |= world.has_succeeded();
        }
        rounds += world.chronicle.rounds.len();
        let memory = world.chronicle.memories.last();
        terms += memory.map_or(0, |memory| memory.term.0);
        charges += memory.map_or(0, |memory| memory.restarts_used);
        successes += u32::from(has_succeeded);
    }
    // Well below the usual numbers: three rounds, a restart of the coordinator and a quarter of a
    // charge per world.
    assert!(rounds > 400, "{rounds} rounds");
    assert!(terms > 250, "{terms} terms");
    assert!(charges > 30, "{charges} charges");
    assert!(successes > 5, "{successes} jobs that succeeded");
}

/// Each rule finds the bug that breaks it.
#[test]
fn every_rule_notices_its_bug() {
    let bugs = [
        (Sabotage::DoubleRank, "rule 1"),
        (Sabotage::WaitingMember, "rule 2"),
        (Sabotage::Amnesia, "rule 3"),
        (Sabotage::FewerThanMin, "rule 4"),
        (Sabotage::NoKeeper, "rule 5"),
        (Sabotage::FalseObituary, "rule 5"),
        (Sabotage::ForgottenCharges, "rule 7"),
        (Sabotage::NoTimeouts, "rule 8"),
        (Sabotage::OthersCharges, "rule 11"),
        (Sabotage::LostEvents, "rule 12"),
    ];
    for (sabotage, rule) in bugs {
        let (_, why) = first_broken(0..SEEDS_TO_FIND_A_BUG, sabotage)
            .unwrap_or_else(|| panic!("nothing noticed {sabotage:?}"));
        assert!(why.starts_with(rule), "{sabotage:?} was noticed by {why}");
    }
}
