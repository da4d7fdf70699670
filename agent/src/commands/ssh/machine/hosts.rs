//! Keeps the states of the hosts of a launch.

use std::mem;

use crate::commands::ssh::order::{AgentEnd, HostAddress, HostNumber};

/// The state of one host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum HostState {
    Reaching,
    Reached(HostAddress),
    Unreachable(String),
    Running,
    Ended(AgentEnd),
    /// The relay of the host is gone, and its agent with it.
    Lost(String),
}

impl HostState {
    /// Returns true if the host takes no part in the job any more, and its agent will not end by itself.
    pub(super) fn cannot_return(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::Lost(_)
            | Self::Ended(AgentEnd::NotStarted(_) | AgentEnd::Exited(USAGE)) => true,
            Self::Reaching
            | Self::Reached(_)
            | Self::Running
            | Self::Ended(AgentEnd::Exited(_) | AgentEnd::Signaled(_)) => false,
        }
    }
}

/// The exit code of an agent whose host lacks something in the command line.
const USAGE: i32 = 2;

/// The hosts of a launch, by number. Connections pass on only reports of known hosts.
#[derive(Debug)]
pub(super) struct Hosts {
    names: Vec<String>,
    states: Vec<HostState>,
    counts: HostCounts,
}

/// The numbers of hosts in the states that matter after each report.
#[derive(Debug, Default)]
struct HostCounts {
    reaching: usize,
    running: usize,
    succeeded: usize,
    cannot_return: usize,
}

impl HostCounts {
    /// Returns the count that includes hosts in this state.
    fn of(&mut self, state: &HostState) -> Option<&mut usize> {
        match state {
            HostState::Reaching => Some(&mut self.reaching),
            HostState::Running => Some(&mut self.running),
            HostState::Ended(AgentEnd::Exited(0)) => Some(&mut self.succeeded),
            state if state.cannot_return() => Some(&mut self.cannot_return),
            HostState::Reached(_)
            | HostState::Unreachable(_)
            | HostState::Ended(_)
            | HostState::Lost(_) => None,
        }
    }
}

impl Hosts {
    /// Creates the hosts. They are being reached.
    pub(super) fn new(names: Vec<String>) -> Self {
        let counts = HostCounts { reaching: names.len(), ..HostCounts::default() };
        Self { states: vec![HostState::Reaching; names.len()], names, counts }
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = HostNumber> + use<> {
        0..HostNumber::try_from(self.len()).unwrap_or(HostNumber::MAX)
    }

    pub(super) fn name(&self, host: HostNumber) -> &str {
        &self.names[host as usize]
    }

    pub(super) fn at(&self, host: HostNumber) -> &HostState {
        &self.states[host as usize]
    }

    pub(super) fn set(&mut self, host: HostNumber, state: HostState) {
        if let Some(count) = self.counts.of(&state) {
            *count += 1;
        }
        let before = mem::replace(&mut self.states[host as usize], state);
        if let Some(count) = self.counts.of(&before) {
            *count -= 1;
        }
    }

    /// Returns the number of hosts that are being reached.
    pub(super) fn reaching(&self) -> usize {
        self.counts.reaching
    }

    /// Returns the number of hosts whose agents run.
    pub(super) fn running(&self) -> usize {
        self.counts.running
    }

    /// Returns the number of hosts that may still take part.
    pub(super) fn may_return(&self) -> usize {
        self.len() - self.counts.cannot_return
    }

    /// Returns the hosts in the state `state`.
    pub(super) fn those(&self, state: &HostState) -> Vec<HostNumber> {
        self.numbers().filter(|host| self.at(*host) == state).collect()
    }

    /// Returns true if an agent has reported that the job has succeeded.
    pub(super) fn have_success(&self) -> bool {
        self.counts.succeeded > 0
    }

    /// Returns the hosts that were reached, with their addresses.
    pub(super) fn reached(&self) -> Vec<(HostNumber, HostAddress)> {
        let host_address = |host| match self.at(host) {
            HostState::Reached(host_address) => Some((host, host_address.clone())),
            HostState::Reaching
            | HostState::Unreachable(_)
            | HostState::Running
            | HostState::Ended(_)
            | HostState::Lost(_) => None,
        };
        self.numbers().filter_map(host_address).collect()
    }

    /// Returns the names of the hosts that cannot be reached, with the reasons.
    pub(super) fn unreachable(&self) -> Vec<(String, String)> {
        self.named(|state| match state {
            HostState::Unreachable(why) => Some(why.clone()),
            HostState::Reaching
            | HostState::Reached(_)
            | HostState::Running
            | HostState::Ended(_)
            | HostState::Lost(_) => None,
        })
    }

    /// Returns the names of the hosts whose agents have ended or are lost, each with the end or the reason of the loss.
    pub(super) fn ends(&self) -> Vec<(String, Result<AgentEnd, String>)> {
        self.named(|state| match state {
            HostState::Ended(end) => Some(Ok(end.clone())),
            HostState::Lost(why) => Some(Err(why.clone())),
            HostState::Reaching
            | HostState::Reached(_)
            | HostState::Unreachable(_)
            | HostState::Running => None,
        })
    }

    /// Returns the names of all hosts for which `select` has a result, with that result.
    fn named<T>(&self, select: impl Fn(&HostState) -> Option<T>) -> Vec<(String, T)> {
        let named = self.names.iter().zip(&self.states);
        named.filter_map(|(name, state)| Some((name.clone(), select(state)?))).collect()
    }
}
