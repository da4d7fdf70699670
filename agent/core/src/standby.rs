//! Decides when standbys are started and dismissed.
//!
//! A standby is a Python interpreter that the keeper holds for one local rank, its slot. It imports modules
//! and waits for the next round, in which it becomes the worker of that rank. A round uses up all standbys: a
//! standby that still imports becomes a worker when it has finished.
//!
//! ```text
//!        memory suffices             imported
//! empty ─────────────────▶ importing ─────────▶ ready
//!   ▲                          │                  │
//!   └──────────────────────────┴──────────────────┘
//!         a round starts | it ends | it is dismissed
//! ```
//!
//! - **Imports must not delay a round.** While no round runs, all missing standbys are started at once. While
//!   one runs, they are started one after another, and only after the round has made progress or has run for
//!   [`limits::STANDBY_ROUND_PATIENCE`]. A crash loop has short rounds that follow each other at once, so it
//!   starts none.
//! - **Standbys must not take the memory that workers need.** When a start is due, the machine requests a
//!   reading of the available memory, and starts standbys if [`Input::Memory`] reports enough. They are
//!   dismissed one by one when memory becomes short. While the node holds checkpoints in memory, these limit
//!   how much standbys may use ([`Input::Left`]), because standbys go first.
//! - **One import that hangs must not keep all other slots empty.** A standby that imports for longer than
//!   [`limits::STANDBY_IMPORT_TIMEOUT`] is dismissed, which counts like an end by itself.
//! - **A brief shortage is not an end.** A start may fail because the system lacks processes or memory for a
//!   moment, for example after another job on the machine has ended. It is repeated after a pause with
//!   jitter, which doubles with each failure.
//!
//! The machine has no process, file or clock. An input adds at most two effects for each slot and five
//! others. Effects are drained after each input, which bounds their queue.

mod interface;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::Instant,
};

use ragent_rendezvous::{
    ids::LocalRank,
    jitter::{Jitter, doubled},
};

pub use self::interface::{Counts, Effect, Input, Obstacle, StandbyNews};
use crate::limits;

/// The standbys of one node.
#[derive(Debug)]
pub struct Standbys {
    slots: BTreeMap<LocalRank, Slot>,
    modules: Vec<String>,
    /// The start of the round that runs.
    round: Option<Instant>,
    /// The earliest start of missing standbys according to the rules for rounds.
    start_at: Instant,
    /// The end of the pause after a start or an import that has failed.
    paused_until: Instant,
    /// The earliest reading of memory for a start.
    retry_at: Instant,
    /// The next reading of memory for the standbys that exist.
    watch_at: Instant,
    /// The memory of the largest standby that has reported it, in bytes.
    largest: Option<u64>,
    /// The available memory at the last reading, if it was too low for a start.
    short: Option<u64>,
    /// The memory that checkpoints in memory leave, while there are some.
    left: Option<u64>,
    /// The number of failed starts in a row, for lack of processes or memory. Starts that fail within one
    /// pause count once.
    failed_starts: u32,
    /// The error of the last failed start.
    start_error: String,
    jitter: Jitter,
    is_all_ready_announced: bool,
    is_timeout_announced: bool,
    is_settled: bool,
    effects: VecDeque<Effect>,
}

#[derive(Debug, Default)]
struct Slot {
    standby: Option<Standby>,
    /// The number of standbys in a row that ended by themselves, or did not become ready in time.
    ends: u32,
    /// The way in which the last of them ended.
    reason: String,
}

#[derive(Debug)]
struct Standby {
    /// The number of modules that it was started with.
    modules: usize,
    /// The standby must be ready by this time.
    deadline: Instant,
    is_ready: bool,
}

impl Slot {
    fn is_given_up(&self) -> bool {
        self.ends >= limits::MAX_STANDBY_ENDS
    }

    fn count_end(&mut self, reason: String) {
        self.ends += 1;
        self.reason = reason;
    }
}

impl Standbys {
    /// Creates the machine of a node with `size` slots for standbys that import `modules`. No round runs.
    /// `seed` decides the jitter.
    pub fn new(now: Instant, size: u32, modules: Vec<String>, seed: u64) -> Self {
        let mut standbys = Self {
            slots: (0..size).map(|slot| (LocalRank(slot), Slot::default())).collect(),
            modules,
            round: None,
            start_at: now,
            paused_until: now,
            retry_at: now,
            watch_at: now,
            largest: None,
            short: None,
            left: None,
            failed_starts: 0,
            start_error: String::new(),
            jitter: Jitter::new(seed),
            is_all_ready_announced: false,
            is_timeout_announced: false,
            is_settled: false,
            effects: VecDeque::new(),
        };
        if standbys.modules.is_empty() {
            standbys.announce(StandbyNews::Prevented(Obstacle::NoModule));
        }
        standbys.handle_timeout(now);
        standbys
    }

