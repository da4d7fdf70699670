//! Gives the memory random inputs in random order, and checks each effect with a driver that counts the users of buffers. Some inputs are
//! wrong: unknown transfers, workers that do not exist, absurd sizes.

mod acts;

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*, sample::select};
use ragent_rendezvous::{
    ids::Term,
    message::{MemoryKind, PartPlace},
};

use self::acts::{Act, DONE, WORKERS, act};
use super::*;
use crate::some_instant;

/// The longest time for which a `save` may wait.
const PATIENCE: Duration = Duration::from_secs(121);

/// A user of a buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum User {
    Sum,
    Reads(TransferId),
    Writes(TransferId),
    Fills(LocalRank),
    Loads(LocalRank),
}

impl User {
    fn writes(self) -> bool {
        matches!(self, Self::Writes(_) | Self::Fills(_))
    }
}

/// A memory, and a driver that checks its effects.
struct Model {
    memory: NodeMemory,
    now: Instant,
    round: u64,
    left: MemoryLeft,
    /// The buffers that exist, and what uses them.
    buffers: BTreeMap<u64, (u64, Vec<User>)>,
    newest_buffer: u64,
    /// The buffers that are not made yet.
    unmade: Vec<Buffer>,
    sums: Vec<Buffer>,
    /// The transfers that have not ended. True for a fetch that is not answered.
    transfers: BTreeMap<TransferId, bool>,
    next_foreign: u64,
    waiting: BTreeMap<LocalRank, (Ask, Instant)>,
    /// The largest step that was asked for.
    step: u64,
}

impl Model {
    fn new(limit: u64, has_address: bool) -> Self {
        let left = MemoryLeft { available: u64::MAX, oom_kills: None };
        let settings = MemorySettings {
            workers: NonZeroU32::new(WORKERS).unwrap(),
            host_name: "n0".to_owned(),
            limit,
            reserve: 10,
            has_copies: true,
            is_secured: has_address,
            address: has_address.then(|| "n0:1".to_owned()),
            left,
        };
        Self {
            memory: NodeMemory::new(settings, 7),
            now: some_instant(),
            round: 0,
            left,
            buffers: BTreeMap::new(),
            newest_buffer: 0,
            unmade: Vec::new(),
            sums: Vec::new(),
            transfers: BTreeMap::new(),
            next_foreign: 0,
            waiting: BTreeMap::new(),
            step: 0,
        }
    }

    fn round_id(&self) -> RoundId {
        RoundId { term: Term(1), round: Round(self.round) }
    }

