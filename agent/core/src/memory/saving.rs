//! Gives workers buffers for a checkpoint, and takes the checkpoint when they have filled them.
//!
//! A node keeps two checkpoints of its own. A third `save` waits until an older one is freed, and is never skipped: ranks
//! would skip different ones.

use std::time::{Duration, Instant};

use ragent_rendezvous::{
    ids::{GlobalRank, LocalRank},
    message::{CheckpointId, DIFFERENT_STEPS, MemoryUnusable, UnusableReason},
    snapshot::size,
};

use super::{
    NodeMemory, OWN_MAX, fitted,
    interface::{Answer, Ask, Buffer, Effect, PartId, Sum},
    parts::{About, Block, BlockState, Check, KeptPart},
};

/// The time for which a `save` waits for a copy. The copy is given up then.
const COPY_PATIENCE: Duration = Duration::from_secs(60);
/// The time for which a `save` waits for a buffer. Ranks that save different steps never get one.
const BUFFER_PATIENCE: Duration = Duration::from_secs(120);
/// The number of recent costs. Their median is reported.
const COSTS_MAX: usize = 16;

/// A request that is not answered yet.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) ask: Ask,
    pub(super) since: Instant,
}

/// A buffer that a worker fills.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    part: PartId,
    buffer: Buffer,
    /// The time of the request.
    since: Instant,
}

/// A request for a buffer.
#[derive(Clone, Copy)]
struct Request {
    id: PartId,
    about: About,
    bytes: u64,
}

impl NodeMemory {
    /// Handles the request of a worker of the running round.
    pub(super) fn handle_ask(&mut self, now: Instant, worker: LocalRank, ask: Ask) {
        match ask {
            Ask::Buffer { .. } | Ask::Load { .. } => {
                if matches!(ask, Ask::Buffer { .. }) {
                    self.stop_reading(worker);
                    self.note_saving(worker);
                }
                // A process that asks again has abandoned what it filled.
                self.abandon(worker);
                self.waiting.insert(worker, Waiting { ask, since: now });
            }
            Ask::Saved { step, bytes } => {
                let answer = self.take_saved(now, worker, step, bytes);
                self.answer(worker, answer);
            }
            Ask::Ranges(request) => self.handle_ranges(now, worker, request),
            Ask::Loaded => {
                self.stop_reading(worker);
                self.answer(worker, Answer::Noted);
            }
            Ask::Newest => {
                let newest = self.whole.map(|whole| whole.step);
                self.answer(worker, Answer::Newest(newest));
            }
            Ask::Unusable { step, reason } => {
                let plan = self.round.as_ref().and_then(|round| round.plan.as_ref());
                if let Some(plan) = plan.filter(|plan| plan.checkpoint.step == step) {
                    let (checkpoint, text) = (plan.checkpoint, fitted(&reason));
                    self.refuse_plan(MemoryUnusable {
                        checkpoint,
                        why: UnusableReason::Script,
                        text,
                    });
                }
                self.answer(worker, Answer::Noted);
            }
        }
    }

    /// Notes that a worker asks no more. What it was filling is incomplete.
    pub(super) fn forget_worker(&mut self, worker: LocalRank) {
        self.waiting.remove(&worker);
        self.abort_ranges(worker);
        self.stop_reading(worker);
        self.abandon(worker);
    }

    /// Drops what a worker was filling.
    fn abandon(&mut self, worker: LocalRank) {
        let Some(Filling { part, buffer, .. }) = self.filling.remove(&worker) else { return };
        self.buffers.unhold(buffer);
        let block = self.parts.get(&part).and_then(|part| part.blocks.get(&worker));
        if block.is_some_and(|block| block.buffer == buffer) {
            self.drop_block(part, worker);
        }
    }

    pub(super) fn stop_reading(&mut self, worker: LocalRank) {
        if let Some(buffer) = self.reading.remove(&worker) {
            self.buffers.unhold(buffer);
        }
    }

    pub(super) fn answer(&mut self, worker: LocalRank, answer: Answer) {
        self.effects.push_back(Effect::Answer { worker, answer });
    }

