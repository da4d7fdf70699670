//! Keeps the list of events.

use super::{cursor::Cursor, keys::Key};
use crate::commands::events::{BYTES_MAX, EventLines, JournalEntry};

/// The number of events that are kept, as many as a coordinator keeps.
const ENTRIES_MAX: usize = 10_000;

/// The number of events that are removed at once when there are too many.
const ENTRIES_SPARE: usize = 1_000;

/// The events so far, oldest first.
#[derive(Debug, Default)]
pub(super) struct EventList {
    entries: Vec<JournalEntry>,
    /// The length of their lines together.
    bytes: usize,
    /// The depths at which the events are shown.
    depths: Vec<usize>,
    lines: EventLines,
    /// The selected event.
    pub(super) cursor: Cursor,
}

impl EventList {
    /// Adds events of the journal. The newest event stays selected if it was.
    pub(super) fn add(&mut self, entries: Vec<JournalEntry>) {
        let follows = self.cursor.selected + 1 >= self.entries.len();
        for entry in entries {
            // After a loss of the connection, the last events may be repeated.
            if self.entries.last().is_some_and(|last| entry.id <= last.id) {
                continue;
            }
            self.depths.push(self.lines.depth(&entry));
            self.bytes += entry.len;
            self.entries.push(entry);
        }
        let mut removed = match self.entries.len() {
            len if len > ENTRIES_MAX + ENTRIES_SPARE => len - ENTRIES_MAX,
            _ => 0,
        };
        self.bytes -= self.entries[..removed].iter().map(|entry| entry.len).sum::<usize>();
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.entries.get(removed)
        {
            self.bytes -= oldest.len;
            removed += 1;
        }
        self.entries.drain(..removed);
        self.depths.drain(..removed);
        self.cursor.selected = self.cursor.selected.saturating_sub(removed);
        self.cursor.offset = self.cursor.offset.saturating_sub(removed);
        if follows {
            self.cursor.selected = self.entries.len().saturating_sub(1);
        }
    }

    /// Moves the selection. Returns false for other keys.
    pub(super) fn handle_key(&mut self, key: Key, height: usize) -> bool {
        self.cursor.handle_key(key, self.entries.len(), height)
    }

    /// Returns all events.
    pub(super) fn entries(&self) -> &[JournalEntry] {
        &self.entries
    }

    /// Returns the selected event.
    pub(super) fn selected(&self) -> Option<&JournalEntry> {
        self.entries.get(self.cursor.selected)
    }

    /// Returns the events that are shown in `height` lines, with their depths and places.
    pub(super) fn shown(
        &self,
        height: usize,
    ) -> impl Iterator<Item = (usize, &JournalEntry, usize)> {
        let from = self.cursor.offset.min(self.entries.len());
        let entries = self.entries.iter().zip(&self.depths).enumerate().skip(from).take(height);
        entries.map(|(place, (entry, depth))| (place, entry, *depth))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(numbers: impl IntoIterator<Item = usize>) -> Vec<JournalEntry> {
        let event = |number| {
            let line = format!(
                r#"{{"id":"1.{number}","at":"2026-11-21T20:31:07Z","round":1,"kind":"k","text":"t"}}"#
            );
            JournalEntry::read(&line).expect("an event")
        };
        numbers.into_iter().map(event).collect()
    }

    /// New events are followed, unless an older one is selected. Repeated events are ignored.
    #[test]
    fn newest_event_is_followed() {
        let mut list = EventList::default();
        list.add(events(1..=5));
        assert_eq!(list.cursor.selected, 4);
        list.add(events(4..=7));
        assert_eq!((list.entries.len(), list.cursor.selected), (7, 6));
        assert!(list.handle_key(Key::Up, 3));
        list.add(events(8..=9));
        assert_eq!((list.entries.len(), list.cursor.selected), (9, 5));
        assert!(!list.handle_key(Key::Enter, 3));
        assert!(list.handle_key(Key::End, 3));
        list.add(events(10..=10));
        assert_eq!(list.selected().unwrap().id.to_string(), "1.10");
    }

    /// As many events are kept as a coordinator keeps, and the selected one stays selected.
    #[test]
    fn events_are_bounded() {
        let mut list = EventList::default();
        list.add(events(1..=ENTRIES_MAX));
        list.cursor.selected = 4_000;
        let selected = list.selected().unwrap().clone();
        list.add(events(ENTRIES_MAX + 1..=ENTRIES_MAX + ENTRIES_SPARE + 1));
        assert_eq!((list.entries.len(), list.depths.len()), (ENTRIES_MAX, ENTRIES_MAX));
        assert_eq!(list.selected(), Some(&selected));
        // Each event counts with the length of its line.
        let mut large = events(20_000..=20_019);
        large.iter_mut().for_each(|entry| entry.len = BYTES_MAX / 10);
        list.add(large);
        assert_eq!((list.entries.len(), list.depths.len()), (10, 10));
        assert_eq!(list.entries.last().unwrap().id.to_string(), "1.20019");
    }
}
