//! Describes a node with all of its known properties, and lists the events of a node or worker.

use ragent_base::report::{status_text::table, time_text::short_time};
use ragent_proto::printable_line;
use ragent_rendezvous::snapshot::NodeSnapshot;
use serde::Serialize;

use crate::commands::events::JournalEntry;

/// The number of events in a list, newest first.
const EVENTS_MAX: usize = 20;

/// Returns a line for each known property of a node.
pub(super) fn of_node(node: &NodeSnapshot) -> String {
    let NodeSnapshot {
        node_id,
        host_name,
        address,
        observed,
        agent_port,
        group_rank,
        first_global_rank,
        local_world_size,
        state,
        last_seen_ms,
        reason,
        progress,
        progress_age_ms,
        standbys,
        load,
        unhealthy,
        excluded,
    } = node;
    let ranks = first_global_rank.map(|first| {
        let last = first.0.saturating_add(local_world_size.saturating_sub(1));
        format!("{first} to {last}")
    });
    let rows = [
        ("state", Some(state.name().to_owned())),
        ("reason", reason.clone()),
        ("unhealthy", unhealthy.clone()),
        ("excluded", excluded.clone()),
        ("host", Some(host_name.clone())),
        ("node id", Some(node_id.to_string())),
        ("address", Some(address.clone())),
        ("seen from", observed.map(|address| address.to_string())),
        ("agent's port", Some(agent_port.to_string())),
        ("group rank", group_rank.map(|rank| rank.to_string())),
        ("workers", Some(local_world_size.to_string())),
        ("their ranks", ranks),
        ("seen", Some(format!("{} ago", short_time(*last_seen_ms)))),
        ("progress", progress.clone()),
        ("last step", progress_age_ms.map(|age| format!("{} ago", short_time(age)))),
        ("standbys", standbys.as_ref().map(table::standbys)),
        ("machine", load.as_ref().map(|load| format!("{load} when it registered"))),
    ];
    let rows = rows.into_iter().filter_map(|(name, value)| Some((name, value?)));
    rows.map(|(name, value)| format!("{name:<14} {}\n", printable_line(&value))).collect()
}

/// An event of a node or worker.
#[derive(Debug, Serialize)]
pub(super) struct Happened {
    id: String,
    /// The local time of day.
    at: String,
    kind: String,
    text: String,
}

impl Happened {
    /// Returns the newest events that fit, newest first.
    pub(super) fn newest(
        entries: &[JournalEntry],
        fits: impl Fn(&JournalEntry) -> bool,
    ) -> Vec<Self> {
        let fitting = entries.iter().rev().filter(|entry| fits(entry)).take(EVENTS_MAX);
        fitting
            .map(|entry| Self {
                id: entry.id.to_string(),
                at: entry.time_of_day(),
                kind: entry.kind.clone(),
                text: entry.text.clone(),
            })
            .collect()
    }

    /// Returns the events as lines below a title. Empty if there are none.
    pub(super) fn list(events: &[Self]) -> String {
        if events.is_empty() {
            return String::new();
        }
        let line = |event: &Self| format!("  {}  {}\n", event.at, printable_line(&event.text));
        format!("Events, newest first:\n{}", events.iter().map(line).collect::<String>())
    }
}
