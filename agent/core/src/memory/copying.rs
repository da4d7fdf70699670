//! Sends copies of parts to the buddy, keeps those of the ward, and serves parts to nodes that fetch them.
//!
//! Copies go oldest first, and the next one when the older checkpoint is whole. In another order, two nodes could each
//! hold a copy that the other one needs last, and no checkpoint would become whole.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    ids::LocalRank,
    jitter::Pauses,
    message::{CheckpointId, PartPlace},
};

use super::{
    NodeMemory, OWN_MAX, TRANSFERS_MAX, Transfer, WARD_MAX,
    buffers::Room,
    fitted,
    interface::{BlockHeader, Buffer, Decline, Effect, PartId, TransferEnd, TransferId},
    parts::{About, Block, BlockState, KeptPart},
};

/// The pause after the first failed attempt.
pub(super) const RETRY_FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(30);
/// The time after which a copy is given up that cannot be sent.
const PATIENCE: Duration = Duration::from_secs(60);

/// The sending of copies in a round.
#[derive(Debug)]
pub(super) struct Copying {
    pauses: Pauses,
    failing_since: Option<Instant>,
    retry_at: Option<Instant>,
    /// The beginning of the newest wait of a `save` for which a copy was given up.
    pub(super) given_up_for: Option<Instant>,
    /// True if a copy was given up because the buddy did not take it. No further one is awaited.
    is_buddy_lost: bool,
}

impl Copying {
    pub(super) fn new(pauses: Pauses) -> Self {
        Self {
            pauses,
            failing_since: None,
            retry_at: None,
            given_up_for: None,
            is_buddy_lost: false,
        }
    }

    /// Begins a round.
    pub(super) fn begin(&mut self) {
        self.pauses.reset();
        let pauses = self.pauses.clone();
        *self = Self::new(pauses);
    }
}

impl NodeMemory {
    /// Returns the address of the node that keeps copies of this node's parts.
    fn buddy(&self) -> Option<&String> {
        let may = self.settings.has_copies && self.settings.address.is_some();
        self.round.as_ref().filter(|_| may)?.buddy.as_ref()
    }

    /// Returns true if no second node will hold a part.
    pub(super) fn is_alone(&self, part: &KeptPart) -> bool {
        if part.about.is_replicated {
            return self.round.as_ref().is_some_and(|round| round.nodes == 1);
        }
        self.buddy().is_none() || part.is_given_up || self.copying.is_buddy_lost && !is_copied(part)
    }

    /// Returns the part whose copy is sent next.
    fn next_to_copy(&self) -> Option<&KeptPart> {
        let round = self.round.as_ref().filter(|round| round.is_running)?;
        // Copies of the fallback were made before.
        let is_own = |part: &&KeptPart| {
            part.place(Some(round)) == PartPlace::Own
                && !part.about.is_replicated
                && !self.is_fallback(part)
        };
        let mut own = self.parts.values().filter(is_own);
        if self.copying.is_buddy_lost {
            // It is tried with the newest one.
            return own.rfind(|part| part.is_held() && !is_copied(part));
        }
        let is_whole =
            |checkpoint: CheckpointId| self.whole.is_some_and(|whole| checkpoint <= whole);
        for part in own {
            if part.is_given_up {
                continue;
            }
            if !part.is_held() {
                return None;
            }
            if !is_copied(part) {
                return Some(part);
            }
            if !is_whole(part.id.checkpoint) {
                return None;
            }
        }
        None
    }

    /// Begins to send blocks, as many as may be sent at once.
    pub(super) fn continue_copies(&mut self, now: Instant) {
        let Some(to) = self.buddy().cloned() else { return };
        if self.copying.retry_at.is_some_and(|at| now < at) {
            return;
        }
        // While the next attempt lasts, there is no deadline.
        self.copying.retry_at = None;
        let sent: BTreeSet<LocalRank> = self
            .transfers
            .values()
            .filter_map(|transfer| match transfer {
                Transfer::Copy(_, worker, _) => Some(*worker),
                Transfer::Fetch { .. }
                | Transfer::Receive(..)
                | Transfer::Serve(_)
                | Transfer::Ranges { .. }
                | Transfer::Over(_) => None,
            })
            .collect();
        let Some(part) = self.next_to_copy() else { return };
        let id = part.id;
        let workers: Vec<LocalRank> = part
            .blocks
            .iter()
            .filter(|(worker, block)| !block.is_copied && !sent.contains(worker))
            .map(|(worker, _)| *worker)
            .take(TRANSFERS_MAX.saturating_sub(sent.len()))
            .collect();
        for worker in workers {
            let Some((header, buffer)) = self.parts.get(&id).and_then(|part| part.header(worker))
            else {
                continue;
            };
            self.buffers.hold(buffer);
            let transfer = self.begin_transfer(Transfer::Copy(id, worker, buffer));
            self.effects.push_back(Effect::Copy { transfer, to: to.clone(), header, buffer });
        }
    }

