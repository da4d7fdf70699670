mod copying;
mod resharding;
mod restoring;
mod saving;

use std::{collections::BTreeMap, iter};

use ragent_rendezvous::{
    ids::Term,
    message::{MemoryKind, PartSources, UnusableReason},
};

use super::*;
use crate::some_instant;

const STATE: MemoryKind = MemoryKind::State;
/// A multiple of the grain of buffers, which is shown as 1.0 GB.
const GB: u64 = 954 << 20;

/// Two nodes with two workers each, and what their drivers do. Each keeps the copies of the other one.
struct Pair {
    nodes: [Bench; 2],
    now: Instant,
    /// False while the two nodes do not reach each other.
    is_connected: bool,
}

/// A memory with a driver that holds the content of its buffers: one number each.
struct Bench {
    memory: NodeMemory,
    contents: BTreeMap<u64, u64>,
    answers: BTreeMap<LocalRank, Answer>,
    sent: Vec<Effect>,
    left: MemoryLeft,
    /// The peer's transfer for each of ours.
    foreign: BTreeMap<TransferId, TransferId>,
    /// The blocks that are offered to the node.
    offered: BTreeMap<TransferId, (BlockHeader, u64)>,
    next_foreign: u64,
}

fn round(number: u64) -> RoundId {
    RoundId { term: Term(1), round: Round(number) }
}

fn checkpoint(number: u64, step: u64) -> CheckpointId {
    CheckpointId { round: round(number), step }
}

fn plan(number: u64, step: u64, sources: &[&str]) -> MemoryPlan {
    MemoryPlan {
        checkpoint: checkpoint(number, step),
        kind: STATE,
        sources: sources.iter().map(|source| (*source).to_owned()).collect(),
        is_resharded: false,
        all_sources: vec![],
    }
}

/// The block that a worker of a node has saved.
fn header(checkpoint: CheckpointId, node: u32, worker: u32) -> BlockHeader {
    BlockHeader {
        part: PartId { checkpoint, group_rank: GroupRank(node) },
        local_rank: LocalRank(worker),
        nodes: 2,
        first_global_rank: GlobalRank(2 * node),
        local_ranks: NonZeroU32::new(2).unwrap(),
        kind: STATE,
        is_replicated: false,
        bytes: GB,
        sum: Sum(content(node as usize, worker, checkpoint.step).into()),
    }
}

fn ours(number: u64) -> TransferId {
    TransferId { is_foreign: false, number }
}

fn foreign(number: u64) -> TransferId {
    TransferId { is_foreign: true, number }
}

impl Bench {
    fn new(number: usize, limit: u64) -> Self {
        let settings = MemorySettings {
            workers: NonZeroU32::new(2).unwrap(),
            host_name: format!("n{number}"),
            limit,
            reserve: 2 * GB,
            has_copies: true,
            is_secured: true,
            address: Some(format!("n{number}:1")),
            left: MemoryLeft::default(),
        };
        Self {
            memory: NodeMemory::new(settings, 7),
            contents: BTreeMap::new(),
            answers: BTreeMap::new(),
            sent: Vec::new(),
            left: MemoryLeft { available: 100 * GB, oom_kills: None },
            foreign: BTreeMap::new(),
            offered: BTreeMap::new(),
            next_foreign: 0,
        }
    }

    fn held(&self) -> Vec<(u32, u64)> {
        self.memory.held().map(|part| (part.group_rank.0, part.checkpoint.step)).collect()
    }

    fn places(&self) -> Vec<(u64, PartPlace, bool)> {
        let parts = self.memory.report().unwrap().parts;
        parts.iter().map(|part| (part.checkpoint.step, part.place, part.is_alone)).collect()
    }

    fn obstacle(&self) -> String {
        self.memory.report().unwrap().obstacle.unwrap_or_default()
    }

    fn needed(&self) -> u64 {
        self.memory.report().unwrap().needed
    }

    /// Returns the effects that are not carried out yet.
    fn effects(&mut self) -> Vec<Effect> {
        iter::from_fn(|| self.memory.poll_effect()).collect()
    }

