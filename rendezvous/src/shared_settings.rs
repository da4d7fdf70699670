//! Defines the settings that all nodes of a job share, and the leases that follow from them.

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

use crate::limits;

/// The numbers of nodes that a round may have: `--nnodes`.
///
/// Invariant: `1 <= min <= max`, and both are multiples of `unit`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NodeRange {
    min: NonZeroU32,
    max: NonZeroU32,
    unit: NonZeroU32,
}

impl NodeRange {
    /// Returns the range from `min` to `max`, or `None` if it would be empty.
    pub fn new(min: u32, max: u32) -> Option<Self> {
        Self::in_units(min, max, 1)
    }

    /// Returns the multiples of `unit` from `min` to `max`, or `None` if there are none.
    pub fn in_units(min: u32, max: u32, unit: u32) -> Option<Self> {
        let (min, unit) = (NonZeroU32::new(min)?, NonZeroU32::new(unit)?);
        let min = NonZeroU32::new(min.get().checked_next_multiple_of(unit.get())?)?;
        let max = NonZeroU32::new(max / unit * unit.get())?;
        (min <= max).then_some(Self { min, max, unit })
    }

    /// Returns the fewest nodes with which a round can be completed.
    pub fn min(self) -> u32 {
        self.min.get()
    }

    /// Returns the most nodes that a round takes. Further nodes are spares.
    pub fn max(self) -> u32 {
        self.max.get()
    }

    /// Returns the unit. The number of nodes of each round is a multiple of it.
    pub fn unit(self) -> u32 {
        self.unit.get()
    }

    /// Returns the number of nodes that a round takes out of `nodes`. The others are spares.
    pub fn fit(self, nodes: usize) -> usize {
        let unit = self.unit.get() as usize;
        nodes.min(self.max.get() as usize) / unit * unit
    }

    /// Returns the number of nodes that a job serves, members and spares: a tenth more than a round takes.
    ///
    /// Leases are sized by this number, so it must not change during the job. Otherwise, a member could have
    /// a longer lease than the time for which others wait for it.
    pub(crate) fn served(self) -> usize {
        let max = self.max() as usize;
        max.saturating_add(max.div_ceil(10)).clamp(limits::NODES_SERVED_MIN, limits::NODES_MAX)
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

/// The error of a text that is not a valid [`NodeRange`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NodeRangeError {
    /// The numbers are valid, but no number of nodes satisfies them.
    #[error("must satisfy 1 <= MIN <= MAX")]
    Empty {
        /// The lower bound as given.
        min: u32,
        /// The upper bound as given.
        max: u32,
    },
    /// The text is not of the form `N`, `MIN:MAX` or `MIN:MAX:UNIT`.
    #[error("is not of the form `N`, `MIN:MAX` or `MIN:MAX:UNIT`")]
    Format,
    /// No multiple of the unit lies between the bounds.
    #[error("allows no number of nodes: no multiple of {unit} is between {min} and {max}")]
    NoMultiple {
        /// The lower bound as given.
        min: u32,
        /// The upper bound as given.
        max: u32,
        /// The unit as given.
        unit: u32,
    },
}

/// The timeouts of a rendezvous. All nodes of a job must have the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Timeouts {
    /// The time that nodes wait for a round that is not completed.
    pub join: Duration,
    /// The time that the first gathering waits for more nodes once `min` are ready.
    pub last_call: Duration,
    /// The time from the first newcomer to the interruption of a running round for all newcomers.
    pub join_settle: Duration,
    /// The time that a group which would shrink waits for a replacement.
    pub shrink: Duration,
    /// The time that workers have to end after SIGTERM.
    pub stop_grace: Duration,
}

impl Timeouts {
    /// Returns the time that a member has to be ready again after a restart was announced.
    pub fn rejoin(&self) -> Duration {
        self.stop_grace.saturating_add(REJOIN_MARGIN)
    }
}

/// The time that a node has beyond its stop grace to be ready again.
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

/// The settings that all nodes of a job must share. They are sent in full, so that a refusal can show both.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SharedSettings {
    /// The numbers of nodes that a round may have.
    pub nodes: NodeRange,
    /// The number of failures of the job that are followed by a new round.
    pub max_restarts: u32,
    /// The timeouts.
    pub timeouts: Timeouts,
    /// True if each node's group rank is its `--node-rank`, as with torchrun's static backend.
    pub fixed_ranks: bool,
    /// The access rule of the workers' store.
    pub store_access: StoreAccess,
    /// The longest time for a checkpoint after a notice: `--notice`. If zero, nothing waits for one.
    pub notice: Duration,
    /// The number of failures without a new step after which the job is closed: `--no-progress-limit`. Zero
    /// if it never is.
    pub no_progress_limit: u32,
    /// True if the coordinator decides which worker hangs: `--hang-timeout auto`.
    pub hang_auto: bool,
    /// The number of copies of each checkpoint in memory on other nodes: `--memory-copies`. At most
    /// [`MEMORY_COPIES_MAX`].
    pub memory_copies: u32,
    /// True under the name `torchrun`: then a spare takes no place of a node whose worker has failed, and progress forgives no failure.
    pub as_torchrun: bool,
}

