//! Messages of agents, from their bytes to the coordinator.

use std::time::{Duration, Instant};

use ragent_base::{
    sys::clock,
    testing::{assert_shown, coordinator, frames, job_state},
};
use ragent_coordinator::client::reading::read_state;
use ragent_proto::{
    Message as _, Proof,
    convert::{FromAgent, FromCoordinator},
    v1,
};
use ragent_rendezvous::{
    Rendezvous,
    effect::Effect,
    grant::Grant,
    ids::{Peer, Term},
    message::ToNode,
    settings::JobState,
};

/// The number by which one message may raise a term or a round, and the round that it may begin.
const AHEAD_MAX: u64 = (1 << 20) + 1;

/// The time between two messages.
const STEP: Duration = Duration::from_millis(700);

/// The most messages of an input.
const MESSAGES_MAX: usize = 64;

/// Decodes messages of agents, and passes them to a coordinator. The first byte is odd if it was elected.
pub fn registration(input: &[u8]) {
    let Some((&kind, rest)) = input.split_first() else { return };
    let mut world = World::new(kind % 2 == 1);
    for frame in frames(rest).take(MESSAGES_MAX) {
        if let Some(message) = decode(frame) {
            world.handle(message);
        }
    }
}

fn decode(bytes: &[u8]) -> Option<FromAgent> {
    let message = FromAgent::try_from(v1::AgentMessage::decode(bytes).ok()?).ok()?;
    assert_shown(&message);
    let encoded = v1::AgentMessage::from(message.clone()).encode_to_vec();
    let again = v1::AgentMessage::decode(encoded.as_slice()).expect("it was encoded");
    assert_eq!(FromAgent::try_from(again).as_ref(), Ok(&message));
    Some(message)
}

struct World {
    rendezvous: Rendezvous,
    now: Instant,
    /// The stream that was opened last.
    peer: Option<Peer>,
    remembered: JobState,
}

impl World {
    fn new(is_elected: bool) -> Self {
        let now = clock::now();
        let until = now + Duration::from_secs(3600);
        let elected = Grant { term: Term(1 << 16), until, workers_until: now, former: None };
        let grant = is_elected.then_some(elected);
        let rendezvous = coordinator(now, job_state(), grant);
        let mut world = Self { rendezvous, now, peer: None, remembered: job_state() };
        world.check(1 << 16);
        world
    }

    fn handle(&mut self, message: FromAgent) {
        self.now += STEP;
        if self.rendezvous.poll_timeout().is_some_and(|due| due <= self.now) {
            self.rendezvous.handle_timeout(self.now);
            self.check(AHEAD_MAX);
        }
        match message {
            FromAgent::Registration { registration, .. } => {
                self.peer = Some(registration.peer());
                self.rendezvous.handle_registration(self.now, *registration);
            }
            FromAgent::Message(message) => {
                let Some(peer) = self.peer.clone() else { return };
                self.rendezvous.handle_message(self.now, peer, message);
            }
        }
        self.check(AHEAD_MAX);
    }

    /// Checks the effects and the status of the coordinator.
    fn check(&mut self, ahead_max: u64) {
        while let Some(effect) = self.rendezvous.poll_effect() {
            match effect {
                Effect::Remember(job_state) => {
                    let ahead = |new: u64, old: u64| new.saturating_sub(old);
                    let rounds = ahead(job_state.round.0, self.remembered.round.0);
                    let terms = ahead(job_state.term.0, self.remembered.term.0);
                    assert!(rounds <= ahead_max && terms <= ahead_max, "{job_state:?}");
                    self.remembered = *job_state;
                }
                Effect::Send { message, .. } => assert_accepted(message),
                Effect::HangUp { .. }
                | Effect::Record(_)
                | Effect::Resign { .. }
                | Effect::HandOver
                | Effect::Forget
                | Effect::Finish { .. } => {}
            }
        }
        assert_status_is_accepted(&self.rendezvous, self.now);
    }
}

/// Asserts that agents accept a message of the coordinator.
fn assert_accepted(message: ToNode) {
    let message = match message {
        ToNode::Welcome(welcome) => FromCoordinator::Welcomed(welcome, Proof([7; Proof::LEN])),
        message => FromCoordinator::Message(message),
    };
    let received = FromCoordinator::try_from(v1::CoordinatorMessage::from(message));
    assert_shown(&received.expect("agents accept the messages of coordinators"));
}

/// Asserts that the status of the job is accepted by `ragent status`.
pub(super) fn assert_status_is_accepted(rendezvous: &Rendezvous, now: Instant) {
    let json = serde_json::to_string(&rendezvous.snapshot(now)).expect("all keys are text");
    let received = read_state(&json);
    assert_shown(&received.expect("the status of a job is accepted"));
}
