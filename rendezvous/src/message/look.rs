//! Describes looks at the workers of a stalled job.
//!
//! 1. The coordinator asks all nodes of the round for a look ([`Look`] in a [`Guidance`](super::Guidance)). It
//!    has two parts, ten seconds apart: what changes between them is slow, and does not hang.
//! 2. For each part, a node looks at all its workers at once, and sends a [`Digest`].
//! 3. The coordinator explains the digests in a sentence. With `--hang-timeout auto`, it may name a worker that
//!    is to be killed ([`Hung`]).
//!
//! A digest contains no lines of Python in a job on several machines that has neither a secret nor certificates.

use std::time::Duration;

use crate::ids::{GlobalRank, RoundId};

/// The longest encoded [`Digest`], in bytes: a coordinator receives 10,000 of them within two seconds.
pub const DIGEST_MAX: usize = 2048;

/// The most workers in a [`Digest`].
pub const DIGEST_WORKERS_MAX: usize = 64;

/// The most groups in a [`Digest`].
pub const DIGEST_GROUPS_MAX: usize = 32;

/// The most different collectives of one group in a [`Digest`].
pub const LAUNCHES_MAX: usize = 8;

/// The most ranks in one list of a [`Digest`].
pub const LISTED_RANKS_MAX: usize = 32;

/// The most facts in a [`Digest`].
pub const FACTS_MAX: usize = 4;

/// The longest name of a group or a collective, in bytes.
pub const GROUP_NAME_MAX: usize = 64;

/// A look at all workers of a round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Look {
    /// Its number. It grows with each look of a coordinator.
    pub number: u64,
    /// The newest part that is due.
    pub part: LookPart,
}

/// A part of a look.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum LookPart {
    /// At the begin.
    First,
    /// Ten seconds later.
    Second,
}

/// A worker that counts as hung. Its node kills it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Hung {
    /// The worker.
    pub rank: GlobalRank,
    /// The time without progress.
    pub time: Duration,
    /// True if the node kills it only after it was stopped (state `T`) for 30 seconds in a row.
    pub if_stopped: bool,
}

/// The answer of a node to one part of a look. The encoded form has at most [`DIGEST_MAX`] bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Digest {
    /// The round.
    pub round: RoundId,
    /// The number of the look.
    pub look: u64,
    /// The part of the look.
    pub part: LookPart,
    /// The workers, at most [`DIGEST_WORKERS_MAX`]. The most unusual ones come first.
    pub workers: Vec<WorkerLook>,
    /// Groups of ranks that communicate, at most [`DIGEST_GROUPS_MAX`].
    pub groups: Vec<GroupLook>,
    /// Facts about the hardware of the node, at most [`FACTS_MAX`] lines of [`LINE_MAX`](super::LINE_MAX) bytes.
    pub facts: Vec<String>,
    /// The folder with the workers' logs of this round, if their stacks are written there. It has a folder for each
    /// worker, named by its local rank. At most [`LINE_MAX`](super::LINE_MAX) bytes.
    pub logs: Option<String>,
    /// True if something was left out because there was too much of it. Then no rank is blamed.
    pub is_cut: bool,
}

impl Digest {
    /// Returns an answer without content.
    pub fn new(round: RoundId, look: u64, part: LookPart) -> Self {
        Self {
            round,
            look,
            part,
            workers: Vec::new(),
            groups: Vec::new(),
            facts: Vec::new(),
            logs: None,
            is_cut: false,
        }
    }
}

/// The state of a worker.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct WorkerLook {
    /// Its rank.
    pub rank: GlobalRank,
    /// Its activity; `None` if its stack cannot be read.
    pub activity: Option<Activity>,
    /// The state of its process, the letter of `ps`: for example `D` if the kernel waits for a disk, or `T` if it
    /// was stopped.
    pub state: Option<char>,
    /// True if it is connected to the round's store; `None` if that is not known.
    pub has_reached_store: Option<bool>,
    /// The innermost function and line of its script, such as `load_batch at data.py:88`. In a call of
    /// `torch.distributed`, the function is that one, and the line is that of the script, as in
    /// `all_reduce at train.py:7`. At most [`LINE_MAX`](super::LINE_MAX) bytes.
    pub line: Option<String>,
    /// The place where it waits in the kernel, such as `rpc_wait_bit_killable (NFS)`; at most
    /// [`LINE_MAX`](super::LINE_MAX) bytes.
    pub waits_in: Option<String>,
}

/// The activity of a worker, by the innermost function of its stack that belongs to `torch.distributed`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Activity {
    /// It calls a collective operation.
    Collective,
    /// It waits for an operation, for the store, or in `backward`, inside of which DDP runs collectives.
    Wait,
    /// No function of its stack belongs to `torch.distributed`.
    Other,
}

/// A group of ranks that communicate, and the newest collective of each.
///
/// A node describes its own workers, from the records of torch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GroupLook {
    /// A name that is the same on all nodes; at most [`GROUP_NAME_MAX`] bytes.
    pub name: String,
    /// The number of its ranks.
    pub size: u32,
    /// The newest collectives, each with the ranks that have launched it as their last one; at most
    /// [`LAUNCHES_MAX`].
    pub launched: Vec<Launched>,
}

/// A collective that some ranks of a group have launched as their last one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Launched {
    /// Its name, with size and type of its data if they are known, such as `all_reduce [1024] float`; at most
    /// [`GROUP_NAME_MAX`] bytes. Empty if these ranks have launched none.
    pub operation: String,
    /// Its number in the group, from one; zero if these ranks have launched none.
    pub number: u64,
    /// True if these ranks have finished it.
    pub is_finished: bool,
    /// The number of these ranks.
    pub count: u32,
    /// These ranks, the first ones; at most [`LISTED_RANKS_MAX`], and no more than `count`.
    pub ranks: Vec<GlobalRank>,
}