    /// Returns the checkpoint of a kept part, or a made-up one of this round.
    fn checkpoint(&self, which: usize) -> CheckpointId {
        let known: Vec<CheckpointId> =
            self.memory.parts.keys().map(|part| part.checkpoint).collect();
        let made_up = CheckpointId { round: self.round_id(), step: which as u64 % 8 };
        let which = which.checked_rem(known.len() + 1);
        which.and_then(|which| known.get(which)).copied().unwrap_or(made_up)
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Admission { plan, is_resharded, sources, place, ward, has_buddy } => {
                let plan = plan.map(|which| MemoryPlan {
                    checkpoint: self.checkpoint(which),
                    kind: MemoryKind::State,
                    sources: (0..sources).map(|source| format!("s{source}:1")).collect(),
                    is_resharded,
                    all_sources: vec![],
                });
                self.round += 1;
                let (group_rank, nodes) = place;
                let admission = Admission {
                    round: self.round_id(),
                    group_rank: GroupRank(group_rank),
                    group_world_size: nodes,
                    first_global_rank: GlobalRank(WORKERS * group_rank),
                    world_size: WORKERS * nodes,
                    memory: plan.map(Box::new),
                    buddy: has_buddy.then(|| "buddy:1".to_owned()),
                    ward: (ward != group_rank).then_some(GroupRank(ward)),
                    ..Admission::default()
                };
                self.memory.handle_admission(self.now, &admission);
            }
            Act::RoundOver => self.memory.handle_round_over(self.now),
            Act::Wait(kept) => {
                let kept = kept.map(|which| self.checkpoint(which));
                self.round += 1;
                self.memory.handle_wait(self.now, self.round_id(), kept);
            }
            Act::Whole(which) => {
                let whole = self.checkpoint(which);
                self.memory.handle_whole(self.now, Some(whole));
            }
            Act::Off => self.memory.handle_off(self.now, self.round_id(), "off"),
            Act::Asked { worker, ask, is_late } => self.ask(LocalRank(worker), ask, is_late),
            Act::Saved(worker) => {
                let filling = self.memory.filling.contains_key(&LocalRank(worker));
                let mut own = self.memory.parts.values().filter_map(|part| {
                    let block = part.blocks.get(&LocalRank(worker))?;
                    (block.state == BlockState::Filling).then_some((part.id, block.bytes))
                });
                if let Some((id, bytes)) = own.next_back().filter(|_| filling) {
                    let ask = Ask::Saved { step: id.checkpoint.step, bytes };
                    self.ask(LocalRank(worker), ask, false);
                }
            }
            Act::SaveAll => {
                for worker in 0..WORKERS {
                    let (step, kind) = (u64::from(worker == 0), MemoryKind::State);
                    let ask = Ask::Buffer { step, bytes: 100, kind, is_replicated: false };
                    self.ask(LocalRank(worker), ask, false);
                }
                (0..WORKERS).for_each(|worker| self.act(Act::Saved(worker)));
                self.sum_all();
            }
            Act::ReceiveAll(part) => {
                let ward = self.memory.round.as_ref().and_then(|round| round.ward);
                let Some(group_rank) = ward else { return };
                let id = PartId { checkpoint: self.checkpoint(part), group_rank };
                for worker in 0..WORKERS {
                    let (transfer, header) = (self.foreign(), self.header(id, worker, 100));
                    self.input(Input::Incoming { transfer, header, left: self.left });
                    self.end(transfer, DONE);
                }
            }
            Act::FetchAll => self.fetch_all(),
            Act::WorkerGone(worker) => self.leave(self.round_id(), LocalRank(worker)),
            Act::Summed { which, sum } => {
                if self.sums.is_empty() {
                    return;
                }
                let buffer = self.sums.swap_remove(which % self.sums.len());
                if let Some((_, users)) = self.buffers.get_mut(&buffer.id) {
                    users.remove(users.iter().position(|user| *user == User::Sum).unwrap());
                }
                let sum = if sum == 0 { Err("no".to_owned()) } else { Ok(Sum(sum.into())) };
                self.input(Input::Summed { buffer, sum });
            }
            Act::UnknownSum(id) => {
                let buffer = Buffer { id: self.newest_buffer.saturating_add(id), size: id };
                self.input(Input::Summed { buffer, sum: Ok(Sum(1)) });
            }
            Act::NotMade(which) => {
                if let Some(which) = which.checked_rem(self.unmade.len()) {
                    let buffer = self.unmade.swap_remove(which);
                    if self.buffers.remove(&buffer.id).is_some() {
                        self.sums.retain(|sum| *sum != buffer);
                        self.input(Input::NotMade { buffer, why: "no".to_owned() });
                    }
                }
            }
            Act::Incoming { which, is_ours, part, group_rank, worker, bytes, is_odd } => {
                let transfer = if is_ours {
                    let mut fetches = self.transfers.iter_mut().filter(|(_, is_asked)| **is_asked);
                    let Some((transfer, is_asked)) = fetches.nth(which % 4) else { return };
                    *is_asked = false;
                    *transfer
                } else {
                    self.foreign()
                };
                let group_rank = GroupRank(group_rank);
                let id = PartId { checkpoint: self.checkpoint(part), group_rank };
                let mut header = self.header(id, worker, bytes);
                if is_odd {
                    header.local_ranks = NonZeroU32::new(WORKERS + 1).unwrap();
                    header.is_replicated = worker == 0;
                }
                self.input(Input::Incoming { transfer, header, left: self.left });
            }
            Act::Wanted { part, group_rank, worker } => {
                let part =
                    PartId { checkpoint: self.checkpoint(part), group_rank: GroupRank(group_rank) };
                let transfer = self.foreign();
                self.input(Input::Wanted { transfer, part, local_rank: LocalRank(worker) });
            }
            Act::WantedRange { part, group_rank, range } => {
                let part =
                    PartId { checkpoint: self.checkpoint(part), group_rank: GroupRank(group_rank) };
                let transfer = self.foreign();
                self.input(Input::WantedRange { transfer, part, range });
            }
            Act::Ended { which, end } => {
                let Some(which) = which.checked_rem(self.transfers.len()) else { return };
                let transfer = *self.transfers.keys().nth(which).unwrap();
                self.end(transfer, end);
            }
            Act::UnknownEnd(number) => {
                let transfer = TransferId { is_foreign: number % 2 == 0, number };
                if !self.transfers.contains_key(&transfer) {
                    self.input(Input::Ended { transfer, end: TransferEnd::Done });
                }
            }
            Act::Left(available) => {
                self.left.available = available;
                self.input(Input::Left(self.left));
            }
            Act::Pass(seconds) => self.pass(Duration::from_secs(seconds)),
        }
        self.carry_out();
        self.check();
    }

    fn header(&self, part: PartId, worker: u32, bytes: u64) -> BlockHeader {
        BlockHeader {
            part,
            local_rank: LocalRank(worker),
            nodes: self.memory.round.as_ref().map_or(5, |round| round.nodes),
            first_global_rank: GlobalRank(WORKERS * part.group_rank.0),
            local_ranks: NonZeroU32::new(WORKERS).unwrap(),
            kind: MemoryKind::State,
            is_replicated: false,
            bytes,
            sum: Sum(1),
        }
    }

    fn sum_all(&mut self) {
        while !self.sums.is_empty() {
            self.act(Act::Summed { which: 0, sum: 1 });
        }
    }

    fn fetch_all(&mut self) {
        let is_asked = |(transfer, is_asked): (&TransferId, &bool)| is_asked.then_some(*transfer);
        while let Some(transfer) = self.transfers.iter().find_map(is_asked) {
            self.transfers.insert(transfer, false);
            let fetch = self.memory.transfers.get(&transfer);
            let round = self.memory.round.as_ref();
            let known = round.and_then(|round| {
                let Some(Transfer::Fetch { local_rank, .. }) = fetch else { return None };
                Some((round.plan.as_ref()?.checkpoint, round.group_rank, local_rank.0))
            });
            if let Some((checkpoint, group_rank, worker)) = known {
                let header = self.header(PartId { checkpoint, group_rank }, worker, 100);
                self.input(Input::Incoming { transfer, header, left: self.left });
            }
            self.end(transfer, DONE);
        }
    }

    fn foreign(&mut self) -> TransferId {
        self.next_foreign += 1;
        let transfer = TransferId { is_foreign: true, number: self.next_foreign };
        self.transfers.insert(transfer, false);
        transfer
    }

    fn end(&mut self, transfer: TransferId, end: u8) {
        self.transfers.remove(&transfer);
        self.note_made(User::Writes(transfer));
        self.end_uses(|user| user == User::Reads(transfer) || user == User::Writes(transfer));
        let end = match end {
            0 => TransferEnd::Failed("no".to_owned()),
            1 => TransferEnd::WrongSum,
            2 => TransferEnd::Declined(Decline::NoRoom),
            3 => TransferEnd::Declined(Decline::NotHere),
            4 => TransferEnd::Declined(Decline::HaveIt),
            _ => TransferEnd::Done,
        };
        self.input(Input::Ended { transfer, end });
    }

    fn leave(&mut self, round: RoundId, worker: LocalRank) {
        if self.memory.is_running(round) {
            self.end_uses(|user| user == User::Fills(worker) || user == User::Loads(worker));
            self.waiting.remove(&worker);
        }
        self.input(Input::WorkerGone { round, worker });
    }

    fn ask(&mut self, worker: LocalRank, mut ask: Ask, is_late: bool) {
        if let Ask::Buffer { step, .. } = &mut ask {
            *step = step.saturating_add(self.step);
            self.step = (*step).min(1 << 53);
        }
        if let Ask::Ranges(request) = &mut ask
            && let Some(checkpoint) = self.memory.resharded_checkpoint()
        {
            // Most requests are for the right step.
            request.step += checkpoint.step;
        }
        let mut round = self.round_id();
        round.round.0 = round.round.0.saturating_sub(is_late.into());
        if self.memory.is_running(round) {
            // The driver accepts no request before the last one is answered, except from another process.
            if self.waiting.contains_key(&worker) {
                self.leave(round, worker);
            }
            let abandons = !matches!(ask, Ask::Newest | Ask::Unusable { .. } | Ask::Ranges(_));
            self.note_made(User::Fills(worker));
            self.end_uses(|user| {
                user == User::Loads(worker) || abandons && user == User::Fills(worker)
            });
            self.waiting.insert(worker, (ask.clone(), self.now));
        }
        self.input(Input::Asked { round, worker, ask, left: self.left });
    }

    /// Notes that what a worker or a transfer has used exists.
    fn note_made(&mut self, user: User) {
        let buffers = &self.buffers;
        let is_used = |buffer: &Buffer| {
            buffers.get(&buffer.id).is_some_and(|(_, users)| users.contains(&user))
        };
        self.unmade.retain(|buffer| !is_used(buffer));
    }

    fn input(&mut self, input: Input) {
        self.memory.handle_input(self.now, input);
        self.carry_out();
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.memory.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.memory.handle_timeout(self.now);
            self.carry_out();
            let next = self.memory.poll_timeout();
            assert!(next.is_none_or(|next| next > self.now), "a deadline stays when it has passed");
        }
        self.now = end;
    }

    fn end_uses(&mut self, is_over: impl Fn(User) -> bool) {
        self.buffers.values_mut().for_each(|(_, users)| users.retain(|user| !is_over(*user)));
    }

    /// Notes a use. Content that is written has no other users, and what is read is not being written.
    fn uses(&mut self, buffer: Buffer, user: User) {
        if user.writes() && buffer.id > self.newest_buffer {
            self.newest_buffer = buffer.id;
            self.buffers.insert(buffer.id, (buffer.size, Vec::new()));
            self.unmade.push(buffer);
        }
        let known = self.buffers.get_mut(&buffer.id);
        let Some((size, users)) = known else { panic!("{buffer:?} does not exist: {user:?}") };
        assert_eq!(*size, buffer.size);
        let mut others = users.iter().filter(|other| user.writes() || other.writes());
        assert_eq!(others.next(), None, "{user:?} uses {buffer:?} as well");
        users.push(user);
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.memory.poll_effect() {
            match effect {
                Effect::OpenSockets { .. }
                | Effect::WatchMemory(_)
                | Effect::LeaveToStandbys(_) => {}
                Effect::CloseSockets => {
                    self.end_uses(|user| matches!(user, User::Fills(_) | User::Loads(_)));
                    self.waiting.clear();
                }
                Effect::Answer { worker, answer } => {
                    // A second answer is one to the request for a buffer that was not made.
                    let asked = self.waiting.remove(&worker);
                    assert!(asked.is_some() || matches!(answer, Answer::Refused(_)), "{answer:?}");
                    match answer {
                        Answer::Buffer { buffer, .. } => {
                            let Some((Ask::Buffer { bytes, .. }, _)) = asked else { panic!() };
                            assert!(bytes <= buffer.size);
                            self.uses(buffer, User::Fills(worker));
                        }
                        Answer::Block { buffer, bytes, .. } => {
                            assert!(bytes <= buffer.size);
                            self.uses(buffer, User::Loads(worker));
                        }
                        Answer::Refused(_)
                        | Answer::Taken
                        | Answer::Nothing
                        | Answer::Resharded { .. }
                        | Answer::Ranges { .. }
                        | Answer::Newest(_)
                        | Answer::Noted => {}
                    }
                }
                Effect::Sum { buffer, bytes } => {
                    assert!(bytes <= buffer.size);
                    self.uses(buffer, User::Sum);
                    self.sums.push(buffer);
                }
                Effect::Copy { transfer, buffer, header, .. } => {
                    assert!(header.bytes <= buffer.size);
                    self.transfers.insert(transfer, false);
                    self.uses(buffer, User::Reads(transfer));
                }
                Effect::Fetch { transfer, .. } => drop(self.transfers.insert(transfer, true)),
                // It is not answered with a block.
                Effect::FetchRanges { transfer, .. } => {
                    self.transfers.insert(transfer, false);
                }
                Effect::ServeRange { transfer, buffer, range } => {
                    assert!(range.offset + range.bytes <= buffer.size);
                    self.uses(buffer, User::Reads(transfer));
                }
                Effect::Receive { transfer, buffer } => {
                    assert!(self.transfers.contains_key(&transfer));
                    self.uses(buffer, User::Writes(transfer));
                }
                Effect::Serve { transfer, buffer, header } => {
                    assert!(header.bytes <= buffer.size);
                    self.uses(buffer, User::Reads(transfer));
                }
                Effect::Decline { transfer, .. } | Effect::Abort(transfer) => {
                    assert!(self.transfers.contains_key(&transfer));
                }
                Effect::Drop(buffer) => {
                    let (_, users) = self.buffers.remove(&buffer.id).expect("it exists");
                    assert!(users.is_empty(), "{buffer:?} is used: {users:?}");
                    self.unmade.retain(|unmade| *unmade != buffer);
                }
            }
        }
    }

    /// Checks what must hold at each moment.
    fn check(&self) {
        let memory = &self.memory;
        let total: u128 = self.buffers.values().map(|(size, _)| u128::from(*size)).sum();
        assert!(total <= memory.settings.limit.into(), "{total} bytes");
        let round = memory.round.as_ref();
        let plan = round.and_then(|round| round.plan.as_ref()).map(|plan| plan.checkpoint);
        let (mut own, mut others) = (BTreeSet::new(), 0);
        for part in memory.parts.values() {
            match part.place(round) {
                PartPlace::Own => drop(own.insert(part.id.checkpoint)),
                // Those of the restored checkpoint and of its fallback stay until it is whole again, as others may fetch them.
                PartPlace::Leftover if Some(part.id.checkpoint) < plan => {}
                PartPlace::Copy | PartPlace::Leftover => {
                    others += usize::from(Some(part.id.checkpoint) != plan);
                }
            }
        }
        let is_running = round.is_some_and(|round| round.is_running);
        assert!(!is_running || own.len() <= OWN_MAX, "{own:?}");
        assert!(!is_running || others <= WARD_MAX, "{:?}", memory.parts.keys());
        for (worker, (ask, since)) in &self.waiting {
            match ask {
                Ask::Load { .. } | Ask::Ranges(_) => {
                    let fetches = self.transfers.keys().any(|transfer| !transfer.is_foreign);
                    let is_tried = fetches || !self.sums.is_empty();
                    // A newer step is whole, so all ranks have gone on.
                    let plan = memory.round.as_ref().and_then(|round| round.plan.as_ref());
                    let is_over = plan.is_some_and(|plan| memory.whole > Some(plan.checkpoint));
                    assert!(
                        is_tried || is_over || memory.unusable().is_some(),
                        "{worker:?} waits in vain"
                    );
                }
                Ask::Buffer { .. } => {
                    let waited = self.now - *since;
                    assert!(waited <= PATIENCE, "{worker:?} has waited for {waited:?}");
                }
                Ask::Saved { .. } | Ask::Loaded | Ask::Newest | Ask::Unusable { .. } => {
                    panic!("{worker:?} waits for the answer to {ask:?}")
                }
            }
        }
        memory.report();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// In any order of inputs, a node keeps no more than it may, uses no buffer for two things, and leaves no `save` without an answer.
    #[test]
    fn limits_hold_in_any_order(
        limit in select(vec![0, 350, 1_200, 5_000, u64::MAX]),
        has_address in prop::bool::weighted(0.8),
        acts in vec(act(), 1..120),
    ) {
        let mut model = Model::new(limit, has_address);
        acts.into_iter().for_each(|act| model.act(act));
        // When everything has ended and nothing new begins, all are answered.
        for _ in 0..40 {
            for transfer in model.transfers.keys().copied().collect::<Vec<_>>() {
                model.end(transfer, 0);
            }
            model.sum_all();
            model.act(Act::Pass(5));
        }
        let is_left = |(ask, _): &(Ask, Instant)| matches!(ask, Ask::Buffer { .. });
        prop_assert!(!model.waiting.values().any(is_left), "{:?}", model.waiting);
    }
}
