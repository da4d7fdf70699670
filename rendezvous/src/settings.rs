//! What the machine is told once, at its start.

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

use crate::{
    ids::{GroupRank, JobUid, NodeId, Round, RunId, Term},
    limits,
    message::Outcome,
};

/// How many nodes a round may have: `--nnodes`.
///
/// Invariant: `1 <= min <= max`, and both are multiples of `unit`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NodeRange {
    min: NonZeroU32,
    max: NonZeroU32,
    unit: NonZeroU32,
}

impl NodeRange {
    /// A range from `min` to `max`, or nothing if it would be empty.
    pub fn new(min: u32, max: u32) -> Option<Self> {
        Self::in_units(min, max, 1)
    }

    /// The multiples of `unit` from `min` to `max`, or nothing if there are none.
    pub fn in_units(min: u32, max: u32, unit: u32) -> Option<Self> {
        let (min, unit) = (NonZeroU32::new(min)?, NonZeroU32::new(unit)?);
        let min = NonZeroU32::new(min.get().checked_next_multiple_of(unit.get())?)?;
        let max = NonZeroU32::new(max / unit * unit.get())?;
        (min <= max).then_some(Self { min, max, unit })
    }

    /// The fewest nodes with which a round completes.
    pub fn min(self) -> u32 {
        self.min.get()
    }

    /// The most nodes that a round takes; further ones are spares.
    pub fn max(self) -> u32 {
        self.max.get()
    }

    /// The number of nodes of each round is a multiple of this.
    pub fn unit(self) -> u32 {
        self.unit.get()
    }

    /// How many of `nodes` a round takes; the others are spares.
    pub fn fit(self, nodes: usize) -> usize {
        let unit = self.unit.get() as usize;
        nodes.min(self.max.get() as usize) / unit * unit
    }
}

impl fmt::Display for NodeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { min, max, unit } = self;
        if min == max {
            write!(f, "{min}")
        } else if unit.get() == 1 {
            write!(f, "{min}:{max}")
        } else {
            write!(f, "{min}:{max}:{unit}")
        }
    }
}

impl FromStr for NodeRange {
    type Err = NodeRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: &str| part.trim().parse::<u32>().map_err(|_| NodeRangeError::Format);
        let numbers = text.split(':').map(number).collect::<Result<Vec<_>, _>>()?;
        let (min, max, unit) = match numbers[..] {
            [n] => (n, n, 1),
            [min, max] => (min, max, 1),
            [min, max, unit] => (min, max, unit),
            _ => return Err(NodeRangeError::Format),
        };
        if Self::new(min, max).is_none() {
            return Err(NodeRangeError::Empty { min, max });
        }
        Self::in_units(min, max, unit).ok_or(NodeRangeError::NoMultiple { min, max, unit })
    }
}

/// Why a text is no [`NodeRange`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NodeRangeError {
    /// The numbers are there, but no count of nodes satisfies them.
    #[error("needs 1 <= MIN <= MAX, got {min}:{max}")]
    Empty {
        /// The lower bound as given.
        min: u32,
        /// The upper bound as given.
        max: u32,
    },
    /// The text is none of `N`, `MIN:MAX` and `MIN:MAX:UNIT`.
    #[error("is none of `N`, `MIN:MAX` and `MIN:MAX:UNIT`")]
    Format,
    /// No multiple of the unit lies between the bounds.
    #[error("leaves no number of nodes: no multiple of {unit} lies from {min} to {max}")]
    NoMultiple {
        /// The lower bound as given.
        min: u32,
        /// The upper bound as given.
        max: u32,
        /// The unit as given.
        unit: u32,
    },
}

/// The waits of a rendezvous; all nodes of a job must agree on them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Timeouts {
    /// How long nodes wait for a round that does not come to be.
    pub join: Duration,
    /// How long the first gathering waits for further nodes once `min` are there.
    pub last_call: Duration,
    /// How long after the first newcomer a running round is interrupted for all of them.
    pub join_settle: Duration,
    /// How long a group that would shrink waits for a replacement.
    pub shrink: Duration,
    /// How long workers may take to end after SIGTERM.
    pub stop_grace: Duration,
}

impl Timeouts {
    /// How long a member may take to be ready again after a restart was announced.
    pub fn rejoin(&self) -> Duration {
        self.stop_grace.saturating_add(REJOIN_MARGIN)
    }
}

/// What a node needs beyond its stop grace to be ready again.
const REJOIN_MARGIN: Duration = Duration::from_secs(5);

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            join: Duration::from_secs(600),
            last_call: Duration::from_secs(30),
            join_settle: Duration::from_secs(3),
            shrink: Duration::from_secs(5),
            stop_grace: Duration::from_secs(30),
        }
    }
}

