//! Chooses colours. Each of them repeats what a word states.

use ragent_rendezvous::snapshot::NodeStateName;
use ratatui::style::{Color, Modifier, Style};

/// The colours of the view.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::commands::top) struct Palette {
    /// False if `NO_COLOR` is set.
    pub(in crate::commands::top) has_colors: bool,
}

impl Palette {
    pub(super) fn plain(self) -> Style {
        Style::new()
    }

    pub(super) fn faint(self) -> Style {
        self.of(Color::DarkGray)
    }

    pub(super) fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn good(self) -> Style {
        self.of(Color::Green)
    }

    pub(super) fn warning(self) -> Style {
        self.of(Color::Yellow)
    }

    pub(super) fn fault(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of a node's state.
    pub(super) fn state(self, state: NodeStateName) -> Style {
        match state {
            NodeStateName::Lost | NodeStateName::Failed => self.fault(),
            NodeStateName::Quarantined
            | NodeStateName::Unhealthy
            | NodeStateName::Excluded
            | NodeStateName::Leaving
            | NodeStateName::Stopping => self.warning(),
            NodeStateName::Running | NodeStateName::Succeeded => self.good(),
            NodeStateName::Preparing
            | NodeStateName::Joined
            | NodeStateName::Waiting
            | NodeStateName::Spare => self.plain(),
        }
    }

    /// Returns the style of an event.
    pub(super) fn event(self, kind: &str) -> Style {
        match kind {
            "worker_failed" | "node_lost" | "failure_charged" => self.fault(),
            "round_ended"
            | "node_quarantined"
            | "node_refused"
            | "store_clients_refused"
            | "coordinator_took_over"
            | "recovering" => self.warning(),
            "workers_started" | "first_progress" | "recovered" => self.good(),
            _ => self.plain(),
        }
    }

    fn of(self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }
}
