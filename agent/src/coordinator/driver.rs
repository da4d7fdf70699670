//! Drives the rendezvous machine: one task, whose loop waits for no agent.
//!
//! A stream whose reader does not keep up is dropped; its agent registers again, and both sides
//! repeat their state.

use std::{collections::VecDeque, path::PathBuf, time::Instant};

use ragent_proto::{
    Proof,
    convert::{FromCoordinator, NotHere},
};
use ragent_rendezvous::{
    Rendezvous,
    effect::Effect,
    ids::Peer,
    message::{Attend, FromNode, ToNode},
    snapshot::Snapshot,
};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, warn};

use super::{
    peer_addresses::{add_source, observed},
    proofs::Proofs,
    stall::StallGuard,
    state_file::Obituary,
    state_writer::StateWriter,
    streams::{Stream, Streams},
};
use crate::{
    coordinator::limits,
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

/// Asks a coordinator for the state of its job; `None` if the coordinator has ended.
pub(crate) async fn snapshot(inputs: &Inputs) -> Option<Snapshot> {
    let (answer, snapshot) = oneshot::channel();
    inputs.send(Input::Snapshot(answer)).await.ok()?;
    snapshot.await.ok()
}

/// Drives `rendezvous` until its job has ended and all nodes have the outcome, until it gives way
/// to another coordinator, named by `not_here`, or until no sender of inputs is left.
pub(crate) async fn drive(
    rendezvous: Rendezvous,
    mut inputs: mpsc::Receiver<Input>,
    state_file: Option<PathBuf>,
    not_here: watch::Sender<NotHere>,
    attended: watch::Sender<Attended>,
    proofs: Proofs,
) {
    let mut driver = Driver {
        rendezvous,
        file: StateWriter::new(state_file),
        streams: Streams::new(attended, proofs),
        effects: VecDeque::new(),
        stall: StallGuard::default(),
        not_here,
    };
    loop {
        if let Some(is_over) = driver.carry_out_all() {
            return driver.finish(is_over).await;
        }
        let deadline = driver.rendezvous.poll_timeout();
        let due = driver.stall.due(clock::now(), deadline);
        let (patience, touch_at) = (driver.file.poll_timeout(), driver.file.touch_at());
        tokio::select! {
            // Inputs first, so that received messages are handled before any node times out. A
            // flood of inputs cannot delay a deadline for long: the work for each input is bounded,
            // and so is the queue of each stream.
            biased;
            input = inputs.recv() => match input {
                Some(input) => driver.handle(clock::now(), input),
                None => return,
            },
            () = driver.file.written() => {}
            () = clock::until(patience) => driver.file.handle_timeout(),
            () = clock::until(touch_at) => driver.file.touch(),
            () = clock::until(due) => driver.handle_due(clock::now(), deadline),
        }
    }
}

struct Driver {
    rendezvous: Rendezvous,
    streams: Streams,
    file: StateWriter,
    /// Effects that wait until the state file is written.
    effects: VecDeque<Effect>,
    stall: StallGuard,
    /// The endpoint of the job's coordinator, by the name that all nodes use.
    not_here: watch::Sender<NotHere>,
}

impl Driver {
    /// Carries out the effects of the machine, except those that wait for the state file. Returns
    /// `Some` after the last effect of the machine: true if the job is over.
    fn carry_out_all(&mut self) -> Option<bool> {
        while let Some(effect) = self.rendezvous.poll_effect() {
            debug!(?effect, "rendezvous");
            match effect {
                // Signs of life are never delayed.
                Effect::Send {
                    to,
                    message: message @ (ToNode::Echo { .. } | ToNode::Probe { .. }),
                } => self.streams.send(&to, message),
                effect => self.effects.push_back(effect),
            }
        }
        while !self.file.is_awaited()
            && let Some(effect) = self.effects.pop_front()
        {
            match effect {
                Effect::Send { to, message } => self.streams.send(&to, message),
                Effect::HangUp { to } => self.streams.close(&to),
                Effect::Remember(memory) => self.file.remember(memory, self.rendezvous.kept_for()),
                // A sole coordinator raises its own term, and never resigns or hands over.
                Effect::Resign { .. } | Effect::HandOver => return Some(false),
                Effect::Finish { is_over } => return Some(is_over),
            }
        }
        None
    }

    /// Ends the coordinator; `is_over` is true if its job has ended.
    async fn finish(self, is_over: bool) {
        // A later job of the same name must not recover a job that has ended.
        if is_over {
            self.file.forget().await;
        }
        self.streams.close_all().await;
    }

    fn handle_due(&mut self, now: Instant, deadline: Option<Instant>) {
        let stretch = self.rendezvous.leases().stretch().max(1.0);
        if self.stall.may_apply(now, deadline, limits::CATCH_UP.mul_f64(stretch)) {
            self.rendezvous.handle_timeout(now);
        } else {
            warn!(
                "the coordinator was stalled; processing queued messages before any node times out"
            );
        }
    }

    fn handle(&mut self, now: Instant, input: Input) {
        match input {
            Input::Attend { answers, .. } if answers.is_closed() => {
                // Its agent has stopped waiting: the answer would have no reader.
                debug!("registration ignored: its stream is closed");
            }
            // This comes first, since its stream may have the same name as that of another agent.
            Input::Attend { attend, proof, answers, .. }
                if !self.streams.proofs.admit(self.rendezvous.job_uid(), &attend, proof) =>
            {
                refuse(&attend, &answers);
            }
            Input::Attend { attend, from, answers, taken, .. } => {
                // The stream may have ended.
                let _ = taken.send(());
                self.register(now, *attend, from, answers);
            }
            Input::Message(peer, message) => {
                if self.streams.is_open(&peer) {
                    let is_known = |node: &_| self.rendezvous.knows(node);
                    self.streams.proofs.confirm(&peer.node, is_known);
                }
                self.rendezvous.handle_message(now, peer, message);
            }
            Input::Detached(peer) => {
                self.streams.close(&peer);
                self.rendezvous.handle_detached(now, peer);
            }
            Input::Obituary(obituary) => self.handle_obituary(now, &obituary),
            Input::Snapshot(answer) => {
                let mut snapshot = self.rendezvous.snapshot(now);
                self.streams.add_observed(&mut snapshot);
                // The receiver may be gone.
                drop(answer.send(snapshot));
            }
            Input::GiveWay(to) => self.give_way(now, &to),
            Input::Shutdown => self.rendezvous.handle_shutdown(now),
        }
    }

    fn register(
        &mut self,
        now: Instant,
        mut attend: Attend,
        from: Option<PeerAddress>,
        answers: mpsc::Sender<FromCoordinator>,
    ) {
        add_source(&mut attend.node.addresses, from);
        let is_own = |ip| ThisHost.owns(ip);
        let observed = from.map(|from| observed(from, &attend.node.address, is_own));
        self.streams.open(attend.peer(), Stream { answers, from, observed });
        self.rendezvous.handle_attend(now, attend);
    }

    fn handle_obituary(&mut self, now: Instant, Obituary { node, round, proof }: &Obituary) {
        if self.streams.proofs.are_of(self.rendezvous.job_uid(), node, *proof) {
            self.rendezvous.handle_obituary(now, node, *round);
        } else {
            debug!(%node, "obituary ignored: it lacks the proof of its node id");
        }
    }

    fn give_way(&mut self, now: Instant, to: &Endpoint) {
        if let Some(term) = self.rendezvous.handle_rival(now) {
            let elsewhere = NotHere { term, endpoint: to.to_string() };
            self.not_here.send_replace(elsewhere.clone());
            self.streams.send_elsewhere(&elsewhere);
        }
    }
}

/// Refuses a registration without the proof of its node id; the stream ends with this answer.
fn refuse(attend: &Attend, answers: &mpsc::Sender<FromCoordinator>) {
    warn!(
        node = %attend.node.node_id,
        "registration refused: it lacks the proof of its node id"
    );
    let _ = answers.try_send(FromCoordinator::OtherAgent);
}

#[cfg(test)]
pub(crate) mod tests;
