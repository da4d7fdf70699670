//! Keeps the state of the view, and changes it by keys and by news of the job.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use ragent_rendezvous::{
    event::EventId,
    ids::NodeId,
    snapshot::{JobTime, NodeSnapshot, Snapshot},
};
use ratatui::layout::Size;

use super::{
    cursor, events::EventList, keys::Key, layout::Areas, nodes::NodeList, panes, rates::Rates,
};
use crate::commands::{events::JournalEntry, explain::JobExplanation};

/// The maximum length of the host name in a search, in characters.
const PROMPT_MAX: usize = 64;

/// A change.
#[derive(Debug)]
pub(super) enum Input {
    /// A key was pressed.
    Key(Key),
    /// The terminal has another size.
    Resized(Size),
    /// The state of the job.
    State(Box<Snapshot>),
    /// Events of the job, oldest first.
    Events(Vec<JournalEntry>),
    /// A message for the user, about the last key.
    Message(String),
    /// The coordinator has ended, or the connection to it is lost. Or no next coordinator was found, for this reason.
    Lost(Option<String>),
    /// Time has passed.
    Tick,
}

/// The list that the keys move in.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Focus {
    /// The nodes.
    #[default]
    Nodes,
    /// The events.
    Events,
}

/// A text that is shown in place of the lists.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Pane {
    /// Everything about a node.
    Node(Box<NodeSnapshot>),
    /// Everything about an event.
    Event(EventId),
    /// The text of `ragent explain`.
    Explain,
    /// The text of `ragent stacks`.
    Stacks,
    /// The outcome of the job.
    Outcome,
    /// The keys.
    Help,
}

/// The loss of the connection to the coordinator.
#[derive(Debug)]
struct Loss {
    since: Instant,
    /// The reason why there is no other connection yet.
    why: Option<String>,
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct Model {
    /// The last state of the job.
    pub(super) snapshot: Box<Snapshot>,
    received: Instant,
    now: Instant,
    /// The loss of the connection to the coordinator.
    lost: Option<Loss>,
    /// The step rates so far.
    pub(super) rates: Rates,
    /// The list of nodes.
    pub(super) nodes: NodeList,
    /// The list of events.
    pub(super) events: EventList,
    /// The list that the keys move in.
    pub(super) focus: Focus,
    /// The text that is shown in place of the lists.
    pub(super) pane: Option<Pane>,
    /// The first line of that text that is shown.
    pub(super) scrolled: usize,
    /// The text of `ragent explain`, while it is shown.
    pub(super) explanation: String,
    /// The host name that is being typed.
    pub(super) prompt: Option<String>,
    /// The text of the last search.
    searched: String,
    /// A message about the last key.
    pub(super) message: Option<String>,
    /// True if the user wants a look at the workers.
    wants_look: bool,
    size: Size,
}

impl Model {
    /// Creates the view of a state in a terminal of `size`.
    pub(super) fn new(snapshot: Box<Snapshot>, size: Size, now: Instant) -> Self {
        let mut nodes = NodeList::default();
        nodes.set_nodes(&[], &snapshot.nodes);
        let mut rates = Rates::default();
        rates.add(&snapshot, now);
        let pane = snapshot.outcome.as_ref().map(|_| Pane::Outcome);
        let mut model = Self {
            snapshot,
            received: now,
            now,
            lost: None,
            rates,
            nodes,
            events: EventList::default(),
            focus: Focus::default(),
            pane,
            scrolled: 0,
            explanation: String::new(),
            prompt: None,
            searched: String::new(),
            message: None,
            wants_look: false,
            size,
        };
        model.settle();
        model
    }