    /// Returns the steps of the copies that were sent, one for each block.
    fn copied_steps(&self) -> Vec<u64> {
        let steps = self.sent.iter().filter_map(|effect| match effect {
            Effect::Copy { header, .. } => Some(header.part.checkpoint.step),
            _ => None,
        });
        steps.collect()
    }
}

impl Pair {
    fn new() -> Self {
        Self::with_limit(100 * GB)
    }

    fn with_limit(limit: u64) -> Self {
        let nodes = [Bench::new(0, limit), Bench::new(1, limit)];
        Self { nodes, now: some_instant(), is_connected: true }
    }

    fn admission(node: usize, number: u64, memory: Option<MemoryPlan>) -> Admission {
        let other = 1 - node;
        Admission {
            round: round(number),
            group_rank: GroupRank(node as u32),
            group_world_size: 2,
            first_global_rank: GlobalRank(2 * node as u32),
            world_size: 4,
            memory: memory.map(Box::new),
            buddy: Some(format!("n{other}:1")),
            ward: Some(GroupRank(other as u32)),
            ..Admission::default()
        }
    }

    fn admit(&mut self, number: u64, memory: [Option<MemoryPlan>; 2]) {
        for (node, plan) in memory.into_iter().enumerate() {
            self.admit_one(node, number, plan);
        }
        self.run();
    }

    fn admit_one(&mut self, node: usize, number: u64, plan: Option<MemoryPlan>) {
        let admission = Self::admission(node, number, plan);
        self.nodes[node].answers.clear();
        self.nodes[node].memory.handle_admission(self.now, &admission);
    }

    fn input(&mut self, node: usize, input: Input) {
        self.nodes[node].memory.handle_input(self.now, input);
        self.run();
    }

    fn ask(&mut self, node: usize, worker: u32, number: u64, ask: Ask) -> Option<Answer> {
        let (worker, left) = (LocalRank(worker), self.nodes[node].left);
        self.nodes[node].answers.remove(&worker);
        self.input(node, Input::Asked { round: round(number), worker, ask, left });
        self.nodes[node].answers.get(&worker).cloned()
    }

    fn ask_buffer(&mut self, node: usize, worker: u32, number: u64, step: u64) -> Option<Answer> {
        let ask = Ask::Buffer { step, bytes: GB, kind: STATE, is_replicated: false };
        self.ask(node, worker, number, ask)
    }

    /// A worker saves the number of its step and rank.
    fn save(&mut self, node: usize, worker: u32, number: u64, step: u64) -> Option<Answer> {
        let answer = self.ask_buffer(node, worker, number, step);
        let Some(Answer::Buffer { buffer, .. }) = answer else { return answer };
        self.nodes[node].contents.insert(buffer.id, content(node, worker, step));
        self.ask(node, worker, number, Ask::Saved { step, bytes: GB })
    }

