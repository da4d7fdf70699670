//! Drives the rendezvous machine: one task, whose loop waits for no agent.
//!
//! A stream whose reader does not keep up is dropped; its agent registers again, and both sides
//! repeat their state.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    net::IpAddr,
    path::PathBuf,
    time::Duration,
};

use ragent_proto::{
    Proof,
    convert::{FromCoordinator, NotHere},
};
use ragent_rendezvous::{
    Rendezvous,
    effect::Effect,
    ids::Peer,
    limits::NODES_MAX,
    message::{Assignment, Attend, FromNode, ToNode},
    snapshot::Snapshot,
};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, warn};

use super::{proofs::Proofs, remembering::Remembering, state_file::Obituary};
use crate::{
    limits,
    net::{connection::PeerAddress, port::Attended},
    spec::Endpoint,
    sys::{clock, host::ThisHost},
};

/// An input of the coordinator.
#[derive(Debug)]
pub(crate) enum Input {
    /// A stream was opened, and this is its first message.
    Attend {
        /// The message.
        attend: Box<Attend>,
        /// The proof of its node id.
        proof: Option<Proof>,
        /// The source address of the stream.
        from: Option<PeerAddress>,
        /// The queue of answers.
        answers: mpsc::Sender<FromCoordinator>,
        /// Notified if the attend is accepted; dropped if the node id belongs to another agent.
        taken: oneshot::Sender<()>,
    },
    /// A later message of a stream.
    Message(Peer, FromNode),
    /// A stream has ended.
    Detached(Peer),
    /// A keeper reports that its agent is gone and no process of the node is left, and the newest
    /// round that ran there.
    Obituary(Obituary),
    /// A request for the job's state.
    Snapshot(oneshot::Sender<Snapshot>),
    /// Another agent coordinates the same job there: this coordinator is to give way if it can.
    GiveWay(Endpoint),
    /// The process received a signal to end.
    Shutdown,
}

/// A queue of inputs for a coordinator.
pub(crate) type Inputs = mpsc::Sender<Input>;

/// Drives `rendezvous` until its job has ended and all nodes have the outcome, until it gives way
/// to another coordinator, named by `not_here`, or until no sender of inputs is left.
pub(crate) async fn drive(
    mut rendezvous: Rendezvous,
    mut inputs: mpsc::Receiver<Input>,
    state_file: Option<PathBuf>,
    not_here: watch::Sender<NotHere>,
    attended: watch::Sender<Attended>,
    proofs: Proofs,
) {
    let mut file = Remembering::new(state_file, proofs.key().clone());
    let mut streams = Streams { open: BTreeMap::new(), attended, proofs };
    let mut effects = VecDeque::new();
    let mut stalled_until = None;
    loop {
        while let Some(effect) = rendezvous.poll_effect() {
            debug!(?effect, "rendezvous");
            match effect {
                // Signs of life are never delayed.
                Effect::Send {
                    to,
                    message: message @ (ToNode::Echo { .. } | ToNode::Probe { .. }),
                } => {
                    streams.send(&to, message);
                }
                effect => effects.push_back(effect),
            }
        }
        while !file.is_awaited()
            && let Some(effect) = effects.pop_front()
        {
            match effect {
                Effect::Send { to, message } => streams.send(&to, message),
                Effect::HangUp { to } => streams.hang_up(&to),
                Effect::Remember(memory) => file.remember(memory, rendezvous.kept_for()),
                Effect::Finish { is_over } => {
                    // A later job of the same name must not recover a job that has ended.
                    if is_over {
                        file.forget().await;
                    }
                    return streams.close().await;
                }
            }
        }
        let deadline = rendezvous.poll_timeout();
        if deadline.is_none_or(|deadline| clock::now() < deadline) {
            stalled_until = None;
        }
        let due = deadline.map(|deadline| stalled_until.map_or(deadline, |at| deadline.max(at)));
        let (patience, touch_at) = (file.poll_timeout(), file.touch_at());
        tokio::select! {
            // Inputs first, so that received messages are handled before any node times out. A
            // flood of inputs cannot delay a deadline for long: the work for each input is bounded,
            // and so is the queue of each stream.
            biased;
            input = inputs.recv() => match input {
                Some(input) => handle(&mut rendezvous, &mut streams, &not_here, input),
                None => return,
            },
            () = file.written() => {}
            () = clock::until(patience) => file.handle_timeout(),
            () = clock::until(touch_at) => file.touch(),
            () = clock::until(due) => {
                let now = clock::now();
                let is_late = deadline.is_some_and(|deadline| deadline + STALL < now);
                if is_late && stalled_until.is_none() {
                    warn!(
                        "the coordinator was stalled; processing queued messages before any node \
                         times out"
                    );
                    let stretch = rendezvous.leases().stretch().max(1.0);
                    stalled_until = Some(now + limits::CATCH_UP.mul_f64(stretch));
                } else {
                    stalled_until = None;
                    rendezvous.handle_timeout(now);
                }
            }
        }
    }
}

