//! Defines the inputs and effects of [`Standbys`](super::Standbys), and its state as reported to the user.

use ragent_rendezvous::ids::LocalRank;

/// An event that concerns standbys.
///
/// A report about a slot without a standby is ignored, because the standby was used or dismissed in the
/// meantime. Its slot stays empty for at least [`STANDBY_IDLE`](crate::limits::STANDBY_IDLE), so that such a
/// report does not count for the slot's next standby.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Input {
    /// A standby has imported its modules and waits.
    Ready {
        /// The slot of the standby.
        slot: LocalRank,
        /// The memory that it shares with no other process.
        bytes: u64,
    },
    /// A standby was not started, because the system lacks processes or memory. This is the last report about
    /// it.
    NotStarted {
        /// The slot of the standby.
        slot: LocalRank,
        /// The system's error.
        reason: String,
    },
    /// A standby has ended without a round. This is the last report about it.
    Ended {
        /// The slot of the standby.
        slot: LocalRank,
        /// The way in which it ended.
        reason: String,
    },
    /// A module cannot be imported before a round. For example, it reads a variable of the round, holds a
    /// device, or its import fails. The standby has ended, and this is the last report about it.
    LeftOut {
        /// The slot of the standby that reported it.
        slot: LocalRank,
        /// The name of the module.
        module: String,
        /// The reason for leaving it out, as a clause.
        reason: String,
    },
    /// A worker that was a standby has reported that its script changes a variable which these modules
    /// had read.
    Unfit {
        /// The names of the modules.
        modules: Vec<String>,
        /// The place in the script and the variable, as a clause.
        reason: String,
    },
    /// The workers of a round are being started, from standbys if there are any.
    RoundStarted,
    /// A worker has sent a heartbeat.
    Progress,
    /// The workers of the round have ended.
    RoundEnded,
    /// The answer to [`Effect::ReadMemory`].
    Memory {
        /// The memory that is available to this node within the limits of its cgroups, in bytes.
        available: u64,
    },
    /// The memory that checkpoints in memory leave for standbys, in bytes, each second while this node holds
    /// checkpoints. It counts in place of [`Effect::ReadMemory`]. If it is 0, all standbys are dismissed. `None` if
    /// no checkpoints are held.
    Left(Option<u64>),
    /// The keeper is gone, and its standbys with it.
    KeeperLost,
}

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Effect {
    /// Start a standby in this slot, which imports [`Standbys::modules`](super::Standbys::modules).
    Stand(LocalRank),
    /// End the standby of this slot.
    Dismiss(LocalRank),
    /// Read the available memory. [`Input::Memory`] answers.
    ReadMemory,
    /// Report this to the user.
    Announce(StandbyNews),
    /// Reported once, when every slot has a ready standby or cannot have one, or when the first round has
    /// started.
    Settled,
}

/// A report to the user.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StandbyNews {
    /// All slots have a ready standby. Reported once.
    AllReady {
        /// The memory of the largest of them, in bytes.
        bytes: u64,
    },
    /// Standbys leave this module out from now on. Reported once for each module.
    LeftOut {
        /// The name of the module.
        module: String,
        /// The reason for leaving it out, as a clause.
        reason: String,
    },
    /// Standbys leave these modules out from now on, because the script changes a variable that they read.
    Unfit {
        /// The names of the modules.
        modules: Vec<String>,
        /// The place in the script and the variable, as a clause.
        reason: String,
    },
    /// The import of a standby did not finish in time, so the standby was ended. Reported once.
    ImportTimedOut {
        /// The slot of the standby.
        slot: LocalRank,
        /// The modules that standbys import.
        modules: Vec<String>,
    },
    /// Slots stay empty.
    Prevented(Obstacle),
    /// [`Obstacle::MemoryShort`] has been overcome.
    MemorySufficient,
    /// [`Obstacle::NotStarted`] has been overcome: a process was started.
    StartsSucceed,
}

/// The reason why slots stay empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Obstacle {
    /// The slot's standbys kept ending before a round. Permanent.
    Ends {
        /// The slot.
        slot: LocalRank,
        /// The way in which the last of them ended.
        reason: String,
    },
    /// Less memory is available than a start requires. Temporary.
    MemoryShort {
        /// The available memory, in bytes.
        available: u64,
        /// The required memory, in bytes.
        required: u64,
    },
    /// The system lacks processes or memory for a new process. Temporary.
    NotStarted {
        /// The system's error.
        reason: String,
    },
    /// No module is left to import. Permanent, for all slots.
    NoModule,
}

/// The numbers of standbys by state.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Standbys that wait for a round.
    pub ready: u32,
    /// Standbys that import modules.
    pub importing: u32,
    /// Slots.
    pub size: u32,
    /// The reason why slots stay empty; `None` if none do, or if they will be filled at the next opportunity.
    pub obstacle: Option<Obstacle>,
}
