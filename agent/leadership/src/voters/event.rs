//! Names the events that the connections of a voter report to its driver.

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
    /// The connection to this voter was lost, or could not be opened, for this reason.
    Lost(VoterAddress, String),
    /// The endpoint of this voter resolves to these addresses.
    Resolved(VoterAddress, Vec<IpAddr>),
    /// This voter has answered a request.
    Answer(VoterAddress, Box<VoterMessage<Answer>>),
    /// A request on the connection of this task, and the channel for the answer. The channel is dropped if there is no answer.
    Request(Id, Sender, Box<VoterMessage<Request>>, oneshot::Sender<Bytes>),
    /// The connection of this task is open and, if there is a secret, authenticated.
    Opened(Id),
    /// A process at this address has sent a message that does not belong to this election. Contains the reason, and what to do.
    Mismatch(IpAddr, String, &'static str),
    /// A process of another protocol version has shown this job.
    Shown(KnownJob),
}

/// The process at the other end of an accepted connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub ip: IpAddr,
    /// True if the process is on this machine and belongs to this user; `None` if it is on another machine.
    pub is_own_user: Option<bool>,
}