    /// Answers workers that wait, if that is possible now.
    pub(super) fn serve_waiting(&mut self, now: Instant) {
        let workers: Vec<LocalRank> = self.waiting.keys().copied().collect();
        for worker in workers {
            let Some(Waiting { ask, since }) = self.waiting.get(&worker).cloned() else { continue };
            let answer = match ask {
                Ask::Load { kind } => self.load(worker, kind),
                Ask::Ranges(_) => {
                    // Other ranks may have loaded it.
                    self.off.clone().into_iter().for_each(|off| self.refuse_plan_because(off));
                    None
                }
                Ask::Buffer { .. }
                | Ask::Saved { .. }
                | Ask::Loaded
                | Ask::Newest
                | Ask::Unusable { .. } => self
                    .request(&ask)
                    .and_then(|request| self.give_buffer(now, worker, request, since)),
            };
            if let Some(answer) = answer {
                self.waiting.remove(&worker);
                self.answer(worker, answer);
            }
        }
    }

    /// Returns the part and the block that a worker wants to save.
    fn request(&self, ask: &Ask) -> Option<Request> {
        let Ask::Buffer { step, bytes, kind, is_replicated } = *ask else { return None };
        let round = self.round.as_ref()?;
        let checkpoint = CheckpointId { round: round.round, step };
        let about = About {
            nodes: round.nodes,
            first_global_rank: round.first_global_rank,
            local_ranks: round.workers,
            kind,
            is_replicated,
        };
        Some(Request { id: PartId { checkpoint, group_rank: round.group_rank }, about, bytes })
    }

    /// Returns the answer to a request for a buffer; `None` if the worker must wait.
    fn give_buffer(
        &mut self,
        now: Instant,
        worker: LocalRank,
        Request { id, about, bytes }: Request,
        since: Instant,
    ) -> Option<Answer> {
        let step = id.checkpoint.step;
        if self.settings.limit == 0 && self.off.is_none() {
            self.turn_all_off(&format!("{} has --memory-limit 0", self.settings.host_name));
        }
        if let Some(off) = &self.off {
            return Some(Answer::Refused(off.clone()));
        }
        if about.is_replicated && worker != LocalRank(0) {
            let why = "with replicated=True, local rank 0 saves for all ranks of its node";
            return Some(Answer::Refused(why.to_owned()));
        }
        if let Some(part) = self.parts.get(&id)
            && part.about != about
        {
            let why = format!("step {step} is already being saved in another way");
            return Some(Answer::Refused(why));
        }
        let has_saved = |part: &&KeptPart| {
            part.id.checkpoint.round == id.checkpoint.round
                && part.id.group_rank == id.group_rank
                && part.blocks.contains_key(&worker)
        };
        let newest =
            self.parts.values().filter(has_saved).map(|part| part.id.checkpoint.step).max();
        if let Some(newest) = newest.filter(|newest| step <= *newest) {
            let why =
                format!("step {step} is not later than step {newest}, which is already saved");
            return Some(Answer::Refused(why));
        }
        let own = self.own_checkpoints();
        if !own.contains(&id.checkpoint) && own.len() >= OWN_MAX {
            return None;
        }
        let Some(buffer) = self.take_buffer(bytes, Self::room) else {
            let why = self.no_room(&about, bytes);
            self.turn_all_off(&why);
            return Some(Answer::Refused(self.off.clone().unwrap_or(why)));
        };
        let part = self.parts.entry(id).or_insert_with(|| KeptPart::new(id, about));
        part.blocks.insert(worker, Block::new(buffer, bytes, BlockState::Filling));
        self.buffers.hold(buffer);
        self.filling.insert(worker, Filling { part: id, buffer, since });
        Some(Answer::Buffer { buffer, waited: now.saturating_duration_since(since) })
    }

    fn no_room(&self, about: &About, bytes: u64) -> String {
        let host = &self.settings.host_name;
        let part = bytes.saturating_mul(about.block_count() as u64);
        let needed = self.needed_for(part, about.is_replicated);
        let free = self.left.available.saturating_sub(self.settings.reserve);
        if self.settings.limit < needed {
            format!("{host} has {} and needs {}", size(self.settings.limit), size(needed))
        } else {
            format!("{host} has {} to spare and needs {}", size(free), size(bytes))
        }
    }

    fn take_saved(&mut self, now: Instant, worker: LocalRank, step: u64, bytes: u64) -> Answer {
        let filling = self.filling.get(&worker).copied();
        let filled = filling.filter(|filling| filling.part.checkpoint.step == step);
        let block = filled.and_then(|filling| {
            let block = self.parts.get_mut(&filling.part)?.blocks.get_mut(&worker)?;
            let is_it = block.buffer == filling.buffer && block.state == BlockState::Filling;
            (is_it && 0 < bytes && bytes <= block.buffer.size).then_some((block, filling))
        });
        let Some((block, Filling { buffer, since, .. })) = block else {
            self.abandon(worker);
            let why = || format!("no buffer was given for {bytes} bytes of step {step}");
            return Answer::Refused(self.off.clone().unwrap_or_else(why));
        };
        block.bytes = bytes;
        block.state = BlockState::Summing;
        self.filling.remove(&worker);
        self.buffers.unhold(buffer);
        self.sum(buffer, bytes);
        self.costs.push_back(now.saturating_duration_since(since));
        if self.costs.len() > COSTS_MAX {
            self.costs.pop_front();
        }
        Answer::Taken
    }

