//! Writes the texts that are shown in place of the lists.

use ragent_base::report::{outcome_text, stacks_text, time_text::short_time};
use ragent_proto::printable_line;
use ragent_rendezvous::{event::EventId, snapshot::NodeSnapshot};

use super::{
    model::{Model, Pane},
    text,
};
use crate::commands::{
    events::JournalEntry,
    explain::{self, Happened},
};

/// Returns the title of the text that is shown. Empty if there is no text.
pub(super) fn title(model: &Model) -> String {
    match &model.pane {
        None => String::new(),
        Some(Pane::Node(node)) => format!("node {}", node.host_name),
        Some(Pane::Event(id)) => format!("event {id}"),
        Some(Pane::Explain) => "explanation".to_owned(),
        Some(Pane::Stacks) => "stacks".to_owned(),
        Some(Pane::Outcome) => "outcome".to_owned(),
        Some(Pane::Help) => "help".to_owned(),
    }
}

/// Returns the lines of the text that is shown, each in at most `width` columns.
pub(super) fn lines(model: &Model, width: u16) -> Vec<String> {
    let text = match &model.pane {
        None => String::new(),
        Some(Pane::Node(node)) => of_node(node, model),
        Some(Pane::Event(id)) => of_event(*id, model.events.entries()),
        Some(Pane::Explain) => model.explanation.clone(),
        Some(Pane::Stacks) => of_stacks(model),
        Some(Pane::Outcome) => of_outcome(model),
        Some(Pane::Help) => HELP.to_owned(),
    };
    text::wrap(&text, usize::from(width))
}

const HELP: &str = "\
Up, Down, PageUp, PageDown, Home, End
               choose a row, or scroll a text
Enter          on a row of several nodes: show each of them, or the row again
               on a node or an event: show everything about it
Tab            change between nodes and events
/              find the next host whose name contains a text; without a text, the last one
f              show only unusual nodes, or all: lost, failed, quarantined, unhealthy, excluded or leaving nodes, nodes that lack standbys, and those \
whose state differs from that of most nodes
s              sort by state (unusual first), rank, host, or the time since the last message
e              explain the job: what it waits for, restarts and their cost, what would help
k              look at all workers, and show where each is; again for another look
?              this text
Esc            back
q, Ctrl-C      quit; the job goes on

The column `seen` is the time since the last message of a node, as of the last change of the job's state. \
The bars after the step are the step rates since the start of this command, relative to the highest of them.";

/// Returns everything that is known about a node.
fn of_node(node: &NodeSnapshot, model: &Model) -> String {
    let mut text = explain::of_node(node);
    if model.node(&node.node_id).is_none() {
        text += "\nThe job does not have this node any more.\n";
    }
    let is_about = |entry: &JournalEntry| entry.host.as_ref() == Some(&node.host_name);
    let events = Happened::list(&Happened::newest(model.events.entries(), is_about));
    if !events.is_empty() {
        text += &format!("\n{events}");
    }
    text
}

fn of_stacks(model: &Model) -> String {
    let Some(look) = &model.snapshot.look else {
        return "No node has looked at the workers of this round yet.\n".to_owned();
    };
    let age = short_time(look.age_ms.saturating_add(model.age_ms()));
    format!("{age} ago:\n\n{}", stacks_text::text(look, &[]))
}

fn of_event(id: EventId, entries: &[JournalEntry]) -> String {
    let by_id = |id: EventId| {
        let at = entries.binary_search_by_key(&id, |entry| entry.id).ok()?;
        entries.get(at)
    };
    let Some(entry) = by_id(id) else { return "The event is not kept any more.\n".to_owned() };
    let JournalEntry { at, round, kind, text, .. } = entry;
    let mut lines = format!("{text}\n\nat      {at}\nround   {round}\nkind    {kind}\n");
    if let Some(host) = &entry.host {
        lines += &format!("host    {host}\n");
    }
    if let Some(data) = entry.data.as_object().filter(|data| !data.is_empty()) {
        let data: Vec<String> =
            data.iter().map(|(name, value)| format!("{name}={value}")).collect();
        lines += &format!("data    {}\n", data.join(" "));
    }
    if let Some(cause) = entry.cause {
        lines += "\nCaused by:\n";
        lines += &by_id(cause).map_or_else(|| format!("event {cause}\n"), line);
    }
    let effects: String =
        entries.iter().filter(|other| other.cause == Some(id)).map(line).collect();
    if !effects.is_empty() {
        lines += &format!("\nHas caused:\n{effects}");
    }
    lines
}

fn line(entry: &JournalEntry) -> String {
    format!("{}  {}\n", entry.time_of_day(), printable_line(&entry.text))
}

fn of_outcome(model: &Model) -> String {
    let snapshot = &model.snapshot;
    match &snapshot.outcome {
        Some(outcome) => outcome_text::closed(outcome, snapshot.run_id.as_str()),
        None => String::new(),
    }
}
