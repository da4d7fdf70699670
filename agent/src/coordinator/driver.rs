//! Drives the rendezvous machine: one task, and nothing in its loop waits for anyone.
//!
//! A stream whose reader does not keep up is dropped; its agent attends anew, and both sides repeat
//! what holds.

use std::{collections::BTreeMap, path::PathBuf};

use ragent_proto::convert::FromCoordinator;
use ragent_rendezvous::{
    Rendezvous,
    effect::Effect,
    ids::{NodeId, Peer},
    message::{Attend, FromNode, ToNode},
    settings::Memory,
    snapshot::Snapshot,
};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, warn};

use crate::{clock, limits, state_file};

/// What reaches the coordinator.
#[derive(Debug)]
pub enum Input {
    /// A stream has been opened, and this was its first message.
    Attend {
        /// The message.
        attend: Box<Attend>,
        /// Where answers go.
        answers: mpsc::Sender<FromCoordinator>,
    },
    /// A stream has said something more.
    Message(Peer, FromNode),
    /// A stream has ended.
    Detached(Peer),
    /// A keeper has told that its agent is gone and nothing of it is left.
    Obituary(NodeId),
    /// Somebody wants to know how the job stands.
    Snapshot(oneshot::Sender<Snapshot>),
    /// The process has been told to end.
    Shutdown,
}

/// A way to reach the coordinator's machine.
pub type Inputs = mpsc::Sender<Input>;

/// Drives `rendezvous` until its job is over and everyone knows, or until nobody can reach it.
pub async fn drive(
    mut rendezvous: Rendezvous,
    mut inputs: mpsc::Receiver<Input>,
    state_file: Option<PathBuf>,
) {
    let mut streams = Streams::default();
    loop {
        while let Some(effect) = rendezvous.poll_effect() {
            debug!(?effect, "rendezvous");
            match effect {
                Effect::Send { to, message } => streams.send(&to, message),
                Effect::Remember(memory) => remember(state_file.as_ref(), &memory),
                Effect::Finish => return streams.close().await,
            }
        }
        let deadline = rendezvous.poll_timeout();
        tokio::select! {
            // Inputs first: a coordinator that was stalled reads what has come meanwhile before it
            // expires anybody. The machine's deadlines are far apart compared with one input.
            biased;
            input = inputs.recv() => match input {
                Some(input) => handle(&mut rendezvous, &mut streams, input),
                None => return,
            },
            () = clock::until(deadline) => rendezvous.handle_timeout(clock::now()),
        }
    }
}

fn handle(rendezvous: &mut Rendezvous, streams: &mut Streams, input: Input) {
    let now = clock::now();
    match input {
        Input::Attend { attend, answers } => {
            streams.open(attend.peer(), answers);
            rendezvous.handle_attend(now, *attend);
        }
        Input::Message(peer, message) => rendezvous.handle_message(now, peer, message),
        Input::Detached(peer) => {
            streams.0.remove(&peer);
            rendezvous.handle_detached(now, peer);
        }
        Input::Obituary(node) => rendezvous.handle_obituary(now, &node),
        // Whoever asked may have gone.
        Input::Snapshot(answer) => drop(answer.send(rendezvous.snapshot(now))),
        Input::Shutdown => rendezvous.handle_shutdown(now),
    }
}

fn remember(state_file: Option<&PathBuf>, memory: &Memory) {
    let Some(path) = state_file else { return };
    if let Err(error) = state_file::write_memory(path, memory) {
        warn!(path = %path.display(), %error, "the state of the job cannot be written; a restarted \
               coordinator will not know it");
    }
}

/// The open streams. Each has a bounded queue and a task that writes it out.
#[derive(Default)]
struct Streams(BTreeMap<Peer, mpsc::Sender<FromCoordinator>>);

impl Streams {
    fn open(&mut self, peer: Peer, answers: mpsc::Sender<FromCoordinator>) {
        self.0.insert(peer, answers);
    }

    fn send(&mut self, to: &Peer, message: ToNode) {
        let refused = matches!(message, ToNode::Refuse(_));
        let Some(answers) = self.0.get(to) else { return };
        let failed = answers.try_send(FromCoordinator::Message(message)).is_err();
        if failed {
            debug!(node = %to.node, "stream dropped: its reader does not keep up, or is gone");
        }
        if failed || refused {
            self.0.remove(to);
        }
    }

    /// Lets the last words leave.
    async fn close(self) {
        let closed = async {
            for answers in self.0.values() {
                // Its capacity is whole again once everything has been taken.
                let _ = answers.reserve_many(limits::STREAM_QUEUE).await;
            }
        };
        let _ = tokio::time::timeout(limits::FAREWELL_TIMEOUT, closed).await;
    }
}
