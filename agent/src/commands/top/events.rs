//! Keeps the newest events.

use std::collections::VecDeque;

use super::scroll::Scroll;
use crate::commands::events::{BYTES_MAX, EventLines, JournalEntry};

/// The number of events that are kept. `ragent events` prints all that the coordinator has.
const EVENTS_MAX: usize = 1_000;

/// The newest events.
#[derive(Debug, Default)]
pub(super) struct EventList {
    /// The events, newest first, each with the depth at which it is shown.
    events: VecDeque<(JournalEntry, usize)>,
    /// The length of their lines together.
    bytes: usize,
    lines: EventLines,
    /// The part that is shown. New events are shown at once if the newest one is.
    pub(super) scroll: Scroll,
}

impl EventList {
    /// Adds events of the journal, oldest first.
    pub(super) fn add(&mut self, entries: Vec<JournalEntry>) {
        for entry in entries {
            // After a loss of the connection, the last events may be repeated.
            if self.events.front().is_some_and(|(newest, _)| entry.id <= newest.id) {
                continue;
            }
            let depth = self.lines.depth(&entry);
            self.bytes += entry.len;
            self.events.push_front((entry, depth));
            self.scroll.line_added();
            while (self.events.len() > EVENTS_MAX || self.bytes > BYTES_MAX)
                && let Some((oldest, _)) = self.events.pop_back()
            {
                self.bytes -= oldest.len;
            }
        }
    }

    /// Returns the number of events that are kept.
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns the events that are shown in `height` lines, oldest first, with their depths.
    pub(super) fn shown(&mut self, height: usize) -> impl Iterator<Item = &(JournalEntry, usize)> {
        let shown = self.scroll.shown(self.events.len(), height);
        self.events.range(shown).rev()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::scroll::Move;

    fn events(numbers: impl IntoIterator<Item = usize>) -> Vec<JournalEntry> {
        let event = |number| {
            let line = format!(
                r#"{{"id":"1.{number}","at":"2026-11-21T20:31:07Z","round":1,"kind":"k","text":"t"}}"#
            );
            JournalEntry::read(&line).expect("an event")
        };
        numbers.into_iter().map(event).collect()
    }

    /// The ids of the events that are shown in three lines.
    fn shown(list: &mut EventList) -> Vec<String> {
        list.shown(3).map(|(entry, _)| entry.id.to_string()).collect()
    }

    /// New events are followed, unless older ones are shown. Repeated events are ignored.
    #[test]
    fn newest_event_is_followed() {
        let mut list = EventList::default();
        list.add(events(1..=5));
        assert_eq!(shown(&mut list), ["1.3", "1.4", "1.5"]);
        list.add(events(4..=7));
        assert_eq!(
            (list.len(), shown(&mut list)),
            (7, ["1.5", "1.6", "1.7"].map(str::to_owned).into())
        );
        list.scroll.scroll(Move::PageDown);
        assert_eq!(shown(&mut list), ["1.2", "1.3", "1.4"]);
        list.add(events(8..=9));
        assert_eq!(shown(&mut list), ["1.2", "1.3", "1.4"]);
        list.scroll.scroll(Move::Home);
        list.add(events(10..=10));
        assert_eq!(shown(&mut list), ["1.8", "1.9", "1.10"]);
    }

    /// The number and the length of the events are bounded.
    #[test]
    fn events_are_bounded() {
        let mut list = EventList::default();
        list.add(events(1..=EVENTS_MAX + 5));
        assert_eq!(list.len(), EVENTS_MAX);
        list.scroll.scroll(Move::End);
        assert_eq!(shown(&mut list), ["1.6", "1.7", "1.8"]);
        // Each event counts with the length of its line.
        let mut large = events(20_000..=20_019);
        large.iter_mut().for_each(|entry| entry.len = BYTES_MAX / 10);
        list.add(large);
        list.scroll.scroll(Move::Home);
        assert_eq!((list.len(), shown(&mut list).last().unwrap().as_str()), (10, "1.20019"));
    }
}