fn handle(
    rendezvous: &mut Rendezvous,
    streams: &mut Streams,
    not_here: &watch::Sender<NotHere>,
    input: Input,
) {
    let now = clock::now();
    match input {
        Input::Attend { answers, .. } if answers.is_closed() => {
            // Its agent has stopped waiting: the answer would have no reader.
            debug!("registration ignored: its stream is closed");
        }
        // This comes first, since its stream may have the same name as that of another agent.
        Input::Attend { attend, proof, answers, .. }
            if !streams.proofs.admit(rendezvous.job_uid(), &attend, proof) =>
        {
            warn!(
                node = %attend.node.node_id,
                "registration refused: it lacks the proof of its node id"
            );
            // The stream ends with this answer.
            let _ = answers.try_send(FromCoordinator::OtherAgent);
        }
        Input::Attend { mut attend, from, answers, taken, .. } => {
            // The stream may have ended.
            let _ = taken.send(());
            // Its workers also have this address if the host is behind NAT.
            if let Some(PeerAddress { ip, is_here: false }) = from {
                attend.node.addresses.retain(|address| *address != ip);
                attend.node.addresses.insert(0, ip);
            }
            let observed = from.map(|from| observed(from, &attend.node.address));
            streams.open.insert(attend.peer(), Stream { answers, from, observed });
            rendezvous.handle_attend(now, *attend);
        }
        Input::Message(peer, message) => {
            if streams.open.contains_key(&peer) {
                streams.proofs.confirm(&peer.node, |node| rendezvous.knows(node));
            }
            rendezvous.handle_message(now, peer, message);
        }
        Input::Detached(peer) => {
            streams.open.remove(&peer);
            rendezvous.handle_detached(now, peer);
        }
        Input::Obituary(Obituary { node, round, proof }) => {
            if streams.proofs.are_of(rendezvous.job_uid(), &node, proof) {
                rendezvous.handle_obituary(now, &node, round);
            } else {
                debug!(%node, "obituary ignored: it lacks the proof of its node id");
            }
        }
        // The receiver may be gone.
        Input::Snapshot(answer) => {
            let mut snapshot = rendezvous.snapshot(now);
            streams.add_observed(&mut snapshot);
            drop(answer.send(snapshot));
        }
        Input::GiveWay(to) => {
            if let Some(term) = rendezvous.handle_rival(now) {
                let elsewhere = NotHere { term, endpoint: to.to_string() };
                not_here.send_replace(elsewhere.clone());
                streams.send_elsewhere(&elsewhere);
            }
        }
        Input::Shutdown => rendezvous.handle_shutdown(now),
    }
}

/// A deadline missed by more than this was missed because the whole process was stalled.
const STALL: Duration = Duration::from_millis(500);

/// Returns the source address of a node's stream. A stream from this machine may have any of its
/// addresses; then the announced address counts if it belongs to this machine, too.
fn observed(from: PeerAddress, named: &str) -> IpAddr {
    let named = named.parse().ok().filter(|named| from.is_here && ThisHost.owns(*named));
    named.unwrap_or(from.ip)
}

/// The open streams.
struct Streams {
    open: BTreeMap<Peer, Stream>,
    /// The addresses of welcomed nodes, published to the port.
    attended: watch::Sender<Attended>,
    proofs: Proofs,
}

/// An open stream, with a bounded queue and a task that writes it out.
struct Stream {
    answers: mpsc::Sender<FromCoordinator>,
    from: Option<PeerAddress>,
    observed: Option<IpAddr>,
}

impl Streams {
    fn send(&mut self, to: &Peer, message: ToNode) {
        let refused = matches!(message, ToNode::Refuse(_));
        let Some(stream) = self.open.get(to) else {
            return;
        };
        publish(&self.attended, stream.from, &message);
        if let ToNode::Assignment(Assignment::Admit(_)) = message {
            self.proofs.handle_admission();
        }
        let message = match message {
            ToNode::Welcome(welcome) => {
                let proof = self.proofs.of(&welcome.job_uid, &to.node);
                FromCoordinator::Welcomed(welcome, proof)
            }
            message => FromCoordinator::Message(message),
        };
        let failed = stream.answers.try_send(message).is_err();
        if failed {
            debug!(node = %to.node, "stream dropped: its queue is full or closed");
        }
        if failed || refused {
            self.open.remove(to);
        }
    }

    /// Adds the observed source address of each node's stream.
    fn add_observed(&self, snapshot: &mut Snapshot) {
        let observed: BTreeMap<_, _> =
            self.open.iter().map(|(peer, stream)| (&peer.node, stream.observed)).collect();
        for node in &mut snapshot.nodes {
            node.observed = observed.get(&node.node_id).copied().flatten();
        }
    }

    /// Ends a stream; its task drops the connection when it finds the queue closed.
    fn hang_up(&mut self, to: &Peer) {
        self.open.remove(to);
    }

    /// Sends the coordinator's new endpoint to all agents.
    fn send_elsewhere(&mut self, not_here: &NotHere) {
        // An agent that does not keep up registers again, and receives the endpoint then.
        self.open.retain(|_, stream| {
            stream.answers.try_send(FromCoordinator::NotHere(not_here.clone())).is_ok()
        });
    }

    /// Waits until the last messages are sent.
    async fn close(self) {
        let closed = async {
            for stream in self.open.values() {
                // The capacity is full again once all messages are taken.
                let _ = stream.answers.reserve_many(limits::STREAM_QUEUE).await;
            }
        };
        let _ = tokio::time::timeout(limits::FAREWELL_TIMEOUT, closed).await;
    }
}

/// Publishes the source address of a welcomed node, and the world size of a round, to the port.
fn publish(attended: &watch::Sender<Attended>, from: Option<PeerAddress>, message: &ToNode) {
    if let (ToNode::Welcome(_), Some(PeerAddress { ip, is_here: false })) = (message, from) {
        attended.send_if_modified(|attended| {
            // Bounded by the number of nodes; connections from further addresses count as unknown.
            attended.addresses.len() < NODES_MAX && attended.addresses.insert(ip)
        });
    }
    if let ToNode::Assignment(Assignment::Admit(admission)) = message {
        attended.send_if_modified(|attended| {
            let before = mem::replace(&mut attended.world_size, admission.world_size);
            before != admission.world_size
        });
    }
}

#[cfg(test)]
pub(crate) mod tests;
