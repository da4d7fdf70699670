//! The newest log lines, in memory.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tracing_subscriber::fmt::MakeWriter;

use crate::report::limits;

/// The newest lines, as many as fit into [`limits::RECENT_LINES`] bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent(Arc<Mutex<RecentLines>>);

#[derive(Debug, Default)]
struct RecentLines {
    lines: VecDeque<Vec<u8>>,
    len: usize,
}

impl Recent {
    /// All lines.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.lock().lines.iter().flatten().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, RecentLines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Recent {
    /// Adds one whole line, as the formatter passes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut recent = self.lock();
        recent.len += line.len();
        recent.lines.push_back(line.to_vec());
        while limits::RECENT_LINES < recent.len
            && let Some(oldest) = recent.lines.pop_front()
        {
            recent.len -= oldest.len();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Recent {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The newest lines are kept, and memory is bounded.
    #[test]
    fn newest_lines_are_kept() {
        let mut recent = Recent::default();
        recent.write_all(b"a\n").unwrap();
        recent.write_all(b"b\n").unwrap();
        assert_eq!(recent.bytes(), b"a\nb\n");
        let long = vec![b'x'; limits::RECENT_LINES - 2];
        recent.write_all(&long).unwrap();
        assert_eq!(recent.bytes(), [b"b\n", long.as_slice()].concat());
        recent.write_all(&vec![b'y'; limits::RECENT_LINES + 1]).unwrap();
        assert_eq!(recent.bytes(), b"");
    }
}
