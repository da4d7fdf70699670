//! Keeps a node out of a running job until its standbys have imported their modules.
//!
//! A new round interrupts all other nodes, and they would wait while the workers of this node import. So a
//! node that finds a running round becomes ready only when its standbys are ready. If nodes gather for a
//! round, waiting gains nothing: the import goes on in the round.
//!
//! The gate never closes again. If the round that was gathered is full, the node stays ready as a spare.

use std::time::Instant;

use ragent_rendezvous::message::WaitReason;

use super::{Agent, AgentState};
use crate::limits;

#[derive(Debug)]
pub(super) enum ImportGate {
    /// Standbys import modules.
    Closed {
        /// The port of the node's store, once that is open.
        store_port: Option<u16>,
        /// The time at which the gate opens in any case. Known once the node is registered.
        until: Option<Instant>,
    },
    Open,
}

impl ImportGate {
    pub(super) fn new(has_standbys: bool) -> Self {
        if has_standbys { Self::Closed { store_port: None, until: None } } else { Self::Open }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Closed { until, .. } => *until,
            Self::Open => None,
        }
    }
}

impl Agent {
    /// Notes that all standbys of this node are ready, or cannot be started.
    pub fn handle_standbys_settled(&mut self, now: Instant) {
        self.open_gate(now);
    }

    pub(super) fn start_gate_timeout(&mut self, now: Instant) {
        if let ImportGate::Closed { until, .. } = &mut self.gate {
            until.get_or_insert(now + limits::IMPORT_TIMEOUT);
        }
    }

    pub(super) fn handle_wait_at_gate(&mut self, now: Instant, reason: WaitReason) {
        if matches!(reason, WaitReason::Gathering | WaitReason::Recovering) {
            self.open_gate(now);
        }
    }

    pub(super) fn handle_gate_timeout(&mut self, now: Instant) {
        if self.gate.poll_timeout().is_some_and(|until| until <= now) {
            self.open_gate(now);
        }
    }

    /// Makes the node ready, with this store, unless it waits for its standbys or for a check of its machine.
    pub(super) fn pass_gate(&mut self, now: Instant, port: u16) {
        if self.health.is_checking {
            self.unchecked_store = Some(port);
            return;
        }
        match &mut self.gate {
            ImportGate::Closed { store_port, .. } => *store_port = Some(port),
            ImportGate::Open => {
                self.state = AgentState::Ready { store_port: port };
                self.send_report(now);
            }
        }
    }

    fn open_gate(&mut self, now: Instant) {
        let before = std::mem::replace(&mut self.gate, ImportGate::Open);
        if let (ImportGate::Closed { store_port: Some(port), .. }, AgentState::Preparing) =
            (before, &self.state)
        {
            self.pass_gate(now, port);
        }
    }
}
