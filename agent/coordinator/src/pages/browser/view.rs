//! Turns the states of a job into messages for the page: the whole state at first, and then only changes.
//!
//! Every node has a slot, which stays the same while the node is known. A change contains the rows that differ. If only
//! the states of many nodes change, for example at a restart, it contains one letter for each slot instead.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt::Write as _,
    sync::{Arc, OnceLock},
};

use axum::body::Bytes;
use ragent_base::report::event_text;
use ragent_rendezvous::{
    event::RestartCause,
    ids::NodeId,
    snapshot::{NodeSnapshot, NodeStateName, Snapshot, Stall},
};
use serde::Serialize;

use crate::{
    limits,
    pages::{cache::JsonState, publisher},
};

/// A server-sent event, as it is sent.
type Message = Bytes;

/// One state of the page, for all its readers.
#[derive(Debug)]
pub(crate) struct PageFrame {
    number: u64,
    /// The difference to the previous state.
    change: Vec<Message>,
    all: OnceLock<Vec<Message>>,
    summary: Summary,
    events: Vec<Arc<str>>,
    rows: Vec<Option<Arc<PageRow>>>,
}

impl publisher::Frame for PageFrame {
    fn number(&self) -> u64 {
        self.number
    }

    fn after(&self, last: Option<u64>) -> &[Message] {
        if last.is_some_and(|last| last + 1 == self.number) {
            return &self.change;
        }
        self.all.get_or_init(|| {
            let every: Vec<_> = self
                .rows
                .iter()
                .enumerate()
                .filter_map(|(n, row)| Some((n, row.as_ref()?)))
                .collect();
            let states = NodeStateName::ALL.map(|name| (letter(name), name.name()));
            let causes = RestartCause::ALL.map(|cause| (cause.name(), event_text::cause(cause)));
            let head = format!(
                r#""states":{},"causes":{},"slots":{},"job":{},"events":[{}]"#,
                json(&states),
                json(&causes),
                self.rows.len(),
                self.summary.0,
                self.events.join(",")
            );
            messages("all", head, &every)
        })
    }
}

/// The state of the job without its nodes, as JSON.
#[derive(Clone, Debug)]
struct Summary(Arc<str>);

/// The content of the page. The states of the job are applied to it one after the other.
#[derive(Debug, Default)]
pub(crate) struct PageView {
    number: u64,
    /// The nodes by slot. A node keeps its slot while it is in the snapshot.
    rows: Vec<Option<Arc<PageRow>>>,
    slots: HashMap<NodeId, usize>,
    free: Vec<usize>,
    events: VecDeque<Arc<str>>,
}

/// A node, as the page shows it.
#[derive(Clone, Debug)]
struct PageRow {
    state: char,
    rest: Rest,
    /// The time since the last sign of life in milliseconds, if the node is silent. The page counts on from there.
    silent_ms: Option<u64>,
}

/// The values of a row without its state and its age.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Rest {
    group_rank: Option<u32>,
    first_rank: Option<u32>,
    workers: u32,
    host: String,
    address: String,
    standbys: Option<(u32, u32)>,
    reason: Option<String>,
    status: Option<String>,
    /// True if the job is stalled, and the workers of this node have not reached another step for as long.
    is_stalled: bool,
}

impl publisher::View for PageView {
    type Frame = PageFrame;

    fn apply(&mut self, state: &Arc<JsonState>, new_events: &[Arc<str>]) -> PageFrame {
        self.frame(&state.snapshot, new_events)
    }
}

