use std::time::Duration;

use super::*;

mod invariants;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const MIB: u64 = 1024 * 1024;
const PLENTY: u64 = 1024 * 1024 * MIB;

/// The standbys of a node whose driver reads its memory at once.
struct Fixture {
    standbys: Standbys,
    now: Instant,
    available: u64,
    readings: u32,
}

impl Fixture {
    /// A node with `size` slots whose first effects have not been carried out.
    fn unstarted(size: u32, modules: &[&str], available: u64) -> Self {
        let now = crate::some_instant();
        let modules = modules.iter().map(|module| (*module).to_owned()).collect();
        Self { standbys: Standbys::new(now, size, modules, 17), now, available, readings: 0 }
    }

    /// A node with plenty of memory, `size` of whose standbys import two modules.
    fn importing(size: u32) -> Self {
        let mut t = Self::unstarted(size, &["torch", "lightning"], PLENTY);
        assert_eq!(t.effects(), (0..size).map(stand).collect::<Vec<_>>());
        t
    }

    /// A node with plenty of memory, all of whose standbys are ready.
    fn ready(size: u32) -> Self {
        let mut t = Self::importing(size);
        for slot in 0..size {
            t.imported(slot, 100);
        }
        assert_eq!((t.standbys.counts().ready, t.standbys.counts().obstacle), (size, None));
        t
    }

    /// A node in a round that started just now and has used up its standbys.
    fn running(size: u32) -> Self {
        let mut t = Self::ready(size);
        assert_eq!(t.handle(Input::RoundStarted), []);
        t
    }

    /// The effects to carry out, but for readings of memory, which are answered.
    fn effects(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some(effect) = self.standbys.poll_effect() {
            if effect == Effect::ReadMemory {
                self.readings += 1;
                self.standbys.handle(self.now, Input::Memory { available: self.available });
            } else {
                effects.push(effect);
            }
        }
        effects
    }

    fn handle(&mut self, input: Input) -> Vec<Effect> {
        self.standbys.handle(self.now, input);
        self.effects()
    }

    fn imported(&mut self, slot: u32, mib: u64) -> Vec<Effect> {
        self.handle(Input::Ready { slot: LocalRank(slot), bytes: mib * MIB })
    }

    fn ended(&mut self, slot: u32) -> Vec<Effect> {
        self.handle(Input::Ended { slot: LocalRank(slot), reason: "killed".to_owned() })
    }

    fn not_started(&mut self, slot: u32) -> Vec<Effect> {
        self.handle(Input::NotStarted { slot: LocalRank(slot), reason: "EAGAIN".to_owned() })
    }

    /// Returns the time until the next deadline that has effects, which are `expected`.
    fn pause(&mut self, expected: &[Effect]) -> Duration {
        let before = self.now;
        loop {
            let next = self.standbys.poll_timeout().expect("a deadline");
            let effects = self.advance(next.saturating_duration_since(self.now));
            if !effects.is_empty() {
                assert_eq!(effects, expected);
                return self.now - before;
            }
        }
    }

    fn left_out(&mut self, slot: u32, module: &str) -> Vec<Effect> {
        let (module, reason) = (module.to_owned(), "it reads RANK".to_owned());
        self.handle(Input::LeftOut { slot: LocalRank(slot), module, reason })
    }

    /// Advances the clock by `by` and applies the deadlines on the way.
    fn advance(&mut self, by: Duration) -> Vec<Effect> {
        let end = self.now + by;
        let mut effects = Vec::new();
        while let Some(next) = self.standbys.poll_timeout().filter(|next| *next <= end) {
            self.now = next.max(self.now);
            self.standbys.handle_timeout(self.now);
            effects.extend(self.effects());
            let next = self.standbys.poll_timeout();
            assert!(next.is_none_or(|next| self.now < next), "the deadline was applied");
        }
        self.now = end;
        effects
    }
}

fn stand(slot: u32) -> Effect {
    Effect::Stand(LocalRank(slot))
}

fn dismiss(slot: u32) -> Effect {
    Effect::Dismiss(LocalRank(slot))
}

fn prevented(obstacle: Obstacle) -> Effect {
    Effect::Announce(StandbyNews::Prevented(obstacle))
}

fn short(available: u64, required: u64) -> Effect {
    prevented(Obstacle::MemoryShort { available, required })
}

fn ends(slot: u32) -> Effect {
    prevented(Obstacle::Ends { slot: LocalRank(slot), reason: "killed".to_owned() })
}

