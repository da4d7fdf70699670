//! Tests the time account.

use super::*;
use crate::fixture::{SECOND, some_instant};

fn seconds(times: &TimeTotals) -> Vec<(&'static str, u64)> {
    TimeState::ALL
        .into_iter()
        .map(|state| (state.name(), times.of(state).as_secs()))
        .filter(|(_, seconds)| *seconds > 0)
        .collect()
}

/// A round that fails is counted by its stages. Steps that are done again are counted
/// separately.
#[test]
fn stages_of_a_restart_are_counted() {
    let mut now = some_instant();
    let mut account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
    now += SECOND;
    account.enter(now, TimeState::Rendezvous);
    now += 2 * SECOND;
    account.enter(now, TimeState::Starting);
    account.started(now);
    now += 3 * SECOND;
    assert_eq!(account.state(now), Some(TimeState::Unknown));
    assert_eq!(account.progress(now, 1, None, false), Some(0));
    for step in 2..=20 {
        now += SECOND;
        assert_eq!(account.progress(now, step, Some(SECOND), false), None);
    }
    account.round_ended(now, None);
    now += 4 * SECOND;
    account.enter(now, TimeState::Rendezvous);
    account.enter(now, TimeState::Starting);
    account.started(now);
    now += 5 * SECOND;
    assert_eq!(account.state(now), Some(TimeState::Starting), "progress is known");
    assert_eq!(account.progress(now, 15, Some(SECOND), false), Some(6));
    let times = account.seen(now);
    let expected =
        [("waiting", 1), ("rendezvous", 2), ("starting", 8), ("productive", 19), ("stopping", 4)];
    assert_eq!(seconds(&times), expected);
    assert_eq!(times.redone, 6 * SECOND);
    account.round_ended(now, None);
    account.enter(now, TimeState::Starting);
    account.forget_steps();
    account.started(now);
    assert_eq!(account.progress(now, 3, Some(SECOND), false), Some(0), "other workers");
    account.close(now);
    assert_eq!(account.seen(now + SECOND), times, "a closed job grows no older");
}

/// A long time without a step is a stall, even if the round ends in it. After a pause, one that is less than
/// twice as long is none. A hang is counted as a hang.
#[test]
fn long_times_without_a_step_are_stalls() {
    let mut now = some_instant();
    let mut account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
    let run = |account: &mut TimeAccount, now: &mut Instant| {
        account.enter(*now, TimeState::Starting);
        account.started(*now);
        for step in 0..5 {
            account.progress(*now, step, None, false);
            *now += 2 * SECOND;
        }
        account.progress(*now, 5, None, false);
    };
    run(&mut account, &mut now);
    assert_eq!(account.state(now + 59 * SECOND), Some(TimeState::Productive));
    assert_eq!(account.state(now + 60 * SECOND), Some(TimeState::Stalled));
    assert_eq!(account.stalls_at(), Some(now + 60 * SECOND));
    assert_eq!(seconds(&account.settled(now + 61 * SECOND)), [("productive", 10)]);
    now += 90 * SECOND;
    account.progress(now, 6, None, false);
    assert_eq!(seconds(&account.seen(now)), [("productive", 10), ("stalled", 90)]);
    assert_eq!(account.stalls_at(), Some(now + 180 * SECOND));
    now += 179 * SECOND;
    account.progress(now, 7, None, false);
    assert_eq!(seconds(&account.seen(now)), [("productive", 189), ("stalled", 90)]);
    now += 400 * SECOND;
    account.round_ended(now, None);
    assert_eq!(seconds(&account.seen(now)), [("productive", 189), ("stalled", 490)]);
    run(&mut account, &mut now);
    now += 60 * SECOND;
    account.round_ended(now, Some(60 * SECOND));
    assert_eq!(account.seen(now).of(TimeState::Hung), 60 * SECOND);
}

