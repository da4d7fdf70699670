//! Lists the effects of the choice of a host, for its driver.

use std::{collections::BTreeMap, net::SocketAddr};

#[cfg(doc)]
use super::HostChoice;
use crate::endpoint::search::datagram::SearchMessage;

/// An action for the driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Effect {
    /// Send this to all agents.
    Broadcast(SearchMessage),
    /// Host the endpoint, and report its address to [`HostChoice::handle_hosting`].
    Host,
    /// Try the coordinator at this address. Report the result to [`HostChoice::handle_joined`], [`HostChoice::handle_not_joined`],
    /// [`HostChoice::handle_own_place`] or [`HostChoice::handle_refused`].
    Try(SocketAddr),
    /// Continue the host at this address of this machine, or report to [`HostChoice::handle_not_continued`].
    Continue(SocketAddr),
    /// Stop trying this address.
    Drop(SocketAddr),
    /// End the search: the coordinator at this address has refused this agent, and a present agent names it.
    GiveUp(SocketAddr),
    /// Send this to the agent at this address, if broadcasts do not reach it.
    Answer(SocketAddr, SearchMessage),
    /// Send this to the agent at one of these addresses. Broadcast it only if a datagram to one address may not arrive.
    Send(Vec<SocketAddr>, SearchMessage),
    /// Answer the agents at these addresses that this agent is present, with their nonces.
    Present(BTreeMap<SocketAddr, Vec<u64>>),
    /// Ask the host at this address, which has the same job. One of the two should step down.
    AskRival(SocketAddr),
}