impl PageView {
    fn frame(&mut self, snapshot: &Snapshot, new_events: &[Arc<str>]) -> PageFrame {
        self.number += 1;
        let gone = self.remove_missing(snapshot);
        let mut rows = Vec::new();
        let mut letters_only = Vec::new();
        for node in &snapshot.nodes {
            let row = PageRow::of(node, snapshot.stall.as_ref());
            let slot = self.slot_of(&node.node_id);
            match &self.rows[slot] {
                Some(old) if !old.differs(&row) && old.state == row.state => {}
                Some(old) if !old.differs(&row) => letters_only.push(slot),
                Some(_) | None => rows.push(slot),
            }
            self.rows[slot] = Some(Arc::new(row));
        }
        for event in new_events {
            self.events.push_back(Arc::clone(event));
        }
        let extra = self.events.len().saturating_sub(limits::PAGE_EVENTS);
        self.events.drain(..extra);
        let summary = Summary(json(&snapshot.without_nodes()).into());
        let mut head = format!(r#""job":{},"events":[{}]"#, summary.0, new_events.join(","));
        // Writing to a string does not fail.
        if letters_only.len() > self.rows.len() / 8 {
            let _ = write!(head, r#","letters":{}"#, json(&self.letters()));
        } else {
            rows.extend(letters_only);
        }
        if !gone.is_empty() {
            let _ = write!(head, r#","gone":{}"#, json(&gone));
        }
        let changed: Vec<_> =
            rows.into_iter().filter_map(|n| Some((n, self.rows[n].as_ref()?))).collect();
        PageFrame {
            number: self.number,
            change: messages("change", head, &changed),
            all: OnceLock::new(),
            summary,
            events: self.events.iter().cloned().collect(),
            rows: self.rows.clone(),
        }
    }

    /// Frees the slots of nodes that have left the snapshot, and returns these slots.
    fn remove_missing(&mut self, snapshot: &Snapshot) -> Vec<usize> {
        let present: HashSet<&NodeId> = snapshot.nodes.iter().map(|node| &node.node_id).collect();
        let missing: Vec<NodeId> =
            self.slots.keys().filter(|node| !present.contains(node)).cloned().collect();
        let mut gone: Vec<usize> =
            missing.iter().filter_map(|node| self.slots.remove(node)).collect();
        gone.sort_unstable();
        for slot in &gone {
            self.rows[*slot] = None;
            self.free.push(*slot);
        }
        gone
    }

    /// Returns the slot of a node. A new node gets a free one.
    fn slot_of(&mut self, node: &NodeId) -> usize {
        if let Some(slot) = self.slots.get(node) {
            return *slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.rows.push(None);
            self.rows.len() - 1
        });
        self.slots.insert(node.clone(), slot);
        slot
    }

    /// Returns the states of all slots, `-` for a free one.
    fn letters(&self) -> String {
        self.rows.iter().map(|row| row.as_ref().map_or('-', |row| row.state)).collect()
    }
}

impl PageRow {
    fn of(node: &NodeSnapshot, stall: Option<&Stall>) -> Self {
        let is_late = |age| stall.is_some_and(|stall| age >= stall.limit_ms);
        let is_silent = match node.state {
            NodeStateName::Lost => true,
            NodeStateName::Preparing
            | NodeStateName::Joined
            | NodeStateName::Running
            | NodeStateName::Stopping
            | NodeStateName::Failed
            | NodeStateName::Succeeded
            | NodeStateName::Leaving
            | NodeStateName::Waiting
            | NodeStateName::Spare
            | NodeStateName::Quarantined
            | NodeStateName::Unhealthy
            | NodeStateName::Excluded => node.last_seen_ms >= limits::PAGE_SILENCE_MS,
        };
        Self {
            state: letter(node.state),
            silent_ms: is_silent.then_some(node.last_seen_ms),
            rest: Rest {
                group_rank: node.group_rank.map(|rank| rank.0),
                first_rank: node.first_global_rank.map(|rank| rank.0),
                workers: node.local_world_size,
                host: node.host_name.clone(),
                address: node.address.clone(),
                standbys: node.standbys.as_ref().map(|standbys| (standbys.ready, standbys.size)),
                reason: node.why(),
                status: node.progress.clone(),
                is_stalled: node.progress_age_ms.is_some_and(is_late),
            },
        }
    }

    /// Returns true if the rows differ in more than state and age.
    fn differs(&self, other: &Self) -> bool {
        self.rest != other.rest || self.silent_ms.is_some() != other.silent_ms.is_some()
    }

    /// Returns the row as a JSON array, in the order in which the script reads it.
    fn json(&self, slot: usize) -> String {
        let Self { state, rest, silent_ms } = self;
        json(&(
            slot,
            state,
            rest.group_rank,
            rest.first_rank,
            rest.workers,
            &rest.host,
            &rest.address,
            rest.standbys,
            &rest.reason,
            &rest.status,
            rest.is_stalled,
            silent_ms,
        ))
    }
}

/// Returns the letter of a state, for messages and for the squares of the page.
fn letter(state: NodeStateName) -> char {
    match state {
        NodeStateName::Preparing => 'P',
        NodeStateName::Joined => 'J',
        NodeStateName::Running => 'R',
        NodeStateName::Stopping => 'T',
        NodeStateName::Failed => 'F',
        NodeStateName::Succeeded => 'D',
        NodeStateName::Leaving => 'E',
        NodeStateName::Waiting => 'W',
        NodeStateName::Spare => 'S',
        NodeStateName::Quarantined => 'Q',
        NodeStateName::Unhealthy => 'U',
        NodeStateName::Excluded => 'X',
        NodeStateName::Lost => 'L',
    }
}

/// Returns the messages with these fields and rows. The first is of kind `first`. Rows that do not fit follow in messages of kind `change`.
fn messages(first: &str, head: String, rows: &[(usize, &Arc<PageRow>)]) -> Vec<Message> {
    let mut messages = Vec::new();
    let (mut kind, mut body) = (first, head);
    body += r#","rows":["#;
    let mut is_empty = true;
    for (slot, row) in rows {
        let row = row.json(*slot);
        if !is_empty && body.len() + row.len() > limits::PAGE_PART {
            messages.push(message(kind, &body, true));
            (kind, body, is_empty) = ("change", r#""rows":["#.to_owned(), true);
        }
        if !is_empty {
            body.push(',');
        }
        body += &row;
        is_empty = false;
    }
    messages.push(message(kind, &body, false));
    messages
}

/// Returns a message. `has_more` is true if the next message belongs to the same state.
fn message(kind: &str, body: &str, has_more: bool) -> Message {
    format!("event: {kind}\ndata: {{{body}],\"more\":{has_more}}}\n\n").into()
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("all keys are text")
}

#[cfg(test)]
mod tests {
    use ragent_base::testing::empty_snapshot;
    use ragent_rendezvous::{ids::GroupRank, message::StandbyCounts};
    use serde_json::{Value, json};

    use super::{publisher::Frame as _, *};

    fn node(n: u32) -> NodeSnapshot {
        NodeSnapshot {
            node_id: NodeId::new(format!("id{n}")),
            host_name: format!("n{n}"),
            address: "10.0.0.1".to_owned(),
            observed: None,
            agent_port: 1,
            group_rank: Some(GroupRank(n)),
            first_global_rank: None,
            local_world_size: 8,
            state: NodeStateName::Running,
            last_seen_ms: 200,
            reason: None,
            progress: None,
            progress_age_ms: None,
            standbys: None,
            load: None,
            unhealthy: None,
            excluded: None,
        }
    }

    fn with_nodes(nodes: Vec<NodeSnapshot>) -> Snapshot {
        Snapshot { nodes, ..empty_snapshot() }
    }

    /// Returns the kind and the data of a message.
    fn parse(message: &Message) -> (String, Value) {
        let message = str::from_utf8(message).unwrap();
        let (kind, data) = message.split_once('\n').unwrap();
        let data = data.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
        assert!(!data.contains('\n'));
        let kind = kind.strip_prefix("event: ").unwrap().to_owned();
        (kind, serde_json::from_str(data).unwrap())
    }

    fn only(messages: &[Message]) -> Value {
        assert_eq!(messages.len(), 1);
        parse(&messages[0]).1
    }

    /// A page, as the script builds it from messages: the state letter and the host of each slot.
    #[derive(Debug, Default, Eq, PartialEq)]
    struct Built(Vec<Option<(String, String)>>);

    impl Built {
        fn apply(&mut self, messages: &[Message]) {
            for message in messages {
                let (kind, data) = parse(message);
                if kind == "all" {
                    let slots = data["slots"].as_u64().unwrap();
                    self.0 = vec![None; usize::try_from(slots).unwrap()];
                }
                let text = |value: &Value| value.as_str().unwrap().to_owned();
                let slot = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
                for gone in data["gone"].as_array().into_iter().flatten() {
                    self.0[slot(gone)] = None;
                }
                for row in data["rows"].as_array().unwrap() {
                    let slot = slot(&row[0]);
                    if slot >= self.0.len() {
                        self.0.resize(slot + 1, None);
                    }
                    self.0[slot] = Some((text(&row[1]), text(&row[5])));
                }
                if let Some(letters) = data["letters"].as_str() {
                    assert_eq!(letters.len(), self.0.len());
                    for (built, letter) in self.0.iter_mut().zip(letters.chars()) {
                        assert_eq!(built.is_none(), letter == '-');
                        if let Some((state, _)) = built {
                            *state = letter.to_string();
                        }
                    }
                }
            }
        }
    }

    /// A row has its values in the order in which the script reads them.
    #[test]
    fn rows_have_all_values() {
        let standbys = StandbyCounts { ready: 7, importing: 1, size: 8, obstacle: None };
        let lost = NodeSnapshot {
            state: NodeStateName::Lost,
            group_rank: None,
            last_seen_ms: 2600,
            reason: Some("its agent has ended".to_owned()),
            progress: Some("epoch 3".to_owned()),
            progress_age_ms: Some(12_000),
            standbys: Some(standbys),
            ..node(1)
        };
        let late = |limit_ms| Some(Stall { limit_ms, ..Stall::default() });
        let nodes = vec![node(0), lost];
        let of = |stall| Snapshot { stall, ..with_nodes(nodes.clone()) };
        let frame = PageView::default().frame(&of(late(12_000)), &[]);
        let all = only(frame.after(None));
        for stall in [None, late(12_001)] {
            let frame = PageView::default().frame(&of(stall), &[]);
            assert_eq!(only(frame.after(None))["rows"][1][10], false);
        }
        assert_eq!(
            all["rows"],
            json!([
                [0, "R", 0, null, 8, "n0", "10.0.0.1", null, null, null, false, null],
                [
                    1,
                    "L",
                    null,
                    null,
                    8,
                    "n1",
                    "10.0.0.1",
                    [7, 8],
                    "its agent has ended",
                    "epoch 3",
                    true,
                    2600
                ],
            ])
        );
        assert_eq!(all["job"]["nodes"], json!([]));
        assert_eq!(all["job"]["stall"]["limit_ms"], 12_000);
        assert_eq!(all["states"][2], json!(["R", "running"]));
        assert_eq!(all["causes"][1], json!(["worker_failed", "failure of a worker"]));
    }

    /// A change of ages alone is not sent. One changed node is one row. If many states change, each slot is one letter.
    #[test]
    fn changes_are_small() {
        let mut view = PageView::default();
        let mut nodes: Vec<_> = (0..100).map(node).collect();
        view.frame(&with_nodes(nodes.clone()), &[]);
        nodes.iter_mut().for_each(|node| node.last_seen_ms += 100);
        let frame = view.frame(&with_nodes(nodes.clone()), &[]);
        assert_eq!(only(frame.after(Some(1)))["rows"], json!([]));
        nodes[7].state = NodeStateName::Failed;
        let frame = view.frame(&with_nodes(nodes.clone()), &[]);
        let change = only(frame.after(Some(2)));
        assert_eq!(change["rows"].as_array().unwrap().len(), 1);
        assert_eq!(change["rows"][0][1], "F");
        assert!(change.get("letters").is_none());
        nodes.iter_mut().for_each(|node| node.state = NodeStateName::Stopping);
        let frame = view.frame(&with_nodes(nodes), &[]);
        let change = only(frame.after(Some(3)));
        assert_eq!(change["rows"], json!([]));
        assert_eq!(change["letters"], "T".repeat(100));
    }

    /// A reader that has missed a state receives the whole state, with the events that are still shown.
    #[test]
    fn late_reader_receives_everything() {
        let mut view = PageView::default();
        let event = |n: usize| Arc::from(format!(r#"{{"id":"1.{n}"}}"#));
        let snapshot = with_nodes(vec![node(0)]);
        let count = limits::PAGE_EVENTS + 7;
        view.frame(&snapshot, &(0..count).map(event).collect::<Vec<_>>());
        let frame = view.frame(&snapshot, &[event(count)]);
        let change = only(frame.after(Some(1)));
        assert_eq!(change["events"], json!([{"id": format!("1.{count}")}]));
        for last in [None, Some(0), Some(2)] {
            let all = only(frame.after(last));
            let events = all["events"].as_array().unwrap();
            assert_eq!(events.len(), limits::PAGE_EVENTS);
            assert_eq!(events[0]["id"], "1.8");
        }
    }

    /// Readers of changes and readers of whole states get the same page, while nodes come, go and change. No message is too long.
    #[test]
    fn changes_lead_to_the_same_page() {
        let mut view = PageView::default();
        let mut built = Built::default();
        let mut last = None;
        for (first, count, state) in [
            (0, 5000, NodeStateName::Running),
            (100, 5000, NodeStateName::Running),
            (100, 5000, NodeStateName::Stopping),
            (4000, 10, NodeStateName::Waiting),
            (0, 5000, NodeStateName::Running),
            (0, 0, NodeStateName::Running),
            (0, 3, NodeStateName::Lost),
        ] {
            let nodes = (first..first + count).map(|n| NodeSnapshot { state, ..node(n) });
            let frame = view.frame(&with_nodes(nodes.collect()), &[]);
            built.apply(frame.after(last));
            let mut whole = Built::default();
            whole.apply(frame.after(None));
            let hosts = |built: &Built| -> Vec<_> {
                let mut nodes: Vec<_> = built.0.iter().flatten().cloned().collect();
                nodes.sort();
                nodes
            };
            assert_eq!(hosts(&built), hosts(&whole));
            assert_eq!(hosts(&built).len(), usize::try_from(count).unwrap());
            let longest = frame.after(None).iter().map(|message| message.len()).max().unwrap();
            assert!(longest < limits::PAGE_PART + 1024, "{longest}");
            last = Some(frame.number);
        }
    }
}