/// No stall begins while a pause has a known reason, and later the clock starts again. A stall that has begun goes on.
#[test]
fn pause_with_a_reason_is_no_stall() {
    let mut now = some_instant();
    let mut account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
    account.enter(now, TimeState::Starting);
    account.progress(now, 1, Some(SECOND), false);
    now += 30 * SECOND;
    account.excuse(now, true);
    now += 3_600 * SECOND;
    assert_eq!((account.stalls_at(), account.state(now)), (None, Some(TimeState::Productive)));
    account.excuse(now, false);
    assert_eq!(account.stalls_at(), Some(now + 60 * SECOND));
    now += 60 * SECOND;
    account.excuse(now, true);
    assert_eq!(account.state(now), Some(TimeState::Stalled));
    now += 10 * SECOND;
    account.progress(now, 2, Some(SECOND), false);
    assert_eq!(seconds(&account.seen(now)), [("productive", 3_630), ("stalled", 70)]);
    assert_eq!(account.pauses(), Pauses { longest: 70 * SECOND, first: Duration::ZERO });
}

/// A job without signs of progress never stalls. Another one stalls before the first sign of a round after ten minutes,
/// or after twice the longest such time. This time still counts as a start.
#[test]
fn first_sign_of_a_round_may_be_late() {
    let mut now = some_instant();
    let mut account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
    account.enter(now, TimeState::Starting);
    account.started(now);
    assert_eq!(account.stalls_at(), None);
    now += 200 * SECOND;
    account.progress(now, 1, None, false);
    assert_eq!(account.stalls_at(), Some(now + 600 * SECOND), "no usual time is known");
    account.round_ended(now, None);
    assert_eq!(account.stalls_at(), None);
    account.enter(now, TimeState::Starting);
    assert_eq!(account.stalls_at(), Some(now + 600 * SECOND));
    now += 700 * SECOND;
    assert_eq!((account.state(now), account.last_step()), (Some(TimeState::Starting), None));
    account.progress(now, 1, None, false);
    assert_eq!((account.pauses().first, account.last_step()), (700 * SECOND, Some(1)));
    let mut next = TimeAccount::new(now, account.seen(now), account.pauses());
    next.enter(now, TimeState::Starting);
    next.started(now);
    assert_eq!(next.stalls_at(), Some(now + 1_400 * SECOND), "also after a takeover");
}

/// Reports of many nodes within a step do not make the next step look late.
#[test]
fn long_steps_of_many_nodes_are_productive() {
    let mut now = some_instant();
    let mut account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
    account.enter(now, TimeState::Starting);
    account.started(now);
    for step in 0..10 {
        for _ in 0..1_000 {
            now += Duration::from_millis(1);
            account.progress(now, step, None, false);
        }
        now += 29 * SECOND;
    }
    assert_eq!(account.seen(now).of(TimeState::Stalled), Duration::ZERO);
    assert_eq!(account.state(now + 60 * SECOND), Some(TimeState::Productive));
    assert_eq!(account.state(now + 600 * SECOND), Some(TimeState::Stalled));
}

/// The time of workers without signs of progress is unknown until they hang.
#[test]
fn hang_without_signs_is_counted_from_its_begin() {
    let mut now = some_instant();
    let mut account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
    account.enter(now, TimeState::Starting);
    account.started(now);
    now += 36_000 * SECOND;
    account.round_ended(now, Some(60 * SECOND));
    assert_eq!(seconds(&account.seen(now)), [("hung", 60), ("unknown", 35_940)]);
}

/// A few numbers in the output that look like steps are ignored. Steps that go on count from
/// the first one.
#[test]
fn read_steps_count_after_a_while() {
    let mut now = some_instant();
    let mut account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
    account.enter(now, TimeState::Starting);
    account.started(now);
    for shard in 1..=4 {
        now += 5 * SECOND;
        assert_eq!(account.progress(now, shard, None, true), None);
    }
    assert!(account.is_unknown());
    account.round_ended(now, None);
    account.enter(now, TimeState::Starting);
    account.started(now);
    now += 30 * SECOND;
    let counted = (0..100).find(|step| {
        now += SECOND;
        account.progress(now, *step, None, true).is_some()
    });
    assert_eq!(counted, Some(60));
    assert_eq!(
        seconds(&account.seen(now)),
        [("starting", 31), ("productive", 60), ("unknown", 20)]
    );
}