fn left_out(module: &str) -> Effect {
    let (module, reason) = (module.to_owned(), "it reads RANK".to_owned());
    Effect::Announce(StandbyNews::LeftOut { module, reason })
}

const SUFFICIENT: Effect = Effect::Announce(StandbyNews::MemorySufficient);

/// Before the first round all slots get a standby at once, as soon as memory was read.
#[test]
fn first_standbys_start_at_once() {
    let mut t = Fixture::unstarted(2, &["torch"], PLENTY);
    assert_eq!(t.standbys.poll_effect(), Some(Effect::ReadMemory));
    assert_eq!(t.standbys.poll_effect(), None);
    assert_eq!(t.handle(Input::Memory { available: PLENTY }), [stand(0), stand(1)]);
    assert_eq!(t.standbys.modules(), ["torch"]);
}

/// The user learns once that all standbys are ready, and how large the largest is.
#[test]
fn readiness_is_announced_once() {
    let mut t = Fixture::importing(2);
    assert_eq!(t.imported(1, 370), []);
    assert_eq!(t.imported(1, 9000), []);
    let all_ready = Effect::Announce(StandbyNews::AllReady { bytes: 370 * MIB });
    assert_eq!(t.imported(0, 100), [all_ready, Effect::Settled]);
    assert_eq!(t.ended(0), [stand(0)]);
    assert_eq!(t.imported(0, 100), []);
}

/// Each standby that imports needs twice its assumed size. The others are started when it is ready, and
/// until then memory does not count as short.
#[test]
fn start_requires_twice_the_memory() {
    let mut t = Fixture::unstarted(3, &["torch"], 2 * 800 * MIB);
    assert_eq!(t.effects(), [stand(0), stand(1)]);
    t.available = 500 * MIB;
    assert_eq!(t.advance(60 * SECOND), []);
    t.available = 600 * MIB;
    assert_eq!(t.imported(0, 100), [stand(2)]);
}

/// After the first report the largest reported size counts, not the assumed one.
#[test]
fn largest_reported_size_counts() {
    let mut t = Fixture::importing(3);
    t.available = 2 * 1000 * MIB - 1;
    t.imported(0, 1000);
    t.imported(1, 10);
    t.imported(2, 10);
    assert_eq!(t.ended(1), [short(t.available, 2000 * MIB)]);
    t.available += 1;
    assert_eq!(t.advance(10 * SECOND), [stand(1), SUFFICIENT]);
}

/// Too little memory is announced once, and memory is read every ten seconds until it suffices.
#[test]
fn short_memory_is_announced_once() {
    let mut t = Fixture::unstarted(1, &["torch"], 800 * MIB - 1);
    let short = short(800 * MIB - 1, 800 * MIB);
    assert_eq!(t.effects(), [short.clone(), Effect::Settled]);
    assert_eq!(t.advance(60 * SECOND), []);
    assert_eq!(t.readings, 7);
    t.available += 1;
    assert_eq!(t.advance(10 * SECOND - MS), []);
    assert_eq!(t.advance(MS), [stand(0), SUFFICIENT]);
    t.available -= 1;
    assert_eq!(t.ended(0), [short]);
}

/// Memory is read every ten seconds while a standby waits; if less is left than one needs, the highest
/// ends, and the next at the next reading.
#[test]
fn short_memory_dismisses_one_by_one() {
    let mut t = Fixture::ready(3);
    t.available = 100 * MIB;
    assert_eq!(t.advance(30 * SECOND), []);
    t.available -= 1;
    assert_eq!(t.advance(10 * SECOND - MS), []);
    assert_eq!(t.advance(MS), [dismiss(2), short(t.available, 200 * MIB)]);
    assert_eq!(t.advance(10 * SECOND), [dismiss(1)]);
    t.available = 100 * MIB;
    assert_eq!(t.advance(60 * SECOND), []);
    t.available = 400 * MIB;
    assert_eq!(t.advance(10 * SECOND), [stand(1), stand(2), SUFFICIENT]);
}

