//! Keeps the state of the view, and changes it by keys and by news of the job.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use ragent_rendezvous::snapshot::{JobTime, Snapshot};

use super::{events::EventList, keys::Key, nodes::NodeList, rates::Rates};
use crate::commands::events::JournalEntry;

/// A change.
#[derive(Debug)]
pub(super) enum Input {
    /// A key was pressed.
    Key(Key),
    /// The state of the job.
    State(Box<Snapshot>),
    /// Events of the job, oldest first.
    Events(Vec<JournalEntry>),
    /// The coordinator has ended, or the connection to it is lost. Or no next coordinator was found, for this reason.
    Lost(Option<String>),
    /// Time has passed, or the terminal has another size.
    Tick,
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
}

impl Model {
    /// Creates the view of a state.
    pub(super) fn new(snapshot: Box<Snapshot>, now: Instant) -> Self {
        let (mut nodes, mut rates) = (NodeList::default(), Rates::default());
        nodes.arrange(&snapshot.nodes);
        rates.add(&snapshot, now);
        let events = EventList::default();
        Self { snapshot, received: now, now, lost: None, rates, nodes, events }
    }

    /// Handles a change. `Break` ends the view.
    pub(super) fn update(&mut self, input: Input, now: Instant) -> ControlFlow<()> {
        self.now = self.now.max(now);
        match input {
            Input::Key(Key::Quit) => return ControlFlow::Break(()),
            Input::Key(Key::Nodes(by)) => self.nodes.scroll.scroll(by),
            Input::Key(Key::Events(by)) => self.events.scroll.scroll(by),
            Input::Key(Key::Sort) => {
                self.nodes.sort = self.nodes.sort.next();
                self.nodes.arrange(&self.snapshot.nodes);
            }
            Input::Key(Key::Split) => {
                self.nodes.is_split = !self.nodes.is_split;
                self.nodes.arrange(&self.snapshot.nodes);
            }
            Input::State(snapshot) => {
                (self.received, self.lost) = (self.now, None);
                self.rates.add(&snapshot, self.now);
                self.nodes.arrange(&snapshot.nodes);
                self.snapshot = snapshot;
            }
            Input::Events(entries) => self.events.add(entries),
            Input::Lost(why) => {
                let since = self.lost.as_ref().map_or(self.now, |lost| lost.since);
                let before = self.lost.take().and_then(|lost| lost.why);
                self.lost = Some(Loss { since, why: why.or(before) });
            }
            Input::Tick => {}
        }
        ControlFlow::Continue(())
    }

    /// Returns the time since the connection was lost, with the reason why there is no other one yet. Returns `None` if there is a
    /// connection.
    pub(super) fn lost_for(&self) -> Option<(Duration, Option<&str>)> {
        let Loss { since, why } = self.lost.as_ref()?;
        Some((self.now.saturating_duration_since(*since), why.as_deref()))
    }

    /// Returns the age of the state in milliseconds. It stops while there is no connection, and at the end of the job.
    pub(super) fn age_ms(&self) -> u64 {
        let until = self.lost.as_ref().map_or(self.now, |lost| lost.since);
        let age = until.saturating_duration_since(self.received);
        let is_closed = self.snapshot.outcome.is_some();
        if is_closed { 0 } else { u64::try_from(age.as_millis()).unwrap_or(u64::MAX) }
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
}

#[cfg(test)]
mod tests {
    use ragent_base::{sys::clock, testing::empty_snapshot};
    use ragent_rendezvous::snapshot::StateTime;

    use super::*;

    /// The loss of the coordinator is shown with its beginning, and the state does not grow older.
    /// The next state ends it.
    #[test]
    fn loss_of_the_coordinator_is_shown() {
        let start = clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut snapshot = Box::new(empty_snapshot());
        snapshot.time.states =
            vec![StateTime { state: "starting".to_owned(), ms: 500, settled_ms: 0 }];
        snapshot.time.now = Some("starting".to_owned());
        let mut model = Model::new(snapshot.clone(), start);
        for (input, now) in
            [(Input::Tick, 5), (Input::Lost(None), 7), (Input::Lost(None), 8), (Input::Tick, 10)]
        {
            assert!(model.update(input, at(now)).is_continue());
        }
        assert_eq!(model.lost_for(), Some((Duration::from_secs(3), None)));
        assert_eq!((model.age_ms(), model.time().of("starting")), (7_000, 7_500));
        assert!(model.update(Input::State(snapshot), at(11)).is_continue());
        assert_eq!((model.lost_for(), model.age_ms()), (None, 0));
        assert!(model.update(Input::Key(Key::Quit), at(12)).is_break());
    }
}
