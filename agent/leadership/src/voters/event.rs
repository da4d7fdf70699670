//! The events that the connections of a voter report to its driver.

use std::net::IpAddr;

use bytes::Bytes;
use ragent_election::election::message::{Answer, Request, VoterMessage};
use ragent_rendezvous::{ids::VoterAddress, known_job::KnownJob};
use tokio::{sync::oneshot, task::Id};

/// An event on a connection.
#[derive(Debug)]
pub(super) enum VoterEvent {
    /// A connection to this voter is open.
    Connected(VoterAddress),
    /// The connection to this voter is lost, or could not be opened, for this reason.
    Lost(VoterAddress, String),
    /// The endpoint of this voter has these addresses.
    Resolved(VoterAddress, Vec<IpAddr>),
    /// The answer of this voter to a request.
    Answer(VoterAddress, Box<VoterMessage<Answer>>),
    /// A request on the connection of this task, and the channel for the answer; dropped if the request has none.
    Request(Id, Sender, Box<VoterMessage<Request>>, oneshot::Sender<Bytes>),
    /// The connection that this task serves is open, and is authenticated if there is a secret.
    Opened(Id),
    /// A process at this address has sent a message that does not belong to this election, for this reason; and what to do.
    Mismatch(IpAddr, String, &'static str),
    /// A process of another protocol version has shown this job.
    Shown(KnownJob),
}

/// The process at the other end of an accepted connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub ip: IpAddr,
    /// True if it is on this machine, and belongs to the user of this process; `None` if it is on another machine.
    pub is_own_user: Option<bool>,
}
