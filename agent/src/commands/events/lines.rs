//! Prints events as lines for people. The consequences of an event are indented below it.

use std::collections::BTreeMap;

use ragent_rendezvous::event::EventId;

use super::JournalEntry;

/// The number of events whose depth is remembered. It is enough, since events are caused by recent ones.
const REMEMBERED_MAX: usize = 1_000;

/// The depth of the deepest lines. More would leave little room for text.
const DEPTH_MAX: usize = 3;

/// The depths of the events so far.
#[derive(Debug, Default)]
pub(in crate::commands) struct EventLines {
    depths: BTreeMap<EventId, usize>,
}

impl EventLines {
    /// Returns the line of an event, which follows the ones before.
    pub(super) fn of(&mut self, entry: &JournalEntry) -> String {
        let depth = self.depth(entry);
        format!("{}  {}{}\n", entry.time_of_day(), "  ".repeat(depth), entry.text)
    }

    /// Returns the depth of an event, which follows the ones before.
    pub(in crate::commands) fn depth(&mut self, entry: &JournalEntry) -> usize {
        let cause = entry.cause.and_then(|cause| self.depths.get(&cause));
        let depth = cause.map_or(0, |depth| (depth + 1).min(DEPTH_MAX));
        self.depths.insert(entry.id, depth);
        while self.depths.len() > REMEMBERED_MAX {
            self.depths.pop_first();
        }
        depth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, cause: Option<&str>) -> JournalEntry {
        let cause = cause.map_or_else(|| "null".to_owned(), |cause| format!("\"{cause}\""));
        let line = format!(
            r#"{{"schema":1,"id":"{id}","at":"2026-11-21T20:31:07.412Z","round":7,"kind":"k","cause":{cause},"text":"t","more":1}}"#
        );
        JournalEntry::read(&line).expect("an event")
    }

    /// Consequences are indented below their cause, to a limit.
    #[test]
    fn consequences_are_indented() {
        let mut lines = EventLines::default();
        let mut indent = |id, cause| {
            let line = lines.of(&entry(id, cause));
            line.trim_end().len() - "20:31:07.412  t".len()
        };
        assert_eq!(indent("1.1", None), 0);
        assert_eq!(indent("1.2", Some("1.1")), 2);
        assert_eq!(indent("1.3", Some("1.2")), 4);
        assert_eq!(indent("1.4", Some("1.3")), 6);
        assert_eq!(indent("1.5", Some("1.4")), 6);
        assert_eq!(indent("1.6", Some("1.1")), 2);
        assert_eq!(indent("2.1", Some("1.99")), 0);
    }

    /// Lines that are not events are ignored.
    #[test]
    fn other_lines_are_ignored() {
        for line in ["", "{}", "[1]", r#"{"id":"x","at":"2026-11-21T20:31:07Z"}"#] {
            assert_eq!(JournalEntry::read(line), None, "{line}");
        }
    }
}