/// Checkpoints in memory limit the memory of standbys. If nothing is left, all standbys go at once, and none is started
/// until there is enough again. The memory is read only once the checkpoints are gone.
#[test]
fn standbys_go_before_checkpoints() {
    let mut t = Fixture::ready(3);
    let readings = t.readings;
    assert_eq!(t.handle(Input::Left(Some(300 * MIB))), []);
    assert_eq!(t.advance(30 * SECOND), []);
    let all = [dismiss(0), dismiss(1), dismiss(2), short(0, 200 * MIB)];
    assert_eq!(t.handle(Input::Left(Some(0))), all);
    assert_eq!(t.handle(Input::Left(Some(0))), []);
    assert_eq!(t.advance(60 * SECOND), []);
    assert_eq!(t.handle(Input::Left(Some(399 * MIB))), []);
    assert_eq!(t.advance(10 * SECOND), [stand(0), SUFFICIENT]);
    assert_eq!(t.readings, readings);
    assert_eq!(t.handle(Input::Left(None)), []);
    assert_eq!(t.advance(10 * SECOND), [stand(1), stand(2)]);
}

/// A standby that ends while memory is short does not bring the next reading forward: a late report
/// about a dismissed standby would be attributed to its successor.
#[test]
fn dismissed_standby_is_not_replaced_at_once() {
    let mut t = Fixture::ready(3);
    t.available = 0;
    t.advance(10 * SECOND);
    t.available = PLENTY;
    assert_eq!(t.ended(0), []);
    assert_eq!(t.advance(10 * SECOND), [stand(0), stand(2), SUFFICIENT]);
}

/// A round younger than ten seconds gets no standbys even if it makes progress; after later progress they
/// are started one after another.
#[test]
fn progress_starts_one_after_another() {
    let mut t = Fixture::running(3);
    assert_eq!(t.advance(10 * SECOND - MS), []);
    assert_eq!(t.handle(Input::Progress), []);
    assert_eq!(t.advance(SECOND), []);
    assert_eq!(t.handle(Input::Progress), [stand(0)]);
    assert_eq!(t.handle(Input::Progress), []);
    assert_eq!(t.advance(60 * SECOND), []);
    assert_eq!(t.imported(0, 100), [stand(1)]);
    assert_eq!(t.ended(1), [stand(1)]);
    assert_eq!(t.imported(1, 100), [stand(2)]);
    assert_eq!(t.imported(2, 100), []);
    // A standby that is killed while it waits is replaced as well.
    assert_eq!(t.ended(0), [stand(0)]);
}

/// A round without progress gets standbys from thirty seconds on.
#[test]
fn quiet_round_gets_standbys_later() {
    let mut t = Fixture::running(2);
    assert_eq!(t.advance(30 * SECOND - MS), []);
    assert_eq!(t.advance(MS), [stand(0)]);
}

/// Without a round all missing standbys are started after a second, together.
#[test]
fn pause_between_rounds_starts_all() {
    let mut t = Fixture::running(3);
    t.advance(30 * SECOND);
    t.imported(0, 100);
    assert_eq!(t.handle(Input::RoundEnded), []);
    assert_eq!(t.advance(SECOND - MS), []);
    assert_eq!(t.advance(MS), [stand(2)]);
}

/// The memory that a round leaves is read without waiting for the next interval.
#[test]
fn end_of_round_frees_memory() {
    let mut t = Fixture::running(1);
    t.available = 0;
    assert_eq!(t.advance(30 * SECOND), [short(0, 200 * MIB)]);
    t.handle(Input::RoundEnded);
    t.available = PLENTY;
    assert_eq!(t.advance(SECOND), [stand(0), SUFFICIENT]);
}

/// A crash loop, whose rounds are short and follow each other within a second, starts none.
#[test]
fn crash_loop_starts_none() {
    let mut t = Fixture::running(2);
    let readings = t.readings;
    for _ in 0..100 {
        assert_eq!(t.advance(9 * SECOND), []);
        assert_eq!(t.handle(Input::RoundEnded), []);
        assert_eq!(t.advance(999 * MS), []);
        assert_eq!(t.handle(Input::RoundStarted), []);
    }
    assert_eq!(t.readings, readings);
}

/// A slot whose standby ended three times in a row stays empty, which is announced once. The others are
/// kept.
#[test]
fn third_end_gives_the_slot_up() {
    let mut t = Fixture::ready(2);
    assert_eq!(t.ended(1), [stand(1)]);
    assert_eq!(t.ended(1), [stand(1)]);
    assert_eq!(t.ended(1), [ends(1)]);
    assert_eq!(t.ended(0), [stand(0)]);
    t.imported(0, 100);
    let obstacle = Obstacle::Ends { slot: LocalRank(1), reason: "killed".to_owned() };
    let counts = Counts { ready: 1, importing: 0, size: 2, obstacle: Some(obstacle) };
    assert_eq!(t.standbys.counts(), counts);
    t.handle(Input::RoundStarted);
    assert_eq!(t.advance(30 * SECOND), [stand(0)]);
    assert_eq!(t.imported(0, 100), []);
}

