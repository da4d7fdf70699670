//! The block of lines that a log shows on a terminal while a job starts.

use std::{ffi::OsStr, panic, sync::Arc};

use super::{Log, writer::TelemetryItem};
use crate::{
    output::screen::Screen,
    report::{limits, start::Start},
};

impl Log {
    /// The terminal to which this log is written.
    pub fn screen(&self) -> Arc<Screen> {
        Arc::clone(&self.screen)
    }

    /// Returns true if a start may be shown as a block of lines: on a terminal whose cursor can be moved, unless log lines are
    /// selected.
    pub fn has_block(&self) -> bool {
        self.has_block
    }

    /// Shows this start until another one is shown, or [`Log::finish_start`]. Does not wait for the terminal.
    pub fn show_start(&self, start: Start) {
        if self.has_block && self.wanted.set(Some(start)) {
            // If the queue is full, the thread is awake.
            let _ = self.queue.try_send(TelemetryItem::Start);
        }
    }

    /// Removes the block of a start, if there is one. Does not wait for the terminal.
    pub fn hide_start(&self) {
        if self.has_block && self.wanted.set(None) {
            let _ = self.queue.try_send(TelemetryItem::Start);
        }
    }

    /// Leaves the block where it is, because other output may follow it.
    pub fn leave_block(&self) {
        self.screen.abandon();
    }

    /// Removes the block of a start, if there is one, and waits until it is gone, and all earlier lines are written. A
    /// terminal that does not take the removal in time keeps the block: other output may follow it.
    pub fn finish_start(&self) {
        if self.has_block {
            self.wanted.set(None);
            if !self.flush(limits::START_FLUSH) {
                self.screen.abandon();
            }
        }
    }

    /// Allows the block on a terminal of this type, if its cursor can be moved.
    pub(super) fn enable_block(&mut self, term: Option<&OsStr>) {
        self.has_block = moves_cursor(term);
        if self.has_block {
            self.erase_before_panics();
        }
    }

    /// Removes the block before the message of a panic.
    fn erase_before_panics(&self) {
        let (wanted, screen) = (self.wanted.clone(), Arc::clone(&self.screen));
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            wanted.set(None);
            screen.try_make_way();
            report(panic);
        }));
    }
}

/// Returns true if the cursor of a terminal of this type can be moved.
fn moves_cursor(term: Option<&OsStr>) -> bool {
    term.is_some_and(|term| !term.is_empty() && term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal that cannot move its cursor has no block.
    #[test]
    fn simple_terminals_have_no_block() {
        assert!(moves_cursor(Some("xterm".as_ref())));
        for term in [None, Some("dumb".as_ref()), Some("".as_ref())] {
            assert!(!moves_cursor(term), "{term:?}");
        }
    }
}