    /// Handles a change. `Break` ends the view.
    pub(super) fn update(&mut self, input: Input, now: Instant) -> ControlFlow<()> {
        self.now = self.now.max(now);
        let flow = match input {
            Input::Key(key) => self.handle_key(key),
            Input::Resized(size) => {
                self.size = size;
                ControlFlow::Continue(())
            }
            Input::State(snapshot) => {
                self.set_snapshot(snapshot);
                ControlFlow::Continue(())
            }
            Input::Events(entries) => {
                self.events.add(entries);
                self.explain();
                ControlFlow::Continue(())
            }
            Input::Lost(why) => {
                let since = self.lost.as_ref().map_or(self.now, |lost| lost.since);
                let before = self.lost.take().and_then(|lost| lost.why);
                self.lost = Some(Loss { since, why: why.or(before) });
                ControlFlow::Continue(())
            }
            Input::Message(message) => {
                self.message = Some(message);
                ControlFlow::Continue(())
            }
            Input::Tick => {
                self.explain();
                ControlFlow::Continue(())
            }
        };
        self.settle();
        flow
    }

    /// Returns the time since the connection was lost, with the reason why there is no other one yet. Returns `None` if there is a
    /// connection.
    pub(super) fn lost_for(&self) -> Option<(Duration, Option<&str>)> {
        let Loss { since, why } = self.lost.as_ref()?;
        Some((self.now.saturating_duration_since(*since), why.as_deref()))
    }

    /// Returns true if a look at the workers is to be requested now.
    pub(super) fn take_look_request(&mut self) -> bool {
        std::mem::take(&mut self.wants_look)
    }

    /// Returns true if the job is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.snapshot.outcome.is_some()
    }

    /// Returns the age of the state in milliseconds. It stops while there is no connection, and at the end of the job.
    pub(super) fn age_ms(&self) -> u64 {
        let until = self.lost.as_ref().map_or(self.now, |lost| lost.since);
        let age = until.saturating_duration_since(self.received);
        if self.is_closed() { 0 } else { u64::try_from(age.as_millis()).unwrap_or(u64::MAX) }
    }

    /// Returns the time account, as it is now.
    pub(super) fn time(&self) -> JobTime {
        let mut time = self.snapshot.time.clone();
        let age = self.age_ms();
        let is_now = |name: &str| time.now.as_deref() == Some(name);
        if let Some(at) = time.states.iter().position(|state| is_now(&state.state)) {
            time.states[at].ms = time.states[at].ms.saturating_add(age);
        }
        time
    }

    /// Returns the node with this id.
    pub(super) fn node(&self, id: &NodeId) -> Option<&NodeSnapshot> {
        self.snapshot.nodes.iter().find(|node| node.node_id == *id)
    }

    fn set_snapshot(&mut self, snapshot: Box<Snapshot>) {
        (self.received, self.lost) = (self.now, None);
        self.rates.add(&snapshot, self.now);
        self.nodes.set_nodes(&self.snapshot.nodes, &snapshot.nodes);
        if snapshot.outcome.is_some() && !self.is_closed() {
            self.show(Pane::Outcome);
        }
        self.snapshot = snapshot;
        if let Some(Pane::Node(shown)) = &self.pane
            && let Some(node) = self.node(&shown.node_id)
        {
            self.pane = Some(Pane::Node(Box::new(node.clone())));
        }
        self.explain();
    }

    fn show(&mut self, pane: Pane) {
        self.pane = Some(pane);
        self.scrolled = 0;
        self.explain();
    }

    /// Explains the job, while the explanation is shown.
    fn explain(&mut self) {
        if self.pane == Some(Pane::Explain) {
            let now = Snapshot {
                phase_ms: self.snapshot.phase_ms.saturating_add(self.age_ms()),
                time: self.time(),
                ..(*self.snapshot).clone()
            };
            self.explanation = JobExplanation::new(&now, self.events.entries()).text();
        }
    }

    fn handle_key(&mut self, key: Key) -> ControlFlow<()> {
        self.message = None;
        if key == Key::Interrupt {
            return ControlFlow::Break(());
        }
        if let Some(text) = self.prompt.take() {
            self.handle_key_of_prompt(text, key);
            return ControlFlow::Continue(());
        }
        match key {
            Key::Char('q') => return ControlFlow::Break(()),
            Key::Char('?') => self.toggle(Pane::Help),
            Key::Char('e') => self.toggle(Pane::Explain),
            Key::Char('k') => {
                self.show(Pane::Stacks);
                self.wants_look = true;
            }
            Key::Esc => self.pane = None,
            Key::Char('/') => {
                self.pane = None;
                self.focus = Focus::Nodes;
                self.prompt = Some(String::new());
            }
            Key::Up
            | Key::Down
            | Key::PageUp
            | Key::PageDown
            | Key::Home
            | Key::End
            | Key::Enter
            | Key::Tab
            | Key::Backspace
            | Key::Char(_)
            | Key::Interrupt => self.handle_key_of_view(key),
        }
        ControlFlow::Continue(())
    }

