//! Invariants over random inputs and times, with a model of the standbys that exist.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Handle(Input),
    /// Time passes, and deadlines are applied.
    Pass(Duration),
    /// This much memory is available from now on.
    Available(u64),
}

const SIZE: u32 = 3;
const MODULES: [&str; 3] = ["torch", "torch._dynamo", "lightning"];

/// The standbys that exist, by effects and reports.
#[derive(Debug, Default)]
struct Model {
    importing: BTreeSet<LocalRank>,
    ready: BTreeSet<LocalRank>,
    round: Option<Instant>,
    largest: Option<u64>,
    /// The modules that were left out.
    left_out: BTreeSet<String>,
    /// The slots that were given up.
    given_up: BTreeSet<LocalRank>,
    /// The memory that checkpoints leave.
    left: Option<u64>,
    /// The other effects that are emitted once.
    once: Vec<Effect>,
}

impl Model {
    fn handle(&mut self, now: Instant, input: &Input) {
        match input {
            Input::Ready { slot, bytes } => {
                if self.importing.remove(slot) {
                    self.ready.insert(*slot);
                    self.largest = self.largest.max(Some(*bytes));
                }
            }
            Input::NotStarted { slot, .. } | Input::Ended { slot, .. } => {
                self.importing.remove(slot);
                self.ready.remove(slot);
            }
            Input::LeftOut { slot, module, .. } => {
                self.importing.remove(slot);
                self.ready.remove(slot);
                if MODULES.contains(&module.as_str()) && self.left_out.insert(module.clone()) {
                    self.largest = None;
                }
            }
            Input::Unfit { modules, .. } => {
                let known = |module: &&String| MODULES.contains(&module.as_str());
                for module in modules.iter().filter(known) {
                    if self.left_out.insert(module.clone()) {
                        self.largest = None;
                    }
                }
            }
            Input::RoundStarted => {
                self.importing.clear();
                self.ready.clear();
                self.round = Some(now);
            }
            Input::RoundEnded => self.round = None,
            Input::KeeperLost => {
                self.importing.clear();
                self.ready.clear();
                self.round = None;
            }
            Input::Left(left) => self.left = *left,
            Input::Progress | Input::Memory { .. } => {}
        }
    }

    /// Verifies an effect, emitted at `now` when memory was `read`.
    fn verify(&mut self, now: Instant, effect: Effect, read: Option<u64>) {
        match effect {
            Effect::Stand(slot) => {
                assert!(!self.given_up.contains(&slot), "the slot was given up");
                assert!(!self.ready.contains(&slot), "the slot has a standby");
                assert!(self.importing.insert(slot), "the slot has a standby");
                let needed = self.largest.unwrap_or(limits::STANDBY_BYTES);
                let available = self.left.or(read).expect("memory was read");
                assert!(2 * needed * self.importing.len() as u64 <= available, "memory is short");
                if let Some(started) = self.round {
                    assert_eq!(self.importing.len(), 1, "one imports in a round");
                    assert!(10 * SECOND <= now - started, "the round is young");
                }
            }
            Effect::Dismiss(slot) => {
                assert!(self.importing.remove(&slot) || self.ready.remove(&slot), "it exists");
            }
            Effect::Announce(StandbyNews::Prevented(Obstacle::Ends { slot, .. })) => {
                assert!(self.given_up.insert(slot), "the slot is given up once");
            }
            Effect::Announce(StandbyNews::ImportTimedOut { .. }) => {
                let modules = Vec::new();
                let once = StandbyNews::ImportTimedOut { slot: LocalRank(0), modules };
                self.verify_once(Effect::Announce(once));
            }
            Effect::Announce(StandbyNews::AllReady { .. }) => {
                assert_eq!(self.ready.len(), SIZE as usize);
                self.verify_once(Effect::Announce(StandbyNews::AllReady { bytes: 0 }));
            }
            Effect::Announce(
                StandbyNews::LeftOut { .. }
                | StandbyNews::Unfit { .. }
                | StandbyNews::Prevented(Obstacle::NoModule),
            )
            | Effect::Settled => self.verify_once(effect),
            Effect::Announce(
                StandbyNews::Prevented(Obstacle::MemoryShort { .. } | Obstacle::NotStarted { .. })
                | StandbyNews::MemorySufficient
                | StandbyNews::StartsSucceed,
            )
            | Effect::ReadMemory => {}
        }
    }

    fn verify_once(&mut self, effect: Effect) {
        assert!(!self.once.contains(&effect), "{effect:?} is repeated");
        self.once.push(effect);
    }
}

/// A node, the model of its standbys, and the clock.
struct World {
    standbys: Standbys,
    model: Model,
    now: Instant,
    available: u64,
}

