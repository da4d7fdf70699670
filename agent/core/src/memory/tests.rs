mod copying;
mod resharding;
mod restoring;

use std::collections::BTreeMap;

use ragent_rendezvous::{
    ids::Term,
    message::{MemoryKind, UnusableReason},
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
    /// True while copies that are sent do not arrive.
    is_slow: bool,
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
}

impl Pair {
    fn new() -> Self {
        Self::with_limit(100 * GB)
    }

    fn with_limit(limit: u64) -> Self {
        let nodes = [Bench::new(0, limit), Bench::new(1, limit)];
        Self { nodes, now: some_instant(), is_connected: true, is_slow: false }
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
            Effect::Copy { .. } if self.is_slow => {}
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
    let is_copy = |effect: &&Effect| matches!(effect, Effect::Copy { .. });
    assert_eq!(pair.nodes[0].sent.iter().filter(is_copy).count(), 2, "each block once");
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

/// After a worker's death, each node gives its workers their own blocks. They are copied again only if they are missing.
#[test]
fn own_parts_are_loaded() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.save_all(1, 20);
    pair.whole(1, 10);
    for node in 0..2 {
        pair.nodes[node].memory.handle_round_over(pair.now);
    }
    pair.run();
    pair.admit(2, [Some(plan(1, 20, &[])), Some(plan(1, 20, &[]))]);
    assert_eq!(pair.nodes[1].held(), [(0, 10), (1, 10), (0, 20), (1, 20)]);
    assert!(!pair.nodes[0].memory.has_given());
    for (node, worker) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert_eq!(pair.load(node, worker, 2), Some(Some(content(node, worker, 20))));
        assert_eq!(pair.load(node, worker, 2), Some(Some(content(node, worker, 20))));
    }
    assert!(pair.nodes[0].memory.has_given());
    assert_eq!(pair.nodes[0].places()[2], (20, PartPlace::Own, false));
    pair.whole(1, 20);
    // The next one reuses buffers.
    let before: Vec<u64> = pair.nodes[0].contents.keys().copied().collect();
    pair.save_all(2, 30);
    let after: Vec<u64> = pair.nodes[0].contents.keys().copied().collect();
    assert_eq!((before.len(), before), (8, after));
    assert_eq!(pair.load(0, 0, 2), Some(None), "all ranks have gone on from it");
    pair.admit(3, [Some(plan(1, 20, &[])), Some(plan(1, 20, &[]))]);
    pair.save(0, 1, 3, 40);
    assert_eq!(pair.load(0, 1, 3), Some(None), "it has gone on from something else");
}

/// A restart does not free what was whole and copied before the planned checkpoint has its copies: a node may be lost first.
#[test]
fn older_copies_stay_until_the_newer_one_is_copied() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.whole(1, 10);
    pair.is_connected = false;
    pair.save_all(1, 20);
    for node in 0..2 {
        pair.nodes[node].memory.handle_round_over(pair.now);
    }
    pair.admit(2, [Some(plan(1, 20, &[])), Some(plan(1, 20, &[]))]);
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10), (0, 20)]);
    // The older one is whole again, by what all nodes report.
    pair.whole(1, 10);
    assert_eq!(pair.ask_buffer(0, 0, 2, 30), None, "the memory of two checkpoints is in use");
    pair.is_connected = true;
    pair.wait(2);
    assert_eq!(pair.nodes[0].held(), [(0, 10), (1, 10), (0, 20), (1, 20)], "copies go on");
    pair.whole(1, 20);
    assert_eq!(pair.nodes[0].held(), [(0, 20), (1, 20)]);
}

/// A third `save` waits until an older checkpoint is freed. A worker that dies while it saves leaves nothing.
#[test]
fn third_save_waits() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.save_all(1, 20);
    assert_eq!(pair.ask_buffer(0, 0, 1, 30), None);
    assert_eq!(pair.nodes[0].memory.report().unwrap().waits_for_buffer, Some(GlobalRank(0)));
    pair.whole(1, 10);
    assert_eq!(pair.nodes[0].answers.get(&LocalRank(0)), None);
    pair.wait(3);
    pair.whole(1, 20);
    let answer = pair.nodes[0].answers.get(&LocalRank(0)).cloned();
    let Some(Answer::Buffer { waited, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!(waited, Duration::from_secs(3));
    pair.save(0, 1, 1, 30);
    pair.input(0, Input::WorkerGone { round: round(1), worker: LocalRank(0) });
    pair.nodes[0].memory.handle_round_over(pair.now);
    assert_eq!(pair.nodes[0].held(), [(0, 20), (1, 20)]);
    pair.admit(2, [Some(plan(1, 20, &[])), Some(plan(1, 20, &[]))]);
    assert_eq!(pair.nodes[0].held(), [(0, 20), (1, 20)]);
}

/// The cost of a save is reported with the next change, and is none itself: a save on each worker would send a report.
#[test]
fn cost_alone_is_not_reported() {
    let mut t = Pair::new();
    t.admit(1, [None, None]);
    let Some(Answer::Buffer { buffer, .. }) = t.ask_buffer(0, 0, 1, 10) else { panic!() };
    t.nodes[0].contents.insert(buffer.id, 7);
    assert!(t.nodes[0].memory.take_report().is_some(), "saves are used from now on");
    assert_eq!(t.ask(0, 0, 1, Ask::Saved { step: 10, bytes: GB }), Some(Answer::Taken));
    assert_eq!(t.nodes[0].memory.take_report(), None);
    assert_eq!(t.save(0, 1, 1, 10), Some(Answer::Taken));
    assert!(t.nodes[0].memory.take_report().is_some_and(|report| report.cost.is_some()));
}

/// The report of a node whose `save` waits names the rank that has not saved.
#[test]
fn late_rank_is_named() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    for step in [10, 20] {
        pair.save(0, 0, 1, step);
    }
    assert_eq!(pair.nodes[0].memory.report().unwrap().obstacle, None);
    assert_eq!(pair.ask_buffer(0, 0, 1, 30), None);
    let obstacle = pair.nodes[0].memory.report().unwrap().obstacle;
    let expected = "rank 1 has not saved step 10; all ranks must save the same steps";
    assert_eq!(obstacle.as_deref(), Some(expected));
}