    fn save_all(&mut self, number: u64, step: u64) {
        for (node, worker) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            assert_eq!(self.save(node, worker, number, step), Some(Answer::Taken));
        }
    }

    /// Returns the content that a worker loads.
    fn load(&mut self, node: usize, worker: u32, number: u64) -> Option<Option<u64>> {
        match self.ask(node, worker, number, Ask::Load { kind: STATE })? {
            Answer::Block { buffer, .. } => {
                Some(Some(self.nodes[node].contents.get(&buffer.id).copied().unwrap()))
            }
            Answer::Nothing => Some(None),
            other => panic!("{other:?}"),
        }
    }

    fn whole(&mut self, number: u64, step: u64) {
        for node in &mut self.nodes {
            node.memory.handle_whole(self.now, Some(checkpoint(number, step)));
        }
        self.run();
    }

    fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            for node in &mut self.nodes {
                node.memory.handle_timeout(self.now);
            }
            self.run();
        }
    }

    /// Carries out all effects.
    fn run(&mut self) {
        for _ in 0..1_000 {
            let mut is_idle = true;
            for node in 0..2 {
                while let Some(effect) = self.nodes[node].memory.poll_effect() {
                    is_idle = false;
                    self.nodes[node].sent.push(effect.clone());
                    self.carry_out(node, effect);
                }
            }
            if is_idle {
                return;
            }
        }
        panic!("the keepers go on for ever");
    }

    fn give(&mut self, node: usize, input: Input) {
        self.nodes[node].memory.handle_input(self.now, input);
    }

    /// Node 0 is offered a block, and takes or declines it.
    fn offered(&mut self, transfer: TransferId, header: BlockHeader) -> Result<(), Decline> {
        let left = self.nodes[0].left;
        self.give(0, Input::Incoming { transfer, header, left });
        let answer = self.nodes[0].effects().into_iter().find_map(|effect| match effect {
            Effect::Receive { .. } => Some(Ok(())),
            Effect::Decline { why, .. } => Some(Err(why)),
            _ => None,
        });
        answer.unwrap()
    }

    fn end(&mut self, node: usize, transfer: TransferId, end: TransferEnd) {
        self.give(node, Input::Ended { transfer, end });
    }

    fn other_end(&mut self, node: usize, transfer: TransferId) -> TransferId {
        *self.nodes[node].foreign.get(&transfer).unwrap()
    }

    fn carry_out(&mut self, node: usize, effect: Effect) {
        let other = 1 - node;
        match effect {
            Effect::Answer { worker, answer } => {
                self.nodes[node].answers.insert(worker, answer);
            }
            Effect::Sum { buffer, .. } => {
                let sum = self.nodes[node].contents.get(&buffer.id).copied().unwrap_or(0);
                self.give(node, Input::Summed { buffer, sum: Ok(Sum(sum.into())) });
            }
            Effect::Copy { transfer, .. } | Effect::Fetch { transfer, .. }
                if !self.is_connected =>
            {
                self.end(node, transfer, TransferEnd::Failed("no route".to_owned()));
            }
            Effect::Copy { transfer, header, buffer, .. } => {
                let foreign = self.pair(node, transfer);
                let content = self.nodes[node].contents.get(&buffer.id).copied().unwrap();
                self.offer(other, foreign, header, content);
            }
            Effect::Fetch { transfer, part, local_rank, .. } => {
                let foreign = self.pair(node, transfer);
                self.give(other, Input::Wanted { transfer: foreign, part, local_rank });
            }
            Effect::Serve { transfer, header, buffer } => {
                let fetch = self.other_end(node, transfer);
                let content = self.nodes[node].contents.get(&buffer.id).copied().unwrap();
                self.offer(other, fetch, header, content);
            }
            Effect::Receive { transfer, buffer } => {
                let (header, content) = self.nodes[node].offered.remove(&transfer).unwrap();
                self.nodes[node].contents.insert(buffer.id, content);
                let is_right = header.sum == Sum(content.into());
                self.end_both(
                    node,
                    transfer,
                    &if is_right { TransferEnd::Done } else { TransferEnd::WrongSum },
                );
            }
            Effect::FetchRanges { transfer, part, ranges, .. } => {
                // The first one is enough for the memory.
                let foreign = self.pair(node, transfer);
                self.give(other, Input::WantedRange { transfer: foreign, part, range: ranges[0] });
            }
            Effect::ServeRange { transfer, .. } => {
                self.end_both(node, transfer, &TransferEnd::Done);
            }
            Effect::Decline { transfer, why: Decline::Changed } => {
                self.end_both(node, transfer, &TransferEnd::WrongSum);
            }
            Effect::Decline { transfer, why } => {
                self.end_both(node, transfer, &TransferEnd::Declined(why));
            }
            Effect::Abort(transfer) => {
                self.end(node, transfer, TransferEnd::Failed("aborted".to_owned()));
            }
            Effect::Drop(buffer) => {
                self.nodes[node].contents.remove(&buffer.id);
            }
            Effect::OpenSockets { .. }
            | Effect::CloseSockets
            | Effect::WatchMemory(_)
            | Effect::LeaveToStandbys(_) => {}
        }
    }

    fn pair(&mut self, node: usize, transfer: TransferId) -> TransferId {
        let other = &mut self.nodes[1 - node];
        other.next_foreign += 1;
        let foreign = TransferId { is_foreign: true, number: other.next_foreign };
        other.foreign.insert(foreign, transfer);
        self.nodes[node].foreign.insert(transfer, foreign);
        foreign
    }

    fn offer(&mut self, node: usize, transfer: TransferId, header: BlockHeader, content: u64) {
        self.nodes[node].offered.insert(transfer, (header, content));
        let left = self.nodes[node].left;
        self.give(node, Input::Incoming { transfer, header, left });
    }

    fn end_both(&mut self, node: usize, transfer: TransferId, end: &TransferEnd) {
        let other = self.other_end(node, transfer);
        self.end(node, transfer, end.clone());
        self.end(1 - node, other, end.clone());
    }
}