    /// Returns the time of the next attempt.
    pub(super) fn copying_deadline(&self) -> Option<Instant> {
        self.copying.retry_at.filter(|_| self.next_to_copy().is_some())
    }

    fn handle_copied(&mut self, now: Instant, id: PartId, worker: LocalRank, end: TransferEnd) {
        let buddy = self.buddy().cloned();
        let is_declined = matches!(end, TransferEnd::Declined(Decline::NoRoom));
        let why = match end {
            TransferEnd::Done | TransferEnd::Declined(Decline::HaveIt | Decline::NotNeeded) => {
                let Some(part) = self.parts.get_mut(&id) else { return };
                if let Some(block) = part.blocks.get_mut(&worker) {
                    block.is_copied = true;
                }
                if is_copied(part) {
                    part.copied_to = buddy;
                    let given_up_for = self.copying.given_up_for;
                    self.copying.begin();
                    self.copying.given_up_for = given_up_for;
                    self.obstacle = None;
                }
                return;
            }
            TransferEnd::Declined(Decline::NoRoom | Decline::NotHere | Decline::Changed) => {
                "has no room".to_owned()
            }
            TransferEnd::WrongSum => "has received other content: a checksum is wrong".to_owned(),
            TransferEnd::Failed(why) => format!("does not answer: {why}"),
        };
        let since = *self.copying.failing_since.get_or_insert(now);
        if self.copying.retry_at.is_none_or(|at| at <= now) {
            self.copying.retry_at = Some(now + self.copying.pauses.after_failure());
        }
        let needed = self.parts.get(&id).map_or(0, |part| self.needed_for(part.bytes(), false));
        // All nodes usually have the same limit. If it has no room for copies, waiting gains nothing.
        if now >= since + PATIENCE || is_declined && self.settings.limit < needed {
            self.copying.is_buddy_lost = true;
            let (host, buddy) = (&self.settings.host_name, buddy.unwrap_or_default());
            self.obstacle = Some(fitted(&format!("not copied from {host}: {buddy} {why}")));
        }
    }

    /// Gives up the copy for which a `save` waits.
    pub(super) fn give_up_oldest(&mut self) {
        // Its copy may have been dropped by the buddy since, which nothing tells this node.
        let round = self.round.as_ref();
        let is_awaited = |part: &&KeptPart| {
            part.place(round) == PartPlace::Own
                && !part.about.is_replicated
                && part.is_held()
                && !part.is_given_up
                && !self.is_fallback(part)
                && self.whole.is_none_or(|whole| whole < part.id.checkpoint)
        };
        let Some(id) = self.parts.values().find(is_awaited).map(|part| part.id) else { return };
        if let Some(part) = self.parts.get_mut(&id) {
            part.is_given_up = true;
        }
        let of_part = self.transfers.iter_mut().filter(
            |(_, transfer)| matches!(transfer, Transfer::Copy(copied, ..) if *copied == id),
        );
        for (transfer, state) in of_part {
            if let Transfer::Copy(_, _, buffer) = state {
                *state = Transfer::Over(Some(*buffer));
            }
            self.effects.push_back(Effect::Abort(*transfer));
        }
        let (host, buddy) = (&self.settings.host_name, self.buddy().cloned().unwrap_or_default());
        self.obstacle = Some(fitted(&format!("the copy from {host} to {buddy} is slow")));
    }

    /// Handles a block that another agent sends.
    pub(super) fn handle_incoming(&mut self, transfer: TransferId, header: &BlockHeader) {
        if !transfer.is_foreign {
            return self.handle_fetched(transfer, header);
        }
        let taken = self.may_take(header).and_then(|()| {
            let room = |own: &Self| own.room_for_copies(header);
            self.take_buffer(header.bytes, room).ok_or(Decline::NoRoom)
        });
        let buffer = match taken {
            Ok(buffer) => buffer,
            Err(why) => return self.decline(transfer, why),
        };
        self.buffers.hold(buffer);
        let part = self
            .parts
            .entry(header.part)
            .or_insert_with(|| KeptPart::new(header.part, About::of(header)));
        let state = BlockState::Receiving(transfer);
        part.blocks.insert(header.local_rank, Block::new(buffer, header.bytes, state));
        let receive = Transfer::Receive(*header, buffer);
        self.transfers.insert(transfer, receive);
        self.effects.push_back(Effect::Receive { transfer, buffer });
    }

    /// Returns the room that two checkpoints of this node's own leave. If it has saved none yet, they are assumed to be
    /// as large as those of the ward.
    fn room_for_copies(&self, header: &BlockHeader) -> Room {
        let round = self.round.as_ref();
        let own = self.parts.values().filter(|part| part.place(round) == PartPlace::Own);
        let (mut largest, mut total) = (0, 0_u64);
        for part in own {
            largest = part.bytes().max(largest);
            total = total.saturating_add(part.bytes());
        }
        if largest == 0 {
            let blocks = About::of(header).block_count() as u64;
            largest = header.bytes.saturating_mul(blocks);
        }
        let needed = largest.saturating_mul(OWN_MAX as u64).saturating_sub(total);
        let Room { limit, available } = self.room();
        Room { limit: limit.saturating_sub(needed), available: available.saturating_sub(needed) }
    }

