//! Lists the effects of the choice of a host, for its driver.

use std::{collections::BTreeSet, net::SocketAddr};

#[cfg(doc)]
use super::HostChoice;

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Effect {
    /// Send [`HostChoice::announcement`] to all agents, and to those at these addresses that a broadcast may not reach.
    Send(BTreeSet<SocketAddr>),
    /// Ask the agent at this address for its part, and report to [`HostChoice::handle_answer`].
    Dial(SocketAddr),
    /// Host, at an own address.
    Host,
    /// Continue the host at this own address, or report to [`HostChoice::handle_not_continued`].
    Continue(SocketAddr),
    /// Join the host at this address.
    Join(SocketAddr),
    /// End the search, because the only agent that has answered does not accept this one.
    GiveUp,
    /// Step down for the host at this address.
    StepDown(SocketAddr),
    /// Show this agent's job to the other host at this address. The flag is true if its job has begun, too.
    Show(SocketAddr, bool),
}