fn content(node: usize, worker: u32, step: u64) -> u64 {
    step * 10 + 2 * node as u64 + u64::from(worker)
}

/// A checkpoint is held when all workers of the node have saved, and the other node has a copy then. An older one is
/// freed when the newer one is whole.
#[test]
fn checkpoints_are_kept_and_copied() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    assert_eq!(pair.load(0, 0, 1), Some(None), "a first round has nothing to load");
    assert_eq!(pair.save(0, 0, 1, 10), Some(Answer::Taken));
    assert_eq!(pair.nodes[0].held(), []);
    pair.save(0, 1, 1, 10);
    assert_eq!(pair.nodes[0].held(), [(0, 10)]);
    assert_eq!(pair.nodes[1].places(), [(10, PartPlace::Copy, false)]);
    assert_eq!(pair.nodes[0].copied_steps(), [10, 10], "each block once");
    for worker in 0..2 {
        pair.save(1, worker, 1, 10);
    }
    pair.save_all(1, 20);
    assert_eq!(pair.nodes[0].places()[0], (10, PartPlace::Own, false));
    // The copy of the newer one waits until the older one is whole.
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10), (0, 20)]);
    pair.whole(1, 10);
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10), (0, 20), (1, 20)]);
    pair.whole(1, 20);
    assert_eq!(pair.nodes[0].held(), [(0, 20), (1, 20)]);
    let newest = pair.ask(0, 1, 1, Ask::Newest);
    assert_eq!(newest, Some(Answer::Newest(Some(20))));
    // An echo that is late frees nothing.
    pair.whole(1, 10);
    assert_eq!(pair.nodes[0].held(), [(0, 20), (1, 20)]);
}

/// When workers need the memory, copies go first, and then everything.
#[test]
fn memory_gives_way() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    let short = Input::Left(MemoryLeft { available: GB, oom_kills: None });
    pair.input(0, short.clone());
    assert_eq!(pair.nodes[0].held(), [(0, 10)]);
    assert_eq!(pair.nodes[0].contents.len(), 2);
    assert_eq!(
        pair.nodes[0].obstacle(),
        "copies were dropped: n0 has 1.0 GB left, and keeps 2.0 GB free"
    );
    pair.input(0, short.clone());
    assert_eq!(pair.nodes[0].held(), [(0, 10)], "what was freed is not back at once");
    pair.input(0, short);
    assert_eq!(pair.nodes[0].held(), []);
    assert!(pair.nodes[0].contents.is_empty());
    assert_eq!(pair.nodes[0].obstacle(), "off: n0 has 1.0 GB left, and keeps 2.0 GB free");
    assert!(pair.nodes[0].sent.ends_with(&[Effect::WatchMemory(false)]));
}