/// Ranks that save different steps never have a whole checkpoint. After two minutes, nothing is saved any more, and the
/// coordinator learns why.
#[test]
fn ranks_that_save_different_steps_go_on_without_memory() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    for (worker, step) in [(0, 10), (1, 11), (0, 20), (1, 21)] {
        pair.save(0, worker, 1, step);
    }
    pair.wait(121);
    let Some(Answer::Refused(why)) = pair.nodes[0].answers.get(&LocalRank(0)) else { panic!() };
    assert!(why.contains("all ranks must save the same steps"), "{why}");
    assert_eq!(pair.nodes[0].obstacle(), format!("{OFF}{why}"));
    assert_eq!(pair.nodes[0].held(), []);
    assert!(matches!(pair.save(0, 1, 1, 30), Some(Answer::Refused(_))));
    // The next round tries again.
    pair.admit(2, [None, None]);
    assert_eq!(pair.save(0, 1, 2, 30), Some(Answer::Taken));
}

/// Parts never use more than the limit, and the reserve stays free. One line says what is missing.
#[test]
fn limit_and_reserve_are_kept() {
    let mut pair = Pair::with_limit(3 * GB);
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    assert!(matches!(pair.ask_buffer(0, 0, 1, 20), Some(Answer::Buffer { .. })));
    let answer = pair.ask_buffer(0, 1, 1, 20);
    let Some(Answer::Refused(why)) = answer else { panic!("{answer:?}") };
    assert_eq!(why, "n0 has 3.0 GB and needs 8.0 GB");

    // Copies take nothing that a node needs for its own parts. No `save` waits for them.
    let mut pair = Pair::with_limit(5 * GB);
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.save_all(1, 20);
    assert_eq!(pair.nodes[0].places()[0], (10, PartPlace::Own, true));
    assert_eq!(pair.nodes[1].held(), [(1, 10), (1, 20)]);
    assert_eq!(pair.nodes[0].obstacle(), "not copied from n0: n1:1 has no room");

    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.nodes[0].left.available = 2 * GB + GB / 2;
    let answer = pair.ask_buffer(0, 0, 1, 10);
    let why = "n0 has 0.5 GB to spare and needs 1.0 GB".to_owned();
    assert_eq!(answer, Some(Answer::Refused(why)));

    let mut pair = Pair::with_limit(0);
    pair.admit(1, [None, None]);
    let why = "n0 has --memory-limit 0".to_owned();
    assert_eq!(pair.ask_buffer(0, 0, 1, 10), Some(Answer::Refused(why)));
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

    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.nodes[0].memory.set_standbys(0);
    pair.save_all(1, 10);
    pair.input(0, left(GB));
    assert_eq!(pair.nodes[0].held(), [(0, 10)], "there is none, so copies go at once");
}

/// A round ends, and its incomplete saves are dropped. A coordinator may turn memory off in another round; in this one it stays on.
#[test]
fn incomplete_saves_end_with_the_round() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.nodes[0].memory.handle_off(pair.now, round(7), "no room");
    assert!(matches!(pair.ask_buffer(0, 0, 1, 10), Some(Answer::Buffer { .. })));
    assert_eq!(pair.nodes[0].memory.parts.len(), 1);
    pair.nodes[0].memory.handle_round_over(pair.now);
    assert!(pair.nodes[0].memory.parts.is_empty());
}

/// The cost of a save is the median of the newest ones, so that a slow one does not count.
#[test]
fn usual_cost_is_the_median() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    assert_eq!(pair.nodes[0].memory.report().and_then(|report| report.cost), None);
    let second = Duration::from_secs(1);
    pair.nodes[0].memory.costs = [1, 1, 5, 5, 60].map(|seconds| seconds * second).into();
    pair.save(0, 0, 1, 10);
    assert_eq!(pair.nodes[0].memory.report().and_then(|report| report.cost), Some(5 * second));
    for step in 11..60 {
        pair.save(0, 0, 1, step);
        pair.nodes[0].memory.handle_whole(pair.now, Some(checkpoint(1, step + 1)));
    }
    assert_eq!(pair.nodes[0].memory.costs.len(), 16);
}

