//! Passes events to the checkpoints in memory, and reports them to the coordinator.

use std::time::Instant;

use ragent_rendezvous::message::{CheckpointId, FromNode, MemoryReport};

use super::{Action, Agent, Effect, News};
use crate::memory::{Input, NodeMemory};

impl Agent {
    /// Returns the report of the checkpoints in memory; `None` if the job does not use them.
    pub fn memory_report(&self) -> Option<MemoryReport> {
        self.memory.report()
    }

    /// Sets the address at which other agents fetch what this node keeps. Comes before the claims of the next stream.
    pub fn set_memory_address(&mut self, address: String) {
        self.memory.set_address(address);
    }

    /// Handles an event of the driver that concerns checkpoints in memory.
    pub fn handle_memory(&mut self, now: Instant, input: Input) {
        self.change_memory(now, |memory| memory.handle_input(now, input));
    }

    /// Notes the newest checkpoint that is whole.
    pub(crate) fn handle_memory_whole(&mut self, now: Instant, whole: Option<CheckpointId>) {
        self.change_memory(now, |memory| memory.handle_whole(now, whole));
    }

    /// Notes that memory is off for the rest of the round.
    pub(super) fn handle_memory_off(&mut self, now: Instant, why: &str) {
        let round = self.round.id;
        self.change_memory(now, |memory| memory.handle_off(now, round, why));
        if !std::mem::replace(&mut self.round.is_memory_off, true) {
            self.announce(News::MemoryOff(round, why.to_owned()));
        }
    }

    /// Changes what is kept, and carries out what follows.
    pub(super) fn change_memory(&mut self, now: Instant, change: impl FnOnce(&mut NodeMemory)) {
        let was_usable = self.memory.unusable().is_none();
        change(&mut self.memory);
        while let Some(effect) = self.memory.poll_effect() {
            self.act(Action::Memory(effect));
        }
        // What is held is known before this node is ready for the next round.
        self.send_memory_report(false);
        if was_usable && self.memory.unusable().is_some() {
            self.send_report(now);
        }
    }

    /// Sends the report if it has changed, or in any case.
    pub(super) fn send_memory_report(&mut self, always: bool) {
        let changed = self.memory.take_report();
        let report = if always { self.memory.report() } else { changed };
        if let Some(report) = report {
            self.effects.push_back(Effect::Send(FromNode::MemoryReport(report)));
        }
    }
}
