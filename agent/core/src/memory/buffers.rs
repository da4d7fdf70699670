//! Counts the memory files of the agent, and reuses them: writing to pages that exist takes an eighth of the time.

use std::collections::BTreeMap;

use super::interface::{Buffer, Effect};

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

    /// Returns a buffer of at least `bytes`: a free one, or a new one if there is room. Free ones that do not fit are
    /// closed to make room.
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
        let has_room = |total: u64, freed: u64| {
            total.checked_add(bytes).is_some_and(|total| total <= room.limit)
                && bytes <= room.available.saturating_add(freed)
        };
        let idle: u64 =
            self.all.values().filter(|entry| entry.is_idle()).map(|entry| entry.size).sum();
        if !has_room(self.total - idle, idle) {
            return None;
        }
        if !has_room(self.total, 0) {
            self.drop_idle(effects);
        }
        self.next += 1;
        self.all.insert(self.next, Entry { size: bytes, users: 0, is_free: false });
        self.total += bytes;
        Some(Buffer { id: self.next, size: bytes })
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

    const ROOM: Room = Room { limit: 1_000, available: 10_000 };

    fn take(buffers: &mut Buffers, bytes: u64) -> (Option<Buffer>, Vec<Effect>) {
        let mut effects = Vec::new();
        (buffers.take(bytes, ROOM, &mut effects), effects)
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
        assert_eq!(take(&mut buffers, 350).0, Some(first));
        assert_eq!(buffers.total(), 800);
    }

    /// No buffer exceeds the limit or the available memory. Free buffers that do not fit are closed if there is no
    /// room otherwise.
    #[test]
    fn limit_is_kept() {
        let mut buffers = Buffers::default();
        let first = take(&mut buffers, 600).0.unwrap();
        assert_eq!(take(&mut buffers, 500), (None, vec![]));
        buffers.free(first);
        let (second, effects) = take(&mut buffers, 900);
        assert_eq!(effects, [Effect::Drop(first)]);
        assert_eq!((second.unwrap().size, buffers.total()), (900, 900));
        assert_eq!(take(&mut buffers, u64::MAX), (None, vec![]));
        let mut effects = Vec::new();
        let little = Room { limit: 10_000, available: 50 };
        assert_eq!(buffers.take(60, little, &mut effects), None);
        buffers.forget(second.unwrap());
        assert_eq!(buffers.total(), 0);
    }
}