impl World {
    fn new() -> Self {
        let now = crate::some_instant();
        let standbys = Standbys::new(now, SIZE, MODULES.map(str::to_owned).into(), 17);
        let available = 4000 * MIB;
        let mut world = Self { standbys, model: Model::default(), now, available };
        world.carry_out(None);
        world
    }

    /// Carries out the effects of one input; returns true if memory is to be read.
    fn drain(&mut self, read: Option<u64>) -> bool {
        let effects: Vec<Effect> = std::iter::from_fn(|| self.standbys.poll_effect()).collect();
        assert!(effects.len() <= 2 * SIZE as usize + 5, "the queue is bounded");
        let is_read = effects.contains(&Effect::ReadMemory);
        for effect in effects {
            self.model.verify(self.now, effect, read);
        }
        is_read
    }

    fn carry_out(&mut self, read: Option<u64>) {
        let mut is_read = self.drain(read);
        while is_read {
            let available = self.available;
            self.standbys.handle(self.now, Input::Memory { available });
            is_read = self.drain(Some(available));
        }
        let counts = self.standbys.counts();
        assert_eq!(counts.importing as usize, self.model.importing.len());
        assert_eq!(counts.ready as usize, self.model.ready.len());
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Handle(input) => {
                self.model.handle(self.now, &input);
                let read =
                    if let Input::Memory { available } = input { Some(available) } else { None };
                self.standbys.handle(self.now, input);
                self.carry_out(read);
            }
            Step::Pass(time) => {
                let end = self.now + time;
                while let Some(next) = self.standbys.poll_timeout().filter(|next| *next <= end) {
                    self.now = next.max(self.now);
                    self.standbys.handle_timeout(self.now);
                    self.carry_out(None);
                    assert_ne!(self.standbys.poll_timeout(), Some(self.now), "it is applied once");
                }
                self.now = end;
            }
            Step::Available(available) => self.available = available,
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // One slot more than there are.
    let slot = || (0..=SIZE).prop_map(LocalRank);
    let memory = || (0..4000u64).prop_map(|mib| mib * MIB);
    let module = prop::sample::select(&["torch", "torch._dynamo", "lightning", "numpy"][..]);
    let unfit = module.clone().prop_map(|module| Input::Unfit {
        modules: vec![module.to_owned(), "lightning".to_owned()],
        reason: String::new(),
    });
    let input = prop_oneof![
        1 => unfit,
        8 => (slot(), 1..600u64).prop_map(|(slot, mib)| Input::Ready { slot, bytes: mib * MIB }),
        2 => slot().prop_map(|slot| Input::Ended { slot, reason: String::new() }),
        2 => slot().prop_map(|slot| Input::NotStarted { slot, reason: String::new() }),
        1 => (slot(), module).prop_map(|(slot, module)| {
            Input::LeftOut { slot, module: module.to_owned(), reason: String::new() }
        }),
        3 => Just(Input::RoundStarted),
        3 => Just(Input::Progress),
        2 => Just(Input::RoundEnded),
        1 => memory().prop_map(|available| Input::Memory { available }),
        1 => prop::option::of(prop_oneof![Just(0), memory()]).prop_map(Input::Left),
        1 => Just(Input::KeeperLost),
    ];
    let time = prop_oneof![0..2_000u32, 0..40_000u32, 0..700_000u32].prop_map(|ms| ms * MS);
    let step = prop_oneof![
        4 => input.prop_map(Step::Handle),
        3 => time.prop_map(Step::Pass),
        1 => memory().prop_map(Step::Available),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    /// In every history, standbys are started only where there is none, with enough memory, and one after
    /// another in a round that is old enough. Only existing standbys are dismissed. Announcements are not
    /// repeated, no deadline is applied twice, and effects are bounded.
    #[test]
    fn invariants_hold(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
    }

    /// Once inputs stop, no round runs and memory suffices, every slot that can have a standby has one.
    #[test]
    fn slots_are_filled_in_the_end(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        for slot in 0..SIZE {
            world.step(Step::Handle(Input::Ready { slot: LocalRank(slot), bytes: MIB }));
        }
        world.step(Step::Handle(Input::RoundEnded));
        world.step(Step::Handle(Input::Left(None)));
        world.step(Step::Available(PLENTY));
        // Longer than the pause after a start that the system has refused.
        world.step(Step::Pass(71 * SECOND));
        let counts = world.standbys.counts();
        let filled = counts.ready + counts.importing;
        let given_up = world.model.given_up.len() as u32;
        let has_modules = !world.standbys.modules().is_empty();
        prop_assert_eq!(filled, if has_modules { SIZE - given_up } else { 0 });
    }
}