/// The most copies of a checkpoint in memory.
pub const MEMORY_COPIES_MAX: u32 = 1;

impl SharedSettings {
    /// Returns the settings of a job with these numbers of nodes, without any restart, limit or time for
    /// checkpoints.
    pub fn new(nodes: NodeRange) -> Self {
        Self {
            nodes,
            max_restarts: 0,
            timeouts: Timeouts::default(),
            fixed_ranks: false,
            store_access: StoreAccess::default(),
            notice: Duration::ZERO,
            no_progress_limit: 0,
            hang_auto: false,
            memory_copies: MEMORY_COPIES_MAX,
            as_torchrun: false,
        }
    }
}

/// The access rule of the workers' store: `--store-access`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, strum::Display)]
#[strum(serialize_all = "snake_case")]
pub enum StoreAccess {
    /// Addresses of the round's members, and on the store's own host the agent's user.
    #[default]
    Members,
    /// All connections.
    Any,
}

/// The leases and the keep-alive interval.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Leases {
    /// The interval at which an agent sends keep-alives.
    pub keep_alive_interval: Duration,
    /// The agent's lease, from the sending of the last echoed keep-alive. The keeper kills the workers at its
    /// end.
    pub agent: Duration,
    /// The coordinator's lease, from the receipt of the last message. The node is lost at its end.
    pub coordinator: Duration,
}

impl Leases {
    /// Returns these leases, scaled by one factor if all the nodes that the job serves would send more
    /// keep-alives than one coordinator handles. Agents and coordinator compute the same.
    pub fn for_nodes(self, nodes: NodeRange) -> Self {
        let nodes = u32::try_from(nodes.served()).unwrap_or(u32::MAX);
        let interval = Duration::from_secs(1) * nodes / limits::KEEP_ALIVES_PER_SECOND;
        if interval <= self.keep_alive_interval || self.keep_alive_interval.is_zero() {
            return self;
        }
        let factor = interval.as_secs_f64() / self.keep_alive_interval.as_secs_f64();
        Self {
            keep_alive_interval: interval,
            agent: self.agent.mul_f64(factor),
            coordinator: self.coordinator.mul_f64(factor),
        }
    }

    /// Returns the factor by which an agent's lease is longer than the default. It is 1 in a job of up to
    /// about a thousand nodes, and constant for the life of a job. An agent also scales its connection
    /// timeouts (redial, suspicion) by it, so that these load a large job's coordinator no more than the
    /// keep-alives do.
    pub fn factor(&self) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(max: u32) -> NodeRange {
        NodeRange::new(1, max).expect("a range")
    }

    /// Leases are as given up to 1,200 nodes including spares. Beyond that, they are scaled in proportion.
    #[test]
    fn leases_are_scaled_with_the_most_nodes() {
        let given = Leases::default();
        assert_eq!(given.for_nodes(up_to(1_090)), given);
        let without = Leases { keep_alive_interval: Duration::ZERO, ..given };
        assert_eq!(without.for_nodes(up_to(10_000)), without, "no keep-alives are sent");
        let scaled = given.for_nodes(up_to(10_000));
        assert_eq!(scaled.keep_alive_interval, Duration::from_millis(2_750));
        assert_eq!(scaled.agent, Duration::from_secs(22));
        assert_eq!(scaled.coordinator, Duration::from_millis(27_500));
        assert!((scaled.factor() - 55.0 / 6.0).abs() < 1e-9);
        assert!((given.factor() - 1.0).abs() < 1e-9);
    }

    /// A range is `N`, `MIN:MAX` or `MIN:MAX:UNIT`. Other texts are refused. The access rule is printed as its flag has it.
    #[test]
    fn ranges_are_read() {
        for (text, shown) in [("3", "3"), ("2:8", "2:8"), ("2:8:2", "2:8:2"), ("1:1", "1")] {
            assert_eq!(text.parse::<NodeRange>().unwrap().to_string(), shown);
        }
        assert_eq!("2:8:2".parse::<NodeRange>().unwrap().unit(), 2);
        for text in ["", "2:", "a:b", "1:2:3:4", "3:2", "0", "1:8:16"] {
            text.parse::<NodeRange>().unwrap_err();
        }
        assert_eq!(
            [StoreAccess::Members, StoreAccess::Any].map(|it| it.to_string()),
            ["members", "any"]
        );
    }

    /// Spares are a tenth of the most nodes, and at least as many as the default leases allow.
    #[test]
    fn number_of_nodes_served() {
        let served = [1, 1_000, 1_091, 10_000, u32::MAX].map(|max| up_to(max).served());
        assert_eq!(served, [1_200, 1_200, 1_201, 11_000, limits::NODES_MAX]);
    }
}