    pub(super) fn sum(&mut self, buffer: Buffer, bytes: u64) {
        self.buffers.hold(buffer);
        self.effects.push_back(Effect::Sum { buffer, bytes });
    }

    /// Handles a checksum: of what a worker has saved, or of what is about to be loaded.
    pub(super) fn handle_summed(&mut self, buffer: Buffer, sum: Result<Sum, String>) {
        let found = self.parts.values_mut().find_map(|part| {
            let block = part.blocks.iter_mut().find(|(_, block)| block.buffer == buffer)?;
            Some((part.id, *block.0, block.1))
        });
        let Some((id, worker, block)) = found else { return };
        match (block.state, sum) {
            (BlockState::Summing, Ok(sum)) => block.state = BlockState::Held(sum),
            (BlockState::Summing, Err(why)) => {
                self.obstacle = Some(fitted(&format!("what was saved cannot be read: {why}")));
                self.drop_part(id);
            }
            (BlockState::Held(known), sum) => {
                let is_right = sum.is_ok_and(|sum| sum == known);
                block.check = if is_right { Check::Passed } else { Check::Needed };
                self.handle_checked(worker, id, is_right);
                self.serve_checked(id, worker, is_right);
            }
            (BlockState::Filling | BlockState::Receiving(_), _) => {}
        }
    }

    /// Handles that a buffer could not be made.
    pub(super) fn handle_not_made(&mut self, buffer: Buffer, why: &str) {
        let found = self.parts.values().find_map(|part| {
            let block = part.blocks.iter().find(|(_, block)| block.buffer.id == buffer.id)?;
            Some((part.id, *block.0, block.1.state))
        });
        self.buffers.forget(buffer);
        let Some((part, worker, state)) = found else { return };
        match state {
            BlockState::Filling => {
                self.abandon(worker);
                let host = &self.settings.host_name;
                self.turn_all_off(&format!("{host} gave no memory: {why}"));
                let answer = Answer::Refused(self.off.clone().unwrap_or_default());
                self.answer(worker, answer);
            }
            // The driver has declined it, and says how the transfer ends.
            BlockState::Receiving(_) | BlockState::Summing | BlockState::Held(_) => {
                self.drop_block(part, worker);
            }
        }
    }

    /// Returns the time at which a waiting `save` gives up.
    pub(super) fn waiting_deadline(&self) -> Option<Instant> {
        let since = self.oldest_wait()?;
        let has_given_up = self.copying.given_up_for == Some(since);
        Some(since + if has_given_up { BUFFER_PATIENCE } else { COPY_PATIENCE })
    }

    pub(super) fn oldest_wait(&self) -> Option<Instant> {
        let saves =
            self.waiting.values().filter(|waiting| matches!(waiting.ask, Ask::Buffer { .. }));
        saves.map(|waiting| waiting.since).min()
    }

    pub(super) fn handle_waiting_timeout(&mut self, now: Instant) {
        let Some(since) = self.oldest_wait() else { return };
        if now >= since + COPY_PATIENCE && self.copying.given_up_for != Some(since) {
            self.copying.given_up_for = Some(since);
            self.give_up_oldest();
        }
        if now >= since + BUFFER_PATIENCE {
            let rank = self.waiting_rank().unwrap_or_default();
            let host = &self.settings.host_name;
            self.turn_all_off(&format!(
                "rank {rank} on {host} has waited {} s for a buffer; {DIFFERENT_STEPS}",
                BUFFER_PATIENCE.as_secs()
            ));
        }
    }

    /// Returns the lowest rank whose `save` waits for a buffer.
    pub(super) fn waiting_rank(&self) -> Option<GlobalRank> {
        let first = self.round.as_ref()?.first_global_rank;
        let saves =
            self.waiting.iter().filter(|(_, waiting)| matches!(waiting.ask, Ask::Buffer { .. }));
        let lowest = saves.map(|(worker, _)| worker.0).min()?;
        Some(GlobalRank(first.0.saturating_add(lowest)))
    }
}