/// A step that is read again and again is one sign, and begins no training.
#[test]
fn repeated_step_is_one_sign() {
    let mut now = some_instant();
    let mut account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
    account.enter(now, TimeState::Starting);
    account.started(now);
    for _ in 0..200 {
        now += SECOND;
        assert_eq!(account.progress(now, 7, None, true), None);
    }
}

/// The time between the last step and the end of a round that was saved for a notice is known, if steps were reported.
#[test]
fn time_of_a_checkpoint_for_a_notice_is_known() {
    for is_measured in [true, false] {
        let mut now = some_instant();
        let mut account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
        account.enter(now, TimeState::Starting);
        account.started(now);
        if is_measured {
            account.progress(now, 1, None, false);
        }
        now += 4 * SECOND;
        assert_eq!(account.saving_over(now), if is_measured { 4 * SECOND } else { Duration::ZERO });
    }
}

/// For any order of inputs: the states sum to the age of the job, settled times never fall, and
/// redone time is at most the productive time.
#[test]
fn every_moment_has_one_state() {
    for seed in 0..2_000_u64 {
        let mut random = seed;
        let mut draw = |limit: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % limit
        };
        let begin = some_instant();
        let mut now = begin;
        let mut account = TimeAccount::new(now, TimeTotals::default(), Pauses::default());
        let mut settled = TimeTotals::default();
        for _ in 0..60 {
            now += Duration::from_millis(draw(20_000));
            match draw(7) {
                0 => account.enter(now, TimeState::ALL[draw(3) as usize]),
                1 => account.enter(now, TimeState::Starting),
                2 => account.started(now),
                3 => account.excuse(now, draw(2) == 0),
                4 => account
                    .round_ended(now, (draw(2) == 0).then(|| Duration::from_millis(draw(99_000)))),
                _ => {
                    account.progress(now, draw(1_000), Some(SECOND), draw(3) == 0);
                }
            }
            let seen = account.seen(now);
            assert_eq!(seen.age(), now - begin, "seed {seed}");
            assert!(seen.redone <= seen.of(TimeState::Productive), "seed {seed}");
            let newest = account.settled(now);
            let falls = newest.by_state.iter().zip(&settled.by_state).any(|(new, old)| new < old);
            assert!(!falls && newest.redone >= settled.redone, "seed {seed}");
            settled = newest;
        }
    }
}

/// In six hours of pauses with a heavy tail, a pause is a stall only if it is longer than all of its kind before. A kind are
/// pauses that differ by less than a factor of two. Another coordinator and another round change nothing.
#[test]
fn pauses_of_known_kinds_are_no_stalls() {
    const HOURS: Duration = Duration::from_secs(6 * 3_600);
    for seed in 0..4_u64 {
        let mut random = seed;
        let mut draw = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) + 1) as f64 / f64::from(1_u32 << 31)
        };
        let begin = some_instant();
        let running = |now: Instant, pauses| {
            let mut account = TimeAccount::new(now, TimeTotals::default(), pauses);
            account.enter(now, TimeState::Starting);
            account.started(now);
            account
        };
        let mut account = running(begin, Pauses::default());
        let (mut now, mut step, mut longest, mut alarms) = (begin, 0, 0, 0);
        let mut is_restarted = false;
        while now < begin + HOURS {
            if !is_restarted && now > begin + HOURS / 2 {
                (is_restarted, account) = (true, running(now, account.pauses()));
            }
            // A Pareto distribution: one of 13 pauses is ten times as long as the shortest.
            let pause = (draw().powf(-1.0 / 1.1) as u64).min(4 * 3_600);
            for seconds in [1; 20].into_iter().chain([pause]) {
                (now, step) = (now + SECOND * u32::try_from(seconds).unwrap(), step + 1);
                let is_alarm = account.stalls_at().is_some_and(|at| at <= now);
                account.progress(now, step, Some(SECOND), false);
                let is_known = seconds.ilog2() <= u64::ilog2(longest.max(1));
                assert!(!(is_alarm && is_known), "{seconds} s is a stall after {longest} s");
                alarms += u32::from(is_alarm);
                longest = longest.max(seconds);
            }
        }
        assert!(is_restarted && (1..=8).contains(&alarms), "{alarms} alarms");
    }
}
