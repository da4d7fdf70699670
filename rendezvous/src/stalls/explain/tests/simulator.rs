//! Simulates the collectives of nested groups, until nothing moves.

use crate::{
    ids::{GlobalRank, Round, RoundId, Term},
    jitter::Jitter,
    message::{Activity, Digest, GroupLook, Launched, LookPart, WorkerLook},
    stall::{Own, RankedNode},
};

/// The round and the look of all digests.
pub(super) const ROUND: RoundId = RoundId { term: Term(1), round: Round(8) };
/// See [`ROUND`].
pub(super) const LOOK: u64 = 3;

/// The operation that no program calls, except in place of another one.
const OTHER: &str = "barrier";

/// The one operation that its lowest rank finishes alone.
const ONE_SIDED: &str = "broadcast";

/// The one operation that a rank launches, and does not wait for.
pub(super) const ASYNCHRONOUS: &str = "reduce_scatter";

/// A planted fault.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fault {
    /// A rank stops before a call.
    Stops { rank: usize, call: usize },
    /// A rank calls another operation of the same group.
    Calls { rank: usize, call: usize },
    /// A rank makes two calls of different groups in the other order.
    Swaps { rank: usize, call: usize },
    /// A collective of a group never finishes.
    Network { group: usize, number: u64 },
    /// None: the job is slow.
    Slow,
}

/// A job.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) groups: Vec<Vec<usize>>,
    pub(super) ranks: Vec<Rank>,
    pub(super) fault: Fault,
    per_node: usize,
}