/// Starts that the system refuses are repeated without a limit, after pauses with jitter that double up
/// to a minute. They do not count as ends of standbys. The third one in a row is announced.
#[test]
fn refused_starts_are_repeated() {
    let mut t = Fixture::importing(1);
    let not_started = Obstacle::NotStarted { reason: "EAGAIN".to_owned() };
    let mut pauses = Vec::new();
    for attempt in 1..=20 {
        let expected = if attempt == 3 {
            vec![prevented(not_started.clone()), Effect::Settled]
        } else {
            vec![]
        };
        assert_eq!(t.not_started(0), expected);
        pauses.push(t.pause(&[stand(0)]));
    }
    for (attempt, pause) in (0..).zip(&pauses) {
        let limit = (SECOND * 2_u32.pow(attempt)).min(60 * SECOND);
        assert!((limit / 2..=limit).contains(pause), "{pauses:?}");
    }
    assert!(pauses[18] != pauses[19], "no jitter: {pauses:?}");
    assert_eq!(t.standbys.counts().obstacle, Some(not_started));
    let all_ready = Effect::Announce(StandbyNews::AllReady { bytes: 100 * MIB });
    assert_eq!(t.imported(0, 100), [Effect::Announce(StandbyNews::StartsSucceed), all_ready]);
    assert_eq!(t.standbys.counts().obstacle, None);
}

/// Starts that are refused at the same time count once, and a brief shortage is not announced.
#[test]
fn refused_starts_of_one_moment_count_once() {
    let mut t = Fixture::importing(4);
    for slot in 0..4 {
        assert_eq!(t.not_started(slot), []);
    }
    // A report that is repeated changes nothing.
    assert_eq!(t.not_started(0), []);
    assert!(t.pause(&[stand(0), stand(1), stand(2), stand(3)]) <= SECOND);
    for slot in 0..4 {
        assert_eq!(t.not_started(slot), []);
    }
    assert!(t.pause(&[stand(0), stand(1), stand(2), stand(3)]) <= 2 * SECOND);
}

fn timed_out(slot: u32) -> Effect {
    let modules = vec!["torch".to_owned(), "lightning".to_owned()];
    Effect::Announce(StandbyNews::ImportTimedOut { slot: LocalRank(slot), modules })
}

/// An import that hangs is ended at its deadline, which is announced once. Its slot stays empty until a
/// late report of the standby has arrived. The third such end gives the slot up.
#[test]
fn import_that_hangs_is_ended() {
    let mut t = Fixture::importing(1);
    assert_eq!(t.advance(600 * SECOND - MS), []);
    assert_eq!(t.advance(MS), [dismiss(0), timed_out(0)]);
    assert_eq!(t.imported(0, 100_000), []);
    assert_eq!(t.advance(SECOND - MS), []);
    assert_eq!(t.advance(MS), [stand(0)]);
    assert_eq!(t.advance(601 * SECOND), [dismiss(0), stand(0)]);
    let reason = "its import did not finish within 600 s".to_owned();
    let given_up = prevented(Obstacle::Ends { slot: LocalRank(0), reason });
    assert_eq!(t.advance(600 * SECOND), [dismiss(0), given_up, Effect::Settled]);
    assert_eq!(t.advance(6_000 * SECOND), []);
}

/// An import that hangs during a round keeps the other slots empty until its deadline only.
#[test]
fn import_that_hangs_in_a_round() {
    let mut t = Fixture::running(2);
    t.ended(1);
    assert_eq!(t.advance(30 * SECOND), [stand(0)]);
    assert_eq!(t.advance(600 * SECOND), [dismiss(0), timed_out(0)]);
    // Progress does not bring the next start forward.
    assert_eq!(t.handle(Input::Progress), []);
    assert_eq!(t.advance(SECOND), [stand(0)]);
    assert_eq!(t.imported(0, 100), [stand(1)]);
}

/// A standby that waits has no deadline, and neither has a standby that a round uses.
#[test]
fn ready_standby_has_no_deadline() {
    let mut t = Fixture::ready(1);
    assert_eq!(t.advance(6_000 * SECOND), []);
    let mut t = Fixture::importing(1);
    t.handle(Input::RoundStarted);
    assert_eq!(t.advance(30 * SECOND), [stand(0)]);
    t.imported(0, 100);
    assert_eq!(t.advance(6_000 * SECOND), []);
}