/// What all nodes of a job must have been told alike; sent whole, so that a refusal can show both.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SharedSettings {
    /// How many nodes a round may have.
    pub nodes: NodeRange,
    /// How many failures of the job are followed by a new round.
    pub max_restarts: u32,
    /// The waits.
    pub timeouts: Timeouts,
    /// Whether each node's group rank is its `--node-rank`, as with torchrun's static backend.
    pub fixed_ranks: bool,
    /// The access rule of the workers' store.
    pub store_access: StoreAccess,
}

/// The access rule of the workers' store: `--store-access`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum StoreAccess {
    /// Addresses of the round's members, and on its own host the agent's user.
    #[default]
    Members,
    /// All connections.
    Any,
}

impl fmt::Display for StoreAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Members => "members",
            Self::Any => "any",
        })
    }
}

/// What one coordinator's machine is built from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// The job.
    pub run_id: RunId,
    /// Names this start of the coordinator.
    pub coordinator: String,
    /// The node that runs in the coordinator's own process, if any.
    pub host: Option<NodeId>,
    /// What all must share; a coordinator that runs alone learns it from the first attend.
    pub shared: Option<SharedSettings>,
    /// Keeps the charges of a run of which no member attends for the next one: set where a service manager
    /// starts both, and not a user who wants the job to run once more.
    pub keeps_charges: bool,
    /// How long a silent node counts as alive, and how often it must send a keep-alive; stretched once
    /// `shared` is known, by the most nodes of a round.
    pub leases: Leases,
}

/// How attendance is timed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Leases {
    /// How often an agent sends a keep-alive.
    pub keep_alive_interval: Duration,
    /// Agent's side, from the sending of the last echoed keep-alive: its keeper kills then.
    pub agent: Duration,
    /// Coordinator's side, from receipt: the node is lost then.
    pub coordinator: Duration,
}

impl Leases {
    /// These leases, stretched to what a job of so many nodes needs. Agents and coordinator compute the
    /// same.
    pub fn for_nodes(self, nodes: NodeRange) -> Self {
        limits::leases(self, nodes)
    }

    /// How many times longer than by default an agent's lease is: 1 in a job of up to about a thousand
    /// nodes, and constant for the life of a job. An agent that scales its own time-outs of the
    /// connection (redial, suspicion) by this factor loads the coordinator of a large job no more than
    /// its keep-alives do.
    pub fn stretch(&self) -> f64 {
        self.agent.as_secs_f64() / Self::default().agent.as_secs_f64()
    }
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            keep_alive_interval: Duration::from_millis(300),
            agent: Duration::from_millis(2400),
            coordinator: Duration::from_millis(3000),
        }
    }
}

/// What outlives a coordinator's process, in its state file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Memory {
    /// The run that these belong to.
    pub job_uid: JobUid,
    /// The term of the coordinator that wrote this.
    pub term: Term,
    /// The newest round that it completed; zero if none.
    pub round: Round,
    /// How many nodes that round had.
    pub round_size: u32,
    /// The round was learned from a node: this coordinator neither completed it nor found it in its state
    /// file as one that it had completed.
    pub is_adopted: bool,
    /// The seat in it of the node in the coordinator's own process, if that was a member.
    pub host: Option<HostSeat>,
    /// Failures charged so far.
    pub restarts_used: u32,
    /// The last round that was charged.
    pub charged_through: Round,
    /// How often machines failed or were lost early; at most 64.
    pub host_tallies: Vec<HostTally>,
    /// Rounds in a row that were followed by another one for free, and did not run for a quiet time.
    pub free_rounds: u32,
    /// The same of rounds that ended shortly after their start.
    pub early_free_rounds: u32,
    /// The newest round had run for less than a minute when this was written.
    pub is_early: bool,
    /// How the job ended, from then until everyone has heard it.
    pub closed: Option<Outcome>,
}

/// The member of a round that runs in the coordinator's own process, and ends with it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostSeat {
    /// Its rank.
    pub rank: GroupRank,
    /// The agent that had it.
    pub node: NodeId,
    /// Whether it is known that nothing of that agent runs any more.
    pub is_buried: bool,
}

/// How often a machine failed or was lost shortly after a start, whichever agent it had.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostTally {
    /// Its host name.
    pub host_name: String,
    /// Its address, by which machines of one name differ.
    pub address: String,
    /// Recent early failures and losses.
    pub strikes: u32,
    /// Early losses, which are free.
    pub early_losses: u32,
}

impl Memory {
    /// The memory of a job that has just begun.
    pub fn fresh(job_uid: JobUid) -> Self {
        Self {
            job_uid,
            term: Term(0),
            round: Round(0),
            round_size: 0,
            is_adopted: false,
            host: None,
            restarts_used: 0,
            charged_through: Round(0),
            host_tallies: Vec::new(),
            free_rounds: 0,
            early_free_rounds: 0,
            is_early: false,
            closed: None,
        }
    }
}