    /// Returns the reason why a block of another node is not taken.
    fn may_take(&self, header: &BlockHeader) -> Result<(), Decline> {
        let Some(round) = self.round.as_ref().filter(|round| round.is_running) else {
            return Err(Decline::NoRoom);
        };
        let checkpoint = header.part.checkpoint;
        if self.off.is_some() || self.whole.is_some_and(|whole| checkpoint < whole) {
            return Err(Decline::NotNeeded);
        }
        let plan = round.plan.as_ref().map(|plan| plan.checkpoint);
        let is_of_ward = round.ward == Some(header.part.group_rank) && round.nodes == header.nodes;
        // Its round may have begun before this node knows.
        if !is_of_ward
            || header.is_replicated
            || plan != Some(checkpoint) && checkpoint.round != round.round
            || header.local_rank.0 >= header.local_ranks.get()
        {
            return Err(Decline::NoRoom);
        }
        if let Some(part) = self.parts.get(&header.part) {
            if part.about != About::of(header) {
                return Err(Decline::NoRoom);
            }
            match part.blocks.get(&header.local_rank) {
                Some(block) if block.sum().is_some() => return Err(Decline::HaveIt),
                Some(_) => return Err(Decline::NoRoom),
                None => return Ok(()),
            }
        }
        if plan == Some(checkpoint) {
            return Ok(());
        }
        // A leftover is of the plan, or of its fallback. It is kept for other nodes, and does not count.
        let counts = |part: &&KeptPart| {
            part.id.group_rank == header.part.group_rank
                && part.place(Some(round)) != PartPlace::Leftover
        };
        let of_ward = self.parts.values().filter(counts).count();
        if of_ward >= WARD_MAX { Err(Decline::NoRoom) } else { Ok(()) }
    }

    pub(super) fn decline(&mut self, transfer: TransferId, why: Decline) {
        self.effects.push_back(Effect::Decline { transfer, why });
    }

    /// Handles the request of another agent for a block.
    pub(super) fn handle_wanted(&mut self, transfer: TransferId, part: PartId, worker: LocalRank) {
        let is_it = |kept: &&KeptPart| {
            kept.id.checkpoint == part.checkpoint
                && (kept.about.is_replicated || kept.id.group_rank == part.group_rank)
        };
        let found = self.parts.values().filter(is_it).find_map(|kept| kept.header(worker));
        let Some((header, buffer)) = found else { return self.decline(transfer, Decline::NotHere) };
        self.buffers.hold(buffer);
        self.transfers.insert(transfer, Transfer::Serve(buffer));
        self.effects.push_back(Effect::Serve { transfer, header, buffer });
    }

    /// Handles the end of a transfer.
    pub(super) fn handle_ended(&mut self, now: Instant, transfer: TransferId, end: TransferEnd) {
        let Some(ended) = self.transfers.remove(&transfer) else { return };
        self.wanted_ranges.retain(|wanted| wanted.transfer != transfer);
        if let Some(buffer) = ended.buffer() {
            self.buffers.unhold(buffer);
            self.buffers.note_made(buffer);
        }
        match ended {
            Transfer::Copy(part, worker, _) => self.handle_copied(now, part, worker, end),
            Transfer::Fetch { local_rank, from, header } => {
                let header = header.map(|(header, _)| header);
                self.handle_fetch_ended(now, local_rank, from, header, end);
            }
            Transfer::Receive(header, _) => {
                let Some(part) = self.parts.get_mut(&header.part) else { return };
                let block = part.blocks.get_mut(&header.local_rank);
                let is_it = |block: &&mut Block| block.state == BlockState::Receiving(transfer);
                let Some(block) = block.filter(is_it) else { return };
                if end == TransferEnd::Done {
                    block.state = BlockState::Held(header.sum);
                } else {
                    self.drop_block(header.part, header.local_rank);
                }
            }
            Transfer::Ranges { worker, sources, bytes } => {
                self.handle_ranges_ended(transfer, worker, sources, bytes, end);
            }
            Transfer::Serve(_) | Transfer::Over(_) => {}
        }
    }
}

impl Transfer {
    /// Returns the buffer that it uses, if it is known.
    pub(super) fn buffer(&self) -> Option<Buffer> {
        match self {
            Self::Copy(_, _, buffer) | Self::Receive(_, buffer) | Self::Serve(buffer) => {
                Some(*buffer)
            }
            Self::Fetch { header, .. } => header.map(|(_, buffer)| buffer),
            Self::Ranges { .. } => None,
            Self::Over(buffer) => *buffer,
        }
    }
}

fn is_copied(part: &KeptPart) -> bool {
    part.blocks.values().all(|block| block.is_copied)
}
