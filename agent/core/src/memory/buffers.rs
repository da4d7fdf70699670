//! Counts the memory files of the agent, and reuses them: writing to pages that exist takes an eighth of the time.

use std::collections::BTreeMap;

use super::interface::{Buffer, Effect};

/// The sizes of large buffers are multiples of this, so that content that grows by a few bytes still fits.
const GRAIN: u64 = 1 << 20;
/// A buffer of this size is large.
const LARGE: u64 = 16 * GRAIN;

/// A free buffer is reused if at most this part of it stays empty.
const SLACK: u64 = 4;

/// All memory files of the agent.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    next: u64,
    all: BTreeMap<u64, Entry>,
    total: u64,
}

#[derive(Debug)]
struct Entry {
    size: u64,
    /// The number of transfers, checksums and workers that use the content.
    users: u32,
    /// True if it has no content that is needed.
    is_free: bool,
    /// True if its memory is known to be in use.
    is_made: bool,
}

/// The most memory that parts may use now, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// The limit of all buffers together.
    pub(super) limit: u64,
    /// The memory that new ones may take.
    pub(super) available: u64,
}

impl Buffers {
    /// Returns the size of all buffers.
    #[cfg(test)]
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Returns a buffer of at least `bytes`: a free one, or a new one if there is room. Then free ones, which do not fit,
    /// are closed.
    pub(super) fn take(
        &mut self,
        bytes: u64,
        room: Room,
        effects: &mut impl Extend<Effect>,
    ) -> Option<Buffer> {
        let fits = |entry: &Entry| {
            entry.is_idle() && bytes <= entry.size && entry.size - bytes <= entry.size / SLACK
        };
        let fitting = self.all.iter_mut().filter(|(_, entry)| fits(entry));
        if let Some((id, entry)) = fitting.min_by_key(|(_, entry)| entry.size) {
            entry.is_free = false;
            return Some(Buffer { id: *id, size: entry.size });
        }
        let grain = if bytes < LARGE { 1 } else { GRAIN };
        let size = bytes.checked_next_multiple_of(grain)?;
        let (mut idle, mut unmade) = (0_u64, 0_u64);
        for entry in self.all.values() {
            if entry.is_idle() {
                idle += entry.size;
            } else if !entry.is_made {
                unmade += entry.size;
            }
        }
        let total = (self.total - idle).checked_add(size)?;
        let available = room.available.saturating_add(idle).saturating_sub(unmade);
        if room.limit < total || available < size {
            return None;
        }
        self.drop_idle(effects);
        self.next += 1;
        let entry = Entry { size, users: 0, is_free: false, is_made: false };
        self.all.insert(self.next, entry);
        self.total += size;
        Some(Buffer { id: self.next, size })
    }

    /// Notes that the memory of a buffer is in use. Until then, what is free counts without it.
    pub(super) fn note_made(&mut self, buffer: Buffer) {
        if let Some(entry) = self.all.get_mut(&buffer.id) {
            entry.is_made = true;
        }
    }

    /// Notes that the content is used.
    pub(super) fn hold(&mut self, buffer: Buffer) {
        if let Some(entry) = self.all.get_mut(&buffer.id) {
            entry.users = entry.users.saturating_add(1);
        }
    }

    /// Notes that a use has ended.
    pub(super) fn unhold(&mut self, buffer: Buffer) {
        if let Some(entry) = self.all.get_mut(&buffer.id) {
            entry.users = entry.users.saturating_sub(1);
        }
    }

    /// Frees a buffer. It is reused when nothing uses its content.
    pub(super) fn free(&mut self, buffer: Buffer) {
        if let Some(entry) = self.all.get_mut(&buffer.id) {
            entry.is_free = true;
        }
    }

    /// Forgets a buffer that could not be made.
    pub(super) fn forget(&mut self, buffer: Buffer) {
        if let Some(entry) = self.all.remove(&buffer.id) {
            self.total -= entry.size;
        }
    }

    /// Closes all buffers without content that is needed.
    pub(super) fn drop_idle(&mut self, effects: &mut impl Extend<Effect>) {
        let total = &mut self.total;
        let idle = self.all.extract_if(.., |_, entry| entry.is_idle());
        effects.extend(idle.map(|(id, entry)| {
            *total -= entry.size;
            Effect::Drop(Buffer { id, size: entry.size })
        }));
    }
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.is_free && self.users == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const ROOM: Room = Room { limit: 1_000 * MIB, available: 10_000 * MIB };

    fn take(buffers: &mut Buffers, mib: u64) -> (Option<Buffer>, Vec<Effect>) {
        let mut effects = Vec::new();
        (buffers.take(mib * MIB, ROOM, &mut effects), effects)
    }

    /// A free buffer is reused if it is not much too large, and only when nothing uses its content.
    #[test]
    fn free_buffers_are_reused() {
        let mut buffers = Buffers::default();
        let first = take(&mut buffers, 400).0.unwrap();
        buffers.hold(first);
        buffers.free(first);
        assert_ne!(take(&mut buffers, 400).0.unwrap().id, first.id);
        buffers.unhold(first);
        let mut effects = Vec::new();
        assert_eq!(buffers.take(400 * MIB - 5, ROOM, &mut effects), Some(first));
        assert_eq!((buffers.total(), effects), (800 * MIB, vec![]));
    }

    /// No buffer exceeds the limit. Free buffers that do not fit are closed.
    #[test]
    fn limit_is_kept() {
        let mut buffers = Buffers::default();
        let first = take(&mut buffers, 600).0.unwrap();
        assert_eq!(take(&mut buffers, 500), (None, vec![]));
        buffers.free(first);
        let (second, effects) = take(&mut buffers, 440);
        assert_eq!(effects, [Effect::Drop(first)]);
        assert_eq!((second.unwrap().size, buffers.total()), (440 * MIB, 440 * MIB));
        assert_eq!(take(&mut buffers, u64::MAX / MIB), (None, vec![]));
        assert_eq!(buffers.take(u64::MAX, ROOM, &mut Vec::new()), None);
        buffers.forget(second.unwrap());
        assert_eq!(buffers.total(), 0);
    }

    /// Only large buffers have room to grow.
    #[test]
    fn sizes_of_large_buffers_are_rounded() {
        let mut buffers = Buffers::default();
        for (bytes, size) in [(5, 5), (16 * MIB + 1, 17 * MIB)] {
            assert_eq!(buffers.take(bytes, ROOM, &mut Vec::new()).unwrap().size, size);
        }
    }

    /// Several workers ask at once, before the memory of the first buffer is in use. Together they do not take more than
    /// there is.
    #[test]
    fn memory_is_given_once() {
        let mut buffers = Buffers::default();
        let room = Room { limit: 1_000 * MIB, available: 250 * MIB };
        let first = buffers.take(250 * MIB, room, &mut Vec::new()).unwrap();
        assert_eq!(buffers.take(100 * MIB, room, &mut Vec::new()), None);
        buffers.note_made(first);
        // It is no longer free now, but more was freed elsewhere.
        assert!(buffers.take(100 * MIB, room, &mut Vec::new()).is_some());
    }
}
