//! Tests jobs whose workers keep checkpoints in memory.

use ragent_tests::world::{Bug, MemoryTotals, World};

use crate::{assert_noticed, assert_rules_hold, run};

/// The number of seeds of a default run.
const SEEDS: u64 = 400;

/// A round begins with the newest checkpoint that is held and not void, and every worker gets its own block of it.
#[test]
fn memory_rules_hold_in_every_world() {
    assert_rules_hold(World::with_memory, "MEMORY_SEEDS", SEEDS, "memory_rules");
}

/// The worlds contain rounds that are restored, with blocks of other nodes and with other ranks, copies, strikes, and memory that goes off.
#[test]
fn memory_worlds_are_eventful() {
    let sum = |sum: MemoryTotals, seed: u64| {
        let mut world = World::with_memory(seed, Bug::None);
        run(&mut world).expect("no rule is broken");
        let totals = world.memory_totals();
        MemoryTotals {
            restored: sum.restored + totals.restored,
            resharded: sum.resharded + totals.resharded,
            fetched: sum.fetched + totals.fetched,
            copied: sum.copied + totals.copied,
            struck: sum.struck + totals.struck,
            off: sum.off + totals.off,
            whole: sum.whole + totals.whole,
        }
    };
    let totals = (0..SEEDS / 2).fold(MemoryTotals::default(), sum);
    // Well below the usual numbers.
    assert!(totals.restored > 100 && totals.fetched > 50, "{totals:?}");
    assert!(totals.resharded > 10, "{totals:?}");
    assert!(totals.copied > 1_000 && totals.whole > 500, "{totals:?}");
    assert!(totals.struck > 5 && totals.off > 10, "{totals:?}");
}

/// The same seed gives the same world.
#[test]
fn memory_worlds_are_repeatable() {
    for seed in 0..20 {
        let life = || {
            let mut world = World::with_memory(seed, Bug::None);
            run(&mut world).expect("no rule is broken");
            (world.elapsed(), world.totals(), world.memory_totals())
        };
        assert_eq!(life(), life());
    }
}

/// Each planted bug is found by one of the rules that it breaks.
#[test]
#[ignore = "`make test-all` runs it: some bugs need thousands of worlds"]
fn every_bug_of_memory_is_noticed() {
    let bugs: &[(Bug, &str)] = &[
        (Bug::LowestIsWhole, "y"),
        (Bug::OnceIsWhole, "y"),
        (Bug::PlanIsWhole, "y ad"),
        (Bug::StepIsId, "w x y ab"),
        (Bug::PartialReported, "w x y ab ad"),
        (Bug::OlderReport, "x y"),
        (Bug::OwnBuddy, "aa"),
        (Bug::RestoredNotCopied, "y aa"),
        (Bug::NeverAlone, "aa"),
        (Bug::StrikesLost, "ab"),
        (Bug::UnreadCounts, "ab"),
        (Bug::FalseRoom, "aq"),
        (Bug::GoneIsStruck, "ab ad"),
        (Bug::OldSocket, "w"),
        (Bug::OffAtOneNode, "aa"),
        (Bug::TornIsDone, "w"),
        (Bug::PartLeftOut, "x"),
        (Bug::SourcesSwapped, "x"),
        (Bug::RanksIgnored, "x"),
        (Bug::BlockUnchecked, "w"),
    ];
    assert_noticed(World::with_memory, bugs);
}
