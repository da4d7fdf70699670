//! A copy of the start of a line in memory that the agent shares with its keeper. If the agent is killed, the keeper ends the line.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::FileExt},
};

use crate::{output::limits, sys::unix};

/// A file in memory: the length of the start of a line, and the start.
#[derive(Debug)]
pub(super) struct BegunLine(File);

impl BegunLine {
    pub(super) fn new() -> io::Result<Self> {
        unix::memory_file(c"ragent-output").map(Self::from)
    }

    pub(super) fn try_clone(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// Replaces the start. It must be empty, or begin with the start that is replaced: a kill before the second call leaves that one.
    pub(super) fn write(&self, start: &[u8]) -> io::Result<()> {
        self.0.write_all_at(start, 8)?;
        self.0.write_all_at(&(start.len() as u64).to_le_bytes(), 0)
    }

    /// Returns the start of the line; nothing if it cannot be read.
    pub(super) fn read(&self) -> Vec<u8> {
        let mut len = [0; 8];
        if self.0.read_exact_at(&mut len, 0).is_err() {
            return Vec::new();
        }
        let len = u64::from_le_bytes(len).min(limits::MAX_CONSOLE_LINE as u64);
        let mut start = vec![0; usize::try_from(len).unwrap_or_default()];
        match self.0.read_exact_at(&mut start, 8) {
            Ok(()) => start,
            Err(_) => Vec::new(),
        }
    }
}

impl From<OwnedFd> for BegunLine {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both processes read the start that was written last. A kill in the middle of a write leaves the start before.
    #[test]
    fn starts_are_shared() {
        let own = BegunLine::new().unwrap();
        let other = BegunLine::from(own.try_clone().unwrap());
        assert_eq!(other.read(), b"");
        for start in [&b"step 12"[..], b"step 12 of 20", b"", b"st"] {
            own.write(start).unwrap();
            assert_eq!(other.read(), start);
        }
        own.0.write_all_at(b"step", 8).unwrap();
        assert_eq!(other.read(), b"st");
    }
}