    fn toggle(&mut self, pane: Pane) {
        if self.pane.as_ref() == Some(&pane) {
            self.pane = None;
        } else {
            self.show(pane);
        }
    }

    fn handle_key_of_prompt(&mut self, mut text: String, key: Key) {
        match key {
            Key::Enter => self.find(text),
            Key::Esc => {}
            Key::Backspace => {
                text.pop();
                self.prompt = Some(text);
            }
            Key::Char(c) => {
                if text.chars().count() < PROMPT_MAX {
                    text.push(c);
                }
                self.prompt = Some(text);
            }
            Key::Up
            | Key::Down
            | Key::PageUp
            | Key::PageDown
            | Key::Home
            | Key::End
            | Key::Tab
            | Key::Interrupt => self.prompt = Some(text),
        }
    }

    /// Selects the next host with `text`. If it is empty, uses the text of the last search.
    fn find(&mut self, text: String) {
        if !text.is_empty() {
            self.searched = text;
        }
        if self.searched.is_empty() || self.nodes.find(&self.searched, &self.snapshot.nodes) {
            return;
        }
        self.message = Some(format!("no host contains \"{}\"", self.searched));
    }

    fn handle_key_of_view(&mut self, key: Key) {
        let areas = Areas::of(self.size, self);
        if self.pane.is_some() {
            let len = panes::lines(self, areas.body.width).len();
            cursor::scroll(&mut self.scrolled, key, len, areas.lines_of_pane());
            return;
        }
        match key {
            Key::Tab => {
                self.focus = match self.focus {
                    Focus::Nodes => Focus::Events,
                    Focus::Events => Focus::Nodes,
                };
            }
            Key::Char('f') => self.nodes.toggle_filter(&self.snapshot.nodes),
            Key::Char('s') => self.nodes.next_sort(&self.snapshot.nodes),
            Key::Enter => self.enter(),
            Key::Up
            | Key::Down
            | Key::PageUp
            | Key::PageDown
            | Key::Home
            | Key::End
            | Key::Esc
            | Key::Backspace
            | Key::Char(_)
            | Key::Interrupt => {
                match self.focus {
                    Focus::Nodes => {
                        let len = self.nodes.rows.len();
                        self.nodes.cursor.handle_key(key, len, areas.rows_of_nodes())
                    }
                    Focus::Events => self.events.handle_key(key, areas.rows_of_events()),
                };
            }
        }
    }

    /// Shows all details of what is selected.
    fn enter(&mut self) {
        match self.focus {
            Focus::Nodes => {
                let id = self.nodes.enter(&self.snapshot.nodes);
                let node = id.and_then(|id| self.node(&id).cloned());
                if let Some(node) = node {
                    self.show(Pane::Node(Box::new(node)));
                }
            }
            Focus::Events => {
                if let Some(id) = self.events.selected().map(|entry| entry.id) {
                    self.show(Pane::Event(id));
                }
            }
        }
    }

    /// Keeps the selected lines and the scrolled texts within their bounds.
    fn settle(&mut self) {
        let areas = Areas::of(self.size, self);
        self.nodes.cursor.settle(self.nodes.rows.len(), areas.rows_of_nodes());
        self.events.cursor.settle(self.events.entries().len(), areas.rows_of_events());
        if self.pane.is_some() {
            let len = panes::lines(self, areas.body.width).len();
            self.scrolled = self.scrolled.min(len.saturating_sub(areas.lines_of_pane()));
        }
    }
}

#[cfg(test)]
mod tests;
