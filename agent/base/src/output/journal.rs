//! The intents of an agent for the lines of a worker: memory that it shares with its keeper.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::FileExt},
};

use crate::{output::limits, sys::unix};

/// A file in memory with one [`LineRecord`] and the start of a line.
#[derive(Debug)]
pub(super) struct LineJournal(File);

/// The state of the lines of a stream.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct LineRecord {
    /// True if the content taken from the worker's pipe was also passed on to the file.
    pub(super) is_filed: bool,
    /// The slot with the start of the next line: the second if true, else the first.
    pub(super) slot: bool,
    /// The length of that start.
    pub(super) rest: u64,
    /// The step that is about to be carried out.
    pub(super) pending: Option<PendingLines>,
}

/// Lines that are about to be staged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct PendingLines {
    /// The length of the taken content before the step.
    pub(super) taken: u64,
    /// The number of these bytes that are replaced by lines.
    pub(super) used: u64,
    /// The length of the start of the next line after the step; it is in the other slot.
    pub(super) rest: u64,
}

const RECORD: usize = 7 * 8;
const FIRST_SLOT: u64 = 4096;
const SLOT: u64 = 2 * limits::MAX_CONSOLE_LINE as u64;

impl LineJournal {
    pub(super) fn new() -> io::Result<Self> {
        let journal = Self::from(unix::memory_file(c"ragent-output")?);
        journal.write(&LineRecord::default())?;
        Ok(journal)
    }

    pub(super) fn try_clone(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// Replaces the record by one call within one page, so that a kill leaves the old one or the
    /// new one.
    pub(super) fn write(&self, record: &LineRecord) -> io::Result<()> {
        let pending = record.pending.unwrap_or(PendingLines { taken: 0, used: 0, rest: 0 });
        let words = [
            u64::from(record.is_filed),
            u64::from(record.slot),
            record.rest,
            u64::from(record.pending.is_some()),
            pending.taken,
            pending.used,
            pending.rest,
        ];
        let mut bytes = [0; RECORD];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.0.write_all_at(&bytes, 0)
    }

    /// Returns the record, or that of a new journal if it cannot be read.
    pub(super) fn record(&self) -> LineRecord {
        let mut bytes = [0; RECORD];
        if self.0.read_exact_at(&mut bytes, 0).is_err() {
            return LineRecord::default();
        }
        let mut words = bytes
            .chunks_exact(8)
            .map(|word| word.iter().rev().fold(0_u64, |sum, &byte| (sum << 8) | u64::from(byte)));
        let mut next = || words.next().unwrap_or_default();
        let (is_filed, slot, rest) = (next() == 1, next() == 1, next());
        let is_pending = next() == 1;
        let pending = PendingLines { taken: next(), used: next(), rest: next() };
        LineRecord { is_filed, slot, rest, pending: is_pending.then_some(pending) }
    }

    /// Writes the start of a line to the slot that the record does not name.
    pub(super) fn write_rest(&self, slot: bool, rest: &[u8]) -> io::Result<()> {
        self.0.write_all_at(rest, offset(slot))
    }

    /// Returns the start of the next line.
    pub(super) fn rest(&self, record: &LineRecord) -> Vec<u8> {
        let len = usize::try_from(record.rest.min(SLOT)).unwrap_or_default();
        let mut rest = vec![0; len];
        match self.0.read_exact_at(&mut rest, offset(record.slot)) {
            Ok(()) => rest,
            Err(_) => Vec::new(),
        }
    }
}

impl From<OwnedFd> for LineJournal {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

fn offset(slot: bool) -> u64 {
    FIRST_SLOT + if slot { SLOT } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All holders of the journal read the latest record and both slots.
    #[test]
    fn records_are_shared() {
        let journal = LineJournal::new().unwrap();
        let other = LineJournal::from(journal.try_clone().unwrap());
        assert_eq!(other.record(), LineRecord::default());
        let pending = Some(PendingLines { taken: 65_536, used: 300, rest: 4 });
        let record = LineRecord { is_filed: true, slot: true, rest: 3, pending };
        journal.write_rest(true, b"old").unwrap();
        journal.write_rest(false, b"next").unwrap();
        journal.write(&record).unwrap();
        assert_eq!(other.record(), record);
        assert_eq!(other.rest(&record), b"old");
        assert_eq!(other.rest(&LineRecord { slot: false, rest: 4, ..record }), b"next");
    }
}