/// A rank: its calls, and how many it has made.
#[derive(Clone, Debug, Default)]
pub(super) struct Rank {
    pub(super) calls: Vec<(usize, &'static str)>,
    made: usize,
    /// True if it is in its call of that number.
    is_in_call: bool,
    /// The last launch in each group.
    launched: Vec<(u64, &'static str, bool)>,
}

/// Draws a number below `limit`.
pub(super) fn draw(random: &mut Jitter, limit: usize) -> usize {
    (random.bits() % limit.max(1) as u64) as usize
}

impl Job {
    /// Returns a job with random groups and programs, and no fault.
    pub(super) fn new(random: &mut Jitter) -> Self {
        let tensor = [1, 2, 4][draw(random, 3)];
        let pipeline = [1, 2][draw(random, 2)];
        let data = [2, 3, 4][draw(random, 3)];
        let size = tensor * pipeline * data;
        // The tensor, the data group, half a data group (expert), the stage, the pipeline, and the whole job.
        let place = |rank: usize| (rank % tensor, rank / tensor % data, rank / tensor / data);
        let kinds: [&dyn Fn(usize) -> usize; 6] = [
            &|rank| rank / tensor,
            &|rank| place(rank).0 + tensor * place(rank).2,
            &|rank| place(rank).0 + tensor * (place(rank).1 / 2 + data * place(rank).2),
            &|rank| place(rank).2,
            &|rank| rank % (tensor * data),
            &|_| 0,
        ];
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut kinds_of_groups: Vec<Vec<usize>> = Vec::new();
        for kind in kinds {
            let mut of_kind = Vec::new();
            for key in 0..size * 2 {
                let members: Vec<_> = (0..size).filter(|rank| kind(*rank) == key).collect();
                if members.len() > 1 {
                    of_kind.push(groups.len());
                    groups.push(members);
                }
            }
            kinds_of_groups.push(of_kind);
        }
        let mut ranks = vec![Rank::default(); size];
        let operations =
            ["all_reduce [4] float", "all_gather", "all_to_all", ASYNCHRONOUS, ONE_SIDED];
        for _ in 0..4 + draw(random, 10) {
            let kind = draw(random, kinds_of_groups.len());
            let operation = operations[draw(random, operations.len())];
            for group in &kinds_of_groups[kind] {
                if draw(random, 5) > 0 {
                    for rank in &groups[*group] {
                        ranks[*rank].calls.push((*group, operation));
                    }
                }
            }
        }
        for rank in &mut ranks {
            rank.launched = vec![(0, "", true); groups.len()];
        }
        let per_node = [1, 2, 4, 8][draw(random, 4)];
        Self { groups, ranks, fault: Fault::Slow, per_node }
    }

    /// Plants a fault. Returns false if the job has no place for it.
    pub(super) fn plant(&mut self, random: &mut Jitter, kind: usize) -> bool {
        let rank = draw(random, self.ranks.len());
        let calls = self.ranks[rank].calls.len();
        let call = draw(random, calls);
        if calls < 2 {
            return false;
        }
        self.fault = match kind {
            0 => Fault::Stops { rank, call },
            1 => Fault::Calls { rank, call },
            2 if call > 0 => {
                let calls = &mut self.ranks[rank].calls;
                if calls[call].0 == calls[call - 1].0 {
                    return false;
                }
                calls.swap(call, call - 1);
                Fault::Swaps { rank, call }
            }
            2 => return false,
            3 => {
                let group = self.ranks[rank].calls[call].0;
                let before = self.ranks[rank].calls[..=call].iter();
                let number = before.filter(|(other, _)| *other == group).count() as u64;
                Fault::Network { group, number }
            }
            _ => Fault::Slow,
        };
        if let Fault::Calls { rank, call } = self.fault {
            self.ranks[rank].calls[call].1 = OTHER;
        }
        true
    }

    /// Moves a random rank. Returns false if none can move.
    fn step(&mut self, random: &mut Jitter) -> bool {
        let first = draw(random, self.ranks.len());
        (0..self.ranks.len()).any(|offset| self.advance((first + offset) % self.ranks.len()))
    }

    /// Moves that often, or until nothing can move.
    pub(super) fn steps(&mut self, random: &mut Jitter, steps: usize) {
        for _ in 0..steps {
            self.step(random);
        }
    }

    /// Moves until nothing can move.
    pub(super) fn settle(&mut self, random: &mut Jitter) {
        while self.step(random) {}
    }

    fn advance(&mut self, rank: usize) -> bool {
        let Rank { calls, made, is_in_call, .. } = &self.ranks[rank];
        let (made, is_in_call) = (*made, *is_in_call);
        let Some((group, operation)) = calls.get(made).copied() else { return false };
        if !is_in_call {
            if self.fault == (Fault::Stops { rank, call: made }) {
                return false;
            }
            let rank = &mut self.ranks[rank];
            rank.launched[group] = (rank.launched[group].0 + 1, operation, false);
            rank.is_in_call = operation != ASYNCHRONOUS;
            rank.made += usize::from(!rank.is_in_call);
            return true;
        }
        if !self.can_finish(rank, group, operation) {
            return false;
        }
        let rank = &mut self.ranks[rank];
        (rank.is_in_call, rank.made) = (false, made + 1);
        rank.launched[group].2 = true;
        true
    }

    fn can_finish(&self, rank: usize, group: usize, operation: &str) -> bool {
        let number = self.ranks[rank].launched[group].0;
        // Each collective of a group waits for the one before it.
        if let Fault::Network { group: stuck, number: first } = self.fault
            && stuck == group
            && number >= first
        {
            return false;
        }
        let has_called = |other: &usize| {
            let (reached, called, _) = self.ranks[*other].launched[group];
            reached > number || reached == number && called == operation
        };
        let members = &self.groups[group];
        if operation == ONE_SIDED {
            return rank == members[0] || has_called(&members[0]);
        }
        members.iter().all(has_called)
    }

    /// Returns true if a rank waits.
    pub(super) fn is_stuck(&self) -> bool {
        self.ranks.iter().any(|rank| rank.is_in_call)
    }

    /// Returns the numbers of the last launches of all ranks. They change also if a rank finishes one.
    pub(super) fn launches(&self) -> Vec<u64> {
        let launches = self.ranks.iter().flat_map(|rank| &rank.launched);
        launches.map(|launch| 2 * launch.0 + u64::from(launch.2)).collect()
    }

    /// Returns true if a collective that the rank has launched is not finished by all others.
    pub(super) fn is_open(&self, rank: usize) -> bool {
        let launched = self.ranks[rank].launched.iter().enumerate();
        let mut open = launched.filter(|(_, (_, operation, _))| *operation == ASYNCHRONOUS);
        open.any(|(group, (_, operation, _))| !self.can_finish(rank, group, operation))
    }

    /// Returns the facts of the coordinator.
    pub(super) fn own(&self) -> Own {
        let nodes = self.ranks.chunks(self.per_node).enumerate().map(|(index, ranks)| RankedNode {
            host: format!("n{index}"),
            first: GlobalRank((index * self.per_node) as u32),
            workers: ranks.len() as u32,
        });
        Own { round: ROUND, look: LOOK, nodes: nodes.collect(), ..Own::default() }
    }

    /// Returns the digests of all nodes.
    pub(super) fn digests(&self, part: LookPart) -> Vec<Digest> {
        let all: Vec<_> = (0..self.ranks.len()).collect();
        let mut digests = Vec::new();
        for ranks in all.chunks(self.per_node) {
            let mut groups = Vec::new();
            for group in 0..self.groups.len() {
                groups.extend(self.look(group, ranks));
            }
            let workers = ranks.iter().map(|rank| self.worker(*rank)).collect();
            digests.push(Digest { workers, groups, ..Digest::new(ROUND, LOOK, part) });
        }
        digests
    }

    fn worker(&self, rank: usize) -> WorkerLook {
        let is_in_call = self.ranks[rank].is_in_call;
        WorkerLook {
            rank: GlobalRank(rank as u32),
            activity: Some(if is_in_call { Activity::Collective } else { Activity::Other }),
            ..WorkerLook::default()
        }
    }

    /// Returns the launches of some ranks in a group; `None` if none of them is a member.
    fn look(&self, group: usize, ranks: &[usize]) -> Option<GroupLook> {
        let mut launched: Vec<Launched> = Vec::new();
        for rank in ranks.iter().filter(|rank| self.groups[group].contains(rank)) {
            let (number, operation, is_finished) = self.ranks[*rank].launched[group];
            let is_finished = is_finished
                || operation == ASYNCHRONOUS && self.can_finish(*rank, group, operation);
            let same = launched.iter_mut().find(|other| {
                (other.number, other.operation.as_str(), other.is_finished)
                    == (number, operation, is_finished)
            });
            let rank = GlobalRank(*rank as u32);
            if let Some(same) = same {
                same.count += 1;
                same.ranks.push(rank);
            } else {
                let operation = operation.to_owned();
                launched.push(Launched {
                    operation,
                    number,
                    is_finished,
                    count: 1,
                    ranks: vec![rank],
                });
            }
        }
        (!launched.is_empty()).then(|| GroupLook {
            name: format!("g{group}"),
            size: self.groups[group].len() as u32,
            launched,
        })
    }
}