/// Standbys go before any checkpoint if workers need the memory. Above the reserve, the memory is theirs.
#[test]
fn standbys_go_first() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.nodes[0].memory.set_standbys(2);
    pair.save_all(1, 10);
    let left = |available| Input::Left(MemoryLeft { available, oom_kills: None });
    let theirs = |pair: &Pair| {
        let of_standbys = |effect: &&Effect| matches!(effect, Effect::LeaveToStandbys(_));
        pair.nodes[0].sent.iter().rfind(of_standbys).cloned()
    };
    pair.input(0, left(5 * GB));
    assert_eq!(theirs(&pair), Some(Effect::LeaveToStandbys(Some(3 * GB))));
    pair.input(0, left(GB));
    assert_eq!(theirs(&pair), Some(Effect::LeaveToStandbys(Some(0))));
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10)]);
    // A standby that does not end is not waited for.
    pair.input(0, left(GB));
    assert_eq!(pair.nodes[0].held(), [(0, 10)]);
    pair.input(0, left(GB));
    assert_eq!(pair.nodes[0].held(), []);
    assert_eq!(theirs(&pair), Some(Effect::LeaveToStandbys(None)));

    // Without standbys, copies go at once.
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.nodes[0].memory.set_standbys(0);
    pair.save_all(1, 10);
    pair.input(0, left(GB));
    assert_eq!(pair.nodes[0].held(), [(0, 10)]);
}

/// When the workers of a round have ended, their sockets are closed and their incomplete saves are dropped.
#[test]
fn round_that_is_over_leaves_nothing_unfinished() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    assert!(matches!(pair.ask_buffer(0, 0, 1, 10), Some(Answer::Buffer { .. })));
    pair.nodes[0].memory.handle_round_over(pair.now);
    pair.run();
    assert_eq!(pair.nodes[0].needed(), 0);
    assert!(pair.nodes[0].sent.contains(&Effect::CloseSockets));
    assert_eq!(pair.ask_buffer(0, 0, 1, 10), None);
}

/// A node without a place keeps the checkpoint with which the round has begun, and frees what is older than the newest whole
/// one. Requests of an earlier round are ignored.
#[test]
fn outsider_keeps_the_plan() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.whole(1, 10);
    pair.save_all(1, 20);
    pair.nodes[0].memory.handle_round_over(pair.now);
    let now = pair.now;
    pair.nodes[0].memory.handle_wait(now, round(1), None);
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10), (0, 20), (1, 20)]);
    pair.nodes[0].memory.handle_wait(now, round(2), None);
    assert_eq!(pair.nodes[0].held().len(), 4, "the coordinator does not know the plan");
    pair.nodes[0].memory.handle_wait(now, round(2), Some(checkpoint(1, 20)));
    pair.run();
    assert_eq!(pair.nodes[0].held().len(), 4, "the copies of the newer one may not be made yet");
    pair.whole(1, 20);
    assert_eq!(pair.nodes[0].held(), [(0, 20), (1, 20)]);
    assert_eq!(pair.ask_buffer(0, 0, 1, 30), None);
    pair.whole(2, 30);
    assert_eq!(pair.nodes[0].held(), []);
}

/// A replicated state is held by each node, and not copied. All workers of a node load it.
#[test]
fn replicated_states_are_not_copied() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    for node in 0..2 {
        let ask = Ask::Buffer { step: 10, bytes: GB, kind: STATE, is_replicated: true };
        let Some(Answer::Buffer { buffer, .. }) = pair.ask(node, 0, 1, ask.clone()) else {
            panic!()
        };
        pair.nodes[node].contents.insert(buffer.id, 4);
        assert_eq!(pair.ask(node, 0, 1, Ask::Saved { step: 10, bytes: GB }), Some(Answer::Taken));
        assert!(matches!(pair.ask(node, 1, 1, ask), Some(Answer::Refused(_))));
    }
    assert_eq!(pair.nodes[0].places(), [(10, PartPlace::Own, false)]);
    assert_eq!(pair.nodes[0].needed(), 2 * GB);
    pair.nodes[0] = Bench::new(0, 100 * GB);
    pair.nodes[1].memory.handle_round_over(pair.now);
    pair.admit(2, [Some(plan(1, 10, &["n1:1"])), Some(plan(1, 10, &[]))]);
    let is_fetch = |effect: &&Effect| matches!(effect, Effect::Fetch { .. });
    assert_eq!(pair.nodes[0].sent.iter().filter(is_fetch).count(), 1, "a state has one block");
    for worker in 0..2 {
        assert_eq!(pair.load(0, worker, 2), Some(Some(4)));
        assert_eq!(pair.load(1, worker, 2), Some(Some(4)));
    }
}