    /// Handles `input`, received at `now`.
    pub fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Ready { slot, bytes } => self.ready(now, slot, bytes),
            Input::NotStarted { slot, reason } => self.not_started(now, slot, reason),
            Input::Ended { slot, reason } => self.ended(now, slot, reason),
            Input::LeftOut { slot, module, reason } => {
                let is_removed = self.leave_out(&module);
                self.ended_without(now, slot, &module, &reason);
                if is_removed {
                    self.announce(StandbyNews::LeftOut { module, reason });
                    self.stop_without_modules();
                }
            }
            Input::Unfit { modules, reason } => self.unfit(now, modules, reason),
            Input::RoundStarted => self.round_started(now),
            Input::Progress => self.progress(now),
            Input::RoundEnded => {
                // Otherwise the keeper was lost, and this has been noted already.
                if self.round.is_some() {
                    self.await_round(now);
                }
            }
            Input::Memory { available } => self.memory(now, self.left.unwrap_or(available)),
            Input::Left(left) => {
                self.left = left;
                if left == Some(0) && self.standbys().next().is_some() {
                    self.memory(now, 0);
                }
            }
            Input::KeeperLost => {
                for slot in self.slots.values_mut() {
                    slot.standby = None;
                }
                self.await_round(now);
            }
        }
        self.handle_timeout(now);
    }

    /// Returns the next deadline: a reading of memory, or the time limit of an import; `None` if there is
    /// none.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let importing = self.standbys().filter(|standby| !standby.is_ready);
        let import = importing.map(|standby| standby.deadline).min();
        [self.next_reading(), import].into_iter().flatten().min()
    }

    /// Applies every deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.end_late_imports(now);
        if self.next_reading().is_some_and(|deadline| deadline <= now) {
            self.watch_at = now + limits::STANDBY_MEMORY_INTERVAL;
            self.retry_at = self.watch_at;
            match self.left {
                Some(left) => self.memory(now, left),
                None => self.effects.push_back(Effect::ReadMemory),
            }
        }
        self.settle();
    }

    /// Returns the next effect; `None` if there are none.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Returns the modules that standbys import.
    pub fn modules(&self) -> &[String] {
        &self.modules
    }

    /// Returns the numbers of standbys by state.
    pub fn counts(&self) -> Counts {
        let ready = self.standbys().filter(|standby| standby.is_ready).count() as u32;
        Counts {
            ready,
            importing: self.importing(),
            size: self.slots.len() as u32,
            obstacle: self.obstacle(),
        }
    }

    fn ready(&mut self, now: Instant, slot: LocalRank, bytes: u64) {
        let standby = self.slots.get_mut(&slot).and_then(|slot| slot.standby.as_mut());
        let Some(standby) = standby.filter(|standby| !standby.is_ready) else { return };
        standby.is_ready = true;
        self.starts_succeed();
        self.largest = self.largest.max(Some(bytes));
        self.retry(now);
        let is_all = self.standbys().filter(|standby| standby.is_ready).count() == self.slots.len();
        if is_all && !mem::replace(&mut self.is_all_ready_announced, true) {
            self.announce(StandbyNews::AllReady { bytes: self.needed() });
        }
    }

    fn not_started(&mut self, now: Instant, rank: LocalRank, reason: String) {
        let standby = self.slots.get_mut(&rank).and_then(|slot| slot.standby.take());
        if standby.is_none() {
            return;
        }
        self.start_error = reason;
        if self.paused_until <= now {
            let (first, longest) = (limits::STANDBY_START_PAUSE, limits::STANDBY_START_PAUSE_MAX);
            let pause = doubled(first, self.failed_starts, longest);
            self.paused_until = now + self.jitter.spread(pause);
            self.failed_starts = self.failed_starts.saturating_add(1);
            if self.failed_starts == limits::STANDBY_START_FAILURES {
                let reason = self.start_error.clone();
                self.announce(StandbyNews::Prevented(Obstacle::NotStarted { reason }));
            }
        }
        self.retry(now);
    }

    /// Records that a process was started.
    fn starts_succeed(&mut self) {
        if self.are_starts_failing() {
            self.announce(StandbyNews::StartsSucceed);
        }
        self.failed_starts = 0;
    }

    fn ended(&mut self, now: Instant, rank: LocalRank, reason: String) {
        let Some(slot) = self.slots.get_mut(&rank) else { return };
        if slot.standby.take().is_none() {
            return;
        }
        slot.count_end(reason);
        if slot.is_given_up() {
            let reason = slot.reason.clone();
            self.announce(StandbyNews::Prevented(Obstacle::Ends { slot: rank, reason }));
        }
        self.starts_succeed();
        self.retry(now);
    }

    /// Notes that a standby has ended because of `module`.
    fn ended_without(&mut self, now: Instant, rank: LocalRank, module: &str, reason: &str) {
        let Some(slot) = self.slots.get_mut(&rank) else { return };
        let Some(standby) = &slot.standby else { return };
        if standby.modules > self.modules.len() {
            // Its successor imports fewer modules, which bounds the number of such ends.
            slot.standby = None;
            self.retry(now);
        } else {
            let reason = match module {
                // The standby has failed before it could import a module.
                "" => reason.to_owned(),
                module => format!("`{module}` cannot be imported: {reason}"),
            };
            self.ended(now, rank, reason);
        }
    }

    /// Removes `module` from the list. Returns true if it was there.
    fn leave_out(&mut self, module: &str) -> bool {
        let before = self.modules.len();
        self.modules.retain(|other| other != module);
        let is_removed = self.modules.len() < before;
        if is_removed {
            // Standbys without it may need much less.
            self.largest = None;
        }
        is_removed
    }

    /// Removes modules that a script must import itself, and the standbys that have imported them.
    fn unfit(&mut self, now: Instant, mut modules: Vec<String>, reason: String) {
        modules.retain(|module| self.leave_out(module));
        if modules.is_empty() {
            return;
        }
        self.announce(StandbyNews::Unfit { modules, reason });
        self.dismiss_all();
        // A report of these standbys may still be under way.
        self.paused_until = self.paused_until.max(now + limits::STANDBY_IDLE);
        self.stop_without_modules();
    }

    /// Returns true if there were any.
    fn dismiss_all(&mut self) -> bool {
        let before = self.effects.len();
        for (&rank, slot) in &mut self.slots {
            if slot.standby.take().is_some() {
                self.effects.push_back(Effect::Dismiss(rank));
            }
        }
        before < self.effects.len()
    }

    fn stop_without_modules(&mut self) {
        if self.modules.is_empty() {
            self.dismiss_all();
            self.announce(StandbyNews::Prevented(Obstacle::NoModule));
        }
    }

    fn round_started(&mut self, now: Instant) {
        for slot in self.slots.values_mut() {
            if slot.standby.take().is_some() {
                slot.ends = 0;
            }
        }
        self.round = Some(now);
        self.start_at = now + limits::STANDBY_ROUND_PATIENCE;
    }

    fn progress(&mut self, now: Instant) {
        if self.round.is_some_and(|started| started + limits::STANDBY_ROUND_AGE <= now) {
            self.start_at = self.start_at.min(now);
        }
    }

    fn await_round(&mut self, now: Instant) {
        self.round = None;
        self.start_at = now + limits::STANDBY_IDLE;
        // The end of a round frees memory.
        self.retry_at = now;
    }

    fn memory(&mut self, now: Instant, available: u64) {
        let is_dismissed = if self.left == Some(0) {
            self.dismiss_all()
        } else {
            available < self.needed() && self.dismiss_highest()
        };
        let mut is_due = false;
        while let Some((slot, _)) = self.next_start().filter(|(_, at)| *at <= now) {
            is_due = true;
            if available < self.required(self.importing()) {
                break;
            }
            self.stand(now, slot);
        }
        if self.required(0) <= available {
            if self.short.take().is_some() {
                self.announce(StandbyNews::MemorySufficient);
            }
        } else if is_dismissed || self.short.is_some() || (is_due && self.importing() == 0) {
            let was_short = self.short.replace(available).is_some();
            if !was_short {
                let required = self.required(0);
                self.announce(StandbyNews::Prevented(Obstacle::MemoryShort {
                    available,
                    required,
                }));
            }
        }
    }

    /// Returns the time of the next reading of memory, if any.
    fn next_reading(&self) -> Option<Instant> {
        let start = self.next_start().map(|(_, at)| at.max(self.retry_at));
        let has_any = self.standbys().next().is_some();
        [start, has_any.then_some(self.watch_at)].into_iter().flatten().min()
    }

    fn end_late_imports(&mut self, now: Instant) {
        let is_late = |standby: &Standby| !standby.is_ready && standby.deadline <= now;
        let slots = self.slots.iter();
        let late = slots.filter(|(_, slot)| slot.standby.as_ref().is_some_and(is_late));
        for rank in late.map(|(&rank, _)| rank).collect::<Vec<_>>() {
            self.effects.push_back(Effect::Dismiss(rank));
            if !mem::replace(&mut self.is_timeout_announced, true) {
                let modules = self.modules.clone();
                self.announce(StandbyNews::ImportTimedOut { slot: rank, modules });
            }
            let limit = limits::STANDBY_IMPORT_TIMEOUT.as_secs();
            self.ended(now, rank, format!("its import did not finish within {limit} s"));
            // A report of this standby may still be under way.
            self.paused_until = self.paused_until.max(now + limits::STANDBY_IDLE);
        }
    }

    fn dismiss_highest(&mut self) -> bool {
        let highest = self.slots.iter_mut().rfind(|(_, slot)| slot.standby.is_some());
        let Some((&rank, slot)) = highest else { return false };
        slot.standby = None;
        self.effects.push_back(Effect::Dismiss(rank));
        true
    }

    fn stand(&mut self, now: Instant, rank: LocalRank) {
        if let Some(slot) = self.slots.get_mut(&rank) {
            let deadline = now + limits::STANDBY_IMPORT_TIMEOUT;
            let modules = self.modules.len();
            slot.standby = Some(Standby { modules, deadline, is_ready: false });
            self.effects.push_back(Effect::Stand(rank));
        }
    }

    /// Returns the slot of the next start and its earliest time; `None` if no slot lacks a standby, or if the
    /// start waits for another standby to become ready.
    fn next_start(&self) -> Option<(LocalRank, Instant)> {
        let has_to_wait = self.round.is_some() && self.importing() > 0;
        let at = self.start_at.max(self.paused_until);
        self.first_missing().filter(|_| !has_to_wait).map(|slot| (slot, at))
    }

    /// Returns the lowest slot that has no standby and can have one.
    fn first_missing(&self) -> Option<LocalRank> {
        let mut slots = self.slots.iter().filter(|_| !self.modules.is_empty());
        let slot = slots.find(|(_, slot)| slot.standby.is_none() && !slot.is_given_up());
        slot.map(|(rank, _)| *rank)
    }

    /// Returns the memory that one standby needs, in bytes.
    fn needed(&self) -> u64 {
        self.largest.unwrap_or(limits::STANDBY_BYTES)
    }

    /// Returns the memory that a start requires while `importing` standbys import, in bytes. Half of it is
    /// for workers, which may grow in the meantime.
    fn required(&self, importing: u32) -> u64 {
        self.needed().saturating_mul(2).saturating_mul(u64::from(importing) + 1)
    }

    /// Allows the next start at once. If memory is short, the start waits for the next interval.
    fn retry(&mut self, now: Instant) {
        if self.short.is_none() {
            self.retry_at = now;
        }
    }

    fn standbys(&self) -> impl Iterator<Item = &Standby> {
        self.slots.values().filter_map(|slot| slot.standby.as_ref())
    }

    fn importing(&self) -> u32 {
        self.standbys().filter(|standby| !standby.is_ready).count() as u32
    }

    fn obstacle(&self) -> Option<Obstacle> {
        if self.modules.is_empty() {
            return Some(Obstacle::NoModule);
        }
        if let Some(available) = self.short {
            return Some(Obstacle::MemoryShort { available, required: self.required(0) });
        }
        if self.are_starts_failing() {
            return Some(Obstacle::NotStarted { reason: self.start_error.clone() });
        }
        let (&slot, given_up) = self.slots.iter().find(|(_, slot)| slot.is_given_up())?;
        Some(Obstacle::Ends { slot, reason: given_up.reason.clone() })
    }

    /// Returns true if so many starts in a row have failed that it is reported.
    fn are_starts_failing(&self) -> bool {
        limits::STANDBY_START_FAILURES <= self.failed_starts
    }

    fn settle(&mut self) {
        let is_start_expected = self.short.is_none() && !self.are_starts_failing();
        let is_waiting =
            self.importing() > 0 || (self.first_missing().is_some() && is_start_expected);
        if (self.round.is_some() || !is_waiting) && !mem::replace(&mut self.is_settled, true) {
            self.effects.push_back(Effect::Settled);
        }
    }

    fn announce(&mut self, news: StandbyNews) {
        self.effects.push_back(Effect::Announce(news));
    }
}
