//! The effects of an election, for its driver.

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
    /// Try the coordinator at this address, and report the result to [`HostChoice::handle_joined`],
    /// [`HostChoice::handle_not_joined`], [`HostChoice::handle_own_place`] or [`HostChoice::handle_refused`].
    Try(SocketAddr),
    /// Continue the host at this address of this machine, or report to [`HostChoice::handle_not_continued`].
    Continue(SocketAddr),
    /// Do not try this address any more.
    Drop(SocketAddr),
    /// End the search: the coordinator at this address has refused this agent, and a present agent names it.
    GiveUp(SocketAddr),
    /// Send this to the agent at this address, if datagrams to all do not reach it.
    Answer(SocketAddr, SearchMessage),
    /// Send this to the agent at one of these addresses, to all only if datagrams to one may not reach it.
    Send(Vec<SocketAddr>, SearchMessage),
    /// Answer the agents at these addresses that this agent is present, each with its nonces.
    Present(BTreeMap<SocketAddr, Vec<u64>>),
    /// Ask the host at this address, of the same job: one of the two is to step down.
    AskRival(SocketAddr),
}
