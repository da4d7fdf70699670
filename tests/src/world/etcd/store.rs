//! Models the store: one key, its history, and what others do to it.

use ragent_election::claim::{ChangeOutcome, Entry, KeyContent, Record, Revision, Stamp};

/// A store with one key.
#[derive(Debug)]
pub(in crate::world) struct Store {
    /// All contents of the key, the newest last.
    history: Vec<KeyContent>,
    /// The index of the first content since the store was emptied.
    begins: usize,
    revision: u64,
    /// The number of times that it was restored or emptied. Leases are others after each time.
    restored: i64,
}

/// An action of others on the key.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(in crate::world) enum Loss {
    /// The key is deleted, or its lease is over.
    Deleted,
    /// The store comes back empty, with its first revision.
    Wiped,
    /// The store is restored from the copy at this index, modulo their number.
    Restored(usize),
    /// The key receives a value that is not a record.
    Garbage,
}

impl Store {
    pub(in crate::world) fn new() -> Self {
        let value = KeyContent { revision: Revision(5), entry: None, garbage: None };
        Self { history: vec![value], begins: 0, revision: 5, restored: 0 }
    }

    /// Returns the newest content.
    pub(in crate::world) fn newest(&self) -> &KeyContent {
        &self.history[self.history.len() - 1]
    }

    /// Returns the record that the key has.
    pub(in crate::world) fn newest_entry(&self) -> Option<&Entry> {
        self.newest().entry.as_ref()
    }

    /// Makes a change if the key has the expected content.
    pub(in crate::world) fn change(
        &mut self,
        expected: Stamp,
        record: Box<Record>,
    ) -> ChangeOutcome {
        let newest = self.newest();
        if newest.stamp().unwrap_or_default() != expected {
            let revision = Revision(self.revision);
            return ChangeOutcome::Refused(Box::new(KeyContent { revision, ..newest.clone() }));
        }
        self.revision += 1;
        let revision = Revision(self.revision);
        let stamp = Stamp { revision, lease: self.restored + 1 };
        let entry = Some(Entry { stamp, record: *record });
        self.history.push(KeyContent { revision, entry, garbage: None });
        ChangeOutcome::Made(stamp)
    }

    /// Applies an action of others.
    pub(in crate::world) fn lose(&mut self, loss: Loss) {
        self.restored += i64::from(matches!(loss, Loss::Wiped | Loss::Restored(_)));
        let (revision, garbage) = match loss {
            Loss::Deleted => (Revision(self.revision + 1), None),
            Loss::Garbage => {
                let revision = Revision(self.revision + 1);
                (revision, Some(Stamp { revision, lease: 0 }))
            }
            Loss::Wiped => {
                self.begins = self.history.len();
                (Revision(1), None)
            }
            Loss::Restored(index) => {
                let count = self.history.len() - self.begins;
                let value = self.history[self.begins + index % count].clone();
                self.revision = value.revision.0;
                return self.history.push(value);
            }
        };
        self.revision = revision.0;
        self.history.push(KeyContent { revision, entry: None, garbage });
    }
}