/// A standby that a round uses shows that its slot works.
#[test]
fn use_resets_the_count_of_ends() {
    let mut t = Fixture::ready(1);
    t.ended(0);
    t.ended(0);
    t.handle(Input::RoundStarted);
    t.advance(30 * SECOND);
    assert_eq!(t.ended(0), [stand(0)]);
    assert_eq!(t.ended(0), [stand(0)]);
    assert_eq!(t.ended(0), [ends(0)]);
}

/// A module that cannot be imported early is announced once, and its standbys are replaced at once and
/// without a count.
#[test]
fn module_is_left_out() {
    let mut t = Fixture::importing(4);
    assert_eq!(t.left_out(0, "lightning"), [left_out("lightning"), stand(0)]);
    assert_eq!(t.standbys.modules(), ["torch"]);
    for slot in 1..4 {
        assert_eq!(t.left_out(slot, "lightning"), [stand(slot)]);
    }
    assert_eq!(t.ended(0), [stand(0)]);
    assert_eq!(t.ended(0), [stand(0)]);
    assert_eq!(t.ended(0), [ends(0)]);
}

/// An end for a module that the standby was not to import is counted.
#[test]
fn unknown_module_counts_as_an_end() {
    let mut t = Fixture::importing(1);
    assert_eq!(t.left_out(0, "numpy"), [stand(0)]);
    assert_eq!(t.left_out(0, "numpy"), [stand(0)]);
    let reason = "`numpy` cannot be imported: it reads RANK".to_owned();
    let given_up = prevented(Obstacle::Ends { slot: LocalRank(0), reason });
    assert_eq!(t.left_out(0, "numpy"), [given_up, Effect::Settled]);
    assert_eq!(t.standbys.modules(), ["torch", "lightning"]);
}

/// A standby that fails before it has imported a module counts as ended, for the reason that it reports.
#[test]
fn failure_before_the_first_module_counts_as_an_end() {
    let mut t = Fixture::importing(1);
    assert_eq!(t.left_out(0, ""), [stand(0)]);
    assert_eq!(t.left_out(0, ""), [stand(0)]);
    let reason = "it reads RANK".to_owned();
    let given_up = prevented(Obstacle::Ends { slot: LocalRank(0), reason });
    assert_eq!(t.left_out(0, ""), [given_up, Effect::Settled]);
}

/// A module that a standby reports when its round has started is left out later.
#[test]
fn used_standby_reports_a_module() {
    let mut t = Fixture::running(1);
    assert_eq!(t.left_out(0, "lightning"), [left_out("lightning")]);
    assert_eq!(t.standbys.modules(), ["torch"]);
}

/// The memory that standbys need is measured again without a module that is left out.
#[test]
fn memory_is_measured_again_without_a_module() {
    let mut t = Fixture::importing(2);
    t.available = 1000 * MIB;
    t.imported(1, 900);
    assert_eq!(t.left_out(0, "lightning"), [left_out("lightning"), stand(0)]);
}

/// Within a round, a standby that ended for a module is replaced by the rules of the round.
#[test]
fn module_is_left_out_within_a_round() {
    let mut t = Fixture::running(2);
    t.advance(30 * SECOND);
    t.imported(0, 100);
    assert_eq!(t.left_out(0, "lightning"), [left_out("lightning")]);
    assert_eq!(t.imported(1, 100), [stand(0)]);
}

/// Without modules there are no standbys.
#[test]
fn no_module_is_left() {
    let mut t = Fixture::importing(3);
    t.left_out(0, "lightning");
    t.imported(2, 100);
    let off = prevented(Obstacle::NoModule);
    let effects = [dismiss(1), dismiss(2), off.clone(), Effect::Settled];
    assert_eq!(t.left_out(0, "torch")[1..], effects);
    assert_eq!(t.standbys.poll_timeout(), None);
    assert_eq!(t.handle(Input::KeeperLost), []);
    assert_eq!(t.advance(60 * SECOND), []);
    let counts = Counts { ready: 0, importing: 0, size: 3, obstacle: Some(Obstacle::NoModule) };
    assert_eq!(t.standbys.counts(), counts);
    assert_eq!(Fixture::unstarted(1, &[], PLENTY).effects(), [off, Effect::Settled]);
}

