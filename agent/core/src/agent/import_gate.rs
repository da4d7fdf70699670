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
        /// The port of the node's store, once that is open.
        store_port: Option<u16>,
        /// True if the node was ready with that store before.
        was_offered: bool,
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

impl ImportGate {
    pub(super) fn new(has_standbys: bool) -> Self {
        if has_standbys {
            Self::Closed { store_port: None, was_offered: false, until: None }
        } else {
            Self::Open
        }
    }

    /// Removes the store with which the node was ready before the gate closed, and returns its port.
    pub(super) fn take_offered(&mut self) -> Option<u16> {
        match self {
            Self::Closed { store_port, was_offered: true, .. } => store_port.take(),
            Self::Closed { .. } | Self::OpenForGathering { .. } | Self::Open => None,
        }
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
                    self.gate = ImportGate::Closed {
                        store_port: Some(store_port),
                        was_offered: true,
                        until,
                    };
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
            ImportGate::Closed { store_port, was_offered, .. } => {
                (*store_port, *was_offered) = (Some(port), false);
            }
            ImportGate::OpenForGathering { .. } | ImportGate::Open => {
                self.state = AgentState::Ready { store_port: port };
                self.send_report(now);
            }
        }
    }

    /// Makes the node ready again with the store that it offered before the gate closed. The coordinator has admitted it before it
    /// received the report that the node is not ready.
    pub(super) fn offer_again(&mut self) {
        let ImportGate::Closed { until, .. } = self.gate else { return };
        if let Some(store_port) = self.gate.take_offered() {
            self.gate = ImportGate::OpenForGathering { until };
            self.state = AgentState::Ready { store_port };
        }
    }

    fn open_gate(&mut self, now: Instant) {
        self.leave_gate(now, ImportGate::Open);
    }

    fn leave_gate(&mut self, now: Instant, gate: ImportGate) {
        // Without a coordinator, an admission to the store that the node has offered may have been lost.
        let is_kept = self.state == AgentState::Preparing && self.disconnected.is_some();
        if is_kept && self.replace_offered_store() {
            self.gate = gate;
            return;
        }
        let before = std::mem::replace(&mut self.gate, gate);
        if let (ImportGate::Closed { store_port: Some(port), .. }, AgentState::Preparing) =
            (before, &self.state)
        {
            self.pass_gate(now, port);
        }
    }
}
