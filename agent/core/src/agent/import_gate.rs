//! Keeps a node out of a running job until its standbys have imported their modules.
//!
//! A new round interrupts all other nodes, and they would wait while the workers of this node import. So a
//! node that finds a running round becomes ready only when its standbys are ready. If nodes gather for a
//! round, waiting gains nothing: the import goes on in the round.

use std::time::Instant;

use ragent_rendezvous::message::WaitReason;

use super::{Agent, AgentState};
use crate::limits;

#[derive(Debug)]
pub(super) enum ImportGate {
    /// Standbys import modules.
    Closed {
        /// The port of a new store, once that is open.
        store_port: Option<u16>,
        /// The time at which the gate opens in any case. Known once the node is registered.
        until: Option<Instant>,
    },
    /// Standbys import modules, but nodes gather for a round.
    OpenForGathering {
        /// The gate does not close again after this time.
        until: Option<Instant>,
    },
    Open,
}

/// The store with which the node was ready before the gate closed.
#[derive(Debug)]
pub(super) struct WithdrawnStore {
    port: u16,
    /// True if a stream has ended since then. An admission may have been lost with it. The next stream begins with that admission, or with
    /// another assignment if its round is over. Then workers may have connected to the store.
    is_in_doubt: bool,
}

impl ImportGate {
    pub(super) fn new(has_standbys: bool) -> Self {
        if has_standbys { Self::Closed { store_port: None, until: None } } else { Self::Open }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Closed { until, .. } => *until,
            Self::OpenForGathering { .. } | Self::Open => None,
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
        match (reason, &self.gate) {
            (WaitReason::Gathering | WaitReason::Recovering, &ImportGate::Closed { until, .. }) => {
                self.leave_gate(now, ImportGate::OpenForGathering { until });
            }
            // The round that was gathered runs without this node.
            (
                WaitReason::NextRound | WaitReason::Spare,
                &ImportGate::OpenForGathering { until },
            ) => {
                if let AgentState::Ready { store_port } = self.state
                    && until.is_some_and(|until| now < until)
                {
                    self.gate = ImportGate::Closed { store_port: None, until };
                    self.withdrawn = Some(WithdrawnStore { port: store_port, is_in_doubt: false });
                    self.state = AgentState::Preparing;
                    self.send_report(now);
                }
            }
            (
                _,
                ImportGate::Closed { .. } | ImportGate::OpenForGathering { .. } | ImportGate::Open,
            ) => {}
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
            ImportGate::OpenForGathering { .. } | ImportGate::Open => {
                self.state = AgentState::Ready { store_port: port };
                self.send_report(now);
            }
        }
    }

    /// Makes the node ready again with the store that it has withdrawn. The coordinator has admitted it before it received the report that
    /// the node is not ready.
    pub(super) fn offer_again(&mut self) {
        let Some(WithdrawnStore { port, .. }) = self.withdrawn.take() else { return };
        if let ImportGate::Closed { until, .. } = self.gate {
            self.gate = ImportGate::OpenForGathering { until };
        }
        self.state = AgentState::Ready { store_port: port };
    }

    /// Notes that a stream has ended.
    pub(super) fn doubt_withdrawn_store(&mut self) {
        if let Some(withdrawn) = &mut self.withdrawn {
            withdrawn.is_in_doubt = true;
        }
    }

    /// Replaces a withdrawn store to which workers may have connected.
    pub(super) fn replace_store_in_doubt(&mut self) {
        if self.withdrawn.as_ref().is_some_and(|withdrawn| withdrawn.is_in_doubt) {
            self.replace_offered_store();
        }
    }

    fn open_gate(&mut self, now: Instant) {
        self.leave_gate(now, ImportGate::Open);
    }

    fn leave_gate(&mut self, now: Instant, gate: ImportGate) {
        let before = std::mem::replace(&mut self.gate, gate);
        let (ImportGate::Closed { store_port, .. }, AgentState::Preparing) = (before, &self.state)
        else {
            return;
        };
        if let Some(port) = store_port {
            self.pass_gate(now, port);
        } else if let Some(withdrawn) = self.withdrawn.take_if(|withdrawn| !withdrawn.is_in_doubt) {
            self.state = AgentState::Ready { store_port: withdrawn.port };
            self.send_report(now);
        }
    }
}