/// Reports about a standby that was used or dismissed, and about an unknown slot, change nothing.
#[test]
fn late_reports_are_ignored() {
    let mut t = Fixture::running(1);
    for slot in [0, 1] {
        for _ in 0..4 {
            assert_eq!(t.imported(slot, 100_000), []);
            assert_eq!(t.ended(slot), []);
        }
    }
    let counts = Counts { ready: 0, importing: 0, size: 1, obstacle: None };
    assert_eq!(t.standbys.counts(), counts);
    t.available = 200 * MIB;
    assert_eq!(t.advance(30 * SECOND), [stand(0)]);
}

/// With the keeper all standbys are gone, and so is the round. New ones are started after a second, and
/// no end is counted.
#[test]
fn lost_keeper_takes_its_standbys() {
    for mut t in [Fixture::ready(2), Fixture::running(2)] {
        for _ in 0..4 {
            assert_eq!(t.handle(Input::KeeperLost), []);
            assert_eq!(t.standbys.counts().ready + t.standbys.counts().importing, 0);
            assert_eq!(t.advance(SECOND - MS), []);
            assert_eq!(t.handle(Input::RoundEnded), []);
            assert_eq!(t.advance(MS), [stand(0), stand(1)]);
        }
    }
}

/// `Settled` is emitted when each slot has a ready standby or cannot have one.
#[test]
fn settled_when_none_can_become_ready() {
    let mut t = Fixture::importing(2);
    t.imported(0, 100);
    t.ended(1);
    t.ended(1);
    assert_eq!(t.ended(1), [ends(1), Effect::Settled]);
    assert_eq!(t.handle(Input::RoundStarted), []);

    let mut t = Fixture::importing(2);
    t.available = 0;
    assert_eq!(t.advance(10 * SECOND), [dismiss(1), short(0, 800 * MIB)]);
    assert_eq!(t.imported(0, 100), [Effect::Settled]);
}

/// `Settled` is emitted when the first round starts, and only once.
#[test]
fn settled_by_the_first_round() {
    let mut t = Fixture::importing(2);
    assert_eq!(t.handle(Input::RoundStarted), [Effect::Settled]);
    assert_eq!(t.handle(Input::RoundEnded), []);
    assert_eq!(t.advance(SECOND), [stand(0), stand(1)]);
    t.imported(0, 100);
    let all_ready = Effect::Announce(StandbyNews::AllReady { bytes: 100 * MIB });
    assert_eq!(t.imported(1, 100), [all_ready]);
}

/// The counts name the memory that is missing while a slot is empty for it.
#[test]
fn counts_name_the_obstacle() {
    let mut t = Fixture::unstarted(2, &["torch"], 0);
    t.effects();
    let obstacle = Obstacle::MemoryShort { available: 0, required: 800 * MIB };
    let counts = Counts { ready: 0, importing: 0, size: 2, obstacle: Some(obstacle) };
    assert_eq!(t.standbys.counts(), counts);
    t.available = 800 * MIB;
    t.advance(10 * SECOND);
    let counts = Counts { ready: 0, importing: 1, size: 2, obstacle: None };
    assert_eq!(t.standbys.counts(), counts);
}

/// Modules whose variables the script changes are left out with one announcement, and no standby that has imported
/// them is left. The same report of a second worker changes nothing.
#[test]
fn unfit_modules_are_left_out() {
    let unfit = |modules: &[&str]| Input::Unfit {
        modules: modules.iter().map(|module| (*module).to_owned()).collect(),
        reason: "line 1 of train.py sets HF_HOME".to_owned(),
    };
    let news = |input: Input| match input {
        Input::Unfit { modules, reason } => {
            Effect::Announce(StandbyNews::Unfit { modules, reason })
        }
        other => panic!("{other:?}"),
    };
    let mut t = Fixture::running(2);
    t.advance(30 * SECOND);
    t.imported(0, 100);
    let expected = [news(unfit(&["lightning"])), dismiss(0), dismiss(1)];
    assert_eq!(t.handle(unfit(&["numpy", "lightning"])), expected);
    assert_eq!(t.standbys.modules(), ["torch"]);
    assert_eq!(t.handle(unfit(&["lightning"])), []);
    // A report of the earlier standbys may still be under way, so the next ones wait.
    assert_eq!(t.advance(limits::STANDBY_IDLE - Duration::from_millis(1)), []);
    t.handle(Input::RoundEnded);
    assert_eq!(t.advance(limits::STANDBY_IDLE), [stand(0), stand(1)]);
    let off = prevented(Obstacle::NoModule);
    let expected = [news(unfit(&["torch"])), dismiss(0), dismiss(1), off];
    assert_eq!(t.handle(unfit(&["torch"])), expected);
}