/// A worker that has ended reads no more, so that the memory of its checkpoint can be freed.
#[test]
fn worker_that_has_ended_reads_nothing() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.admit(2, [Some(plan(1, 10, &[])), Some(plan(1, 10, &[]))]);
    pair.load(0, 0, 2);
    pair.input(0, Input::WorkerGone { round: round(2), worker: LocalRank(0) });
    for _ in 0..3 {
        pair.input(0, Input::Left(MemoryLeft { available: GB, oom_kills: None }));
    }
    assert!(pair.nodes[0].contents.is_empty());
}

/// A part is that of a node if its ranks are the same in this round. It has a place also if another checkpoint is resharded.
#[test]
fn place_depends_on_the_ranks() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    let memory = &pair.nodes[0].memory;
    let (part, now) = (memory.parts.values().next().unwrap(), memory.round.clone().unwrap());
    let with = |is_resharded, step| {
        let plan = MemoryPlan { is_resharded, ..plan(1, step, &[]) };
        part.place(Some(&MemoryRound { plan: Some(plan), ..now.clone() }))
    };
    assert_eq!(
        [with(true, 10), with(true, 20), with(false, 10)],
        [PartPlace::Leftover, PartPlace::Own, PartPlace::Own]
    );
    let other_rank = MemoryRound { first_global_rank: GlobalRank(2), ..now.clone() };
    let more = MemoryRound { workers: NonZeroU32::new(3).unwrap(), ..now };
    assert_eq!([other_rank, more].map(|round| part.place(Some(&round))), [PartPlace::Leftover; 2]);
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

/// In a round with other ranks, no part of its checkpoint has a place, also on a node whose ranks are the same. The next checkpoint is
/// copied at once, and frees it.
#[test]
fn resharded_parts_are_left_over() {
    let mut t = Pair::new();
    t.admit(1, [None, None]);
    t.save_all(1, 10);
    let resharded = MemoryPlan { is_resharded: true, ..plan(1, 10, &[]) };
    t.admit(2, [Some(resharded.clone()), Some(resharded)]);
    let places = |t: &Pair| -> Vec<(u64, PartPlace)> {
        t.nodes[0].places().iter().map(|(step, place, _)| (*step, *place)).collect()
    };
    assert_eq!(places(&t), [(10, PartPlace::Leftover), (10, PartPlace::Leftover)]);
    assert_eq!(t.nodes[0].memory.unusable(), None);
    t.save_all(2, 20);
    let newer = [(20, PartPlace::Own), (20, PartPlace::Copy)];
    assert_eq!(places(&t)[2..], newer);
    t.whole(2, 20);
    assert_eq!(places(&t), newer);
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
    assert_eq!(pair.nodes[0].memory.report().unwrap().needed, 2 * GB);
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

/// The same step is not saved twice in a round, and a buffer that was not asked for is not taken.
#[test]
fn misuse_is_refused() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    let why = "step 10 is not later than step 10, which is already saved".to_owned();
    assert_eq!(pair.ask_buffer(0, 0, 1, 10), Some(Answer::Refused(why)));
    let saved = pair.ask(0, 0, 1, Ask::Saved { step: 20, bytes: GB });
    assert!(matches!(saved, Some(Answer::Refused(_))), "{saved:?}");
    pair.ask_buffer(0, 0, 1, 20);
    for bytes in [0, GB + 1] {
        let saved = pair.ask(0, 0, 1, Ask::Saved { step: 20, bytes });
        assert!(matches!(saved, Some(Answer::Refused(_))), "{saved:?}");
        pair.ask_buffer(0, 0, 1, 20);
    }
    // It may try again.
    assert_eq!(pair.save(0, 0, 1, 20), Some(Answer::Taken));
    let other = Ask::Buffer { step: 20, bytes: GB, kind: MemoryKind::Dcp, is_replicated: false };
    assert!(matches!(pair.ask(0, 1, 1, other), Some(Answer::Refused(_))));
}

/// A script that cannot use the checkpoint ends the round.
#[test]
fn script_refuses() {
    let mut pair = Pair::new();
    pair.admit(1, [None, None]);
    pair.save_all(1, 10);
    pair.admit(2, [Some(plan(1, 10, &[])), Some(plan(1, 10, &[]))]);
    let reason = "another model".to_owned();
    let answer = pair.ask(0, 0, 2, Ask::Unusable { step: 10, reason: reason.clone() });
    assert_eq!(answer, Some(Answer::Noted));
    let unusable =
        MemoryUnusable { checkpoint: checkpoint(1, 10), why: UnusableReason::Script, text: reason };
    assert_eq!(pair.nodes[0].memory.unusable(), Some(&unusable));
}
